//! Configuration of rotary position embeddings: base frequency and scaling.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::keys::{Check, Keys, MAX_DIMENSION};
use crate::Error;

/// Configuration of rotary position embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base θ: pair i of a head of width d rotates by θ^(−2i/d) radians per position.
    pub theta: f64,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divides all frequencies by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The scaling of Llama 3.1, which depends on the rotations within the original context.
    ///
    /// Frequencies with fewer than `low` rotations are divided by the factor, those with more than
    /// `high` are unchanged, and those in between are interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Number of rotations.
        low: f64,
        /// Number of rotations, more than `low`.
        high: f64,
        /// Largest number of tokens of a text in the original training.
        original_positions: usize,
    },
}

/// The supported keys of `rope_parameters` and `rope_scaling`. Others are refused.
const KNOWN_KEYS: [&str; 8] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
];

impl RopeConfig {
    /// Parses `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (earlier).
    ///
    /// If both are present, they must agree.
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        check_full_rotation(keys)?;
        let outer = keys.get("rope_theta").map(|_| keys.number("rope_theta")).transpose()?;
        let mut parsed: Option<Self> = None;
        for (name, prefix) in
            [("rope_parameters", "rope_parameters."), ("rope_scaling", "rope_scaling.")]
        {
            let Some(map) = keys.object(name)? else { continue };
            let keys = Keys { prefix, map, ..keys };
            let inner = keys.get("rope_theta").map(|_| keys.number("rope_theta")).transpose()?;
            if let (Some(inner), Some(outer)) = (inner, outer)
                && inner != outer
            {
                return Err(keys.invalid(
                    "rope_theta",
                    format!("equal to the outer \"rope_theta\" ({outer})"),
                ));
            }
            let theta = inner.or(outer).or(parsed.map(|rope| rope.theta)).unwrap_or(10_000.0);
            let rope = Self { theta, scaling: scaling(keys)? };
            if parsed.is_some_and(|other| other != rope) {
                return Err(keys.invalid("rope_type", "the same scaling as in \"rope_parameters\""));
            }
            parsed = Some(rope);
        }
        Ok(parsed.unwrap_or(Self { theta: outer.unwrap_or(10_000.0), scaling: RopeScaling::None }))
    }

    /// Checks the values.
    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let check = Check { path };
        let positive = |x: f64| x > 0.0 && x.is_finite();
        check.require(
            self.theta >= 1.0 && self.theta.is_finite(),
            "rope_theta",
            "at least 1",
            self.theta,
        )?;
        match self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => {
                check.require(factor >= 1.0 && factor.is_finite(), "factor", "at least 1", factor)
            }
            RopeScaling::Llama3 { factor, low, high, original_positions } => {
                check.require(
                    factor >= 1.0 && factor.is_finite(),
                    "factor",
                    "at least 1",
                    factor,
                )?;
                check.require(positive(low), "low_freq_factor", "positive", low)?;
                check.require(
                    positive(high) && high > low,
                    "high_freq_factor",
                    format!("more than low_freq_factor ({low})"),
                    high,
                )?;
                check.in_range(
                    "original_max_position_embeddings",
                    original_positions,
                    MAX_DIMENSION,
                )
            }
        }
    }

    /// Writes the keys of all versions of `transformers`.
    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        let scaling = match self.scaling {
            RopeScaling::None => json!({ "rope_type": "default" }),
            RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            RopeScaling::Llama3 { factor, low, high, original_positions } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original_positions,
            }),
        };
        let mut parameters = scaling.clone();
        parameters["rope_theta"] = self.theta.into();
        map.insert("rope_parameters".into(), parameters);
        map.insert("rope_theta".into(), self.theta.into());
        map.insert(
            "rope_scaling".into(),
            if self.scaling == RopeScaling::None { Value::Null } else { scaling },
        );
    }
}

/// Refuses rotation of only a part of each head.
fn check_full_rotation(keys: Keys<'_>) -> Result<(), Error> {
    match keys.get("partial_rotary_factor") {
        Some(part) if part.as_f64() != Some(1.0) => Err(keys.invalid("partial_rotary_factor", "1")),
        _ => Ok(()),
    }
}

