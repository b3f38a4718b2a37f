//! BLEU, ROUGE-L and the stemmer against sacrebleu, rouge_score and nltk (`python3
//! peers/metrics.py`), and properties for arbitrary texts.

#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use text::Error;
use text::bleu::{
    self, BleuOptions, Order, Pseudocount, Smoothing, Statistics, corpus_bleu, sentence_bleu,
};
use text::rouge::{self, Mean, Score, Words, corpus_rouge_l, rouge_l};
use text::stem::stem;

const TOLERANCE: f64 = 1e-9;

fn golden(name: &str) -> Value {
    let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn texts(value: &Value) -> Vec<&str> {
    list(value).iter().map(text).collect()
}

fn options(value: &Value) -> BleuOptions {
    let k = |usual| value["value"].as_f64().map_or(usual, |k| Pseudocount::new(k).unwrap());
    let smoothing = match text(&value["smoothing"]) {
        "exp" => Smoothing::Exponential,
        "floor" => Smoothing::Floor(k(Pseudocount::FLOOR)),
        "add-k" => Smoothing::AddK(k(Pseudocount::ONE)),
        "none" => Smoothing::None,
        other => panic!("no smoothing {other}"),
    };
    BleuOptions {
        smoothing,
        order: if value["effective"].as_bool().unwrap() { Order::Effective } else { Order::Full },
    }
}

#[track_caller]
fn close(got: f64, want: &Value, what: &str) {
    let want = want.as_f64().unwrap();
    assert!((got - want).abs() <= TOLERANCE, "{what}: {got}, not {want}");
}

#[track_caller]
fn close_score(got: Score, want: &Value, what: &str) {
    for (got, want) in [got.precision, got.recall, got.f1].into_iter().zip(list(want)) {
        close(got, want, what);
    }
}

const BOTH: [(&str, Words); 2] = [("stemmed", Words::Stemmed), ("plain", Words::Plain)];

#[test]
fn scores_of_items_match_the_python_packages() {
    let golden = golden("metrics");
    assert!(list(&golden["items"]).len() >= 60);
    for item in list(&golden["items"]) {
        let (hypothesis, references) = (text(&item["hypothesis"]), texts(&item["references"]));
        assert_eq!(bleu::tokens(hypothesis), texts(&item["tokens"]), "{hypothesis:?}");
        let scores = list(&item["sentence"]);
        assert_eq!(scores.len(), list(&golden["options"]).len());
        for (want, given) in scores.iter().zip(list(&golden["options"])) {
            close(
                sentence_bleu(hypothesis, &references, options(given)).unwrap().score,
                want,
                &format!("{hypothesis:?} {given}"),
            );
        }
        for (name, words) in BOTH {
            close_score(
                rouge_l(hypothesis, &references, words).unwrap(),
                &item[name],
                &format!("{hypothesis:?} {name}"),
            );
        }
    }
}

#[test]
fn scores_of_corpora_match_the_python_packages() {
    let golden = golden("metrics");
    for corpus in list(&golden["corpora"]) {
        let name = text(&corpus["name"]);
        let most = corpus["most_references"].as_u64().map_or(usize::MAX, |n| n as usize);
        let items: Vec<&Value> = list(&corpus["items"])
            .iter()
            .map(|i| &golden["items"][i.as_u64().unwrap() as usize])
            .collect();
        let hypotheses: Vec<&str> = items.iter().map(|item| text(&item["hypothesis"])).collect();
        let references: Vec<Vec<&str>> = items
            .iter()
            .map(|item| texts(&item["references"]).into_iter().take(most).collect())
            .collect();
        let scores = list(&corpus["bleu"]);
        assert_eq!(scores.len(), list(&golden["options"]).len());
        for (want, given) in scores.iter().zip(list(&golden["options"])) {
            let what = format!("{name} {given}");
            let got = corpus_bleu(&hypotheses, &references, options(given)).unwrap();
            close(got.score, &want["score"], &what);
            got.precisions
                .iter()
                .zip(list(&want["precisions"]))
                .for_each(|(got, want)| close(*got, want, &what));
            close(got.brevity_penalty, &want["brevity_penalty"], &what);
            assert_eq!(got.hypothesis_length, want["hypothesis_length"], "{what}");
            assert_eq!(got.reference_length, want["reference_length"], "{what}");
        }
        for (kind, words) in BOTH {
            close_score(
                corpus_rouge_l(&hypotheses, &references, words).unwrap(),
                &corpus[kind],
                &format!("{name} {kind}"),
            );
        }
    }
}

#[test]
fn stems_match_nltk() {
    let golden = golden("stems");
    let stems = golden["stems"].as_object().unwrap();
    assert_eq!(stems.len(), 2000);
    for (word, want) in stems {
        assert_eq!(stem(word), text(want), "{word}");
        // ROUGE does not stem words of up to three letters.
        assert_eq!(
            rouge::tokens(word, Words::Stemmed),
            [if word.len() > 3 { text(want) } else { word }]
        );
    }
}

#[test]
fn empty_and_unequal_corpora_are_refused() {
    let none: [&str; 0] = [];
    let no_lists: [Vec<&str>; 0] = [];
    let bleu = |hypotheses: &[&str], references: &[Vec<&str>]| {
        corpus_bleu(hypotheses, references, BleuOptions::default()).unwrap_err()
    };
    let rouge = |hypotheses: &[&str], references: &[Vec<&str>]| {
        corpus_rouge_l(hypotheses, references, Words::Plain).unwrap_err()
    };
    assert!(matches!(bleu(&none, &no_lists), Error::EmptyCorpus));
    assert!(matches!(rouge(&none, &no_lists), Error::EmptyCorpus));
    let one = [vec!["a"]];
    assert!(matches!(bleu(&["a", "b"], &one), Error::Lengths { hypotheses: 2, references: 1 }));
    assert!(matches!(bleu(&none, &one), Error::Lengths { hypotheses: 0, references: 1 }));
    assert!(matches!(rouge(&["a"], &no_lists), Error::Lengths { hypotheses: 1, references: 0 }));
    let second_has_none = [vec!["a"], vec![]];
    assert!(matches!(bleu(&["a", ""], &second_has_none), Error::NoReference { item: 2 }));
    assert!(matches!(rouge(&["a", ""], &second_has_none), Error::NoReference { item: 2 }));
    let sentence = sentence_bleu("a", &none, BleuOptions::SENTENCE);
    assert!(matches!(sentence, Err(Error::NoReference { item: 1 })));
    assert_eq!(
        Error::NoReference { item: 2 }.to_string(),
        "expected at least one reference for item 2, got none"
    );
}

#[test]
fn empty_statistics_score_zero() {
    assert_eq!(Statistics::default().bleu(BleuOptions::default()).score, 0.0);
    assert_eq!(Mean::default().score().percent(), Score::default());
}

/// Sentences of few different words, so that some match, with special characters.
fn sentence() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a", "the", "Pub", "pubs", ".", ",", "1,0", "5-6", "&amp;", "&lt", "é", "-\n", "\u{1c}",
        "…", "x.", "yyed", "\t",
    ]);
    vec((word, prop::sample::select(vec!["", " ", "\n"])), 0..12)
        .prop_map(|parts| parts.into_iter().map(|(a, b)| format!("{a}{b}")).collect())
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        sentence(),
        "\\PC{0,40}",
        vec(any::<char>(), 0..40).prop_map(String::from_iter),
        "[a-z0-9]{0,12}(ied|eed|ing|ed|ll|y|e|alli|logi|ion|ies){0,3}"
    ]
}

