//! Pooling over windows of an image.

use super::Layer;
use crate::pass::Pass;
use model::Value;
use model::op::PoolOp;
use tensor::pooling::{self, Pool};

impl Layer for PoolOp {
    fn saved_values(&self) -> Vec<Value> {
        if self.pooling == Pool::Max { vec![self.x] } else { Vec::new() }
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        pooling::pool(
            self.pooling,
            &self.window,
            &self.image,
            pass.parts(),
            pass.value(self.x),
            &mut out,
        );
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.x, |pass, dx| {
            // For a mean, x is empty: it was released and is not read.
            let (x, n) = (pass.value(self.x), pass.parts());
            pooling::pool_backward(self.pooling, &self.window, &self.image, n, x, &d, dx);
        });
    }
}
