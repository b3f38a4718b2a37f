//! Texts: preparation of examples, metrics, numbers on the command line.

use super::text;
use crate::scratch::Scratch;
use crate::target::ReadOutcome;
use muffle::data::{
    CausalInput, Format, LongTexts, ModelInput, Preparation, Prepared, Prompt, ReadOptions, Task,
    Template,
};
use muffle::text::{ChatTemplate, Tokenizer, bleu, rouge};
use std::io::Cursor;
use std::sync::OnceLock;

/// A file of the program, which is not public.
#[path = "../../../cli/src/number.rs"]
#[allow(dead_code, reason = "the program may know numbers that are not asked for here")]
mod written;

pub(crate) const NUMBERS: &[&str] = &[
    "1024/42043",
    "1e-5",
    "/",
    "_",
    "e",
    "inf",
    "nan",
    "-",
    "+",
    ".",
    " ",
    "0x",
    "1e400",
    "٣",
    "∞",
];

/// `1024/42043` and `1e6`.
pub(crate) fn number(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    let (real, count) = (written::real(text), written::count(text));
    // A count is close to the number.
    if let (Ok(real), Ok(count)) = (&real, &count) {
        assert!(
            (real - *count as f64).abs() <= 1.0 + 1e-9 * real.abs(),
            "{text:?} is {real} and {count}"
        );
    }
    let kind = |real: &f64| {
        if real.is_nan() {
            "no number"
        } else if real.is_infinite() {
            "infinite"
        } else {
            "finite"
        }
    };
    let message = format!(
        "{} {}",
        real.as_ref().map_or_else(|_| "not real", kind),
        if count.is_ok() { "count" } else { "not a count" }
    );
    ReadOutcome { accepted: real.is_ok(), message }
}

/// A tokenizer trained once on public texts.
fn tokenizer() -> Option<&'static Tokenizer> {
    static MADE: OnceLock<Option<Tokenizer>> = OnceLock::new();
    MADE.get_or_init(|| {
        let texts = [
            "the cat sat on the mat",
            "name : Aromi | food : Chinese",
            "a good film",
            "a bad film",
        ];
        Tokenizer::train(texts.iter().copied(), 300, &["<bos>", "<eos>"]).ok()
    })
    .as_ref()
}

/// Prepares rows of E2E and of labelled texts for each kind of model.
pub(crate) fn prepare(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let Some(tokenizer) = tokenizer() else {
        return ReadOutcome { accepted: false, message: "no tokenizer".into() };
    };
    let labels = ["good".to_string(), "bad".to_string()];
    let prompt = Prompt::default();
    let readers = [
        ModelInput::Causal(CausalInput { tokenizer, prompt: &prompt, begin: 0, end: 1 }),
        ModelInput::Classifier { tokenizer },
        ModelInput::Images { elements: 4, features: None },
    ];
    let (mut accepted, mut message) = (false, Vec::new());
    for format in [Format::E2e, Format::Jsonl, Format::Lines] {
        let records =
            match format.read_from(Cursor::new(input.to_vec()), "data", &ReadOptions::default()) {
                Ok(records) => records,
                Err(error) => {
                    message.push(error.to_string());
                    continue;
                }
            };
        let mut kinds = [0u8; 6];
        for record in records.map_while(Result::ok) {
            for reader in readers {
                let task = Task::Classification;
                let long_texts = LongTexts { max_chunks: 3, ..LongTexts::default() };
                let preparation =
                    Preparation { input: reader, task, labels: &labels, limit: 40, long_texts };
                let kind = match preparation.example(&record) {
                    Ok(Prepared::Example(example) | Prepared::Shortened(example)) => {
                        let parts = example.parts();
                        assert!(parts.len() <= 3, "too many chunks");
                        assert!(parts.iter().all(|part| part.input.len() < 40), "too long");
                        accepted = true;
                        0
                    }
                    Ok(Prepared::TooLong) => 1,
                    Ok(Prepared::Empty) => 2,
                    Ok(Prepared::InvalidLabel(_)) => 3,
                    Ok(Prepared::WrongKind(_)) => 4,
                    Err(error) => {
                        message.push(error.to_string());
                        5
                    }
                };
                kinds[kind] = 1;
            }
        }
        message.push(kinds.map(|there| if there == 1 { "+" } else { "-" }).concat());
    }
    ReadOutcome { accepted, message: message.join(" | ") }
}

