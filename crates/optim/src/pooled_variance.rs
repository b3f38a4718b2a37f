//! How far gradients are from the center of clipping, with one value for each tensor.
//!
//! A release is b w̃_t from the center, w̃_t being the sum of clipped examples over B with noise of
//! the known variance σ²/B². The center does not depend on that noise, so that
//! b²(w̃_t² − σ²/B²) has the expectation of b²w_t², the squared deviation of the lot's mean, without
//! bias. For one element it is a difference of nearly equal numbers: its standard error is √2 b²σ²/B²
//! in one step, many times the squared deviation. The mean over the n elements of a tensor has an
//! error smaller by √n, and that is known: with V_t = b_t²σ²/B², the variance of one term is 2V_t²/n.
//! Terms are averaged with weights 1/V_t², the inverse of their variances, times powers of a decay.
//!
//! With x_k and τ_k for the average of tensor k and its standard error, and x̄ for the average of all
//! elements, tensors are combined with x̄ as if they had the standard deviation x̄ around x̄:
//! ŝ_k = x̄ + λ_k (x_k − x̄) with λ_k = x̄²/(x̄² + τ_k²), and at least x̄ √(1 − λ_k), the standard
//! deviation that is left. A tensor that is not resolved has x̄. While x̄ is below twice its own
//! error, the scale does not change.
//!
//! ŝ decides the ratios of the scales b_k of tensors, and not their level: b_k = c ŝ_k^¼, where c is
//! such that Σ_j b_j² = d C₀², as if b were the clip bound C₀ everywhere. The level for which
//! E‖w‖² = 1 depends on the variance of single gradients, and the deviation of a lot's mean does not
//! determine it: it has 1/B of that variance, and the whole of the squared distance between the
//! center and the expected gradient, which is larger.

use crate::{State, elementwise};
use protocol::{Params, Refused};
use rayon::prelude::*;

/// How many standard errors above 0 the average of all elements is, at least.
const RESOLVED: f64 = 2.0;

/// The average of one tensor, and its scale.
#[derive(Clone, Copy, Debug)]
struct Pool {
    /// n
    elements: f64,
    /// b
    scale: f32,
    /// x
    average: f64,
    /// τ²
    error: f64,
    /// The sum of the weights in the average.
    weights: f64,
    /// The variance of the noise in the first moment m of one element.
    noise_in_m: f64,
}

impl Pool {
    /// Adds the mean of b²w̃² over the elements to the average, given V.
    fn add(&mut self, squares: f64, noise: f64, decay: f64) {
        // Exact answers have no noise: all terms have the same weight.
        let weight = if noise > 0.0 { noise.powi(-2) } else { 1.0 };
        self.weights = decay * self.weights + weight;
        let new = weight / self.weights;
        let error = 2.0 * noise.powi(2) / self.elements.max(1.0);
        self.average += new * (squares - noise - self.average);
        self.error = (1.0 - new).powi(2) * self.error + new.powi(2) * error;
    }
}

/// Estimates the squared deviations of tensors and their scales b.
#[derive(Clone, Debug)]
pub(crate) struct PooledVariance {
    /// C₀
    level: f64,
    /// Decay of the averages over steps.
    decay: f64,
    pools: Vec<Pool>,
}

impl PooledVariance {
    /// Creates the estimate for parameters of these shapes, with the first scale C₀.
    pub(crate) fn new(decay: f64, level: f64, params: &Params) -> Self {
        let pool = |elements: usize| Pool {
            elements: elements as f64,
            scale: level as f32,
            average: 0.0,
            error: 0.0,
            weights: 0.0,
            noise_in_m: 0.0,
        };
        let pools = params.iter().map(|tensor| pool(tensor.len())).collect();
        Self { level, decay, pools }
    }

