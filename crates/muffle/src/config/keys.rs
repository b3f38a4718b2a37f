//! Which keys there are, and which one was meant.

use super::Config;
use toml::{Table, Value};

/// Refuses keys that do not exist, with the nearest one that does.
pub(super) fn check(table: &Table) -> Result<(), String> {
    // The keys are those of a configuration in which nothing is left out.
    let mut complete = Config::default();
    complete.data.validation = Some(Default::default());
    complete.data.test = Some(Default::default());
    for option in
        [&mut complete.data.group, &mut complete.data.text_column, &mut complete.data.label_column]
    {
        *option = Some(String::new());
    }
    complete.privacy.seed = Some(0);
    let known = Table::try_from(&complete).map_err(|error| error.to_string())?;
    compare(table, &known, "")
}

fn compare(table: &Table, known: &Table, within: &str) -> Result<(), String> {
    for (key, value) in table {
        let Some(expected) = known.get(key) else {
            let near = known.keys().max_by(|a, b| {
                strsim::jaro_winkler(key, a).total_cmp(&strsim::jaro_winkler(key, b))
            });
            let elsewhere = if within.is_empty() { section_of(key, known) } else { None };
            let hint = match (elsewhere, near) {
                (Some(section), _) => format!("it belongs into [{section}]"),
                (None, Some(near)) if strsim::jaro_winkler(key, near) > 0.75 => {
                    format!("did you mean {near:?}?")
                }
                _ => format!(
                    "there are {}",
                    known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(format!("there is no key {:?}: {hint}", join(within, key)));
        };
        if let (Value::Table(inner), Value::Table(known)) = (value, expected) {
            compare(inner, known, &join(within, key))?;
        }
    }
    Ok(())
}

/// The section in which a key would be known.
fn section_of<'a>(key: &str, known: &'a Table) -> Option<&'a str> {
    known
        .iter()
        .find(|(_, section)| section.as_table().is_some_and(|table| table.contains_key(key)))
        .map(|(name, _)| name.as_str())
}

fn join(within: &str, key: &str) -> String {
    if within.is_empty() { key.into() } else { format!("{within}.{key}") }
}

/// An error of several lines, with the place it points at, on one.
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

    #[test]
    fn unknown_keys_are_errors_with_a_suggestion() {
        let refused = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert!(
            refused("[privacy]\nepsilom = 8.0").contains("did you mean \"epsilon\""),
            "{}",
            refused("[privacy]\nepsilom = 8.0")
        );
        assert!(refused("lot_size = 5").contains("belongs into [training]"));
        assert!(refused("[optimizer.hyfree]\nevry = 5").contains("did you mean \"every\""));
        assert!(refused("[nonsense]\nx = 1").contains("there are data, evaluation"));
        assert!(refused("[privacy]\nepsilon = \"eight\"").contains("epsilon"));
        assert!(refused("[optimizer]\nschedule = \"cosin\"").contains("cosine"));
        for text in ["[privacy", "[privacy]\nepsilon = ", "a = 1\na = 2"] {
            assert_eq!(refused(text).lines().count(), 1, "{}", refused(text));
        }
    }

    #[test]
    fn the_printed_configuration_is_read_as_itself() {
        let config = Config::default();
        assert_eq!(Config::parse(&config.print()).unwrap(), config);
        let config = Config::parse(
            "[privacy]\nepsilon = 8\ndelta = 1e-5\n[optimizer]\nlearning_rate \
             = \"hyfree\"\nnewton_schulz_degree = \"quintic\"",
        )
        .unwrap();
        assert_eq!(config.privacy.epsilon, crate::config::Auto::Value(8.0));
        assert_eq!(Config::parse(&config.print()).unwrap(), config);
    }
}
