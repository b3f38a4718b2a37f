//! DP-MacAdam (Tasnim, Sankar, Kosut 2026): clips around Adam's first moment, at an adaptive scale.
//!
//! A gradient is encoded as w = (g − m̂)/b and clipped to norm 1; the release is decoded as g̃ = b
//! ⊙ w̃ + m̂. m and v are Adam's moments of g̃, and s is a moving average of the squared deviations
//! u from m̂. The next scale is b = ŝ^¼ (Σ_j ŝ_j^½)^½, where the sum is over all elements of all
//! tensors and ŝ = clamp(c_s (s/κ_t − b²σ²/B²), h₁, h₂).
//!
//! - κ_t = 2(β₁ − β₁^t)/(1 + β₁) is the exact factor for u = (g̃ − m̂_t)(g̃ − m̂_{t−1}). For the
//!   paper's u = (g̃ − m̂_t)² it is too large by a factor of up to 2 in early steps.
//! - ŝ estimates the variance of a mean of B gradients, while b scales single gradients. With
//!   c_s = 1, as in the paper, b decreases to its lower limit; c_s = B corrects that.
//! - The limits h are configured as clip bounds C, with h = C²/d for d elements: if all elements
//!   are clamped to it, b = C.

use crate::adam::{BETAS, EPSILON};
use crate::config::{Hyperparameters, Setting};
use crate::descent::GatherTensors;
use crate::gradient_noise::QueryTemplate;
use crate::state::{Shapes, shapes};
use crate::{Auto, Descent, GradientNoise, State, within};
use protocol::{
    Bound, Clipping, Geometry, GradientQuery, Noisy, Params, Positive, Refused, TensorMap,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tensor::Array;

/// Hyperparameters of DP-MacAdam.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// C₀: the scale b of the first two steps.
    pub clip: Auto<f64>,
    /// The limits of ŝ, as the smallest and the largest clip bound.
    pub clips: (f64, f64),
    /// β₁ and β₂
    pub betas: (f64, f64),
    /// γ: added to √v̂.
    pub epsilon: f64,
    /// The definition of the squared deviation u: exact or literal.
    pub deviation: Deviation,
    /// c_s: the lot size by default; 1 in the paper.
    pub variance_scale: Auto<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clip: Auto::Auto,
            clips: (0.01, 10.0),
            betas: BETAS,
            epsilon: EPSILON,
            deviation: Deviation::Exact,
            variance_scale: Auto::Auto,
        }
    }
}

impl Hyperparameters for Config {
    fn clip(&self) -> Auto<f64> {
        self.clip
    }

    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(MacAdam::new(*self, noise.bound, setting.lot_size, setting.params)?))
    }
}

/// The definition of the squared deviation u.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deviation {
    /// (g̃ − m̂_t)², as in the paper.
    Literal,
    /// (g̃ − m̂_t)(g̃ − m̂_{t−1}), for which κ_t is exact.
    Exact,
}

/// Adam with clipping around its own first moment.
pub struct MacAdam {
    config: Config,
    /// c_s
    variance_scale: f64,
    template: QueryTemplate,
    shapes: Shapes,
    first: TensorMap,
    second: TensorMap,
    spread: TensorMap,
    /// m̂ and b, of all tensors.
    geometry: Geometry,
    steps: u64,
}

