//! What is proved about DP-Muon, as functions: how good the Newton–Schulz direction is, and how small the gradient must become (Kim and Fan 2026, §3 and
//! Appendix B).
//!
//! Theorem 3.4 bounds (1/T) Σ_t E‖∇f(W_{t−1})‖_* by a sum whose terms have names: what is left to descend, curvature, clipping, noise, stale momentum, and
//! the error of the iteration. Their sizes say which hyperparameter to change. Their sum says little: the bound is loose, and its constants are seldom known.
//!
//! It is about *one* matrix, moved by η times the Newton–Schulz direction with p_κ: no weight decay, no scaling by shape, no bias correction, no quintic.
//! What to know before it is believed:
//!
//! - δ_{0,T} is a property of the run. With Gaussian noise no number below 1 bounds it surely, so the theorem holds where the given one does.
//! - The corollaries let T grow and hold σ fixed, so the privacy loss grows with T. For a fixed loss σ grows like √T, and the bound does not vanish
//!   unless the lots grow too.
//! - The paper draws B examples independently. Poisson lots divided by their expected size B serve as well: the mean is the same, the variance no larger.
//! - What makes no sense is refused, and the refusal names the quantity.

use crate::newton_schulz::Normaliser;
use protocol::{Positive, Refused};
use std::f64::consts::{E, LN_2};
use std::fmt;
use tensor::{Array, linalg};

/// Where the iteration starts: δ_{t,0} = ‖Π − Y Yᵀ‖_op of the normalised momentum Y = 𝒯(M)/α, with Π the projector onto its range (Lemma 3.3).
///
/// Y Yᵀ has the eigenvalues s² in that range, so 1 − δ is the square of the smallest singular value s > 0 of Y. That is what is kept: near δ = 1 it has the
/// digits. Transposing changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// 1 − δ, in [0, 1].
    gap: f64,
}

impl Start {
    /// Of a momentum matrix of `rows()` × `cols()`, to the accuracy of f32; δ = 0 for the zero matrix.
    ///
    /// A singular value of at most 2⁻²⁴‖M‖_F may come from nothing but rounding the entries to f32, and counts as 0.
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
        if s > 0.0 && s <= 1.0 { Ok(Self { gap: s * s }) } else { Err(refused("the singular value", "a number in (0, 1]", s)) }
    }

    /// From δ itself.
    pub fn from_delta(delta: f64) -> Result<Self, Refused> {
        if (0.0..=1.0).contains(&delta) { Ok(Self { gap: 1.0 - delta }) } else { Err(refused("δ", "a number in [0, 1]", delta)) }
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

    /// With the fewest steps for which the lemma promises ε_q ≤ `error`, a number in (0, 1). From δ = 1 no number of steps is enough.
    pub fn within(degree: usize, start: Start, error: f64) -> Result<Self, Refused> {
        in_unit("the error ε", error)?;
        let degree = counted("the degree", degree)?;
        // After 1100 steps (κ+1)^q is larger than −1/ln δ for every δ < 1 there is.
        let mut tried = (0..1100).map(|steps| Self { degree, steps });
        tried.find(|iteration| iteration.quality(start).epsilon <= error).ok_or_else(|| refused("δ", "a number below 1", start.delta()))
    }

    /// With the fewest steps that take the singular value `from` to `to`, both in (0, 1). The lemma would ask for more: it does not know how fast small ones
    /// grow. Refuses a goal so near 1 that rounding hides it.
    pub fn between(degree: usize, from: f64, to: f64) -> Result<Self, Refused> {
        in_unit("the singular value", from)?;
        in_unit("the singular value to reach", to)?;
        let once = Self::new(degree, 1)?;
        let steps = once.path(from).position(|s| s >= to);
        Ok(Self { steps: steps.ok_or_else(|| refused("the singular value to reach", "less in double precision", to))?, ..once })
    }

    /// q
    pub fn steps(self) -> usize {
        self.steps
    }

    /// What becomes of a singular value in [0, 1]. It stays there, and the order of several does not change: d/ds s p_κ(s²) is a multiple of (1−s²)^κ.
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
        // 1 − √(1−x) = x/(1 + √(1−x)): nothing cancels for small x, and 1 − x has its digits for x near 1.
        let root = (-ln.exp_m1()).sqrt();
        Quality { epsilon: ln.exp() / (1.0 + root), chi: 1.0 / root }
    }

    /// What is true: ‖O − Polar(M)‖_op = 1 − s, with s what becomes of the smallest singular value. Nowhere above [`quality`](Self::quality), and as good in
    /// Theorem 3.4, which needs no more of ε_q than that it bounds this norm.
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

