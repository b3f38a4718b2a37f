//! The dominating pair of an event, of any kind.

use crate::atoms::Atoms;
use crate::pair::{GaussianPair, Moments};

/// The worst-case pair of output distributions of a release.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DominatingPair {
    /// Gaussian noise. The claims are in [`crate::pair`].
    Gaussian(GaussianPair),
    /// Finitely many privacy losses. The claims are in [`crate::atoms`].
    Atoms(Atoms),
    /// ρ of zero-concentrated differential privacy: a bound of all Rényi divergences, without a pair.
    Zcdp(f64),
}

impl DominatingPair {
    /// The pair of an unsampled Gaussian with sensitivity over noise `mu`.
    pub(crate) fn gaussian(mu: f64) -> Self {
        Self::Gaussian(GaussianPair::gaussian(mu))
    }

    /// The sensitivity over noise, if this is an unsampled Gaussian.
    pub(crate) fn as_gaussian(&self) -> Option<f64> {
        match self {
            Self::Gaussian(pair) => pair.as_gaussian(),
            Self::Atoms(_) | Self::Zcdp(_) => None,
        }
    }

    /// The same two distributions, their roles exchanged.
    pub(crate) fn swapped(&self) -> Self {
        match self {
            Self::Gaussian(pair) => Self::Gaussian(pair.swapped()),
            Self::Atoms(atoms) => Self::Atoms(atoms.swapped()),
            Self::Zcdp(rho) => Self::Zcdp(*rho),
        }
    }

    /// This pair without P-mass of at most e^`ln_mass` at its largest losses, and that mass.
    pub(crate) fn truncated(&self, ln_mass: f64) -> (Self, f64) {
        match self {
            Self::Gaussian(pair) => {
                let (pair, mass) = pair.truncated(ln_mass);
                (Self::Gaussian(pair), mass)
            }
            Self::Atoms(atoms) => {
                let (atoms, mass) = atoms.truncated(ln_mass);
                (Self::Atoms(atoms), mass)
            }
            Self::Zcdp(rho) => (Self::Zcdp(*rho), 0.0),
        }
    }

    /// The largest privacy loss.
    pub(crate) fn largest_loss(&self) -> f64 {
        match self {
            Self::Gaussian(pair) => pair.largest_loss(),
            Self::Atoms(atoms) => atoms.largest_loss(),
            Self::Zcdp(_) => f64::INFINITY,
        }
    }

    /// Whether there is no grid for it, so that only Rényi bounds apply.
    pub(crate) fn is_sharp(&self) -> bool {
        match self {
            Self::Gaussian(pair) => pair.is_sharp(),
            Self::Atoms(atoms) => atoms.is_sharp(),
            Self::Zcdp(_) => true,
        }
    }

    /// How fast the likelihood ratio can change.
    pub(crate) fn steepness(&self) -> f64 {
        match self {
            Self::Gaussian(pair) => pair.steepness(),
            Self::Atoms(atoms) => atoms.steepness(),
            Self::Zcdp(rho) => (2.0 * rho).sqrt(),
        }
    }

    /// ln E_P e^{θL} = θ·D_{1+θ}(P‖Q), with the tilted mean and variance of the loss.
    pub(crate) fn moments(&self, theta: f64) -> Moments {
        match self {
            Self::Gaussian(pair) => pair.moments(theta),
            Self::Atoms(atoms) => atoms.moments(theta),
            // The definition of ρ-zCDP (Bun, Steinke 2016): D_{1+θ} ≤ (1+θ)ρ, as of a Gaussian with
            // μ² = 2ρ.
            Self::Zcdp(rho) => Moments {
                ln_mgf: theta * (1.0 + theta) * rho,
                mean: (1.0 + 2.0 * theta) * rho,
                variance: 2.0 * rho,
            },
        }
    }
}
