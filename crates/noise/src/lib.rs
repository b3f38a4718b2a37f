//! Secret keys and streams, the exact discrete Gaussian, and the mechanisms that add noise.
//!
//! This crate holds no records: sums come in, noisy values come out.
//!
//! | to find | look in |
//! |---|---|
//! | secret randomness | [`key`](Key) |
//! | public randomness | [`public`](PublicRandom) |
//! | keys that are used once and erased | [`ratchet`](Ratchet), [`randomness`](Randomness) |
//! | normal values | `normal` |
//! | the exact discrete Gaussian | `discrete` |
//! | what a release goes through | [`mechanism`](Mechanism) |
//! | independent Gaussian noise | [`gaussian`](IndependentGaussian) |
//!
//! `PROOFS.md` has the claims, each with its function and its test.

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
