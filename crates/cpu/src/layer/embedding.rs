//! Embedding lookups: rows of a table by token, position or segment.

use super::Layer;
use crate::batch::Batch;
use crate::pass::Pass;
use crate::rule::GradientForm;
use model::Param;
use model::op::{EmbeddingOp, Index};

/// Returns the row of the table that each token selects.
pub(crate) fn selected_rows(index: Index, batch: &Batch) -> &[u32] {
    match index {
        Index::Token => &batch.ids,
        Index::Position => &batch.positions,
        Index::First => &batch.segment_ids,
    }
}

impl Layer for EmbeddingOp {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        vec![(self.table, GradientForm::Lookup { index: self.index, gradient: self.out })]
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let table = pass.param(self.table);
        tensor::embedding::gather(
            table.data(),
            table.cols(),
            selected_rows(self.index, pass.batch),
            &mut out,
        );
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, _: &mut Pass<'_>) {}
}
