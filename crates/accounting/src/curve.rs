//! What an attacker can gain: the trade-off between false and true positives when guessing whether
//! somebody was in the data.

use crate::gaussian;
use crate::special::{ndtr, ndtri};

/// The best true-positive rate at each false-positive rate that any test can have, an upper bound
/// over both directions of the neighbour relation.
#[derive(Debug, Clone)]
pub struct TradeOff {
    sides: Vec<Curve>,
}

impl TradeOff {
    pub(crate) fn new(sides: Vec<Curve>) -> Self {
        Self { sides }
    }

    /// No protection at all.
    pub(crate) fn hopeless() -> Self {
        Self::new(vec![Curve::hopeless()])
    }

    /// The largest true-positive rate of a test whose false-positive rate is `fpr`.
    pub fn tpr(&self, fpr: f64) -> f64 {
        if !(0.0..=1.0).contains(&fpr) {
            return 1.0;
        }
        self.sides.iter().map(|side| side.tpr(fpr)).fold(fpr, f64::max).min(1.0)
    }

    /// The smallest μ such that no test with both error rates of at least `least` does better here
    /// than in telling N(μ, 1) from N(0, 1): the Gaussian mechanism that is equivalent for all such
    /// attackers (Gaussian differential privacy, Dong, Roth, Su 2019).
    ///
    /// An upper bound; infinite where no test has such error rates, or `least` is not between 0 and
    /// ½.
    pub fn gdp_mu(&self, least: f64) -> f64 {
        if !(least > 0.0 && least < 0.5) {
            return f64::INFINITY;
        }
        self.sides.iter().map(|side| side.mu(least)).fold(0.0, f64::max)
    }
}

/// One direction's curve.
#[derive(Debug, Clone)]
pub(crate) enum Curve {
    /// N(μ, 1) against N(0, 1).
    Gaussian(f64),
    /// (false-positive rate, true-positive rate), both increasing, concave.
    Points(Vec<(f64, f64)>),
}

impl Curve {
    pub(crate) fn hopeless() -> Self {
        Self::Points(vec![(0.0, 1.0), (1.0, 1.0)])
    }

    /// Neyman and Pearson: the best tests reject at the largest losses. `losses` come in falling
    /// order with their P-masses; `lost` is what cannot be excluded beyond them.
    pub(crate) fn of(losses: impl Iterator<Item = (f64, f64)>, lost: f64) -> Self {
        let (mut fpr, mut tpr) = (0.0, lost);
        let mut points = vec![(fpr, tpr)];
        for (loss, mass) in losses {
            fpr += mass * (-loss).exp();
            tpr += mass;
            if mass > 0.0 {
                points.push((fpr.min(1.0), tpr.min(1.0)));
            }
        }
        points.push((1.0, 1.0));
        Self::Points(points)
    }

    /// The μ of this side alone.
    fn mu(&self, least: f64) -> f64 {
        if let Self::Gaussian(mu) = self {
            return *mu;
        }
        // Evenly in the logit, so that both ends are looked at closely. A rate is paired with the
        // next one's true positives: between two rates the curve is above the one and below the
        // other.
        let (points, far) = (20_000, ((1.0 - least) / least).ln());
        let rate =
            |i: i32| 1.0 / (1.0 + (far - 2.0 * far * f64::from(i) / f64::from(points)).exp());
        let gain = |i: i32| {
            let tpr = self.tpr(rate(i + 1));
            (1.0 - tpr >= least).then(|| ndtri(tpr) - ndtri(rate(i)))
        };
        (0..points).filter_map(gain).reduce(f64::max).map_or(f64::INFINITY, |mu| mu.max(0.0))
    }

    fn tpr(&self, fpr: f64) -> f64 {
        match self {
            Self::Gaussian(mu) if *mu == 0.0 => fpr,
            Self::Gaussian(mu) => ndtr(ndtri(fpr) + mu),
            Self::Points(points) => {
                let next = points.partition_point(|p| p.0 < fpr);
                let Some(&(x1, y1)) = points.get(next) else { return 1.0 };
                let Some(&(x0, y0)) = next.checked_sub(1).and_then(|i| points.get(i)) else {
                    return y1;
                };
                if x1 > x0 { y0 + (y1 - y0) * (fpr - x0) / (x1 - x0) } else { y1 }
            }
        }
    }
}

/// The μ of the Gaussian mechanism that has this ε at this δ: a common scale for guarantees stated
/// at different δ.
pub fn gdp_mu_at(epsilon: f64, delta: f64) -> f64 {
    gaussian::mu_at(epsilon, delta)
}

/// The μ of the Gaussian mechanism on whose trade-off curve a test with these rates lies: Φ⁻¹(TPR)
/// − Φ⁻¹(FPR).
pub fn gdp_mu_of(fpr: f64, tpr: f64) -> f64 {
    ndtri(tpr) - ndtri(fpr)
}
