//! Preparation of examples from records.

#![allow(clippy::unwrap_used)]

use data::{
    CausalInput, Content, Format, Label, LongTexts, ModelInput, Preparation, Prepared, Prompt,
    ReadOptions, Record, Task, Template, TooLong, Views,
};
use engine::{Combination, Example, Input, Target};
use std::path::{Path, PathBuf};
use text::{SpecialTokens, Tokenizer};

fn tokenizer() -> Tokenizer {
    let texts = ["name : The Eagle", "The Eagle is near ."];
    Tokenizer::train(texts.into_iter().cycle().take(40), 300, &["<bos>", "<eos>"]).unwrap()
}

fn causal(tokenizer: &Tokenizer, limit: usize) -> Preparation<'_> {
    with_prompt(tokenizer, &Prompt::Paper, limit)
}

fn with_prompt<'a>(tokenizer: &'a Tokenizer, prompt: &'a Prompt, limit: usize) -> Preparation<'a> {
    let input = ModelInput::Causal(CausalInput { tokenizer, prompt, begin: 0, end: 1 });
    let (task, long_texts) = (Task::Classification, LongTexts::DROP);
    Preparation { input, task, labels: &[], limit, long_texts }
}

fn prompt(template: &str) -> Prompt {
    match template.parse().unwrap() {
        Template::Text(text) => Prompt::Text(text),
        other => panic!("a text, got {other}"),
    }
}

