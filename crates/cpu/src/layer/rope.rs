//! Rotary position embedding of queries and keys, in place.

use super::Layer;
use crate::pass::Pass;
use model::op::RopeOp;
use tensor::rope::Rotation;

impl Layer for RopeOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        // No other layer reads x: the backward plan refuses such a graph.
        let mut data = pass.take_value(self.x);
        self.rope.rotate(&pass.batch.positions, self.columns, Rotation::Forward, &mut data);
        pass.set_value(self.out, data);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(mut d) = pass.take_gradient(self.out) else { return };
        self.rope.rotate(&pass.batch.positions, self.columns, Rotation::Backward, &mut d);
        pass.set_gradient(self.x, d);
    }
}
