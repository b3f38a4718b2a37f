//! The privacy loss of one release on a grid, as an upper bound.
//!
//! The method is "connect the dots" (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
//!
//! # Claim
//! The discrete pair dominates the continuous one.
//!
//! # Why
//! A loss l between the knots a < b is split between them so that P- and Q-mass are both kept: the
//! share of b is w = (1 − e^{−(l−a)})/(1 − e^{−(b−a)}). That is a mean-preserving spread of the
//! likelihood ratio under Q, and H_α is an expectation of a convex function of it. Mass below the
//! first knot is moved up to it. (Mass above the last has been moved to loss ∞, see
//! [`DominatingPair::truncated`].)
//!
//! # What it costs
//! Splitting multiplies E e^{θL} by at most exp(θ(1+θ)(b−a)²/8): for the two-point distribution X
//! on {a, b}, g(θ) = ln E e^{θX} − θl has zeros at 0 and −1 and g″ ≤ (b−a)²/4, so g(θ) −
//! θ(θ+1)(b−a)²/8 is concave with the same zeros, hence ≤ 0 for θ ≥ 0. On average it is a twelfth.
//!
//! # Checked by
//! `splitting_keeps_both_masses`, `tests/golden.rs`.

use crate::atoms::Atoms;
use crate::dominating::DominatingPair;
use crate::pair::{GaussianPair, Piece};
use crate::special::LN_SQRT_2PI;

/// Bound on the relative error of quadrature and rounding in the mass of one cell.
const SLACK: f64 = 1e-12;

/// The point at which the left tail is cut: its mass, Φ(−9) ≈ 1e-19, moves up to the first knot.
const LEFT: f64 = -9.0;

/// Masses at the knots k·step, tilted by e^{θl} and divided by E e^{θL}.
///
/// They add up to slightly more than 1.
#[derive(Debug, Clone)]
pub(crate) struct Discrete {
    /// The index of the first knot.
    pub(crate) first: i64,
    /// The tilted masses.
    pub(crate) masses: Vec<f64>,
}

/// The tilt and the resolution of a grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// The tilt.
    pub(crate) theta: f64,
    /// The tilt at which the result is decided; the grid is fine where its mass is, too.
    pub(crate) saddle: f64,
    /// The distance between knots.
    pub(crate) step: f64,
    /// From this loss on, a single release may decide the result, independently of the tilts.
    pub(crate) decisive: f64,
    /// ln of the weight of the P-mass of such losses.
    pub(crate) ln_rarity: f64,
}

/// Discretises one truncated pair on the grid; `None` for bounds without a pair.
pub(crate) fn discretise(pair: &DominatingPair, grid: Grid) -> Option<Discrete> {
    match pair {
        DominatingPair::Gaussian(pair) => Some(discretise_density(pair, grid)),
        DominatingPair::Atoms(atoms) => Some(discretise_atoms(atoms, grid)),
        DominatingPair::Zcdp(_) => None,
    }
}

/// Splits each atom between the knots around it.
fn discretise_atoms(atoms: &Atoms, Grid { theta, step, .. }: Grid) -> Discrete {
    let ln_mgf = atoms.moments(theta).ln_mgf;
    let unit = -(-step).exp_m1();
    let knot = |loss: f64| (loss / step).floor() as i64;
    let first = atoms.iter().map(|atom| knot(atom.loss)).min().unwrap_or(0);
    let last = atoms.iter().map(|atom| knot(atom.loss)).max().unwrap_or(0) + 1;
    let mut masses = vec![0.0; (last - first + 1) as usize];
    for atom in atoms.iter() {
        let k = knot(atom.loss);
        let below = step * k as f64;
        let up = (-(below - atom.loss).exp_m1() / unit).clamp(0.0, 1.0);
        let mass = atom.mass * (theta * below - ln_mgf).exp() * (1.0 + SLACK);
        masses[(k - first) as usize] += mass * (1.0 - up);
        masses[(k - first) as usize + 1] += mass * up * (theta * step).exp();
    }
    Discrete { first, masses }
}

