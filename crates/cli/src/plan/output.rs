//! The output of `muffle plan`: recommendation, tables, charts, JSON.

use super::{Plan, Planned, Row};
use crate::error::Error;
use crate::estimate::LocalCost;
use crate::output::{Number, print, print_json, short, table, up, warn};
use crate::repeat::{self, Repeated};
use accounting::{Adjacency, SamplingMethod};
use muffle::chart::{Axis, Chart, Series, side_by_side};
use muffle::plan::recommend::{FEWEST_STEPS, LARGEST_SHARE, Recommendation};
use serde::Serialize;

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    recommended: Option<Recommended>,
    base: Setting,
    rows: Vec<Varied>,
    repeated: Vec<repeat::Output>,
    delta: f64,
    estimate: bool,
    sampling: SamplingMethod,
    adjacency: Adjacency,
    rows_per_person: u64,
    blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<&'a LocalCost>,
}

/// The recommended setting.
#[derive(Serialize)]
struct Recommended {
    lot_size: u64,
    epochs: f64,
    steps: u64,
    noise_in_mean: f64,
    noise_of_run: f64,
    gain_of_doubled_lot: f64,
    reason: String,
}

/// One setting and its cost.
#[derive(Serialize)]
struct Setting {
    dataset_size: u64,
    lot_size: u64,
    steps: u64,
    epochs: f64,
    sampling_rate: f64,
    noise_multiplier: f64,
    noise_in_mean: f64,
    noise_of_run: f64,
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
            epochs: epochs(row),
            sampling_rate: row.lot as f64 / row.dataset as f64,
            noise_multiplier: row.sigma,
            noise_in_mean: row.noise_in_mean(),
            noise_of_run: row.noise_of_run(),
            epsilon: row.price.epsilon.into(),
            delta: row.price.delta,
            accountant: row.price.accountant.name(),
        }
    }
}

/// The expected number of times that a record is used.
fn epochs(row: &Row) -> f64 {
    row.steps as f64 * row.lot as f64 / row.dataset as f64
}

/// A number of epochs with at most two decimal places.
fn rounded(epochs: f64) -> String {
    format!("{}", (epochs * 100.0).round() / 100.0)
}

impl Plan {
    pub(super) fn print(&self, planned: &Planned) -> Result<(), Error> {
        let charts = self.charts(planned);
        if let Some(path) = &self.chart {
            let delta = short(planned.delta.get());
            let title = match self.noise_multiplier {
                Some(sigma) => format!("ε at σ = {sigma}, δ = {delta}"),
                None => format!("noise for ε = {} at δ = {delta}", self.epsilon()),
            };
            std::fs::write(path, side_by_side(&title, &charts)).map_err(muffle::Error::io(path))?;
        }
        if self.run.json {
            return print_json(&self.output(planned));
        }
        self.print_tables(planned, &charts);
        Ok(())
    }

    fn charts(&self, planned: &Planned) -> Vec<Chart> {
        let fixed_noise = self.noise_multiplier.is_some();
        let chart = |over: &str, x_label: &str, y_axis: Axis, x: fn(&Row) -> u64, y: Figure| {
            let rows = planned.rows.iter().filter(|row| row.varied == over);
            let points = rows.map(|row| (x(row) as f64, y(row))).collect();
            Chart {
                title: String::new(),
                x: Axis::log(x_label),
                y: y_axis,
                series: vec![Series {
                    highlight: Some(x(&planned.base) as f64),
                    ..Series::new("", points)
                }],
                marks: Vec::new(),
            }
        };
        let (label, figure): (&str, Figure) = if fixed_noise {
            ("ε", |row| row.price.epsilon)
        } else {
            ("noise multiplier σ", |row| row.sigma)
        };
        let axis = || Axis::from_zero(label);
        let mut charts = vec![chart("steps", "steps", axis(), |row| row.steps, figure)];
        if self.run.sampling == SamplingMethod::Full {
            return charts;
        }
        // σ grows with the lot, although the noise in the mean falls: it would suggest the wrong
        // lot.
        let (lot_axis, lot_figure): (Axis, Figure) = if fixed_noise {
            (axis(), figure)
        } else {
            (Axis::log("noise in mean ÷ C"), Row::noise_in_mean)
        };
        let epochs = rounded(epochs(&planned.base));
        let lots = format!("lot size, at {epochs} epochs");
        charts.push(chart("lot_size", &lots, lot_axis, |row| row.lot, lot_figure));
        let sizes = format!("dataset size, at {epochs} epochs");
        charts.push(chart("dataset_size", &sizes, axis(), |row| row.dataset, figure));
        charts
    }

