//! Public randomness: probes and new directions. It is unrelated to the noise of releases.

use tensor::normal::Key;

type Given = Box<dyn Fn(u64, usize, usize, &mut [f32]) + Send + Sync>;

/// A source of public normal numbers.
pub struct Probes(Source);

enum Source {
    Key(Key),
    Given(Given),
}

impl Probes {
    /// Numbers from a public seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(Source::Key(Key::for_purpose("public probes", seed)))
    }

    /// Given numbers, by step, tensor and probe: to compare with another implementation.
    pub fn given(numbers: impl Fn(u64, usize, usize, &mut [f32]) + Send + Sync + 'static) -> Self {
        Self(Source::Given(Box::new(numbers)))
    }

    /// Writes the numbers of a probe.
    pub(crate) fn write(&self, step: u64, tensor: usize, probe: usize, out: &mut [f32]) {
        match &self.0 {
            Source::Key(key) => {
                key.derive(step).derive(tensor as u64).derive(probe as u64).normals(0, out)
            }
            Source::Given(given) => given(step, tensor, probe, out),
        }
    }
}
