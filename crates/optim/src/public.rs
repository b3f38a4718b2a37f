//! Public randomness of optimizers: probes and fresh directions. It is independent of the noise of
//! releases.

use noise::PublicRandom;

type Given = Box<dyn Fn(u64, usize, usize, &mut [f32]) + Send + Sync>;

/// Source of public normal values.
pub struct Probes(Source);

enum Source {
    Random(PublicRandom),
    Given(Given),
}

impl Probes {
    /// Draws the values from a public seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(Source::Random(PublicRandom::new("public probes", seed)))
    }

    /// Uses given values, by step, tensor and index of the probe, to compare implementations.
    pub fn given(numbers: impl Fn(u64, usize, usize, &mut [f32]) + Send + Sync + 'static) -> Self {
        Self(Source::Given(Box::new(numbers)))
    }

    /// Writes the values of a probe.
    pub(crate) fn write(&self, step: u64, tensor: usize, probe: usize, out: &mut [f32]) {
        match &self.0 {
            Source::Random(random) => {
                random.derive(step).derive(tensor as u64).derive(probe as u64).normals(0, out)
            }
            Source::Given(given) => given(step, tensor, probe, out),
        }
    }
}
