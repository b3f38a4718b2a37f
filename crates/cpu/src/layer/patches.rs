//! Patches of an image (im2col). A convolution is this operation followed by a linear layer.

use super::Layer;
use crate::pass::Pass;
use model::op::PatchesOp;
use tensor::patches;

impl Layer for PatchesOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        patches::gather(&self.window, &self.image, pass.parts(), pass.value(self.x), &mut out);
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.x, |pass, dx| {
            patches::scatter(&self.window, &self.image, pass.parts(), &d, dx)
        });
    }
}
