//! `muffle plan`: what could be had for which price, before anything is run.

use super::Failure;
use super::number::real;
use super::output::{json_number, print, print_json, short, table, up, warn};
use super::repeat::Repeated;
use super::run::RunArgs;
use accounting::calibrate::{self, Target};
use accounting::{Delta, Epsilon, Guarantee, SamplingMethod, Sigma};
use clap::Args;
use muffle::report::chart::{Panel, svg};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Table and chart of noise and ε against steps, lot size and dataset size, and the cost of
/// repeated runs
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle plan --dataset-size 50000                          (ε = 8, 10 epochs of lots of \
    N/50)\n  \
    muffle plan --dataset-size 42043 --lot-size 1024 --epochs 10 --epsilon 3 --chart plan.svg\n  \
    muffle plan --dataset-size 42043 --lot-size 1024 --steps 410 --noise-multiplier 0.7")]
pub(crate) struct Plan {
    /// The ε to keep; the noise multiplier is found for each row [default: 8]
    #[arg(long, short = 'e', value_name = "E", value_parser = real, allow_hyphen_values = true, conflicts_with = "noise_multiplier")]
    epsilon: Option<f64>,
    /// A fixed noise multiplier; ε is found for each row
    #[arg(long, short = 's', value_name = "S", value_parser = real, allow_hyphen_values = true)]
    noise_multiplier: Option<f64>,
    /// The δ to keep [default: 1/(10·N)]
    #[arg(long, short = 'd', value_name = "D", value_parser = real, allow_hyphen_values = true)]
    delta: Option<f64>,
    /// Write the chart to this SVG file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

/// One line of the plan.
struct Row {
    over: &'static str,
    dataset: u64,
    lot: u64,
    steps: u64,
    sigma: f64,
    price: Guarantee,
}

impl Plan {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.run.sampling_rate.is_some() {
            return Err(Failure::Input(
                "a plan varies the lot size: give --lot-size instead of --sampling-rate".into(),
            ));
        }
        let n = match self.run.dataset_size {
            Some(n) if n > 0 => n,
            _ => return Err(Failure::Input("give --dataset-size, at least 1".into())),
        };
        let lot = if self.run.sampling == SamplingMethod::Full {
            n
        } else {
            self.run.lot_size.unwrap_or((n / 50).max(1))
        };
        if !(lot >= 1 && lot <= n) {
            return Err(Failure::Input(format!(
                "--lot-size must be at least 1 and at most the dataset size, got {lot} of {n}"
            )));
        }
        let epochs =
            if self.run.steps.is_none() { Some(self.run.epochs.unwrap_or(10.0)) } else { None };
        let base = RunArgs { lot_size: Some(lot), epochs, ..self.run.clone() };
        let steps = base.steps()?.max(1);
        let delta = Delta::new(self.delta.unwrap_or(0.1 / n as f64))?;
        base.warnings(Some(delta));
        let sweep = |over: &'static str, (low, high): (u64, u64), base_value: u64| {
            let mut values: Vec<u64> = [1.0 / 8.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
                .iter()
                .map(|factor| ((base_value as f64 * factor).round() as u64).clamp(low, high))
                .collect();
            values.dedup();
            values.into_iter().map(move |value| match over {
                "steps" => (over, n, lot, value),
                "lot_size" => (over, n, value, steps),
                _ => (over, value, lot.min(value), steps),
            })
        };
        let mut settings: Vec<_> = sweep("steps", (1, u64::MAX / 2), steps).collect();
        if self.run.sampling != SamplingMethod::Full {
            settings.extend(sweep("lot_size", (1, n), lot));
            settings.extend(sweep("dataset_size", (lot, u64::MAX / 2), n));
        }
        let rows = settings
            .into_iter()
            .map(|s| self.row(&base, delta, s))
            .collect::<Result<Vec<Row>, Failure>>()?;
        let own = self.row(&base, delta, ("", n, lot, steps))?;
        let events = base.events(Sigma::new(own.sigma)?, own.steps)?;
        let repeated = [1, 2, 5, 10, 20, 50]
            .into_iter()
            .map(|runs| Repeated::new(&events, base.unit(), delta, runs))
            .collect::<Result<Vec<_>, _>>()?;
        let panels = self.panels(&rows, &own);
        if let Some(path) = &self.chart {
            let title = match self.noise_multiplier {
                Some(sigma) => format!("ε at σ = {sigma}, δ = {}", short(delta.get())),
                None => format!(
                    "noise for ε = {} at δ = {}",
                    self.epsilon.unwrap_or(8.0),
                    short(delta.get())
                ),
            };
            std::fs::write(path, svg(&title, &panels))
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        }
        if self.run.json {
            self.print_json(delta, &own, &rows, &repeated);
        } else {
            self.print_tables(delta, &own, &rows, &repeated, &panels);
        }
        Ok(())
    }

