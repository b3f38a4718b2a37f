//! Singular values of a matrix with their multiplicities.

use super::{counted, not_negative, positive, refused};
use protocol::Refused;

/// The singular values of a matrix of `rows` × `cols`, equal ones counted together.
///
/// ```
/// let flat = optim::theory::Spectrum::flat(8, 12, 4, 2.0)?;
/// assert_eq!(flat.values(), [(0.0, 4), (1.0, 4)]);
/// assert_eq!(flat.norm(), 2.0);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrum {
    rows: usize,
    cols: usize,
    /// Value and multiplicity; distinct, ascending, min(rows, cols) in all.
    values: Vec<(f64, usize)>,
}

impl Spectrum {
    /// From singular values and multiplicities, in any order; the rest are zeros.
    pub fn new(rows: usize, cols: usize, values: &[(f64, usize)]) -> Result<Self, Refused> {
        let rank = counted("the rows", rows)?.min(counted("the columns", cols)?);
        let mut sorted = values.to_vec();
        for &(value, _) in values {
            not_negative("the singular value", value)?;
        }
        let given = values.iter().fold(0usize, |sum, (_, count)| sum.saturating_add(*count));
        if given > rank {
            return Err(refused("the singular values", &format!("at most {rank}"), given));
        }
        sorted.push((0.0, rank - given));
        sorted.retain(|(_, count)| *count > 0);
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        sorted.dedup_by(|next, kept| {
            let equal = next.0 == kept.0;
            kept.1 += if equal { next.1 } else { 0 };
            equal
        });
        Ok(Self { rows, cols, values: sorted })
    }

    /// A matrix of this rank and Frobenius norm whose nonzero singular values are equal.
    ///
    /// Its effective rank ‖X‖_F²/‖X‖_op² is its rank.
    pub fn flat(rows: usize, cols: usize, rank: usize, norm: f64) -> Result<Self, Refused> {
        let value = positive("the norm", norm)? / (counted("the rank", rank)? as f64).sqrt();
        Self::new(rows, cols, &[(value, rank)])
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The number of elements.
    pub fn elements(&self) -> f64 {
        self.rows as f64 * self.cols as f64
    }

    /// The distinct singular values, ascending, with their multiplicities.
    pub fn values(&self) -> &[(f64, usize)] {
        &self.values
    }

    /// The Frobenius norm.
    pub fn norm(&self) -> f64 {
        norm(&self.values.iter().map(|(value, _)| *value).collect::<Vec<_>>(), &self.values)
    }
}

/// The Frobenius norm of a matrix with these singular values and the multiplicities of `like`.
pub(super) fn norm(values: &[f64], like: &[(f64, usize)]) -> f64 {
    values.iter().zip(like).map(|(x, (_, count))| *count as f64 * x * x).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_counted_together() {
        let spectrum = Spectrum::new(5, 4, &[(2.0, 1), (0.5, 1), (2.0, 1)]).unwrap();
        assert_eq!(spectrum.values(), [(0.0, 1), (0.5, 1), (2.0, 2)]);
        assert!((spectrum.norm() - 8.25f64.sqrt()).abs() < 1e-15);
        assert_eq!(Spectrum::flat(3, 3, 3, 3.0).unwrap().values().len(), 1);
    }

    #[test]
    fn too_many_values_are_refused() {
        assert!(Spectrum::new(2, 3, &[(1.0, 3)]).is_err());
        assert!(Spectrum::new(2, 3, &[(f64::NAN, 1)]).is_err());
        assert!(Spectrum::new(0, 3, &[]).is_err());
        assert!(Spectrum::flat(2, 3, 0, 1.0).is_err());
        assert!(Spectrum::flat(2, 3, 1, 0.0).is_err());
    }
}
