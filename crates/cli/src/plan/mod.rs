//! `muffle plan`: noise and cost of possible runs, and a recommendation.

mod output;

use super::error::Error;
use super::estimate::{Estimate, LocalCost};
use super::number::{count, real};
use super::repeat::Repeated;
use super::run::RunArgs;
use accounting::calibrate::{self, Target};
use accounting::{Accountant, Delta, Epsilon, Guarantee, SamplingMethod, Sigma};
use clap::Args;
use muffle::plan::recommend::{self, Recommendation, recommend};
use std::path::PathBuf;

/// Recommends lot size and epochs; table and chart of noise and ε against steps, lot size and
/// dataset size; the cost of repeated runs
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle plan --dataset-size 10000 --epsilon 3              (which lot, how many epochs?)\n  \
    muffle plan --dataset-size 10000 --epsilon 3 --model gpt2-s --length 64   (how long here?)\n  \
    muffle plan --dataset-size 42043 --lot-size 1024 --epochs 10 --epsilon 3 --chart plan.svg\n  \
    muffle plan --dataset-size 42043 --lot-size 1024 --steps 410 --noise-multiplier 0.7\n\n\
    Without --lot-size or --epochs, they are recommended: the fewest epochs and the smallest lot \
    for which a doubled lot would lower the noise of the run, σ/(B √T), by less than a tenth; lots \
    of at most N/8, at least 150 steps. Tables keep the number of epochs when lot or dataset size \
    change.")]
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
    #[arg(
        long,
        short = 's',
        alias = "sigma",
        value_name = "S",
        value_parser = real,
        allow_hyphen_values = true
    )]
    noise_multiplier: Option<f64>,
    /// The δ to keep [default: 1/(10·N)]
    #[arg(long, short = 'd', value_name = "D", value_parser = real, allow_hyphen_values = true)]
    delta: Option<f64>,
    /// Also measure time and memory with this model on this machine: a preset, a directory in the
    /// Hugging Face layout, or a name on the hub
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Option<String>,
    /// Tokens of each record, for --model [default: 256, or what the model takes]
    #[arg(long, value_name = "T", value_parser = count, requires = "model")]
    length: Option<u64>,
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

impl Row {
    /// The noise in the mean of a lot, divided by the clip bound.
    fn noise_in_mean(&self) -> f64 {
        self.sigma / self.lot as f64
    }

    /// The noise left in an average over all steps, divided by the clip bound.
    fn noise_of_run(&self) -> f64 {
        self.noise_in_mean() / (self.steps as f64).sqrt()
    }
}

/// Everything that is printed.
struct Planned {
    delta: Delta,
    base: Row,
    rows: Vec<Row>,
    repeated: Vec<Repeated>,
    recommendation: Option<Recommendation>,
    cost: Option<LocalCost>,
}

