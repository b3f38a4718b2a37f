//! Tasks: what the label of a row is, and the target that it becomes.

use crate::Label;
use engine::Target;

/// What a model predicts of a row with a label.
///
/// ```
/// use data::Task;
/// use engine::Target;
///
/// let names = ["red".to_string(), "blue".to_string()];
/// assert!(Task::Classification.target("blue", &names).unwrap() == Target::Class(1));
/// assert!(Task::MultiLabel.target("blue; red", &names).unwrap() == Target::Labels(vec![1, 0]));
/// let standardized = Task::Regression { mean: 2.0, scale: 4.0 };
/// assert!(standardized.target("4", &[]).unwrap() == Target::Value(0.5));
/// assert!(standardized.target("NaN", &[]).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Task {
    /// One class.
    #[default]
    Classification,
    /// Any number of labels, separated by semicolons, or as a JSON list of strings.
    MultiLabel,
    /// A number. The model predicts (number − mean)/scale.
    Regression {
        /// A public constant near the mean of the numbers.
        mean: f64,
        /// A public constant near their standard deviation.
        scale: f64,
    },
}

impl Task {
    /// The target of a label, given the public names of all labels.
    ///
    /// # Errors
    /// What was expected instead, without the label, which is private.
    pub fn target(self, label: &str, names: &[String]) -> Result<Target, &'static str> {
        match self {
            Self::Classification => {
                class(label, names).map(Target::Class).ok_or("a label of data.labels")
            }
            Self::MultiLabel => {
                const EXPECTED: &str =
                    "labels of data.labels, separated by \";\" or as a JSON list";
                let classes = split_labels(label)
                    .and_then(|labels| labels.iter().map(|label| class(label, names)).collect());
                classes.map(Target::Labels).ok_or(EXPECTED)
            }
            Self::Regression { mean, scale } => label
                .trim()
                .parse::<f64>()
                .ok()
                .and_then(|value| standardized(value, mean, scale))
                .ok_or("a finite number"),
        }
    }

    /// The target of an image.
    ///
    /// # Errors
    /// As [`target`](Self::target).
    pub fn image_target(self, label: &Label, names: &[String]) -> Result<Target, &'static str> {
        let label = match label {
            Label::Name(name) => return self.target(name, names),
            Label::None => return Err("a label of data.labels"),
            Label::Index(label) => *label,
        };
        let known = ((label as usize) < names.len()).then_some(label);
        match self {
            Self::Classification => known.map(Target::Class).ok_or("a label of data.labels"),
            Self::MultiLabel => {
                known.map(|label| Target::Labels(vec![label])).ok_or("a label of data.labels")
            }
            Self::Regression { mean, scale } => {
                standardized(label.into(), mean, scale).ok_or("a finite number")
            }
        }
    }

    /// A label for rows that have none, because examples have targets.
    pub fn placeholder_label(self, names: &[String]) -> String {
        match self {
            Self::Classification => names.first().cloned().unwrap_or_default(),
            Self::MultiLabel => String::new(),
            Self::Regression { mean, .. } => mean.to_string(),
        }
    }

    /// The number of outputs of a model, given the number of names.
    pub fn outputs(self, names: usize) -> usize {
        match self {
            Self::Classification | Self::MultiLabel => names,
            Self::Regression { .. } => 1,
        }
    }
}

/// The labels of a row: a JSON list of strings, or names that semicolons separate.
///
/// `None` if a list is invalid, or a name is empty or occurs twice.
pub fn split_labels(label: &str) -> Option<Vec<String>> {
    let label = label.trim();
    let labels: Vec<String> = match label.starts_with('[') {
        true => serde_json::from_str(label).ok()?,
        false if label.is_empty() => Vec::new(),
        false => label.split(';').map(|name| name.trim().to_owned()).collect(),
    };
    let is_valid = |(i, name): (usize, &String)| !name.is_empty() && !labels[..i].contains(name);
    labels.iter().enumerate().all(is_valid).then_some(labels)
}

/// The index of a label among the public ones.
pub(crate) fn class(label: &str, names: &[String]) -> Option<u32> {
    names.iter().position(|name| name == label).and_then(|class| u32::try_from(class).ok())
}

/// The target of a number; `None` if it is not finite.
fn standardized(value: f64, mean: f64, scale: f64) -> Option<Target> {
    let value = ((value - mean) / scale) as f32;
    value.is_finite().then_some(Target::Value(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_split() {
        let split = |text: &str| split_labels(text);
        assert_eq!(split(""), Some(vec![]));
        assert_eq!(split("[]"), Some(vec![]));
        assert_eq!(split("a; b ;c").unwrap(), ["a", "b", "c"]);
        assert_eq!(split("[\"a;b\", \"c\"]").unwrap(), ["a;b", "c"]);
        for text in ["a;", ";", "a;a", "[\"a\"", "[1]", "[\"\"]"] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_must_be_finite() {
        let task = Task::Regression { mean: 1.0, scale: 2.0 };
        assert!(task.target(" -3e0 ", &[]) == Ok(Target::Value(-2.0)));
        for text in ["", "x", "nan", "NaN", "inf", "-infinity", "1e300", "1,5"] {
            assert!(task.target(text, &[]) == Err("a finite number"), "{text}");
        }
        assert!(task.image_target(&Label::Index(5), &[]) == Ok(Target::Value(2.0)));
    }

    #[test]
    fn unknown_labels_are_refused() {
        let names = ["a".to_string(), "b".to_string()];
        assert!(Task::Classification.target("c", &names).is_err());
        assert!(Task::MultiLabel.target("a;c", &names).is_err());
        assert!(Task::MultiLabel.target("", &names) == Ok(Target::Labels(vec![])));
        assert!(
            Task::MultiLabel.image_target(&Label::Index(1), &names) == Ok(Target::Labels(vec![1]))
        );
        assert!(Task::Classification.image_target(&Label::Index(2), &names).is_err());
    }
}
