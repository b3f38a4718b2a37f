//! The interface between the curator and several processes that sum one lot.

use crate::{Accumulator, Sum};
use protocol::{Refused, TensorMap, Trainable};

/// Divides the work on a lot among processes and adds up their sums.
///
/// All processes hold the same records, draw the same lots, and call the same methods in the same
/// order. Each tensor has an owner, the process that gets its sum. [`OneProcess`] owns all tensors.
///
/// A reducer handles sums without noise, so it is trusted code.
///
/// # Contract
/// - The division of a lot depends on positions in the lot only, not on records. Every place is in
///   exactly one stage of one process.
/// - Every tensor has exactly one owner. Integers are added exactly.
pub trait Reducer: Send {
    /// Checks that exactly the tensors of a model have owners.
    ///
    /// # Errors
    /// If a tensor has no owner, or another shape.
    fn validate(&self, tensors: &[Trainable]) -> Result<(), Refused>;

    /// Returns the places of a lot that this process sums, in stages.
    ///
    /// All processes have the same number of stages, at least one. A stage may be empty. The sum of
    /// a stage may be sent while the next one is computed.
    fn stages(&mut self, lot: &[usize]) -> Vec<Vec<usize>>;

    /// Takes the sum of a stage. Called once for each stage, in order.
    ///
    /// # Errors
    /// If the sum does not fit.
    fn add(&mut self, sum: Sum) -> Result<(), Refused>;

    /// Returns the sums over all stages and processes, of the tensors that this process owns.
    ///
    /// # Errors
    /// If a process is lost.
    fn finish(&mut self) -> Result<TensorMap<Accumulator>, Refused>;

    /// Adds up integers over all processes, in place, with the same result on all.
    ///
    /// # Errors
    /// If a process is lost.
    fn sum_integers(&self, values: &mut [i64]) -> Result<(), Refused>;

    /// Adds up floating-point numbers over all processes, in place, with the same result on all.
    ///
    /// # Errors
    /// If a process is lost.
    fn sum_floats(&self, values: &mut [f64]) -> Result<(), Refused>;

    /// Waits until all processes have called this, and refuses if their states differ.
    ///
    /// # Errors
    /// If they differ, or a process is lost.
    fn agree(&self, state: &dyn Fn() -> String) -> Result<(), Refused>;

    /// Called before a micro-batch with so many tokens is computed, to detect stalled processes.
    fn start_micro_batch(&self, tokens: usize) {
        let _ = tokens;
    }
}

/// The reducer of a single process.
#[derive(Default)]
pub struct OneProcess {
    sum: Option<Sum>,
}

impl Reducer for OneProcess {
    fn validate(&self, _: &[Trainable]) -> Result<(), Refused> {
        Ok(())
    }

    fn stages(&mut self, lot: &[usize]) -> Vec<Vec<usize>> {
        self.sum = None;
        vec![lot.to_vec()]
    }

    fn add(&mut self, sum: Sum) -> Result<(), Refused> {
        self.sum = Some(sum);
        Ok(())
    }

    fn finish(&mut self) -> Result<TensorMap<Accumulator>, Refused> {
        let sum = self.sum.take().ok_or_else(|| Refused::Failed("no sum was added".into()))?;
        Ok(sum.into_tensors().into_iter().enumerate().collect())
    }

    fn sum_integers(&self, _: &mut [i64]) -> Result<(), Refused> {
        Ok(())
    }

    fn sum_floats(&self, _: &mut [f64]) -> Result<(), Refused> {
        Ok(())
    }

    fn agree(&self, _: &dyn Fn() -> String) -> Result<(), Refused> {
        Ok(())
    }
}
