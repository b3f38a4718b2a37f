//! The arguments that describe a run, shared by all accounting commands.

use super::error::Error;
use super::number::{count, real};
use super::output::{Number, warn};
use accounting::{
    Accountant, Adjacency, Composition, Delta, Guarantee, RunShape, SamplingMethod, SamplingRate,
    Sigma, Unit,
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

impl RunArgs {
    /// The run without its accountant and output.
    pub(crate) fn shape(&self) -> RunShape {
        RunShape {
            sampling: self.sampling,
            sampling_rate: self.sampling_rate,
            dataset_size: self.dataset_size,
            lot_size: self.lot_size,
            steps: self.steps,
            epochs: self.epochs,
            blocks: self.blocks,
            unit: self.unit(),
        }
    }

    /// δ, given or 1/(10·N).
    pub(crate) fn delta_or_default(&self, delta: Option<f64>) -> Result<f64, Error> {
        Ok(self.shape().delta_or_default(delta)?)
    }

    /// The unit of privacy.
    pub(crate) fn unit(&self) -> Unit {
        Unit { adjacency: self.adjacency, rows: self.rows_per_person }
    }

    /// The sampling rate, given or derived.
    pub(crate) fn rate(&self) -> Result<SamplingRate, Error> {
        Ok(self.shape().rate()?)
    }

    /// The number of steps, given or derived from epochs and rounded up.
    pub(crate) fn steps(&self) -> Result<u64, Error> {
        Ok(self.shape().steps()?)
    }

    /// The events of the run with this noise multiplier.
    pub(crate) fn events(&self, sigma: Sigma, steps: u64) -> Result<Composition, Error> {
        Ok(self.shape().events(sigma, steps)?)
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
        self.shape().effective_sigma(sigma)
    }

    /// Prints warnings about weak settings.
    pub(crate) fn print_warnings(&self, delta: Option<Delta>) {
        self.shape().warnings(delta, self.accountant).iter().for_each(|warning| warn(warning));
    }
}
