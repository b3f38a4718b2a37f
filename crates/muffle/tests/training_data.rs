//! Training data of persons: limits on rows, and digests of records.

#![allow(clippy::unwrap_used)]

use data::{LongTexts, ModelInput, Preparation};
use muffle::Config;
use muffle::load::data::{TrainingData, training_data};
use text::Tokenizer;

/// Reads a table of (sentence, label, person), each row as a record.
fn read(rows: &[(String, &str, String)], most: u64) -> TrainingData {
    read_as("separate", rows, most)
}

fn read_as(person_rows: &str, rows: &[(String, &str, String)], most: u64) -> TrainingData {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("people.tsv");
    let line = |(text, label, who): &(String, &str, String)| format!("{text}\t{label}\t{who}\n");
    std::fs::write(
        &path,
        "sentence\tlabel\twho\n".to_string() + &rows.iter().map(line).collect::<String>(),
    )
    .unwrap();
    let tokenizer = Tokenizer::train(
        ["row of text 0123456789"].into_iter().cycle().take(40),
        300,
        &["<bos>", "<eos>"],
    )
    .unwrap();
    let labels = ["good".to_string(), "bad".to_string()];
    let preparation = Preparation {
        input: ModelInput::Classifier { tokenizer: &tokenizer },
        task: data::Task::Classification,
        labels: &labels,
        limit: 100,
        long_texts: LongTexts::DROP,
    };
    let changes = [
        format!("data.train={}", path.display()),
        "data.text_column=sentence".into(),
        "data.label_column=label".into(),
        "data.group=who".into(),
        format!("data.rows_per_person={most}"),
        format!("data.person_rows={person_rows}"),
    ];
    let config =
        changes.iter().fold(Config::embedded(), |config, change| config.with(change).unwrap());
    training_data(&config, &preparation, place.path(), 32 << 20).unwrap()
}

fn rows(count: usize, who: impl Fn(usize) -> usize) -> Vec<(String, &'static str, String)> {
    (0..count)
        .map(|i| (format!("row {i}"), ["good", "bad"][i % 2], format!("person {}", who(i))))
        .collect()
}

/// The limit holds over the whole file, although rows are prepared in chunks of 1024. Rows over the
/// limit are vacant places.
#[test]
fn rows_of_a_person_are_counted_over_the_whole_file() {
    let data = read(&rows(5000, |i| if i.is_multiple_of(500) { 0 } else { i }), 3);
    assert_eq!((data.records.places(), data.dropped.over_limit), (5000, 7));
    let data = read(&rows(5000, |i| i % 50), 2);
    assert_eq!((data.records.places(), data.dropped.over_limit), (5000, 4900));
    let data = read_as("combined", &rows(5000, |i| i % 50), 2);
    assert_eq!((data.records.places(), data.dropped.over_limit), (50, 4900));
}

/// The digest depends on texts, labels, order and number of rows, and not on persons.
#[test]
fn digests_of_different_records_differ() {
    let base = rows(20, |i| i);
    let digest = |rows: &[(String, &'static str, String)]| read(rows, 1).digest;
    let mut others = vec![base.clone(); 3];
    others[0][7].0 = "row 70".into();
    others[1][7].1 = "good";
    others[2].swap(3, 11);
    others.push(base[..19].to_vec());
    let mut seen: Vec<String> =
        others.iter().map(|rows| digest(rows)).chain([digest(&base)]).collect();
    assert_eq!(digest(&rows(20, |i| i + 100)), digest(&base));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

/// If rows are combined, the digest depends on which rows belong to the same person, and not on the
/// names of persons.
#[test]
fn digests_of_different_persons_differ() {
    let digest = |who: &dyn Fn(usize) -> usize| read_as("combined", &rows(12, who), 9).digest;
    let digests = [
        digest(&|i| i),
        digest(&|_| 0),
        digest(&|i| i % 3),
        digest(&|i| i / 4),
        digest(&|i| i / 4 % 2),
    ];
    let different: std::collections::BTreeSet<&String> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
    assert_eq!(digest(&|i| 100 - i % 3), digests[2]);
}
