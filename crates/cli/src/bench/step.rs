//! `muffle bench step`: the time of a training step, forward and backward, with or without
//! per-example clipping.

use super::machine::{peak_gflops, peak_memory, pool};
use crate::error::Error;
use crate::number::{count, real};
use crate::output::{fields, print, print_json};
use clap::{Args, ValueEnum};
use muffle::device::device;
use muffle::engine::{CheckedQuery, Example, StepScale, SumPrecision, Weights};
use muffle::model::hf::Config;
use muffle::model::{Activations, Checkpoint, InputShape, Lora, Network, Preset};
use muffle::protocol::{Blocks, Geometry, Params};
use noise::{PublicRandom, Rng};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Milliseconds of one step: forward, backward and clipping, without noise and update
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle bench step --model gpt2-s --batch 16 --seq 64 --mode private\n  \
    muffle bench step --model gpt2 --batch 4 --seq 100 --mode plain --threads 2 --json\n  \
    muffle bench step --model gpt2-s --mode private --lengths lengths.txt --layout padded\n\n\
    A file of lengths has one line per example: the number of tokens of the source, which are not \
    predicted, and of the target.")]
pub(crate) struct BenchStep {
    /// A preset (tiny, gpt2-s, gpt2) or a directory in the Hugging Face layout
    #[arg(long, short = 'm', value_name = "MODEL", default_value = "gpt2-s")]
    model: String,
    /// Examples in the micro-batch
    #[arg(long, short = 'b', value_name = "N", value_parser = count, default_value = "16")]
    batch: u64,
    /// Tokens of each example; every one but the first is predicted
    #[arg(long, short = 't', value_name = "T", value_parser = count, default_value = "64")]
    seq: u64,
    /// With per-example clipping, without, or both alternately
    #[arg(long, value_enum, default_value_t = Mode::Private)]
    mode: Mode,
    /// Threads [default: all cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// Train only low-rank adapters of this rank
    #[arg(long, value_name = "R", value_parser = count)]
    lora: Option<u64>,
    /// A file with the lengths of the examples, instead of --seq; used in batches of --batch
    #[arg(long, value_name = "FILE", conflicts_with = "seq")]
    lengths: Option<PathBuf>,
    /// Examples packed end to end, or padded to the longest with every token predicted
    #[arg(long, value_enum, default_value_t = Layout::Packed)]
    layout: Layout,
    /// Clip bound
    #[arg(long, value_name = "C", value_parser = real, default_value = "1")]
    clip: f64,
    /// One clip block per tensor instead of one for all
    #[arg(long)]
    per_tensor: bool,
    /// Retain all activations, or recompute them to save memory
    #[arg(long, value_enum, default_value_t = Keep::All)]
    keep: Keep,
    /// Number of steps, after two that are not counted
    #[arg(long, value_name = "N", value_parser = count, default_value = "10")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Without clipping
    Plain,
    /// With clipping
    Private,
    /// Both alternately, and their ratio
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Layout {
    Packed,
    Padded,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keep {
    All,
    Little,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    ms_min: f64,
    ms_median: f64,
    peak_rss_mb: Option<f64>,
    gflops: f64,
    gflops_peak: f64,
    tokens_per_second: f64,
    threads: usize,
    repeats: usize,
    parameters: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_ms_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_ms_median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

impl BenchStep {
    pub(crate) fn run(self) -> Result<(), Error> {
        pool(self.threads)?.install(|| self.run_in_pool())
    }

    fn run_in_pool(self) -> Result<(), Error> {
        let (mut network, at) = self.network()?;
        network.set_activations(if self.keep == Keep::All {
            Activations::Retain
        } else {
            Activations::Recompute
        });
        let batches = self.batches(&*network)?;
        let mut sum = at.zeros_like();
        // The precision of the curator's sums: the clip bound is 2²⁵ steps of the grid.
        let scale = StepScale::Narrow((25.0 - self.clip.log2()).floor().exp2() as f32);
        let precision = SumPrecision::Steps(vec![scale; at.len()]);
        let (mut times, mut plain, mut flops, mut tokens) = (Vec::new(), Vec::new(), 0.0, 0);
        for repeat in 0..self.repeats.max(1) + 2 {
            let lot: Vec<&Example> = batches[repeat as usize % batches.len()]
                .iter()
                .map(|(example, _)| example)
                .collect();
            let mut timed = |mode: Mode| -> Result<f64, Error> {
                let start = Instant::now();
                self.step(mode, &mut *network, &at, &lot, &mut sum, &precision)?;
                Ok(start.elapsed().as_secs_f64() * 1e3)
            };
            let plain_elapsed =
                if self.mode == Mode::Both { Some(timed(Mode::Plain)?) } else { None };
            let elapsed =
                timed(if self.mode == Mode::Plain { Mode::Plain } else { Mode::Private })?;
            if repeat >= 2 {
                times.push(elapsed);
                plain.extend(plain_elapsed);
                flops += network.flops(&lot)?;
                tokens += batches[repeat as usize % batches.len()]
                    .iter()
                    .map(|(_, length)| length)
                    .sum::<usize>();
            }
        }
        let total: f64 = times.iter().sum();
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        plain.sort_by(f64::total_cmp);
        let plain = plain.first().map(|&least| (least, plain[plain.len() / 2]));
        // Of the fastest step if all steps have the same size, otherwise of the mean step.
        let gflops = flops
            / times.len() as f64
            / (if self.lengths.is_some() { total / times.len() as f64 } else { least })
            / 1e6;
        let rate = tokens as f64 / total * 1e3;
        let memory = peak_memory();
        let peak = peak_gflops();
        if self.json {
            return print_json(&Output {
                ms_min: least,
                ms_median: median,
                peak_rss_mb: memory,
                gflops,
                gflops_peak: peak,
                tokens_per_second: rate,
                threads: rayon::current_num_threads(),
                repeats: times.len(),
                parameters: at.elements(),
                plain_ms_min: plain.map(|(least, _)| least),
                plain_ms_median: plain.map(|(_, median)| median),
                ratio: plain.map(|(_, plain_median)| median / plain_median),
            });
        } else {
            let mut lines = vec![
                ("fastest", format!("{least:.2} ms")),
                ("median", format!("{median:.2} ms")),
                ("tokens", format!("{rate:.0} per second")),
                (
                    "products",
                    format!(
                        "{gflops:.1} GFLOP/s, without those for clipping; a large product alone \
                         reaches {peak:.1}"
                    ),
                ),
                ("peak memory", memory.map_or("unknown".into(), |mb| format!("{mb:.0} MB"))),
                ("threads", rayon::current_num_threads().to_string()),
            ];
            if let Some((_, plain_median)) = plain {
                lines.push((
                    "not private",
                    format!(
                        "{plain_median:.2} ms in the median; a private step takes {:.3} times as \
                         long",
                        median / plain_median
                    ),
                ));
            }
            print(&fields(&lines));
        }
        Ok(())
    }

    /// The model and its parameters.
    fn network(&self) -> Result<(Box<dyn Network>, Params), Error> {
        let lora =
            self.lora.map(|rank| Lora { rank: rank as usize, alpha: rank as f32, on: Vec::new() });
        let adapters_only = lora.is_some();
        let checkpoint = match Preset::named(&self.model) {
            Some(preset) => Checkpoint::new(Config::new(preset.architecture()), lora, 0),
            None if Path::new(&self.model).is_dir() => Checkpoint::open(&self.model, lora, 0),
            None => {
                let known = Preset::ALL.map(Preset::name).join(", ");
                return Err(Error::usage(format!(
                    "--model: expected a preset ({known}) or a directory, got {:?}",
                    self.model
                )));
            }
        };
        let trainable = |name: &str| !adapters_only || name.contains(".lora_");
        let (_, network, at) = checkpoint?.network(device(), trainable)?;
        Ok((network, at))
    }

    /// Creates micro-batches of random tokens: each example with its length without padding.
    fn batches(&self, network: &dyn Network) -> Result<Vec<Vec<(Example, usize)>>, Error> {
        let InputShape::Tokens { vocab, max_length } = network.graph().input() else {
            return Err(Error::usage(format!(
                "--model: expected a model of texts, got {:?}",
                self.model
            )));
        };
        let lengths = match &self.lengths {
            Some(path) => read_lengths(path)?,
            None => vec![(0, self.seq as usize)],
        };
        if let Some((source, target)) =
            lengths.iter().find(|(source, target)| source + target > max_length)
        {
            return Err(Error::usage(format!(
                "expected at most {max_length} tokens, as the model takes; got {}",
                source + target
            )));
        }
        let mut random = PublicRandom::from_seed(1).words();
        let batch = (self.batch as usize).max(1);
        let count = lengths.len().div_ceil(batch).max(1);
        let mut lengths = lengths.iter().copied().cycle();
        let mut batches = Vec::new();
        for _ in 0..count {
            let lot: Vec<(usize, usize)> = lengths.by_ref().take(batch).collect();
            let longest = lot.iter().map(|(source, target)| source + target).max().unwrap_or(0);
            let example = |(source, target): (usize, usize)| {
                let (length, first_target) = if self.layout == Layout::Padded {
                    (longest, 0)
                } else {
                    (source + target, source)
                };
                let tokens = (0..length).map(|_| random.next_u32() % vocab as u32).collect();
                (Example::continuation(tokens, first_target), source + target)
            };
            batches.push(lot.into_iter().map(example).collect());
        }
        Ok(batches)
    }

    /// Computes one step.
    fn step(
        &self,
        mode: Mode,
        network: &mut dyn Network,
        at: &Params,
        lot: &[&Example],
        sum: &mut Params,
        precision: &SumPrecision,
    ) -> Result<(), Error> {
        if mode == Mode::Plain {
            sum.fill(0.0);
            network.plain_sum(at, lot, sum)?;
            return Ok(());
        }
        let blocks = if self.per_tensor { Blocks::each(at.len()) } else { Blocks::flat(at.len()) };
        let query = CheckedQuery::new(at, &Geometry::Identity, &blocks, &network.trainable())?;
        network.load(at)?;
        network.start_sum(precision)?;
        let observed = network.observe(lot, &query)?;
        let mut weights = Weights::zeros(observed.examples(), observed.blocks());
        for example in 0..observed.examples() {
            for block in 0..observed.blocks() {
                let norm = observed.norm(example, block);
                weights.set(example, block, if norm <= self.clip { 1.0 } else { self.clip / norm });
            }
        }
        Ok(network.accumulate(&weights)?)
    }
}

/// Reads the lengths of source and target from each line of a file.
fn read_lengths(path: &Path) -> Result<Vec<(usize, usize)>, Error> {
    let text = std::fs::read_to_string(path).map_err(muffle::Error::io(path))?;
    let line = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(str::parse::<usize>);
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(source)), Some(Ok(target)), None) => Ok((source, target)),
            _ => Err(Error::line(path, index as u64 + 1, "expected two whole numbers")),
        }
    };
    let lengths = text.lines().enumerate().map(line).collect::<Result<Vec<_>, _>>()?;
    if lengths.is_empty() {
        Err(Error::usage(format!("{}: expected at least 1 line, got 0", path.display())))
    } else {
        Ok(lengths)
    }
}
