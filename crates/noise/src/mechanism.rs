//! The interface of mechanisms, which add noise to sums.

use crate::{Error, Key};

/// Adds noise to the sums of a release and determines how the release is charged.
///
/// A mechanism can have state, for example to correlate noise across steps (matrix factorization).
/// It gets sums without noise, so it is trusted code: `PROOFS.md` must have a claim for it.
///
/// # Contract
/// - Given the sums and the keys of releases, released values are independent of the records.
/// - For every set of draws in which one record can take part, the releases of these draws reveal
///   no more than independent Gaussian releases with the multipliers that
///   [`charged_multiplier`](Self::charged_multiplier) returned for these draws.
/// - Noise is derived only from the keys of releases and the indices of tensors, so that every
///   process of a distributed run can add the noise of the tensors that it owns.
pub trait Mechanism: Send {
    /// Returns the name, which identifies the mechanism in a saved state.
    fn name(&self) -> &'static str;

    /// Checks that the resolution of the mechanism suffices for a clip block.
    ///
    /// `multiplier` is the noise multiplier σ of the block and `elements` its number of elements.
    /// If this returns `Ok`, rounding increases the distance of two sums by at most 2⁻¹¹ of the
    /// clip bound.
    ///
    /// # Errors
    /// If rounding could increase it by more.
    fn validate(&self, multiplier: f64, elements: usize) -> Result<(), Error>;

    /// Returns the noise multiplier that a release with this nominal multiplier is charged as.
    ///
    /// It is called before the lot of draw `draw` is drawn. A mechanism whose sensitivity is larger
    /// than the clip bound by a factor f returns `multiplier / f`. If one charge covers several
    /// draws (an epoch of shuffled lots), it is called for the first draw only, and the result must
    /// be valid for all of them.
    fn charged_multiplier(&self, draw: u64, multiplier: f64) -> f64;

    /// Returns the standard deviation of the noise in each value released from draw `draw`.
    ///
    /// `deviation` is the nominal standard deviation σ·C. The result is public and reported with
    /// the release.
    fn released_deviation(&self, draw: u64, deviation: f64) -> f64;

    /// Adds noise to the sums of the tensors and divides by the public lot size.
    ///
    /// `sums[i]` is the sum of the tensor `release.tensors[i]`. In a distributed run these are the
    /// tensors that this process owns.
    ///
    /// # Panics
    /// If the number of sums is not the number of tensors.
    fn add_noise(&mut self, release: &Release<'_>, sums: Vec<Vec<f64>>) -> Vec<Vec<f32>>;

    /// Serializes the state; returns nothing if there is no state.
    ///
    /// It is called after a lot is drawn and before anything is released from it. The state may be
    /// secret: it is written to a file that only its owner can read. It should contain keys rather
    /// than noise, which is as large as the model.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores a state that [`save`](Self::save) returned.
    ///
    /// Values may have been released after the state was saved. The next release then has a larger
    /// [`draw`](Release::draw) than the draw that follows the state.
    ///
    /// # Errors
    /// If `state` is not a state of this mechanism.
    fn restore(&mut self, state: &[u8]) -> Result<(), Error> {
        if state.is_empty() { Ok(()) } else { Err(Error::State { mechanism: self.name() }) }
    }
}

/// The parameters of one release. All of them except the key are public.
#[derive(Clone, Debug)]
pub struct Release<'a> {
    /// Number of the draw: it increases from lot to lot and is never reused.
    pub draw: u64,
    /// Which sums are released.
    pub kind: ReleaseKind,
    /// Secret key, used for this release only.
    pub key: &'a Key,
    /// The tensors of the release, one for each sum.
    pub tensors: &'a [TensorNoise],
    /// Public lot size, the divisor of the noisy sums.
    pub lot_size: f64,
}

/// Which sums are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseKind {
    /// Sums of clipped gradients.
    Gradient,
    /// The sum of clipped losses: one tensor with one element.
    Loss,
}

/// The noise of one tensor of a release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorNoise {
    /// Index of the tensor, the label of its key.
    pub index: u64,
    /// Nominal standard deviation σ·C of the noise in its sum, from its clip block.
    pub deviation: f64,
}
