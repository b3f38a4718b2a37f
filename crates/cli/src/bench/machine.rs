//! Threads, peak speed and memory of this machine, for benchmarks.

use crate::error::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::time::Instant;
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};

/// Creates a thread pool, by default with one thread per core.
pub(super) fn pool(threads: Option<u64>) -> Result<ThreadPool, Error> {
    let builder = match threads {
        Some(threads) => ThreadPoolBuilder::new()
            .num_threads(usize::try_from(threads).unwrap_or(usize::MAX).max(1)),
        None => ThreadPoolBuilder::new(),
    };
    Ok(builder.build()?)
}

/// Returns the minimum and the median of some times.
pub(super) fn least_and_median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (
        times.first().copied().unwrap_or(f64::NAN),
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN),
    )
}

/// Measures the peak speed of a large matrix product, in GFLOP/s.
pub(super) fn peak_gflops() -> f64 {
    const SIZE: usize = 1024;
    let (a, mut c) = (vec![0.5f32; SIZE * SIZE], vec![0.0f32; SIZE * SIZE]);
    let view = View::new(&a, SIZE, SIZE);
    let measure = |_| {
        let start = Instant::now();
        matmul(
            ViewMut::new(&mut c, SIZE, SIZE),
            OutputMode::Overwrite,
            1.0,
            view,
            view,
            Threads::All,
        );
        start.elapsed().as_secs_f64()
    };
    let least = (0..6).map(measure).fold(f64::INFINITY, f64::min);
    2.0 * (SIZE as f64).powi(3) / least / 1e9
}

/// Returns the peak memory of this process in MB, if the system reports it.
pub(crate) fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kb| kb / 1024.0)
}
