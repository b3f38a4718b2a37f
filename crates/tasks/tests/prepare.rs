//! From records to examples.

#![allow(clippy::unwrap_used)]

use model::{Input, Target};
use std::path::{Path, PathBuf};
use tasks::{Content, Format, Frame, Options, Preparation, Prepared, Record, Tokenizer};

fn tokenizer() -> Tokenizer {
    let texts = ["name : The Eagle", "The Eagle is near ."];
    Tokenizer::train(texts.into_iter().cycle().take(40), 300, &["<bos>", "<eos>"]).unwrap()
}

fn text(source: Option<&str>, target: &str) -> Record {
    Record {
        content: Content::Text { source: source.map(Into::into), target: target.into(), references: Vec::new() },
        group: None,
        line: 1,
    }
}

#[test]
fn only_the_target_is_predicted() {
    let tokenizer = tokenizer();
    let preparation = Preparation { tokenizer: &tokenizer, begin: 0, end: 1, limit: 100 };
    let Prepared::Example(example) = preparation.example(&text(Some("name : The Eagle"), "The Eagle is near .")).unwrap() else {
        panic!("an example")
    };
    let (Input::Tokens(tokens), Target::Next(targets)) = (&example.input, &example.target) else { panic!("a text") };
    let begin = tokens.iter().position(|&token| token == 0).unwrap();
    assert_eq!(tokens[..=begin], preparation.prompt("name : The Eagle").unwrap());
    assert!(targets[..begin].iter().all(|&target| target == Target::NONE), "nothing of the source");
    assert_eq!(targets[begin..tokens.len() - 1], tokens[begin + 1..], "all of the target, and its end");
    assert_eq!(tokens.last(), Some(&1));
    assert_eq!(tokenizer.decode(tokens).unwrap(), " name : The Eagle  The Eagle is near . ");
}

#[test]
fn a_text_alone_is_its_own_tokens() {
    let tokenizer = tokenizer();
    let preparation = Preparation { tokenizer: &tokenizer, begin: 0, end: 1, limit: 30 };
    let tokens = tokenizer.encode("The Eagle is", Frame::Bare).unwrap();
    let Prepared::Example(example) = preparation.example(&text(None, "The Eagle is")).unwrap() else { panic!("an example") };
    let (Input::Tokens(seen), Target::Next(targets)) = (&example.input, &example.target) else { panic!("a text") };
    assert_eq!((seen, &targets[..tokens.len() - 1]), (&tokens, &tokens[1..]));
    assert!(matches!(preparation.example(&text(None, "")).unwrap(), Prepared::Empty));
    assert!(matches!(preparation.example(&text(None, "x")).unwrap(), Prepared::Empty));
    let long = "The Eagle is near . ".repeat(20);
    assert!(matches!(preparation.example(&text(None, &long)).unwrap(), Prepared::TooLong));
    assert!(matches!(preparation.example(&text(Some("x"), &long)).unwrap(), Prepared::TooLong));
    let labelled = Record { content: Content::Labelled { text: "x".into(), label: "1".into() }, group: None, line: 1 };
    assert!(matches!(preparation.example(&labelled).unwrap(), Prepared::NotText));
    // The limit itself is too long.
    let limit = tokens.len();
    assert!(matches!(Preparation { limit, ..preparation }.example(&text(None, "The Eagle is")).unwrap(), Prepared::TooLong));
    assert!(matches!(Preparation { limit: limit + 1, ..preparation }.example(&text(None, "The Eagle is")).unwrap(), Prepared::Example(_)));
}

fn shared() -> Option<PathBuf> {
    let root = std::env::var_os("MUFFLE_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    if !root.exists() {
        eprintln!("SKIPPED: {} is not there", root.display());
    }
    root.exists().then_some(root)
}

/// The numbers of records in Table 3 of the DP-Muon paper.
#[test]
fn as_many_records_are_left_as_in_the_paper() {
    let Some(root) = shared() else { return };
    let tokenizer = Tokenizer::open(&root.join("gpt2-tokenizer")).unwrap();
    let end = tokenizer.id("<|endoftext|>").unwrap();
    let left = |path: &Path, format: Format, limit: usize| {
        let preparation = Preparation { tokenizer: &tokenizer, begin: end, end, limit };
        let records = format.read(path, &Options::default()).unwrap();
        records.filter(|record| matches!(preparation.example(record.as_ref().unwrap()).unwrap(), Prepared::Example(_))).count()
    };
    assert_eq!(left(&root.join("e2e/src1_train.txt"), Format::E2e, 100), 42_043);
    assert_eq!(left(&root.join("dart/dart-v1.1.1-full-train.rebuilt.json"), Format::Dart, 120), 60_591);
}
