//! An exponential moving average (EMA) of the parameters, released instead of the last ones.
//!
//! The parameters of every step are computed from released values, so their average costs no
//! privacy. It removes noise of the last steps: with noise in every gradient and a learning rate
//! that does not vanish, single iterates scatter around the path of their mean.
//!
//! After step t, counted from 0: θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + t)/(10 + t)), after
//! θ̄ = θ before the first step. So the average covers about the last ninth of the steps until
//! 1/(1 − decay) of them are covered (De et al. 2022 use the same factors).
//!
//! Of low-rank pairs, the factors are averaged. That is not the average of their products, but near
//! it if the factors change little in the steps that the average covers.

use crate::{State, elementwise};
use protocol::{Params, Refused};

/// The largest decay.
const MAX_DECAY: f64 = 0.9999;

/// The name of the average in a saved state.
const AVERAGE: &str = "average";

/// The moving average of the parameters of all steps.
#[derive(Clone, Debug)]
pub(crate) struct Averaging {
    decay: f64,
    average: Params,
}

impl Averaging {
    /// Creates an average that covers about 1/(1 − `decay`) steps.
    ///
    /// # Errors
    /// If the decay is not between 0 and 0.9999. With a larger one, changes of a parameter would be
    /// lost in rounding.
    pub(crate) fn new(decay: f64, params: &Params) -> Result<Self, Refused> {
        // Tests for the valid case, so that NaN is refused.
        if (0.0..=MAX_DECAY).contains(&decay) {
            return Ok(Self { decay, average: params.clone() });
        }
        Err(Refused::Query(format!(
            "optimizer.ema_decay: expected at least 0 and at most {MAX_DECAY}, got {decay}"
        )))
    }

    /// Starts the average at the parameters before the first step.
    pub(crate) fn start(&mut self, params: &Params) {
        self.average = params.clone();
    }

    /// Adds the parameters after a step, counted from 0.
    pub(crate) fn add(&mut self, step: u64, params: &Params) {
        let step = step as f64;
        let weight = (1.0 - self.decay.min((1.0 + step) / (10.0 + step))) as f32;
        for (average, param) in self.average.iter_mut().zip(params.iter()) {
            elementwise::update(average, param, |a, p| weight.mul_add(p - a, a));
        }
    }

    /// Returns the average.
    pub(crate) fn get(&self) -> &Params {
        &self.average
    }

    pub(crate) fn save(&self) -> State {
        let mut state = State::new("averaging");
        state.set_number("decay", self.decay);
        state.set_shared(AVERAGE, &self.average);
        state
    }

    /// Returns the average in a saved state.
    pub(crate) fn saved(state: &State) -> Option<&Params> {
        state.shared.get(AVERAGE)
    }

    pub(crate) fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("averaging")?;
        let decay = state.number("decay")?;
        if decay != self.decay {
            return Err(Refused::Query(format!(
                "optimizer.ema_decay: expected {decay}, as in the saved state; got {}",
                self.decay
            )));
        }
        self.average = state.take_shared(AVERAGE, &self.average)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Array;

    fn params(value: f32) -> Params {
        Params::new(vec![Array::from_fn([2], |i| value + i as f32)])
    }

    /// Against the weight of each iterate: its own share times the factors of all later steps.
    ///
    /// With the decays 0.05 and 0.2 the decay applies, from the first step on and from the third.
    #[test]
    fn the_average_has_the_weights_of_its_definition() {
        let values: [f32; 8] = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0];
        for decay in [0.0, 0.05, 0.2, 0.9999] {
            let mut averaging = Averaging::new(decay, &params(7.0)).unwrap();
            averaging.start(&params(values[0]));
            for (step, &value) in values[1..].iter().enumerate() {
                averaging.add(step as u64, &params(value));
            }
            let factor = |step: usize| f64::min(decay, (step + 1) as f64 / (step + 10) as f64);
            let weight = |i: usize| {
                let own = if i == 0 { 1.0 } else { 1.0 - factor(i - 1) };
                own * (i..values.len() - 1).map(factor).product::<f64>()
            };
            let expected: f64 =
                values.iter().enumerate().map(|(i, &x)| weight(i) * f64::from(x)).sum();
            let average = averaging.get();
            assert!((f64::from(average[0].data()[0]) - expected).abs() < 1e-5, "{decay}");
            assert!((f64::from(average[0].data()[1]) - expected - 1.0).abs() < 1e-5, "{decay}");
        }
    }

    #[test]
    fn a_restored_average_continues() {
        let new = || Averaging::new(0.9, &params(1.0)).unwrap();
        let (mut whole, mut restored) = (new(), new());
        whole.add(0, &params(2.0));
        restored.load(whole.save()).unwrap();
        for average in [&mut whole, &mut restored] {
            average.add(1, &params(5.0));
        }
        assert_eq!(whole.get(), restored.get());
        assert!(new().load(State::new("averaging")).is_err());
        let refused = Averaging::new(0.5, &params(0.0)).unwrap().load(whole.save()).unwrap_err();
        assert!(refused.to_string().contains("expected 0.9, as in the saved state; got 0.5"));
        for decay in [-0.1, 0.99999, 1.0, f64::NAN] {
            assert!(Averaging::new(decay, &params(0.0)).is_err());
        }
    }
}
