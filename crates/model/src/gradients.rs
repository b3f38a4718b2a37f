//! Gradients by values. Several values may hold one buffer: a sum passes its gradient on to both
//! summands as it is.

use crate::graph::Value;
use std::sync::Arc;
use tensor::Workspace;

/// A gradient that is read. While it is, and while another value holds it, nobody writes to it.
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
        self.of[value.0].clone()
    }

    /// The gradient by `value`; empty if none came.
    pub(crate) fn slice(&self, value: Value) -> &[f32] {
        self.of[value.0].as_deref().map_or(&[], Vec::as_slice)
    }

    /// Gives `value` a gradient of its own.
    pub(crate) fn set(&mut self, value: Value, buffer: Vec<f32>, space: &mut Workspace) {
        self.forget(value, space);
        let mut shell = self.shells.pop().unwrap_or_default();
        match Arc::get_mut(&mut shell) {
            Some(inside) => *inside = buffer,
            None => shell = Arc::new(buffer),
        }
        self.of[value.0] = Some(shell);
    }

    /// Lets `value` hold a gradient that others hold too.
    pub(crate) fn share(&mut self, value: Value, gradient: &Shared, space: &mut Workspace) {
        self.forget(value, space);
        self.of[value.0] = Some(Arc::clone(gradient));
    }

    /// Takes the gradient by `value` out, to be changed: the buffer itself if nobody else holds or
    /// reads it, else a copy.
    pub(crate) fn own(&mut self, value: Value, space: &mut Workspace) -> Option<Vec<f32>> {
        let shared = self.of[value.0].take()?;
        Some(self.unwrap(shared).unwrap_or_else(|shared| {
            let mut copy = space.take(shared.len());
            copy.copy_from_slice(&shared);
            copy
        }))
    }

    /// `value` holds no gradient any more; a buffer that nobody holds goes back.
    pub(crate) fn forget(&mut self, value: Value, space: &mut Workspace) {
        if let Some(shared) = self.of[value.0].take()
            && let Ok(buffer) = self.unwrap(shared)
        {
            space.give(buffer);
        }
    }

    /// No value holds any.
    pub(crate) fn release(&mut self, space: &mut Workspace) {
        (0..self.of.len()).for_each(|index| self.forget(Value(index), space));
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
