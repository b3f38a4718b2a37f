//! The cost of several runs on the same records.

use accounting::tuning::{self, Repetition};
use accounting::{Composition, Delta, Error, Unit};

/// ε of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated {
    /// The number of runs, or its mean.
    pub runs: u64,
    /// ε if all runs are released.
    pub all: f64,
    /// ε if only the best of a random number of runs with mean `runs` is released.
    ///
    /// The name is that of the number's distribution: the one with the smallest ε.
    pub random: Option<(f64, &'static str)>,
}

impl Repeated {
    /// Computes the cost of `runs` runs, each with the events of `run`.
    ///
    /// # Errors
    /// If the number is 0, or the accountant refuses the events.
    pub fn new(run: &Composition, unit: Unit, delta: Delta, runs: u64) -> Result<Self, Error> {
        if runs == 0 {
            return Err(Error::OutOfRange {
                name: "the number of runs",
                expected: "at least 1",
                got: "0".into(),
            });
        }
        let all = tuning::epsilon(run, unit, Repetition::Fixed(runs), delta)?.epsilon;
        let mean = runs as f64;
        let random =
            [Repetition::Geometric(mean), Repetition::Logarithmic(mean), Repetition::Poisson(mean)]
                .into_iter()
                .filter_map(|distribution| {
                    let epsilon = tuning::epsilon(run, unit, distribution, delta).ok()?.epsilon;
                    Some((epsilon, distribution.name()))
                })
                .min_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Self { runs, all, random: random.filter(|_| runs > 1) })
    }
}
