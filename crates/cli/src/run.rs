//! The arguments that describe a run, shared by all accounting commands.

use super::error::Error;
use super::number::{count, real};
use super::output::{Number, warn};
use accounting::{
    Accountant, Adjacency, Composition, Delta, Event, Guarantee, Release, Sampling, SamplingMethod,
    SamplingRate, Sigma, Unit,
};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;

/// Parses one of `values` by its name. `help` describes each.
fn by_name<T, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
    help: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let possible = values.map(|value| PossibleValue::new(name(value)).help(help(value)));
    PossibleValuesParser::new(possible).try_map(move |text| {
        let value = values.into_iter().find(|value| name(*value) == text);
        value.ok_or("not one of the possible values")
    })
}

/// The values of `--sampling`.
fn sampling_methods() -> impl TypedValueParser<Value = SamplingMethod> {
    by_name(SamplingMethod::ALL, SamplingMethod::name, |method| match method {
        SamplingMethod::Poisson => "Each example independently with the sampling rate",
        SamplingMethod::FixedSize => {
            "Exactly the lot size, without replacement; needs --dataset-size and --lot-size"
        }
        SamplingMethod::Shuffled => {
            "A shuffled pass over the data: each example once per epoch, without amplification"
        }
        SamplingMethod::Full => "All examples in every step",
    })
}

/// The values of `--accountant`.
fn accountants() -> impl TypedValueParser<Value = Accountant> {
    by_name(Accountant::ALL, Accountant::name, |accountant| match accountant {
        Accountant::Best => "The smaller of PLD and RDP; both are upper bounds",
        Accountant::Pld => "Privacy loss distributions: tight",
        Accountant::Rdp => "Rényi differential privacy",
        Accountant::Gdp => "Central limit: an estimate, not a guarantee",
    })
}

/// The values of `--adjacency`.
fn adjacencies() -> impl TypedValueParser<Value = Adjacency> {
    by_name(Adjacency::ALL, Adjacency::name, |adjacency| match adjacency {
        Adjacency::AddRemove => "One example is added or removed",
        Adjacency::ReplaceOne => "One example is replaced by another (sensitivity 2C)",
    })
}

/// A run and its cost, as `--json` prints them.
#[derive(Serialize)]
pub(crate) struct PricedRun {
    epsilon: Number,
    delta: Number,
    accountant: &'static str,
    estimate: bool,
    sampling: SamplingMethod,
    adjacency: Adjacency,
    rows_per_person: u64,
    noise_multiplier: f64,
    noise_multiplier_effective: Number,
    blocks: u64,
    sampling_rate: Option<f64>,
    steps: u64,
}

/// Arguments for sampling, steps and the unit of privacy.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// How lots are drawn
    #[arg(long, value_parser = sampling_methods(), default_value_t)]
    pub(crate) sampling: SamplingMethod,
    /// Probability that an example is in a lot [default: lot size / dataset size]
    #[arg(long, short = 'q', value_name = "Q", value_parser = real, allow_hyphen_values = true)]
    pub(crate) sampling_rate: Option<f64>,
    /// Number of examples (public)
    #[arg(long, short = 'n', value_name = "N", value_parser = count, allow_hyphen_values = true)]
    pub(crate) dataset_size: Option<u64>,
    /// Examples in a lot (expected, for Poisson sampling)
    #[arg(long, short = 'b', value_name = "B", value_parser = count, allow_hyphen_values = true)]
    pub(crate) lot_size: Option<u64>,
    /// Number of steps
    #[arg(
        long,
        short = 't',
        value_name = "T",
        value_parser = count,
        allow_hyphen_values = true,
        conflicts_with = "epochs"
    )]
    pub(crate) steps: Option<u64>,
    /// Passes over the data, instead of steps
    #[arg(long, value_name = "E", value_parser = real, allow_hyphen_values = true)]
    pub(crate) epochs: Option<f64>,
    /// Blocks released from each lot, each with the noise multiplier; accounted jointly
    #[arg(
        long,
        value_name = "K",
        value_parser = count,
        default_value = "1",
        allow_hyphen_values = true
    )]
    pub(crate) blocks: u64,
    /// Which data sets are neighbours
    #[arg(long, value_parser = adjacencies(), default_value_t)]
    pub(crate) adjacency: Adjacency,
    /// Maximum number of rows of one person; the guarantee then holds for the person
    #[arg(
        long,
        value_name = "K",
        value_parser = count,
        default_value = "1",
        allow_hyphen_values = true
    )]
    pub(crate) rows_per_person: u64,
    /// The accountant
    #[arg(long, value_parser = accountants(), default_value_t)]
    pub(crate) accountant: Accountant,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// The message if neither δ nor the dataset size, from which it follows, is given.
pub(crate) const NO_DELTA: &str = "give --delta, or --dataset-size for the default of 1/(10·N)";

