//! One record, as an engine sees it.

/// A record as the input and the target of a model.
///
/// ```
/// use engine::{Example, Target};
///
/// // The tokens 5 and 6 are to be predicted; 3 and 4 are given.
/// let text = Example::continuation(vec![3, 4, 5, 6], 2);
/// assert!(text.target == Target::Next(vec![Target::NONE, 5, 6, Target::NONE]));
/// assert_eq!(Example::features(vec![0.5, 1.0], 1).len(), 2);
/// ```
#[derive(Clone, PartialEq)]
pub struct Example {
    /// The input.
    pub input: Input,
    /// The target.
    pub target: Target,
}

/// The input of an example.
#[derive(Clone, PartialEq)]
pub enum Input {
    /// Tokens of a text.
    Tokens(Vec<u32>),
    /// Features, or the pixels of an image, channels last.
    Features(Vec<f32>),
}

/// The target of an example.
#[derive(Clone, PartialEq)]
pub enum Target {
    /// For each token the next token, or [`Target::NONE`] if it is not to be predicted.
    Next(Vec<u32>),
    /// One class.
    Class(u32),
}

impl Target {
    /// Marks a token after which nothing is to be predicted.
    pub const NONE: u32 = u32::MAX;
}

impl Example {
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
        Self { input: Input::Tokens(tokens), target: Target::Next(targets) }
    }

    /// Creates a text with a class.
    pub fn labelled(tokens: Vec<u32>, class: u32) -> Self {
        Self { input: Input::Tokens(tokens), target: Target::Class(class) }
    }

    /// Creates features or pixels with a class.
    pub fn features(features: Vec<f32>, class: u32) -> Self {
        Self { input: Input::Features(features), target: Target::Class(class) }
    }

    /// Returns the number of tokens or features.
    pub fn len(&self) -> usize {
        match &self.input {
            Input::Tokens(tokens) => tokens.len(),
            Input::Features(features) => features.len(),
        }
    }

    /// Whether there are no tokens or features.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Debug output hides the content, because a record is private.
impl std::fmt::Debug for Example {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Example(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_source_has_no_targets() {
        let Target::Next(targets) = Example::continuation(vec![5, 6, 7, 8], 2).target else {
            unreachable!()
        };
        assert_eq!(targets, [Target::NONE, 7, 8, Target::NONE]);
        let Target::Next(targets) = Example::continuation(vec![5, 6], 0).target else {
            unreachable!()
        };
        assert_eq!(targets, [6, Target::NONE]);
    }

    #[test]
    fn examples_do_not_print() {
        assert_eq!(format!("{:?}", Example::labelled(vec![42], 1)), "Example(…)");
    }
}
