//! Chance that is not secret: probes and fresh starts. It has nothing to do with the noise that
//! keeps a promise.

use tensor::normal::Key;

type Given = Box<dyn Fn(u64, usize, usize, &mut [f32]) + Send + Sync>;

/// Where public normal numbers come from.
pub struct Probes(Source);

enum Source {
    Key(Key),
    Given(Given),
}

impl Probes {
    /// From a seed that may be known to everybody.
    pub fn from_seed(seed: u64) -> Self {
        Self(Source::Key(Key::for_purpose("public probes", seed)))
    }

    /// Given numbers, by step, tensor and number of the probe: for comparing with another
    /// implementation.
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