fn any_corpus() -> impl Strategy<Value = (Vec<String>, Vec<Vec<String>>)> {
    (vec(any_text(), 0..5), vec(vec(any_text(), 0..4), 0..5))
}

fn any_options() -> impl Strategy<Value = BleuOptions> {
    let k = || (0.0..=1.0).prop_map(|k| Pseudocount::new(k).unwrap());
    let smoothing = prop_oneof![
        Just(Smoothing::None),
        Just(Smoothing::Exponential),
        k().prop_map(Smoothing::Floor),
        k().prop_map(Smoothing::AddK)
    ];
    (smoothing, prop_oneof![Just(Order::Full), Just(Order::Effective)])
        .prop_map(|(smoothing, order)| BleuOptions { smoothing, order })
}

/// The reference implementation, with the whole table.
fn longest_common(a: &[String], b: &[String]) -> usize {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            table[i + 1][j + 1] =
                if x == y { table[i][j] + 1 } else { table[i][j + 1].max(table[i + 1][j]) };
        }
    }
    table[a.len()][b.len()]
}

proptest! {
    #[test]
    fn any_corpus_has_a_score_or_an_error(
        (hypotheses, references) in any_corpus(),
        options in any_options(),
    ) {
        let fits = !hypotheses.is_empty()
            && hypotheses.len() == references.len()
            && references.iter().all(|list| !list.is_empty());
        let bleu = corpus_bleu(&hypotheses, &references, options);
        prop_assert_eq!(bleu.is_ok(), fits);
        if let Ok(bleu) = bleu {
            prop_assert!((0.0..=100.0 + TOLERANCE).contains(&bleu.score), "{bleu:?}");
            prop_assert!((0.0..=1.0).contains(&bleu.brevity_penalty), "{bleu:?}");
        }
        for (_, words) in BOTH {
            let rouge = corpus_rouge_l(&hypotheses, &references, words);
            prop_assert_eq!(rouge.is_ok(), fits);
            if let Ok(Score { precision, recall, f1 }) = rouge {
                let range = 0.0..=1.0 + TOLERANCE;
                prop_assert!([precision, recall, f1].iter().all(|x| range.contains(x)));
            }
        }
    }

    #[test]
    fn merged_parts_equal_the_whole_corpus(
        items in vec((any_text(), vec(any_text(), 1..4)), 0..8),
        cut in 0..8usize,
        options in any_options(),
    ) {
        let (mut whole, mut mean) = (Statistics::default(), Mean::default());
        let mut parts = [(whole, mean); 2];
        for (i, (hypothesis, references)) in items.iter().enumerate() {
            let (statistics, part) = &mut parts[usize::from(i >= cut)];
            for statistics in [&mut whole, statistics] {
                statistics.add(hypothesis, references).unwrap();
            }
            for mean in [&mut mean, part] {
                mean.add(hypothesis, references, Words::Stemmed).unwrap();
            }
        }
        let [(mut statistics, mut merged), (more, others)] = parts;
        statistics.merge(&more);
        merged.merge(&others);
        prop_assert_eq!(statistics, whole);
        prop_assert_eq!(statistics.items(), items.len() as u64);
        prop_assert_eq!(statistics.bleu(options), whole.bleu(options));
        prop_assert!((merged.score().f1 - mean.score().f1).abs() <= TOLERANCE);
        prop_assert_eq!(merged.items(), mean.items());
    }

    #[test]
    fn order_and_duplicates_of_references_do_not_matter(
        hypothesis in any_text(),
        mut references in vec(any_text(), 1..4),
    ) {
        let score = |references: &[String]| {
            let rouge = BOTH.map(|(_, words)| rouge_l(&hypothesis, references, words).unwrap().f1);
            (sentence_bleu(&hypothesis, references, BleuOptions::SENTENCE).unwrap(), rouge)
        };
        let before = score(&references);
        references.reverse();
        references.push(references[0].clone());
        prop_assert_eq!(score(&references), before);
    }

    #[test]
    fn a_text_scores_full_marks_against_itself(hypothesis in any_text(), other in any_text()) {
        let want = if bleu::tokens(&hypothesis).is_empty() { 0.0 } else { 100.0 };
        let references = [&other, &hypothesis];
        let bleu = sentence_bleu(&hypothesis, &references, BleuOptions::SENTENCE).unwrap();
        prop_assert!((bleu.score - want).abs() <= TOLERANCE);
        for (_, words) in BOTH {
            let some = !rouge::tokens(&hypothesis, words).is_empty();
            let rouge = rouge_l(&hypothesis, &references, words).unwrap();
            prop_assert_eq!(rouge.f1, if some { 1.0 } else { 0.0 });
        }
    }

    #[test]
    fn one_row_matches_the_whole_table(a in any_text(), b in any_text()) {
        for (_, words) in BOTH {
            let (x, y) = (rouge::tokens(&a, words), rouge::tokens(&b, words));
            let common = longest_common(&x, &y) as f64;
            let score = rouge_l(&a, &[&b], words).unwrap();
            prop_assert!((score.precision * x.len() as f64 - common).abs() <= TOLERANCE);
            prop_assert!((score.recall * y.len() as f64 - common).abs() <= TOLERANCE);
        }
    }

    #[test]
    fn tokens_are_not_empty_and_have_no_space(text in any_text()) {
        for token in bleu::tokens(&text) {
            prop_assert!(!token.is_empty() && !token.contains(char::is_whitespace));
        }
        for token in rouge::tokens(&text, Words::Stemmed) {
            let word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
            prop_assert!(!token.is_empty() && token.bytes().all(word));
        }
    }

    #[test]
    fn any_word_has_a_stem(word in any_text()) {
        prop_assert!(stem(&word).chars().count() <= word.to_lowercase().chars().count() + 1);
    }
}
