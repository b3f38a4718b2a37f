//! `muffle plan`: noise and cost of possible runs.

use super::error::Error;
use super::number::real;
use super::output::{Number, print, print_json, short, table, up, warn};
use super::repeat::{self, Repeated};
use super::run::RunArgs;
use accounting::calibrate::{self, Target};
use accounting::{Adjacency, Delta, Epsilon, Guarantee, SamplingMethod, Sigma};
use clap::Args;
use muffle::chart::{Axis, Chart, Series, side_by_side};
use serde::Serialize;
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
    #[arg(
        long,
        short = 'e',
        value_name = "E",
        value_parser = real,
        allow_hyphen_values = true,
        conflicts_with = "noise_multiplier"
    )]
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

/// One row of a table: a setting and its cost.
struct Row {
    /// The parameter that differs from the base; empty for the base itself.
    varied: &'static str,
    dataset: u64,
    lot: u64,
    steps: u64,
    sigma: f64,
    price: Guarantee,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    base: Setting,
    rows: Vec<Varied>,
    repeated: Vec<repeat::Output>,
    delta: f64,
    estimate: bool,
    sampling: SamplingMethod,
    adjacency: Adjacency,
    rows_per_person: u64,
    blocks: u64,
}

/// One setting and its cost.
#[derive(Serialize)]
struct Setting {
    dataset_size: u64,
    lot_size: u64,
    steps: u64,
    sampling_rate: f64,
    noise_multiplier: f64,
    noise_in_mean: f64,
    epsilon: Number,
    delta: f64,
    accountant: &'static str,
}

/// A setting in which one parameter differs from the base.
#[derive(Serialize)]
struct Varied {
    over: &'static str,
    #[serde(flatten)]
    setting: Setting,
}

impl From<&Row> for Setting {
    fn from(row: &Row) -> Self {
        Self {
            dataset_size: row.dataset,
            lot_size: row.lot,
            steps: row.steps,
            sampling_rate: row.lot as f64 / row.dataset as f64,
            noise_multiplier: row.sigma,
            noise_in_mean: row.sigma / row.lot as f64,
            epsilon: row.price.epsilon.into(),
            delta: row.price.delta,
            accountant: row.price.accountant.name(),
        }
    }
}

