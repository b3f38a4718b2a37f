//! How the sums of several processes become one. It sees sums without noise, so it stays inside this crate.

use protocol::Refused;

/// Adds up what several processes have summed, each over its share of the same lot: the places whose number is its own modulo the number of shares, so that no place is counted twice.
/// Clipping happens before it, in each process; noise is added after it, once. All processes must draw from the same secret.
pub(crate) trait Reduce: Send {
    /// Which share of the lot is this process's, and how many shares there are.
    fn share(&self) -> (usize, usize);

    /// Replaces the numbers by their sums over all processes, in an order that does not depend on timing.
    ///
    /// # Errors
    /// If another process is gone.
    fn sum(&mut self, numbers: &mut [f64]) -> Result<(), Refused>;
}

/// One process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alone;

impl Reduce for Alone {
    fn share(&self) -> (usize, usize) {
        (0, 1)
    }

    fn sum(&mut self, _: &mut [f64]) -> Result<(), Refused> {
        Ok(())
    }
}
