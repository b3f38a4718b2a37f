//! Dominating pairs: the worst-case pair of output distributions for each event, with proofs.
//!
//! Write H_α(P‖Q) = ∫ (P − αQ)₊ for the hockey-stick divergence. A pair (P, Q) *dominates* a
//! mechanism if H_α(M(D)‖M(D′)) ≤ H_α(P‖Q) for all neighbours D, D′ and all α > 0. Dominating pairs
//! compose (Zhu, Dong, Wang 2022, Thm. 10), and every figure here is a monotone function of such a
//! curve. All pairs below are in units of the noise: standard deviation 1, one example shifts by s
//! = 1/σ.
//!
//! # The tool: Kahane's inequality
//! Let X, Y be centred Gaussian vectors with Cov X ≤ Cov Y *entry by entry*, p ≥ 0 and φ convex.
//! Then E φ(Σ pᵢ exp(Xᵢ − Var Xᵢ/2)) ≤ E φ(Σ pᵢ exp(Yᵢ − Var Yᵢ/2)) (Kahane 1985). Now let P = Σ pᵢ
//! N(xᵢ, I) and Q = N(0, I). The likelihood ratio at z ~ Q is f(z) = Σ pᵢ exp(⟨z, xᵢ⟩ − |xᵢ|²/2), a
//! sum of just that form with Cov = Gram matrix of the shifts xᵢ, and both H_α(P‖Q) = E (f − α)₊
//! and H_α(Q‖P) = E (1 − αf)₊ are expectations of convex functions of f. **So the entry-wise
//! largest Gram matrix is the worst case, in both directions and for all α at once.**
//!
//! # Claim 1: Poisson lots, add/remove, a unit of k rows
//! [`PairKind::Remove`] and [`PairKind::Add`] with binomial weights: P = Σ_j Bin(k, q)(j)·N(j s, 1)
//! against Q = N(0, 1), and the same swapped.
//!
//! *Why.* The contribution of all other rows is independent of which of the k rows are in the lot,
//! so by joint convexity it may be taken as fixed, at 0. A subset S of the rows shifts by x_S =
//! Σ_{i∈S} xᵢ with |xᵢ| ≤ s; the Gram entries ⟨x_S, x_S'⟩ ≤ |S||S'|s² are all largest when the rows
//! agree. ∎
//!
//! # Claim 2: Poisson lots, replace-one
//! [`PairKind::Replace`]: P = (1−q)N(0,1) + qN(s,1) against Q = (1−q)N(0,1) + qN(−s,1).
//!
//! *Why.* Fix the rest as before: P = (1−q)N(0) + qN(x), Q = (1−q)N(0) + qN(y), |x|, |y| ≤ s. For α
//! ≥ 1, advanced joint convexity (Balle, Barthe, Gaboardi 2018, Thm. 2) says H_α(P‖Q) = q·H_α'(N(x)
//! ‖ (1−β)N(0) + βN(y)) with α', β functions of α and q alone. Seen from z ~ N(x) the shifts are −x
//! and y−x, with Gram entries |x|² ≤ s², ⟨−x, y−x⟩ = |x|² − ⟨x,y⟩ ≤ 2s², |y−x|² ≤ 4s², all largest
//! at y = −x, |x| = s. For α < 1 use H_α(P‖Q) = 1 − α + αH_{1/α}(Q‖P) and the symmetry of the set
//! of pairs. ∎ This is sensitivity 2C seen through the sampling; accounting for it as add/remove at
//! σ/2 would be far too high (1.8 → 13.4 instead of 2.8 in the first golden row).
//!
//! # Claim 3: fixed-size lots, replace-one
//! [`PairKind::Kinked`] with shift 2s and q = B/N: the curve is H_α((1−q)N(0) + qN(2s) ‖ N(0)) for
//! α ≥ 1, and what symmetry makes of it, 1 − α + αH_{1/α}, for α < 1.
//!
//! *Why.* A lot of D that misses the example in question is a uniform lot R of the others; one that
//! has it is R with a random r ∈ R exchanged for it. Fix R and r by joint convexity:
//! P = (1−q)N(0) + qN(x−r), Q = (1−q)N(0) + qN(y−r). For α ≥ 1 as in claim 2 with shifts −(x−r) and
//! y−x: |x−r|², ⟨x−r, x−y⟩, |x−y|² ≤ 4s², all attained at y = r = −x, where Q = N(0). ∎ Fixed-size
//! lots really are this much worse than Poisson ones under
//! replace-one (Lebeda, Regehr, Kamath, Steinke 2024). The pair that has this curve: on {P > Q} as
//! it is, mirrored for the losses below 0, and the rest of the mass at loss 0.
//!
//! # Claim 4: fixed-size lots, add/remove
//! The same.
//!
//! *Why.* Removal depends on the sampler. If the example's place stays and is vacant, it is claim 3
//! with y = 0. If lots are drawn from the remaining examples, Q = N(0) and P = (1−q)N(0) + qN(x−r):
//! claim 3 with y = r; and with x = r the same swapped. ∎ (q is that of the larger data set. N
//! itself changes by one.)
//!
//! # Claim 5: full batches and shuffled epochs
//! N(cs, 1) against N(0, 1) with c = k under add/remove and 2k under replace-one. In a shuffled
//! epoch each row is in one lot, in the worst case all k in the same one; the other lots do not
//! depend on them, so they are post-processing.
//!
//! # Checked by
//! `tests/golden.rs` (brute-force quadrature, public accountants), `tests/groups.rs` (units of
//! several rows), `tests/pairs.rs` (random pairs never exceed these).

