//! Checks of the keys of a configuration: unknown keys, suggestions, and keys with invalid values.

use super::{Config, ConfigError};
use optim::{OptimizerConfig, registry};
use serde::Deserialize;
use toml::{Table, Value};

/// Reads a configuration from a table. Every key must exist and be read by the optimizer.
pub(super) fn read(mut table: Table) -> Result<Config, ConfigError> {
    if table.contains_key("compare") {
        return Err(ConfigError::Value {
            key: "compare".into(),
            message: "the section describes several runs, which muffle compare trains; remove it \
                to train one run"
                .into(),
        });
    }
    let name = match table.get("optimizer").and_then(|section| section.get("name")) {
        None => OptimizerConfig::default().name(),
        Some(Value::String(name)) => registry::find(name).map_err(optimizer_name_error)?.name,
        Some(other) => {
            return Err(optimizer_name_error(format!(
                "expected a string, got {}",
                other.type_str()
            )));
        }
    };
    refuse_unknown_keys(&table, &all_keys(name)?, "", name)?;
    if let Some(Value::Table(section)) = table.get_mut("optimizer") {
        section.insert("name".into(), name.into());
    }
    Config::deserialize(table.clone()).map_err(|error| {
        find_invalid_value(&table, &mut Vec::new(), name).unwrap_or(ConfigError::Syntax(error))
    })
}

/// Makes an error about the name of the optimizer.
pub(super) fn optimizer_name_error(message: String) -> ConfigError {
    ConfigError::Value { key: "optimizer.name".into(), message }
}

/// All keys of a configuration with this optimizer, optional ones included.
fn all_keys(optimizer: &str) -> Result<Table, ConfigError> {
    let optimizer = OptimizerConfig::named(optimizer).map_err(optimizer_name_error)?;
    let mut complete = Config { optimizer, ..Config::default() };
    complete.data.validation = Some(Default::default());
    complete.data.test = Some(Default::default());
    for option in
        [&mut complete.data.group, &mut complete.data.text_column, &mut complete.data.label_column]
    {
        *option = Some(String::new());
    }
    complete.privacy.seed = Some(0);
    Ok(Table::try_from(&complete)?)
}

/// The keys of `[optimizer]` that an optimizer reads.
pub(super) fn optimizer_keys(name: &str) -> Result<Table, ConfigError> {
    Ok(Table::try_from(OptimizerConfig::named(name).map_err(optimizer_name_error)?)?)
}

/// Refuses keys that do not exist, and suggests one that does.
fn refuse_unknown_keys(
    table: &Table,
    known: &Table,
    section: &str,
    optimizer: &'static str,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        let path = join(section, key);
        let Some(expected) = known.get(key) else {
            let elsewhere = if section.is_empty() { section_of(key, known) } else { None };
            let hint = elsewhere.map_or_else(
                || suggestion(key, known),
                |section| format!("it belongs in [{section}]"),
            );
            return Err(if section == "optimizer" {
                ConfigError::UnreadKey { key: path, optimizer, readers: readers(key), hint }
            } else {
                ConfigError::UnknownKey { key: path, hint }
            });
        };
        if let (Value::Table(inner), Value::Table(known)) = (value, expected) {
            refuse_unknown_keys(inner, known, &path, optimizer)?;
        }
    }
    Ok(())
}

/// The most similar key, or all keys if none is similar.
fn suggestion(key: &str, known: &Table) -> String {
    let similarity = |other: &str| strsim::jaro_winkler(key, other);
    let nearest = known.keys().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest {
        Some(nearest) if similarity(nearest) > 0.75 => format!("did you mean {nearest:?}?"),
        _ => format!(
            "expected one of {}",
            known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// The optimizers that read a key of `[optimizer]`.
fn readers(key: &str) -> Vec<&'static str> {
    registry::names()
        .filter(|name| optimizer_keys(name).is_ok_and(|keys| keys.contains_key(key)))
        .collect()
}

/// The section that has a key of this name.
fn section_of<'a>(key: &str, known: &'a Table) -> Option<&'a str> {
    known
        .iter()
        .find(|(_, section)| section.as_table().is_some_and(|table| table.contains_key(key)))
        .map(|(name, _)| name.as_str())
}

/// Finds the key with an invalid value by parsing each value alone.
///
/// The error for the whole table names the section only, because the hyperparameters of an
/// optimizer are parsed together, after its name.
fn find_invalid_value(
    table: &Table,
    path: &mut Vec<String>,
    optimizer: &str,
) -> Option<ConfigError> {
    for (key, value) in table {
        path.push(key.clone());
        let error = match value {
            Value::Table(inner) => find_invalid_value(inner, path, optimizer),
            value => {
                let mut nested = value.clone();
                for key in path.iter().rev() {
                    let mut outer = Table::new();
                    outer.insert(key.clone(), nested);
                    nested = Value::Table(outer);
                }
                if let Some(Value::Table(section)) = nested.get_mut("optimizer") {
                    section.insert("name".into(), optimizer.into());
                }
                Config::deserialize(nested).err().map(|error| ConfigError::Value {
                    key: path.join("."),
                    message: one_line(error.message()),
                })
            }
        };
        if error.is_some() {
            return error;
        }
        path.pop();
    }
    None
}

pub(super) fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.into() } else { format!("{section}.{key}") }
}

