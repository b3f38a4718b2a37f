//! Addition of two values, as in a residual connection.

use super::Layer;
use crate::pass::Pass;
use model::op::AddOp;

impl Layer for AddOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        tensor::activation::add_to(pass.value(self.a), pass.value(self.b), &mut out);
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        pass.copy_gradient(self.out, self.a);
        pass.copy_gradient(self.out, self.b);
    }
}
