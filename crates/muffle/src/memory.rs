//! How much memory there is, and what follows for the size of micro-batches.

use model::Network;

/// The most that a micro-batch should take: beyond it a step is no faster.
const ENOUGH: usize = 512 << 20;

/// The most examples: more of them make no product faster.
const MOST: usize = 64;

/// As many examples of up to `length` tokens as fit into a quarter of the free memory, between 1 and 64.
pub(crate) fn micro_batch(network: &Network, length: usize) -> usize {
    let room = (available().unwrap_or(ENOUGH as u64 * 4) / 4).min(ENOUGH as u64) as usize;
    (room / network.graph().bytes_per_example(length).max(1)).clamp(1, MOST)
}

/// Free memory in bytes, where the system says so.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}
