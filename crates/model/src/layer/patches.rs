//! The patches of an image that a convolution looks at. A convolution is this and a linear map.

use super::Layer;
use crate::graph::Value;
use crate::run::Run;
use tensor::patches::{self, ImageShape, Window};

#[derive(Debug)]
pub(crate) struct Patches {
    pub(crate) window: Window,
    pub(crate) grid: ImageShape,
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for Patches {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        patches::gather(
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
            patches::scatter(&self.window, &self.grid, run.batch.examples, &d, dx)
        });
    }
}
