//! DP-Adam, DP-AdamW and DP-AdamBC.
//!
//! m and v are moving averages of the released gradient and its square, both corrected for their
//! start at zero; the direction is m̂/(√v̂ + ε). The noise of a release adds its variance to v̂,
//! which in private training is often most of it; DP-AdamBC (Tang, Shpilevskiy, Lécuyer 2024) takes
//! it off again: m̂/√max(v̂ − s², floor), s the known standard deviation of the noise.

use crate::descent::{Gather, forget};
use crate::flat::Asking;
use crate::{Descent, Flat, Note, State, elementwise, within};
use protocol::{Bound, Geometry, GradientQuery, Noisy, Params, Refused};
use tensor::Array;

/// Its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How slowly the averages of the gradient and of its square move.
    pub betas: (f64, f64),
    /// Decoupled weight decay; 0 for none. With it the optimizer is AdamW.
    pub weight_decay: f64,
    /// What is done about the noise in v̂.
    pub denominator: Denominator,
}

/// What the averaged gradient is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Denominator {
    /// √v̂ + ε
    Plain {
        /// ε
        epsilon: f64,
    },
    /// √max(v̂ − s², floor)
    Corrected {
        /// The floor.
        floor: f64,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            betas: (0.9, 0.999),
            weight_decay: 0.0,
            denominator: Denominator::Plain { epsilon: 1e-8 },
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), Refused> {
        within("β₁", self.betas.0, 0.0, 1.0)?;
        within("β₂", self.betas.1, 0.0, 1.0)?;
        within("the weight decay", self.weight_decay, 0.0, f64::INFINITY)?;
        match self.denominator {
            Denominator::Plain { epsilon } => within("ε", epsilon, 0.0, f64::INFINITY),
            Denominator::Corrected { floor } => {
                within("the least variance", floor, f64::from(f32::MIN_POSITIVE), f64::INFINITY)
            }
        }
    }
}

/// The moments of some tensors.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    config: Config,
    first: Vec<Array>,
    second: Vec<Array>,
    steps: u64,
}

impl Moments {
    pub(crate) fn new<'a>(config: Config, tensors: impl Iterator<Item = &'a Array>) -> Self {
        let first: Vec<Array> = tensors.map(|tensor| Array::zeros(tensor.shape())).collect();
        Self { config, second: first.clone(), first, steps: 0 }
    }

    /// Takes released gradients with noise of the standard deviation `std` in, and leaves `scale`
    /// times the directions in their places.
    pub(crate) fn advance<'a>(
        &mut self,
        gradients: impl Iterator<Item = &'a mut Array>,
        std: f64,
        scale: f64,
    ) {
        self.steps += 1;
        let (b1, b2) = self.config.betas;
        let correction = |beta: f64| 1.0 - beta.powi(self.steps.min(i32::MAX as u64) as i32);
        let (c1, c2) = ((scale / correction(b1)) as f32, (1.0 / correction(b2)) as f32);
        let (b1, n1, b2, n2) = (b1 as f32, (1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
        let denominator = self.config.denominator;
        for ((first, second), gradient) in
            self.first.iter_mut().zip(&mut self.second).zip(gradients)
        {
            let moments = |m: &mut f32, v: &mut f32, g: f32| {
                *m = b1.mul_add(*m, n1 * g);
                *v = b2.mul_add(*v, n2 * g * g);
            };
            match denominator {
                Denominator::Plain { epsilon } => {
                    let epsilon = epsilon as f32;
                    elementwise::update3(first, second, gradient, |m, v, g| {
                        moments(m, v, *g);
                        *g = c1 * *m / ((c2 * *v).sqrt() + epsilon);
                    });
                }
                Denominator::Corrected { floor } => {
                    let (noise, floor) = ((std * std) as f32, floor as f32);
                    elementwise::update3(first, second, gradient, |m, v, g| {
                        moments(m, v, *g);
                        *g = c1 * *m / c2.mul_add(*v, -noise).max(floor).sqrt();
                    });
                }
            }
        }
    }

    /// Remembers nothing of tensors that are not its own; its i-th tensor is tensor `of(i)`.
    pub(crate) fn keep(&mut self, of: impl Fn(usize) -> usize, own: &dyn Fn(usize) -> bool) {
        forget(self.first.iter_mut(), &of, own);
        forget(self.second.iter_mut(), &of, own);
    }

    pub(crate) fn save(&self) -> State {
        let mut state = State::new("moments");
        state.set_number("steps", self.steps as f64);
        state.set_tensors("first", &self.first);
        state.set_tensors("second", &self.second);
        state
    }

    pub(crate) fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.is_of("moments")?;
        self.steps = state.count("steps")?;
        state.tensors_into("first", &mut self.first)?;
        state.tensors_into("second", &mut self.second)
    }
}

/// Adam on released gradients.
pub struct Adam {
    asking: Asking,
    moments: Moments,
}

impl Adam {
    /// For parameters of these shapes.
    ///
    /// # Errors
    /// If a number makes no sense.
    pub fn new(config: Config, flat: Flat, params: &Params) -> Result<Self, Refused> {
        config.check()?;
        Ok(Self {
            asking: Asking::flat(flat, params),
            moments: Moments::new(config, params.iter()),
        })
    }
}

impl Descent for Adam {
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
        let mut direction = answer.value;
        self.moments.advance(direction.iter_mut(), answer.std[0], 1.0);
        Ok(direction)
    }

    fn keep(&mut self, own: &dyn Fn(usize) -> bool) {
        self.moments.keep(|k| k, own);
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        elementwise::step(params, direction, rate, self.moments.config.weight_decay);
        Ok(Vec::new())
    }

    fn save(&self) -> State {
        self.moments.save()
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        self.moments.load(state)
    }
}
