//! Templates: how a source and a target become one text for a causal language model.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use text::ChatTemplate;

/// The place of the source in a template.
const SOURCE: &str = "{source}";
/// The place of the target in a template.
const TARGET: &str = "{target}";
/// Largest number of bytes of a template.
const MAX_BYTES: usize = 64 << 10;

/// The value of `data.template`: a text with `{source}` and `{target}`, or a name.
///
/// ```
/// use data::Template;
///
/// let template: Template = "Review: {source}\nSentiment: {target}".parse()?;
/// assert_eq!(template.to_string(), "Review: {source}\nSentiment: {target}");
/// assert_eq!(Template::default().to_string(), "{source}\n{target}");
/// assert!("{source}".parse::<Template>().is_err());
/// # Ok::<(), data::InvalidTemplate>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Template {
    /// A text in which the two parts are inserted.
    Text(TextTemplate),
    /// ` source <bos> target <eos>`, as in Li et al. (2022) and Kim and Fan (2026, App. D).
    Paper,
    /// The chat template of the model.
    Chat,
}

/// A template with a place for the source and, after it, a place for the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTemplate {
    /// The text before the source.
    before: String,
    /// The text between source and target.
    between: String,
    /// The text after the target.
    after: String,
}

/// A text that is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected \"paper\", \"chat\", or a text with {{source}} once and, after it, {{target}} once; \
     {0}"
)]
pub struct InvalidTemplate(String);

/// The template of a model, ready to format records.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text in which the two parts are inserted.
    Text(TextTemplate),
    /// ` source <bos> target <eos>`.
    Paper,
    /// The chat template of the model.
    Chat(Box<ChatTemplate>),
}

/// The text of a record: a prompt, and what is learned after it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FormattedText {
    /// The text that the model is given.
    pub(crate) prompt: String,
    /// The target with the text of the template around it.
    pub(crate) learned: String,
}

impl Default for Template {
    /// The source, a line break and the target.
    fn default() -> Self {
        Self::Text(TextTemplate::default())
    }
}

impl Default for TextTemplate {
    fn default() -> Self {
        Self { before: String::new(), between: "\n".into(), after: String::new() }
    }
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(TextTemplate::default())
    }
}

impl TextTemplate {
    /// The text before the target, without spaces at its end, and those spaces.
    ///
    /// Tokenizers join a space with the word after it, so a space before the target is learned with
    /// the target: a prompt that ends with a space would not be a prefix of the whole text.
    fn between(&self) -> (&str, &str) {
        self.between.split_at(self.between.trim_end_matches(' ').len())
    }

    fn format(&self, source: &str, target: &str) -> FormattedText {
        let (between, spaces) = self.between();
        FormattedText {
            prompt: [&self.before, source, between].concat(),
            learned: [spaces, target, &self.after].concat(),
        }
    }
}

impl Prompt {
    /// Returns the texts of a source and a target; `None` for the paper's template.
    ///
    /// # Errors
    /// If the chat template fails. The message does not show the texts.
    pub(crate) fn format(&self, source: &str, target: &str) -> text::Result<Option<FormattedText>> {
        match self {
            Self::Text(template) => Ok(Some(template.format(source, target))),
            Self::Paper => Ok(None),
            Self::Chat(chat) => {
                let (prompt, learned) = chat.format(source, target)?;
                Ok(Some(FormattedText { prompt, learned }))
            }
        }
    }

    /// Returns the prompt for a source; `None` for the paper's template.
    ///
    /// # Errors
    /// If the chat template fails. The message does not show the text.
    pub(crate) fn prompt(&self, source: &str) -> text::Result<Option<String>> {
        match self {
            Self::Text(template) => Ok(Some(template.format(source, "").prompt)),
            Self::Paper => Ok(None),
            Self::Chat(chat) => chat.prompt(source).map(Some),
        }
    }

    /// Returns a generated text without the template's text around the target.
    pub fn target<'a>(&self, generated: &'a str) -> &'a str {
        let (start, end) = match self {
            Self::Text(template) => ("", template.after.as_str()),
            Self::Paper => ("", ""),
            Self::Chat(chat) => chat.around_answer(),
        };
        let text = generated.trim();
        let text = text.strip_prefix(start.trim()).unwrap_or(text);
        text.strip_suffix(end.trim()).unwrap_or(text).trim()
    }
}

impl FromStr for Template {
    type Err = InvalidTemplate;

    fn from_str(text: &str) -> Result<Self, InvalidTemplate> {
        match text {
            "paper" => return Ok(Self::Paper),
            "chat" => return Ok(Self::Chat),
            _ if text.len() > MAX_BYTES => {
                let message = format!("at most {MAX_BYTES} bytes, got {}", text.len());
                return Err(InvalidTemplate(message));
            }
            _ => (),
        }
        let invalid = |message: String| InvalidTemplate(message);
        for place in [SOURCE, TARGET] {
            let count = text.matches(place).count();
            if count != 1 {
                return Err(invalid(format!("got {place} {count} times")));
            }
        }
        let (before, rest) = text.split_once(SOURCE).unwrap_or_default();
        let Some((between, after)) = rest.split_once(TARGET) else {
            return Err(invalid("got {target} before {source}".into()));
        };
        let [before, between, after] = [before, between, after].map(String::from);
        Ok(Self::Text(TextTemplate { before, between, after }))
    }
}

impl TryFrom<String> for Template {
    type Error = InvalidTemplate;

    fn try_from(text: String) -> Result<Self, InvalidTemplate> {
        text.parse()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(TextTemplate { before, between, after }) => {
                write!(f, "{before}{SOURCE}{between}{TARGET}{after}")
            }
            Self::Paper => f.write_str("paper"),
            Self::Chat => f.write_str("chat"),
        }
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> TextTemplate {
        match text.parse().unwrap() {
            Template::Text(template) => template,
            other => panic!("a text, got {other:?}"),
        }
    }

    #[test]
    fn texts_are_inserted_once() {
        // Places in the data are not places of the template.
        let formatted = template("<{source}> says: {target}!").format("{target}", "{source}");
        let expected =
            FormattedText { prompt: "<{target}> says:".into(), learned: " {source}!".into() };
        assert_eq!(formatted, expected);
        let formatted = template("{source}\n{target}").format("a", " b ");
        assert_eq!(formatted, FormattedText { prompt: "a\n".into(), learned: " b ".into() });
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (text, part) in [
            ("", "{source} 0 times"),
            ("papers", "{source} 0 times"),
            ("{source}", "{target} 0 times"),
            ("{source}{source}{target}", "{source} 2 times"),
            ("{target}{source}", "{target} before {source}"),
            (&"x".repeat(MAX_BYTES + 1), "at most 65536 bytes"),
        ] {
            let message = text.parse::<Template>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
            assert!(message.starts_with("expected \"paper\", \"chat\", or a text with {source}"));
        }
        for text in ["paper", "chat", "{source}{target}", "{{source}} {x} {target}}"] {
            assert_eq!(text.parse::<Template>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn generated_texts_lose_the_text_around_the_target() {
        let prompt = Prompt::Text(template("{source} => {target} <end>"));
        for (generated, target) in [
            (" good <end>", "good"),
            ("good", "good"),
            (" <end>", ""),
            ("go <end> on", "go <end> on"),
        ] {
            assert_eq!(prompt.target(generated), target);
        }
        assert_eq!(Prompt::Paper.target(" good "), "good");
    }
}
