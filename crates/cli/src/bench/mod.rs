//! `muffle bench`: how fast it is on this machine. Figures, not tests.

mod account;
mod machine;
mod muon;
mod noise;
mod ranks;
mod step;

use super::error::Error;
use clap::{Args, Subcommand};
use muffle::ranks::Ranks;

/// How fast things are on this machine
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Account(account::BenchAccount),
    Muon(muon::BenchMuon),
    Noise(noise::BenchNoise),
    Ranks(ranks::BenchRanks),
    Step(step::BenchStep),
}

impl Bench {
    /// Whether processes work on it together.
    pub(crate) fn together(&self) -> bool {
        matches!(self.what, What::Ranks(_))
    }

    pub(crate) fn run(self, ranks: &Ranks) -> Result<(), Error> {
        match self.what {
            What::Account(bench) => bench.run(),
            What::Muon(bench) => bench.run(),
            What::Noise(bench) => bench.run(),
            What::Ranks(bench) => bench.run(ranks),
            What::Step(bench) => bench.run(),
        }
    }
}
