//! The cost of several runs on the same records.

use super::error::Error;
use super::output::{Number, up};
use accounting::{Composition, Delta, Unit};
use muffle::plan::repeated;
use serde::Serialize;

/// ε of several runs, for printing.
pub(crate) struct Repeated(repeated::Repeated);

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
        Ok(Self(repeated::Repeated::new(run, unit, delta, runs)?))
    }

    pub(crate) const TITLE: &str = "Several runs on the same records: all released, or a random \
        number of runs of which only the best is released:";

    pub(crate) const HEADER: [&str; 3] = ["runs", "ε, all", "ε, best of random"];

    /// The cells of a table row.
    pub(crate) fn cells(&self) -> Vec<String> {
        let random = self
            .0
            .random
            .map_or(String::from("—"), |(epsilon, law)| format!("{} ({law})", up(epsilon, 4)));
        vec![self.0.runs.to_string(), up(self.0.all, 4), random]
    }

    pub(crate) fn output(&self) -> Output {
        Output {
            runs: self.0.runs,
            epsilon_all: self.0.all.into(),
            epsilon_best_of_random: self.0.random.map(|(epsilon, _)| epsilon.into()),
            law: self.0.random.map(|(_, law)| law),
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