impl Plan {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.run.sampling_rate.is_some() {
            return Err(Error::usage(
                "a plan varies the lot size: give --lot-size instead of --sampling-rate",
            ));
        }
        let n = match self.run.dataset_size {
            Some(n) if n > 0 => n,
            _ => return Err(Error::usage("give --dataset-size, at least 1")),
        };
        let lot = if self.run.sampling == SamplingMethod::Full {
            n
        } else {
            self.run.lot_size.unwrap_or((n / 50).max(1))
        };
        if !(lot >= 1 && lot <= n) {
            return Err(Error::usage(format!(
                "--lot-size must be at least 1 and at most the dataset size, got {lot} of {n}"
            )));
        }
        let epochs =
            if self.run.steps.is_none() { Some(self.run.epochs.unwrap_or(10.0)) } else { None };
        let base = RunArgs { lot_size: Some(lot), epochs, ..self.run.clone() };
        let steps = base.steps()?.max(1);
        let delta = Delta::new(self.delta.unwrap_or(0.1 / n as f64))?;
        base.print_warnings(Some(delta));
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
            .collect::<Result<Vec<Row>, Error>>()?;
        let base_row = self.row(&base, delta, ("", n, lot, steps))?;
        let events = base.events(Sigma::new(base_row.sigma)?, base_row.steps)?;
        let repeated = [1, 2, 5, 10, 20, 50]
            .into_iter()
            .map(|runs| Repeated::new(&events, base.unit(), delta, runs))
            .collect::<Result<Vec<_>, _>>()?;
        let charts = self.charts(&rows, &base_row);
        if let Some(path) = &self.chart {
            let title = match self.noise_multiplier {
                Some(sigma) => format!("ε at σ = {sigma}, δ = {}", short(delta.get())),
                None => format!(
                    "noise for ε = {} at δ = {}",
                    self.epsilon.unwrap_or(8.0),
                    short(delta.get())
                ),
            };
            std::fs::write(path, side_by_side(&title, &charts)).map_err(muffle::Error::io(path))?;
        }
        if self.run.json {
            return print_json(&self.output(delta, &base_row, &rows, &repeated));
        }
        self.print_tables(delta, &base_row, &rows, &repeated, &charts);
        Ok(())
    }

    /// Computes noise and cost of one setting.
    fn row(
        &self,
        base: &RunArgs,
        delta: Delta,
        (varied, dataset, lot, steps): (&'static str, u64, u64, u64),
    ) -> Result<Row, Error> {
        let run = RunArgs { dataset_size: Some(dataset), lot_size: Some(lot), ..base.clone() };
        let events = |sigma: Sigma| run.events(sigma, steps);
        let epsilon = Epsilon::new(self.epsilon.unwrap_or(8.0))?;
        let target = Target { epsilon, delta, unit: base.unit(), accountant: self.run.accountant };
        let (sigma, price) = match self.noise_multiplier {
            Some(sigma) => {
                let sigma = Sigma::new(sigma)?;
                (sigma, target.price(&events(sigma)?)?)
            }
            None => calibrate::sigma(target, events)?,
        };
        Ok(Row { varied, dataset, lot, steps, sigma: sigma.get(), price })
    }

    fn charts(&self, rows: &[Row], base_row: &Row) -> Vec<Chart> {
        let (y_label, y): (&str, fn(&Row) -> f64) = if self.noise_multiplier.is_some() {
            ("ε", |row| row.price.epsilon)
        } else {
            ("noise multiplier σ", |row| row.sigma)
        };
        let chart = |over: &str, x_label: &str, x: fn(&Row) -> u64| {
            let rows = rows.iter().filter(|row| row.varied == over);
            let points = rows.map(|row| (x(row) as f64, y(row))).collect();
            Chart {
                title: String::new(),
                x: Axis::log(x_label),
                y: Axis::from_zero(y_label),
                series: vec![Series {
                    highlight: Some(x(base_row) as f64),
                    ..Series::new("", points)
                }],
                marks: Vec::new(),
            }
        };
        let mut charts = vec![chart("steps", "steps", |row| row.steps)];
        if self.run.sampling != SamplingMethod::Full {
            charts.push(chart("lot_size", "lot size", |row| row.lot));
            charts.push(chart("dataset_size", "dataset size", |row| row.dataset));
        }
        charts
    }

    fn output(&self, delta: Delta, base_row: &Row, rows: &[Row], repeated: &[Repeated]) -> Output {
        Output {
            base: Setting::from(base_row),
            rows: rows.iter().map(|row| Varied { over: row.varied, setting: row.into() }).collect(),
            repeated: repeated.iter().map(Repeated::output).collect(),
            delta: delta.get(),
            estimate: base_row.price.estimate,
            sampling: self.run.sampling,
            adjacency: base_row.price.unit.adjacency,
            rows_per_person: base_row.price.unit.rows,
            blocks: self.run.blocks,
        }
    }

    fn print_tables(
        &self,
        delta: Delta,
        base_row: &Row,
        rows: &[Row],
        repeated: &[Repeated],
        charts: &[Chart],
    ) {
        let note = if self.delta.is_none() { " (1/(10·N))" } else { "" };
        print(&format!(
            "N = {}, lots of {}, {} steps, δ = {}{note}, {} sampling, {}:\nσ = {}, ε = {} ({})\n",
            base_row.dataset,
            base_row.lot,
            base_row.steps,
            short(delta.get()),
            self.run.sampling.name(),
            base_row.price.unit,
            up(base_row.sigma, 4),
            up(base_row.price.epsilon, 4),
            base_row.price.accountant,
        ));
        for (over, title) in [
            ("steps", "If the number of steps changes"),
            ("lot_size", "If the lot size changes"),
            ("dataset_size", "If the dataset size changes"),
        ] {
            let lines: Vec<Vec<String>> = rows
                .iter()
                .filter(|row| row.varied == over)
                .map(|row| {
                    let is_base = (row.dataset, row.lot, row.steps)
                        == (base_row.dataset, base_row.lot, base_row.steps);
                    let label = match over {
                        "steps" => row.steps,
                        "lot_size" => row.lot,
                        _ => row.dataset,
                    };
                    vec![
                        format!("{label}{}", if is_base { " ◆" } else { "" }),
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
        for chart in charts {
            print(&chart.terminal(56, 9));
        }
        print(Repeated::TITLE);
        print(&table(&Repeated::HEADER, &repeated.iter().map(Repeated::cells).collect::<Vec<_>>()));
        if self.noise_multiplier.is_none() && base_row.sigma < 0.3 {
            warn("with so little noise the guarantee rests on δ; consider a smaller ε");
        }
        if let Some(path) = &self.chart {
            print(&format!("\nchart: {}", path.display()));
        }
    }
}
