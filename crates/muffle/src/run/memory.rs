//! The default micro-batch size, from the available memory.

use model::Network;

/// The maximum memory of a micro-batch in bytes: a larger one makes no step faster.
const MAX_BYTES: usize = 512 << 20;

/// The maximum micro-batch size: a larger one makes no product faster, and the curator takes no
/// more.
const MAX_EXAMPLES: usize = 32;

/// Returns how many examples of up to `length` tokens fit into memory, between 1 and 32.
///
/// Uses a quarter of the free memory, divided among those of the `processes` that run on this
/// machine.
pub(crate) fn micro_batch(network: &dyn Network, length: usize, processes: usize) -> usize {
    let local_processes = distributed::local_ranks().unwrap_or(processes).min(processes) as u64;
    let free = tensor::memory::available().unwrap_or(MAX_BYTES as u64 * 4);
    let bytes = (free / 4 / local_processes.max(1)).min(MAX_BYTES as u64) as usize;
    (bytes / network.graph().bytes_per_example(length).max(1)).clamp(1, MAX_EXAMPLES)
}
