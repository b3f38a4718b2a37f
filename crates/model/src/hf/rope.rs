//! Rotary positions: which frequencies, and how they are stretched for longer texts.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::key::{Check, Keys, LARGEST_SIDE};
use crate::Error;

/// Rotary positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The base: pair i of a head of width d turns by θ^(−2i/d) a token.
    pub theta: f64,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched for longer texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All are divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3.1's: those that turn less than `low` times in a text of the original length are
    /// divided by the factor, those that turn more than `high` times are kept, and between the two
    /// it is interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Turns.
        low: f64,
        /// Turns, more than `low`.
        high: f64,
        /// The longest text of the first training.
        original_positions: usize,
    },
}

/// What an object about rotary positions may say. Anything else could change them.
const KNOWN: [&str; 8] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
];

impl Rope {
    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before), or
    /// the two if they agree.
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        whole(keys)?;
        let outer = keys.get("rope_theta").map(|_| keys.number("rope_theta")).transpose()?;
        let mut found: Option<Self> = None;
        for (name, within) in
            [("rope_parameters", "rope_parameters."), ("rope_scaling", "rope_scaling.")]
        {
            let Some(map) = keys.object(name)? else { continue };
            let keys = Keys { within, map, ..keys };
            let inner = keys.get("rope_theta").map(|_| keys.number("rope_theta")).transpose()?;
            if let (Some(inner), Some(outer)) = (inner, outer)
                && inner != outer
            {
                return Err(keys
                    .wrong("rope_theta", format!("the same as \"rope_theta\" outside ({outer})")));
            }
            let theta = inner.or(outer).or(found.map(|rope| rope.theta)).unwrap_or(10_000.0);
            let rope = Self { theta, scaling: scaling(keys)? };
            if found.is_some_and(|other| other != rope) {
                return Err(
                    keys.wrong("rope_type", "the same rotary positions as in \"rope_parameters\"")
                );
            }
            found = Some(rope);
        }
        Ok(found.unwrap_or(Self { theta: outer.unwrap_or(10_000.0), scaling: RopeScaling::None }))
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let check = Check { path };
        let positive = |x: f64| x > 0.0 && x.is_finite();
        check.holds(
            self.theta >= 1.0 && self.theta.is_finite(),
            "rope_theta",
            "at least 1",
            self.theta,
        )?;
        match self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => {
                check.holds(factor >= 1.0 && factor.is_finite(), "factor", "at least 1", factor)
            }
            RopeScaling::Llama3 { factor, low, high, original_positions } => {
                check.holds(factor >= 1.0 && factor.is_finite(), "factor", "at least 1", factor)?;
                check.holds(positive(low), "low_freq_factor", "positive", low)?;
                check.holds(
                    positive(high) && high > low,
                    "high_freq_factor",
                    format!("more than low_freq_factor ({low})"),
                    high,
                )?;
                check.between("original_max_position_embeddings", original_positions, LARGEST_SIDE)
            }
        }
    }

    /// In the words of all versions.
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

/// Refuses to turn a part of each head only.
fn whole(keys: Keys<'_>) -> Result<(), Error> {
    match keys.get("partial_rotary_factor") {
        Some(part) if part.as_f64() != Some(1.0) => Err(keys.wrong("partial_rotary_factor", "1")),
        _ => Ok(()),
    }
}

fn scaling(keys: Keys<'_>) -> Result<RopeScaling, Error> {
    whole(keys)?;
    if let Some(key) = keys.map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(keys.wrong(key, "absent"));
    }
    let (name, other) = (keys.text("rope_type")?, keys.text("type")?);
    if name.is_some() && other.is_some() && name != other {
        return Err(keys.wrong("type", "the same as rope_type"));
    }
    match name.or(other) {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: keys.number("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: keys.number("factor")?,
            low: keys.number("low_freq_factor")?,
            high: keys.number("high_freq_factor")?,
            original_positions: keys.count("original_max_position_embeddings")?,
        }),
        Some(_) => Err(keys
            .wrong(if name.is_some() { "rope_type" } else { "type" }, "default, linear or llama3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rope, Error> {
        let Value::Object(map) = serde_json::from_str(text).unwrap() else { unreachable!() };
        let rope = Rope::parse(Keys { path: Path::new("x"), map: &map, within: "" })?;
        rope.check(Path::new("x"))?;
        Ok(rope)
    }

    #[test]
    fn old_and_new_words() {
        let plain = |theta| Rope { theta, scaling: RopeScaling::None };
        let linear = Rope { theta: 7.0, scaling: RopeScaling::Linear { factor: 2.0 } };
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_positions: 8192 };
        let llama3 = r#""factor":8,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192"#;
        for (text, expected) in [
            ("{}", plain(10_000.0)),
            (r#"{"rope_theta":5e5,"rope_scaling":null}"#, plain(5e5)),
            (r#"{"rope_parameters":{"rope_type":"default","rope_theta":3}}"#, plain(3.0)),
            (r#"{"rope_theta":7,"rope_scaling":{"type":"linear","factor":2}}"#, linear),
            (r#"{"rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":7}}"#, linear),
            (
                r#"{"rope_theta":7,"rope_parameters":{"rope_type":"linear","factor":2.0,"partial_rotary_factor":1.0}}"#,
                linear,
            ),
            (
                &format!(r#"{{"rope_theta":7,"rope_scaling":{{"rope_type":"llama3",{llama3}}}}}"#),
                Rope { theta: 7.0, scaling },
            ),
            (
                &format!(
                    r#"{{"rope_parameters":{{"rope_type":"llama3","rope_theta":7,{llama3}}}}}"#
                ),
                Rope { theta: 7.0, scaling },
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
    fn what_would_turn_otherwise_is_refused() {
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
            (r#"{"rope_theta":3,"rope_parameters":{"rope_theta":4}}"#, "outside (3)"),
            (
                r#"{"rope_parameters":{"rope_theta":4},"rope_scaling":{"type":"linear","factor":2}}"#,
                "the same rotary positions",
            ),
            (r#"{"rope_theta":0}"#, "at least 1"),
            (r#"{"rope_theta":"1e4"}"#, "a finite number"),
            (
                r#"{"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,"original_max_position_embeddings":9}}"#,
                "low_freq",
            ),
            (
                r#"{"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}}"#,
                "original_max_position_embeddings",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
