//! What is proved about DP-Muon, as functions: how good the Newton–Schulz direction is, and how
//! small the gradient must become (Kim and Fan 2026, §3 and Appendix B).
//!
//! Theorem 3.4 bounds (1/T) Σ_t E‖∇f(W_{t−1})‖_* by a sum whose terms have names: what is left to
//! descend, curvature, clipping, noise, stale momentum, and the error of the iteration. Their sizes
//! say which hyperparameter to change. Their sum says little: the bound is loose, and its constants
//! are seldom known.
//!
//! It is about *one* matrix, moved by η times the Newton–Schulz direction with p_κ: no weight
//! decay, no scaling by shape, no bias correction, no quintic. What to know before it is believed:
//!
//! - The paper takes δ_{0,T} for a constant. It is a property of the run, and with Gaussian noise
//!   no constant below 1 is sure: the bound is as good as the guess.
//! - The corollaries let T grow and hold σ fixed, so the privacy loss grows with T. For a fixed
//!   loss σ/B grows like √T/N while Γ_T ≥ 1/√T: the noise term does not vanish unless the number N
//!   of examples grows.
//! - The paper draws B examples independently. Poisson lots divided by their expected size B serve
//!   as well: same mean, same v_C.
//! - What makes no sense is refused, and the refusal names the quantity.

use crate::newton_schulz::Normaliser;
use protocol::{Positive, Refused};
use std::f64::consts::{E, LN_2};
use std::fmt;
use tensor::{Array, linalg};

/// Where the iteration starts: δ_{t,0} = ‖Π − Y Yᵀ‖_op of the normalised momentum Y = 𝒯(M)/α, with
/// Π the projector onto its range (Lemma 3.3).
///
/// Y Yᵀ has the eigenvalues s² in that range, so 1 − δ is the square of the smallest singular value
/// s > 0 of Y. That is what is kept: near δ = 1 it has the digits. Transposing changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// 1 − δ, in [0, 1].
    gap: f64,
}

impl Start {
    /// Of a momentum matrix of `rows()` × `cols()`, to the accuracy of f32; δ = 0 for the zero
    /// matrix.
    ///
    /// A singular value of at most 2⁻²⁴‖M‖_F may come from nothing but rounding the entries to f32,
    /// and counts as 0.
    pub fn of(momentum: &Array, normaliser: Normaliser) -> Result<Self, Refused> {
        if !momentum.data().iter().all(|x| x.is_finite()) {
            return Err(Refused::Query("the momentum: finite numbers expected".into()));
        }
        let norm = momentum.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let alpha = match normaliser {
            Normaliser::Frobenius => norm,
            Normaliser::AtLeastOne => norm.max(1.0),
        };
        let (_, values, _) = linalg::svd(momentum)?;
        let rounding = 0.5 * f64::from(f32::EPSILON) * norm;
        let smallest = values.into_iter().map(f64::from).rfind(|&s| s > rounding);
        Ok(Self { gap: smallest.map_or(1.0, |s| (s / alpha).min(1.0).powi(2)) })
    }

    /// From the smallest singular value s > 0 of the normalised momentum: δ = 1 − s².
    pub fn from_singular_value(s: f64) -> Result<Self, Refused> {
        if s > 0.0 && s <= 1.0 {
            Ok(Self { gap: s * s })
        } else {
            Err(refused("the singular value", "a number in (0, 1]", s))
        }
    }

    /// From δ itself.
    pub fn from_delta(delta: f64) -> Result<Self, Refused> {
        if (0.0..=1.0).contains(&delta) {
            Ok(Self { gap: 1.0 - delta })
        } else {
            Err(refused("δ", "a number in [0, 1]", delta))
        }
    }

    /// δ
    pub fn delta(self) -> f64 {
        1.0 - self.gap
    }

    /// 1 − δ, with all its digits.
    pub fn gap(self) -> f64 {
        self.gap
    }

    /// The worse of two steps: δ_{0,T} is the worst of all.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self { gap: self.gap.min(other.gap) }
    }
}

/// Newton–Schulz with p_κ(λ) = Σ_{s ≤ κ} c_s (1−λ)^s, c_s = (2s)!/(4^s s!²), run q times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    degree: usize,
    steps: usize,
}

impl Iteration {
    /// Of degree κ ≥ 1, with q steps.
    pub fn new(degree: usize, steps: usize) -> Result<Self, Refused> {
        Ok(Self { degree: counted("the degree", degree)?, steps })
    }

    /// With the fewest steps for which the lemma promises ε_q ≤ `error`, a number in (0, 1). From δ
    /// = 1 no number of steps is enough.
    pub fn within(degree: usize, start: Start, error: f64) -> Result<Self, Refused> {
        in_unit("the error ε", error)?;
        let degree = counted("the degree", degree)?;
        // After 1100 steps (κ+1)^q is larger than −1/ln δ for every δ < 1 there is.
        let mut tried = (0..1100).map(|steps| Self { degree, steps });
        tried
            .find(|iteration| iteration.quality(start).epsilon <= error)
            .ok_or_else(|| refused("δ", "a number below 1", start.delta()))
    }

    /// With the fewest steps that take the singular value `from` to `to`, both in (0, 1). The lemma
    /// would ask for more: it does not know how fast small ones grow. Refuses a goal so near 1 that
    /// rounding hides it.
    pub fn between(degree: usize, from: f64, to: f64) -> Result<Self, Refused> {
        in_unit("the singular value", from)?;
        in_unit("the singular value to reach", to)?;
        let once = Self::new(degree, 1)?;
        let steps = once.path(from).position(|s| s >= to);
        Ok(Self {
            steps: steps.ok_or_else(|| {
                refused("the singular value to reach", "less in double precision", to)
            })?,
            ..once
        })
    }

    /// q
    pub fn steps(self) -> usize {
        self.steps
    }

    /// What becomes of a singular value in [0, 1]. It stays there, and the order of several does
    /// not change: d/ds s p_κ(s²) is a multiple of (1−s²)^κ.
    pub fn singular_value(self, s: f64) -> f64 {
        self.path(s).take(self.steps.saturating_add(1)).last().unwrap_or(s)
    }

