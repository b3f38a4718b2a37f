//! DP-SGD with momentum (Abadi et al. 2016): v ← μ v + g, θ ← (1 − η λ) θ − η v.

use crate::config::{Hyperparameters, Setting};
use crate::gradient_noise::QueryTemplate;
use crate::state::{Shapes, shapes};
use crate::{Auto, Descent, GradientNoise, State, elementwise, keys, within};
use protocol::{Bound, Geometry, GradientQuery, Noisy, Params, Refused, TensorMap};

keys! {
    /// Hyperparameters of DP-SGD.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// μ; 0 for none, 0.9 by default.
        pub momentum: Auto<f64> = Auto::Auto,
        /// λ: decoupled weight decay; 0 by default.
        pub weight_decay: Auto<f64> = Auto::Auto,
    }
}

impl Config {
    fn momentum(&self) -> f64 {
        self.momentum.or(0.9)
    }
}

impl Hyperparameters for Config {
    fn rate_scale(&self, clip: f64, setting: &Setting<'_>) -> f64 {
        setting.sgd_scale(clip, self.momentum())
    }

    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(Sgd::new(*self, noise, setting.params)?))
    }
}

/// Gradient descent with heavy-ball momentum.
pub struct Sgd {
    momentum: f64,
    weight_decay: f64,
    template: QueryTemplate,
    shapes: Shapes,
    velocity: TensorMap,
}

impl Sgd {
    /// Creates the optimizer for parameters of these shapes.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(config: Config, noise: GradientNoise, params: &Params) -> Result<Self, Refused> {
        let decay = config.weight_decay.or(0.0);
        Ok(Self {
            momentum: within("optimizer.momentum", config.momentum(), 0.0, 1.0)?,
            weight_decay: within("optimizer.weight_decay", decay, 0.0, f64::INFINITY)?,
            template: QueryTemplate::one_block(noise, params.len()),
            shapes: shapes(params.iter()),
            velocity: TensorMap::new(),
        })
    }
}

impl Descent for Sgd {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.template.query(at, &Geometry::Identity))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let momentum = self.momentum as f32;
        for (k, gradient) in answer.value.iter() {
            let velocity = self.velocity.get_or_zeros(k, gradient.shape());
            elementwise::update(velocity, gradient, |v, g| momentum.mul_add(v, g));
        }
        Ok(self.velocity.clone())
    }

    fn weight_decay(&self, _: usize) -> f64 {
        self.weight_decay
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("sgd");
        state.set_tensors("velocity", &self.velocity);
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("sgd")?;
        self.velocity = state.take_tensors("velocity", &self.shapes)?;
        Ok(())
    }
}
