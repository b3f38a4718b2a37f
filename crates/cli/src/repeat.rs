//! The cost of several runs on the same records.

use super::error::Error;
use super::output::{Number, up};
use accounting::tuning::{self, Repetition};
use accounting::{Composition, Delta, Unit};
use serde::Serialize;

/// ε of several runs.
pub(crate) struct Repeated {
    runs: u64,
    /// ε if all runs are released.
    all: f64,
    /// ε if only the best of a random number of runs with mean `runs` is released.
    ///
    /// The name is that of the number's distribution: the one with the smallest ε.
    random: Option<(f64, &'static str)>,
}

impl Repeated {
    /// Computes the cost of `runs` runs, each with the events of `run`.
    pub(crate) fn new(
        run: &Composition,
        unit: Unit,
        delta: Delta,
        runs: u64,
    ) -> Result<Self, Error> {
        if runs == 0 {
            return Err(Error::usage("--runs must be at least 1"));
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

    pub(crate) const TITLE: &str = "Several runs on the same records: all released, or a random \
        number of runs of which only the best is released:";

    pub(crate) const HEADER: [&str; 3] = ["runs", "ε, all", "ε, best of random"];

    /// The cells of a table row.
    pub(crate) fn cells(&self) -> Vec<String> {
        let random = self
            .random
            .map_or(String::from("—"), |(epsilon, law)| format!("{} ({law})", up(epsilon, 4)));
        vec![self.runs.to_string(), up(self.all, 4), random]
    }

    pub(crate) fn output(&self) -> Output {
        Output {
            runs: self.runs,
            epsilon_all: self.all.into(),
            epsilon_best_of_random: self.random.map(|(epsilon, _)| epsilon.into()),
            law: self.random.map(|(_, law)| law),
        }
    }
}

/// The cost of several runs, as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Output {
    runs: u64,
    epsilon_all: Number,
    #[serde(skip_serializing_if = "Option::is_none")]
    epsilon_best_of_random: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    law: Option<&'static str>,
}