use crate::mixture::{Mixture, bisect, bisect_in};
use crate::special::{GAUSS_8, LN_SQRT_2PI, ln_add, ln_ndtr, ndtr};

/// Largest shift that is integrated (σ = 1/MAX_SHIFT of the clip bound); beyond, crude bounds
/// apply.
const MAX_SHIFT: f64 = 60.0;

/// Largest number of quadrature nodes; moments that need more are infinite.
///
/// Infinite is an upper bound, and such orders never give the best one.
const MAX_NODES: f64 = 60_000.0;

/// Standard deviations beyond the outermost centre up to which an integrand is integrated: e⁻⁷² of
/// it is left.
const REACH: f64 = 12.0;

/// How a pair is made of the mixture M = Σ w_j N(j s, 1) and N = N(0, 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PairKind {
    /// M against N.
    Remove,
    /// N against M.
    Add,
    /// M against its mirror image.
    Replace,
    /// M against N where M > N, mirrored for losses below zero, the rest at zero.
    Kinked,
}

/// A dominating pair (P, Q) in units of the noise.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GaussianPair {
    kind: PairKind,
    mixture: Mixture,
    /// P beyond this point is truncated (moved to loss ∞).
    cut: f64,
}

/// An interval on which the loss increases, with P's density there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    kind: PairKind,
    mixture: &'a Mixture,
    /// The lower end; −∞ for the whole line.
    pub(crate) low: f64,
    /// The upper end.
    pub(crate) high: f64,
}

/// ln E e^{θL} under P, and mean and variance of the loss L under the distribution tilted by
/// e^{θL}.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moments {
    pub(crate) ln_mgf: f64,
    pub(crate) mean: f64,
    pub(crate) variance: f64,
}

