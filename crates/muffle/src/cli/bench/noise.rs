//! `muffle bench noise`: normal numbers from the cryptographic generator.

use super::machine::{least_and_median, pool};
use crate::cli::Failure;
use crate::cli::number::count;
use crate::cli::output::{fields, print, print_json};
use clap::Args;
use serde_json::json;
use std::time::Instant;
use tensor::normal::Key;

/// Normal numbers a second, from the generator that makes the noise
#[derive(Args)]
#[command(after_help = "Example:\n  muffle bench noise --numbers 100000000 --threads 2 --json")]
pub(crate) struct BenchNoise {
    /// How many numbers are written at a time
    #[arg(long, short = 'n', value_name = "N", value_parser = count, default_value = "20000000")]
    numbers: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// How often
    #[arg(long, value_name = "N", value_parser = count, default_value = "10")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl BenchNoise {
    pub(crate) fn run(self) -> Result<(), Failure> {
        pool(self.threads)?.install(|| self.inside())
    }

    fn inside(self) -> Result<(), Failure> {
        let numbers = usize::try_from(self.numbers).map_err(|_| Failure::Input("too many numbers".into()))?.max(1);
        let mut out = vec![0.0f32; numbers];
        let root = Key::from_seed(1);
        let once = |repeat: u64| {
            let key = root.derive(repeat);
            let start = Instant::now();
            key.fill_normals(&mut out);
            start.elapsed().as_secs_f64()
        };
        let (least, median) = least_and_median((0..self.repeats.max(1)).map(once).collect());
        let rate = |seconds: f64| numbers as f64 / seconds / 1e6;
        if self.json {
            print_json(&json!({
                "million_per_second": rate(least), "million_per_second_median": rate(median), "numbers": numbers, "threads": rayon::current_num_threads(),
            }));
        } else {
            print(&fields(&[
                ("normal numbers", format!("{:.0} million a second at best, {:.0} in the median", rate(least), rate(median))),
                ("threads", rayon::current_num_threads().to_string()),
            ]));
        }
        Ok(())
    }
}
