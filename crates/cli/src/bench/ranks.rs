//! `muffle bench ranks`: the time of training steps on one process or on several, and of the
//! collective operations on a model's parameters.

use super::machine::{least_and_median, peak_memory, pool};
use crate::error::Error;
use crate::number::count;
use crate::output::{fields, print, print_json};
use clap::Args;
use muffle::Config;
use muffle::Session;
use muffle::curator::Records;
use muffle::device::device;
use muffle::distributed::{Ownership, Ranks};
use muffle::engine::{Engine, Example};
use muffle::model::Preset;
use muffle::protocol::Trainable;
use serde::Serialize;
use std::time::Instant;
use tensor::Array;

/// Whole training steps on one process or, under an MPI launcher, on several
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle bench ranks --model gpt2-s --lot 64 --threads 2\n  mpirun -n \
        2 muffle bench ranks --model gpt2-s --lot 64 --threads 1 --json\n\n\
    The lot is the same for any number of processes. Times are the first one's; every step waits \
    for all."
)]
pub(crate) struct BenchRanks {
    /// The preset: tiny, gpt2-s, gpt2
    #[arg(long, short = 'm', value_name = "MODEL", default_value = "tiny")]
    model: String,
    /// Records in a lot
    #[arg(long, short = 'b', value_name = "B", value_parser = count, default_value = "64")]
    lot: u64,
    /// Tokens of each record
    #[arg(long, value_name = "T", value_parser = count, default_value = "64")]
    seq: u64,
    /// The optimizer
    #[arg(long, value_name = "NAME", default_value = "dp-adam")]
    optimizer: String,
    /// Threads of each process [default: its share of the cores]
    #[arg(long, value_name = "K", value_parser = count)]
    threads: Option<u64>,
    /// How often
    #[arg(long, value_name = "N", value_parser = count, default_value = "5")]
    repeats: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    optimizer: &'a str,
    numbers: usize,
    lot: u64,
    tokens_per_record: u64,
    ranks: usize,
    threads: usize,
    step_s: f64,
    step_s_median: f64,
    records_per_second: f64,
    peak_memory_mb: Option<f64>,
    sent: Option<CollectiveSeconds>,
}

/// The least seconds of collective operations on the elements of a model.
#[derive(Serialize)]
struct CollectiveSeconds {
    sum_f64_s: f64,
    sum_f32_s: f64,
    gather_f32_s: f64,
}

impl BenchRanks {
    pub(crate) fn run(self, ranks: &Ranks) -> Result<(), Error> {
        let threads = self
            .threads
            .or_else(|| (ranks.count() > 1).then(|| muffle::run::together::threads(ranks) as u64));
        pool(threads)?.install(|| self.run_in_pool(ranks))
    }

