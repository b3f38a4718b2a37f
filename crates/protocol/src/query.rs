//! Queries about private data.

use crate::{Blocks, Geometry, Params, Positive, Refused};

/// The clip bound of a block and the noise multiplier relative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// C: the largest norm of an example's contribution to the sum of the block.
    pub clip: Positive,
    /// σ: the noise has the standard deviation σ·C.
    pub sigma: Positive,
}

impl Bound {
    /// Validates both values.
    ///
    /// # Errors
    /// If one of them is not a finite number greater than 0.
    pub fn new(clip: f64, sigma: f64) -> Result<Self, Refused> {
        Ok(Self {
            clip: Positive::new("the clip bound", clip)?,
            sigma: Positive::new("the noise multiplier", sigma)?,
        })
    }

    /// Divides a joint noise multiplier among blocks, given the clip bound and weight of each.
    ///
    /// Block k gets σ_k = σ √(Σ w)/√w_k. Then Σ 1/σ_k² = 1/σ²: all blocks together cost as much as
    /// one block with `sigma`.
    ///
    /// # Errors
    /// If a weight is so small that the multiplier is not finite.
    pub fn shared(sigma: Positive, blocks: &[(Positive, Positive)]) -> Result<Vec<Self>, Refused> {
        let total: f64 = blocks.iter().map(|(_, weight)| weight.get()).sum();
        let bound = |&(clip, weight): &(Positive, Positive)| {
            Self::new(clip.get(), sigma.get() * (total / weight.get()).sqrt())
        };
        blocks.iter().map(bound).collect()
    }
}

/// How an encoded gradient x is scaled so that its norm is at most the clip bound C.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Clipping {
    /// x · min(1, C/‖x‖)
    #[default]
    Cut,
    /// x · C/(‖x‖ + γ): every example is scaled to about the bound (Bu et al. 2023, automatic
    /// clipping).
    Automatic {
        /// γ
        gamma: Positive,
    },
}

impl Clipping {
    /// Returns the factor for an encoded gradient of this norm; zero if the norm is not finite.
    ///
    /// # Claim
    /// factor · norm ≤ clip for every norm ≥ 0.
    pub fn factor(self, norm: f64, clip: f64) -> f64 {
        let factor = match self {
            Self::Cut if norm <= clip => 1.0,
            Self::Cut => clip / norm,
            Self::Automatic { gamma } => clip / (norm + gamma.get()),
        };
        // Tests for the valid case, so that NaN gives 0.
        if factor >= 0.0 && norm < f64::INFINITY { factor } else { 0.0 }
    }
}

/// Asks for the clipped and noisy mean gradient of a lot.
///
/// The answer is the sum of the clipped, encoded gradients, with noise, divided by the public lot
/// size.
#[derive(Clone, Copy, Debug)]
pub struct GradientQuery<'a> {
    /// The parameters at which the gradients are computed.
    pub at: &'a Params,
    /// The coordinates in which they are clipped and released.
    pub geometry: &'a Geometry,
    /// Which tensors are clipped together.
    pub blocks: &'a Blocks,
    /// Clip bound and multiplier of each block.
    pub bounds: &'a [Bound],
    /// How they are clipped.
    pub clipping: Clipping,
}

/// Asks for the clipped and noisy mean loss of a lot.
///
/// The answer is the sum of the losses, each clipped to ±C, with noise, divided by the public lot
/// size.
#[derive(Clone, Copy, Debug)]
pub struct LossQuery<'a> {
    /// The parameters at which the losses are computed.
    pub at: &'a Params,
    /// Clip bound and multiplier.
    pub bound: Bound,
}

/// The releases that will be made from a lot. They are charged before the lot is drawn.
///
/// It lists the noise multipliers, because only these determine the cost.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Announcement {
    sigmas: Vec<(Positive, u64)>,
}

impl Announcement {
    /// Announces a gradient: one release for each block.
    pub fn gradient(bounds: &[Bound]) -> Self {
        bounds.iter().fold(Self::default(), |sum, bound| sum.and(bound.sigma, 1))
    }

    /// Adds `count` releases with this multiplier.
    #[must_use]
    pub fn and(mut self, sigma: Positive, count: u64) -> Self {
        match self.sigmas.iter_mut().find(|(known, _)| *known == sigma) {
            Some((_, n)) => *n = n.saturating_add(count),
            None if count > 0 => self.sigmas.push((sigma, count)),
            None => {}
        }
        self
    }

    /// Returns the multipliers and how often each is announced.
    pub fn sigmas(&self) -> &[(Positive, u64)] {
        &self.sigmas
    }

    /// Removes one release; returns false if there is none with this multiplier.
    #[must_use]
    pub fn take(&mut self, sigma: Positive) -> bool {
        match self.sigmas.iter_mut().find(|(known, count)| *known == sigma && *count > 0) {
            Some((_, count)) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positive(x: f64) -> Positive {
        Positive::new("x", x).unwrap()
    }

    #[test]
    fn clipped_norms_are_within_the_bound() {
        let automatic = Clipping::Automatic { gamma: positive(0.01) };
        for clipping in [Clipping::Cut, automatic] {
            for norm in [0.0, 1e-300, 0.5, 1.0, 1.0 + 1e-15, 7.0, 1e300, f64::MAX] {
                for clip in [1e-300, 0.1, 1.0, 1e300] {
                    assert!(
                        clipping.factor(norm, clip) * norm <= clip * (1.0 + 1e-15),
                        "{clipping:?} {norm} {clip}"
                    );
                }
            }
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let factor = clipping.factor(bad, 1.0);
                assert!(
                    factor == 0.0 || bad == f64::NEG_INFINITY && factor <= 1.0,
                    "{clipping:?} {bad}: {factor}"
                );
            }
        }
        assert_eq!(Clipping::Cut.factor(0.0, 1.0), 1.0);
        assert_eq!(automatic.factor(0.0, 1.0), 100.0);
    }

    #[test]
    fn shared_bounds_cost_what_one_costs() {
        let bounds = Bound::shared(
            positive(0.7),
            &[
                (positive(1.0), positive(1.0)),
                (positive(0.1), positive(3.0)),
                (positive(5.0), positive(0.5)),
            ],
        )
        .unwrap();
        let precision: f64 = bounds.iter().map(|b| b.sigma.get().powi(-2)).sum();
        assert!((precision * 0.7 * 0.7 - 1.0).abs() < 1e-12);
        // 49 equal blocks at a total of 0.7189: seven times that each.
        let equal = Bound::shared(positive(0.7189), &[(positive(0.1), positive(1.0)); 49]).unwrap();
        assert!((equal[48].sigma.get() - 5.0323).abs() < 1e-4);
        assert!(
            Bound::shared(
                positive(1.0),
                &[(positive(1.0), positive(1e-300)), (positive(1.0), positive(1e300))]
            )
            .is_err()
        );
    }

    #[test]
    fn announcements_are_used_up() {
        let bound = Bound::new(1.0, 2.0).unwrap();
        let mut announced =
            Announcement::gradient(&[bound, bound]).and(positive(5.0), 3).and(positive(7.0), 0);
        assert_eq!(announced.sigmas(), [(positive(2.0), 2), (positive(5.0), 3)]);
        assert!(
            announced.take(positive(2.0))
                && announced.take(positive(2.0))
                && !announced.take(positive(2.0))
        );
        assert!(!announced.take(positive(7.0)) && announced.take(positive(5.0)));
    }
}
