//! What is held in memory: the records and the default micro-batch, from the available memory.

use model::Network;

/// The maximum memory of a micro-batch in bytes: a larger one makes no step faster.
const MAX_BYTES: usize = 512 << 20;

/// The maximum micro-batch size: a larger one makes no product faster, and the curator takes no
/// more.
const MAX_EXAMPLES: usize = 32;

/// The memory of records in bytes that a run takes in any case; more are written to a file.
const MIN_RECORD_BYTES: usize = 32 << 20;

/// Returns how many examples of up to `length` tokens fit into memory, between 1 and 32.
pub(crate) fn micro_batch(network: &dyn Network, length: usize, processes: usize) -> usize {
    let bytes = quarter_of_free(processes).unwrap_or(MAX_BYTES).min(MAX_BYTES);
    (bytes / network.graph().bytes_per_example(length).max(1)).clamp(1, MAX_EXAMPLES)
}

/// Returns how many bytes of records are held in memory; more are written to a file.
pub(crate) fn record_bytes(processes: usize) -> usize {
    quarter_of_free(processes).unwrap_or(0).max(MIN_RECORD_BYTES)
}

/// Returns a quarter of the free memory in bytes, divided among those of the `processes` that run on
/// this machine; `None` if it is not known.
fn quarter_of_free(processes: usize) -> Option<usize> {
    let local_processes = distributed::local_ranks().unwrap_or(processes).min(processes).max(1);
    usize::try_from(tensor::memory::available()? / 4 / local_processes as u64).ok()
}