    /// Shrinks the first moments m̂ of step t, counted from 1, to the center of the next query.
    ///
    /// Call it before [`advance`](Self::advance), which changes the scales. `std` is σ/B.
    ///
    /// # Why
    /// Noise in m̂ moves the center away from all gradients at once. Its length grows with the number
    /// of elements: 0.23 σ√d/B in units of b, with β₁ = 0.9. If it is not small beside 1, clipping
    /// takes g − m̂ for a step along −m̂, and releases follow the noise of earlier ones. The squared
    /// norm of m̂ is that of its mean plus d times the known variance of its noise, so that
    /// 1 − d·variance/‖m̂‖² estimates which share of it is signal (James and Stein 1961). Any center
    /// that is computed from releases is valid.
    pub(crate) fn shrink_center(&mut self, center: &mut Params, std: f64, step: u64) {
        let beta = self.decay;
        let correction = 1.0 - beta.powi(step.min(i32::MAX as u64) as i32);
        for (pool, center) in self.pools.iter_mut().zip(center.iter_mut()) {
            let release = (f64::from(pool.scale) * std).powi(2);
            pool.noise_in_m = beta * beta * pool.noise_in_m + (1.0 - beta).powi(2) * release;
            let noise = pool.elements * pool.noise_in_m / correction.powi(2);
            let squares = elementwise::sum(center, |x| x * x);
            // Tests for the valid case: a center of 0, or one that is not finite, becomes 0.
            let share = if squares > noise { 1.0 - noise / squares } else { 0.0 } as f32;
            center.data_mut().par_iter_mut().for_each(|x| *x *= share);
        }
    }

    /// Takes the means of b²w̃² and replaces them by the scales b, clamped to `clips`.
    ///
    /// Every element of a tensor has the same value. `std` is σ/B.
    pub(crate) fn advance(&mut self, squares: &mut Params, std: f64, clips: (f64, f64)) {
        for (pool, squares) in self.pools.iter_mut().zip(squares.iter()) {
            let noise = (f64::from(pool.scale) * std).powi(2);
            pool.add(squares.data().first().map_or(0.0, |&x| x.into()), noise, self.decay);
        }
        if let Some(deviations) = self.deviations() {
            let all: f64 = self.pools.iter().map(|pool| pool.elements).sum();
            let roots = deviations.iter().map(|s| s.sqrt());
            let total: f64 = self.pools.iter().zip(roots).map(|(p, root)| p.elements * root).sum();
            for (pool, deviation) in self.pools.iter_mut().zip(deviations) {
                let scale = self.level * (deviation.sqrt() * all / total).sqrt();
                pool.scale = scale.clamp(clips.0, clips.1) as f32;
            }
        }
        for (pool, scale) in self.pools.iter().zip(squares.iter_mut()) {
            scale.data_mut().fill(pool.scale);
        }
    }

    /// Returns ŝ of each tensor, or `None` if the average of all is not resolved.
    fn deviations(&self) -> Option<Vec<f64>> {
        let all: f64 = self.pools.iter().map(|pool| pool.elements).sum();
        let share = |pool: &Pool| pool.elements / all;
        let mean: f64 = self.pools.iter().map(|pool| share(pool) * pool.average).sum();
        let error = self.pools.iter().map(|pool| share(pool).powi(2) * pool.error).sum::<f64>();
        let deviation = |pool: &Pool| {
            let trust = mean.powi(2) / (mean.powi(2) + pool.error);
            let least = mean * (1.0 - trust).sqrt().max(LEAST);
            (mean + trust * (pool.average - mean)).max(least)
        };
        (mean > RESOLVED * error.sqrt()).then(|| self.pools.iter().map(deviation).collect())
    }

    /// Returns the state.
    pub(crate) fn save(&self) -> State {
        let mut state = State::new("pooled variance");
        for (k, pool) in self.pools.iter().enumerate() {
            state.set_number(&format!("scale {k}"), pool.scale.into());
            state.set_number(&format!("average {k}"), pool.average);
            state.set_number(&format!("error {k}"), pool.error);
            state.set_number(&format!("weights {k}"), pool.weights);
            state.set_number(&format!("noise in m {k}"), pool.noise_in_m);
        }
        state
    }

    /// Restores a state.
    ///
    /// # Errors
    /// If it is the state of something else.
    pub(crate) fn load(&mut self, state: &State) -> Result<(), Refused> {
        state.check_kind("pooled variance")?;
        for (k, pool) in self.pools.iter_mut().enumerate() {
            pool.scale = state.number(&format!("scale {k}"))? as f32;
            pool.average = state.number(&format!("average {k}"))?;
            pool.error = state.number(&format!("error {k}"))?;
            pool.weights = state.number(&format!("weights {k}"))?;
            pool.noise_in_m = state.number(&format!("noise in m {k}"))?;
        }
        Ok(())
    }
}

/// The least deviation of a tensor, as a fraction of the mean of all.
///
/// Without noise, a tensor that does not vary has none, and a scale must be positive.
const LEAST: f64 = 1e-4;
