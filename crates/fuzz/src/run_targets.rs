//! Runs targets on several threads. Results do not depend on the number of threads.

use crate::fuzz_loop::{Limits, TargetStats, fuzz_loop};
use crate::monitor::{RunningInput, exit_on_hang};
use crate::target::Target;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Runs the targets, and passes on the statistics of each when it is done.
///
/// `limits` gives the limits of a target; the current inputs are saved in `currents`.
///
/// # Errors
/// If seeds cannot be read, or files cannot be written.
pub fn run_targets(
    targets: &[&Target],
    threads: usize,
    time_limit: Duration,
    failures: &Path,
    currents: &Path,
    limits: &(dyn Fn(&Target) -> Limits + Sync),
    done: &mut (dyn FnMut(&Target, &TargetStats) + Send),
) -> io::Result<()> {
    let running: Vec<Arc<RunningInput>> =
        (0..threads.max(1)).map(|_| Arc::new(RunningInput::default())).collect();
    exit_on_hang(running.clone(), time_limit, failures.into());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(done));
    let work = |running_input: Arc<RunningInput>| {
        // Parallel work stays in this thread, whose memory is counted.
        let _pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread()
            .build()
            .map_err(io::Error::other)?;
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::SeqCst)) {
            let current = currents.join(target.name);
            let stats = fuzz_loop(target, limits(target), &running_input, failures, &current)?;
            std::fs::remove_file(current)?;
            done.lock().unwrap_or_else(PoisonError::into_inner)(target, &stats);
        }
        Ok(())
    };
    let lost = || io::Error::other("a thread of the fuzzer panicked");
    thread::scope(|scope| {
        let workers: Vec<_> =
            running.into_iter().map(|running_input| scope.spawn(|| work(running_input))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(lost())))
    })
}
