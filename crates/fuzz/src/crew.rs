//! Several threads, each with a target of its own: what comes out does not depend on how many there
//! are.

use crate::hunt::{Effort, Tally, hunt};
use crate::target::Target;
use crate::watch::{Slot, guard};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Runs the targets, and hands each tally over when it is there. `effort` says how much for which
/// target; what runs at the moment lies in `currents`.
///
/// # Errors
/// If seeds cannot be read or files not written.
pub fn crew(
    targets: &[&Target],
    threads: usize,
    patience: Duration,
    failures: &Path,
    currents: &Path,
    effort: &(dyn Fn(&Target) -> Effort + Sync),
    done: &mut (dyn FnMut(&Target, &Tally) + Send),
) -> io::Result<()> {
    let slots: Vec<Arc<Slot>> = (0..threads.max(1)).map(|_| Arc::new(Slot::default())).collect();
    guard(slots.clone(), patience, failures.into());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(done));
    let work = |slot: Arc<Slot>| {
        // Parallel work stays in this thread, where its memory is counted.
        let _pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread()
            .build()
            .map_err(io::Error::other)?;
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::SeqCst)) {
            let current = currents.join(target.name);
            let tally = hunt(target, effort(target), &slot, failures, &current)?;
            std::fs::remove_file(current)?;
            done.lock().unwrap_or_else(PoisonError::into_inner)(target, &tally);
        }
        Ok(())
    };
    let lost = || io::Error::other("a thread of the fuzzing itself panicked");
    thread::scope(|scope| {
        let workers: Vec<_> = slots.into_iter().map(|slot| scope.spawn(|| work(slot))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(lost())))
    })
}