/// Parses the scaling of `rope_parameters` or `rope_scaling`.
fn scaling(keys: Keys<'_>) -> Result<RopeScaling, Error> {
    check_full_rotation(keys)?;
    if let Some(key) = keys.map.keys().find(|key| !KNOWN_KEYS.contains(&key.as_str())) {
        return Err(keys.invalid(key, "absent"));
    }
    let (rope_type, old_type) = (keys.string("rope_type")?, keys.string("type")?);
    if rope_type.is_some() && old_type.is_some() && rope_type != old_type {
        return Err(keys.invalid("type", "the same as rope_type"));
    }
    match rope_type.or(old_type) {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: keys.number("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: keys.number("factor")?,
            low: keys.number("low_freq_factor")?,
            high: keys.number("high_freq_factor")?,
            original_positions: keys.integer("original_max_position_embeddings")?,
        }),
        Some(_) => Err(keys.invalid(
            if rope_type.is_some() { "rope_type" } else { "type" },
            "default, linear or llama3",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RopeConfig, Error> {
        let Value::Object(map) = serde_json::from_str(text).unwrap() else { unreachable!() };
        let rope = RopeConfig::parse(Keys { path: Path::new("x"), map: &map, prefix: "" })?;
        rope.check(Path::new("x"))?;
        Ok(rope)
    }

    #[test]
    fn keys_of_all_versions_are_parsed() {
        let unscaled = |theta| RopeConfig { theta, scaling: RopeScaling::None };
        let linear = RopeConfig { theta: 7.0, scaling: RopeScaling::Linear { factor: 2.0 } };
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_positions: 8192 };
        let llama3 = concat!(
            r#""factor":8,"low_freq_factor":1.0,"high_freq_factor":4.0,"#,
            r#""original_max_position_embeddings":8192"#
        );
        for (text, expected) in [
            ("{}", unscaled(10_000.0)),
            (r#"{"rope_theta":5e5,"rope_scaling":null}"#, unscaled(5e5)),
            (r#"{"rope_parameters":{"rope_type":"default","rope_theta":3}}"#, unscaled(3.0)),
            (r#"{"rope_theta":7,"rope_scaling":{"type":"linear","factor":2}}"#, linear),
            (r#"{"rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":7}}"#, linear),
            (
                r#"{"rope_theta":7,"rope_parameters":
                    {"rope_type":"linear","factor":2.0,"partial_rotary_factor":1.0}}"#,
                linear,
            ),
            (
                &format!(r#"{{"rope_theta":7,"rope_scaling":{{"rope_type":"llama3",{llama3}}}}}"#),
                RopeConfig { theta: 7.0, scaling },
            ),
            (
                &format!(
                    r#"{{"rope_parameters":{{"rope_type":"llama3","rope_theta":7,{llama3}}}}}"#
                ),
                RopeConfig { theta: 7.0, scaling },
            ),
        ] {
            let rope = parse(text).unwrap();
            assert_eq!(rope, expected);
            let mut map = Map::new();
            rope.write(&mut map);
            assert_eq!(map["rope_parameters"]["rope_theta"], rope.theta);
            assert_eq!(map["rope_theta"], rope.theta);
            assert_eq!(parse(&Value::Object(map).to_string()).unwrap(), rope);
        }
    }

    #[test]
    fn unsupported_scaling_is_refused() {
        for (text, part) in [
            (
                r#"{"rope_scaling":{"rope_type":"yarn","factor":2}}"#,
                "\"rope_scaling.rope_type\" must be default, linear or llama3, got \"yarn\"",
            ),
            (r#"{"rope_scaling":{"type":"dynamic","factor":2}}"#, "\"rope_scaling.type\""),
            (
                r#"{"rope_scaling":{"type":"linear","rope_type":"default","factor":2}}"#,
                "the same as rope_type",
            ),
            (r#"{"rope_scaling":{"type":"linear"}}"#, "\"rope_scaling.factor\" is missing"),
            (r#"{"rope_scaling":{"type":"linear","factor":0.5}}"#, "at least 1"),
            (r#"{"rope_scaling":"linear"}"#, "an object"),
            (
                r#"{"rope_parameters":{"full_attention":{"rope_type":"linear"}}}"#,
                "\"rope_parameters.full_attention\" must be absent",
            ),
            (r#"{"rope_parameters":{"partial_rotary_factor":0.5}}"#, "partial_rotary_factor"),
            (r#"{"partial_rotary_factor":0.5}"#, "partial_rotary_factor"),
            (
                r#"{"rope_theta":3,"rope_parameters":{"rope_theta":4}}"#,
                "the outer \"rope_theta\" (3)",
            ),
            (
                r#"{"rope_parameters":{"rope_theta":4},
                    "rope_scaling":{"type":"linear","factor":2}}"#,
                "the same scaling",
            ),
            (r#"{"rope_theta":0}"#, "at least 1"),
            (r#"{"rope_theta":"1e4"}"#, "a finite number"),
            (
                r#"{"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,
                    "high_freq_factor":1,"original_max_position_embeddings":9}}"#,
                "low_freq",
            ),
            (
                r#"{"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,
                    "high_freq_factor":4}}"#,
                "original_max_position_embeddings",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
