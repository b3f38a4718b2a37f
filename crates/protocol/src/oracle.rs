//! Who is asked, and what comes back.

use crate::{Announcement, GradientQuery, LossQuery, Params};

/// Answers questions about private data.
pub trait Oracle {
    /// Draws a new lot, from which what is announced may be asked. All of it is paid for now; what
    /// is not asked is not refunded.
    ///
    /// # Errors
    /// If it cannot be afforded. Then nothing has been computed.
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused>;

    /// The clipped and noisy mean gradient of the lot, in the coordinates of the query's geometry;
    /// one standard deviation for each block.
    ///
    /// # Errors
    /// If it was not announced, or does not fit the model.
    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<Params>, Refused>;

    /// The clipped and noisy mean loss of the lot.
    ///
    /// # Errors
    /// If it was not announced, or does not fit the model.
    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused>;

    /// Where several processes ask together, each is answered and works on tensors of its own, and
    /// the others' are empty. This makes whole, on all of them, what each has made of its own
    /// tensors.
    ///
    /// # Errors
    /// If a process is gone.
    fn gather(&mut self, parts: &mut Params) -> Result<(), Refused> {
        let _ = parts;
        Ok(())
    }
}

/// A release, with its public noise law.
#[derive(Clone, Debug, PartialEq)]
pub struct Noisy<T> {
    /// What was released.
    pub value: T,
    /// The standard deviation of the noise in each number, by block.
    pub std: Vec<f64>,
}

/// Why a question was not answered. It is a value, and public: an oracle's refusals do not depend
/// on records.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The promise would be broken.
    #[error("{0}")]
    Budget(String),
    /// It makes no sense, or was not announced.
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
