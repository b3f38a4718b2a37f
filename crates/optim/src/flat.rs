//! One block of everything.

use protocol::{Blocks, Bound, Clipping, Geometry, GradientQuery, Params};

/// How an optimizer with one block asks: the clip bound, the multiplier and how gradients are
/// clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flat {
    /// Clip bound and multiplier.
    pub bound: Bound,
    /// How gradients are clipped.
    pub clipping: Clipping,
}

/// The parts of a query that do not change.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) blocks: Blocks,
    pub(crate) bounds: Vec<Bound>,
    pub(crate) clipping: Clipping,
}

impl Asking {
    pub(crate) fn flat(flat: Flat, params: &Params) -> Self {
        Self {
            blocks: Blocks::flat(params.len()),
            bounds: vec![flat.bound],
            clipping: flat.clipping,
        }
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