    /// What Lemma 3.3 promises: ε_q = 1 − √(1 − δ^{(κ+1)^q}).
    pub fn quality(self, start: Start) -> Quality {
        if !(start.gap > 0.0) {
            return Quality { epsilon: 1.0, chi: f64::INFINITY };
        }
        let exponent = (self.degree as f64 + 1.0).powf(self.steps as f64);
        let ln = exponent * (-start.gap).ln_1p();
        // 1 − √(1−x) = x/(1 + √(1−x)): nothing cancels for small x, and 1 − x has its digits for x
        // near 1.
        let root = (-ln.exp_m1()).sqrt();
        Quality { epsilon: ln.exp() / (1.0 + root), chi: 1.0 / root }
    }

    /// What is true: ‖O − Polar(M)‖_op = 1 − s, with s what becomes of the smallest singular value.
    /// Nowhere above [`quality`](Self::quality), and as good in Theorem 3.4, which needs no more of
    /// ε_q than that it bounds this norm.
    pub fn exact_quality(self, start: Start) -> Quality {
        let s = self.singular_value(start.gap.sqrt());
        Quality { epsilon: 1.0 - s, chi: 1.0 / s }
    }

    /// A singular value before the first step, after it, and so on, until rounding stops it.
    fn path(self, s: f64) -> impl Iterator<Item = f64> {
        let step = move |&s: &f64| {
            let (h, mut term, mut p) = ((1.0 - s) * (1.0 + s), 1.0, 1.0);
            for k in 1..=self.degree {
                term *= h * (2 * k - 1) as f64 / (2 * k) as f64;
                p += term;
            }
            Some((s * p).min(1.0)).filter(|&next| next > s)
        };
        std::iter::successors(Some(s), step)
    }
}

/// How near the direction is to the polar factor: ε_q ≥ ‖O − Polar(M)‖_op and χ_q = 1/(1 − ε_q).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    epsilon: f64,
    chi: f64,
}

impl Quality {
    /// ε_q
    pub fn epsilon(self) -> f64 {
        self.epsilon
    }

    /// χ_q, infinite if ε_q = 1.
    pub fn chi(self) -> f64 {
        self.chi
    }
}

/// (Σ_j w_{t,j}²)^{1/2} for the weights w_{t,j} ∝ β^{t−j} of a momentum after t steps (Lemma B.5):
/// what averaging leaves of the noise of one step. The sum is (1−β)/(1+β) · (1+β^t)/(1−β^t) =
/// tanh(h)/tanh(ht) with h = −½ ln β, which has all its digits for β near 1 and near 0.
pub fn weight_norm(momentum: f64, step: u64) -> Result<f64, Refused> {
    let h = half_decay(momentum)?;
    Ok((h.tanh() / (h * counted("the step", step)? as f64).tanh()).sqrt())
}

/// Γ_T(β), the mean of [`weight_norm`] over the steps 1 to T (6). It is at most 1/(T√(1−β)) +
/// 2√(1−β), which gives (8) its constants. The first terms are summed as they are. For the others
/// Euler–Maclaurin is exact in double precision, as ∫ √coth has a closed form; so any T is fast.
pub fn mean_weight_norm(momentum: f64, steps: u64) -> Result<f64, Refused> {
    const SUMMED: u64 = 1024;
    // From here on tanh(h) = 1; an infinite h would only bring ∞ − ∞.
    let h = half_decay(momentum)?.min(100.0);
    let count = counted("the steps", steps)? as f64;
    let height = |x: f64| x.tanh().sqrt().recip();
    let mut sum: f64 = (1..=steps.min(SUMMED)).map(|t| height(h * t as f64)).sum();
    if steps > SUMMED {
        // ∫ √coth = artanh y + arctan y with y = √tanh; the second form of artanh is for y near 1.
        let area = |x: f64| {
            let y = x.tanh().sqrt();
            let artanh = if x < 1.0 {
                y.atanh()
            } else {
                x + y.ln_1p() + 0.5 * ((-2.0 * x).exp().ln_1p() - LN_2)
            };
            artanh + y.atan()
        };
        let slope = |x: f64| 0.5 * (height(x).recip() - height(x).powi(3));
        let (from, to) = (h * (SUMMED as f64 + 0.5), h * (count + 0.5));
        sum += (area(to) - area(from)) / h - h * (slope(to) - slope(from)) / 24.0;
    }
    Ok(h.tanh().sqrt() * sum / count)
}

/// ρ_t: the standard deviation of each entry of the momentum over Σ_{j<t} β^j, when each entry of a
/// gradient has noise ν = σC/B (§4, Lemma C.1).
pub fn momentum_noise(noise: f64, momentum: f64, step: u64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * weight_norm(momentum, step)?)
}

/// ρ_∞ = ν √((1−β)/(1+β)), what [`momentum_noise`] falls to.
pub fn momentum_noise_limit(noise: f64, momentum: f64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * half_decay(momentum)?.tanh().sqrt())
}

/// v_C = C √(1/B + dσ²/B²): the noise of a released gradient of d entries in Frobenius norm, from
/// sampling and from privacy (5).
pub fn gradient_noise(
    clip: f64,
    lot: f64,
    noise_multiplier: f64,
    entries: usize,
) -> Result<f64, Refused> {
    let (clip, lot) = (positive("the clip bound", clip)?, positive("the lot", lot)?);
    let privacy = not_negative("the noise multiplier", noise_multiplier)?
        * (counted("the entries", entries)? as f64).sqrt()
        / lot;
    Ok(clip * lot.sqrt().recip().hypot(privacy))
}

/// What is known about the norm ‖G‖_F of one example's gradient, at every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// E(‖G‖_F − C)₊ itself; 0 if no gradient is ever clipped.
    Excess(f64),
    /// G₂ with E‖G‖_F² ≤ G₂² (9).
    SecondMoment(f64),
    /// K with E exp(‖G‖_F²/K²) ≤ e (12).
    Light(f64),
}

impl Tail {
    /// A bound on the clipping residual 𝔅_T(C) = √r sup_t E(‖G_t‖_F − C)₊ (4) for matrices of rank
    /// r at the most: √r G₂²/C (Corollary B.6), or e √r K²/(2C) e^{−C²/K²} (Corollary B.7).
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

/// What does not depend on the horizon: the matrix, the loss around it, the lots, the noise and the
/// iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// D₀ = f(W₀) − inf f.
    pub descent: f64,
    /// L with ‖∇f(X) − ∇f(Y)‖_* ≤ L ‖X − Y‖_op (Assumption 3.1).
    pub smoothness: f64,
    /// B: what the sum over a lot is divided by.
    pub lot: f64,
    /// σ: the noise has the standard deviation σC/B.
    pub noise_multiplier: f64,
    /// How near the directions are to polar factors, in the worst step.
    pub quality: Quality,
}