    fn row(
        &self,
        base: &RunArgs,
        delta: Delta,
        (over, dataset, lot, steps): (&'static str, u64, u64, u64),
    ) -> Result<Row, Failure> {
        let run = RunArgs { dataset_size: Some(dataset), lot_size: Some(lot), ..base.clone() };
        let events = |sigma: Sigma| run.events_in_search(sigma, steps);
        let epsilon = Epsilon::new(self.epsilon.unwrap_or(8.0))?;
        let target =
            Target { epsilon, delta, unit: base.unit(), accountant: self.run.accountant.into() };
        let (sigma, price) = match self.noise_multiplier {
            Some(sigma) => {
                let sigma = Sigma::new(sigma)?;
                (sigma, target.price(&events(sigma)?)?)
            }
            None => calibrate::sigma(target, events)?,
        };
        Ok(Row { over, dataset, lot, steps, sigma: sigma.get(), price })
    }

    fn panels(&self, rows: &[Row], own: &Row) -> Vec<Panel> {
        let (y_label, y): (&str, fn(&Row) -> f64) = if self.noise_multiplier.is_some() {
            ("ε", |row| row.price.epsilon)
        } else {
            ("noise multiplier σ", |row| row.sigma)
        };
        let panel = |over: &str, x_label: &str, x: fn(&Row) -> u64| Panel {
            x_label: x_label.into(),
            y_label: y_label.into(),
            points: rows
                .iter()
                .filter(|row| row.over == over)
                .map(|row| (x(row) as f64, y(row)))
                .collect(),
            mark: Some(x(own) as f64),
        };
        let mut panels = vec![panel("steps", "steps", |row| row.steps)];
        if self.run.sampling != SamplingMethod::Full {
            panels.push(panel("lot_size", "lot size", |row| row.lot));
            panels.push(panel("dataset_size", "dataset size", |row| row.dataset));
        }
        panels
    }

    fn print_json(&self, delta: Delta, own: &Row, rows: &[Row], repeated: &[Repeated]) {
        let object = |row: &Row| {
            json!({
                "over": row.over,
                "dataset_size": row.dataset,
                "lot_size": row.lot,
                "steps": row.steps,
                "sampling_rate": row.lot as f64 / row.dataset as f64,
                "noise_multiplier": row.sigma,
                "noise_in_mean": row.sigma / row.lot as f64,
                "epsilon": json_number(row.price.epsilon),
                "delta": row.price.delta,
                "accountant": row.price.accountant.name(),
            })
        };
        let repeated: Vec<Value> = repeated.iter().map(Repeated::json).collect();
        let mut base = object(own);
        if let Some(map) = base.as_object_mut() {
            map.remove("over");
        }
        print_json(&json!({
            "base": base,
            "rows": rows.iter().map(object).collect::<Vec<_>>(),
            "repeated": repeated,
            "delta": delta.get(),
            "estimate": own.price.estimate,
            "sampling": self.run.sampling.name(),
            "adjacency": own.price.unit.adjacency.to_string(),
            "rows_per_person": own.price.unit.rows,
            "blocks": self.run.blocks,
        }));
    }

    fn print_tables(
        &self,
        delta: Delta,
        own: &Row,
        rows: &[Row],
        repeated: &[Repeated],
        panels: &[Panel],
    ) {
        let chosen = if self.delta.is_none() { " (1/(10·N))" } else { "" };
        print(&format!(
            "N = {}, lots of {}, {} steps, δ = {}{chosen}, {} sampling, {}:\nσ = {}, ε = {} ({})\n",
            own.dataset,
            own.lot,
            own.steps,
            short(delta.get()),
            self.run.sampling.name(),
            own.price.unit,
            up(own.sigma, 4),
            up(own.price.epsilon, 4),
            own.price.accountant,
        ));
        for (over, title) in [
            ("steps", "If the number of steps changes"),
            ("lot_size", "If the lot size changes"),
            ("dataset_size", "If the dataset size changes"),
        ] {
            let lines: Vec<Vec<String>> = rows
                .iter()
                .filter(|row| row.over == over)
                .map(|row| {
                    let same =
                        (row.dataset, row.lot, row.steps) == (own.dataset, own.lot, own.steps);
                    let label = match over {
                        "steps" => row.steps,
                        "lot_size" => row.lot,
                        _ => row.dataset,
                    };
                    vec![
                        format!("{label}{}", if same { " ◆" } else { "" }),
                        up(row.sigma, 4),
                        short(row.sigma / row.lot as f64),
                        up(row.price.epsilon, 4),
                    ]
                })
                .collect();
            if !lines.is_empty() {
                print(&format!("{title}:"));
                print(&table(&[over, "σ", "noise in mean ÷ C", "ε"], &lines));
                print("");
            }
        }
        for panel in panels {
            print(&panel.sketch(56, 9));
        }
        print(
            "Trying several times on the same people (all looked at, or a random number of runs \
             and only the best released):",
        );
        print(&table(&Repeated::HEADER, &repeated.iter().map(Repeated::cells).collect::<Vec<_>>()));
        if self.noise_multiplier.is_none() && own.sigma < 0.3 {
            warn("so little noise rests on large δ-events alone; consider a smaller ε");
        }
        if let Some(path) = &self.chart {
            print(&format!("\nchart: {}", path.display()));
        }
    }
}