/// Joins the lines of an error, without the excerpt of the file.
pub(super) fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('|') && !line.contains(" |"))
        .collect();
    lines.join(": ").trim_end_matches(':').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Auto, LearningRate};

    fn refused(text: &str) -> String {
        let refused = Config::parse(text).unwrap_err().to_string();
        assert_eq!(refused.lines().count(), 1, "{refused}");
        refused
    }

    #[test]
    fn unknown_keys_are_errors_with_a_suggestion() {
        for (text, part) in [
            ("[privacy]\nepsilom = 8.0", "privacy.epsilom: unknown key; did you mean \"epsilon\"?"),
            ("lot_size = 5", "it belongs in [training]"),
            ("[optimizer.hyfree]\nevry = 5", "did you mean \"every\""),
            ("[nonsense]\nx = 1", "expected one of data, evaluation"),
        ] {
            assert!(refused(text).contains(part), "{}", refused(text));
        }
        for text in ["[privacy", "[privacy]\nepsilon = ", "a = 1\na = 2"] {
            refused(text);
        }
    }

    #[test]
    fn keys_that_the_optimizer_does_not_read_are_errors() {
        for (text, parts) in [
            (
                "[optimizer]\nname = \"dp-adam\"\nprobes = 1",
                ["optimizer.probes: not read by dp-adam", "only by dp-muon-bc", "epsilon"],
            ),
            (
                "[optimizer]\nname = \"dp-muon\"\nmomentun = 0.9",
                ["optimizer.momentun", "not a key of dp-muon", "did you mean \"momentum\"?"],
            ),
            (
                "[optimizer]\nname = \"sgd\"\nclip = 0.9",
                ["optimizer.clip: not read by sgd", "dp-sgd", "momentum"],
            ),
            (
                "[optimizer]\nname = \"dp-adam-bc\"\nepsilon = 0.9",
                ["optimizer.epsilon: not read by dp-adam-bc", "dp-adamw", "variance_floor"],
            ),
        ] {
            for part in parts {
                assert!(refused(text).contains(part), "{}", refused(text));
            }
        }
        assert!(refused("[optimizer]\nname = \"dp-moun\"").contains("did you mean \"dp-muon\"?"));
        assert!(refused("[optimizer]\nname = 5").contains("optimizer.name: expected a string"));
    }

    #[test]
    fn values_of_another_type_are_errors_with_their_key() {
        for (text, part) in [
            ("[privacy]\nepsilon = \"eight\"", "privacy.epsilon: invalid type"),
            ("[privacy]\nsampling = \"poison\"", "privacy.sampling: unknown variant"),
            ("[optimizer]\nschedule = \"cosin\"", "optimizer.schedule: unknown variant"),
            ("[optimizer]\nlearning_rate = \"hyfre\"", "optimizer.learning_rate: expected"),
            ("[optimizer]\nclip = \"small\"", "optimizer.clip: invalid type"),
            ("[optimizer]\nmomentum = true", "optimizer.momentum: invalid type"),
            ("[optimizer]\nprobes = -1", "optimizer.probes: invalid value"),
            ("[optimizer]\nmuon_group = \"al\"", "optimizer.muon_group: unknown variant"),
            ("[optimizer]\nnewton_schulz_degree = 0", "optimizer.newton_schulz_degree: expected"),
            ("[optimizer.hyfree]\npoints = 4", "optimizer.hyfree.points: expected 3 or 5, got 4"),
            ("optimizer = 5", "optimizer: invalid type"),
        ] {
            assert!(refused(text).starts_with(part), "{}", refused(text));
        }
    }

    #[test]
    fn printed_configurations_round_trip() {
        for name in registry::names() {
            let config = Config::default().with_optimizer(name).unwrap();
            assert_eq!(Config::parse(&config.print()).unwrap(), config);
        }
        let config = Config::parse(
            "[privacy]\nepsilon = 8\ndelta = 1e-5\n[optimizer]\nlearning_rate \
             = \"hyfree\"\nnewton_schulz_degree = \"quintic\"",
        )
        .unwrap();
        assert_eq!(config.privacy.epsilon, Auto::Value(8.0));
        assert_eq!(config.optimizer.learning_rate, Auto::Value(LearningRate::HyFree));
        assert_eq!(Config::parse(&config.print()).unwrap(), config);
    }

    #[test]
    fn another_optimizer_keeps_the_keys_that_it_reads() {
        let config = Config::parse(
            "[optimizer]\nname = \"dp-muon-bc\"\nlearning_rate = 0.5\nclip = 0.7\nmomentum = \
             0.3\nbetas = [0.5, 0.6]\nprobes = 3\nclipping = \"automatic\"\nwarm_up = 7",
        )
        .unwrap();
        // Replaced by name: rate, clip bound and momentum were meant for the other optimizer.
        let other = config.with_optimizer("dp-adam").unwrap();
        assert_eq!((other.optimizer.clip(), other.optimizer.warm_up), (0.1, Auto::Value(7)));
        assert_eq!(other.optimizer.learning_rate, Auto::Auto);
        assert!(other.print().contains("clipping = \"automatic\""), "{}", other.print());
        // Replaced as a key: every key that the new optimizer reads is carried over.
        let other = config.with("optimizer.name=dp-muon").unwrap();
        assert_eq!(other.optimizer.learning_rate, Auto::Value(LearningRate::Fixed(0.5)));
        assert_eq!(other.optimizer.clip(), 0.7);
        assert!(!other.print().contains("probes"), "{}", other.print());
        assert_eq!(config.with_optimizer("dp-muon-bc").unwrap(), config);
        let found = config.with("optimizer.learning_rate=hyfree").unwrap();
        assert!(found.with_optimizer("adamw").unwrap().optimizer.finds_rate());
        let refused = config.with_optimizer("dp-moun").unwrap_err();
        assert!(refused.to_string().contains("dp-muon"), "{refused}");
    }
}
