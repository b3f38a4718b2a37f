//! DP-Adam, DP-AdamW and DP-AdamBC.
//!
//! m and v are moving averages of the released gradient and its square; m̂ and v̂ are corrected for
//! their start at zero. The direction is m̂/(√v̂ + ε). The variance of the noise is part of v̂, and
//! in private training often most of it. DP-AdamBC (Tang, Shpilevskiy, Lécuyer 2024) subtracts it:
//! m̂/√max(v̂ − s², floor), where s is the known standard deviation of the noise.

use crate::config::{Hyperparameters, Setting};
use crate::gradient_noise::QueryTemplate;
use crate::state::{Shapes, shapes};
use crate::{Auto, Descent, GradientNoise, State, elementwise, keys, within};
use protocol::{Bound, Geometry, GradientQuery, Noisy, Params, Refused, TensorMap};
use tensor::Array;

keys! {
    /// Hyperparameters of DP-Adam.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct AdamConfig {
        /// β₁ and β₂: decay of the averages of the gradient and of its square.
        pub betas: (f64, f64) = BETAS,
        /// ε: added to √v̂.
        pub epsilon: f64 = EPSILON,
    }
}

keys! {
    /// Hyperparameters of DP-AdamW.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct AdamWConfig {
        /// β₁ and β₂: decay of the averages of the gradient and of its square.
        pub betas: (f64, f64) = BETAS,
        /// ε: added to √v̂.
        pub epsilon: f64 = EPSILON,
        /// Decoupled weight decay; 0.01 by default.
        pub weight_decay: Auto<f64> = Auto::Auto,
    }
}

keys! {
    /// Hyperparameters of DP-AdamBC.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct AdamBcConfig {
        /// β₁ and β₂: decay of the averages of the gradient and of its square.
        pub betas: (f64, f64) = BETAS,
        /// The least variance that is divided by; by default a quarter of the variance of the noise.
        pub variance_floor: Auto<f64> = Auto::Auto,
        /// Decoupled weight decay; 0 by default.
        pub weight_decay: Auto<f64> = Auto::Auto,
    }
}

impl Hyperparameters for AdamConfig {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Rule::plain(self.betas, self.epsilon).build(noise, setting)
    }
}

impl Hyperparameters for AdamWConfig {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        let plain = Rule::plain(self.betas, self.epsilon);
        Rule { weight_decay: self.weight_decay.or(0.01), ..plain }.build(noise, setting)
    }
}

impl Hyperparameters for AdamBcConfig {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        let rule = Rule {
            betas: self.betas,
            weight_decay: self.weight_decay.or(0.0),
            denominator: Denominator::Corrected { floor: self.variance_floor },
        };
        rule.build(noise, setting)
    }
}

/// Default β₁ and β₂.
pub(crate) const BETAS: (f64, f64) = (0.9, 0.999);

/// Default floor of the variance without noise, relative to the variance of the noise.
const FLOOR: f64 = 0.25;

/// Default ε.
pub(crate) const EPSILON: f64 = 1e-8;

/// The update rule shared by DP-Adam, DP-AdamW and DP-AdamBC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// β₁ and β₂: decay of the averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// Decoupled weight decay; 0 for none.
    pub weight_decay: f64,
    /// What the averaged gradient is divided by.
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
        /// The floor; by default s²/4, so that directions do not depend on the clip bound.
        floor: Auto<f64>,
    },
}

impl Rule {
    /// Adam without weight decay.
    pub fn plain(betas: (f64, f64), epsilon: f64) -> Self {
        Self { betas, weight_decay: 0.0, denominator: Denominator::Plain { epsilon } }
    }

    /// Refuses values out of range.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        within("optimizer.betas", self.betas.0, 0.0, 1.0)?;
        within("optimizer.betas", self.betas.1, 0.0, 1.0)?;
        within("optimizer.weight_decay", self.weight_decay, 0.0, f64::INFINITY)?;
        match self.denominator {
            Denominator::Plain { epsilon } => {
                within("optimizer.epsilon", epsilon, 0.0, f64::INFINITY)?
            }
            Denominator::Corrected { floor } => {
                let least = f64::from(f32::MIN_POSITIVE);
                within("optimizer.variance_floor", floor.or(1.0), least, f64::INFINITY)?
            }
        };
        Ok(())
    }

    fn build(
        self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(Adam::new(self, noise, setting.params)?))
    }
}

