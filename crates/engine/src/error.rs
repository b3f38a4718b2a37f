//! Errors of an engine.

/// Why a call of an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An example does not fit the model.
    #[error("example {index}: {reason}")]
    Example {
        /// Index among the examples given.
        index: usize,
        /// What does not fit. Must not quote the example.
        reason: String,
    },
    /// Parameters do not have the shapes of the trainable tensors.
    #[error("parameters: {0}")]
    Params(String),
    /// A micro-batch does not fit into memory. The caller may try a smaller one.
    #[error("out of memory: {examples} example(s) at a time need {} MiB", bytes >> 20)]
    OutOfMemory {
        /// Examples in the micro-batch.
        examples: usize,
        /// Bytes needed.
        bytes: usize,
    },
    /// A method was called out of order, such as `accumulate` without `observe`.
    #[error("engine called out of order: {0}")]
    Order(&'static str),
    /// The probe refused the engine.
    #[error("{0}")]
    Probe(String),
    /// A frame of the tangent geometry could not be computed.
    #[error(transparent)]
    Protocol(#[from] protocol::Refused),
    /// The engine's device or library failed.
    #[error("engine failed: {0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}
