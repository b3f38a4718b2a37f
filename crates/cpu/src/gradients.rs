//! Gradients with respect to values.
//!
//! Several values can share one buffer: both operands of an addition have the gradient of the sum.

use model::Value;
use std::sync::Arc;
use tensor::Workspace;

/// A gradient that several values can share. It is not modified while it is shared.
pub(crate) type SharedGradient = Arc<Vec<f32>>;

/// The gradients accumulated so far, by value.
#[derive(Default)]
pub(crate) struct Gradients {
    by_value: Vec<Option<SharedGradient>>,
    /// Unused `Arc`s with empty vectors, for reuse without allocation.
    spare_arcs: Vec<SharedGradient>,
}

impl Gradients {
    /// Makes space for this many values.
    pub(crate) fn prepare(&mut self, values: usize) {
        self.by_value.resize_with(values, || None);
    }

    /// Returns the gradient with respect to `value`; `None` if no gradient reaches it.
    pub(crate) fn get(&self, value: Value) -> Option<SharedGradient> {
        self.by_value[value.index()].clone()
    }

    /// Returns the gradient with respect to `value`; empty if no gradient reaches it.
    pub(crate) fn slice(&self, value: Value) -> &[f32] {
        self.by_value[value.index()].as_deref().map_or(&[], Vec::as_slice)
    }

    /// Sets the gradient with respect to `value`.
    pub(crate) fn set(&mut self, value: Value, buffer: Vec<f32>, workspace: &mut Workspace) {
        self.release_value(value, workspace);
        let mut arc = self.spare_arcs.pop().unwrap_or_default();
        match Arc::get_mut(&mut arc) {
            Some(inner) => *inner = buffer,
            None => arc = Arc::new(buffer),
        }
        self.by_value[value.index()] = Some(arc);
    }

    /// Lets `value` share a gradient with other values.
    pub(crate) fn share(
        &mut self,
        value: Value,
        gradient: &SharedGradient,
        workspace: &mut Workspace,
    ) {
        self.release_value(value, workspace);
        self.by_value[value.index()] = Some(Arc::clone(gradient));
    }

    /// Removes the gradient with respect to `value` and returns it; a shared one is copied.
    pub(crate) fn take(&mut self, value: Value, workspace: &mut Workspace) -> Option<Vec<f32>> {
        let shared = self.by_value[value.index()].take()?;
        Some(self.try_unwrap(shared).unwrap_or_else(|shared| {
            let mut copy = workspace.take(shared.len());
            copy.copy_from_slice(&shared);
            copy
        }))
    }

    /// Removes the gradient with respect to `value`; an unshared buffer returns to the workspace.
    pub(crate) fn release_value(&mut self, value: Value, workspace: &mut Workspace) {
        self.release_at(value.index(), workspace);
    }

    fn release_at(&mut self, index: usize, workspace: &mut Workspace) {
        if let Some(shared) = self.by_value[index].take()
            && let Ok(buffer) = self.try_unwrap(shared)
        {
            workspace.give(buffer);
        }
    }

    /// Removes all gradients.
    pub(crate) fn release(&mut self, workspace: &mut Workspace) {
        for index in 0..self.by_value.len() {
            self.release_at(index, workspace);
        }
    }

    /// Returns the buffer if no other value shares it.
    fn try_unwrap(&mut self, mut shared: SharedGradient) -> Result<Vec<f32>, SharedGradient> {
        match Arc::get_mut(&mut shared) {
            Some(buffer) => {
                let buffer = std::mem::take(buffer);
                self.spare_arcs.push(shared);
                Ok(buffer)
            }
            None => Err(shared),
        }
    }
}