    fn output<'a>(&self, planned: &'a Planned) -> Output<'a> {
        let base = &planned.base;
        let varied = |row: &Row| Varied { over: row.varied, setting: row.into() };
        Output {
            recommended: planned.recommendation.map(|found| Recommended {
                lot_size: base.lot,
                epochs: found.setting.epochs,
                steps: base.steps,
                noise_in_mean: base.noise_in_mean(),
                noise_of_run: base.noise_of_run(),
                gain_of_doubled_lot: found.gain(),
                reason: reason(&found),
            }),
            base: Setting::from(base),
            rows: planned.rows.iter().map(varied).collect(),
            repeated: planned.repeated.iter().map(Repeated::output).collect(),
            delta: planned.delta.get(),
            estimate: base.price.estimate,
            sampling: self.run.sampling,
            adjacency: base.price.unit.adjacency,
            rows_per_person: base.price.unit.rows,
            blocks: self.run.blocks,
            cost: planned.cost.as_ref(),
        }
    }

    fn print_tables(&self, planned: &Planned, charts: &[Chart]) {
        let base = &planned.base;
        if let Some(found) = &planned.recommendation {
            print(&format!(
                "Recommended: lots of {} and {} epochs, that is {} steps.\n{}\n",
                base.lot,
                rounded(found.setting.epochs),
                base.steps,
                reason(found)
            ));
        }
        let note = if self.delta.is_none() { " (1/(10·N))" } else { "" };
        print(&format!(
            "N = {}, lots of {}, {} steps ({} epochs), δ = {}{note}, {} sampling, {}:\nσ = {}, \
             noise in mean ÷ C = {}, ε = {} ({})\n",
            base.dataset,
            base.lot,
            base.steps,
            rounded(epochs(base)),
            short(planned.delta.get()),
            self.run.sampling.name(),
            base.price.unit,
            up(base.sigma, 4),
            short(base.noise_in_mean()),
            up(base.price.epsilon, 4),
            base.price.accountant,
        ));
        if let Some(cost) = &planned.cost {
            print(&format!("{}\n", cost.in_words()));
        }
        let fixed = format!(", with {} epochs", rounded(epochs(base)));
        for (over, title) in [
            ("steps", "If the number of steps changes".to_string()),
            ("lot_size", format!("If the lot size changes{fixed}")),
            ("dataset_size", format!("If the dataset size changes{fixed}")),
        ] {
            let rows = planned.rows.iter().filter(|row| row.varied == over);
            let lines: Vec<Vec<String>> = rows.map(|row| cells(over, row, base)).collect();
            if !lines.is_empty() {
                print(&format!("{title}:"));
                let mut header =
                    vec![over, "steps", "σ", "noise in mean ÷ C", "noise of run ÷ C", "ε"];
                if over == "steps" {
                    header.remove(1);
                }
                print(&table(&header, &lines));
                if over == "lot_size" {
                    print(
                        "σ grows with the lot, but the noise that a step sees is that of the mean, \
                         σ/B, which falls.",
                    );
                }
                print("");
            }
        }
        for chart in charts {
            print(&chart.terminal(56, 9));
        }
        print(Repeated::TITLE);
        let cells: Vec<_> = planned.repeated.iter().map(Repeated::cells).collect();
        print(&table(&Repeated::HEADER, &cells));
        if self.noise_multiplier.is_none() && base.sigma < 0.3 {
            warn("with so little noise the guarantee rests on δ; consider a smaller ε");
        }
        if let Some(path) = &self.chart {
            print(&format!("\nchart: {}", path.display()));
        }
    }
}

/// A figure of a row.
type Figure = fn(&Row) -> f64;

/// One line of a table.
fn cells(over: &str, row: &Row, base: &Row) -> Vec<String> {
    let is_base = (row.dataset, row.lot, row.steps) == (base.dataset, base.lot, base.steps);
    let label = match over {
        "steps" => row.steps,
        "lot_size" => row.lot,
        _ => row.dataset,
    };
    let mut cells = vec![
        format!("{label}{}", if is_base { " ◆" } else { "" }),
        row.steps.to_string(),
        up(row.sigma, 4),
        short(row.noise_in_mean()),
        short(row.noise_of_run()),
        up(row.price.epsilon, 4),
    ];
    if over == "steps" {
        cells.remove(1);
    }
    cells
}

/// Why a setting is recommended.
fn reason(found: &Recommendation) -> String {
    let gain = format!("{:.0} %", 100.0 * found.gain());
    let noise = "the noise left after averaging all steps, σ/(B √T)";
    if found.is_flat() {
        format!(
            "Doubling the lot would lower {noise}, by {gain} only; fewer epochs or smaller lots \
             leave more of it. More steps help the optimizer, so the smallest such lot is chosen."
        )
    } else {
        format!(
            "Doubling the lot would lower {noise}, by {gain}, but lots of more than N/{LARGEST_SHARE} \
             or fewer than {FEWEST_STEPS} steps are not recommended; more epochs help if you can \
             wait."
        )
    }
}