impl RunArgs {
    /// δ, given or 1/(10·N).
    pub(crate) fn delta_or_default(&self, delta: Option<f64>) -> Result<f64, Error> {
        match (delta, self.dataset_size) {
            (Some(delta), _) => Ok(delta),
            (None, Some(n)) if n > 0 => Ok(0.1 / n as f64),
            _ => Err(Error::usage(NO_DELTA)),
        }
    }

    /// The unit of privacy.
    pub(crate) fn unit(&self) -> Unit {
        Unit { adjacency: self.adjacency, rows: self.rows_per_person }
    }

    /// The sampling rate, given or derived.
    pub(crate) fn rate(&self) -> Result<SamplingRate, Error> {
        if self.sampling == SamplingMethod::Full {
            return Ok(SamplingRate::new(1.0)?);
        }
        match (self.sampling_rate, self.lot_size, self.dataset_size) {
            (Some(q), _, _) => Ok(SamplingRate::new(q)?),
            (None, Some(b), Some(n)) => Ok(SamplingRate::new(b as f64 / n as f64)?),
            _ => Err(Error::usage("give --sampling-rate, or --dataset-size with --lot-size")),
        }
    }

    /// The number of steps, given or derived from epochs and rounded up.
    pub(crate) fn steps(&self) -> Result<u64, Error> {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Ok(steps),
            (None, Some(epochs)) => {
                let steps = (epochs / self.rate()?.get()).ceil();
                if (1.0..1e15).contains(&steps) {
                    Ok(steps as u64)
                } else {
                    Err(Error::usage(format!("--epochs must be greater than 0, got {epochs}")))
                }
            }
            _ => Err(Error::usage("give --steps or --epochs")),
        }
    }

    /// The events of the run with this noise multiplier.
    pub(crate) fn events(&self, sigma: Sigma, steps: u64) -> Result<Composition, Error> {
        let release = Release::joint([(sigma, self.blocks)])?;
        let lots = match self.sampling {
            SamplingMethod::Full => Sampling::Full,
            SamplingMethod::Poisson => Sampling::Poisson { rate: self.rate()? },
            SamplingMethod::FixedSize => match (self.dataset_size, self.lot_size) {
                (Some(n), Some(b)) => Sampling::fixed_size(n, b)?,
                _ => {
                    return Err(Error::usage(
                        "fixed-size sampling needs --dataset-size and --lot-size",
                    ));
                }
            },
            SamplingMethod::Shuffled => {
                // Only the number of lots per epoch matters. Rounding it down counts enough epochs,
                // whether or not an implementation drops the last, short lot of an epoch.
                let lots_per_epoch = (1.0 / self.rate()?.get() + 1e-9).floor().max(1.0);
                Sampling::shuffled(lots_per_epoch as u64, 1)?
            }
        };
        let count = steps.div_ceil(lots.lots_per_event());
        Ok(Composition::repeated(Event::Gaussian { lots, release }, count))
    }

    /// The run with its cost, for `--json`.
    pub(crate) fn priced(&self, sigma: Sigma, steps: u64, price: &Guarantee) -> PricedRun {
        PricedRun {
            epsilon: price.epsilon.into(),
            delta: price.delta.into(),
            accountant: price.accountant.name(),
            estimate: price.estimate,
            sampling: self.sampling,
            adjacency: price.unit.adjacency,
            rows_per_person: price.unit.rows,
            noise_multiplier: sigma.get(),
            noise_multiplier_effective: self.effective(sigma).into(),
            blocks: self.blocks,
            sampling_rate: self.rate().ok().map(SamplingRate::get),
            steps,
        }
    }

    /// The joint noise multiplier of all blocks of a step, divided by the sensitivity of the unit.
    pub(crate) fn effective(&self, sigma: Sigma) -> f64 {
        let unit = self.unit();
        sigma.get() / (self.blocks as f64).sqrt() / unit.adjacency.sensitivity() / unit.rows as f64
    }

    /// Prints warnings about weak settings.
    pub(crate) fn print_warnings(&self, delta: Option<Delta>) {
        if let (Some(delta), Some(n)) = (delta, self.dataset_size)
            && n > 0
            && delta.get() >= 1.0 / n as f64
        {
            warn(&format!(
                "δ = {delta} is not below 1/N = {:.3e}: a mechanism that publishes one random row \
                 would satisfy it",
                1.0 / n as f64
            ));
        }
        if self.accountant == Accountant::Gdp {
            warn(
                "gdp is a central-limit estimate and can be below the exact ε; it is not a \
                 guarantee",
            );
        }
        if self.sampling == SamplingMethod::Shuffled {
            warn(
                "shuffled lots get no amplification by sampling: every epoch is charged as one \
                 release on all the data",
            );
        }
        if let (Some(q), Some(b), Some(n)) = (self.sampling_rate, self.lot_size, self.dataset_size)
            && (q * n as f64 - b as f64).abs() > 1e-6 * b as f64
            && self.sampling != SamplingMethod::FixedSize
        {
            warn(&format!(
                "--sampling-rate {q} is used; lot size / dataset size would be {}",
                b as f64 / n as f64
            ));
        }
    }
}