/// Words of templates.
pub(crate) const TEMPLATE: &[&str] =
    &["{source}", "{target}", "paper", "chat", "{", "}", " ", "\n", "{{source}}"];

/// Reads a template and formats texts with it; a template that is read prints as it was written.
pub(crate) fn template(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    let message = match text.parse::<Template>() {
        Ok(template) => {
            assert_eq!(template.to_string(), text, "does not round-trip");
            if let (Template::Text(inner), Some(tokenizer)) = (&template, tokenizer()) {
                let prompt = Prompt::Text(inner.clone());
                let input = CausalInput { tokenizer, prompt: &prompt, begin: 0, end: 1 };
                assert!(input.prompt_tokens("the cat").is_ok_and(|tokens| tokens[0] == 0));
            }
            return ReadOutcome { accepted: true, message: String::new() };
        }
        Err(error) => error.to_string(),
    };
    ReadOutcome { accepted: false, message }
}

/// Words of chat templates.
pub(crate) const CHAT: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{%-",
    "-%}",
    "for m in messages",
    "endfor",
    "if ",
    "endif",
    "else",
    "set x = ",
    "m.content",
    "m['role']",
    "messages",
    "add_generation_prompt",
    "loop.index0",
    "loop.first",
    "bos_token",
    "eos_token",
    "| trim",
    ".strip()",
    ".split('x')",
    "[0]",
    "[::-1]",
    "namespace(x=1)",
    "range(9)",
    "macro f(x)",
    "endmacro",
    "f(1)",
    "raise_exception('x')",
    "'a' * 9",
    " ~ ",
    "is defined",
    "not ",
    "none",
    "continue",
    "include 'chat'",
    "tojson",
];

/// Reads a chat template and formats a question and its answer.
pub(crate) fn chat_template(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let source = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    match ChatTemplate::new(source, &[("bos_token", "<s>".into()), ("eos_token", "</s>".into())]) {
        Ok(template) => {
            let message = match template.format("name : Aromi", "a good \u{e9} film") {
                Ok((prompt, _)) => {
                    assert_eq!(template.prompt("name : Aromi").ok(), Some(prompt));
                    String::new()
                }
                Err(error) => error.to_string(),
            };
            ReadOutcome { accepted: true, message }
        }
        Err(error) => ReadOutcome { accepted: false, message: error.to_string() },
    }
}

/// Scores texts: a line with a text, a line with its tab-separated references, and so on.
pub(crate) fn score(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    let (mut statistics, mut mean) = (bleu::Statistics::default(), rouge::Mean::default());
    let mut lines = text.lines();
    let mut message = String::new();
    while let (Some(hypothesis), Some(references)) = (lines.next(), lines.next()) {
        let references: Vec<&str> =
            references.split('\t').filter(|reference| !reference.trim().is_empty()).collect();
        let refused = [
            statistics.add(hypothesis, &references).err(),
            mean.add(hypothesis, &references, rouge::Words::Stemmed).err(),
        ];
        if let Some(error) = refused.into_iter().flatten().next_back() {
            message = error.to_string();
        }
    }
    let (bleu, rouge) =
        (statistics.bleu(bleu::BleuOptions::default()).score, mean.score().percent().f1);
    assert!(
        (0.0..=100.001).contains(&bleu) && (0.0..=100.001).contains(&rouge),
        "BLEU {bleu}, ROUGE-L {rouge}"
    );
    let part = |score: f64| ["none", "low", "half", "high", "all"][(score / 25.0) as usize % 5];
    ReadOutcome {
        accepted: statistics.items() > 0 && message.is_empty(),
        message: format!("{message} {} {}", part(bleu), part(rouge)),
    }
}
