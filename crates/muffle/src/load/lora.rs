//! Checks of low-rank adapters.

use crate::Error;
use model::{Checkpoint, LowRankAdapter};

/// Refuses adapters of a higher rank than their weights.
pub(super) fn check_rank(checkpoint: &Checkpoint, rank: usize) -> Result<(), Error> {
    let graph = &checkpoint.graph;
    let width = |adapter: &LowRankAdapter| {
        graph.param(adapter.left).shape[0].min(graph.param(adapter.right).shape[0])
    };
    match graph.adapters().iter().min_by_key(|adapter| width(adapter)) {
        Some(adapter) if width(adapter) < rank => Err(Error::config(
            "model.lora_rank",
            format!(
                "expected at most {}, the smaller side of {:?}; got {rank}",
                width(adapter),
                graph.param(adapter.weight).name
            ),
        )),
        _ => Ok(()),
    }
}
