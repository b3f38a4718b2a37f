//! What follows from the memory that there is for the size of micro-batches.

use model::Network;

/// The most that a micro-batch should take: beyond it a step is no faster.
const ENOUGH: usize = 512 << 20;

/// The most examples: more of them make no product faster, and the curator takes no more.
const MOST: usize = 32;

/// As many examples of up to `length` tokens as fit into a quarter of this process's share of the
/// free memory, between 1 and 32. Of so many processes some may be on other machines.
pub(crate) fn micro_batch(network: &dyn Network, length: usize, processes: usize) -> usize {
    let neighbours = distributed::local_ranks().unwrap_or(processes).min(processes) as u64;
    let room = (tensor::memory::available().unwrap_or(ENOUGH as u64 * 4) / 4 / neighbours.max(1))
        .min(ENOUGH as u64) as usize;
    (room / network.graph().bytes_per_example(length).max(1)).clamp(1, MOST)
}
