//! A gradient query that has been validated against the model.

use crate::Error;
use protocol::{Blocks, Geometry, Params, Refused, Role, Trainable};

/// A geometry and clip blocks that were validated against the model and its parameters.
///
/// The curator validates each query once, so engines need not.
#[derive(Clone, Copy, Debug)]
pub struct CheckedQuery<'a> {
    geometry: &'a Geometry,
    blocks: &'a Blocks,
}

impl<'a> CheckedQuery<'a> {
    /// Validates parameters, geometry and blocks against the trainable tensors.
    ///
    /// Frames of a tangent geometry must be exactly those of the parameters, because the
    /// sensitivity of a sum depends on them.
    ///
    /// # Errors
    /// If one of them does not fit; the message says which.
    pub fn new(
        params: &Params,
        geometry: &'a Geometry,
        blocks: &'a Blocks,
        tensors: &[Trainable],
    ) -> Result<Self, Refused> {
        check_params(params, tensors).map_err(|error| Refused::Query(error.to_string()))?;
        geometry.check(blocks, params, &low_rank_pairs(tensors))?;
        geometry.check_frames(params)?;
        Ok(Self { geometry, blocks })
    }

    /// Returns the coordinates in which norms are computed.
    pub fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// Returns the partition of tensors into clip blocks.
    pub fn blocks(&self) -> &'a Blocks {
        self.blocks
    }
}

/// Refuses parameters whose shapes are not those of the trainable tensors.
///
/// # Errors
/// Names the first tensor that differs.
pub(crate) fn check_params(params: &Params, tensors: &[Trainable]) -> Result<(), Error> {
    if params.len() != tensors.len() {
        return Err(Error::Params(format!(
            "expected {} tensors, got {}",
            tensors.len(),
            params.len()
        )));
    }
    match params.iter().zip(tensors).find(|(array, tensor)| array.shape() != tensor.shape) {
        None => Ok(()),
        Some((array, tensor)) => Err(Error::Params(format!(
            "{}: expected shape {:?}, got {:?}",
            tensor.name,
            tensor.shape,
            array.shape()
        ))),
    }
}

/// Returns the low-rank pairs (left, right) among the trainable tensors.
pub(crate) fn low_rank_pairs(tensors: &[Trainable]) -> Vec<(usize, usize)> {
    let pair = |(left, tensor): (usize, &Trainable)| match tensor.role {
        Role::Left(right) => Some((left, right)),
        _ => None,
    };
    tensors.iter().enumerate().filter_map(pair).collect()
}