/// The factors by which a parameter varies in a table.
const FACTORS: [f64; 7] = [1.0 / 8.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

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
        if let Some(epochs) = self.run.epochs
            && !(epochs > 0.0 && epochs < f64::INFINITY)
        {
            return Err(Error::usage(format!("--epochs must be greater than 0, got {epochs}")));
        }
        if self.run.steps == Some(0) {
            return Err(Error::usage("--steps must be at least 1, got 0"));
        }
        if let Some(epsilon) = self.epsilon
            && !(epsilon > 0.0 && epsilon < f64::INFINITY)
        {
            return Err(Error::usage(format!(
                "--epsilon must be a finite number greater than 0, got {epsilon}"
            )));
        }
        if let Some(lot) = self.run.lot_size
            && !(lot >= 1 && lot <= n)
        {
            return Err(Error::usage(format!(
                "--lot-size must be at least 1 and at most the dataset size, got {lot} of {n}"
            )));
        }
        let delta = Delta::new(self.delta.unwrap_or(0.1 / n as f64))?;
        let recommendation = self.recommendation(n, delta)?;
        let recommended = recommendation.map(|found| found.setting);
        let lot = match (self.run.sampling, self.run.lot_size, recommended) {
            (SamplingMethod::Full, ..) => n,
            (_, Some(lot), _) => lot,
            (_, None, Some(setting)) => setting.lot,
            (_, None, None) => (n / 50).max(1),
        };
        let steps = match (self.run.steps, self.run.epochs, recommended) {
            (Some(steps), ..) => steps,
            (None, Some(epochs), _) => recommend::steps(n, epochs, lot),
            (None, None, Some(setting)) => setting.steps,
            (None, None, None) => recommend::steps(n, DEFAULT_EPOCHS, lot),
        };
        let base = RunArgs { lot_size: Some(lot), epochs: None, ..self.run.clone() };
        base.print_warnings(Some(delta));
        let rows = self
            .settings(n, lot, steps)
            .into_iter()
            .map(|setting| self.row(&base, delta, setting))
            .collect::<Result<Vec<Row>, Error>>()?;
        let base_row = self.row(&base, delta, ("", n, lot, steps))?;
        let events = base.events(Sigma::new(base_row.sigma)?, base_row.steps)?;
        let repeated = [1, 2, 5, 10, 20, 50]
            .into_iter()
            .map(|runs| Repeated::new(&events, base.unit(), delta, runs))
            .collect::<Result<Vec<_>, _>>()?;
        let cost = match &self.model {
            Some(model) => {
                let measured = Estimate { model, length: self.length }.measure()?;
                Some(LocalCost::new(&measured, lot as f64, steps))
            }
            None => None,
        };
        self.print(&Planned { delta, base: base_row, rows, repeated, recommendation, cost })
    }

    /// Recommends what is not given; `None` if nothing is to be recommended.
    fn recommendation(&self, n: u64, delta: Delta) -> Result<Option<Recommendation>, Error> {
        let given =
            self.run.lot_size.is_some() && (self.run.epochs.is_some() || self.run.steps.is_some());
        if given || self.run.sampling == SamplingMethod::Full || self.noise_multiplier.is_some() {
            return Ok(None);
        }
        // With steps but without a lot there are no epochs to keep.
        if self.run.steps.is_some() {
            return Ok(None);
        }
        // Many settings are compared. RDP is fast, and close enough for a comparison.
        let accountant = match self.run.accountant {
            Accountant::Gdp => Accountant::Gdp,
            _ => Accountant::Rdp,
        };
        let target = Target { accountant, ..self.target(delta)? };
        let sigma = |lot: u64, steps: u64| {
            let run = RunArgs { lot_size: Some(lot), epochs: None, ..self.run.clone() };
            let found = calibrate::sigma(target, |sigma| run.events(sigma, steps))?;
            Ok::<_, Error>(found.0.get())
        };
        recommend(n, self.run.lot_size, self.run.epochs, sigma).map(Some)
    }

    /// The settings of the tables: the base, varied in one parameter.
    ///
    /// Where lot or dataset size vary, the number of epochs stays the same.
    fn settings(&self, n: u64, lot: u64, steps: u64) -> Vec<(&'static str, u64, u64, u64)> {
        let epochs = steps as f64 * lot as f64 / n as f64;
        let steps_of = |n: u64, lot: u64| {
            // The base keeps its steps, whatever the rounding.
            ((epochs * n as f64 / lot as f64).round() as u64).max(1)
        };
        let sweep = |(low, high): (u64, u64), base: u64| {
            let mut values: Vec<u64> = FACTORS
                .iter()
                .map(|factor| ((base as f64 * factor).round() as u64).clamp(low, high))
                .collect();
            values.dedup();
            values
        };
        let mut settings: Vec<_> =
            sweep((1, u64::MAX / 2), steps).into_iter().map(|t| ("steps", n, lot, t)).collect();
        if self.run.sampling != SamplingMethod::Full {
            let lots = sweep((1, n), lot).into_iter();
            settings.extend(lots.map(|b| ("lot_size", n, b, steps_of(n, b))));
            let sizes = sweep((lot, u64::MAX / 2), n).into_iter();
            settings.extend(sizes.map(|n| ("dataset_size", n, lot, steps_of(n, lot))));
        }
        settings
    }

    fn target(&self, delta: Delta) -> Result<Target, Error> {
        let epsilon = Epsilon::new(self.epsilon())?;
        let (unit, accountant) = (self.run.unit(), self.run.accountant);
        Ok(Target { epsilon, delta, unit, accountant })
    }

    /// The ε to keep.
    fn epsilon(&self) -> f64 {
        self.epsilon.unwrap_or(muffle::plan::EPSILON)
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
        let target = self.target(delta)?;
        let (sigma, price) = match self.noise_multiplier {
            Some(sigma) => {
                let sigma = Sigma::new(sigma)?;
                (sigma, target.price(&events(sigma)?)?)
            }
            None => calibrate::sigma(target, events)?,
        };
        Ok(Row { varied, dataset, lot, steps, sigma: sigma.get(), price })
    }
}

/// The number of epochs if it is neither given nor recommended.
const DEFAULT_EPOCHS: f64 = 10.0;
