//! SwiGLU: a gate and a value side by side, silu(gate) · value.

use super::Layer;
use crate::graph::Value;
use crate::plan::Plan;
use crate::run::Run;
use tensor::activation;

#[derive(Debug)]
pub(crate) struct SwiGlu {
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for SwiGlu {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn saves(&self, _: &Plan) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        activation::swiglu(run.form(self.out).width, &run.buffers.values[self.x.0], &mut out);
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute_whole(self.x, |run, dx| {
            activation::swiglu_backward(
                run.form(self.out).width,
                &run.buffers.values[self.x.0],
                &d,
                dx,
            );
        });
    }
}
