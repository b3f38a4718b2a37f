//! Group norm: each example's channels in groups, over all its pixels.

use super::Layer;
use crate::graph::{Param, Value};
use crate::plan::Plan;
use crate::rule::Use;
use crate::run::Run;
use tensor::group_norm::{self, Affine};

#[derive(Debug)]
pub(crate) struct GroupNorm {
    pub(crate) groups: usize,
    pub(crate) epsilon: f32,
    pub(crate) pixels: usize,
    pub(crate) x: Value,
    pub(crate) gain: Param,
    pub(crate) bias: Param,
    pub(crate) out: Value,
}

impl GroupNorm {
    fn kernel(&self, run: &Run<'_>) -> group_norm::GroupNorm {
        group_norm::GroupNorm {
            examples: run.batch.examples,
            pixels: self.pixels,
            channels: run.form(self.out).width,
            groups: self.groups,
            epsilon: self.epsilon,
        }
    }
}

impl Layer for GroupNorm {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.gain, self.bias]
    }

    fn uses(&self) -> Vec<(Param, Use)> {
        vec![(self.gain, Use::Vector), (self.bias, Use::Vector)]
    }

    fn saves(&self, _: &Plan) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, index: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        let mut stats = run.space.take(2 * run.batch.examples * self.groups);
        let (mean, inverse) = stats.split_at_mut(run.batch.examples * self.groups);
        let x = &run.buffers.values[self.x.0];
        self.kernel(run).forward(
            x,
            run.param(self.gain).data(),
            run.param(self.bias).data(),
            &mut out,
            mean,
            inverse,
        );
        run.put(self.out, out);
        run.buffers.notes[index] = stats;
    }

    fn backward(&self, index: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        let count = run.batch.examples * run.form(self.out).width;
        let (mut dgain, mut dbias) = (run.space.take(count), run.space.take(count));
        let (kernel, stats) = (self.kernel(run), std::mem::take(&mut run.buffers.notes[index]));
        let (mean, inverse) = stats.split_at(run.batch.examples * self.groups);
        kernel.parameters(&run.buffers.values[self.x.0], mean, inverse, &d, &mut dgain, &mut dbias);
        run.contribute_whole(self.x, |run, dx| {
            let affine = Affine { dgain: &dgain, dbias: &dbias };
            kernel.backward(
                &run.buffers.values[self.x.0],
                run.param(self.gain).data(),
                mean,
                inverse,
                &d,
                affine,
                dx,
            );
        });
        run.buffers.notes[index] = stats;
        for (param, gradient) in [(self.gain, dgain), (self.bias, dbias)] {
            if run.plan.trains(param) {
                run.add_vectors(param, gradient)
            } else {
                run.space.give(gradient)
            }
        }
    }
}
