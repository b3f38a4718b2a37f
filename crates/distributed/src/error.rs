//! Errors of communication.

use protocol::Refused;

/// Why processes cannot work together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process has ended or does not answer.
    #[error("rank {rank} is lost: it has ended or does not answer")]
    Lost {
        /// The rank of that process.
        rank: usize,
    },
    /// A process sent a message of another length.
    #[error("rank {rank} sent {got} bytes, expected {expected}")]
    Length {
        /// The rank that sent it.
        rank: usize,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// A process sent a message that cannot be read.
    #[error("rank {rank} sent an invalid description of its state")]
    Message {
        /// The rank that sent it.
        rank: usize,
        /// Why it is invalid.
        #[source]
        source: serde_json::Error,
    },
    /// The communication thread has stopped.
    #[error("the communication thread has stopped")]
    Stopped,
    /// The communication thread cannot be started.
    #[error("the communication thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The operating system provides no randomness.
    #[error(transparent)]
    Randomness(#[from] noise::Error),
    /// MPI was initialised by other code.
    #[error("MPI is already initialised")]
    Initialised,
}

/// None of these depends on records.
impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}