/// (Σ_j w_{t,j}²)^{1/2} for the weights w_{t,j} ∝ β^{t−j} of a momentum after t steps (Lemma B.5): what averaging leaves of the noise of one step.
/// The sum is (1−β)/(1+β) · (1+β^t)/(1−β^t) = tanh(h)/tanh(ht) with h = −½ ln β, which has all its digits for β near 1 and near 0.
pub fn weight_norm(momentum: f64, step: u64) -> Result<f64, Refused> {
    let h = half_decay(momentum)?;
    Ok((h.tanh() / (h * counted("the step", step)? as f64).tanh()).sqrt())
}

/// Γ_T(β), the mean of [`weight_norm`] over the steps 1 to T (6). It is at most 1/(T√(1−β)) + 2√(1−β), which gives (8) its constants.
/// The first terms are summed as they are. For the others Euler–Maclaurin is exact in double precision, as ∫ √coth has a closed form; so any T is fast.
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
            let artanh = if x < 1.0 { y.atanh() } else { x + y.ln_1p() + 0.5 * ((-2.0 * x).exp().ln_1p() - LN_2) };
            artanh + y.atan()
        };
        let slope = |x: f64| 0.5 * (height(x).recip() - height(x).powi(3));
        let (from, to) = (h * (SUMMED as f64 + 0.5), h * (count + 0.5));
        sum += (area(to) - area(from)) / h - h * (slope(to) - slope(from)) / 24.0;
    }
    Ok(h.tanh().sqrt() * sum / count)
}

/// ρ_t: the standard deviation of each entry of the momentum over Σ_{j<t} β^j, when each entry of a gradient has noise ν = σC/B (§4, Lemma C.1).
pub fn momentum_noise(noise: f64, momentum: f64, step: u64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * weight_norm(momentum, step)?)
}

/// ρ_∞ = ν √((1−β)/(1+β)), what [`momentum_noise`] falls to.
pub fn momentum_noise_limit(noise: f64, momentum: f64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * half_decay(momentum)?.tanh().sqrt())
}

/// v_C = C √(1/B + dσ²/B²): the noise of a released gradient of d entries in Frobenius norm, from sampling and from privacy (5).
pub fn gradient_noise(clip: f64, lot: f64, noise_multiplier: f64, entries: usize) -> Result<f64, Refused> {
    let (clip, lot) = (positive("the clip bound", clip)?, positive("the lot", lot)?);
    let privacy = not_negative("the noise multiplier", noise_multiplier)? * (counted("the entries", entries)? as f64).sqrt() / lot;
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
    /// A bound on the clipping residual 𝔅_T(C) = √r sup_t E(‖G_t‖_F − C)₊ (4) for matrices of rank r at the most: √r G₂²/C (Corollary B.6), or
    /// e √r K²/(2C) e^{−C²/K²} (Corollary B.7).
    pub fn residual(self, rank: usize, clip: f64) -> Result<f64, Refused> {
        let root = (counted("the rank", rank)? as f64).sqrt();
        let clip = positive("the clip bound", clip)?;
        let excess = match self {
            Self::Excess(excess) => not_negative("the excess over the clip bound", excess)?,
            Self::SecondMoment(g2) => positive("the root mean square G₂", g2)? / clip * g2,
            Self::Light(k) => 0.5 * E * (positive("the tail scale K", k)? / clip * k) * (-(clip / k).powi(2)).exp(),
        };
        Ok(root * excess)
    }
}

