//! The interface between analyst and curator.

use crate::{Announcement, GradientQuery, LossQuery, TensorMap};

/// Answers queries about private data.
pub trait Oracle {
    /// Charges the announced releases and draws a new lot, from which they may then be made.
    ///
    /// A release that is not made is not refunded.
    ///
    /// # Errors
    /// If the budget does not cover them. Then nothing has been computed.
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused>;

    /// Returns the clipped and noisy mean gradient of the lot, in the geometry of the query.
    ///
    /// The answer has one standard deviation for each block. It has the tensors that this process
    /// owns: all of them, unless several processes train together.
    ///
    /// # Errors
    /// If the query was not announced, or does not fit the model.
    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused>;

    /// Returns the clipped and noisy mean loss of the lot.
    ///
    /// # Errors
    /// If the query was not announced, or does not fit the model.
    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused>;
}

/// A released value and the public standard deviation of its noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Noisy<T> {
    /// The released value.
    pub value: T,
    /// The standard deviation of the noise in each element, by block.
    pub std: Vec<f64>,
}

/// Why a query was not answered. It is public: refusals do not depend on records.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The budget does not cover it.
    #[error("{0}")]
    Budget(String),
    /// The query is invalid, or was not announced.
    #[error("{0}")]
    Query(String),
    /// The computation failed.
    #[error("{0}")]
    Failed(String),
}

impl From<tensor::Error> for Refused {
    fn from(error: tensor::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
