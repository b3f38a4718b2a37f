//! The keys of a configuration as text: an annotated `RUN.toml`, and the reference of all keys.
//!
//! Both are made from the declarations of the sections (`optim::keys!`): a key cannot be declared
//! without its text, and cannot be missing here.

use super::{Config, ConfigError, keys, wording};
use optim::{Key, Keys, OptimizerConfig, registry};
use std::fmt::Write;
use toml::{Table, Value};

/// A section of a configuration with its keys.
pub(super) struct Section {
    /// The name, such as `optimizer.hyfree`.
    pub(super) name: &'static str,
    /// What the section is about.
    pub(super) text: &'static str,
    /// The keys, in the order in which they are printed.
    pub(super) keys: Vec<Key>,
}

/// The widest line of a comment.
const WIDTH: usize = 98;

impl Config {
    /// The sections with the keys that this configuration reads.
    pub(super) fn sections(&self) -> Vec<Section> {
        let of_section = |section: &Key| {
            let keys = match section.name {
                "model" => self.model.keys(),
                "data" => self.data.keys(),
                "privacy" => self.privacy.keys(),
                "optimizer" => self.optimizer.keys(),
                "training" => self.training.keys(),
                "evaluation" => self.evaluation.keys(),
                "about" => self.about.keys(),
                _ => Vec::new(),
            };
            Section { name: section.name, text: section.text, keys }
        };
        let mut sections: Vec<Section> = Self::KEYS.iter().map(of_section).collect();
        let hyfree = Section {
            name: "optimizer.hyfree",
            text: "Hyperparameters of HyFreeDP, used if the learning rate is \"hyfree\".",
            keys: self.optimizer.hyfree.keys(),
        };
        let after = sections.iter().position(|section| section.name == "training");
        sections.insert(after.unwrap_or(sections.len()), hyfree);
        sections
    }

    /// The complete configuration as a `RUN.toml` with a comment for every key.
    ///
    /// The comment says what the key means, what it accepts and what its default is. Keys without a
    /// value are commented out, with an example. The text parses to the same configuration.
    ///
    /// # Errors
    /// If a value has no TOML form.
    pub fn annotated(&self) -> Result<String, ConfigError> {
        let values = Table::try_from(self)?;
        let optimizer = OptimizerConfig::new((self.optimizer.entry().defaults)());
        let defaults = Table::try_from(Self { optimizer, ..Self::default() })?;
        let mut text = String::new();
        for section in self.sections() {
            let blank = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{blank}{}[{}]", comment(section.text), section.name);
            for key in &section.keys {
                text.push('\n');
                let value = keys::lookup(&values, section.name, key.name);
                let default = keys::lookup(&defaults, section.name, key.name);
                let path = keys::join(section.name, key.name);
                let expected = wording::expected_value(&path, self.optimizer.name());
                text.push_str(&comment(key.text));
                text.push_str(&comment(&match default {
                    Some(default) => format!("Value: {expected}; default {default}."),
                    None => format!("Value: {expected}; no default."),
                }));
                let _ = match (value, key.example) {
                    (Some(value), _) => writeln!(text, "{} = {value}", key.name),
                    (None, example) => {
                        writeln!(text, "# {} = {}", key.name, example.unwrap_or("VALUE"))
                    }
                };
            }
        }
        Ok(text)
    }
}

/// The text of a key as lines of a TOML comment.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("#");
    for word in plain_text(text).split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}

/// The text of a doc comment on one line, without emphasis.
fn plain_text(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("**", "").replace('`', "")
}

/// The reference of all keys, in Markdown: `docs/keys.md`.
///
/// # Errors
/// If a default has no TOML form.
pub fn reference() -> Result<String, ConfigError> {
    let config = Config::default();
    let defaults = Table::try_from(&config)?;
    let mut text = String::from(
        "# Keys of a configuration\n\n<!-- Generated from the declarations of the keys. To update \
         it: MUFFLE_WRITE_DOCS=1 cargo test -p muffle --test keys -->\n\n\
         Every key of a `RUN.toml`, with its default. `muffle train --print-config` prints the same \
         with the values of a configuration. Keys that are not set have their default; `\"auto\"` \
         is derived from the rest of the configuration. On the command line: \
         `--set section.key=value`.\n",
    );
    for section in config.sections() {
        let _ = write!(text, "\n## `[{}]`\n\n{}\n", section.name, plain_text(section.text));
        let keys = if section.name == "optimizer" {
            text.push_str(
                "\nAll optimizers read these keys; those of single optimizers are listed below.\n",
            );
            let mut keys = config.optimizer.keys();
            keys.truncate(1 + OptimizerConfig::KEYS.len());
            keys
        } else {
            section.keys
        };
        text.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
        for key in keys {
            let default = keys::lookup(&defaults, section.name, key.name);
            text.push_str(&row(section.name, &key, default, config.optimizer.name()));
        }
        if section.name == "optimizer" {
            text.push_str(&keys_of_optimizers()?);
        }
    }
    Ok(text)
}