impl Piece<'_> {
    /// The privacy loss ln(P/Q) at z. Increasing.
    #[inline]
    pub(crate) fn loss(&self, z: f64) -> f64 {
        match self.kind {
            PairKind::Add => -self.mixture.ln_ratio(-z),
            PairKind::Replace => self.mixture.ln_ratio(z) - self.mixture.ln_ratio(-z),
            _ => self.mixture.ln_ratio(z),
        }
    }

    /// The loss, and ln of P's density, at z.
    #[inline]
    pub(crate) fn loss_and_ln_density(&self, z: f64) -> (f64, f64) {
        let normal = -0.5 * z * z - LN_SQRT_2PI;
        match self.kind {
            PairKind::Add => (-self.mixture.ln_ratio(-z), normal),
            PairKind::Replace => {
                let up = self.mixture.ln_ratio(z);
                (up - self.mixture.ln_ratio(-z), up + normal)
            }
            _ => {
                let up = self.mixture.ln_ratio(z);
                (up, up + normal)
            }
        }
    }

    /// Whether [`Piece::ratios`] neither over- nor underflows between two points.
    pub(crate) fn is_tame(&self, low: f64, high: f64) -> bool {
        self.steepness() * (low.abs().max(high.abs()) + self.steepness()) < 300.0
    }

    /// P's density relative to the standard normal one, and Q's relative to P's, at z.
    #[inline]
    pub(crate) fn ratios(&self, z: f64) -> (f64, f64) {
        match self.kind {
            PairKind::Add => (1.0, self.mixture.ratio(-z)),
            PairKind::Replace => {
                let up = self.mixture.ratio(z);
                (up, self.mixture.ratio(-z) / up)
            }
            _ => {
                let up = self.mixture.ratio(z);
                (up, 1.0 / up)
            }
        }
    }

    /// The point at which the loss is `l`, clamped to the piece.
    pub(crate) fn at_loss(&self, l: f64) -> f64 {
        let z = match self.kind {
            PairKind::Remove | PairKind::Kinked => self.mixture.invert(l),
            PairKind::Add => -self.mixture.invert(-l),
            PairKind::Replace if l < 0.0 => -self.replace_at_loss(-l),
            PairKind::Replace => self.replace_at_loss(l),
        };
        z.clamp(self.low, self.high)
    }

    /// The point at which the loss of [`PairKind::Replace`] is l ≥ 0.
    ///
    /// With u = e^{sz}, a = 1−q, b = q e^{−s²/2} it solves b u² − a(e^l − 1)u − e^l b = 0.
    fn replace_at_loss(&self, l: f64) -> f64 {
        let Mixture { shift: s, rate: q, .. } = *self.mixture;
        if l > 600.0 {
            return bisect(l, |z| self.loss(z));
        }
        let (b, e) = (q * (-0.5 * s * s).exp(), (1.0 - q) * l.exp_m1());
        let root = e + e.hypot(2.0 * b * (0.5 * l).exp());
        if root > 0.0 { ((root / 2.0).ln() - q.ln()) / s + 0.5 * s } else { 0.0 }
    }

    /// ln of the P-mass beyond z, to the right; an upper bound.
    pub(crate) fn ln_mass_beyond(&self, z: f64) -> f64 {
        let Mixture { shift, rate, ref ln_weights } = *self.mixture;
        match self.kind {
            PairKind::Add => ln_ndtr(-z),
            _ if ln_weights.is_empty() => {
                ln_add(ln_ndtr(-z) + (-rate).ln_1p(), ln_ndtr(shift - z) + rate.ln())
            }
            // The furthest component bounds all of them.
            _ => ln_ndtr(self.steepness() - z),
        }
    }

    /// The P-mass before z, to the left; an upper bound.
    pub(crate) fn mass_before(&self, z: f64) -> f64 {
        let Mixture { shift, rate, ref ln_weights } = *self.mixture;
        match self.kind {
            PairKind::Remove | PairKind::Replace if ln_weights.is_empty() => {
                (1.0 - rate) * ndtr(z) + rate * ndtr(z - shift)
            }
            _ => ndtr(z),
        }
    }

    /// How fast ln P's density can change beyond what the normal density does itself.
    pub(crate) fn steepness(&self) -> f64 {
        self.mixture.steepness()
    }

    /// The interval that holds the mass of P tilted by e^{θL}, to within e^{−REACH²/2} of it.
    fn reach(&self, theta: f64) -> (f64, f64) {
        let far = self.steepness();
        let (low, high) = match self.kind {
            // A negative power of the ratio makes the density log-concave, more sharply than a
            // normal one: it has one peak.
            PairKind::Add if theta > 0.0 => {
                let peak = bisect_in(0.0, theta * far, |z| z - theta * self.mixture.slope(-z));
                (peak, peak)
            }
            PairKind::Remove if theta < -1.0 => {
                let peak = bisect_in((1.0 + theta) * far, 0.0, |z| {
                    z - (1.0 + theta) * self.mixture.slope(z)
                });
                (peak, peak)
            }
            // Otherwise it is a product of powers of ratios, each of which moves a normal by at
            // most its exponent times `far`.
            PairKind::Add => (theta * far, 0.0),
            PairKind::Replace => (
                ((1.0 + 2.0 * theta) * far).min(theta * far).min(0.0),
                ((1.0 + 2.0 * theta) * far).max((1.0 + theta) * far).max(0.0),
            ),
            _ => (0.0, (1.0 + theta) * far),
        };
        let (low, high) = (low - REACH, high + REACH);
        (low.max(self.low), high.min(self.high))
    }
}

