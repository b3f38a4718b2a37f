//! Support for runs on several processes: equal inputs, equal parameters, a share of the cores.

use crate::Error;
use crate::config::{Auto, Config};
use crate::run::snapshot;
use distributed::Ranks;
use protocol::Params;

/// Number of steps between comparisons of the parameters of all processes.
pub(crate) const COMPARE_EVERY: u64 = 32;

/// Refuses to continue if an input differs between processes, and names it.
pub(crate) fn require_same(ranks: &Ranks, inputs: &[(&str, String)]) -> Result<(), Error> {
    if ranks.count() == 1 {
        return Ok(());
    }
    for (name, value) in inputs {
        if let Some(rank) = ranks.first_difference(value.clone().into_bytes())? {
            return Err(Error::RanksDiffer { rank, what: (*name).into() });
        }
    }
    Ok(())
}

/// Refuses to continue if the parameters of the processes differ.
pub(crate) fn require_same_params(ranks: &Ranks, params: &Params) -> Result<(), Error> {
    if ranks.count() == 1 {
        return Ok(());
    }
    match ranks.first_difference(snapshot::fingerprint(params.iter()).to_le_bytes().to_vec())? {
        None => Ok(()),
        Some(rank) => Err(Error::RanksDiverged { rank }),
    }
}

/// Does work on rank 0 first, then on the others, which find its downloads in the cache.
pub(crate) fn in_turn<T>(
    ranks: &Ranks,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    if ranks.is_first() {
        let done = work()?;
        ranks.broadcast(Vec::new())?;
        return Ok(done);
    }
    ranks.broadcast(Vec::new())?;
    work()
}

/// Sets the number of threads: as configured, or this process's share of the machine.
pub(crate) fn set_threads(ranks: &Ranks, config: &Config) {
    let count = match config.training.threads {
        Auto::Value(count) => count,
        Auto::Auto if ranks.count() == 1 => return,
        Auto::Auto => threads(ranks),
    };
    // Fails if the pool exists already; then its size stays.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count).build_global();
}

/// Returns this process's share of the machine's cores.
pub fn threads(ranks: &Ranks) -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    // A launcher that binds each process to cores has divided them already.
    let is_bound = online_cores().is_some_and(|online_cores| usable < online_cores);
    if is_bound {
        usable
    } else {
        (usable / distributed::local_ranks().unwrap_or_else(|| ranks.count())).max(1)
    }
}

/// Returns the number of cores that Linux lists as online, such as `0-3,8`.
fn online_cores() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    text.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Array;

    /// Runs the same work on three threads that act as ranks.
    fn on_three<T: Send>(work: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let all: Vec<_> = distributed::threads(3)
                .unwrap()
                .into_iter()
                .map(|ranks| scope.spawn(move || work(&ranks)))
                .collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// One bit of one element on one process is enough.
    #[test]
    fn parameters_that_drift_apart_stop_the_run() {
        let params = |last: f32| {
            Params::new(vec![Array::from_fn([3, 2], |i| i as f32), Array::from_fn([1], |_| last)])
        };
        let next = f32::from_bits(1.0f32.to_bits() + 1);
        assert!(
            on_three(|ranks| require_same_params(ranks, &params(1.0)).is_ok())
                .iter()
                .all(|same| *same)
        );
        for message in on_three(|ranks| {
            require_same_params(ranks, &params(if ranks.rank() == 2 { next } else { 1.0 }))
                .unwrap_err()
                .to_string()
        }) {
            assert!(message.contains("rank 2") && message.contains("muffle resume"), "{message}");
        }
    }

    #[test]
    fn an_input_that_differs_is_named() {
        let inputs = |rank: usize| {
            [
                ("model", "a".to_string()),
                ("tokenizer", if rank == 1 { "c" } else { "b" }.to_string()),
            ]
        };
        for message in
            on_three(|ranks| require_same(ranks, &inputs(ranks.rank())).unwrap_err().to_string())
        {
            assert!(message.contains("rank 1 has another tokenizer"), "{message}");
        }
        assert!(on_three(|ranks| require_same(ranks, &inputs(0)).is_ok()).iter().all(|same| *same));
    }
}