/// The tokens of an example of one part, and its targets.
fn tokens(prepared: &Prepared) -> (&[u32], &[u32]) {
    let Prepared::Example(example) = prepared else { panic!("an example, got {prepared:?}") };
    match (&example.parts()[0].input, &example.parts()[0].target) {
        (Input::Tokens(tokens), Target::Next(targets)) => (tokens, targets),
        _ => panic!("a text"),
    }
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

/// The prompt is a prefix of the text, begins with one <bos>, and has no targets.
#[test]
fn templates_are_learned_from_the_target_on() {
    let tokenizer = tokenizer();
    for (template, before, learned) in [
        ("{source}\n{target}", "name : The Eagle\n", "The Eagle is near ."),
        ("{source} => {target}.", "name : The Eagle =>", " The Eagle is near .."),
        ("Data: {source}\nText:{target}", "Data: name : The Eagle\nText:", "The Eagle is near ."),
    ] {
        let prompt = prompt(template);
        let preparation = with_prompt(&tokenizer, &prompt, 100);
        let prepared =
            preparation.example(&text(Some("name : The Eagle"), "The Eagle is near .")).unwrap();
        let (tokens, targets) = tokens(&prepared);
        let given = preparation.prompt("name : The Eagle").unwrap();
        let first = given.len();
        assert_eq!((&tokens[..first], tokens[0]), (&given[..], 0), "{template}");
        assert_eq!(tokenizer.decode(&tokens[..first]).unwrap(), before);
        assert_eq!(tokenizer.decode(&tokens[first..]).unwrap(), learned);
        assert_eq!(tokens.iter().filter(|&&token| token < 2).count(), 2, "one <bos>, one <eos>");
        assert_eq!(tokens.last(), Some(&1));
        assert!(targets[..first - 1].iter().all(|&target| target == Target::NONE));
        assert_eq!(targets[first - 1..tokens.len() - 1], tokens[first..]);
    }
}

/// A tokenizer that begins every text with a space, as those of Llama do.
fn prefixing_tokenizer() -> Tokenizer {
    let vocab = ["<bos>", "<eos>", "▁", "a", "b", "\\n"];
    let vocab: Vec<String> =
        vocab.iter().enumerate().map(|(id, token)| format!("\"{token}\":{id}")).collect();
    let json = format!(
        "{{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":{{\"type\":\"Prepend\",\
         \"prepend\":\"▁\"}},\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,\
         \"model\":{{\"type\":\"BPE\",\"vocab\":{{{}}},\"merges\":[]}}}}",
        vocab.join(",")
    );
    let path = std::env::temp_dir().join(format!("muffle-prefixing-{}.json", std::process::id()));
    std::fs::write(&path, json).unwrap();
    let tokenizer = Tokenizer::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    tokenizer
}

/// The tokens of a text are those of the whole text, unless a token spans prompt and target.
#[test]
fn prompts_and_targets_are_encoded_as_one_text() {
    let tokenizer = tokenizer();
    // The tokenizer joins "Ea" and "gle", so the target is encoded alone.
    let joined = prompt("{source}{target}");
    let preparation = with_prompt(&tokenizer, &joined, 100);
    let prepared = preparation.example(&text(Some("The Ea"), "gle")).unwrap();
    let encode = |text: &str| tokenizer.encode(text, SpecialTokens::Omit).unwrap();
    assert!(!encode("The Eagle").starts_with(&encode("The Ea")), "the case does not occur");
    assert_eq!(tokens(&prepared).0, [vec![0], encode("The Ea"), encode("gle"), vec![1]].concat());
    let default = Prompt::default();
    let preparation = with_prompt(&tokenizer, &default, 100);
    let prepared = preparation.example(&text(Some("The"), "Eagle")).unwrap();
    assert_eq!(tokens(&prepared).0, [vec![0], encode("The\nEagle"), vec![1]].concat());
    // The target alone would begin with a space.
    let prefixing = prefixing_tokenizer();
    assert_eq!(prefixing.encode("b", SpecialTokens::Omit).unwrap(), [2, 4]);
    let preparation = with_prompt(&prefixing, &default, 100);
    let prepared = preparation.example(&text(Some("a"), "b")).unwrap();
    assert_eq!(tokens(&prepared).0, [0, 2, 3, 5, 4, 1]);
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
    assert!(matches!(preparation.example(&labelled).unwrap(), Prepared::InvalidLabel(_)));
    let image = Content::Image {
        pixels: vec![0.0; 4],
        height: 2,
        width: 2,
        channels: 1,
        label: Label::Index(1),
    };
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
    assert!(matches!(classes.example(&row("else")).unwrap(), Prepared::InvalidLabel(_)));
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
            label: Label::Index(label),
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
    assert!(matches!(images.example(&image(2, 2)).unwrap(), Prepared::InvalidLabel(_)));
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
            input: ModelInput::Causal(CausalInput {
                tokenizer: &tokenizer,
                prompt: &Prompt::Paper,
                begin: end,
                end,
            }),
            task: Task::Classification,
            labels: &[],
            limit,
            long_texts: LongTexts::DROP,
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
    let (task, long_texts) = (Task::Classification, LongTexts::default());
    let preparation = Preparation { input, task, labels: &labels, limit: 1, long_texts };
    let image = |label: u32| {
        let pixels = (0..12).map(|i| i as f32 / 12.0).collect();
        let content =
            Content::Image { pixels, height: 3, width: 4, channels: 1, label: Label::Index(label) };
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
        assert!(matches!(unknown, Prepared::InvalidLabel(_)));
    }
}

const SENTENCE: &str = "The Eagle is near . ";

fn long_texts(rule: Option<TooLong>, max_chunks: usize) -> LongTexts {
    LongTexts { rule, max_chunks, ..LongTexts::default() }
}

/// The end of a source is cut so that the target fits: for every limit, and as little as possible.
#[test]
fn sources_are_cut_so_that_the_target_fits() {
    let tokenizer = tokenizer();
    let source = SENTENCE.repeat(20);
    let target = tokenizer.encode("\nThe Eagle", SpecialTokens::Omit).unwrap();
    for prompt in [prompt("{source}\n{target}"), prompt("Data: {source}\n{target}")] {
        let given = |text: &str| with_prompt(&tokenizer, &prompt, 999).prompt(text).unwrap();
        let least = given("").len() + target.len() + 1;
        let most = given(&source).len() + target.len() + 1;
        for limit in least..most {
            for rule in [None, Some(TooLong::Truncate)] {
                let preparation = Preparation {
                    long_texts: long_texts(rule, 8),
                    ..with_prompt(&tokenizer, &prompt, limit)
                };
                let prepared = preparation.example(&text(Some(&source), "The Eagle")).unwrap();
                let Prepared::Shortened(example) = prepared else { panic!("{prepared:?}") };
                let whole = Prepared::Example(example);
                let (tokens, targets) = tokens(&whole);
                assert!((limit - 3..limit).contains(&tokens.len()), "{limit}: {}", tokens.len());
                let learned = targets.iter().filter(|&&token| token != Target::NONE).count();
                // All of the target and its end; the line break belongs to the prompt.
                let expected = [&target[1..], &[1]].concat();
                assert_eq!(tokens[tokens.len() - learned..], expected, "{limit}");
                let shown = tokenizer.decode(&tokens[..tokens.len() - learned]).unwrap();
                let shown = shown.trim_start_matches("Data: ").strip_suffix('\n').unwrap();
                assert!(source.starts_with(shown), "{shown}");
            }
        }
    }
}

/// A target that does not fit without its source loses its end, and the end token.
#[test]
fn long_targets_are_cut_after_their_source() {
    let tokenizer = tokenizer();
    let prompt = Prompt::default();
    let target = SENTENCE.repeat(20);
    let preparation =
        Preparation { long_texts: LongTexts::default(), ..with_prompt(&tokenizer, &prompt, 12) };
    let prepared = preparation.example(&text(Some("name : The Eagle"), &target)).unwrap();
    let Prepared::Shortened(example) = prepared else { panic!("{prepared:?}") };
    let whole = Prepared::Example(example);
    let (tokens, _) = tokens(&whole);
    let expected =
        [vec![0], tokenizer.encode(&format!("\n{target}"), SpecialTokens::Omit).unwrap()];
    assert_eq!(tokens, &expected.concat()[..11]);
    // Prompts for generation are cut in the same way.
    assert_eq!(preparation.prompt(&target).unwrap().len(), 11);
    let dropping = Preparation { long_texts: LongTexts::DROP, ..preparation };
    assert!(dropping.prompt(&target).unwrap().len() > 100);
    let record = text(Some("name"), &target);
    assert!(matches!(dropping.example(&record).unwrap(), Prepared::TooLong));
    let chunking = Preparation { long_texts: long_texts(Some(TooLong::Chunk), 8), ..preparation };
    for record in [record, text(Some("a"), "b")] {
        assert!(matches!(chunking.example(&record).unwrap(), Prepared::WrongKind(_)));
    }
}

/// A text without a source becomes chunks, of which the first are used, or is cut.
#[test]
fn plain_texts_are_divided_into_chunks() {
    let tokenizer = tokenizer();
    let long = SENTENCE.repeat(9);
    let all = tokenizer.encode(&long, SpecialTokens::Omit).unwrap();
    let prepared = |rule, max_chunks| {
        Preparation { long_texts: long_texts(rule, max_chunks), ..causal(&tokenizer, 11) }
            .example(&text(None, &long))
            .unwrap()
    };
    let parts = |example: &Example| -> Vec<Vec<u32>> {
        let tokens = |input: &Input| match input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Features(_) => panic!("a text"),
        };
        example.parts().iter().map(|part| tokens(&part.input)).collect()
    };
    let expected: Vec<Vec<u32>> =
        (0..all.len() - 1).step_by(9).map(|i| all[i..all.len().min(i + 10)].to_vec()).collect();
    for rule in [None, Some(TooLong::Chunk)] {
        let Prepared::Example(whole) = prepared(rule, 99) else { panic!("all of the text") };
        assert_eq!((parts(&whole), whole.combination()), (expected.clone(), Combination::Mean));
        let Prepared::Shortened(some) = prepared(rule, 2) else { panic!("a part of it") };
        assert_eq!(parts(&some), expected[..2]);
    }
    let Prepared::Shortened(cut) = prepared(Some(TooLong::Truncate), 99) else { panic!("a part") };
    assert_eq!(parts(&cut), expected[..1]);
    assert!(matches!(prepared(Some(TooLong::Drop), 99), Prepared::TooLong));
}

/// A classified text loses its end; special tokens stay.
#[test]
fn classified_texts_are_cut() {
    let tokenizer = tokenizer();
    let labels = ["near".to_string(), "far".to_string()];
    let content = Content::Labelled { text: SENTENCE.repeat(9), label: "far".into() };
    let record = Record { content, group: None, line: 1 };
    let prepared = |rule| {
        let input = ModelInput::Classifier { tokenizer: &tokenizer };
        let long_texts = long_texts(rule, 8);
        let task = Task::Classification;
        let preparation = Preparation { input, task, labels: &labels, limit: 12, long_texts };
        preparation.example(&record).unwrap()
    };
    let expected = tokenizer.encode(&SENTENCE.repeat(9), SpecialTokens::Add).unwrap();
    for rule in [None, Some(TooLong::Truncate)] {
        let Prepared::Shortened(example) = prepared(rule) else { panic!("a part") };
        assert!(example == Example::labelled(expected[..11].to_vec(), 1));
    }
    assert!(matches!(prepared(Some(TooLong::Drop)), Prepared::TooLong));
    assert!(matches!(prepared(Some(TooLong::Chunk)), Prepared::WrongKind(_)));
}
