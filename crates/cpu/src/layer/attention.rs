//! Multi-head self-attention within each example.

use super::{BatchShape, Layer};
use crate::pass::Pass;
use model::Value;
use model::op::AttentionOp;
use tensor::attention;
use tensor::decoding;

impl Layer for AttentionOp {
    fn saved_values(&self) -> Vec<Value> {
        vec![self.qkv, self.out]
    }

    fn forward(&self, index: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        if let Some(cache) = &mut pass.cache {
            let offsets = pass.batch.offsets(pass.graph.shape(self.out).space);
            decoding::extend(
                self.heads,
                offsets,
                &pass.buffers.values[self.qkv.index()],
                cache.layer(index),
                &mut out,
            );
            pass.set_value(self.out, out);
            return;
        }
        let mut sums = pass.workspace.take(pass.rows(self.out) * self.heads.queries);
        let offsets = pass.offsets(self.out);
        attention::forward(self.heads, offsets, pass.value(self.qkv), &mut out, &mut sums);
        pass.set_value(self.out, out);
        pass.save(index, sums);
    }

    fn backward(&self, index: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.qkv, |pass, dqkv| {
            let (qkv, out) = (pass.value(self.qkv), pass.value(self.out));
            let offsets = pass.offsets(self.out);
            attention::backward(self.heads, offsets, qkv, out, pass.saved(index), &d, dqkv);
        });
    }

    fn flops(&self, batch: &BatchShape<'_>) -> f64 {
        let squared_length = |rows: &[usize]| (rows[1] - rows[0]).pow(2);
        let pairs: usize = batch.offsets(self.out).windows(2).map(squared_length).sum();
        let share = if self.heads.mask == attention::AttentionMask::Causal { 0.5 } else { 1.0 };
        share * 4.0 * pairs as f64 * (self.heads.queries * self.heads.dim) as f64
    }
}
