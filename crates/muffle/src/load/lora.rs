//! Checks of low-rank adapters.

use crate::Error;
use crate::config;
use model::{Checkpoint, LowRankAdapter};

/// Refuses settings by which no weight gets an adapter, and names that no tensor has.
///
/// # Errors
/// If low-rank adapters are configured and the model has none, or a name matches nothing.
pub(super) fn check_names(checkpoint: &Checkpoint, options: &config::Model) -> Result<(), Error> {
    if options.lora_rank == 0 {
        return Ok(());
    }
    let graph = &checkpoint.graph;
    let adapted = |part: &str| {
        let mut adapters = graph.adapters().iter();
        adapters.any(|adapter| graph.param(adapter.weight).name.contains(part))
    };
    if let Some(part) = options.lora_on.iter().find(|part| !adapted(part)) {
        return Err(Error::config(
            "model.lora_on",
            format!("no weight that takes low-rank adapters has a name with {part:?} in it"),
        ));
    }
    if graph.adapters().is_empty() {
        return Err(Error::config(
            "model.lora_rank",
            format!(
                "expected 0, because {} has no weights that take low-rank adapters; got {}",
                options.source, options.lora_rank
            ),
        ));
    }
    let mut parts = options.also_train.iter();
    match parts.find(|part| !graph.params().iter().any(|spec| spec.name.contains(part.as_str()))) {
        Some(part) => Err(Error::config(
            "model.also_train",
            format!("no tensor of the model has a name with {part:?} in it"),
        )),
        None => Ok(()),
    }
}

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
