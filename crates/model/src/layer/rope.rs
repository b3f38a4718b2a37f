//! Rotary positions, in place on queries and keys.

use super::Layer;
use crate::graph::Value;
use crate::run::Run;
use std::sync::Arc;
use tensor::rope::{HeadColumns, Rope, Rotation};

#[derive(Debug)]
pub(crate) struct Rotate {
    pub(crate) rope: Arc<Rope>,
    /// The heads that turn.
    pub(crate) place: HeadColumns,
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for Rotate {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn consumes(&self) -> Option<Value> {
        Some(self.x)
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        // Nobody else reads x: `Builder::finish` sees to it.
        let mut data = run.lend(self.x);
        self.rope.rotate(&run.batch.positions, self.place, Rotation::Forward, &mut data);
        run.put(self.out, data);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(mut d) = run.own_gradient(self.out) else { return };
        self.rope.rotate(&run.batch.positions, self.place, Rotation::Backward, &mut d);
        run.put_gradient(self.x, d);
    }
}
