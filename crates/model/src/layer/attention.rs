//! Attention of each example's rows to each other.

use super::Layer;
use crate::batch::Batch;
use crate::graph::{Graph, Value};
use crate::plan::Plan;
use crate::run::Run;
use tensor::attention::{self, Heads};
use tensor::decoding;

#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) heads: Heads,
    /// Queries, keys and values side by side.
    pub(crate) qkv: Value,
    pub(crate) out: Value,
}

impl Layer for Attention {
    fn inputs(&self) -> Vec<Value> {
        vec![self.qkv]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn saves(&self, _: &Plan) -> Vec<Value> {
        vec![self.qkv, self.out]
    }

    fn is_causal(&self) -> bool {
        self.heads.mask == attention::AttentionMask::Causal
    }

    fn forward(&self, index: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        if let Some(cache) = &mut run.cache {
            let offsets = run.batch.offsets(run.graph.forms[self.out.0].space);
            decoding::extend(
                self.heads,
                offsets,
                &run.buffers.values[self.qkv.0],
                cache.layer(index),
                &mut out,
            );
            run.put(self.out, out);
            return;
        }
        let mut sums = run.space.take(run.rows(self.out) * self.heads.queries);
        let offsets = run.batch.offsets(run.form(self.out).space);
        attention::forward(
            self.heads,
            offsets,
            &run.buffers.values[self.qkv.0],
            &mut out,
            &mut sums,
        );
        run.put(self.out, out);
        run.buffers.notes[index] = sums;
    }

    fn backward(&self, index: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute_whole(self.qkv, |run, dqkv| {
            let (qkv, out) = (&run.buffers.values[self.qkv.0], &run.buffers.values[self.out.0]);
            let offsets = run.batch.offsets(run.form(self.out).space);
            attention::backward(self.heads, offsets, qkv, out, &run.buffers.notes[index], &d, dqkv);
        });
    }

    fn work(&self, batch: &Batch, graph: &Graph) -> f64 {
        let pairs: usize = batch
            .offsets(graph.forms[self.out.0].space)
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).pow(2))
            .sum();
        let causal = if self.heads.mask == attention::AttentionMask::Causal { 0.5 } else { 1.0 };
        causal * 4.0 * pairs as f64 * (self.heads.queries * self.heads.dim) as f64
    }
}
