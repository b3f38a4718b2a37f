//! Public randomness of optimizers: probes and replacement directions.
//!
//! It is independent of the noise of releases.

use noise::PublicRandom;

/// Writes the values of a probe, given its step, tensor and index.
type WriteProbe = Box<dyn Fn(u64, usize, usize, &mut [f32]) + Send + Sync>;

/// Source of public normal values.
pub struct Probes(Source);

enum Source {
    Random(PublicRandom),
    Given(WriteProbe),
}

impl Probes {
    /// Draws the values from a public seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(Source::Random(PublicRandom::new("public probes", seed)))
    }

    /// Uses given values, by step, tensor and index of the probe, to compare implementations.
    pub fn given(write: impl Fn(u64, usize, usize, &mut [f32]) + Send + Sync + 'static) -> Self {
        Self(Source::Given(Box::new(write)))
    }

    /// Writes the values of a probe.
    pub(crate) fn write(&self, step: u64, tensor: usize, probe: usize, out: &mut [f32]) {
        match &self.0 {
            Source::Random(random) => {
                random.derive(step).derive(tensor as u64).derive(probe as u64).normals(0, out)
            }
            Source::Given(write) => write(step, tensor, probe, out),
        }
    }
}
