//! `muffle calibrate`: the noise, number of steps or lot size that keeps a promise.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, short, up};
use super::run::{PricedRun, RunArgs};
use accounting::calibrate::{self, Target};
use accounting::{Delta, Epsilon, Guarantee, Sigma};
use clap::{Args, ValueEnum};
use serde::Serialize;

/// The parameter to search for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Find {
    /// The smallest noise multiplier
    #[default]
    NoiseMultiplier,
    /// The largest number of steps; needs --noise-multiplier
    Steps,
    /// The largest lot; needs --noise-multiplier and --dataset-size
    LotSize,
}

/// The smallest noise (or the most steps, or the largest lot) that keeps a promise
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle calibrate --epsilon 8 --delta 8e-6 --sampling-rate 1024/42043 --steps 410\n  \
    muffle calibrate --epsilon 3 --delta 1e-5 --dataset-size 50000 --lot-size 1000 \
    --noise-multiplier 1 --find steps")]
pub(crate) struct Calibrate {
    /// The ε to keep
    #[arg(long, short = 'e', value_name = "E", value_parser = real, allow_hyphen_values = true)]
    epsilon: f64,
    /// The δ to keep [default: 1/(10·N), if --dataset-size is given]
    #[arg(long, short = 'd', value_name = "D", value_parser = real, allow_hyphen_values = true)]
    delta: Option<f64>,
    /// The parameter to search for
    #[arg(long, value_enum, default_value_t)]
    find: Find,
    /// The noise multiplier of each block, unless it is searched for
    #[arg(
        long,
        short = 's',
        alias = "sigma",
        value_name = "S",
        value_parser = real,
        allow_hyphen_values = true
    )]
    noise_multiplier: Option<f64>,
    /// Largest lot to consider with --find lot-size [default: the dataset size]
    #[arg(long, value_name = "B", value_parser = count)]
    most: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    run: PricedRun,
    #[serde(skip_serializing_if = "Option::is_none")]
    lot_size: Option<u64>,
}

impl Calibrate {
    pub(crate) fn run(self) -> Result<(), Error> {
        let delta = Delta::new(self.run.delta_or_default(self.delta)?)?;
        if !(self.epsilon > 0.0 && self.epsilon < f64::INFINITY) {
            return Err(Error::usage(format!(
                "--epsilon must be a finite number greater than 0, got {}",
                self.epsilon
            )));
        }
        let target = Target {
            epsilon: Epsilon::new(self.epsilon)?,
            delta,
            unit: self.run.unit(),
            accountant: self.run.accountant,
        };
        self.run.print_warnings(Some(delta));
        match self.find {
            Find::NoiseMultiplier => {
                let steps = match self.run.steps()? {
                    0 => return Err(Error::usage("--steps must be at least 1, got 0")),
                    steps => steps,
                };
                self.run.events(Sigma::new(1.0)?, steps)?;
                let (sigma, price) =
                    calibrate::sigma(target, |sigma| self.run.events(sigma, steps))?;
                self.print(sigma, steps, &price, None)
            }
            Find::Steps => {
                let sigma = self.sigma()?;
                // An epoch of shuffled lots is one event for several steps, so the events are
                // built for each number of steps.
                let (steps, price) =
                    calibrate::largest_count(target, |steps| self.run.events(sigma, steps))?;
                self.print(sigma, steps, &price, None)
            }
            Find::LotSize => {
                let sigma = self.sigma()?;
                let (run, price) = self.run.shape().with_largest_lot(target, sigma, self.most)?;
                let (lot_size, steps) = (run.lot_size, run.steps()?);
                let run = RunArgs { lot_size, sampling_rate: None, ..self.run.clone() };
                Self { run, ..self }.print(sigma, steps, &price, lot_size)
            }
        }
    }

    fn sigma(&self) -> Result<Sigma, Error> {
        let sigma = self.noise_multiplier.ok_or_else(|| {
            Error::usage("--find steps and --find lot-size need --noise-multiplier")
        })?;
        Ok(Sigma::new(sigma)?)
    }

    fn print(
        &self,
        sigma: Sigma,
        steps: u64,
        price: &Guarantee,
        lot: Option<u64>,
    ) -> Result<(), Error> {
        if self.run.json {
            let run = self.run.priced(sigma, steps, price);
            return print_json(&Output { run, lot_size: lot });
        }
        print(&match self.find {
            Find::NoiseMultiplier => format!("σ = {}", up(sigma.get(), 6)),
            Find::Steps => format!("{steps} steps"),
            Find::LotSize => format!("lots of {}", lot.unwrap_or(0)),
        });
        print("");
        let rows = vec![
            (
                "costs",
                format!(
                    "ε = {} at δ = {}{}",
                    up(price.epsilon, 4),
                    short(price.delta),
                    if price.estimate { " (estimate, not a guarantee)" } else { "" }
                ),
            ),
            ("neighbours", price.unit.to_string()),
            ("accountant", price.accountant.to_string()),
            (
                "sampling",
                self.run.rate().map_or(String::new(), |q| {
                    format!("{}, rate {}", self.run.sampling.name(), short(q.get()))
                }),
            ),
            ("steps", steps.to_string()),
            (
                "noise multiplier",
                if self.run.blocks > 1 {
                    format!("{} for each of {} blocks", up(sigma.get(), 6), self.run.blocks)
                } else {
                    up(sigma.get(), 6)
                },
            ),
        ];
        print(&fields(&rows));
        Ok(())
    }
}
