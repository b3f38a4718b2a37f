//! DP-SGD with momentum (Abadi et al. 2016): v ← μ v + g, θ ← (1 − η λ) θ − η v.

use crate::descent::{Gather, forget};
use crate::flat::Asking;
use crate::{Descent, Flat, Note, State, elementwise, within};
use protocol::{Bound, Geometry, GradientQuery, Noisy, Params, Refused};

/// Its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// μ; 0 for none.
    pub momentum: f64,
    /// λ: decoupled weight decay; 0 for none.
    pub weight_decay: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0 }
    }
}

/// Gradient descent with a heavy ball.
pub struct Sgd {
    config: Config,
    asking: Asking,
    velocity: Params,
}

impl Sgd {
    /// For parameters of these shapes.
    ///
    /// # Errors
    /// If a number makes no sense.
    pub fn new(config: Config, flat: Flat, params: &Params) -> Result<Self, Refused> {
        within("the momentum", config.momentum, 0.0, 1.0)?;
        within("the weight decay", config.weight_decay, 0.0, f64::INFINITY)?;
        Ok(Self { config, asking: Asking::flat(flat, params), velocity: params.zeros_like() })
    }
}

impl Descent for Sgd {
    fn bounds(&self) -> &[Bound] {
        &self.asking.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.asking.query(at, &Geometry::Identity))
    }

    fn direction(
        &mut self,
        _: &Params,
        answer: Noisy<Params>,
        _: Gather<'_>,
    ) -> Result<Params, Refused> {
        let momentum = self.config.momentum as f32;
        for (velocity, gradient) in self.velocity.iter_mut().zip(answer.value.iter()) {
            elementwise::update(velocity, gradient, |v, g| momentum.mul_add(v, g));
        }
        Ok(self.velocity.clone())
    }

    fn keep(&mut self, own: &dyn Fn(usize) -> bool) {
        forget(self.velocity.iter_mut(), |k| k, own);
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        elementwise::step(params, direction, rate, self.config.weight_decay);
        Ok(Vec::new())
    }

    fn save(&self) -> State {
        let mut state = State::new("sgd");
        state.set_params("velocity", &self.velocity);
        state
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.is_of("sgd")?;
        state.params_into("velocity", &mut self.velocity)
    }
}