    fn run_in_pool(self, ranks: &Ranks) -> Result<(), Error> {
        let preset = Preset::named(&self.model).ok_or_else(|| {
            Error::usage(format!(
                "--model: one of tiny, gpt2-s and gpt2 expected, got {:?}",
                self.model
            ))
        })?;
        let graph = preset.architecture().graph(None);
        let values = graph.init(0)?;
        let (network, params) = device().network(graph, values, &|_| true)?;
        let text = |i: u64| {
            Example::continuation(
                (0..self.seq.max(2)).map(|t| ((i * 31 + t * t * 7) % 200) as u32).collect(),
                1,
            )
        };
        let records = Records::new((0..self.lot.max(1)).map(text).collect());
        let (repeats, lot) = (self.repeats.max(1), self.lot.max(1));
        let (tensors, elements) = (network.trainable(), params.elements());
        let config = format!(
            "[optimizer]\nname = {:?}\n[privacy]\nsigma = 1.0\ndelta = 1e-5\nsampling \
             = \"full\"\n[training]\nsteps = {}\nlot_size = {lot}\n",
            self.optimizer,
            repeats + 1
        );
        let config = Config::parse(&config)?;
        let mut session = Session::among(ranks, &config, network, params, records, None)?;
        // The first step allocates buffers and is not counted.
        session.step()?;
        let mut seconds = Vec::new();
        for _ in 0..repeats {
            let start = Instant::now();
            session.step()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let memory = peak_memory();
        drop(session);
        let sent = time_collectives(ranks, &tensors, repeats)?;
        if !ranks.is_first() {
            return Ok(());
        }
        let (least, median) = least_and_median(seconds);
        let (threads, numbers) = (rayon::current_num_threads(), elements);
        if self.json {
            return print_json(&Output {
                model: &self.model,
                optimizer: &self.optimizer,
                numbers,
                lot,
                tokens_per_record: self.seq,
                ranks: ranks.count(),
                threads,
                step_s: least,
                step_s_median: median,
                records_per_second: lot as f64 / least,
                peak_memory_mb: memory,
                sent: sent.map(|(sum_f64, sum_f32, gather_f32)| CollectiveSeconds {
                    sum_f64_s: sum_f64,
                    sum_f32_s: sum_f32,
                    gather_f32_s: gather_f32,
                }),
            });
        }
        let mut rows = vec![
            ("model", format!("{}, {numbers} numbers, {}", self.model, self.optimizer)),
            ("processes", format!("{}, {threads} threads each", ranks.count())),
            (
                "a step",
                format!("{:.3} s at best, {median:.3} s in the median, lots of {lot}", least),
            ),
            ("records", format!("{:.1} a second", lot as f64 / least)),
        ];
        rows.extend(
            memory.map(|memory| ("memory", format!("{memory:.0} MB at most in the first process"))),
        );
        if let Some((sum_f64, sum_f32, gather_f32)) = sent {
            let gigaelements =
                (ranks.count() - 1) as f64 / ranks.count() as f64 * numbers as f64 / 1e9;
            let line = |seconds: f64, bytes: f64| {
                format!(
                    "{seconds:.3} s, {:.2} GB/s to and from each process",
                    gigaelements * bytes / seconds
                )
            };
            rows.push(("sums in 64 bits", line(sum_f64, 8.0)));
            rows.push(("sums in 32 bits", line(sum_f32, 4.0)));
            rows.push(("parts put together", line(gather_f32, 4.0)));
        }
        print(&fields(&rows));
        Ok(())
    }
}

/// Measures sums of a model's elements in 64 and in 32 bits, and gathering them on all ranks.
///
/// Returns the least seconds of each; `None` on one process.
fn time_collectives(
    ranks: &Ranks,
    tensors: &[Trainable],
    repeats: u64,
) -> Result<Option<(f64, f64, f64)>, Error> {
    if ranks.count() == 1 {
        return Ok(None);
    }
    let lengths: Vec<usize> = tensors.iter().map(|x| x.shape.iter().product()).collect();
    let work: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
    let ownership = Ownership::divide(tensors, &work, ranks.count());
    let (mut sum_f64, mut sum_f32, mut gather_f32) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..repeats {
        let wide: Vec<Vec<i64>> = lengths.iter().map(|&length| vec![1; length]).collect();
        let narrow: Vec<Vec<i32>> = lengths.iter().map(|&length| vec![1; length]).collect();
        let owned = ownership.owned_by(ranks.rank()).into_iter();
        let parameters = owned.map(|k| (k, Array::from_fn(ownership.shape(k), |_| 1.0))).collect();
        // Exchanging nothing makes all ranks start at the same time.
        ranks.all_gather_bytes(Vec::new())?;
        let start = Instant::now();
        let sums = ranks.reduce(&ownership, wide).wait()?;
        sum_f64 = sum_f64.min(start.elapsed().as_secs_f64());
        ranks.all_gather_bytes(Vec::new())?;
        let start = Instant::now();
        drop(ranks.reduce_onto(&ownership, sums, narrow).wait()?);
        sum_f32 = sum_f32.min(start.elapsed().as_secs_f64());
        ranks.all_gather_bytes(Vec::new())?;
        let start = Instant::now();
        drop(ranks.all_gather(&ownership, parameters).wait()?);
        gather_f32 = gather_f32.min(start.elapsed().as_secs_f64());
    }
    Ok(Some((sum_f64, sum_f32, gather_f32)))
}
