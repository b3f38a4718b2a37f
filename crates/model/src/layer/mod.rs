//! Layers. Each one knows its forward pass, its backward pass, and in which form its parameters'
//! per-example gradients come.
//!
//! To add a layer: a file here that implements [`Layer`], and a method of the builder that makes
//! one.

mod add;
mod attention;
mod embedding;
mod group_norm;
mod linear;
mod norm;
mod patches;
mod pick;
mod pooling;
mod rope;
mod swiglu;

pub(crate) use add::Add;
pub(crate) use attention::Attention;
pub(crate) use embedding::{Embedding, Index};
pub(crate) use group_norm::GroupNorm;
pub use linear::Order;
pub(crate) use linear::{Linear, LowRank, Part};
pub(crate) use norm::Normalise;
pub(crate) use patches::Patches;
pub(crate) use pick::{FirstToken, MeanRows, Reshape, TargetRows};
pub(crate) use pooling::Pool;
pub(crate) use rope::Rotate;
pub(crate) use swiglu::SwiGlu;

use crate::graph::{Param, Value};
use crate::plan::Plan;
use crate::rule::Use;
use crate::run::Run;

/// A step of the forward pass.
pub(crate) trait Layer: std::fmt::Debug + Send + Sync {
    /// Values it reads.
    fn inputs(&self) -> Vec<Value>;

    /// Values it makes; the first one is what others read.
    fn outputs(&self) -> Vec<Value>;

    /// An input it changes in place, so that it is gone afterwards.
    fn consumes(&self) -> Option<Value> {
        None
    }

    /// Whether no row depends on one that comes after it.
    fn is_causal(&self) -> bool {
        true
    }

    /// Parameters it reads.
    fn params(&self) -> Vec<Param> {
        Vec::new()
    }

    /// How its parameters' per-example gradients come.
    fn uses(&self) -> Vec<(Param, Use)> {
        Vec::new()
    }

    /// Values its backward pass reads, beside those that [`Layer::uses`] names.
    fn saves(&self, _plan: &Plan) -> Vec<Value> {
        Vec::new()
    }

    /// Computes the outputs.
    fn forward(&self, index: usize, run: &mut Run<'_>);

    /// From the gradient by the outputs, contributes to the gradient by the inputs.
    fn backward(&self, index: usize, run: &mut Run<'_>);

    /// Multiplications and additions of the forward pass; the backward pass by the inputs costs as
    /// many, the one by the weights as many again.
    fn work(&self, _run: &crate::batch::Batch, _graph: &crate::Graph) -> f64 {
        0.0
    }
}
