//! What a release goes through: a mechanism adds noise to sums.

use crate::{Error, Key};

/// Adds noise to the sums of a release and states what the release is charged as.
///
/// A mechanism may keep state from one release to the next, for example to correlate noise across
/// steps (matrix factorisation). It sees sums without noise, so it is trusted code: its claim
/// belongs in `PROOFS.md`.
///
/// # Contract
/// - Values are independent of the records, given the sums and the keys of releases.
/// - For every set of draws in which one record can take part, the releases of these draws reveal
///   no more than independent Gaussian releases with the multipliers that
///   [`charged_multiplier`](Self::charged_multiplier) returned for these draws.
/// - Noise derives from the keys of releases and the indices of tensors only, so that every process
///   of a distributed run can add the noise of the tensors that it owns.
pub trait Mechanism: Send {
    /// Returns the name, by which a saved state is recognised.
    fn name(&self) -> &'static str;

    /// Refuses noise that is too large for the resolution of the mechanism.
    ///
    /// `multiplier` is the noise multiplier σ of a clip block and `elements` its size. Accepted
    /// noise moves no two sums further apart than by 2⁻¹¹ of the clip bound when they are rounded.
    ///
    /// # Errors
    /// If it would.
    fn validate(&self, multiplier: f64, elements: usize) -> Result<(), Error>;

    /// Returns the noise multiplier that a release with this nominal multiplier is charged as.
    ///
    /// Called before the lot of draw `draw` is drawn. A mechanism whose sensitivity is larger than
    /// the clip bound by a factor f returns `multiplier / f`. Where one charge pays for several
    /// draws (an epoch of shuffled lots), it is asked for the first of them, and the answer must
    /// cover all.
    fn charged_multiplier(&self, draw: u64, multiplier: f64) -> f64;

    /// Returns the standard deviation of the noise in each value that draw `draw` releases.
    ///
    /// `deviation` is the nominal one, σ·C. The result is public and reported with the release.
    fn released_deviation(&self, draw: u64, deviation: f64) -> f64;

    /// Adds noise to the sums of the tensors and divides by the public lot size.
    ///
    /// `sums[i]` is the sum of the tensor `release.tensors[i]`. In a distributed run these are the
    /// tensors that this process owns.
    ///
    /// # Panics
    /// If there is not one sum for each tensor.
    fn add_noise(&mut self, release: &Release<'_>, sums: Vec<Vec<f64>>) -> Vec<Vec<f32>>;

    /// Serializes the state; empty if there is none.
    ///
    /// Called after a lot is drawn and before anything is released from it. It may be secret: it is
    /// written where only its owner can read it. Keys are preferable to noise, which is as large as
    /// the model.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores a state that [`save`](Self::save) returned.
    ///
    /// The last draw may have released values that the state does not include; the next release
    /// then has a larger [`draw`](Release::draw) than the one that follows the state.
    ///
    /// # Errors
    /// If it is not a state of this mechanism.
    fn restore(&mut self, state: &[u8]) -> Result<(), Error> {
        if state.is_empty() { Ok(()) } else { Err(Error::State { mechanism: self.name() }) }
    }
}

/// One release. Everything except the key is public.
#[derive(Clone, Debug)]
pub struct Release<'a> {
    /// Number of the draw of the lot: it increases from lot to lot and is never used twice.
    pub draw: u64,
    /// What was asked of the lot.
    pub kind: ReleaseKind,
    /// Secret key of this release alone.
    pub key: &'a Key,
    /// The tensors of the release, one for each sum.
    pub tensors: &'a [TensorNoise],
    /// Public lot size by which noisy sums are divided.
    pub lot_size: f64,
}

/// What was asked of the lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseKind {
    /// A sum of clipped gradients.
    Gradient,
    /// A sum of clipped losses: one tensor with one element.
    Loss,
}

/// The noise of one tensor of a release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorNoise {
    /// Index of the tensor, from which its own key is derived.
    pub index: u64,
    /// Nominal standard deviation of the noise in its sum, σ·C of its clip block.
    pub deviation: f64,
}
