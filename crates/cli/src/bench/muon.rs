//! `muffle bench muon`: what DP-Muon does with a release, without the release.

use super::machine::{least_and_median, peak_rate, pool};
use crate::Failure;
use crate::number::count;
use crate::output::{fields, print, print_json};
use clap::Args;
use muffle::model::{Engine, Network, Preset};
use muffle::optim::newton_schulz::{Polynomial, operations};
use muffle::optim::{Descent, GradientNoise, Muon, Probes, muon};
use muffle::protocol::{Bound, Clipping, Noisy, Params, Refused};
use serde_json::json;
use std::time::Instant;
use tensor::normal::Key;

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
    /// Pairs of probes of the bias correction; 0 for none
    #[arg(long, value_name = "J", value_parser = count, default_value = "1")]
    probes: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// How often, after one update that is not counted
    #[arg(long, value_name = "N", value_parser = count, default_value = "3")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl BenchMuon {
    pub(crate) fn run(self) -> Result<(), Failure> {
        pool(self.threads)?.install(|| self.inside())
    }

    fn inside(self) -> Result<(), Failure> {
        let preset = Preset::named(&self.model).ok_or_else(|| {
            Failure::Input(format!("no preset is called {:?}: tiny, gpt2-s or gpt2", self.model))
        })?;
        let graph = preset.architecture().graph(None);
        let values = graph.init(0)?;
        let (network, params) = Network::new(graph, values, |_| true)?;
        let config = muon::Config {
            newton_schulz_degree: Polynomial::Newton { degree: self.degree as usize },
            newton_schulz_steps: self.steps as usize,
            ..muon::Config::default()
        };
        let refuse = |refused: Refused| Failure::Input(refused.to_string());
        let bound = Bound::new(1.0, 1.0).map_err(refuse)?;
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        let (tensors, pairs) = (network.trainable(), self.probes as usize);
        let mut muon =
            Muon::new(config, pairs, noise, &tensors, Probes::from_seed(0)).map_err(refuse)?;
        let matrices: Vec<usize> = muon.matrices().to_vec();
        let evaluations = (1 + 2 * self.probes) as f64;
        let nominal: f64 = matrices
            .iter()
            .map(|&k| operations(&config.iteration(), params[k].rows(), params[k].cols()))
            .sum::<f64>()
            * evaluations;
        let release = released(&params);
        let mut times = Vec::new();
        for repeat in 0..=self.repeats.max(1) {
            let answer = Noisy { value: release.clone(), std: vec![1e-2; muon.bounds().len()] };
            let start = Instant::now();
            muon.direction(&params, answer, &mut |_| Ok(()))
                .map_err(|refused| Failure::Input(refused.to_string()))?;
            if repeat > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
        let (least, median) = least_and_median(times);
        let (gflops, peak) = (nominal / least / 1e9, peak_rate());
        if self.json {
            print_json(&json!({
                "seconds_min": least, "seconds_median": median, "gflops": gflops, "gflops_peak": peak, "share_of_peak": gflops / peak,
                "matrices": matrices.len(), "threads": rayon::current_num_threads(),
            }));
        } else {
            print(&fields(&[
                ("update", format!("{least:.3} s at best, {median:.3} s in the median")),
                (
                    "matrices",
                    format!("{}, each orthogonalised {evaluations} times", matrices.len()),
                ),
                (
                    "products",
                    format!(
                        "{gflops:.1} GFLOP/s, counted as if nothing were symmetric; a large \
                         product alone reaches {peak:.1} ({:.0} %)",
                        100.0 * gflops / peak
                    ),
                ),
                ("threads", rayon::current_num_threads().to_string()),
            ]));
        }
        Ok(())
    }
}

/// Normal numbers in the shapes of the parameters.
fn released(params: &Params) -> Params {
    let mut release = params.zeros_like();
    release
        .iter_mut()
        .enumerate()
        .for_each(|(k, tensor)| Key::from_seed(k as u64).fill_normals(tensor.data_mut()));
    release
}
