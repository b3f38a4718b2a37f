//! `muffle calibrate`: what keeps a promise.

use super::Failure;
use super::number::{count, real};
use super::output::{fields, json_number, print, print_json, short, up};
use super::run::RunArgs;
use accounting::calibrate::{self, Target};
use accounting::{Delta, Epsilon, Guarantee, SamplingMethod, Sigma};
use clap::{Args, ValueEnum};
use serde_json::json;

/// What to look for.
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
    /// What to look for
    #[arg(long, value_enum, default_value_t)]
    find: Find,
    /// The noise multiplier of each block, where it is not what is looked for
    #[arg(long, short = 's', value_name = "S", value_parser = real, allow_hyphen_values = true)]
    noise_multiplier: Option<f64>,
    /// Largest lot to consider with --find lot-size [default: the dataset size]
    #[arg(long, value_name = "B", value_parser = count)]
    most: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

impl Calibrate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let delta = match (self.delta, self.run.dataset_size) {
            (Some(delta), _) => Delta::new(delta)?,
            (None, Some(n)) if n > 0 => Delta::new(0.1 / n as f64)?,
            _ => {
                return Err(Failure::Input(
                    "give --delta, or --dataset-size for the default of 1/(10·N)".into(),
                ));
            }
        };
        let target = Target {
            epsilon: Epsilon::new(self.epsilon)?,
            delta,
            unit: self.run.unit(),
            accountant: self.run.accountant.into(),
        };
        self.run.warnings(Some(delta));
        match self.find {
            Find::NoiseMultiplier => {
                let steps = self.run.steps()?;
                self.run.events(Sigma::new(1.0)?, steps)?;
                let (sigma, price) =
                    calibrate::sigma(target, |sigma| self.run.events_in_search(sigma, steps))?;
                self.print(sigma, steps, &price, None);
            }
            Find::Steps => {
                let sigma = self.sigma()?;
                // Epochs of shuffled lots come in whole numbers of steps, so the events are made
                // anew for each count.
                let (steps, price) = calibrate::largest_count(target, |steps| {
                    self.run.events_in_search(sigma, steps)
                })?;
                self.print(sigma, steps, &price, None);
            }
            Find::LotSize => {
                let sigma = self.sigma()?;
                let n = self
                    .run
                    .dataset_size
                    .ok_or_else(|| Failure::Input("--find lot-size needs --dataset-size".into()))?;
                let with = |lot: u64| RunArgs {
                    lot_size: Some(lot),
                    sampling_rate: None,
                    ..self.run.clone()
                };
                with(1).steps()?;
                if self.run.sampling == SamplingMethod::Full {
                    return Err(Failure::Input("full batches have no lot size".into()));
                }
                let most = self.most.unwrap_or(n).min(n);
                let make = |lot: u64| {
                    let run = with(lot);
                    run.events_in_search(sigma, run.steps().unwrap_or(u64::MAX))
                };
                let (lot, price) = calibrate::lot_size(target, most, make)?;
                let run = with(lot);
                Self { run: run.clone(), ..self }.print(sigma, run.steps()?, &price, Some(lot));
            }
        }
        Ok(())
    }

    fn sigma(&self) -> Result<Sigma, Failure> {
        let sigma = self
            .noise_multiplier
            .ok_or_else(|| Failure::Input("this needs --noise-multiplier".into()))?;
        Ok(Sigma::new(sigma)?)
    }

    fn print(&self, sigma: Sigma, steps: u64, price: &Guarantee, lot: Option<u64>) {
        if self.run.json {
            let mut object = json!({
                "noise_multiplier": sigma.get(),
                "noise_multiplier_effective": json_number(self.run.effective(sigma)),
                "epsilon": json_number(price.epsilon),
                "delta": json_number(price.delta),
                "accountant": price.accountant.name(),
                "estimate": price.estimate,
                "sampling": self.run.sampling.name(),
                "adjacency": price.unit.adjacency.to_string(),
                "rows_per_person": price.unit.rows,
                "blocks": self.run.blocks,
                "sampling_rate": self.run.rate().ok().map(accounting::SamplingRate::get),
                "steps": steps,
            });
            if let Some(lot) = lot {
                object["lot_size"] = json!(lot);
            }
            return print_json(&object);
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
    }
}
