//! Layer normalization and RMS normalization.

use super::Layer;
use crate::pass::Pass;
use crate::rule::GradientForm;
use model::op::NormOp;
use model::{Param, Value};
use tensor::norm;

impl Layer for NormOp {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        let params = std::iter::once(self.gain).chain(self.bias);
        params.map(|param| (param, GradientForm::Vector)).collect()
    }

    fn saved_values(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, index: usize, pass: &mut Pass<'_>) {
        let width = pass.shape(self.out).width;
        let mut out = pass.alloc(self.out);
        let mut stats =
            pass.workspace.take(pass.batch.rows(pass.shape(self.out).space) * norm::STATS);
        let bias = self.bias.map(|bias| pass.param(bias).data());
        norm::forward(
            self.norm,
            width,
            self.epsilon,
            pass.value(self.x),
            pass.param(self.gain).data(),
            bias,
            &mut stats,
            &mut out,
        );
        pass.set_value(self.out, out);
        pass.save(index, stats);
    }

    fn backward(&self, index: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        let width = pass.shape(self.out).width;
        let (x, stats) = (pass.take_value(self.x), pass.take_saved(index));
        let bias = self.bias.filter(|&bias| pass.trains(bias));
        if pass.trains(self.gain) || bias.is_some() {
            let offsets = pass.offsets(self.out);
            let count = pass.parts() * width;
            let mut dgain = pass.workspace.take(count);
            let mut dbias = bias.map(|_| pass.workspace.take(count));
            norm::parameter_gradients(
                offsets,
                width,
                &x,
                &stats,
                &d,
                &mut dgain,
                dbias.as_deref_mut(),
            );
            if pass.trains(self.gain) {
                pass.add_vector_gradients(self.gain, dgain)
            } else {
                pass.workspace.give(dgain)
            }
            if let (Some(bias), Some(dbias)) = (bias, dbias) {
                pass.add_vector_gradients(bias, dbias);
            }
        }
        pass.add_gradient(self.x, |pass, dx, mode| {
            norm::backward(self.norm, width, &x, &stats, pass.param(self.gain).data(), &d, mode, dx)
        });
        pass.set_value(self.x, x);
        pass.save(index, stats);
    }
}
