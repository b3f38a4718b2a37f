//! A parabola through noisy losses.

/// A parabola fitted to noisy points, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// b: how steeply the loss falls at 0.
    pub slope: f64,
    /// a: the curvature.
    pub curvature: f64,
    /// The standard deviation of the slope.
    pub slope_deviation: f64,
    /// The standard deviation of the curvature.
    pub curvature_deviation: f64,
}

impl Fit {
    /// Least squares of −b x + a x²/2 to y = L(x) − L(0), for points that come in pairs ±x after 0;
    /// `deviation` is that of each loss.
    ///
    /// For such points Σx³ = 0, so b = −Σxy/Σx² and a = 2Σx²y/Σx⁴. Both are linear in the losses,
    /// L(0) included, which enters every y: sd_b = τ/√Σx², sd_a = 2τ √(Σx⁴ + (Σx²)²)/Σx⁴.
    pub fn new(points: &[f64], losses: &[f64], deviation: f64) -> Self {
        let sum = |f: &dyn Fn(f64, f64) -> f64| {
            points.iter().zip(losses).map(|(&x, &loss)| f(x, loss - losses[0])).sum::<f64>()
        };
        let (s2, s4) = (sum(&|x, _| x * x), sum(&|x, _| x.powi(4)));
        Self {
            slope: -sum(&|x, y| x * y) / s2,
            curvature: 2.0 * sum(&|x, y| x * x * y) / s4,
            slope_deviation: deviation / s2.sqrt(),
            curvature_deviation: 2.0 * deviation * (s4 + s2 * s2).sqrt() / s4,
        }
    }
}
