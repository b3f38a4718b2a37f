//! Runs that release a moving average of the parameters.

#![allow(clippy::unwrap_used)]

#[path = "support/small_run.rs"]
mod small_run;

use muffle::Error;
use muffle::run::folder::Folder;
use muffle::run::{Silent, history, resume, train};
use muffle::verify::{Conclusion, verify};
use small_run::{Stopping, config};

/// Noise that can be repeated, so that runs can be compared bit for bit.
const FIXED: &str = "optimizer.name=dp-adam\noptimizer.learning_rate=0.01\nprivacy.seed=5";

/// The average is evaluated, selected and released; it costs nothing.
#[test]
fn a_run_releases_the_average() {
    let place = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &str| {
        let settings = format!("{FIXED}\n{more}");
        train(&config(place.path(), &settings), &place.path().join(name), &mut Silent).unwrap()
    };
    let last = run("last", "");
    let averaged = run("averaged", "optimizer.ema_decay=0.9");
    assert_ne!(averaged.statement.weights_sha256, last.statement.weights_sha256);
    assert_eq!(averaged.statement.epsilon, last.statement.epsilon);
    assert_eq!(averaged.statement.ledger, last.statement.ledger);
    for (name, outcome) in [("averaged", &averaged), ("last", &last)] {
        let out = place.path().join(name);
        let entries = history::read(&Folder::open_read_only(&out).unwrap(), u64::MAX).unwrap();
        // The figures of the evaluations are those of the released model.
        let evaluated = entries.last().unwrap().nll.unwrap();
        assert!((outcome.scores.as_ref().unwrap().nll.unwrap() - evaluated).abs() < 1e-6, "{name}");
        assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent, "{name}");
    }
    let words = averaged.statement.parameters_in_words();
    assert!(words.contains("a moving average (decay 0.9)"), "{words}");
    assert!(last.statement.parameters_in_words().contains("those after step 6"));
}

/// Averages of earlier steps can be selected, too.
#[test]
fn a_run_releases_the_selected_average() {
    let place = tempfile::tempdir().unwrap();
    // Large steps, so that the last average is not the best one.
    let settings = "optimizer.name=dp-sgd\noptimizer.learning_rate=60\nprivacy.seed=5\n\
        optimizer.ema_decay=0.3\nevaluation.select=best-nll";
    let out = place.path().join("run");
    let outcome = train(&config(place.path(), settings), &out, &mut Silent).unwrap();
    let entries = history::read(&Folder::open_read_only(&out).unwrap(), u64::MAX).unwrap();
    let step = outcome.statement.model_step;
    assert!(step < 6, "the last step is the best: the test selects nothing");
    let evaluated = entries.iter().find(|entry| entry.step == step).unwrap().nll.unwrap();
    assert!((outcome.scores.as_ref().unwrap().nll.unwrap() - evaluated).abs() < 1e-6);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent);
}

/// A run that is stopped anywhere releases the average of the whole run.
#[test]
fn a_resumed_run_continues_the_average() {
    let place = tempfile::tempdir().unwrap();
    let settings = format!("{FIXED}\noptimizer.ema_decay=0.9");
    let whole = place.path().join("whole");
    let whole = train(&config(place.path(), &settings), &whole, &mut Silent).unwrap().statement;
    for after in [1, 5] {
        let out = place.path().join(format!("stopped-{after}"));
        let mut observer = Stopping { after: Some(after), ..Stopping::default() };
        let stopped = train(&config(place.path(), &settings), &out, &mut observer);
        assert!(matches!(stopped, Err(Error::Stopped)));
        let resumed = resume(&out, &mut Silent).unwrap().statement;
        assert_eq!(resumed.weights_sha256, whole.weights_sha256, "{after}");
    }
}

/// Only as many rows of the test data are evaluated as the configuration says.
#[test]
fn the_evaluation_at_the_end_is_limited() {
    let place = tempfile::tempdir().unwrap();
    for (limit, examples) in [("all", None), ("5", Some(5)), ("0", None)] {
        let settings = format!(
            "{FIXED}\ntraining.steps=2\nevaluation.test_examples={limit}\n\
             data.too_long=drop"
        );
        let out = place.path().join(limit);
        let outcome = train(&config(place.path(), &settings), &out, &mut Silent).unwrap();
        let found = outcome.scores.map(|scores| scores.examples);
        // Some of the 12 rows are too long. They do not count towards the limit.
        match limit {
            "all" => assert!(found.unwrap() >= 6 && found.unwrap() < 12, "{found:?}"),
            _ => assert_eq!(found, examples, "{limit}"),
        }
    }
}
