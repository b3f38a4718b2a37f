//! Clip bound, noise multiplier and clipping rule of a gradient query.

use protocol::{Blocks, Bound, Clipping, Geometry, GradientQuery, Params};

/// How the gradient of a lot is clipped and noised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNoise {
    /// The clip bound of each block, and the joint multiplier of all blocks.
    pub bound: Bound,
    /// The clipping rule.
    pub clipping: Clipping,
}

/// The parts of a gradient query that are the same in every step.
#[derive(Clone, Debug)]
pub(crate) struct QueryTemplate {
    pub(crate) blocks: Blocks,
    pub(crate) bounds: Vec<Bound>,
    pub(crate) clipping: Clipping,
}

impl QueryTemplate {
    /// Creates the template for one block with all tensors.
    pub(crate) fn one_block(noise: GradientNoise, tensors: usize) -> Self {
        Self { blocks: Blocks::flat(tensors), bounds: vec![noise.bound], clipping: noise.clipping }
    }

    pub(crate) fn query<'a>(&'a self, at: &'a Params, geometry: &'a Geometry) -> GradientQuery<'a> {
        GradientQuery {
            at,
            geometry,
            blocks: &self.blocks,
            bounds: &self.bounds,
            clipping: self.clipping,
        }
    }
}
