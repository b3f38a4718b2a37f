//! Learning rates that are fixed in advance.

use crate::{FoundRate, Search, State};
use protocol::{Oracle, Params, Positive, Refused};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A learning rate for each step, fixed in advance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: Positive,
    /// How it decreases after the warm-up.
    pub shape: Shape,
    /// The rate at the end as a fraction of the peak, unless it is constant.
    pub end: f64,
    /// Number of steps in which it increases to the peak.
    pub warm_up: u64,
    /// Number of steps.
    pub steps: u64,
}

/// How a learning rate decreases after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// It stays at the peak.
    #[default]
    Constant,
    /// Linearly.
    Linear,
    /// Along half a period of a cosine.
    Cosine,
}

/// The length of the warm-up, as a number of steps or as a share of all steps.
///
/// In text, a whole number is a number of steps, and a number between 0 and 1 is a share. 1.0 is
/// neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmUp {
    /// A number of steps; 0 for no warm-up.
    Steps(u64),
    /// A share of all steps: more than 0 and less than 1.
    Share(f64),
}

impl WarmUp {
    /// The number of steps in a run of `steps` steps.
    pub fn of(self, steps: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Share(share) => (share * steps as f64).round() as u64,
        }
    }
}

impl Serialize for WarmUp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Steps(steps) => serializer.serialize_u64(steps),
            Self::Share(share) => serializer.serialize_f64(share),
        }
    }
}

impl<'de> Deserialize<'de> for WarmUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WarmUpVisitor)
    }
}

struct WarmUpVisitor;

impl Visitor<'_> for WarmUpVisitor {
    type Value = WarmUp;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number of steps, or a share between 0 and 1 such as 0.1")
    }

    fn visit_u64<E: Error>(self, steps: u64) -> Result<WarmUp, E> {
        Ok(WarmUp::Steps(steps))
    }

    fn visit_i64<E: Error>(self, steps: i64) -> Result<WarmUp, E> {
        let refused = |_| E::invalid_value(Unexpected::Signed(steps), &self);
        u64::try_from(steps).map(WarmUp::Steps).map_err(refused)
    }

    fn visit_f64<E: Error>(self, share: f64) -> Result<WarmUp, E> {
        // Tests for the valid case, so that NaN is refused.
        if share > 0.0 && share < 1.0 {
            return Ok(WarmUp::Share(share));
        }
        Err(E::invalid_value(Unexpected::Float(share), &self))
    }
}

impl Schedule {
    /// Creates a schedule with the same rate in every step.
    ///
    /// # Errors
    /// If the rate is not a finite number greater than 0.
    pub fn constant(rate: f64) -> Result<Self, Refused> {
        Ok(Self {
            peak: Positive::new("the learning rate", rate)?,
            shape: Shape::Constant,
            end: 0.0,
            warm_up: 0,
            steps: 0,
        })
    }

    /// Returns the sum of the rates of all steps, to about a thousandth for long runs.
    pub fn sum(&self) -> f64 {
        let samples = self.steps.min(10_000);
        let stride = self.steps as f64 / samples.max(1) as f64;
        (0..samples).map(|i| stride * self.at(((i as f64 + 0.5) * stride) as u64)).sum()
    }

    /// Returns the rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let peak = self.peak.get();
        if step < self.warm_up {
            return peak * (step + 1) as f64 / self.warm_up as f64;
        }
        let (done, all) = (step - self.warm_up, self.steps.saturating_sub(self.warm_up));
        let progress = if all == 0 { 0.0 } else { (done as f64 / all as f64).min(1.0) };
        let end = self.end;
        match self.shape {
            Shape::Constant => peak,
            Shape::Linear => peak * (1.0 - (1.0 - end) * progress),
            Shape::Cosine => {
                peak * (end + (1.0 - end) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()))
            }
        }
    }
}

impl Search for Schedule {
    fn rate(
        &mut self,
        step: u64,
        _: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        _: &mut dyn Oracle,
    ) -> Result<FoundRate, Refused> {
        Ok(FoundRate { rate: self.at(step), notes: Vec::new() })
    }

    fn save(&self) -> State {
        let mut state = State::new("schedule");
        // A default rate may depend on the initial parameters, which a resumed run does not have.
        state.set_number("peak", self.peak.get());
        state
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        state.check_kind("schedule")?;
        self.peak = Positive::new("the learning rate", state.number("peak")?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_a_number_of_steps_or_a_share() {
        let read = |text: &str| {
            let text = format!("name = \"dp-sgd\"\nwarm_up = {text}");
            toml::from_str::<crate::OptimizerConfig>(&text).map(|config| config.warm_up)
        };
        use crate::Auto::{Auto, Value};
        for (text, expected) in [
            ("7", Value(WarmUp::Steps(7))),
            ("0", Value(WarmUp::Steps(0))),
            ("1", Value(WarmUp::Steps(1))),
            ("0.1", Value(WarmUp::Share(0.1))),
            ("\"auto\"", Auto),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        for text in ["1.0", "0.0", "-1", "-0.5", "nan", "10.5", "\"long\"", "true"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!((WarmUp::Share(0.1).of(200), WarmUp::Steps(9).of(200)), (20, 9));
        let config = crate::OptimizerConfig {
            warm_up: Value(WarmUp::Share(0.25)),
            ..crate::OptimizerConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<crate::OptimizerConfig>(&text).unwrap(), config);
    }

    /// The sum that default rates are computed from, against a direct sum.
    #[test]
    fn sums_are_those_of_all_steps() {
        let constant = Schedule::constant(0.3).unwrap();
        for shape in [Shape::Constant, Shape::Linear, Shape::Cosine] {
            for (warm_up, steps) in [(0, 1), (7, 60), (100, 9_999), (5_000, 123_457)] {
                let schedule = Schedule { shape, warm_up, steps, ..constant };
                let direct: f64 = (0..steps).map(|step| schedule.at(step)).sum();
                assert!((schedule.sum() / direct - 1.0).abs() < 2e-3, "{schedule:?}");
            }
        }
        assert_eq!(Schedule { steps: 0, ..constant }.sum(), 0.0);
    }

    #[test]
    fn they_rise_and_fall() {
        let constant = Schedule::constant(0.1).unwrap();
        let of = |(shape, end), warm_up, step| {
            Schedule { shape, end, warm_up, steps: 100, ..constant }.at(step)
        };
        assert_eq!(constant.at(12345), 0.1);
        assert!((of((Shape::Linear, 0.0), 0, 50) - 0.05).abs() < 1e-12);
        assert!((of((Shape::Linear, 0.5), 0, 100) - 0.05).abs() < 1e-12);
        assert!((of((Shape::Cosine, 0.0), 0, 50) - 0.05).abs() < 1e-12);
        assert!(
            of((Shape::Cosine, 0.1), 0, 99) > 0.01
                && (of((Shape::Cosine, 0.1), 0, 200) - 0.01).abs() < 1e-12
        );
        for shape in [(Shape::Constant, 0.0), (Shape::Linear, 0.0), (Shape::Cosine, 0.0)] {
            assert!(
                (of(shape, 10, 4) - 0.05).abs() < 1e-12
                    && of(shape, 10, 9) == 0.1
                    && of(shape, 10, 10) == 0.1
            );
        }
        assert!(Schedule::constant(0.0).is_err() && Schedule::constant(f64::NAN).is_err());
    }
}
