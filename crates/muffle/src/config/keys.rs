//! Checks of the keys of a configuration: unknown keys, suggestions, and keys with invalid values.

use super::aliases::{ALIASES, SECTIONS};
use super::wording::plain;
use super::{Config, ConfigError};
use optim::registry::Entry;
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
        Some(Value::String(name)) => entry(name)?.name,
        Some(other) => {
            return Err(optimizer_name_error(format!("expected a text, got {other}")));
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

/// The registry entry of an optimizer.
pub(super) fn entry(name: &str) -> Result<&'static Entry, ConfigError> {
    registry::find(name).map_err(optimizer_name_error)
}

/// Makes an error about the name of the optimizer.
fn optimizer_name_error(message: String) -> ConfigError {
    ConfigError::Value { key: "optimizer.name".into(), message }
}

/// All keys of a configuration with this optimizer, those without a value included.
fn all_keys(optimizer: &str) -> Result<Table, ConfigError> {
    let optimizer = OptimizerConfig::new((entry(optimizer)?.defaults)());
    let config = Config { optimizer, ..Config::default() };
    let mut table = Table::try_from(&config)?;
    for section in config.sections() {
        if let Some(Value::Table(values)) = table.get_mut(section.name) {
            for key in section.keys.iter().filter(|key| key.example.is_some()) {
                values.entry(key.name).or_insert(Value::Boolean(false));
            }
        }
    }
    Ok(table)
}

/// The keys of `[optimizer]` that an optimizer reads.
pub(super) fn optimizer_keys(name: &str) -> Result<Table, ConfigError> {
    Ok(Table::try_from(OptimizerConfig::new((entry(name)?.defaults)()))?)
}

/// Refuses keys that do not exist, and suggests one that does.
fn refuse_unknown_keys(
    table: &Table,
    known: &Table,
    section: &str,
    optimizer: &'static str,
) -> Result<(), ConfigError> {
    let all = all_keys(optimizer)?;
    for (key, value) in table {
        let path = join(section, key);
        let Some(expected) = known.get(key) else {
            if section != "optimizer" {
                let hint = suggestion(section, key, value, known, &all);
                return Err(ConfigError::UnknownKey { key: path, hint });
            }
            let readers = readers(key);
            let hint = match readers.is_empty() {
                true => suggestion(section, key, value, known, &all),
                // The key is right for another optimizer: those of this one are listed.
                false => similar(key, known),
            };
            return Err(ConfigError::UnreadKey { key: path, optimizer, readers, hint });
        };
        if let (Value::Table(inner), Value::Table(known)) = (value, expected) {
            refuse_unknown_keys(inner, known, &path, optimizer)?;
        }
    }
    Ok(())
}

/// A hint for a key that does not exist: an alias, another section, a similar key, or all keys.
fn suggestion(section: &str, key: &str, value: &Value, known: &Table, all: &Table) -> String {
    let lower = key.to_lowercase().replace('-', "_");
    if section.is_empty() && value.is_table() {
        if let Some((_, name)) = SECTIONS.iter().find(|(alias, _)| *alias == lower) {
            return format!("did you mean [{name}]?");
        }
        return similar(&lower, known);
    }
    let within = |target: &str| target.split_once('.').is_some_and(|(s, _)| s == section);
    let aliases = || ALIASES.iter().filter(|(alias, _)| *alias == lower).map(|(_, key)| *key);
    if let Some(target) = aliases().find(|target| within(target)).or_else(|| aliases().next()) {
        return format!("did you mean {target}?");
    }
    if let Some(other) = section_of(&lower, all).filter(|other| *other != section) {
        return format!("it belongs in [{other}]");
    }
    similar(&lower, known)
}

/// The most similar key, or all keys if none is similar.
fn similar(key: &str, known: &Table) -> String {
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
    // ε of a promise and that of Adam have one name; the promise is meant more often.
    let (optimizer, others): (Vec<_>, Vec<_>) =
        known.iter().partition(|(name, _)| *name == "optimizer");
    let has_key = |section: &Value| section.as_table().is_some_and(|table| table.contains_key(key));
    let mut sections = others.into_iter().chain(optimizer);
    sections.find(|(_, section)| has_key(section)).map(|(name, _)| name.as_str())
}

