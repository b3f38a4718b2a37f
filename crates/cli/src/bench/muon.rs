//! `muffle bench muon`: the time of DP-Muon's update, without the release.

use super::machine::{least_and_median, peak_gflops, pool};
use crate::error::Error;
use crate::number::count;
use crate::output::{fields, print, print_json};
use clap::Args;
use muffle::device::device;
use muffle::model::Preset;
use muffle::optim::newton_schulz::{Polynomial, operations};
use muffle::optim::{Descent, GradientNoise, Muon, Probes, muon};
use muffle::protocol::{Bound, Clipping, Noisy, Params};
use noise::PublicRandom;
use serde::Serialize;
use std::time::Instant;

/// Seconds of DP-Muon's update: momentum, Newton-Schulz iteration and bias correction of every
/// matrix
#[derive(Args)]
#[command(
    after_help = "Example:\n  muffle bench muon --model gpt2 --steps 5 --probes 1 --threads 2 \
        --json"
)]
pub(crate) struct BenchMuon {
    /// A preset (tiny, gpt2-s, gpt2)
    #[arg(long, short = 'm', value_name = "MODEL", default_value = "gpt2-s")]
    model: String,
    /// Steps of the Newton-Schulz iteration
    #[arg(long, value_name = "Q", value_parser = count, default_value = "5")]
    steps: u64,
    /// Degree of its polynomial
    #[arg(long, value_name = "KAPPA", value_parser = count, default_value = "2")]
    degree: u64,
    /// Number of probe pairs of the bias correction; 0 for none
    #[arg(long, value_name = "J", value_parser = count, default_value = "1")]
    probes: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// Number of repetitions, after one that is not counted
    #[arg(long, value_name = "N", value_parser = count, default_value = "3")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    seconds_min: f64,
    seconds_median: f64,
    gflops: f64,
    gflops_peak: f64,
    share_of_peak: f64,
    matrices: usize,
    threads: usize,
}

impl BenchMuon {
    pub(crate) fn run(self) -> Result<(), Error> {
        pool(self.threads)?.install(|| self.run_in_pool())
    }

    fn run_in_pool(self) -> Result<(), Error> {
        let preset = Preset::named(&self.model).ok_or_else(|| {
            Error::usage(format!("--model: expected tiny, gpt2-s or gpt2, got {:?}", self.model))
        })?;
        let graph = preset.architecture().graph(None);
        let values = graph.init(0)?;
        let (network, params) = device().network(graph, values, &|_| true)?;
        let config = muon::Config {
            newton_schulz_degree: Polynomial::Newton { degree: self.degree as usize },
            newton_schulz_steps: self.steps as usize,
            ..muon::Config::default()
        };
        let noise = GradientNoise { bound: Bound::new(1.0, 1.0)?, clipping: Clipping::Cut };
        let correction =
            muon::Correction { probes: self.probes as usize, ..muon::Correction::default() };
        let (tensors, probes) = (network.trainable(), Probes::from_seed(0));
        let mut muon = Muon::new(&config, Some(correction), noise, &tensors, probes)?;
        let matrices: Vec<usize> = muon.matrices().to_vec();
        let evaluations = (1 + 2 * self.probes) as f64;
        let flops: f64 = matrices
            .iter()
            .map(|&k| operations(&config.iteration(), params[k].rows(), params[k].cols()))
            .sum::<f64>()
            * evaluations;
        let release = random_release(&params);
        let mut times = Vec::new();
        for repeat in 0..=self.repeats.max(1) {
            let answer =
                Noisy { value: release.clone().into(), std: vec![1e-2; muon.bounds().len()] };
            let start = Instant::now();
            muon.direction(&params, answer)?;
            if repeat > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
        let (least, median) = least_and_median(times);
        let (gflops, peak) = (flops / least / 1e9, peak_gflops());
        if self.json {
            return print_json(&Output {
                seconds_min: least,
                seconds_median: median,
                gflops,
                gflops_peak: peak,
                share_of_peak: gflops / peak,
                matrices: matrices.len(),
                threads: rayon::current_num_threads(),
            });
        } else {
            print(&fields(&[
                ("update", format!("{least:.3} s at best, {median:.3} s in the median")),
                (
                    "matrices",
                    format!("{}, each orthogonalized {evaluations} times", matrices.len()),
                ),
                (
                    "products",
                    format!(
                        "{gflops:.1} GFLOP/s, counted without use of symmetry; a large product \
                         alone reaches {peak:.1} ({:.0} %)",
                        100.0 * gflops / peak
                    ),
                ),
                ("threads", rayon::current_num_threads().to_string()),
            ]));
        }
        Ok(())
    }
}

/// Normal random numbers in the shapes of the parameters.
fn random_release(params: &Params) -> Params {
    let mut release = params.zeros_like();
    release
        .iter_mut()
        .enumerate()
        .for_each(|(k, tensor)| PublicRandom::from_seed(k as u64).fill_normals(tensor.data_mut()));
    release
}