impl Problem {
    /// Theorem 3.4. Refused also where the directions may be useless: ε_q = 1.
    pub fn bound(&self, horizon: &Horizon, tail: Tail) -> Result<Stationarity, Refused> {
        let rank = counted("the rows", self.rows)?.min(counted("the columns", self.cols)?);
        let descent = not_negative("the descent D₀", self.descent)?;
        let smoothness = not_negative("the smoothness L", self.smoothness)?;
        if !(self.quality.chi < f64::INFINITY) {
            return Err(refused(
                "the error ε of the iteration",
                "a number below 1",
                self.quality.epsilon,
            ));
        }
        let Horizon { steps, learning_rate, momentum, clip } = *horizon;
        let left = mean_weight_norm(momentum, steps)?;
        let learning_rate = positive("the learning rate", learning_rate)?;
        let noise = gradient_noise(
            clip,
            self.lot,
            self.noise_multiplier,
            self.rows.saturating_mul(self.cols),
        )?;
        Ok(Stationarity {
            optimization: descent / (learning_rate * steps as f64),
            curvature: 0.5 * smoothness * learning_rate,
            clipping: tail.residual(rank, clip)?,
            noise: (rank as f64).sqrt() * noise * left,
            drift: momentum / (1.0 - momentum) * smoothness * learning_rate,
            quality: self.quality,
        })
    }

    /// The bound behind Corollary B.6, O(T^{−1/6}): [`Horizon::second_moment`] in Theorem 3.4, with
    /// E‖G‖_F² ≤ G₂².
    pub fn second_moment_bound(
        &self,
        steps: u64,
        eta0: f64,
        c0: f64,
        g2: f64,
    ) -> Result<Stationarity, Refused> {
        self.bound(&Horizon::second_moment(steps, eta0, c0)?, Tail::SecondMoment(g2))
    }

    /// The bound behind Corollary B.7, O(T^{−1/4} √log T): [`Horizon::light_tail`] in Theorem 3.4,
    /// with E exp(‖G‖_F²/K²) ≤ e.
    pub fn light_tail_bound(&self, steps: u64, eta0: f64, k: f64) -> Result<Stationarity, Refused> {
        self.bound(&Horizon::light_tail(steps, eta0, k)?, Tail::Light(k))
    }
}

/// A number of steps, and what is chosen for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Horizon {
    /// T
    pub steps: u64,
    /// η
    pub learning_rate: f64,
    /// β
    pub momentum: f64,
    /// C
    pub clip: f64,
}

impl Horizon {
    /// η_T = η₀ T^{−5/6}, β_T = 1 − T^{−2/3}, C_T = C₀ T^{1/6} (10).
    pub fn second_moment(steps: u64, eta0: f64, c0: f64) -> Result<Self, Refused> {
        let t = counted("the steps", steps)? as f64;
        let learning_rate = positive("the constant η₀", eta0)? * t.powf(-5.0 / 6.0);
        Ok(Self {
            steps,
            learning_rate,
            momentum: 1.0 - t.powf(-2.0 / 3.0),
            clip: positive("the constant C₀", c0)? * t.powf(1.0 / 6.0),
        })
    }

    /// η_T = η₀ T^{−3/4}, β_T = 1 − T^{−1/2}, C_T = K √(2 log T), for T ≥ 2 (13).
    pub fn light_tail(steps: u64, eta0: f64, k: f64) -> Result<Self, Refused> {
        let t = if steps >= 2 {
            steps as f64
        } else {
            return Err(refused("the steps", "at least 2", steps));
        };
        let learning_rate = positive("the constant η₀", eta0)? * t.powf(-0.75);
        Ok(Self {
            steps,
            learning_rate,
            momentum: 1.0 - t.powf(-0.5),
            clip: positive("the tail scale K", k)? * (2.0 * t.ln()).sqrt(),
        })
    }
}

/// The terms of Theorem 3.4; prints as a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stationarity {
    /// D₀/(ηT): what is left to descend.
    pub optimization: f64,
    /// Lη/2
    pub curvature: f64,
    /// 𝔅_T(C)
    pub clipping: f64,
    /// √r v_C Γ_T(β)
    pub noise: f64,
    /// Lηβ/(1−β): the momentum remembers gradients from elsewhere.
    pub drift: f64,
    /// ε_q and χ_q
    pub quality: Quality,
}

impl Stationarity {
    /// The bound: χ_q [optimization + curvature + (2 − ε_q)(clipping + noise + drift)].
    pub fn total(&self) -> f64 {
        self.terms().iter().map(|(_, _, value, weight)| weight * value).sum()
    }

    /// Name, formula, value and weight.
    fn terms(&self) -> [(&'static str, &'static str, f64, f64); 5] {
        let descent = self.quality.chi;
        let tracking = descent * (2.0 - self.quality.epsilon);
        [
            ("optimization", "D₀/(ηT)", self.optimization, descent),
            ("curvature", "Lη/2", self.curvature, descent),
            ("clipping", "𝔅_T(C)", self.clipping, tracking),
            ("noise", "√r v_C Γ_T(β)", self.noise, tracking),
            ("drift", "Lηβ/(1−β)", self.drift, tracking),
        ]
    }
}

impl fmt::Display for Stationarity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:<15}{:>12}{:>12}{:>12}", "term", "", "value", "weight", "product")?;
        for (name, formula, value, weight) in self.terms() {
            writeln!(
                f,
                "{name:<14}{formula:<15}{value:>12.4e}{weight:>12.4}{:>12.4e}",
                weight * value
            )?;
        }
        write!(
            f,
            "{:<14}ε = {:<11.4e}χ = {:<8.4}{:>24.4e}",
            "total",
            self.quality.epsilon,
            self.quality.chi,
            self.total()
        )
    }
}

