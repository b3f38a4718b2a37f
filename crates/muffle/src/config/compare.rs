//! The section `[compare]` of a file for `muffle compare`: which runs are compared.

use super::{Config, ConfigError, keys, wording};
use crate::Error;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The section `[compare]`. The command line overrides its keys.
///
/// ```toml
/// [compare]
/// optimizers = ["dp-sgd", "dp-adam"]
/// seeds = [0, 1, 2]
/// grid.privacy.epsilon = [3, 8]
/// grid_for.dp-adam.optimizer.learning_rate = [0.001, 0.002]
/// set_for.dp-sgd.optimizer.learning_rate = 0.032
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompareSection {
    /// Another file with the configuration of all runs, instead of the other sections.
    pub base: Option<PathBuf>,
    /// Names of optimizers; with the suffix `+hyfree`, HyFreeDP finds the learning rate.
    pub optimizers: Vec<String>,
    /// Public seeds of new parameters.
    pub seeds: Vec<u64>,
    /// The figure by which the best point of a grid is marked.
    pub metric: Option<String>,
    /// Keys with lists of values, for all optimizers.
    grid: Table,
    /// Keys with lists of values, by optimizer.
    grid_for: BTreeMap<String, Table>,
    /// Keys with values, by optimizer.
    set_for: BTreeMap<String, Table>,
}

/// A key and its values, of which every run has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The optimizer whose runs vary the key; `None` for all.
    pub optimizer: Option<String>,
    /// The key, with its section.
    pub key: String,
    /// Values, as in TOML.
    pub values: Vec<String>,
}

impl Grid {
    /// Parses `KEY=V1,V2`. Commas within brackets or quotation marks do not separate values.
    ///
    /// # Errors
    /// If there is no key, or a value is empty.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let malformed = || ConfigError::Grid(text.into());
        let (key, list) = text.split_once('=').ok_or_else(malformed)?;
        let (mut values, mut depth, mut quoted) = (vec![String::new()], 0i32, false);
        for c in list.chars() {
            match c {
                '"' => quoted = !quoted,
                '[' if !quoted => depth += 1,
                ']' if !quoted => depth -= 1,
                _ => {}
            }
            match values.last_mut() {
                Some(value) if c != ',' || quoted || depth > 0 => value.push(c),
                _ => values.push(String::new()),
            }
        }
        let values: Vec<String> = values.iter().map(|value| value.trim().to_string()).collect();
        match key.trim().is_empty() || values.iter().any(String::is_empty) {
            true => Err(malformed()),
            false => Ok(Self { optimizer: None, key: key.trim().into(), values }),
        }
    }

    /// Parses `NAME:KEY=V1,V2`, for one optimizer.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or if there is no name.
    pub fn parse_for(text: &str) -> Result<Self, ConfigError> {
        let malformed = || ConfigError::Grid(text.into());
        let (optimizer, grid) = text.split_once(':').ok_or_else(malformed)?;
        Ok(Self { optimizer: Some(optimizer.trim().into()), ..Self::parse(grid)? })
    }
}

impl CompareSection {
    /// The grids of all optimizers and of single ones.
    ///
    /// # Errors
    /// If a key has no list of values.
    pub fn grids(&self) -> Result<Vec<Grid>, ConfigError> {
        let for_one = self.grid_for.iter().map(|(name, table)| (Some(name.clone()), table));
        let mut grids = Vec::new();
        for (optimizer, table) in std::iter::once((None, &self.grid)).chain(for_one) {
            for (key, value) in keys::leaves(table) {
                let Value::Array(values) = value else {
                    return Err(ConfigError::Value {
                        key: format!("compare.grid.{key}"),
                        message: format!("expected a list of values, got {value}"),
                    });
                };
                let values = values.iter().map(Value::to_string).collect();
                grids.push(Grid { optimizer: optimizer.clone(), key, values });
            }
        }
        Ok(grids)
    }

    /// The changes for single optimizers: their name, and `section.key=value`.
    pub fn changes(&self) -> Vec<(String, String)> {
        let changes_of = |(name, table): (&String, &Table)| {
            let change = |(key, value)| (name.clone(), format!("{key}={value}"));
            keys::leaves(table).into_iter().map(change).collect::<Vec<_>>()
        };
        self.set_for.iter().flat_map(changes_of).collect()
    }
}

