//! `muffle bench account`: the time of an accounting query or a calibration.

use crate::error::Error;
use crate::number::{count, real};
use crate::output::{fields, print, print_json};
use crate::run::RunArgs;
use accounting::calibrate::{self, Target};
use accounting::{Cost, Delta, Epsilon, Sigma};
use clap::Args;
use serde::Serialize;
use std::time::Instant;

/// Milliseconds of an accounting query (or, with --epsilon, of a calibration) inside one process:
/// the first, and the later ones
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle bench account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5\n  \
    muffle bench account --epsilon 8 --sampling-rate 1024/42043 --steps 410 --delta 8e-6")]
pub(crate) struct BenchAccount {
    /// Noise standard deviation divided by the clip bound
    #[arg(
        long,
        short = 's',
        value_name = "S",
        value_parser = real,
        required_unless_present = "epsilon",
        conflicts_with = "epsilon"
    )]
    noise_multiplier: Option<f64>,
    /// Calibrate to this ε instead
    #[arg(long, short = 'e', value_name = "E", value_parser = real)]
    epsilon: Option<f64>,
    /// δ of the guarantee
    #[arg(long, short = 'd', value_name = "D", value_parser = real)]
    delta: f64,
    /// Number of repetitions
    #[arg(long, value_name = "N", value_parser = count, default_value = "20")]
    repeats: u64,
    #[command(flatten)]
    run: RunArgs,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    ms_first: f64,
    ms_min: f64,
    ms_median: f64,
    repeats: usize,
}

impl BenchAccount {
    pub(crate) fn run(self) -> Result<(), Error> {
        let bench = self;
        let (steps, delta, unit) = (bench.run.steps()?, Delta::new(bench.delta)?, bench.run.unit());
        let accountant = bench.run.accountant;
        let mut times = Vec::new();
        for _ in 0..bench.repeats.max(2) {
            let start = Instant::now();
            match (bench.noise_multiplier, bench.epsilon) {
                (Some(sigma), _) => {
                    Cost::new(&bench.run.events(Sigma::new(sigma)?, steps)?, unit)?
                        .epsilon(accountant, delta)?;
                }
                (None, epsilon) => {
                    let target = Target {
                        epsilon: Epsilon::new(epsilon.unwrap_or(0.0))?,
                        delta,
                        unit,
                        accountant,
                    };
                    calibrate::sigma(target, |sigma| bench.run.events(sigma, steps))?;
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let first = times.remove(0);
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        if bench.run.json {
            return print_json(&Output {
                ms_first: first,
                ms_min: least,
                ms_median: median,
                repeats: times.len(),
            });
        } else {
            let ms = |x: f64| format!("{x:.3} ms");
            print(&fields(&[
                ("first", ms(first)),
                ("later, fastest", ms(least)),
                ("later, median", ms(median)),
            ]));
        }
        Ok(())
    }
}