/// First and second moments of some tensors.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    rule: Rule,
    shapes: Shapes,
    first: TensorMap,
    second: TensorMap,
    steps: u64,
}

impl Moments {
    pub(crate) fn new(rule: Rule, shapes: Shapes) -> Self {
        Self { rule, shapes, first: TensorMap::new(), second: TensorMap::new(), steps: 0 }
    }

    /// Updates the moments with released gradients and replaces these by directions.
    ///
    /// `std` is the standard deviation of their noise. Directions are multiplied by `scale`.
    pub(crate) fn advance<'a>(
        &mut self,
        gradients: impl Iterator<Item = (usize, &'a mut Array)>,
        std: f64,
        scale: f64,
    ) {
        self.steps += 1;
        let (b1, b2) = self.rule.betas;
        let correction = |beta: f64| 1.0 - beta.powi(self.steps.min(i32::MAX as u64) as i32);
        let (c1, c2) = ((scale / correction(b1)) as f32, (1.0 / correction(b2)) as f32);
        let (b1, n1, b2, n2) = (b1 as f32, (1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
        let denominator = self.rule.denominator;
        for (k, gradient) in gradients {
            let first = self.first.get_or_zeros(k, gradient.shape());
            let second = self.second.get_or_zeros(k, gradient.shape());
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
                    let (noise, floor) = ((std * std) as f32, floor.or(FLOOR * std * std) as f32);
                    let floor = floor.max(f32::MIN_POSITIVE);
                    elementwise::update3(first, second, gradient, |m, v, g| {
                        moments(m, v, *g);
                        *g = c1 * *m / c2.mul_add(*v, -noise).max(floor).sqrt();
                    });
                }
            }
        }
    }

    pub(crate) fn save(&self) -> State {
        let mut state = State::new("moments");
        state.set_number("steps", self.steps as f64);
        state.set_tensors("first", &self.first);
        state.set_tensors("second", &self.second);
        state
    }

    pub(crate) fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("moments")?;
        self.steps = state.count("steps")?;
        self.first = state.take_tensors("first", &self.shapes)?;
        self.second = state.take_tensors("second", &self.shapes)?;
        Ok(())
    }
}

/// Adam on released gradients.
pub struct Adam {
    template: QueryTemplate,
    moments: Moments,
}

impl Adam {
    /// Creates the optimizer for parameters of these shapes.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(rule: Rule, noise: GradientNoise, params: &Params) -> Result<Self, Refused> {
        rule.check()?;
        Ok(Self {
            template: QueryTemplate::one_block(noise, params.len()),
            moments: Moments::new(rule, shapes(params.iter())),
        })
    }
}

impl Descent for Adam {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.template.query(at, &Geometry::Identity))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let mut direction = answer.value;
        self.moments.advance(direction.iter_mut(), answer.std[0], 1.0);
        Ok(direction)
    }

    fn weight_decay(&self, _: usize) -> f64 {
        self.moments.rule.weight_decay
    }

    fn save(&self) -> Result<State, Refused> {
        Ok(self.moments.save())
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        self.moments.load(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the default floor, gradients and noise of another scale have the same direction.
    #[test]
    fn corrected_directions_do_not_depend_on_the_clip_bound() {
        let directions = |scale: f32, floor: Auto<f64>| {
            let denominator = Denominator::Corrected { floor };
            let rule = Rule { denominator, ..Rule::plain(BETAS, EPSILON) };
            let shape = [Array::zeros([3])];
            let mut moments = Moments::new(rule, shapes(shape.iter()));
            // The second element is below the noise, so that the floor decides.
            let mut gradient = Array::new([3], vec![3.0 * scale, 0.5 * scale, -scale]).unwrap();
            moments.advance([(0, &mut gradient)].into_iter(), f64::from(scale), 1.0);
            gradient.data().to_vec()
        };
        let expected = [3.0 / 8.0f32.sqrt(), 0.5 / 0.5, -1.0 / 0.5];
        for scale in [1e-5, 1.0, 300.0] {
            for (got, expected) in directions(scale, Auto::Auto).iter().zip(expected) {
                assert!((got - expected).abs() < 1e-3, "{scale}: {got} and {expected}");
            }
        }
        assert!(directions(300.0, Auto::Value(1e-8))[1] > 1e3);
    }
}