/// Integrates the mass of each cell and splits it between the knots around it.
fn discretise_density(pair: &GaussianPair, grid: Grid) -> Discrete {
    let Grid { theta, saddle, step, decisive, ln_rarity } = grid;
    let ln_mgf = pair.moments(theta).ln_mgf;
    let (further, ln_further) = (saddle - theta, pair.moments(saddle).ln_mgf - ln_mgf);
    let (pieces, atom) = pair.pieces();
    let spans: Vec<Span<'_>> = pieces.iter().map(|piece| Span::new(piece, step)).collect();
    let first =
        spans.iter().map(|s| s.first).min().unwrap_or(0).min(if atom > 0.0 { 0 } else { i64::MAX });
    let last =
        spans.iter().map(|s| s.last).max().unwrap_or(0).max(if atom > 0.0 { 0 } else { i64::MIN });
    let mut masses = vec![0.0; (last - first + 1) as usize];
    let tilt = |k: i64| theta * step * k as f64 - ln_mgf;
    if atom > 0.0 {
        masses[(-first) as usize] += atom * tilt(0).exp();
    }
    let range = (last - first).max(1) as f64;
    for span in &spans {
        let z_first = span.piece.at_loss(span.first as f64 * step).max(span.low);
        // The left tail, if the piece extends to it.
        if span.piece.low < span.low {
            let at = (span.first + 1).min(span.last);
            masses[(at - first) as usize] += span.piece.mass_before(span.low) * tilt(at).exp();
        }
        let (mut k, mut z, mut width) = (span.first, z_first, 1_i64);
        let mut cell = Cell::new(width, step, theta);
        while k < span.last {
            width = width.min(span.last - k);
            if cell.knots != width {
                cell = Cell::new(width, step, theta);
            }
            let end = k + width;
            let z_end = if end == span.last {
                span.high
            } else {
                span.piece.at_loss(end as f64 * step).clamp(z, span.high)
            };
            let (left, right) = span.split(z, z_end, k as f64 * step, cell.unit, tilt(k));
            let right = right * cell.tilt;
            // Cells may be wide where there is little tilted mass: all wide cells together add at
            // most a quarter of the excess of a grid of single steps.
            let loss = step * end as f64;
            let mut weight = (further * loss - ln_further).exp().max(1.0);
            if loss >= decisive {
                weight = weight.max((ln_mgf - theta * loss + ln_rarity).exp());
            }
            let cost = (left + right) * weight * (width * width) as f64;
            let allowed = 0.25 * width as f64 / range;
            if width > 1 && cost > allowed {
                width = (width / 4).max(1);
                continue;
            }
            masses[(k - first) as usize] += left * (1.0 + SLACK);
            masses[(end - first) as usize] += right * (1.0 + SLACK);
            (k, z) = (end, z_end);
            if 8.0 * cost < allowed && (2 * width) as f64 * step * (1.0 + saddle) < 0.5 {
                width *= 2;
            }
        }
    }
    Discrete { first, masses }
}

/// What is the same for all cells of one width.
struct Cell {
    /// The width, in knots.
    knots: i64,
    /// 1 − e^{−(b−a)}
    unit: f64,
    /// e^{θ(b−a)}
    tilt: f64,
}

impl Cell {
    fn new(knots: i64, step: f64, theta: f64) -> Self {
        let width = knots as f64 * step;
        Self { knots, unit: -(-width).exp_m1(), tilt: (theta * width).exp() }
    }
}

/// A piece restricted to the interval that is laid on the grid.
struct Span<'a> {
    piece: &'a Piece<'a>,
    low: f64,
    high: f64,
    first: i64,
    last: i64,
    /// Whether densities can be computed without their logarithms.
    tame: bool,
}

impl<'a> Span<'a> {
    fn new(piece: &'a Piece<'a>, step: f64) -> Self {
        let (low, high) = (piece.low.max(LEFT), piece.high);
        // A margin for the rounding error of the loss.
        let first = (piece.loss(low) / step - 1e-6).floor() as i64;
        let last = (piece.loss(high) / step + 1e-6).ceil() as i64;
        Self { piece, low, high, first, last: last.max(first + 1), tame: piece.is_tame(low, high) }
    }

