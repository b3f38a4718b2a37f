//! Preparation of examples from records.

#![allow(clippy::unwrap_used)]

use data::{Content, Format, ModelInput, Preparation, Prepared, ReadOptions, Record, Views};
use engine::{Combination, Example, Input, Target};
use std::path::{Path, PathBuf};
use text::{SpecialTokens, Tokenizer};

fn tokenizer() -> Tokenizer {
    let texts = ["name : The Eagle", "The Eagle is near ."];
    Tokenizer::train(texts.into_iter().cycle().take(40), 300, &["<bos>", "<eos>"]).unwrap()
}

fn causal(tokenizer: &Tokenizer, limit: usize) -> Preparation<'_> {
    Preparation { input: ModelInput::Causal { tokenizer, begin: 0, end: 1 }, labels: &[], limit }
}

fn text(source: Option<&str>, target: &str) -> Record {
    Record {
        content: Content::Text {
            source: source.map(Into::into),
            target: target.into(),
            references: Vec::new(),
        },
        group: None,
        line: 1,
    }
}

#[test]
fn only_the_target_is_predicted() {
    let tokenizer = tokenizer();
    let preparation = causal(&tokenizer, 100);
    let Prepared::Example(example) =
        preparation.example(&text(Some("name : The Eagle"), "The Eagle is near .")).unwrap()
    else {
        panic!("an example")
    };
    let (Input::Tokens(tokens), Target::Next(targets)) =
        (&example.parts()[0].input, &example.parts()[0].target)
    else {
        panic!("a text")
    };
    let begin = tokens.iter().position(|&token| token == 0).unwrap();
    assert_eq!(tokens[..=begin], preparation.prompt("name : The Eagle").unwrap());
    assert!(targets[..begin].iter().all(|&target| target == Target::NONE), "nothing of the source");
    assert_eq!(
        targets[begin..tokens.len() - 1],
        tokens[begin + 1..],
        "all of the target, and its end"
    );
    assert_eq!(tokens.last(), Some(&1));
    assert_eq!(tokenizer.decode(tokens).unwrap(), " name : The Eagle  The Eagle is near . ");
}

#[test]
fn texts_without_source_predict_all_but_the_first_token() {
    let tokenizer = tokenizer();
    let preparation = causal(&tokenizer, 30);
    let tokens = tokenizer.encode("The Eagle is", SpecialTokens::Omit).unwrap();
    let Prepared::Example(example) = preparation.example(&text(None, "The Eagle is")).unwrap()
    else {
        panic!("an example")
    };
    let (Input::Tokens(seen), Target::Next(targets)) =
        (&example.parts()[0].input, &example.parts()[0].target)
    else {
        panic!("a text")
    };
    assert_eq!((seen, &targets[..tokens.len() - 1]), (&tokens, &tokens[1..]));
    assert!(matches!(preparation.example(&text(None, "")).unwrap(), Prepared::Empty));
    assert!(matches!(preparation.example(&text(None, "x")).unwrap(), Prepared::Empty));
    let long = "The Eagle is near . ".repeat(20);
    assert!(matches!(preparation.example(&text(None, &long)).unwrap(), Prepared::TooLong));
    assert!(matches!(preparation.example(&text(Some("x"), &long)).unwrap(), Prepared::TooLong));
    let labelled = Record {
        content: Content::Labelled { text: "x".into(), label: "1".into() },
        group: None,
        line: 1,
    };
    assert!(matches!(preparation.example(&labelled).unwrap(), Prepared::UnknownLabel));
    let image = Content::Image { pixels: vec![0.0; 4], height: 2, width: 2, channels: 1, label: 1 };
    assert!(matches!(
        preparation.example(&Record { content: image, group: None, line: 1 }).unwrap(),
        Prepared::WrongKind(_)
    ));
    // As many tokens as the limit are too many.
    let limit = tokens.len();
    assert!(matches!(
        Preparation { limit, ..preparation }.example(&text(None, "The Eagle is")).unwrap(),
        Prepared::TooLong
    ));
    assert!(matches!(
        Preparation { limit: limit + 1, ..preparation }
            .example(&text(None, "The Eagle is"))
            .unwrap(),
        Prepared::Example(_)
    ));
}

