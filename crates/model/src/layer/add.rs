//! The sum of two values: a residual connection.

use super::Layer;
use crate::graph::Value;
use crate::run::Run;

#[derive(Debug)]
pub(crate) struct Add {
    pub(crate) a: Value,
    pub(crate) b: Value,
    pub(crate) out: Value,
}

impl Layer for Add {
    fn inputs(&self) -> Vec<Value> {
        vec![self.a, self.b]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        tensor::activation::add_to(
            &run.buffers.values[self.a.0],
            &run.buffers.values[self.b.0],
            &mut out,
        );
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        run.pass_on(self.out, self.a);
        run.pass_on(self.out, self.b);
    }
}
