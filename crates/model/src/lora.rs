//! Values of low-rank adapters: initialization without changing the model, and merging.

use crate::Error;
use crate::graph::{Graph, Param};
use crate::op::Order;
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, linalg};

/// Low-rank adapters of linear layers (Hu et al. 2022): W + (alpha/rank) · A Bᵀ.
///
/// ```
/// use model::{Checkpoint, Lora, Preset, hf};
///
/// let lora = Lora { rank: 4, alpha: 8.0, on: vec!["attn".into()] };
/// let config = hf::Config::new(Preset::Tiny.architecture());
/// let adapted = Checkpoint::new(config, Some(lora), 0)?;
/// assert!(adapted.graph.params().iter().any(|param| param.name.contains(".lora_")));
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rank of the product A Bᵀ.
    pub rank: usize,
    /// Numerator of the scale alpha/rank.
    pub alpha: f32,
    /// Parts of names: a layer gets an adapter if its name contains one. If empty, all layers do.
    pub on: Vec<String>,
}

/// A low-rank adapter, which adds `scale` · A Bᵀ to `weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankAdapter {
    /// The frozen weight.
    pub weight: Param,
    /// A, out × r.
    pub left: Param,
    /// B, in × r.
    pub right: Param,
    /// The factor alpha/rank.
    pub scale: f32,
    pub(crate) order: Order,
}

impl Graph {
    /// Subtracts every adapter from its weight, so that their sum is the original weight.
    pub fn subtract_adapters(&self, values: &mut [Array]) {
        self.add_adapters(values, -1.0);
    }

    /// Adds every adapter to its weight. The weights alone then define the model.
    pub fn merge_adapters(&self, values: &mut [Array]) {
        self.add_adapters(values, 1.0);
    }

    /// Moves the largest singular values of each weight into its adapter.
    ///
    /// A = U √(S/scale) and B = V √(S/scale); the sum of weight and adapter does not change.
    ///
    /// # Errors
    /// If a singular value decomposition fails.
    pub fn init_adapters_spectrally(&self, values: &mut [Array]) -> Result<(), Error> {
        self.merge_adapters(values);
        for adapter in &self.adapters {
            let rank = values[adapter.left.0].cols();
            let (rows, s, cols) = linalg::svd(&values[adapter.weight.0])?;
            let (out, input) =
                if adapter.order == Order::OutIn { (rows, cols) } else { (cols, rows) };
            let scaled_top = |vectors: &Array| {
                let width = vectors.cols();
                Array::from_fn([vectors.rows(), rank], |i| {
                    vectors.data()[i / rank * width + i % rank]
                        * (s[i % rank] / adapter.scale.abs()).sqrt()
                })
            };
            let (left, mut right) = (scaled_top(&out), scaled_top(&input));
            if adapter.scale < 0.0 {
                right.data_mut().iter_mut().for_each(|x| *x = -*x);
            }
            (values[adapter.left.0], values[adapter.right.0]) = (left, right);
        }
        self.subtract_adapters(values);
        Ok(())
    }

    /// Adds sign · scale · A Bᵀ to the weight of every adapter.
    fn add_adapters(&self, values: &mut [Array], sign: f32) {
        for adapter in &self.adapters {
            let mut weight = std::mem::take(&mut values[adapter.weight.0]);
            let (left, right) = (&values[adapter.left.0], &values[adapter.right.0]);
            let left = View::new(left.data(), left.rows(), left.cols());
            let right = View::new(right.data(), right.rows(), right.cols());
            let (a, b) = if adapter.order == Order::OutIn { (left, right) } else { (right, left) };
            let (rows, cols) = (weight.rows(), weight.cols());
            matmul(
                ViewMut::new(weight.data_mut(), rows, cols),
                OutputMode::Accumulate,
                sign * adapter.scale,
                a,
                b.t(),
                Threads::All,
            );
            values[adapter.weight.0] = weight;
        }
    }
}
