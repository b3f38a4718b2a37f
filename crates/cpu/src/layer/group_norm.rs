//! Group normalization of images.

use super::Layer;
use crate::pass::Pass;
use crate::rule::GradientForm;
use model::op::GroupNormOp;
use model::{Param, Value};
use tensor::group_norm::{self, AffineGradients};

fn kernel(op: &GroupNormOp, pass: &Pass<'_>) -> group_norm::GroupNorm {
    group_norm::GroupNorm {
        examples: pass.parts(),
        pixels: op.pixels,
        channels: pass.shape(op.out).width,
        groups: op.groups,
        epsilon: op.epsilon,
    }
}

impl Layer for GroupNormOp {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        vec![(self.gain, GradientForm::Vector), (self.bias, GradientForm::Vector)]
    }

    fn saved_values(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, index: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let mut stats = pass.workspace.take(2 * pass.parts() * self.groups);
        let (mean, inverse) = stats.split_at_mut(pass.parts() * self.groups);
        let x = pass.value(self.x);
        kernel(self, pass).forward(
            x,
            pass.param(self.gain).data(),
            pass.param(self.bias).data(),
            &mut out,
            mean,
            inverse,
        );
        pass.set_value(self.out, out);
        pass.save(index, stats);
    }

    fn backward(&self, index: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        let count = pass.parts() * pass.shape(self.out).width;
        let (mut dgain, mut dbias) = (pass.workspace.take(count), pass.workspace.take(count));
        let (kernel, stats) = (kernel(self, pass), pass.take_saved(index));
        let (mean, inverse) = stats.split_at(pass.parts() * self.groups);
        kernel.parameter_gradients(pass.value(self.x), mean, inverse, &d, &mut dgain, &mut dbias);
        pass.write_gradient(self.x, |pass, dx| {
            let affine = AffineGradients { dgain: &dgain, dbias: &dbias };
            kernel.backward(
                pass.value(self.x),
                pass.param(self.gain).data(),
                mean,
                inverse,
                &d,
                affine,
                dx,
            );
        });
        pass.save(index, stats);
        for (param, gradient) in [(self.gain, dgain), (self.bias, dbias)] {
            if pass.trains(param) {
                pass.add_vector_gradients(param, gradient)
            } else {
                pass.workspace.give(gradient)
            }
        }
    }
}
