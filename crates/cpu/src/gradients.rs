//! Gradients by values. Several values may share one buffer: both summands of a sum have the
//! gradient of the sum.

use model::Value;
use std::sync::Arc;
use tensor::Workspace;

/// A gradient that several values may share. It is not written to while it is shared or read.
pub(crate) type Shared = Arc<Vec<f32>>;

/// By value, what has come so far.
#[derive(Default)]
pub(crate) struct Gradients {
    of: Vec<Option<Shared>>,
    /// Shells of buffers that are gone, so that a step in its steady state asks for no memory.
    shells: Vec<Shared>,
}

impl Gradients {
    pub(crate) fn prepare(&mut self, values: usize) {
        self.of.resize_with(values, || None);
    }

    /// The gradient by `value`, to be read; `None` if nothing came: then nothing flows.
    pub(crate) fn get(&self, value: Value) -> Option<Shared> {
        self.of[value.index()].clone()
    }

    /// The gradient by `value`; empty if none came.
    pub(crate) fn slice(&self, value: Value) -> &[f32] {
        self.of[value.index()].as_deref().map_or(&[], Vec::as_slice)
    }

    /// Gives `value` a gradient of its own.
    pub(crate) fn set(&mut self, value: Value, buffer: Vec<f32>, workspace: &mut Workspace) {
        self.forget(value, workspace);
        let mut shell = self.shells.pop().unwrap_or_default();
        match Arc::get_mut(&mut shell) {
            Some(inside) => *inside = buffer,
            None => shell = Arc::new(buffer),
        }
        self.of[value.index()] = Some(shell);
    }

    /// Lets `value` hold a gradient that others hold too.
    pub(crate) fn share(&mut self, value: Value, gradient: &Shared, workspace: &mut Workspace) {
        self.forget(value, workspace);
        self.of[value.index()] = Some(Arc::clone(gradient));
    }

    /// Takes the gradient by `value` out, to be changed: the buffer itself if it is not
    /// shared or read, else a copy.
    pub(crate) fn own(&mut self, value: Value, workspace: &mut Workspace) -> Option<Vec<f32>> {
        let shared = self.of[value.index()].take()?;
        Some(self.unwrap(shared).unwrap_or_else(|shared| {
            let mut copy = workspace.take(shared.len());
            copy.copy_from_slice(&shared);
            copy
        }))
    }

    /// Drops the gradient by `value`; a buffer that no value shares returns to the workspace.
    pub(crate) fn forget(&mut self, value: Value, workspace: &mut Workspace) {
        self.forget_at(value.index(), workspace);
    }

    fn forget_at(&mut self, index: usize, workspace: &mut Workspace) {
        if let Some(shared) = self.of[index].take()
            && let Ok(buffer) = self.unwrap(shared)
        {
            workspace.give(buffer);
        }
    }

    /// No value holds any.
    pub(crate) fn release(&mut self, workspace: &mut Workspace) {
        for index in 0..self.of.len() {
            self.forget_at(index, workspace);
        }
    }

    /// The buffer, if this is the last hold on it.
    fn unwrap(&mut self, mut shared: Shared) -> Result<Vec<f32>, Shared> {
        match Arc::get_mut(&mut shared) {
            Some(buffer) => {
                let buffer = std::mem::take(buffer);
                self.shells.push(shared);
                Ok(buffer)
            }
            None => Err(shared),
        }
    }
}