/// h = −½ ln β; infinite without momentum.
fn half_decay(momentum: f64) -> Result<f64, Refused> {
    if (0.0..1.0).contains(&momentum) {
        Ok(-0.5 * momentum.ln())
    } else {
        Err(refused("the momentum β", "a number in [0, 1)", momentum))
    }
}

fn positive(what: &'static str, value: f64) -> Result<f64, Refused> {
    Positive::new(what, value).map(Positive::get)
}

// Here and elsewhere: asks for the good case, so that NaN is refused.
fn not_negative(what: &str, value: f64) -> Result<f64, Refused> {
    if (0.0..f64::INFINITY).contains(&value) {
        Ok(value)
    } else {
        Err(refused(what, "a finite number of at least 0", value))
    }
}

fn in_unit(what: &str, value: f64) -> Result<f64, Refused> {
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(refused(what, "a number in (0, 1)", value))
    }
}

fn counted<N: PartialEq + From<u8> + fmt::Display>(what: &str, count: N) -> Result<N, Refused> {
    if count != N::from(0) { Ok(count) } else { Err(refused(what, "at least 1", count)) }
}

fn refused(what: &str, expected: &str, got: impl fmt::Display) -> Refused {
    Refused::Query(format!("{what}: {expected} expected, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::PublicRandom;

    fn close(a: f64, b: f64, tolerance: f64) -> bool {
        (a - b).abs() <= tolerance * b.abs()
    }

    fn normals(seed: u64, count: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; count];
        PublicRandom::from_seed(seed).normals(0, &mut numbers);
        numbers
    }

    /// c_s from its definition.
    fn coefficient(s: u32) -> f64 {
        let factorial = |n: u32| (1..=n).map(f64::from).product::<f64>();
        factorial(2 * s) / (4f64.powi(s as i32) * factorial(s).powi(2))
    }

    #[test]
    fn one_step_contracts() {
        for degree in 1..=4 {
            let once = Iteration::new(degree, 1).unwrap();
            let mut before = -1.0;
            for i in 0..=10_000 {
                let s = f64::from(i) * 1e-4;
                let after = once.singular_value(s);
                let p: f64 = (0..=degree as u32)
                    .map(|k| coefficient(k) * (1.0 - s * s).powi(k as i32))
                    .sum();
                assert!((after - s * p).abs() < 1e-14, "κ = {degree}, s = {s}: {after}");
                assert!((0.0..=1.0).contains(&after));
                assert!(
                    1.0 - after * after <= (1.0 - s * s).powi(degree as i32 + 1) + 1e-14,
                    "κ = {degree}, s = {s}"
                );
                assert!(after >= before - 1e-15, "κ = {degree}: the order changed at {s}");
                before = after;
            }
        }
    }

    #[test]
    fn steps_to_nine_tenths() {
        let table = [[3, 7, 10, 13, 18, 24], [2, 5, 7, 8, 12, 16], [2, 4, 5, 7, 10, 13]];
        for (degree, row) in (1..).zip(table) {
            for (s, steps) in [0.5, 0.1, 0.03, 0.01, 1e-3, 1e-4].into_iter().zip(row) {
                assert_eq!(
                    Iteration::between(degree, s, 0.9).unwrap().steps(),
                    steps,
                    "κ = {degree}, s = {s}"
                );
                // The lemma knows no better.
                assert!(
                    Iteration::within(degree, Start::from_singular_value(s).unwrap(), 0.1)
                        .unwrap()
                        .steps()
                        >= steps
                );
            }
        }
        assert_eq!(Iteration::between(2, 0.95, 0.9).unwrap().steps(), 0);
        // 1.5·0.5 − 0.5·0.5³ = 0.6875, just reached.
        assert_eq!(Iteration::between(1, 0.5, 0.6875).unwrap().steps(), 1);
        assert_eq!(Iteration::between(1, 0.5, 0.6876).unwrap().steps(), 2);
    }

    /// A row-major matrix in f64.
    #[derive(Clone)]
    struct Matrix(usize, usize, Vec<f64>);

    impl Matrix {
        fn times(&self, other: &Self) -> Self {
            let entry = |i: usize, j: usize| {
                (0..self.1).map(|k| self.2[i * self.1 + k] * other.2[k * other.1 + j]).sum()
            };
            Self(
                self.0,
                other.1,
                (0..self.0 * other.1).map(|at| entry(at / other.1, at % other.1)).collect(),
            )
        }
        fn transposed(&self) -> Self {
            Self(
                self.1,
                self.0,
                (0..self.2.len()).map(|at| self.2[at % self.0 * self.1 + at / self.0]).collect(),
            )
        }
        fn plus(&self, factor: f64, other: &Self) -> Self {
            Self(self.0, self.1, self.2.iter().zip(&other.2).map(|(a, b)| a + factor * b).collect())
        }
        fn operator_norm(&self) -> f64 {
            let array =
                Array::new([self.0, self.1], self.2.iter().map(|&x| x as f32).collect()).unwrap();
            f64::from(linalg::svd(&array).unwrap().1[0])
        }
        fn newton_schulz(&self, degree: u32, steps: usize) -> Self {
            let one = Self(
                self.0,
                self.0,
                (0..self.0 * self.0)
                    .map(|at| if at % (self.0 + 1) == 0 { 1.0 } else { 0.0 })
                    .collect(),
            );
            (0..steps).fold(self.clone(), |y, _| {
                let h = one.plus(-1.0, &y.times(&y.transposed()));
                let mut sum = Self(self.0, self.0, vec![0.0; self.0 * self.0]);
                let mut power = one.clone();
                for s in 0..=degree {
                    sum = sum.plus(coefficient(s), &power);
                    power = power.times(&h);
                }
                sum.times(&y)
            })
        }
    }

    #[test]
    fn the_lemma_holds_for_matrices() {
        let random = |seed, m: usize, n: usize, scale: f32| {
            Array::new([m, n], normals(seed, m * n).iter().map(|x| scale * x).collect()).unwrap()
        };
        // Rank 2, in whole numbers.
        let low = Array::from_fn([5, 7], |at| {
            ((at / 7 + 1) * (at % 7 + 2)) as f32 - ((at / 7 % 2) * (at % 7 % 3)) as f32
        });
        let wanted = [
            random(1, 4, 6, 1.0),
            random(2, 7, 4, 1.0),
            random(3, 3, 8, 0.02),
            random(4, 1, 5, 0.3),
            random(5, 5, 5, 1.0),
            low,
        ];
        for m in wanted {
            for normaliser in [Normaliser::Frobenius, Normaliser::AtLeastOne] {
                let start = Start::of(&m, normaliser).unwrap();
                let norm = m.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let alpha = if normaliser == Normaliser::Frobenius { norm } else { norm.max(1.0) };
                let y = Matrix(
                    m.rows(),
                    m.cols(),
                    m.data().iter().map(|&x| f64::from(x) / alpha).collect(),
                );
                let y = if m.rows() > m.cols() { y.transposed() } else { y };
                // Far enough to converge, not so far that rounding grows in the empty directions.
                let polar = y.newton_schulz(3, 14);
                // The projector from the polar factor: δ by its definition.
                let projector = polar.times(&polar.transposed());
                let delta = projector.plus(-1.0, &y.times(&y.transposed())).operator_norm();
                assert!(
                    (start.delta() - delta).abs() < 1e-6,
                    "δ = {}, by its definition {delta}",
                    start.delta()
                );
                for degree in 1..=3 {
                    for steps in 0..=6 {
                        let error =
                            y.newton_schulz(degree, steps).plus(-1.0, &polar).operator_norm();
                        let iteration = Iteration::new(degree as usize, steps).unwrap();
                        let (bound, exact) =
                            (iteration.quality(start), iteration.exact_quality(start));
                        assert!(
                            error <= bound.epsilon() + 1e-6,
                            "κ = {degree}, q = {steps}: {error} > {}",
                            bound.epsilon()
                        );
                        assert!(
                            (error - exact.epsilon()).abs() < 1e-5,
                            "κ = {degree}, q = {steps}: {error}, not {}",
                            exact.epsilon()
                        );
                        assert!(exact.epsilon() <= bound.epsilon() + 1e-14);
                        assert!(exact.chi() <= bound.chi() * (1.0 + 1e-14));
                        assert!(
                            steps > 0 || (error - bound.epsilon()).abs() < 1e-6,
                            "without steps the lemma is an equation"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn starts() {
        let delta = |shape: [usize; 2], data: &[f32], normaliser| {
            Start::of(&Array::new(shape, data.to_vec()).unwrap(), normaliser).unwrap().delta()
        };
        for normaliser in [Normaliser::Frobenius, Normaliser::AtLeastOne] {
            assert_eq!(delta([2, 3], &[0.0; 6], normaliser), 0.0);
            assert_eq!(delta([0, 3], &[], normaliser), 0.0);
            // One singular value, equal to the norm.
            assert!(delta([1, 2], &[3.0, 4.0], normaliser) < 1e-6);
            assert!(close(
                delta([2, 2], &[3.0, 0.0, 0.0, 4.0], normaliser),
                1.0 - 9.0 / 25.0,
                1e-6
            ));
        }
        assert!(close(delta([1, 1], &[0.5], Normaliser::AtLeastOne), 0.75, 1e-6));
        assert_eq!(delta([1, 1], &[0.5], Normaliser::Frobenius), 0.0);
        // Rank 1 up to rounding.
        let (u, v) = (normals(6, 20), normals(7, 30));
        let outer = Array::from_fn([20, 30], |at| u[at / 30] * v[at % 30]);
        assert!(Start::of(&outer, Normaliser::Frobenius).unwrap().delta() < 1e-6);
        let [good, bad] = [0.1, 0.9].map(|delta| Start::from_delta(delta).unwrap());
        assert_eq!([good.worst(bad), bad.worst(good)], [bad; 2]);
    }

    #[test]
    fn quality_keeps_its_digits() {
        let quality = |degree, steps, start| Iteration::new(degree, steps).unwrap().quality(start);
        let delta = |delta| Start::from_delta(delta).unwrap();
        for d in [0.1, 0.5, 0.9] {
            for (degree, steps) in [(1, 0), (1, 2), (2, 1), (3, 1)] {
                let got = quality(degree, steps, delta(d));
                let epsilon = 1.0 - (1.0 - d.powi((degree as i32 + 1).pow(steps as u32))).sqrt();
                assert!((got.epsilon() - epsilon).abs() < 1e-15, "{} {epsilon}", got.epsilon());
                assert!(close(got.chi(), 1.0 / (1.0 - epsilon), 1e-14));
            }
        }
        // δ^N = 1e-24: ε = δ^N/2, and 1 − √(1 − δ^N) would be 0.
        assert!(close(quality(1, 3, delta(1e-3)).epsilon(), 0.5e-24, 1e-12));
        // 1 − δ = 1e-18: 1 − δ^N = 243e-18, and δ itself would be 1.
        let near = Start::from_singular_value(1e-9).unwrap();
        assert_eq!(near.delta(), 1.0);
        assert!(close(near.gap(), 1e-18, 1e-15));
        assert!(close(quality(2, 5, near).chi(), (243e-18f64).sqrt().recip(), 1e-12));
        let perfect = Quality { epsilon: 0.0, chi: 1.0 };
        for q in [
            quality(1, 40, delta(0.5)),
            quality(7, usize::MAX, near),
            quality(1, 0, delta(0.0)),
            quality(3, usize::MAX, delta(0.0)),
        ] {
            assert_eq!(q, perfect);
        }
        for steps in [0, 5, usize::MAX] {
            assert_eq!(quality(2, steps, delta(1.0)), Quality { epsilon: 1.0, chi: f64::INFINITY });
        }
        assert_eq!(Iteration::new(2, usize::MAX).unwrap().exact_quality(near), perfect);
    }

    #[test]
    fn as_few_steps_as_promised() {
        for degree in 1..=4 {
            for gap in [0.9, 0.3, 1e-2, 1e-6, 1e-18, 1e-300] {
                let start = Start { gap };
                let mut before = 0;
                for error in [0.9, 0.5, 1e-3, 1e-12] {
                    let found = Iteration::within(degree, start, error).unwrap();
                    assert!(found.quality(start).epsilon() <= error);
                    assert!(
                        found.steps() == 0
                            || Iteration::new(degree, found.steps() - 1)
                                .unwrap()
                                .quality(start)
                                .epsilon()
                                > error
                    );
                    assert!(found.steps() >= before);
                    before = found.steps();
                }
            }
        }
    }

    #[test]
    fn the_mean_weight_norm_is_the_double_sum() {
        let brute = |beta: f64, steps: u64| {
            let (mut sum, mut squares, mut total, mut lost) = (0.0, 0.0, 0.0, 0.0);
            for _ in 0..steps {
                // At each step every weight β^{t−j} gains a factor β, and a 1 comes in.
                (sum, squares) = (beta * sum + 1.0, beta * (beta * squares) + 1.0);
                // Kahan's sum: millions of roundings would be seen.
                let term = f64::sqrt(squares) / sum - lost;
                let next: f64 = total + term;
                (lost, total) = (next - total - term, next);
            }
            total / steps as f64
        };
        for beta in [
            0.0,
            1e-300,
            1e-3,
            0.3,
            0.5,
            0.9,
            0.95,
            0.999,
            1.0 - 1e-6,
            1.0 - 1e-12,
            1.0 - f64::EPSILON / 2.0,
        ] {
            for steps in [1, 2, 3, 10, 100, 400] {
                let weights =
                    |t: u64| (1..=t).map(|j| beta.powi((t - j) as i32)).collect::<Vec<_>>();
                let norm = |w: Vec<f64>| {
                    w.iter().map(|w| w * w).sum::<f64>().sqrt() / w.iter().sum::<f64>()
                };
                let double = (1..=steps).map(|t| norm(weights(t))).sum::<f64>() / steps as f64;
                assert!(
                    close(mean_weight_norm(beta, steps).unwrap(), double, 1e-12),
                    "β = {beta}, T = {steps}"
                );
                assert!(
                    close(weight_norm(beta, steps).unwrap(), norm(weights(steps)), 1e-12),
                    "β = {beta}, t = {steps}"
                );
            }
            for steps in [1023, 1024, 1025, 1100, 5000, 100_000, 3_000_000] {
                let (got, expected) = (mean_weight_norm(beta, steps).unwrap(), brute(beta, steps));
                assert!(close(got, expected, 2e-12), "β = {beta}, T = {steps}: {got} {expected}");
            }
            for steps in [1, 10, 1000, 1_000_000, 1 << 40, u64::MAX] {
                let (got, t, root) =
                    (mean_weight_norm(beta, steps).unwrap(), steps as f64, (1.0 - beta).sqrt());
                assert!(got <= 1.0 / (t * root) + 2.0 * root, "(8): β = {beta}, T = {steps}");
                assert!(
                    got >= 1.0 / t.sqrt() * (1.0 - 1e-14)
                        && got >= (root / (1.0 + beta).sqrt()) * (1.0 - 1e-14)
                );
            }
        }
        assert_eq!(mean_weight_norm(0.0, 5000).unwrap(), 1.0);
    }

    #[test]
    fn the_noise_of_the_momentum() {
        let (nu, beta) = (0.7, 0.9);
        let (mut variance, mut sum) = (0.0, 0.0);
        // 40 000 entries with noise of variance ν², through the recursion. Their mean square has a
        // relative standard deviation of √(2/40000) = 0.0071; 4.9 of them are exceeded once in a
        // million, five times here.
        let (entries, mut buffer) = (40_000, vec![0.0; 40_000]);
        for t in 1..=60u64 {
            variance = beta * beta * variance + nu * nu;
            sum = beta * sum + 1.0;
            let expected = variance / (sum * sum);
            let rho = momentum_noise(nu, beta, t).unwrap();
            assert!(close(rho * rho, expected, 1e-12), "t = {t}");
            buffer
                .iter_mut()
                .zip(normals(100 + t, entries))
                .for_each(|(m, z): (&mut f64, f32)| *m = beta * *m + nu * f64::from(z));
            if [1, 2, 5, 20, 60].contains(&t) {
                let square = buffer.iter().map(|m| (m / sum).powi(2)).sum::<f64>() / entries as f64;
                assert!(close(square, rho * rho, 4.9 * 0.0071), "t = {t}: {square}");
            }
            assert!(rho >= momentum_noise_limit(nu, beta).unwrap());
        }
        assert!(close(
            momentum_noise(nu, beta, 2000).unwrap(),
            momentum_noise_limit(nu, beta).unwrap(),
            1e-14
        ));
        assert!(close(momentum_noise_limit(nu, beta).unwrap(), nu * (0.1f64 / 1.9).sqrt(), 1e-12));
        for t in [1, 2, u64::MAX] {
            assert_eq!(momentum_noise(nu, 0.0, t).unwrap(), nu);
        }
    }

    #[test]
    fn the_noise_of_a_gradient() {
        // 0.1² (1/1024 + 35·4/1024²)
        assert!(close(
            gradient_noise(0.1, 1024.0, 2.0, 35).unwrap().powi(2),
            0.01 * (1.0 / 1024.0 + 140.0 / 1_048_576.0),
            1e-12
        ));
        assert!(close(gradient_noise(3.0, 4.0, 0.0, 35).unwrap(), 1.5, 1e-15));
    }

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
            let second = Tail::SecondMoment(s).residual(9, clip).unwrap();
            let light = Tail::Light(k).residual(9, clip).unwrap();
            assert!(3.0 * excess <= second && 3.0 * excess <= light, "C = {clip}");
            assert!(close(second, 3.0 * s * s / clip, 1e-14));
            // The light tail is the first term of an alternating series for e ∫_C^∞ exp(−u²/K²) du.
            let tail = 3.0 * E * integral(clip, clip + 20.0, |u| (-(u / k).powi(2)).exp());
            assert!(
                tail <= light && tail >= light * (1.0 - 0.5 * (k / clip).powi(2)),
                "C = {clip}: {tail} {light}"
            );
        }
        assert_eq!(Tail::Excess(0.25).residual(4, 7.0).unwrap(), 0.5);
        assert_eq!(Tail::Light(1e-200).residual(1, 1e200).unwrap(), 0.0);
        assert_eq!(Tail::Light(1e200).residual(1, 1e-200).unwrap(), f64::INFINITY);
    }

    fn problem() -> Problem {
        let quality = Iteration::new(2, 3).unwrap().quality(Start::from_delta(0.95).unwrap());
        Problem {
            rows: 6,
            cols: 4,
            descent: 2.0,
            smoothness: 3.0,
            lot: 64.0,
            noise_multiplier: 1.5,
            quality,
        }
    }

    const HORIZON: Horizon = Horizon { steps: 500, learning_rate: 0.01, momentum: 0.9, clip: 0.5 };

    #[test]
    fn the_theorem_term_by_term() {
        let bound = problem().bound(&HORIZON, Tail::SecondMoment(0.8)).unwrap();
        let v = 0.5 * (1.0 / 64.0 + 24.0 * 2.25 / 4096.0f64).sqrt();
        let gamma = (1..=500)
            .map(|t| (0.1 / 1.9 * (1.0 + 0.9f64.powi(t)) / (1.0 - 0.9f64.powi(t))).sqrt())
            .sum::<f64>()
            / 500.0;
        let epsilon = 1.0 - (1.0 - 0.95f64.powi(27)).sqrt();
        let expected = [2.0 / 5.0, 0.015, 2.0 * 0.64 / 0.5, 2.0 * v * gamma, 3.0 * 0.01 * 9.0];
        let got = [bound.optimization, bound.curvature, bound.clipping, bound.noise, bound.drift];
        for (got, expected) in got.into_iter().zip(expected) {
            assert!(close(got, expected, 1e-12), "{got} {expected}");
        }
        let [a, b, c, d, e] = expected;
        assert!(close(
            bound.total(),
            (a + b + (2.0 - epsilon) * (c + d + e)) / (1.0 - epsilon),
            1e-12
        ));
        let plain = Problem { quality: Quality { epsilon: 0.0, chi: 1.0 }, ..problem() };
        assert!(close(
            plain.bound(&HORIZON, Tail::SecondMoment(0.8)).unwrap().total(),
            a + b + 2.0 * (c + d + e),
            1e-12
        ));
        // The number of rows and columns enters by r and d alone.
        assert_eq!(
            Problem { rows: 4, cols: 6, ..problem() }
                .bound(&HORIZON, Tail::SecondMoment(0.8))
                .unwrap(),
            bound
        );
    }

    #[test]
    fn the_table() {
        let quality = Quality { epsilon: 0.5, chi: 2.0 };
        let bound = Stationarity {
            optimization: 1.0,
            curvature: 0.5,
            clipping: 0.25,
            noise: 4.0,
            drift: 0.0,
            quality,
        };
        assert_eq!(bound.total(), 15.75);
        let expected = "\
term                                value      weight     product
optimization  D₀/(ηT)            1.0000e0      2.0000    2.0000e0
curvature     Lη/2              5.0000e-1      2.0000    1.0000e0
clipping      𝔅_T(C)            2.5000e-1      3.0000   7.5000e-1
noise         √r v_C Γ_T(β)      4.0000e0      3.0000    1.2000e1
drift         Lηβ/(1−β)          0.0000e0      3.0000    0.0000e0
total         ε = 5.0000e-1  χ = 2.0000                  1.5750e1";
        assert_eq!(bound.to_string(), expected);
    }

    #[test]
    fn more_of_a_bad_thing_is_worse() {
        let total = |problem: Problem, horizon: Horizon, tail| {
            problem.bound(&horizon, tail).unwrap().total()
        };
        let tail = Tail::SecondMoment(0.8);
        let base = total(problem(), HORIZON, tail);
        let worse = [
            Problem { descent: 2.1, ..problem() },
            Problem { smoothness: 3.1, ..problem() },
            Problem { lot: 63.0, ..problem() },
            Problem { noise_multiplier: 1.6, ..problem() },
            Problem { rows: 7, ..problem() },
            Problem { cols: 5, ..problem() },
            Problem {
                quality: Iteration::new(2, 2).unwrap().quality(Start::from_delta(0.95).unwrap()),
                ..problem()
            },
            Problem {
                quality: Iteration::new(1, 3).unwrap().quality(Start::from_delta(0.95).unwrap()),
                ..problem()
            },
            Problem {
                quality: Iteration::new(2, 3).unwrap().quality(Start::from_delta(0.96).unwrap()),
                ..problem()
            },
        ];
        for problem in worse {
            assert!(total(problem, HORIZON, tail) > base, "{problem:?}");
        }
        assert!(total(problem(), Horizon { steps: 499, ..HORIZON }, tail) > base);
        assert!(total(problem(), HORIZON, Tail::SecondMoment(0.81)) > base);
        let terms = |horizon: Horizon| problem().bound(&horizon, Tail::Light(0.8)).unwrap();
        let (slow, fast) = (terms(Horizon { momentum: 0.95, ..HORIZON }), terms(HORIZON));
        assert!(slow.noise < fast.noise && slow.drift > fast.drift);
        let (wide, narrow) = (terms(Horizon { clip: 0.6, ..HORIZON }), terms(HORIZON));
        assert!(wide.noise > narrow.noise && wide.clipping < narrow.clipping);
        assert_eq!(terms(Horizon { momentum: 0.0, ..HORIZON }).drift, 0.0);
    }

    #[test]
    fn the_schedules() {
        let got = Horizon::second_moment(1_000_000, 2.0, 3.0).unwrap();
        assert_eq!(got.steps, 1_000_000);
        assert!(
            close(got.learning_rate, 2e-5, 1e-12)
                && close(1.0 - got.momentum, 1e-4, 1e-10)
                && close(got.clip, 30.0, 1e-12)
        );
        assert_eq!(
            Horizon::second_moment(1, 2.0, 3.0).unwrap(),
            Horizon { steps: 1, learning_rate: 2.0, momentum: 0.0, clip: 3.0 }
        );
        let got = Horizon::light_tail(10_000, 2.0, 3.0).unwrap();
        assert!(close(got.learning_rate, 2e-3, 1e-12) && close(1.0 - got.momentum, 1e-2, 1e-12));
        assert!(close(got.clip, 3.0 * (8.0 * 10f64.ln()).sqrt(), 1e-12));
    }

    #[test]
    fn the_rates() {
        let (problem, eta0, c0, g2, k) = (problem(), 0.3, 0.7, 0.8, 0.9);
        let root = (1.0 / 64.0 + 24.0 * 2.25 / 4096.0f64).sqrt();
        let (epsilon, chi) = (problem.quality.epsilon(), problem.quality.chi());
        // Where T^{1/6} times the bound goes: Γ_T T^{1/3} → 1/√2, and the curvature vanishes.
        let limit = chi
            * (2.0 / eta0
                + (2.0 - epsilon)
                    * (2.0 * g2 * g2 / c0 + 2.0 * c0 * root / 2f64.sqrt() + 3.0 * eta0));
        let scaled = |e: u32| {
            problem.second_moment_bound(10u64.pow(e), eta0, c0, g2).unwrap().total()
                * 10f64.powf(f64::from(e) / 6.0)
        };
        let away = |e| (scaled(e) / limit - 1.0).abs();
        assert!((0..=19).all(|e| scaled(e) < 2.0 * limit));
        assert!(
            (3..15).all(|e| away(e + 1) < away(e)),
            "{:?}",
            (3..=15).map(away).collect::<Vec<_>>()
        );
        // Later on 1 − β_T has fewer digits.
        assert!(
            away(15) < 1e-6 && (16..=19).all(|e| away(e) < 1e-4),
            "{:?}",
            (15..=19).map(away).collect::<Vec<_>>()
        );
        // T^{1/4} times the bound, split into the noise, which has the √log T, and the rest.
        let noise = chi * (2.0 - epsilon) * 2.0 * k * 2f64.sqrt() * root / 2f64.sqrt();
        let rest = chi * (2.0 / eta0 + (2.0 - epsilon) * 3.0 * eta0);
        for e in 1..=19 {
            let (t, bound) =
                (10f64.powi(e as i32), problem.light_tail_bound(10u64.pow(e), eta0, k).unwrap());
            let (scale, log) = (t.powf(0.25), t.ln().sqrt());
            assert!(bound.total() * scale / log < 2.0 * (noise + rest), "T = {t}");
            if e >= 16 {
                let weighted = chi * (2.0 - epsilon) * bound.noise;
                assert!(close(weighted * scale / log, noise, 1e-3), "T = {t}");
                assert!(close((bound.total() - weighted) * scale, rest, 1e-3), "T = {t}");
                assert!(bound.clipping * t < 1e-10);
            }
        }
    }

    #[test]
    fn invalid_queries_are_refused() {
        let says = |result: Result<f64, Refused>, what: &str| match result {
            Err(Refused::Query(message)) => {
                assert!(message.starts_with(what), "{message}: not about {what}")
            }
            other => panic!("{what}: {other:?}"),
        };
        let bound = |problem: Problem, horizon: Horizon, tail| {
            problem.bound(&horizon, tail).map(|b| b.total())
        };
        let (p, good) = (problem(), Tail::SecondMoment(1.0));
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            says(bound(Problem { descent: bad, ..p }, HORIZON, good), "the descent");
            says(bound(Problem { smoothness: bad, ..p }, HORIZON, good), "the smoothness");
            says(
                bound(Problem { noise_multiplier: bad, ..p }, HORIZON, good),
                "the noise multiplier",
            );
            says(bound(p, HORIZON, Tail::Excess(bad)), "the excess");
            says(momentum_noise(bad, 0.9, 3), "the noise");
            says(momentum_noise_limit(bad, 0.9), "the noise");
            says(Start::from_delta(bad).map(Start::delta), "δ");
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            says(bound(Problem { lot: bad, ..p }, HORIZON, good), "the lot");
            says(bound(p, Horizon { learning_rate: bad, ..HORIZON }, good), "the learning rate");
            says(bound(p, Horizon { clip: bad, ..HORIZON }, good), "the clip bound");
            says(bound(p, HORIZON, Tail::SecondMoment(bad)), "the root mean square G₂");
            says(bound(p, HORIZON, Tail::Light(bad)), "the tail scale K");
            says(Horizon::second_moment(10, bad, 1.0).map(|h| h.clip), "the constant η₀");
            says(Horizon::second_moment(10, 1.0, bad).map(|h| h.clip), "the constant C₀");
            says(Horizon::light_tail(10, bad, 1.0).map(|h| h.clip), "the constant η₀");
            says(Horizon::light_tail(10, 1.0, bad).map(|h| h.clip), "the tail scale K");
            says(Start::from_singular_value(bad).map(Start::delta), "the singular value");
        }
        for bad in [-0.1, 1.0, 1.1, f64::NAN, f64::INFINITY] {
            says(bound(p, Horizon { momentum: bad, ..HORIZON }, good), "the momentum");
            says(weight_norm(bad, 3), "the momentum");
            says(momentum_noise_limit(1.0, bad), "the momentum");
            says(
                Iteration::within(2, Start { gap: 0.5 }, bad).map(|i| i.steps as f64),
                "the error",
            );
            says(Iteration::between(2, bad, 0.9).map(|i| i.steps as f64), "the singular value");
            says(
                Iteration::between(2, 0.5, bad).map(|i| i.steps as f64),
                "the singular value to reach",
            );
        }
        says(bound(Problem { rows: 0, ..p }, HORIZON, good), "the rows");
        says(bound(Problem { cols: 0, ..p }, HORIZON, good), "the columns");
        says(bound(p, Horizon { steps: 0, ..HORIZON }, good), "the steps");
        says(Horizon::light_tail(1, 1.0, 1.0).map(|h| h.clip), "the steps");
        says(momentum_noise(1.0, 0.9, 0), "the step");
        says(gradient_noise(1.0, 1.0, 1.0, 0), "the entries");
        says(good.residual(0, 1.0), "the rank");
        says(Iteration::new(0, 3).map(|i| i.steps as f64), "the degree");
        says(Iteration::within(0, Start { gap: 0.5 }, 0.5).map(|i| i.steps as f64), "the degree");
        // No number of steps is enough where nothing is known.
        let hopeless = Start::from_delta(1.0).unwrap();
        says(Iteration::within(2, hopeless, 0.5).map(|i| i.steps as f64), "δ");
        says(
            bound(
                Problem { quality: Iteration::new(2, 9).unwrap().quality(hopeless), ..p },
                HORIZON,
                good,
            ),
            "the error",
        );
        for bad in [f32::NAN, f32::INFINITY] {
            says(
                Start::of(&Array::new([1, 2], vec![1.0, bad]).unwrap(), Normaliser::Frobenius)
                    .map(Start::delta),
                "the momentum",
            );
        }
    }
}