/// What does not depend on the horizon: the matrix, the loss around it, the lots, the noise and the iteration.
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
            return Err(refused("the error ε of the iteration", "a number below 1", self.quality.epsilon));
        }
        let Horizon { steps, learning_rate, momentum, clip } = *horizon;
        let left = mean_weight_norm(momentum, steps)?;
        let learning_rate = positive("the learning rate", learning_rate)?;
        let noise = gradient_noise(clip, self.lot, self.noise_multiplier, self.rows.saturating_mul(self.cols))?;
        Ok(Stationarity {
            optimization: descent / (learning_rate * steps as f64),
            curvature: 0.5 * smoothness * learning_rate,
            clipping: tail.residual(rank, clip)?,
            noise: (rank as f64).sqrt() * noise * left,
            drift: momentum / (1.0 - momentum) * smoothness * learning_rate,
            quality: self.quality,
        })
    }

    /// The bound behind Corollary B.6, O(T^{−1/6}): [`Horizon::second_moment`] in Theorem 3.4, with E‖G‖_F² ≤ G₂².
    pub fn second_moment_bound(&self, steps: u64, eta0: f64, c0: f64, g2: f64) -> Result<Stationarity, Refused> {
        self.bound(&Horizon::second_moment(steps, eta0, c0)?, Tail::SecondMoment(g2))
    }

    /// The bound behind Corollary B.7, O(T^{−1/4} √log T): [`Horizon::light_tail`] in Theorem 3.4, with E exp(‖G‖_F²/K²) ≤ e.
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
        Ok(Self { steps, learning_rate, momentum: 1.0 - t.powf(-2.0 / 3.0), clip: positive("the constant C₀", c0)? * t.powf(1.0 / 6.0) })
    }

    /// η_T = η₀ T^{−3/4}, β_T = 1 − T^{−1/2}, C_T = K √(2 log T), for T ≥ 2 (13).
    pub fn light_tail(steps: u64, eta0: f64, k: f64) -> Result<Self, Refused> {
        let t = if steps >= 2 { steps as f64 } else { return Err(refused("the steps", "at least 2", steps)) };
        let learning_rate = positive("the constant η₀", eta0)? * t.powf(-0.75);
        Ok(Self { steps, learning_rate, momentum: 1.0 - t.powf(-0.5), clip: positive("the tail scale K", k)? * (2.0 * t.ln()).sqrt() })
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
            writeln!(f, "{name:<14}{formula:<15}{value:>12.4e}{weight:>12.4}{:>12.4e}", weight * value)?;
        }
        write!(f, "{:<14}ε = {:<11.4e}χ = {:<8.4}{:>24.4e}", "total", self.quality.epsilon, self.quality.chi, self.total())
    }
}

/// h = −½ ln β; infinite without momentum.
fn half_decay(momentum: f64) -> Result<f64, Refused> {
    if (0.0..1.0).contains(&momentum) { Ok(-0.5 * momentum.ln()) } else { Err(refused("the momentum β", "a number in [0, 1)", momentum)) }
}

fn positive(what: &'static str, value: f64) -> Result<f64, Refused> {
    Positive::new(what, value).map(Positive::get)
}

// Here and elsewhere: asks for the good case, so that NaN is refused.
fn not_negative(what: &str, value: f64) -> Result<f64, Refused> {
    if (0.0..f64::INFINITY).contains(&value) { Ok(value) } else { Err(refused(what, "a finite number of at least 0", value)) }
}

fn in_unit(what: &str, value: f64) -> Result<f64, Refused> {
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err(refused(what, "a number in (0, 1)", value)) }
}

fn counted<N: PartialEq + From<u8> + fmt::Display>(what: &str, count: N) -> Result<N, Refused> {
    if count != N::from(0) { Ok(count) } else { Err(refused(what, "at least 1", count)) }
}

fn refused(what: &str, expected: &str, got: impl fmt::Display) -> Refused {
    Refused::Query(format!("{what}: {expected} expected, got {got}"))
}