#[test]
fn labels_become_classes_or_targets() {
    let tokenizer = tokenizer();
    let labels = ["near".to_string(), "far".to_string()];
    let row = |label: &str| Record {
        content: Content::Labelled { text: "The Eagle".into(), label: label.into() },
        group: None,
        line: 1,
    };
    let answers = Preparation { labels: &labels, ..causal(&tokenizer, 100) };
    let Prepared::Example(answer) = answers.example(&row("far")).unwrap() else {
        panic!("an example")
    };
    let Prepared::Example(expected) = answers.example(&text(Some("The Eagle"), "far")).unwrap()
    else {
        panic!("an example")
    };
    assert!(answer == expected);
    let choices = answers.choices("The Eagle").unwrap().unwrap();
    assert!(choices.len() == 2 && choices[1].parts()[0].input == answer.parts()[0].input);
    let classes =
        Preparation { input: ModelInput::Classifier { tokenizer: &tokenizer }, ..answers };
    let Prepared::Example(class) = classes.example(&row("far")).unwrap() else {
        panic!("an example")
    };
    assert!(
        class.parts()[0].target == Target::Class(1)
            && class.parts()[0].input
                == Input::Tokens(tokenizer.encode("The Eagle", SpecialTokens::Add).unwrap())
    );
    assert!(matches!(classes.example(&row("else")).unwrap(), Prepared::UnknownLabel));
    assert!(matches!(classes.example(&text(None, "The Eagle")).unwrap(), Prepared::WrongKind(_)));
    assert!(matches!(
        Preparation { limit: 1, ..classes }.example(&row("far")).unwrap(),
        Prepared::TooLong
    ));
    assert!(classes.prompt("x").is_err());
    let image = |side: usize, label| Record {
        content: Content::Image {
            pixels: vec![0.5; side * side],
            height: side,
            width: side,
            channels: 1,
            label,
        },
        group: None,
        line: 1,
    };
    let images =
        Preparation { input: ModelInput::Images { elements: 4, features: None }, ..answers };
    let Prepared::Example(example) = images.example(&image(2, 1)).unwrap() else {
        panic!("an example")
    };
    assert!(example == Example::features(vec![0.5; 4], 1));
    assert!(matches!(images.example(&image(2, 2)).unwrap(), Prepared::UnknownLabel));
    assert!(matches!(images.example(&image(3, 0)).unwrap(), Prepared::WrongKind(_)));
}

fn shared() -> Option<PathBuf> {
    let root = std::env::var_os("MUFFLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    if !root.exists() {
        eprintln!("SKIPPED: {} is not there", root.display());
    }
    root.exists().then_some(root)
}

/// The elements of records in Table 3 of the DP-Muon paper.
#[test]
fn usable_records_match_the_dp_muon_paper() {
    let Some(root) = shared() else { return };
    let tokenizer = Tokenizer::open(&root.join("gpt2-tokenizer")).unwrap();
    let end = tokenizer.token_id("<|endoftext|>").unwrap();
    let left = |path: &Path, format: Format, limit: usize| {
        let preparation = Preparation {
            input: ModelInput::Causal { tokenizer: &tokenizer, begin: end, end },
            labels: &[],
            limit,
        };
        let records = format.read(path, &ReadOptions::default()).unwrap();
        records
            .filter(|record| {
                matches!(
                    preparation.example(record.as_ref().unwrap()).unwrap(),
                    Prepared::Example(_)
                )
            })
            .count()
    };
    assert_eq!(left(&root.join("e2e/src1_train.txt"), Format::E2e, 100), 42_043);
    assert_eq!(
        left(&root.join("dart/dart-v1.1.1-full-train.rebuilt.json"), Format::Dart, 120),
        60_591
    );
}

/// Every view is a part of the example, with the features and the label of its own image.
#[test]
fn views_are_parts_of_one_example() {
    let labels = ["a".to_string(), "b".to_string()];
    let input = ModelInput::Images { elements: 12, features: None };
    let preparation = Preparation { input, labels: &labels, limit: 1 };
    let image = |label: u32| {
        let pixels = (0..12).map(|i| i as f32 / 12.0).collect();
        let content = Content::Image { pixels, height: 3, width: 4, channels: 1, label };
        Record { content, group: None, line: 1 }
    };
    let example = |prepared: Prepared| match prepared {
        Prepared::Example(example) => example,
        other => panic!("an example, got {other:?}"),
    };
    for views in [Views::None, Views::Flip, Views::Shift, Views::FlipShift] {
        let all = example(preparation.example_of_views(&image(1), views).unwrap());
        let single: Vec<Example> = views
            .of(&image(1))
            .unwrap()
            .iter()
            .map(|view| example(preparation.example(view).unwrap()))
            .collect();
        assert_eq!((all.parts().len(), all.combination()), (views.count(), Combination::Mean));
        assert!(all.parts().iter().zip(&single).all(|(part, one)| *part == one.parts()[0]));
        let unknown = preparation.example_of_views(&image(2), views).unwrap();
        assert!(matches!(unknown, Prepared::UnknownLabel));
    }
}
