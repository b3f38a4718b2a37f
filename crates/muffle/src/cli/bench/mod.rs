//! `muffle bench`: how fast it is on this machine. Figures, not tests.

mod account;
mod machine;
mod muon;
mod noise;
mod step;

use super::Failure;
use clap::{Args, Subcommand};

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
    Step(step::BenchStep),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.what {
            What::Account(bench) => bench.run(),
            What::Muon(bench) => bench.run(),
            What::Noise(bench) => bench.run(),
            What::Step(bench) => bench.run(),
        }
    }
}
