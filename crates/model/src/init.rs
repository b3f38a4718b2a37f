//! First values of parameters, from public randomness.

use crate::Error;
use crate::graph::{Graph, Init, Spec};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use rand_distr::{Distribution, StandardNormal};
use tensor::{Array, linalg};

impl Graph {
    /// First values, the same for the same seed. The seed is public: it has nothing to do with privacy.
    ///
    /// # Errors
    /// If a decomposition fails.
    pub fn init(&self, seed: u64) -> Result<Vec<Array>, Error> {
        self.specs.iter().enumerate().map(|(stream, spec)| one(spec, seed, stream as u64)).collect()
    }
}

/// One parameter, from a stream of its own: adding a parameter does not change the others.
pub(crate) fn one(spec: &Spec, seed: u64, stream: u64) -> Result<Array, Error> {
    let shape = spec.shape.as_slice();
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    random.set_stream(stream);
    let mut normal =
        |std: f32| Array::from_fn(shape, |_| std * <StandardNormal as Distribution<f32>>::sample(&StandardNormal, &mut random));
    Ok(match spec.init {
        Init::Zeros => Array::zeros(shape),
        Init::Ones => Array::from_fn(shape, |_| 1.0),
        Init::Normal { std } => normal(std),
        Init::Orthonormal { scale } => {
            let mut basis = linalg::thin_qr(&normal(1.0))?.0;
            basis.data_mut().iter_mut().for_each(|x| *x *= scale);
            basis
        }
    })
}
