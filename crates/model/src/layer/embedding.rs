//! Rows of a table: tokens, positions, types.

use super::Layer;
use crate::graph::{Param, Value};
use crate::rule::Use;
use crate::run::Run;

/// What picks the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// The token.
    Token,
    /// Its place in its example.
    Position,
    /// Always the first row: a text of one part.
    First,
}

impl Index {
    pub(crate) fn of(self, batch: &crate::batch::Batch) -> &[u32] {
        match self {
            Self::Token => &batch.ids,
            Self::Position => &batch.positions,
            Self::First => &batch.firsts,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Embedding {
    pub(crate) table: Param,
    pub(crate) index: Index,
    pub(crate) out: Value,
}

impl Layer for Embedding {
    fn inputs(&self) -> Vec<Value> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.table]
    }

    fn uses(&self) -> Vec<(Param, Use)> {
        vec![(self.table, Use::Lookup { index: self.index, gradient: self.out })]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        let table = run.param(self.table);
        tensor::embedding::gather(table.data(), table.cols(), self.index.of(run.batch), &mut out);
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, _: &mut Run<'_>) {}
}
