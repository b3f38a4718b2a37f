//! SwiGLU activation: silu(gate) · value of the concatenation [gate | value].

use super::Layer;
use crate::pass::Pass;
use model::Value;
use model::op::SwiGluOp;
use tensor::activation;

impl Layer for SwiGluOp {
    fn saved_values(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        activation::swiglu(pass.shape(self.out).width, pass.value(self.x), &mut out);
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.x, |pass, dx| {
            activation::swiglu_backward(pass.shape(self.out).width, pass.value(self.x), &d, dx);
        });
    }
}
