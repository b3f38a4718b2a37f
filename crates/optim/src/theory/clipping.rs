//! Clipping residual 𝔅_T(C): equation (4), with the tails of Corollaries B.6 and B.7.

use super::{counted, not_negative, positive};
use protocol::Refused;
use std::f64::consts::E;

/// An assumption about the norm ‖G‖_F of one example's gradient, at every step.
///
/// ```
/// let tail = optim::theory::GradientTail::SecondMoment(1.0);
/// assert_eq!(tail.residual(4, 2.0)?, 1.0);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradientTail {
    /// E(‖G‖_F − C)₊ itself; 0 if no gradient is ever clipped.
    Excess(f64),
    /// G₂ with E‖G‖_F² ≤ G₂² (9).
    SecondMoment(f64),
    /// K with E exp(‖G‖_F²/K²) ≤ e (12).
    Light(f64),
}

impl GradientTail {
    /// Bounds the clipping residual 𝔅_T(C) = √r sup_t E(‖G_t‖_F − C)₊ (4).
    ///
    /// r is the largest rank of the matrix. The bound is √r G₂²/C (Corollary B.6), or e √r K²/(2C)
    /// e^{−C²/K²} (Corollary B.7).
    pub fn residual(self, rank: usize, clip: f64) -> Result<f64, Refused> {
        let root = (counted("the rank", rank)? as f64).sqrt();
        let clip = positive("the clip bound", clip)?;
        let excess = match self {
            Self::Excess(excess) => not_negative("the excess over the clip bound", excess)?,
            Self::SecondMoment(g2) => positive("the root mean square G₂", g2)? / clip * g2,
            Self::Light(k) => {
                0.5 * E
                    * (positive("the tail scale K", k)? / clip * k)
                    * (-(clip / k).powi(2)).exp()
            }
        };
        Ok(root * excess)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::close;
    use super::*;

    /// ∫_from^to f by Simpson's rule.
    fn integral(from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
        let width = (to - from) / 20_000.0;
        let weight = |i| if i == 0 || i == 20_000 { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        (0..=20_000).map(|i| weight(i) * f(from + f64::from(i) * width)).sum::<f64>() * width / 3.0
    }

    #[test]
    fn the_clipping_residual() {
        let (k, s) = (1.3, 1.3 * (0.5 * (1.0 - (-2f64).exp())).sqrt());
        // ‖G‖ = |N(0, s²)| has E exp(‖G‖²/K²) = (1 − 2s²/K²)^{−1/2} = e.
        let density =
            |g: f64| (2.0 / std::f64::consts::PI).sqrt() / s * (-0.5 * (g / s).powi(2)).exp();
        assert!(close(integral(0.0, 15.0 * k, |g| density(g) * (g / k).powi(2).exp()), E, 1e-6));
        for clip in [0.5, 1.0, 2.0, 4.0] {
            let excess = integral(clip, clip + 20.0, |g| (g - clip) * density(g));
            let second = GradientTail::SecondMoment(s).residual(9, clip).unwrap();
            let light = GradientTail::Light(k).residual(9, clip).unwrap();
            assert!(3.0 * excess <= second && 3.0 * excess <= light, "C = {clip}");
            assert!(close(second, 3.0 * s * s / clip, 1e-14));
            // The light tail is the first term of an alternating series for e ∫_C^∞ exp(−u²/K²) du.
            let tail = 3.0 * E * integral(clip, clip + 20.0, |u| (-(u / k).powi(2)).exp());
            assert!(
                tail <= light && tail >= light * (1.0 - 0.5 * (k / clip).powi(2)),
                "C = {clip}: {tail} {light}"
            );
        }
        assert_eq!(GradientTail::Excess(0.25).residual(4, 7.0).unwrap(), 0.5);
        assert_eq!(GradientTail::Light(1e-200).residual(1, 1e200).unwrap(), 0.0);
        assert_eq!(GradientTail::Light(1e200).residual(1, 1e-200).unwrap(), f64::INFINITY);
    }
}
