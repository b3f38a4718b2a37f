//! `muffle bench`: measures the speed of this machine.

mod account;
mod machine;
mod muon;
mod noise;
mod ranks;
mod step;

pub(crate) use machine::peak_memory;

use super::error::Error;
use clap::{Args, Subcommand};
use muffle::distributed::Ranks;

/// Measure the speed of this machine
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    Account(account::BenchAccount),
    Muon(muon::BenchMuon),
    Noise(noise::BenchNoise),
    Ranks(ranks::BenchRanks),
    Step(step::BenchStep),
}

impl Bench {
    /// Whether the benchmark runs in several processes.
    pub(crate) fn runs_in_processes(&self) -> bool {
        matches!(self.benchmark, Benchmark::Ranks(_))
    }

    pub(crate) fn run(self, ranks: &Ranks) -> Result<(), Error> {
        match self.benchmark {
            Benchmark::Account(bench) => bench.run(),
            Benchmark::Muon(bench) => bench.run(),
            Benchmark::Noise(bench) => bench.run(),
            Benchmark::Ranks(bench) => bench.run(ranks),
            Benchmark::Step(bench) => bench.run(),
        }
    }
}