impl Config {
    /// Reads a file for `muffle compare`: a `RUN.toml`, with or without a section `[compare]`.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the section is invalid.
    pub fn read_comparison(path: &Path) -> Result<(Self, CompareSection), Error> {
        let text = super::read_text(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let in_file = |source| Error::Config { path: Some(path.into()), source };
        let mut table: Table =
            text.parse().map_err(|error: toml::de::Error| in_file(error.into()))?;
        let section = match table.remove("compare") {
            None => CompareSection::default(),
            Some(section) => CompareSection::deserialize(section)
                .map_err(|error| in_file(section_error(wording::plain(error.message(), false))))?,
        };
        let Some(base) = &section.base else {
            let mut config = keys::read(table).map_err(in_file)?;
            config.resolve_paths(folder);
            return Ok((config, section));
        };
        match table.keys().next() {
            Some(other) => Err(in_file(section_error(format!(
                "base: expected no other section, because {} has the configuration; got [{other}]",
                base.display()
            )))),
            None => Ok((Self::read(&folder.join(base))?, section)),
        }
    }
}

/// Makes an error about the section `[compare]`.
fn section_error(message: String) -> ConfigError {
    ConfigError::Value { key: "compare".into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Config, CompareSection), Error> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("FILE.toml");
        std::fs::write(place.path().join("RUN.toml"), "[privacy]\nepsilon = 3\n").unwrap();
        std::fs::write(&path, text).unwrap();
        Config::read_comparison(&path)
    }

    fn grid(optimizer: Option<&str>, key: &str, values: &[&str]) -> Grid {
        let values = values.iter().map(ToString::to_string).collect();
        Grid { optimizer: optimizer.map(String::from), key: key.into(), values }
    }

    #[test]
    fn a_file_has_grids_and_changes() {
        let (config, section) = read(
            "[privacy]\nepsilon = 8\n[compare]\noptimizers = [\"dp-sgd\", \"dp-adam\"]\nseeds = \
             [4]\ngrid.\"privacy.epsilon\" = [3, 8]\ngrid_for.dp-adam.optimizer.betas = [[0.9, \
             0.999]]\n[compare.set_for.dp-sgd]\noptimizer.learning_rate = 3.2e-2\n\
             optimizer.schedule = \"cosine\"\n",
        )
        .unwrap();
        assert_eq!(config.privacy.epsilon, super::super::Auto::Value(8.0));
        assert_eq!((section.optimizers.len(), section.seeds.as_slice()), (2, &[4][..]));
        assert_eq!(
            section.grids().unwrap(),
            [
                grid(None, "privacy.epsilon", &["3", "8"]),
                grid(Some("dp-adam"), "optimizer.betas", &["[0.9, 0.999]"])
            ]
        );
        let change = |text: &str| ("dp-sgd".to_string(), text.to_string());
        assert_eq!(
            section.changes(),
            [change("optimizer.learning_rate=0.032"), change("optimizer.schedule=\"cosine\"")]
        );
        // A file without the section, and one that refers to another.
        assert_eq!(read("[privacy]\nepsilon = 3\n").unwrap().1, CompareSection::default());
        let (config, section) = read("[compare]\nbase = \"RUN.toml\"\nseeds = [1]\n").unwrap();
        assert_eq!(config.privacy.epsilon, super::super::Auto::Value(3.0));
        assert_eq!(section.seeds, [1]);
    }

    #[test]
    fn invalid_sections_are_refused() {
        for (text, part) in [
            ("[compare]\noptimisers = []", "compare: unknown key \"optimisers\"; expected"),
            ("[compare]\nbase = \"RUN.toml\"\n[privacy]\nepsilon = 2", "got [privacy]"),
            ("[compare]\n[privacy]\nepsilom = 2", "privacy.epsilom: unknown key"),
            ("[compare", "FILE.toml"),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(part) && refused.lines().count() == 1, "{refused}");
        }
        let section = read("[compare.grid.privacy]\nepsilon = 3").unwrap().1;
        let refused = section.grids().unwrap_err().to_string();
        assert_eq!(refused, "compare.grid.privacy.epsilon: expected a list of values, got 3");
        // A single run is not trained from a file that describes several.
        let refused = Config::parse("[compare]\nseeds = [1]").unwrap_err().to_string();
        assert!(
            refused.starts_with("compare: ") && refused.contains("muffle compare"),
            "{refused}"
        );
    }

    #[test]
    fn grids_are_parsed() {
        let parsed = |text: &str| Grid::parse(text).unwrap();
        assert_eq!(parsed("a.b=1e-3, 2e-3"), grid(None, "a.b", &["1e-3", "2e-3"]));
        assert_eq!(
            parsed("optimizer.betas=[0.9, 0.99],[0.5,0.6]"),
            grid(None, "optimizer.betas", &["[0.9, 0.99]", "[0.5,0.6]"])
        );
        assert_eq!(parsed("a=\"x,y\",z"), grid(None, "a", &["\"x,y\"", "z"]));
        assert_eq!(Grid::parse_for("sgd:a=1").unwrap(), grid(Some("sgd"), "a", &["1"]));
        for text in ["a", "a=", "a=1,,2", "=1"] {
            assert!(Grid::parse(text).is_err(), "{text}");
        }
        assert!(Grid::parse_for("a=1").unwrap_err().to_string().contains("\"a=1\""));
    }
}