impl GaussianPair {
    /// The pair of this kind for a unit of `rows` rows, each in the lot with probability `rate`.
    pub(crate) fn new(kind: PairKind, shift: f64, rate: f64, rows: u64) -> Self {
        Self { kind, mixture: Mixture::new(shift, rate, rows), cut: f64::INFINITY }
    }

    /// The same two distributions, their roles exchanged.
    pub(crate) fn swapped(&self) -> Self {
        let kind = match self.kind {
            PairKind::Remove if self.mixture.rate < 1.0 => PairKind::Add,
            PairKind::Add => PairKind::Remove,
            kind => kind,
        };
        Self { kind, ..self.clone() }
    }

    /// The pair of an unsampled Gaussian with sensitivity over noise `mu`.
    pub(crate) fn gaussian(mu: f64) -> Self {
        Self::new(PairKind::Remove, mu, 1.0, 1)
    }

    /// The sensitivity over noise, if this is an unsampled Gaussian.
    pub(crate) fn as_gaussian(&self) -> Option<f64> {
        (self.mixture.rate == 1.0 && self.kind == PairKind::Remove).then_some(self.mixture.shift)
    }

    /// This pair without P-mass of at most e^`ln_mass` at its largest losses, and that mass.
    ///
    /// Moments of high order can be dominated by events too rare to matter; without them tilts and
    /// windows fit the losses that decide.
    pub(crate) fn truncated(&self, ln_mass: f64) -> (Self, f64) {
        let (pieces, _) = self.pieces();
        let Some(piece) = pieces.last() else { return (self.clone(), 0.0) };
        let (mut low, mut high) = (0.0, 1.0);
        while piece.ln_mass_beyond(high) > ln_mass {
            low = high;
            high *= 2.0;
        }
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if piece.ln_mass_beyond(middle) > ln_mass { low = middle } else { high = middle }
        }
        let truncated_mass = piece.ln_mass_beyond(high).exp();
        (Self { cut: high, ..self.clone() }, truncated_mass)
    }

    /// The loss at the right end of the last piece.
    pub(crate) fn largest_loss(&self) -> f64 {
        let (pieces, _) = self.pieces();
        pieces.last().map_or(0.0, |piece| piece.loss(piece.high))
    }

    /// Whether the shift exceeds [`MAX_SHIFT`], so that only the crude bounds apply.
    pub(crate) fn is_sharp(&self) -> bool {
        // Tests the good case, so that NaN counts as sharp.
        !(self.steepness() <= MAX_SHIFT)
    }

    /// How fast the likelihood ratio can change.
    pub(crate) fn steepness(&self) -> f64 {
        self.mixture.steepness()
    }

    /// The pieces of the line, and the mass at loss zero.
    pub(crate) fn pieces(&self) -> (Vec<Piece<'_>>, f64) {
        let (mixture, whole) = (&self.mixture, (f64::NEG_INFINITY, self.cut));
        let piece = |kind, (low, high)| Piece { kind, mixture, low, high };
        match self.kind {
            PairKind::Kinked => {
                let edge = 0.5 * mixture.shift;
                let atom = (1.0 - mixture.rate) * (1.0 - 2.0 * ndtr(-edge));
                let pieces = vec![
                    piece(PairKind::Add, (f64::NEG_INFINITY, -edge)),
                    piece(PairKind::Remove, (edge, self.cut.max(edge))),
                ];
                (pieces, atom)
            }
            kind => (vec![piece(kind, whole)], 0.0),
        }
    }

    /// ln E_P e^{θL} = θ·D_{1+θ}(P‖Q), with the tilted mean and variance of the loss.
    pub(crate) fn moments(&self, theta: f64) -> Moments {
        let s = self.mixture.shift;
        if let Some(mu) = self.as_gaussian() {
            let mu2 = mu * mu;
            return Moments {
                ln_mgf: 0.5 * theta * (1.0 + theta) * mu2,
                mean: (theta + 0.5) * mu2,
                variance: mu2,
            };
        }
        if self.is_sharp() {
            return self.crude_moments(theta);
        }
        let (pieces, atom) = self.pieces();
        // (ln of weight × density × e^{θL}, L) at the nodes of a quadrature.
        let mut nodes: Vec<(f64, f64)> = Vec::with_capacity(512);
        if atom > 0.0 {
            nodes.push((atom.ln(), 0.0));
        }
        for piece in &pieces {
            let (low, high) = piece.reach(theta);
            let mut node = |z: f64, ln_weight: f64| {
                let (loss, ln_density) = piece.loss_and_ln_density(z);
                nodes.push((ln_weight + ln_density + theta * loss, loss));
            };
            if self.kind != PairKind::Kinked {
                // The integrand is analytic in a strip of half-width π/s and decays like a normal
                // density: the trapezoidal rule converges like e^{−2π·width/step}. Negative powers
                // of the ratio narrow the peak. Where the pair is truncated the last node is at the
                // cut, with full weight: too much rather than too little.
                let negative = if piece.kind == PairKind::Remove {
                    -(1.0 + theta)
                } else {
                    theta.max(-1.0 - theta)
                };
                let narrow = 1.0 / (1.0 + 0.25 * negative.max(0.0) * s * s).sqrt();
                let step = (0.25 / s).min(0.4 * narrow);
                let count = (high - low) / step;
                if !(count <= MAX_NODES) {
                    return Moments { ln_mgf: f64::INFINITY, mean: f64::INFINITY, variance: 1.0 };
                }
                let ln_step = step.ln();
                (0..=count.ceil() as usize).for_each(|i| node(high - i as f64 * step, ln_step));
            } else {
                let panels = ((high - low) / (1.0 / s).min(0.5)).ceil().max(0.0);
                if !(8.0 * panels <= MAX_NODES) {
                    return Moments { ln_mgf: f64::INFINITY, mean: f64::INFINITY, variance: 1.0 };
                }
                let panels = panels as usize;
                for panel in 0..panels {
                    let width = (high - low) / panels as f64;
                    let middle = low + (panel as f64 + 0.5) * width;
                    for (x, w) in GAUSS_8 {
                        let ln_weight = (0.5 * width * w).ln();
                        node(middle - 0.5 * width * x, ln_weight);
                        node(middle + 0.5 * width * x, ln_weight);
                    }
                }
            }
        }
        let top = nodes.iter().map(|n| n.0).fold(f64::NEG_INFINITY, f64::max);
        let (mut total, mut first, mut second) = (0.0, 0.0, 0.0);
        for &(ln_weight, loss) in &nodes {
            let weight = (ln_weight - top).exp();
            total += weight;
            first += weight * loss;
            second += weight * loss * loss;
        }
        let mean = first / total;
        Moments {
            ln_mgf: top + total.ln(),
            mean,
            variance: (second / total - mean * mean).max(0.0),
        }
    }

    /// Upper bounds of the moments for a shift beyond [`MAX_SHIFT`].
    ///
    /// P^{1+θ}Q^{−θ} is jointly convex, so ln E e^{θL} ≤ ln((1−q) + q e^{θ(1+θ)(cs)²/2}) for θ ≥ 0,
    /// with c the number of shifts between the outermost components, and q the chance that any row
    /// is in.
    fn crude_moments(&self, theta: f64) -> Moments {
        let Mixture { shift, rate, .. } = self.mixture;
        let rows = self.mixture.rows();
        let width = if self.kind == PairKind::Replace { 2.0 } else { 1.0 } * rows * shift;
        let mu2 = width * width;
        let any = -(rows * (-rate).ln_1p()).exp_m1();
        let exponent = 0.5 * theta * (1.0 + theta) * mu2;
        // The kinked pair adds at most mass 1 at losses ≤ 0.
        let rest = if self.kind == PairKind::Kinked { 2.0 - any } else { 1.0 - any };
        let ln_mgf = ln_add(rest.ln(), any.ln() + exponent);
        let inside = (any.ln() + exponent - ln_mgf).exp();
        Moments { ln_mgf, mean: inside * (theta + 0.5) * mu2, variance: mu2 }
    }
}
