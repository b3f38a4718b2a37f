//! Pooling over windows of an image.

use super::Layer;
use crate::graph::Value;
use crate::plan::Plan;
use crate::run::Run;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::{self, Pool as Pooling};

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) pooling: Pooling,
    pub(crate) window: Window,
    pub(crate) grid: ImageShape,
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for Pool {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn saves(&self, _: &Plan) -> Vec<Value> {
        if self.pooling == Pooling::Max { vec![self.x] } else { Vec::new() }
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        pooling::pool(
            self.pooling,
            &self.window,
            &self.grid,
            run.batch.examples,
            &run.buffers.values[self.x.0],
            &mut out,
        );
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute_whole(self.x, |run, dx| {
            // A mean does not look at x, which is gone.
            let (x, n) = (&run.buffers.values[self.x.0], run.batch.examples);
            pooling::pool_backward(self.pooling, &self.window, &self.grid, n, x, &d, dx);
        });
    }
}
