//! Secret keys and streams, the exact discrete Gaussian, and the mechanisms that add noise.
//!
//! This crate holds no records: it gets sums and returns noisy values.
//!
//! | to find | look in |
//! |---|---|
//! | secret keys and their streams | [`Key`] |
//! | public randomness | [`PublicRandom`] |
//! | keys that are used once and erased | [`Ratchet`], [`Randomness`] |
//! | samples of the normal distribution | [`Key::normals`] |
//! | samples of the discrete Gaussian | [`Key::discrete_gaussians`] |
//! | the interface of mechanisms | [`Mechanism`] |
//! | independent Gaussian noise | [`IndependentGaussian`] |
//!
//! `PROOFS.md` states the claims, with their functions and tests.

#![forbid(unsafe_code)]

mod discrete;
mod error;
mod gaussian;
mod key;
mod mechanism;
mod normal;
mod public;
mod randomness;
mod ratchet;

pub use discrete::LOG_SCALE;
pub use error::Error;
pub use gaussian::{GaussianKind, IndependentGaussian};
pub use key::{CHUNK, Key, Rng};
pub use mechanism::{Mechanism, Release, ReleaseKind, TensorNoise};
pub use public::PublicRandom;
pub use randomness::{DrawKeys, Origin, Randomness};
pub use ratchet::Ratchet;
