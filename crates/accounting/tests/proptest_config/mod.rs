//! The configuration of property tests.

use proptest::test_runner::{Config, RngSeed};

/// `cases` cases from a fixed seed, so that test results are reproducible.
///
/// `MUFFLE_CASES=20` draws twenty times as many, new ones each time: run it after a change to the
/// mathematics.
pub(crate) fn config(cases: u32) -> Config {
    match std::env::var("MUFFLE_CASES").ok().and_then(|times| times.parse::<u32>().ok()) {
        Some(times) => Config { cases: cases.saturating_mul(times), ..Config::default() },
        None => Config { cases, rng_seed: RngSeed::Fixed(7), ..Config::default() },
    }
}
