//! Chat templates of models: Jinja programs that format messages, from the files of a tokenizer.
//!
//! They are rendered as the `transformers` library does, without the wall clock: `strftime_now` is
//! not defined, so that the same messages always have the same text.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;
use std::io::{self, Write};
use std::path::Path;

type Rendered<T> = std::result::Result<T, minijinja::Error>;

/// The name of the template in its environment.
const NAME: &str = "chat";
/// Largest number of instructions of one rendering. Common templates take a few thousand.
const FUEL: u64 = 1_000_000;
/// Largest size of a template's source.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Largest size of a rendered text, beyond four times that of its messages.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Deepest nesting of macros and blocks.
const RECURSION_LIMIT: usize = 100;
/// Special tokens that templates use by name.
const SPECIAL_TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];
/// Messages with which a template is tried.
const EXAMPLE: (&str, &str) = ("Question", "Answer");

/// A model's chat template, which formats a question and its answer.
///
/// Templates are untrusted programs. The number of their instructions, their nesting and the size
/// of their output are limited, and they can read nothing but the messages and the names of special
/// tokens. The size of intermediate strings is not limited.
///
/// ```
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
///     {% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = text::ChatTemplate::new(source, &[])?;
/// assert_eq!(template.prompt("2 + 2?")?, "<user>2 + 2?</s><assistant>");
/// let (_, answer) = template.format("2 + 2?", "4")?;
/// assert_eq!(answer, "4</s>");
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The text between the prompt and an answer, and the text after the answer.
    around_answer: (String, String),
}

impl ChatTemplate {
    /// Reads the template and the special tokens of a tokenizer's folder.
    ///
    /// The template is `chat_template.jinja` or, without this file, the key `chat_template` of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// If the files are missing or invalid, or the template does not format a question and answer.
    pub fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { path: folder.join(name), source }),
        };
        let config = match read("tokenizer_config.json")? {
            Some(text) => serde_json::from_str::<Json>(&text)
                .map_err(|error| invalid(format!("tokenizer_config.json: {error}")))?,
            None => Json::Null,
        };
        let source = match read("chat_template.jinja")? {
            Some(source) => source,
            None => source_in(&config).ok_or_else(|| {
                invalid(format!(
                    "expected chat_template.jinja, or the key \"chat_template\" in \
                     tokenizer_config.json; {} has neither",
                    folder.display()
                ))
            })?,
        };
        let tokens: Vec<(&str, String)> = SPECIAL_TOKENS
            .into_iter()
            .filter_map(|name| Some((name, token_text(config.get(name)?)?)))
            .collect();
        Self::new(&source, &tokens)
    }

    /// Creates a template from its source and the texts of special tokens, such as `bos_token`.
    ///
    /// # Errors
    /// If the template is invalid, or does not format a question and its answer.
    pub fn new(source: &str, tokens: &[(&str, String)]) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            let message =
                format!("expected at most {MAX_SOURCE_BYTES} bytes, got {}", source.len());
            return Err(invalid(message));
        }
        let failed = |error: minijinja::Error| invalid(error.to_string());
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Rendered<Value> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        for (name, text) in tokens {
            environment.add_global((*name).to_string(), text.clone());
        }
        environment.add_template_owned(NAME, source.to_string()).map_err(failed)?;
        let mut template = Self { environment, around_answer: Default::default() };
        let (question, answer) = EXAMPLE;
        let whole = template.render(question, Some(answer)).map_err(failed)?;
        let prompt = template.render(question, None).map_err(failed)?;
        let around = whole.strip_prefix(&prompt).and_then(|rest| rest.split_once(answer));
        let (before, after) = around.ok_or_else(|| {
            invalid(
                "the text of a question and its answer does not begin with the generation prompt"
                    .into(),
            )
        })?;
        template.around_answer = (before.into(), after.into());
        Ok(template)
    }

    /// Returns the text that a model continues with an answer.
    ///
    /// # Errors
    /// If the template fails. The message does not show the question.
    pub fn prompt(&self, question: &str) -> Result<String> {
        self.render(question, None).map_err(|_| Error::FormatChat)
    }

    /// Returns the prompt of a question, and the text of the answer that follows it.
    ///
    /// # Errors
    /// If the template fails, or formats the answer elsewhere. The message shows neither text.
    pub fn format(&self, question: &str, answer: &str) -> Result<(String, String)> {
        let prompt = self.prompt(question)?;
        let whole = self.render(question, Some(answer)).map_err(|_| Error::FormatChat)?;
        let rest = whole.strip_prefix(&prompt).ok_or(Error::FormatChat)?.to_string();
        Ok((prompt, rest))
    }

    /// Returns the template's text before and after an answer.
    pub fn around_answer(&self) -> (&str, &str) {
        (&self.around_answer.0, &self.around_answer.1)
    }

    fn render(&self, question: &str, answer: Option<&str>) -> Rendered<String> {
        let message = |role: &str, content: &str| context! { role => role, content => content };
        let messages: Vec<Value> = std::iter::once(message("user", question))
            .chain(answer.map(|answer| message("assistant", answer)))
            .collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => answer.is_none(),
            tools => (),
            documents => (),
        };
        let room = MAX_TEXT_BYTES + 4 * (question.len() + answer.map_or(0, str::len));
        let mut output = BoundedOutput { bytes: Vec::new(), room };
        self.environment.get_template(NAME)?.render_captured_to(context, &mut output)?;
        String::from_utf8(output.bytes)
            .map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, "not UTF-8"))
    }
}

/// Output that refuses more than a number of bytes.
struct BoundedOutput {
    bytes: Vec<u8>,
    room: usize,
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room = self
            .room
            .checked_sub(bytes.len())
            .ok_or_else(|| io::Error::other("the text is too large"))?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The template in a `tokenizer_config.json`: a text, or the default one of several.
fn source_in(config: &Json) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(source) => Some(source.clone()),
        Json::Array(several) => several
            .iter()
            .find(|named| named.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|named| named.get("template")?.as_str())
            .map(String::from),
        _ => None,
    }
}

/// The text of a special token: a string, or an object with its content.
fn token_text(token: &Json) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(String::from)
}

/// Makes an error about a template. A template's own messages may contain control characters.
fn invalid(reason: String) -> Error {
    Error::InvalidChatTemplate { reason: reason.replace(char::is_control, "\u{fffd}") }
}