impl MacAdam {
    /// Creates the optimizer for parameters of these shapes.
    ///
    /// `bound` has the first scale C₀ as its clip bound, and the noise multiplier.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(
        config: Config,
        bound: Bound,
        lot_size: f64,
        params: &Params,
    ) -> Result<Self, Refused> {
        let (least, most) = (
            Positive::new("optimizer.clips", config.clips.0)?.get(),
            Positive::new("optimizer.clips", config.clips.1)?.get(),
        );
        if !(least <= most) {
            return Err(Refused::Query(format!(
                "optimizer.clips: the least clip bound {least} is larger than the largest {most}"
            )));
        }
        // β₁ = 0 would make κ_t zero.
        within("optimizer.betas", config.betas.0, f64::MIN_POSITIVE, 1.0)?;
        within("optimizer.betas", config.betas.1, 0.0, 1.0)?;
        within("optimizer.epsilon", config.epsilon, 0.0, f64::INFINITY)?;
        let variance_scale =
            Positive::new("optimizer.variance_scale", config.variance_scale.or(lot_size))?.get();
        let start = bound.clip.get();
        let elements = params.elements().max(1) as f64;
        for (what, value) in [
            ("optimizer.clip", start),
            (
                "optimizer.clips: the least, squared, over the number of parameters",
                least.powi(2) / elements,
            ),
            ("optimizer.clips: the largest, squared", most.powi(2)),
        ] {
            within(what, value, 1e-30, 1e30)?;
        }
        let mut scale = params.zeros_like();
        scale.fill(start as f32);
        let bound = Bound { clip: Positive::new("the clip bound", 1.0)?, sigma: bound.sigma };
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        Ok(Self {
            config,
            variance_scale,
            template: QueryTemplate::one_block(noise, params.len()),
            shapes: shapes(params.iter()),
            first: TensorMap::new(),
            second: TensorMap::new(),
            spread: TensorMap::new(),
            geometry: Geometry::Affine { center: params.zeros_like(), scale },
            steps: 0,
        })
    }

    /// Moves the center towards 0 if it is too many scales away from 0.
    ///
    /// The curator refuses such a center, because it cannot be subtracted exactly enough. Any other
    /// center is valid, too. Only the noise of tiny lots moves it so far.
    fn limit_center(&mut self) {
        const MAX_DISTANCE: f64 = 900.0;
        let Geometry::Affine { center, scale } = &mut self.geometry else { return };
        let squared_distances = |(center, scale): (&Array, &Array)| {
            let pieces = center.data().par_chunks(1 << 14).zip(scale.data().par_chunks(1 << 14));
            pieces
                .map(|(m, b)| {
                    m.iter()
                        .zip(b)
                        .map(|(&m, &b)| (f64::from(m) / f64::from(b)).powi(2))
                        .sum::<f64>()
                })
                .collect::<Vec<_>>()
        };
        let distance =
            center.iter().zip(scale.iter()).flat_map(squared_distances).sum::<f64>().sqrt();
        if distance > MAX_DISTANCE {
            let shrink = (MAX_DISTANCE / distance) as f32;
            center
                .iter_mut()
                .for_each(|center| center.data_mut().par_iter_mut().for_each(|m| *m *= shrink));
        }
    }

    /// Updates the moments with one tensor's release and replaces the release by the direction.
    ///
    /// If the scale is to change, writes √ŝ to it; [`synchronize`](Descent::synchronize) completes
    /// b.
    fn advance(&mut self, k: usize, release: &mut Array, noise: f64, limits: (f32, f32)) {
        let Geometry::Affine { center, scale } = &mut self.geometry else { return };
        let (b1, b2) = self.config.betas;
        let steps = self.steps.min(i32::MAX as u64) as i32;
        let kappa = 2.0 * (b1 - b1.powi(steps)) / (1.0 + b1);
        let (c1, c2) =
            ((1.0 / (1.0 - b1.powi(steps))) as f32, (1.0 / (1.0 - b2.powi(steps))) as f32);
        let (b1, n1, b2, n2) = (b1 as f32, (1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
        let (epsilon, deviation) = (self.config.epsilon as f32, self.config.deviation);
        let (factor, noise) = (self.variance_scale as f32, (noise * noise) as f32);
        let (inverse_kappa, rescales) = ((1.0 / kappa) as f32, self.steps >= 2);
        const PIECE: usize = 1 << 14;
        let shape = release.shape().to_vec();
        let [first, second, spread] = [&mut self.first, &mut self.second, &mut self.spread]
            .map(|moments| moments.get_or_zeros(k, &shape));
        let pieces = release.data_mut().par_chunks_mut(PIECE);
        let pieces = pieces
            .zip(first.data_mut().par_chunks_mut(PIECE))
            .zip(second.data_mut().par_chunks_mut(PIECE));
        let pieces = pieces
            .zip(spread.data_mut().par_chunks_mut(PIECE))
            .zip(center[k].data_mut().par_chunks_mut(PIECE));
        pieces.zip(scale[k].data_mut().par_chunks_mut(PIECE)).for_each(
            |(((((release, first), second), spread), center), scale)| {
                for i in 0..release.len() {
                    let g = scale[i].mul_add(release[i], center[i]);
                    first[i] = b1.mul_add(first[i], n1 * g);
                    second[i] = b2.mul_add(second[i], n2 * g * g);
                    let mean = c1 * first[i];
                    let u = match deviation {
                        Deviation::Literal => (g - mean) * (g - mean),
                        Deviation::Exact => (g - mean) * (g - center[i]),
                    };
                    spread[i] = b1.mul_add(spread[i], n1 * u);
                    if rescales {
                        let variance =
                            factor * inverse_kappa.mul_add(spread[i], -noise * scale[i] * scale[i]);
                        scale[i] = variance.clamp(limits.0, limits.1).sqrt();
                    }
                    center[i] = mean;
                    release[i] = mean / ((c2 * second[i]).sqrt() + epsilon);
                }
            },
        );
    }
}

/// Returns the sum of a tensor's elements.
fn total(tensor: &Array) -> f64 {
    tensor
        .data()
        .par_chunks(1 << 14)
        .map(|piece| piece.iter().map(|&x| f64::from(x)).sum::<f64>())
        .collect::<Vec<_>>()
        .into_iter()
        .sum()
}

impl Descent for MacAdam {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.template.query(at, &self.geometry))
    }

    fn direction(&mut self, at: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        self.steps += 1;
        let mut direction = answer.value;
        let elements = at.elements() as f64;
        let limit = |clip: f64| (clip.powi(2) / elements) as f32;
        let limits = (limit(self.config.clips.0), limit(self.config.clips.1));
        for (k, release) in direction.iter_mut() {
            self.advance(k, release, answer.std[0], limits);
        }
        Ok(direction)
    }

    /// Gathers center and scale of all tensors and completes the scale b, which depends on all.
    fn synchronize(&mut self, gather: GatherTensors<'_>) -> Result<(), Refused> {
        if let Geometry::Affine { center, scale } = &mut self.geometry {
            gather(center)?;
            if self.steps >= 2 {
                gather(scale)?;
                let root = scale.iter().map(total).sum::<f64>().sqrt() as f32;
                scale.iter_mut().for_each(|scale| {
                    scale.data_mut().par_iter_mut().for_each(|b| *b = b.sqrt() * root)
                });
            }
        }
        self.limit_center();
        Ok(())
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("macadam");
        state.set_number("steps", self.steps as f64);
        for (name, params) in
            [("first", &self.first), ("second", &self.second), ("spread", &self.spread)]
        {
            state.set_tensors(name, params);
        }
        if let Geometry::Affine { center, scale } = &self.geometry {
            state.set_shared("center", center);
            state.set_shared("scale", scale);
        }
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("macadam")?;
        self.steps = state.count("steps")?;
        for (name, params) in
            [("first", &mut self.first), ("second", &mut self.second), ("spread", &mut self.spread)]
        {
            *params = state.take_tensors(name, &self.shapes)?;
        }
        if let Geometry::Affine { center, scale } = &mut self.geometry {
            *center = state.take_shared("center", center)?;
            *scale = state.take_shared("scale", scale)?;
        }
        Ok(())
    }
}
