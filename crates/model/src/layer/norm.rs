//! Layer norm and root-mean-square norm.

use super::Layer;
use crate::graph::{Param, Value};
use crate::plan::Plan;
use crate::rule::Use;
use crate::run::Run;
use tensor::norm::{self, Norm};

#[derive(Debug)]
pub(crate) struct Normalise {
    pub(crate) norm: Norm,
    pub(crate) epsilon: f32,
    pub(crate) x: Value,
    pub(crate) gain: Param,
    pub(crate) bias: Option<Param>,
    pub(crate) out: Value,
}

impl Layer for Normalise {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        std::iter::once(self.gain).chain(self.bias).collect()
    }

    fn uses(&self) -> Vec<(Param, Use)> {
        self.params().into_iter().map(|param| (param, Use::Vector)).collect()
    }

    fn saves(&self, _: &Plan) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, index: usize, run: &mut Run<'_>) {
        let width = run.form(self.out).width;
        let mut out = run.buffer(self.out);
        let mut stats = run.space.take(run.batch.rows(run.form(self.out).space) * norm::STATS);
        let bias = self.bias.map(|bias| run.param(bias).data());
        norm::forward(
            self.norm,
            width,
            self.epsilon,
            &run.buffers.values[self.x.0],
            run.param(self.gain).data(),
            bias,
            &mut stats,
            &mut out,
        );
        run.put(self.out, out);
        run.buffers.notes[index] = stats;
    }

    fn backward(&self, index: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        let width = run.form(self.out).width;
        let (x, stats) = (run.lend(self.x), std::mem::take(&mut run.buffers.notes[index]));
        let bias = self.bias.filter(|&bias| run.plan.trains(bias));
        if run.plan.trains(self.gain) || bias.is_some() {
            let offsets = run.batch.offsets(run.form(self.out).space);
            let count = run.batch.examples * width;
            let mut dgain = run.space.take(count);
            let mut dbias = bias.map(|_| run.space.take(count));
            norm::parameters(offsets, width, &x, &stats, &d, &mut dgain, dbias.as_deref_mut());
            if run.plan.trains(self.gain) {
                run.add_vectors(self.gain, dgain)
            } else {
                run.space.give(dgain)
            }
            if let (Some(bias), Some(dbias)) = (bias, dbias) {
                run.add_vectors(bias, dbias);
            }
        }
        run.contribute(self.x, |run, dx, onto| {
            norm::backward(self.norm, width, &x, &stats, run.param(self.gain).data(), &d, onto, dx)
        });
        run.put(self.x, x);
        run.buffers.notes[index] = stats;
    }
}
