//! One record, as an engine sees it.

use serde::{Deserialize, Serialize};

/// A record: one or more parts, each with the input and the target of a model.
///
/// Most records have one part. The rows of a person, the pieces of a long text and augmented views
/// of an image are parts of one record. An example is the unit of clipping: its loss is the mean or
/// the sum of the losses of its parts, and its gradient, over all parts, is clipped once. So several
/// parts do not increase its contribution to a sum.
///
/// ```
/// use engine::{Combination, Example, Target};
///
/// // The tokens 5 and 6 are to be predicted; 3 and 4 are given.
/// let text = Example::continuation(vec![3, 4, 5, 6], 2);
/// assert!(text.parts()[0].target == Target::Next(vec![Target::NONE, 5, 6, Target::NONE]));
///
/// let views = [0.5, 1.0].map(|x| Example::features(vec![x, 1.0], 1));
/// let example = Example::combined(views, Combination::Mean).unwrap();
/// assert_eq!((example.parts().len(), example.len()), (2, 4));
/// ```
#[derive(Clone, PartialEq)]
pub struct Example {
    parts: Vec<Part>,
    combination: Combination,
}

/// One part of an example: an input of the model with its target.
#[derive(Clone, PartialEq)]
pub struct Part {
    /// The input.
    pub input: Input,
    /// The target.
    pub target: Target,
}

/// How the losses of an example's parts are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combination {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// The input of a part.
#[derive(Clone, PartialEq)]
pub enum Input {
    /// Tokens of a text.
    Tokens(Vec<u32>),
    /// Features, or the pixels of an image, channels last.
    Features(Vec<f32>),
}

/// The target of a part.
#[derive(Clone, PartialEq)]
pub enum Target {
    /// For each token the next token, or [`Target::NONE`] if it is not to be predicted.
    Next(Vec<u32>),
    /// One class.
    Class(u32),
    /// Any number of labels, of which each applies or does not.
    Labels(Vec<u32>),
    /// A number.
    Value(f32),
}

impl Target {
    /// Marks a token after which nothing is to be predicted.
    pub const NONE: u32 = u32::MAX;
}

impl From<Part> for Example {
    fn from(part: Part) -> Self {
        Self { parts: vec![part], combination: Combination::Mean }
    }
}

impl Example {
    /// Creates an example of one part.
    pub fn new(input: Input, target: Target) -> Self {
        Part { input, target }.into()
    }

    /// Creates an example of all parts of some examples; `None` if there are none.
    pub fn combined(
        examples: impl IntoIterator<Item = Self>,
        combination: Combination,
    ) -> Option<Self> {
        let parts: Vec<Part> = examples.into_iter().flat_map(|example| example.parts).collect();
        (!parts.is_empty()).then_some(Self { parts, combination })
    }

    /// Returns the parts, of which there is at least one.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the parts, to change them.
    pub fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    /// Returns how the losses of the parts are combined.
    pub fn combination(&self) -> Combination {
        self.combination
    }

    /// Returns the weight of the loss of each part in the loss of the example.
    pub fn part_weight(&self) -> f32 {
        match self.combination {
            Combination::Mean => 1.0 / self.parts.len() as f32,
            Combination::Sum => 1.0,
        }
    }

    /// Returns the only part, for engines that do not support examples of several parts.
    ///
    /// # Errors
    /// If there are several parts.
    pub fn only_part(&self) -> Result<&Part, String> {
        match &self.parts[..] {
            [part] => Ok(part),
            parts => Err(format!("expected an example of one part, got {} parts", parts.len())),
        }
    }

    /// Creates a text in which the tokens from index `first` on are to be predicted.
    ///
    /// Each is predicted from all tokens before it. The tokens before `first` (a masked source)
    /// have no loss; nor has the very first token, since nothing precedes it.
    pub fn continuation(tokens: Vec<u32>, first: usize) -> Self {
        let target = |t: usize| {
            if t + 1 >= first {
                tokens.get(t + 1).copied().unwrap_or(Target::NONE)
            } else {
                Target::NONE
            }
        };
        let targets = (0..tokens.len()).map(target).collect();
        Self::new(Input::Tokens(tokens), Target::Next(targets))
    }

    /// Creates a text with a class.
    pub fn labelled(tokens: Vec<u32>, class: u32) -> Self {
        Self::new(Input::Tokens(tokens), Target::Class(class))
    }

    /// Creates features or pixels with a class.
    pub fn features(features: Vec<f32>, class: u32) -> Self {
        Self::new(Input::Features(features), Target::Class(class))
    }

    /// Returns the number of tokens or features of all parts.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.input.len()).sum()
    }

    /// Whether there are no tokens or features.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Input {
    /// Returns the number of tokens or features.
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Features(features) => features.len(),
        }
    }

    /// Whether there are no tokens or features.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Debug output hides the content and the number of parts, because a record is private.
impl std::fmt::Debug for Example {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Example(…)")
    }
}

/// Debug output hides the content, because a record is private.
impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Part(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_source_has_no_targets() {
        let example = Example::continuation(vec![5, 6, 7, 8], 2);
        let Target::Next(targets) = &example.parts()[0].target else { unreachable!() };
        assert_eq!(*targets, [Target::NONE, 7, 8, Target::NONE]);
        let example = Example::continuation(vec![5, 6], 0);
        let Target::Next(targets) = &example.parts()[0].target else { unreachable!() };
        assert_eq!(*targets, [6, Target::NONE]);
    }

    #[test]
    fn examples_do_not_print() {
        let example = Example::labelled(vec![42], 1);
        assert_eq!(format!("{example:?}{:?}", example.parts()[0]), "Example(…)Part(…)");
    }
}
