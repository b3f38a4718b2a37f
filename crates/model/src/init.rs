//! Initial values of parameters, from public randomness.

use crate::Error;
use crate::graph::{Graph, Init, ParamSpec};
use noise::PublicRandom;
use tensor::{Array, linalg};

impl Graph {
    /// Draws initial values, determined by a public seed.
    ///
    /// # Errors
    /// If a QR decomposition fails.
    pub fn init(&self, seed: u64) -> Result<Vec<Array>, Error> {
        self.params
            .iter()
            .enumerate()
            .map(|(stream, spec)| param(spec, seed, stream as u64))
            .collect()
    }
}

/// Draws the initial values of one parameter.
///
/// Every parameter has a stream of its own, so adding one does not change those before it.
pub(crate) fn param(spec: &ParamSpec, seed: u64, stream: u64) -> Result<Array, Error> {
    let shape = spec.shape.as_slice();
    let normal = |std: f32| {
        let mut array = Array::zeros(shape);
        PublicRandom::new("first parameters", seed).derive(stream).fill_normals(array.data_mut());
        array.data_mut().iter_mut().for_each(|x| *x *= std);
        array
    };
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