    /// P-mass between z and z_end, scaled by e^`ln_scale` and split between the knots a and b, with
    /// `unit` = 1 − e^{−(b−a)}.
    fn split(&self, z: f64, z_end: f64, a: f64, unit: f64, ln_scale: f64) -> (f64, f64) {
        let (mut left, mut right) = (0.0, 0.0);
        if z_end <= z {
            return (left, right);
        }
        // The n-th derivative of the density is at most about its value times (|z| + 2 +
        // steepness)ⁿ, for the n that matter here.
        let change = (z_end - z) * (z.abs().max(z_end.abs()) + 2.0 + self.piece.steepness());
        let (panels, rule): (usize, &[(f64, f64)]) = match change {
            c if c < 0.008 => (1, &GAUSS_2),
            c if c < 0.12 => (1, &GAUSS_3),
            c => ((c / 0.5).ceil() as usize, &GAUSS_4),
        };
        let half = 0.5 * (z_end - z) / panels as f64;
        let exp_a = a.exp();
        for panel in 0..panels {
            let middle = z + (2 * panel + 1) as f64 * half;
            for &(x, weight) in rule {
                let z = middle + half * x;
                // Mass, and the share of the upper knot, (1 − e^{a−l})/unit.
                let (mass, share) = if self.tame {
                    let (density, against) = self.piece.ratios(z);
                    (density * (ln_scale - 0.5 * z * z - LN_SQRT_2PI).exp(), 1.0 - exp_a * against)
                } else {
                    let (loss, ln_density) = self.piece.loss_and_ln_density(z);
                    ((ln_density + ln_scale).exp(), -(a - loss).exp_m1())
                };
                let (mass, share) = (weight * half * mass, (share / unit).clamp(0.0, 1.0));
                left += mass * (1.0 - share);
                right += mass * share;
            }
        }
        (left, right)
    }
}

const GAUSS_2: [(f64, f64); 2] = [(-0.577_350_269_189_625_8, 1.0), (0.577_350_269_189_625_8, 1.0)];
const GAUSS_3: [(f64, f64); 3] = [
    (-0.774_596_669_241_483_4, 0.555_555_555_555_555_6),
    (0.0, 0.888_888_888_888_888_8),
    (0.774_596_669_241_483_4, 0.555_555_555_555_555_6),
];
const GAUSS_4: [(f64, f64); 4] = [
    (-0.861_136_311_594_052_6, 0.347_854_845_137_453_85),
    (-0.339_981_043_584_856_26, 0.652_145_154_862_546_1),
    (0.339_981_043_584_856_26, 0.652_145_154_862_546_1),
    (0.861_136_311_594_052_6, 0.347_854_845_137_453_85),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::PairKind;

    /// Without tilt, the knots hold P-mass 1 and, weighted by e^{−l}, Q-mass 1.
    #[test]
    fn splitting_keeps_both_masses() {
        for kind in [PairKind::Remove, PairKind::Add, PairKind::Replace, PairKind::Kinked] {
            for (shift, rate) in [(1.0, 0.01), (0.3, 0.2), (3.0, 0.5), (5.0, 0.9), (0.05, 0.999)] {
                let pair = GaussianPair::new(kind, shift, rate, 1).truncated(-60.0).0;
                let d = discretise_density(
                    &pair,
                    Grid { theta: 0.0, saddle: 5.0, step: 1e-3, decisive: 1.0, ln_rarity: 10.0 },
                );
                let p: f64 = d.masses.iter().sum();
                let q: f64 = d
                    .masses
                    .iter()
                    .enumerate()
                    .map(|(i, m)| m * (-1e-3 * (d.first + i as i64) as f64).exp())
                    .sum();
                assert!((p - 1.0).abs() < 1e-11, "{pair:?}: P-mass {p}");
                // In the left tail P has no mass, but Q may have some, which is truncated.
                let truncated_mass =
                    if kind == PairKind::Remove { 0.0 } else { crate::special::ndtr(shift - 9.0) };
                assert!(q < 1.0 + 1e-9 && q > 1.0 - truncated_mass - 1e-9, "{pair:?}: Q-mass {q}");
            }
        }
    }

    /// Tilted masses exceed 1 by what splitting costs, and by no more than the bound.
    #[test]
    fn splitting_increases_moments_within_the_bound() {
        for kind in [PairKind::Remove, PairKind::Add, PairKind::Replace, PairKind::Kinked] {
            for theta in [0.5, 3.0, 20.0] {
                let (pair, step) =
                    (GaussianPair::new(kind, 1.0, 0.05, 1).truncated(-400.0).0, 2e-3);
                let d = discretise_density(
                    &pair,
                    Grid { theta, saddle: theta, step, decisive: 1.0, ln_rarity: 10.0 },
                );
                let excess = d.masses.iter().sum::<f64>().ln();
                let bound = theta * (1.0 + theta) * step * step / 8.0;
                assert!(
                    excess > 0.0 && excess < 1.3 * bound,
                    "{kind:?} θ={theta}: {excess} vs {bound}"
                );
            }
        }
    }
}
