//! The primitive on which all collectives are built.

use crate::Error;

/// The rank to send to, and the bytes.
pub(crate) type Message<'a> = (usize, &'a [u8]);

/// The rank to receive from, and a buffer of exactly the length of its message.
pub(crate) type Buffer<'a> = (usize, &'a mut [u8]);

/// Sends bytes to other ranks and receives theirs.
pub(crate) trait Transport {
    /// Returns the rank of this process.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Sends and receives all messages.
    ///
    /// `meanwhile` is called when all of them have been started. Between two ranks, messages arrive
    /// in the order in which they were sent.
    ///
    /// # Errors
    /// If a rank is lost.
    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Buffer<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error>;

    /// Called at intervals while there is nothing to send.
    fn idle(&mut self) {}

    /// Called after the last message.
    fn close(&mut self) {}
}

/// The transport of a single process: there is no other rank.
pub(crate) struct OneRank;

impl Transport for OneRank {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn exchange(
        &mut self,
        _: &[Message<'_>],
        _: &mut [Buffer<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        meanwhile();
        Ok(())
    }
}
