//! Dominating pairs with finitely many privacy losses: Laplace noise, and guarantees that are known.
//!
//! # Claim 1: a release with (ε, δ)
//! With probability δ the loss is infinite; otherwise it is ±ε, with P-mass e^ε/(1 + e^ε) at +ε.
//!
//! *Why.* Every (ε, δ)-private release is a function of a sample from this pair (Kairouz, Oh,
//! Viswanath 2015, Thm. 3.1). The infinite losses are summed in [`crate::direction`]. ∎
//!
//! # Claim 2: Laplace noise of scale 1/s on a number that a unit changes by at most 1
//! The loss is s with P-mass 1/2, −s with P-mass e^{−s}/2, and between them it has the P-density
//! e^{(l−s)/2}/4.
//!
//! *Why.* For a change of t ≤ 1 the pair is P(z) = e^{−s|z−t|}s/2 against Q(z) = e^{−s|z|}s/2. Its
//! trade-off function decreases in t, because P moves away from Q. At t = 1, z = (l/s + 1)/2
//! between 0 and 1 has the loss l, and P(z)dz = e^{−s(1−z)}(s/2)dz with dz = dl/(2s). ∎
//!
//! # Claim 3: the same on Poisson lots, add/remove
//! (1−q)Q + qP against Q, and the same swapped.
//!
//! *Why.* Zhu, Dong, Wang (2022), Thm. 11, for any dominating pair of the release without sampling.
//! It holds for the pair of atoms below, too. ∎
//!
//! # Claim 4: the densities between −s and s as atoms
//! The mass between two knots goes to both of them such that P- and Q-mass are kept. That dominates:
//! see [`crate::pld`]. With 1024 cells, the Rényi divergences increase by less than a millionth.
//!
//! # Checked by
//! `tests/known.rs`: closed forms, brute-force sums over compositions, dp-accounting's values.

use crate::pair::Moments;

/// The number of cells between the smallest and the largest loss of Laplace noise.
const CELLS: usize = 1024;

/// The largest loss for which a grid is used.
const MAX_LOSS: f64 = 300.0;

/// Bound on the relative error of a sum over all atoms.
const ROUNDING: f64 = 1e-12;

/// One privacy loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Atom {
    /// ln(P/Q).
    pub(crate) loss: f64,
    /// P-mass.
    pub(crate) mass: f64,
    /// Q-mass.
    against: f64,
}

/// A pair with finitely many losses, in increasing order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Atoms {
    atoms: Vec<Atom>,
}

impl Atoms {
    /// The finite losses of a release with ε, whatever its δ.
    pub(crate) fn of_epsilon(epsilon: f64) -> Self {
        // A mass that underflows would be lost.
        let small = (1.0 / (1.0 + epsilon.exp())).max(f64::MIN_POSITIVE);
        let large = 1.0 / (1.0 + (-epsilon).exp());
        Self {
            atoms: vec![
                Atom { loss: -epsilon, mass: small, against: large },
                Atom { loss: epsilon, mass: large, against: small },
            ],
        }
    }

    /// Laplace noise whose scale is 1/`shift` of the change of a unit.
    pub(crate) fn laplace(shift: f64) -> Self {
        let width = 2.0 * shift / CELLS as f64;
        let loss = |knot: usize| (2.0 * knot as f64 / CELLS as f64 - 1.0) * shift;
        // Both sums of e^{(l−s)/2}/4 over a cell; the knot above gets (1 − e^{a−l})/(1 − e^{−w}).
        let cell = |below: f64| 0.5 * (0.5 * (below - shift)).exp() * (0.5 * width).exp_m1();
        let up = 1.0 / (1.0 + (-0.5 * width).exp());
        let mut masses = vec![0.0; CELLS + 1];
        for knot in 0..CELLS {
            let mass = cell(loss(knot));
            masses[knot] += mass * (1.0 - up);
            masses[knot + 1] += mass * up;
        }
        masses[0] += 0.5 * (-shift).exp();
        masses[CELLS] += 0.5;
        // Q is P mirrored.
        let atom = |knot: usize| Atom {
            loss: loss(knot),
            mass: masses[knot].max(f64::MIN_POSITIVE),
            against: masses[CELLS - knot].max(f64::MIN_POSITIVE),
        };
        Self { atoms: (0..=CELLS).map(atom).collect() }
    }

    /// This release from a Poisson lot, in the direction of removing.
    pub(crate) fn sampled(&self, rate: f64) -> Self {
        let sampled = |atom: &Atom| Atom {
            loss: (rate * atom.loss.exp_m1()).ln_1p(),
            mass: (1.0 - rate) * atom.against + rate * atom.mass,
            against: atom.against,
        };
        Self { atoms: self.atoms.iter().map(sampled).collect() }
    }

    /// The atoms.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Atom> {
        self.atoms.iter()
    }

    /// The same two distributions, their roles exchanged.
    pub(crate) fn swapped(&self) -> Self {
        let swap = |atom: &Atom| Atom { loss: -atom.loss, mass: atom.against, against: atom.mass };
        Self { atoms: self.atoms.iter().rev().map(swap).collect() }
    }

    /// This pair without P-mass of at most e^`ln_mass` at its largest losses, and that mass.
    pub(crate) fn truncated(&self, ln_mass: f64) -> (Self, f64) {
        let (mut kept, mut truncated_mass) = (self.atoms.len(), 0.0);
        while kept > 1 && truncated_mass + self.atoms[kept - 1].mass <= ln_mass.exp() {
            kept -= 1;
            truncated_mass += self.atoms[kept].mass;
        }
        (Self { atoms: self.atoms[..kept].to_vec() }, truncated_mass)
    }

    /// The largest privacy loss.
    pub(crate) fn largest_loss(&self) -> f64 {
        self.atoms.last().map_or(0.0, |atom| atom.loss)
    }

    /// The largest absolute privacy loss.
    pub(crate) fn steepness(&self) -> f64 {
        self.atoms.iter().map(|atom| atom.loss.abs()).fold(0.0, f64::max)
    }

    /// Whether losses are too large for a grid.
    pub(crate) fn is_sharp(&self) -> bool {
        // Tests the good case, so that NaN counts as sharp.
        !(self.steepness() <= MAX_LOSS)
    }

    /// ln E_P e^{θL}, with the tilted mean and variance of the loss.
    pub(crate) fn moments(&self, theta: f64) -> Moments {
        // At the atom where it is largest, e^{θL} is 1; the others are relative to it.
        let top = if theta >= 0.0 { self.atoms.last() } else { self.atoms.first() };
        let top = theta * top.map_or(0.0, |atom| atom.loss);
        let (mut total, mut first, mut second) = (0.0, 0.0, 0.0);
        for atom in &self.atoms {
            let weight = atom.mass * (theta * atom.loss - top).exp();
            total += weight;
            first += weight * atom.loss;
            second += weight * atom.loss * atom.loss;
        }
        let mean = first / total;
        Moments {
            ln_mgf: top + total.ln() + ROUNDING,
            mean,
            variance: (second / total - mean * mean).max(0.0),
        }
    }
}
