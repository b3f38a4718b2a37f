//! DP-MacAdam (Tasnim, Sankar, Kosut 2026): clips around Adam's first moment, at an adaptive scale.
//!
//! A gradient is encoded as w = (g − m̂)/b and clipped to norm 1; the release is decoded as g̃ = b
//! ⊙ w̃ + m̂. m and v are Adam's moments of g̃. The next scale is b = ŝ^¼ (Σ_j ŝ_j^½)^½, where the
//! sum is over all elements of all tensors, and ŝ is an estimate of the variance of a gradient,
//! clamped to [h₁, h₂]. The step is θ ← θ − η m̂/(√v̂ + γ). [`Variance`] has the estimates:
//!
//! - In the paper, s is a moving average of u = (g̃ − m̂_t)² and ŝ = c_s (s/κ_t − b²σ²/B²), with
//!   κ_t = 2(β₁ − β₁^t)/(1 + β₁) and c_s = 1.
//! - κ_t is the exact factor for u = (g̃ − m̂_t)(g̃ − m̂_{t−1}). For the paper's u it is too large by
//!   a factor of up to 2 in early steps.
//! - s estimates the variance of a mean of B gradients, while b scales single gradients. With
//!   c_s = 1, b decreases to its lower limit; c_s = B corrects that.
//! - An estimate for a single element is mostly noise: b ends at its limits. By
//!   default there is one for each tensor, and b keeps its level, see `pooled_variance.rs`.
//! - m̂ is mostly noise if the model is large. By default the center of clipping is the share of m̂
//!   that its known noise does not explain, for each tensor.
//!
//! m̂_t lies between m̂_{t−1} and g̃: with a_t = (1 − β₁)/(1 − β₁^t), the deviation g̃ − m̂_t is
//! (1 − a_t)(g̃ − m̂_{t−1}) = (1 − a_t) b w̃. The code uses this form, which subtracts nothing.

use crate::adam::{BETAS, EPSILON};
use crate::centered_clip::CenteredClip;
use crate::config::{Hyperparameters, Setting};
use crate::descent::GatherTensors;
use crate::pooled_variance::PooledVariance;
use crate::state::{Shapes, shapes};
use crate::{Auto, Descent, GradientNoise, State, elementwise, keys, within};
use protocol::{Bound, GradientQuery, Noisy, Params, Positive, Refused, TensorMap};
use serde::{Deserialize, Serialize};
use tensor::Array;

keys! {
    /// Hyperparameters of DP-MacAdam.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// C₀: the first scale b, and the level of all later ones if `variance` is `tensor`.
        pub clip: Auto<f64> = Auto::Auto,
        /// The limits of ŝ, as the smallest and the largest clip bound; of b for `tensor`. By default
        /// C₀/100 and 10 C₀.
        pub clips: Auto<(f64, f64)> = Auto::Auto,
        /// β₁ and β₂: decay of the averages of the gradient and of its square.
        pub betas: (f64, f64) = BETAS,
        /// γ: added to √v̂.
        pub epsilon: f64 = EPSILON,
        /// The estimate of the variance: tensor, exact or literal.
        pub variance: Variance = Variance::Tensor,
        /// c_s: the lot size by default; 1 in the paper. Not for `tensor`.
        pub variance_scale: Auto<f64> = Auto::Auto,
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

/// The estimate of the variance of the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variance {
    /// One for each tensor, from the squared deviation of g̃ from the center; b keeps the level C₀.
    ///
    /// The center is m̂ without the share of its norm that noise explains.
    Tensor,
    /// One for each element, from (g̃ − m̂_t)(g̃ − m̂_{t−1}), for which κ_t is exact.
    Exact,
    /// One for each element, from (g̃ − m̂_t)², as in the paper.
    Literal,
}

/// Adam with clipping around its own first moment.
pub struct MacAdam {
    config: Config,
    /// The least and the largest clip bound.
    clips: (f64, f64),
    /// c_s
    variance_scale: f64,
    /// σ/B, of the latest answer.
    noise: f64,
    clip: CenteredClip,
    shapes: Shapes,
    first: TensorMap,
    second: TensorMap,
    estimate: Estimate,
    steps: u64,
}

