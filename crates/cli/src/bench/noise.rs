//! `muffle bench noise`: the speed of the noise generator, and the time of a step with noise.

use super::machine::{least_and_median, pool};
use crate::error::Error;
use crate::number::count;
use crate::output::{fields, print, print_json};
use clap::Args;
use muffle::config::OptimizerConfig;
use muffle::curator::{Curator, Door, Randomness, Records, Sampling};
use muffle::device::device;
use muffle::engine::Example;
use muffle::model::Preset;
use muffle::protocol::{Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, Oracle};
use noise::{CHUNK, GaussianKind, IndependentGaussian, Key};
use serde::Serialize;
use std::time::Instant;

/// Numbers per second of the noise generator, and the time of a step with each kind of noise
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle bench noise --numbers 100000000 --threads 2 --json\n  muffle \
        bench noise --model gpt2-s --lot 16 --seq 64"
)]
pub(crate) struct BenchNoise {
    /// Numbers generated per repetition
    #[arg(long, short = 'n', value_name = "N", value_parser = count, default_value = "20000000")]
    numbers: u64,
    /// Also measure steps of this preset (tiny, gpt2-s, gpt2) through the curator, with both kinds
    /// of noise alternately
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Option<String>,
    /// Records in a lot of such a step
    #[arg(long, short = 'b', value_name = "B", value_parser = count, default_value = "16")]
    lot: u64,
    /// Tokens of each record
    #[arg(long, value_name = "T", value_parser = count, default_value = "64")]
    seq: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// Number of repetitions
    #[arg(long, value_name = "N", value_parser = count, default_value = "10")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    million_per_second: f64,
    million_per_second_median: f64,
    numbers: usize,
    threads: usize,
    discrete_million_per_second: f64,
    discrete_million_per_second_median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms_grid: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms_float: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms_grid_median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms_float_median: Option<f64>,
}

/// The minimum and the median of measured seconds.
type Seconds = (f64, f64);

impl BenchNoise {
    pub(crate) fn run(self) -> Result<(), Error> {
        pool(self.threads)?.install(|| self.run_in_pool())
    }

    fn run_in_pool(self) -> Result<(), Error> {
        let numbers =
            usize::try_from(self.numbers).map_err(|_| Error::usage("too many numbers"))?.max(1);
        let root = Key::from_seed(1);
        let (mut reals, mut integers) = (vec![0.0f32; numbers], vec![0i64; numbers]);
        let normal = self.timed(|repeat| root.derive(repeat).fill_normals(&mut reals));
        let discrete = self.timed(|repeat| {
            use rayon::prelude::*;
            let key = root.derive(repeat);
            integers
                .par_chunks_mut(CHUNK)
                .enumerate()
                .for_each(|(chunk, out)| key.discrete_gaussians((chunk * CHUNK) as u64, out));
        });
        let steps = self.model.as_deref().map(|model| self.steps(model)).transpose()?;
        let rate = |seconds: f64| numbers as f64 / seconds / 1e6;
        let threads = rayon::current_num_threads();
        if self.json {
            let ms = |seconds: f64| 1e3 * seconds;
            return print_json(&Output {
                million_per_second: rate(normal.0),
                million_per_second_median: rate(normal.1),
                numbers,
                threads,
                discrete_million_per_second: rate(discrete.0),
                discrete_million_per_second_median: rate(discrete.1),
                step_ms_grid: steps.map(|[grid, _]| ms(grid.0)),
                step_ms_float: steps.map(|[_, float]| ms(float.0)),
                step_ms_grid_median: steps.map(|[grid, _]| ms(grid.1)),
                step_ms_float_median: steps.map(|[_, float]| ms(float.1)),
            });
        }
        let line = |(least, median): Seconds| {
            format!(
                "{:.0} million per second at best, {:.0} in the median",
                rate(least),
                rate(median)
            )
        };
        let mut rows = vec![
            ("normal numbers", line(normal)),
            ("discrete Gaussian numbers", line(discrete)),
            ("threads", threads.to_string()),
        ];
        if let Some([grid, float]) = steps {
            let step = |(least, median): Seconds| {
                format!("{:.1} ms at best, {:.1} in the median", 1e3 * least, 1e3 * median)
            };
            rows.push(("a step with grid noise", step(grid)));
            rows.push(("a step with float noise", step(float)));
        }
        print(&fields(&rows));
        Ok(())
    }

    /// Measures repetitions of some work.
    fn timed(&self, mut work: impl FnMut(u64)) -> Seconds {
        let measure = |repeat: u64| {
            let start = Instant::now();
            work(repeat);
            start.elapsed().as_secs_f64()
        };
        least_and_median((0..self.repeats.max(1)).map(measure).collect())
    }

    /// Measures steps of a curator, from draw to release, alternately with grid and float noise.
    fn steps(&self, model: &str) -> Result<[Seconds; 2], Error> {
        let preset = Preset::named(model).ok_or_else(|| {
            Error::usage(format!("--model: expected tiny, gpt2-s or gpt2, got {model:?}"))
        })?;
        let graph = preset.architecture().graph(None);
        let values = graph.init(0)?;
        let (network, at) = device().network(graph, values, &|_| true)?;
        let text = |i: u64| {
            Example::continuation(
                (0..self.seq.max(2)).map(|t| ((i * 31 + t * t * 7) % 200) as u32).collect(),
                1,
            )
        };
        let records = Records::new((0..self.lot.max(1)).map(text).collect());
        let secret = Randomness::from_system()?;
        let mut curator =
            Curator::new(network, records, Sampling::Full, Door::unlimited(), secret)?;
        let clip = OptimizerConfig::named("dp-adam").map_err(Error::usage)?.clip();
        let bounds = [Bound::new(clip, 1.0)?];
        let (blocks, geometry) = (Blocks::flat(at.len()), Geometry::Identity);
        let query = GradientQuery {
            at: &at,
            geometry: &geometry,
            blocks: &blocks,
            bounds: &bounds,
            clipping: Clipping::Cut,
        };
        let mut seconds = [Vec::new(), Vec::new()];
        for repeat in 0..self.repeats.max(1) + 2 {
            for (kind, seconds) in
                [GaussianKind::Grid, GaussianKind::Float].into_iter().zip(&mut seconds)
            {
                curator.set_mechanism(Box::new(IndependentGaussian::new(kind)));
                let start = Instant::now();
                curator
                    .draw(&Announcement::gradient(&bounds))
                    .and_then(|()| curator.gradient(&query))?;
                // The first two repetitions allocate buffers.
                if repeat >= 2 {
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        Ok(seconds.map(least_and_median))
    }
}
