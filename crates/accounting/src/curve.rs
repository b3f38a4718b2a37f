//! Trade-off curves: bounds on true- and false-positive rates of membership inference.

use crate::gaussian;
use crate::special::{ndtr, ndtri};

/// Upper bound on the true-positive rate of any membership test at each false-positive rate.
///
/// It covers both directions of the neighbour relation.
#[derive(Debug, Clone)]
pub struct TradeOff {
    directions: Vec<Curve>,
}

impl TradeOff {
    pub(crate) fn new(directions: Vec<Curve>) -> Self {
        Self { directions }
    }

    /// The trivial bound: every test may succeed.
    pub(crate) fn no_protection() -> Self {
        Self::new(vec![Curve::no_protection()])
    }

    /// The largest true-positive rate of a test whose false-positive rate is `fpr`.
    pub fn tpr(&self, fpr: f64) -> f64 {
        if !(0.0..=1.0).contains(&fpr) {
            return 1.0;
        }
        self.directions.iter().map(|curve| curve.tpr(fpr)).fold(fpr, f64::max).min(1.0)
    }

    /// The smallest μ-GDP guarantee that holds for tests with error rates of at least `least`.
    ///
    /// No such test does better here than at telling N(μ, 1) from N(0, 1) (Gaussian differential
    /// privacy; Dong, Roth, Su 2019). An upper bound; infinite where no test has such error rates,
    /// or `least` is not between 0 and ½.
    pub fn gdp_mu(&self, least: f64) -> f64 {
        if !(least > 0.0 && least < 0.5) {
            return f64::INFINITY;
        }
        self.directions.iter().map(|curve| curve.mu(least)).fold(0.0, f64::max)
    }
}

/// The trade-off curve of one direction.
#[derive(Debug, Clone)]
pub(crate) enum Curve {
    /// N(μ, 1) against N(0, 1).
    Gaussian(f64),
    /// (false-positive rate, true-positive rate), both increasing, concave.
    Points(Vec<(f64, f64)>),
}

impl Curve {
    pub(crate) fn no_protection() -> Self {
        Self::Points(vec![(0.0, 1.0), (1.0, 1.0)])
    }

    /// The curve of a discrete privacy loss, by the Neyman–Pearson lemma.
    ///
    /// The best tests reject at the largest losses. `losses` come in decreasing order with their
    /// P-masses; `infinite` is the P-mass that may have loss ∞.
    pub(crate) fn of(losses: impl Iterator<Item = (f64, f64)>, infinite: f64) -> Self {
        let (mut fpr, mut tpr) = (0.0, infinite);
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

    /// The μ of this direction alone.
    fn mu(&self, least: f64) -> f64 {
        if let Self::Gaussian(mu) = self {
            return *mu;
        }
        // A uniform grid in the logit resolves both ends. Each rate is paired with the
        // true-positive rate of the next one, an upper bound between the two.
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

/// The μ of the Gaussian mechanism with this ε at this δ, to compare guarantees at different δ.
pub fn gdp_mu_at(epsilon: f64, delta: f64) -> f64 {
    gaussian::mu_at(epsilon, delta)
}

/// The μ of the Gaussian mechanism whose trade-off curve passes through these rates.
///
/// It is Φ⁻¹(TPR) − Φ⁻¹(FPR).
pub fn gdp_mu_of(fpr: f64, tpr: f64) -> f64 {
    ndtri(tpr) - ndtri(fpr)
}