/// Finds the key with an invalid value by parsing each value alone.
///
/// The error for the whole table names the section only, because the hyperparameters of an
/// optimizer are parsed together, after its name.
fn find_invalid_value(
    table: &Table,
    path: &mut Vec<String>,
    optimizer: &'static str,
) -> Option<ConfigError> {
    for (key, value) in table {
        path.push(key.clone());
        let error = match value {
            Value::Table(inner) if !inner.is_empty() => find_invalid_value(inner, path, optimizer),
            value => {
                let keys: Vec<&str> = path.iter().map(String::as_str).collect();
                parse_alone(&keys, value.clone(), optimizer).err().map(|message| {
                    let mut message = plain(&message, accepts_auto(&keys, optimizer));
                    if keys == ["optimizer"] && value.is_str() {
                        message += "; set optimizer.name";
                    }
                    ConfigError::Value { key: path.join("."), message }
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

/// Parses a configuration with one value, and returns the message of the parser.
pub(super) fn parse_alone(
    path: &[&str],
    value: Value,
    optimizer: &'static str,
) -> Result<Config, String> {
    let mut nested = value;
    for key in path.iter().rev() {
        let mut outer = Table::new();
        outer.insert((*key).into(), nested);
        nested = Value::Table(outer);
    }
    if let Some(Value::Table(section)) = nested.get_mut("optimizer") {
        section.insert("name".into(), optimizer.into());
    }
    Config::deserialize(nested).map_err(|error| error.message().to_string())
}

/// Whether a key also accepts "auto", which is then its default.
pub(super) fn accepts_auto(path: &[&str], optimizer: &'static str) -> bool {
    let Some((key, section)) = path.split_last() else { return false };
    all_keys(optimizer).is_ok_and(|table| {
        lookup(&table, &section.join("."), key).and_then(Value::as_str) == Some("auto")
    })
}

/// The value of a key in a section such as `optimizer.hyfree`.
pub(super) fn lookup<'a>(table: &'a Table, section: &str, key: &str) -> Option<&'a Value> {
    let mut names = section.split('.').filter(|name| !name.is_empty());
    let inner = names.try_fold(table, |table, name| table.get(name)?.as_table())?;
    inner.get(key)
}

pub(super) fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.into() } else { format!("{section}.{key}") }
}

/// The values of a table, with the path of each as its key.
pub(super) fn leaves(table: &Table) -> Vec<(String, Value)> {
    let mut list = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                let within = leaves(inner).into_iter();
                list.extend(within.map(|(path, value)| (join(key, &path), value)));
            }
            value => list.push((key.clone(), value.clone())),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Auto, LearningRate};
    use optim::schedule::WarmUp;

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
            ("[nonsense]\nx = 1", "expected one of about, data, evaluation"),
            ("[train]\nsteps = 5", "train: unknown key; did you mean [training]?"),
            ("lr = 0.1", "lr: unknown key; did you mean optimizer.learning_rate?"),
            (
                "[optimizer]\nlr = 0.1",
                "optimizer.lr: not a key of dp-adam; did you mean \
                optimizer.learning_rate?",
            ),
            ("[training]\nbatch_size = 8", "did you mean training.lot_size?"),
            ("[privacy]\nmax_grad_norm = 1", "did you mean optimizer.clip?"),
            ("[privacy]\neps = 1", "did you mean privacy.epsilon?"),
            ("epsilon = 3", "it belongs in [privacy]"),
            ("[training]\nepsilon = 3", "it belongs in [privacy]"),
            ("[privacy]\nEpsilon = 3", "did you mean \"epsilon\"?"),
            ("[optimizer]\nname = \"dp-adam\"\neps = 1", "did you mean optimizer.epsilon?"),
            ("[optimizer]\nlot_size = 8", "it belongs in [training]"),
            ("[training]\nseed = 8", "it belongs in [model]"),
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
        assert!(
            refused("[optimizer]\nname = 5").contains("optimizer.name: expected a text, got 5")
        );
    }

    #[test]
    fn values_of_another_type_are_errors_with_their_key() {
        for (text, part) in [
            (
                "[privacy]\nepsilon = \"eight\"",
                "privacy.epsilon: expected a number or \"auto\", got the text \"eight\"",
            ),
            ("[privacy]\nsampling = \"poison\"", "privacy.sampling: expected one of \"poisson\""),
            (
                "[optimizer]\nschedule = \"cosin\"",
                "optimizer.schedule: expected one of \"constant\"",
            ),
            ("[optimizer]\nlearning_rate = \"hyfre\"", "optimizer.learning_rate: expected"),
            ("[optimizer]\nclip = \"small\"", "optimizer.clip: expected a number or \"auto\", got"),
            (
                "[optimizer]\nname = \"dp-muon-bc\"\nmomentum = true",
                "optimizer.momentum: expected a number or \"auto\", got true",
            ),
            (
                "[optimizer]\nname = \"dp-muon-bc\"\nprobes = -1",
                "optimizer.probes: expected a whole number of at least 0, got -1",
            ),
            (
                "[optimizer]\nname = \"dp-muon-bc\"\nmuon_group = \"al\"",
                "optimizer.muon_group: expected one of",
            ),
            (
                "[optimizer]\nname = \"dp-muon-bc\"\nnewton_schulz_degree = 0",
                "optimizer.newton_schulz_degree: expected",
            ),
            ("[optimizer.hyfree]\npoints = 4", "optimizer.hyfree.points: expected 3 or 5, got 4"),
            ("optimizer = 5", "optimizer: expected a section, got 5"),
            (
                "[training]\nsteps = 1.5",
                "training.steps: expected a whole number or \"auto\", got 1.5",
            ),
            (
                "[model]\nlora_rank = \"8\"",
                "model.lora_rank: expected a whole number, got the text",
            ),
            ("[model]\nown_head = 1", "model.own_head: expected true or false, got 1"),
            ("[model]\nlora_on = \"q\"", "model.lora_on: expected a list, got the text \"q\""),
            ("[data]\ntrain = 5", "data.train: expected a text, got 5"),
            ("[optimizer]\nbetas = [0.9]", "optimizer.betas: expected a list of 2 numbers, got 1"),
            (
                "[optimizer]\nwarm_up = 1.0",
                "optimizer.warm_up: expected a whole number of steps, or",
            ),
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
            "[privacy]\nepsilon = 8\ndelta = 1e-5\n[optimizer]\nname = \"dp-muon-bc\"\n\
             learning_rate = \"hyfree\"\nnewton_schulz_degree = \"quintic\"",
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
        assert_eq!(
            (other.optimizer.clip(), other.optimizer.warm_up),
            (0.1, Auto::Value(WarmUp::Steps(7)))
        );
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