/// The averages from which ŝ is computed.
enum Estimate {
    /// s, for each element.
    Elements { spread: TensorMap },
    /// For each tensor.
    Tensors(PooledVariance),
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
        let start = bound.clip.get();
        let clips = config.clips.or((start / 100.0, 10.0 * start));
        let clip = CenteredClip::new(clips, bound, params)?;
        // β₁ = 0 would make κ_t zero.
        within("optimizer.betas", config.betas.0, f64::MIN_POSITIVE, 1.0)?;
        within("optimizer.betas", config.betas.1, 0.0, 1.0)?;
        within("optimizer.epsilon", config.epsilon, 0.0, f64::INFINITY)?;
        let estimate = match (config.variance, config.variance_scale) {
            (Variance::Tensor, Auto::Auto) => {
                Estimate::Tensors(PooledVariance::new(config.betas.0, start, params))
            }
            (Variance::Tensor, Auto::Value(_)) => {
                return Err(Refused::Query(
                    "optimizer.variance_scale: expected \"auto\" with variance = \"tensor\", \
                     which keeps the level of the scale"
                        .into(),
                ));
            }
            _ => Estimate::Elements { spread: TensorMap::new() },
        };
        let variance_scale =
            Positive::new("optimizer.variance_scale", config.variance_scale.or(lot_size))?.get();
        Ok(Self {
            config,
            clips,
            variance_scale,
            noise: 0.0,
            clip,
            shapes: shapes(params.iter()),
            first: TensorMap::new(),
            second: TensorMap::new(),
            estimate,
            steps: 0,
        })
    }

    /// Updates the moments with one tensor's release and replaces the release by the direction.
    ///
    /// Writes √ŝ of elements, from the second step on, or the mean square of a tensor to the scale;
    /// [`synchronize`](Descent::synchronize) completes b.
    fn advance(&mut self, k: usize, release: &mut Array, noise: f64) {
        let (limits, steps) = (self.clip.limits, self.steps.min(i32::MAX as u64) as i32);
        let (b1, b2) = self.config.betas;
        let (center, scale) = self.clip.tensor(k);
        // The deviation g̃ − m̂_{t−1}.
        elementwise::update(release, scale, |w, b| b * w);
        match &mut self.estimate {
            Estimate::Elements { spread } => {
                let kept = 1.0 - (1.0 - b1) / (1.0 - b1.powi(steps));
                let literal = self.config.variance == Variance::Literal;
                let new = ((1.0 - b1) * if literal { kept * kept } else { kept }) as f32;
                let kappa = 2.0 * (b1 - b1.powi(steps)) / (1.0 + b1);
                let (decay, rescales) = (b1 as f32, steps >= 2);
                let (inverse_kappa, noise) = ((1.0 / kappa) as f32, (noise * noise) as f32);
                let (factor, limits) =
                    (self.variance_scale as f32, (limits.0 as f32, limits.1 as f32));
                let spread = spread.get_or_zeros(k, release.shape());
                elementwise::update3(spread, scale, release, |s, b, e| {
                    *s = decay.mul_add(*s, new * *e * *e);
                    if rescales {
                        let variance = factor * inverse_kappa.mul_add(*s, -noise * *b * *b);
                        *b = variance.clamp(limits.0, limits.1).sqrt();
                    }
                });
            }
            Estimate::Tensors(_) => {
                let squares = elementwise::sum(release, |e| e * e) / release.len().max(1) as f64;
                scale.data_mut().fill(squares as f32);
            }
        }
        let correction = |beta: f64| (1.0 / (1.0 - beta.powi(steps))) as f32;
        let (c1, c2) = (correction(b1), correction(b2));
        let (b1, n1, b2, n2) = (b1 as f32, (1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
        let epsilon = self.config.epsilon as f32;
        let first = self.first.get_or_zeros(k, release.shape());
        let second = self.second.get_or_zeros(k, release.shape());
        elementwise::update4([first, second, center, release], |m, v, center, out| {
            let g = *center + *out;
            *m = b1.mul_add(*m, n1 * g);
            *v = b2.mul_add(*v, n2 * g * g);
            *center = c1 * *m;
            *out = *center / ((c2 * *v).sqrt() + epsilon);
        });
    }
}

impl Descent for MacAdam {
    fn bounds(&self) -> &[Bound] {
        self.clip.bounds()
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.clip.query(at))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        self.steps += 1;
        self.noise = answer.std[0];
        let mut direction = answer.value;
        for (k, release) in direction.iter_mut() {
            self.advance(k, release, answer.std[0]);
        }
        Ok(direction)
    }

    /// Gathers center and scale of all tensors and completes the scale b, which depends on all.
    fn synchronize(&mut self, gather: GatherTensors<'_>) -> Result<(), Refused> {
        let center = self.clip.gather_center(gather)?;
        match &mut self.estimate {
            Estimate::Elements { .. } if self.steps >= 2 => self.clip.complete_scale(gather)?,
            Estimate::Elements { .. } => {}
            Estimate::Tensors(pools) => {
                pools.shrink_center(center, self.noise, self.steps);
                let squares = self.clip.gather_scale(gather)?;
                pools.advance(squares, self.noise, self.clips);
            }
        }
        self.clip.limit_center();
        Ok(())
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("macadam");
        state.set_number("steps", self.steps as f64);
        state.set_tensors("first", &self.first);
        state.set_tensors("second", &self.second);
        match &self.estimate {
            Estimate::Elements { spread } => state.set_tensors("spread", spread),
            Estimate::Tensors(pools) => state.set_part("variance", pools.save()),
        }
        self.clip.save(&mut state);
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("macadam")?;
        self.steps = state.count("steps")?;
        self.first = state.take_tensors("first", &self.shapes)?;
        self.second = state.take_tensors("second", &self.shapes)?;
        match &mut self.estimate {
            Estimate::Elements { spread } => {
                *spread = state.take_tensors("spread", &self.shapes)?
            }
            Estimate::Tensors(pools) => pools.load(&state.part("variance")?)?,
        }
        self.clip.load(&mut state)
    }
}
