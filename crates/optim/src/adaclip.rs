//! AdaCliP (Pichapati, Suresh, Yu, Reddi, Kumar 2019): SGD with a center and scale of each element.
//!
//! A gradient is encoded as w = (g − a)/b and clipped to norm 1; the release is decoded as
//! g̃ = b ⊙ w̃ + a, and the step is θ ← θ − η g̃. The next center and scale are
//!
//! - a ← β₁ a + (1 − β₁) g̃,
//! - s² ← β₂ s² + (1 − β₂) v with v = clamp(c_s ((g̃ − a)² − b²σ²/B²), h₁, h₂), and
//! - b = s^½ (Σ_j s_j)^½, where the sum is over all elements of all tensors.
//!
//! In v, a is the center of the release. It does not depend on the noise of the release, so that
//! b²σ²/B² is the whole variance of that noise. The averages are not debiased.
//!
//! From the paper: the encoding, the optimal b, both averages, the subtracted noise, the limits h
//! and the step. Our choices: h = C²/d from clip bounds C; s² = C₀²/d at the start, so that the
//! first b is C₀; the values of all defaults; the public lot size B as the divisor; c_s, which is 1
//! in the paper (see [`macadam`](crate::macadam)); momentum, which the paper does not have. The text
//! of the paper was not at hand, so that details such as the center in v may differ from it.

use crate::centered_clip::CenteredClip;
use crate::config::{Hyperparameters, Setting};
use crate::descent::GatherTensors;
use crate::state::{Shapes, shapes};
use crate::{Auto, Descent, GradientNoise, State, elementwise, keys, within};
use protocol::{Bound, GradientQuery, Noisy, Params, Positive, Refused, TensorMap};
use tensor::Array;

keys! {
    /// Hyperparameters of AdaCliP.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// C₀: the scale b of the first step.
        pub clip: Auto<f64> = Auto::Auto,
        /// The limits of v, as the smallest and the largest clip bound. By default C₀/10 and 10 C₀.
        pub clips: Auto<(f64, f64)> = Auto::Auto,
        /// β₁: decay of the average of the gradient.
        pub mean_decay: f64 = 0.99,
        /// β₂: decay of the average of the variance.
        pub variance_decay: f64 = 0.9,
        /// c_s: factor of the estimated variance; 1 as in the paper, or the lot size.
        pub variance_scale: f64 = 1.0,
        /// μ; 0, that is none, as in the paper.
        pub momentum: Auto<f64> = Auto::Auto,
    }
}

impl Hyperparameters for Config {
    fn clip(&self) -> Auto<f64> {
        self.clip
    }

    fn rate_scale(&self, clip: f64, setting: &Setting<'_>) -> f64 {
        setting.sgd_scale(clip, self.momentum.or(0.0))
    }

    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(AdaClip::new(*self, noise.bound, setting.params)?))
    }
}

/// Gradient descent with clipping around an average of earlier releases.
pub struct AdaClip {
    config: Config,
    clip: CenteredClip,
    shapes: Shapes,
    /// s²
    variance: TensorMap,
    /// Sum of releases with momentum; empty without.
    velocity: TensorMap,
}

impl AdaClip {
    /// Creates the optimizer for parameters of these shapes.
    ///
    /// `bound` has the first scale C₀ as its clip bound, and the noise multiplier.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(config: Config, bound: Bound, params: &Params) -> Result<Self, Refused> {
        within("optimizer.mean_decay", config.mean_decay, 0.0, 1.0)?;
        within("optimizer.variance_decay", config.variance_decay, 0.0, 1.0)?;
        within("optimizer.momentum", config.momentum.or(0.0), 0.0, 1.0)?;
        Positive::new("optimizer.variance_scale", config.variance_scale)?;
        let start = bound.clip.get();
        let clips = config.clips.or((start / 10.0, 10.0 * start));
        Ok(Self {
            config,
            clip: CenteredClip::new(clips, bound, params)?,
            shapes: shapes(params.iter()),
            variance: TensorMap::new(),
            velocity: TensorMap::new(),
        })
    }

    /// Updates one tensor's center and s² and replaces its release w̃ by g̃.
    ///
    /// Writes s to the scale; [`synchronize`](Descent::synchronize) completes b.
    fn advance(&mut self, k: usize, release: &mut Array, noise: f64) {
        let (b1, b2) = (self.config.mean_decay, self.config.variance_decay);
        let (n1, b2, n2) = ((1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
        let (low, high) = (self.clip.limits.0 as f32, self.clip.limits.1 as f32);
        let (factor, noise) = (self.config.variance_scale as f32, (noise * noise) as f32);
        let first_variance = self.clip.first_variance as f32;
        let variance = self
            .variance
            .get_or_insert_with(k, || Array::from_fn(release.shape(), |_| first_variance));
        let (center, scale) = self.clip.tensor(k);
        elementwise::update4([variance, center, scale, release], |s2, a, b, out| {
            let deviation = *b * *out;
            let v = factor * deviation.mul_add(deviation, -noise * *b * *b);
            *s2 = b2.mul_add(*s2, n2 * v.clamp(low, high));
            *b = s2.sqrt();
            *out = *a + deviation;
            *a = n1.mul_add(deviation, *a);
        });
    }
}

impl Descent for AdaClip {
    fn bounds(&self) -> &[Bound] {
        self.clip.bounds()
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.clip.query(at))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let mut direction = answer.value;
        let momentum = self.config.momentum.or(0.0) as f32;
        for (k, release) in direction.iter_mut() {
            self.advance(k, release, answer.std[0]);
            if momentum > 0.0 {
                let velocity = self.velocity.get_or_zeros(k, release.shape());
                elementwise::update(velocity, release, |v, g| momentum.mul_add(v, g));
                release.data_mut().copy_from_slice(velocity.data());
            }
        }
        Ok(direction)
    }

    /// Gathers center and scale of all tensors and completes the scale b, which depends on all.
    fn synchronize(&mut self, gather: GatherTensors<'_>) -> Result<(), Refused> {
        self.clip.gather_center(gather)?;
        self.clip.complete_scale(gather)?;
        self.clip.limit_center();
        Ok(())
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("adaclip");
        state.set_tensors("variance", &self.variance);
        if self.config.momentum.or(0.0) > 0.0 {
            state.set_tensors("velocity", &self.velocity);
        }
        self.clip.save(&mut state);
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("adaclip")?;
        self.variance = state.take_tensors("variance", &self.shapes)?;
        if self.config.momentum.or(0.0) > 0.0 {
            self.velocity = state.take_tensors("velocity", &self.shapes)?;
        }
        self.clip.load(&mut state)
    }
}
