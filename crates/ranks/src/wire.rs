//! The one primitive.

/// Another process is gone, or does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

/// Bytes for a process.
pub(crate) type Message<'a> = (usize, &'a [u8]);

/// Room for what a process sends: exactly as many bytes.
pub(crate) type Room<'a> = (usize, &'a mut [u8]);

/// A way to the other processes.
pub(crate) trait Wire {
    /// Which of them this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Sends and receives all of it. `meanwhile` is called once everything is under way. Between
    /// two processes messages arrive in the order in which they were sent.
    ///
    /// # Errors
    /// If a process is gone.
    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Room<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Lost>;

    /// Called now and then while there is nothing to do.
    fn idle(&mut self) {}

    /// Called when there will be nothing more to do.
    fn farewell(&mut self) {}
}

/// A single process.
pub(crate) struct Alone;

impl Wire for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn exchange(
        &mut self,
        _: &[Message<'_>],
        _: &mut [Room<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Lost> {
        meanwhile();
        Ok(())
    }
}