/// The keys that only some optimizers read: one table for each set of keys.
fn keys_of_optimizers() -> Result<String, ConfigError> {
    let mut groups: Vec<(String, Vec<&'static str>)> = Vec::new();
    for name in registry::names() {
        let config = OptimizerConfig::new((keys::entry(name)?.defaults)());
        let defaults = Table::try_from(&config)?;
        let own = config.keys().into_iter().skip(1 + OptimizerConfig::KEYS.len());
        let rows: String =
            own.map(|key| row("optimizer", &key, defaults.get(key.name), name)).collect();
        match groups.iter_mut().find(|(other, _)| *other == rows) {
            Some((_, names)) => names.push(name),
            None => groups.push((rows, vec![name])),
        }
    }
    let mut text = String::new();
    for (rows, names) in groups {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(
            text,
            "\n### Keys of {}\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}",
            names.join(", ")
        );
    }
    Ok(text)
}

/// One row of the reference.
fn row(section: &str, key: &Key, default: Option<&Value>, optimizer: &'static str) -> String {
    let expected = wording::expected_value(&keys::join(section, key.name), optimizer);
    let default = default.map_or_else(|| "none".into(), |value| format!("`{value}`"));
    let text = key.text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("| `{}` | {expected} | {default} | {text} |\n", key.name).replace("\\|", "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that differ from the defaults, so that a value that is not printed is noticed.
    fn changed() -> Config {
        let changes = [
            "data.validation=public.jsonl",
            "data.group=user",
            "privacy.seed=3",
            "optimizer.hyfree.every=7",
            "evaluation.examples=all",
            "model.lora_on=[\"q\", \"a \\\" b\"]",
        ];
        changes.iter().fold(Config::embedded(), |config, change| config.with(change).unwrap())
    }

    #[test]
    fn annotated_configurations_parse_to_the_same() {
        for name in registry::names() {
            for config in [Config::default(), changed()] {
                let config = config.with_optimizer(name).unwrap();
                let text = config.annotated().unwrap();
                assert_eq!(Config::parse(&text).unwrap(), config, "{text}");
                assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            }
        }
    }

    #[test]
    fn keys_without_a_value_are_commented_out_with_a_valid_example() {
        let text = Config::default().annotated().unwrap();
        assert!(text.contains("\n# validation = \"FILE\"\n"), "{text}");
        // Every example is a valid value of its key.
        let uncommented: String = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.split(' ').nth(1) == Some("=") => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let config = Config::parse(&uncommented).unwrap();
        assert_eq!(config.data.group.as_deref(), Some("COLUMN"));
        assert!(config.data.test.is_some() && config.privacy.seed.is_some());
    }

    #[test]
    fn comments_have_meaning_accepted_values_and_default() {
        let text = Config::embedded().annotated().unwrap();
        for part in [
            "default 512.\nexamples = 100\n",
            "# Value: one of \"poisson\", \"fixed\", \"shuffled\", \"full\"; default \"poisson\".\n",
            "# Value: a whole number or \"auto\"; default \"auto\".\nsteps = 60\n",
            "# Value: a list; default [].\nlora_on = []\n",
            "# Value: a text; no default.\n# validation = \"FILE\"\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    /// Every key that is read has a text, and every text belongs to a key that is read.
    #[test]
    fn every_key_of_every_optimizer_has_a_text() {
        for name in registry::names() {
            let config = changed().with_optimizer(name).unwrap();
            let table = Table::try_from(&config).unwrap();
            let sections = config.sections();
            let texts: Vec<String> = sections
                .iter()
                .flat_map(|section| {
                    section.keys.iter().map(|key| keys::join(section.name, key.name))
                })
                .collect();
            for (path, _) in keys::leaves(&table) {
                assert!(texts.contains(&path), "{path} has no text");
            }
            for section in &sections {
                assert!(!section.keys.is_empty(), "{} has no keys", section.name);
                for key in &section.keys {
                    let known = keys::lookup(&table, section.name, key.name).is_some();
                    assert!(known || key.example.is_some(), "{}.{}", section.name, key.name);
                    assert!(plain_text(key.text).ends_with('.'), "{}: {}", key.name, key.text);
                }
            }
        }
    }
}
