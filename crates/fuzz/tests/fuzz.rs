//! A little of every target, and everything that ever did harm.

#![allow(clippy::unwrap_used)]

use fuzz::crew::crew;
use fuzz::hunt::{Effort, Tally, committed};
use fuzz::scratch::Scratch;
use fuzz::target::{ALL, MARKER, Seen, Target, named};
use fuzz::watch;
use std::time::Duration;

/// Inputs for each target.
const INPUTS: u64 = 1500;

/// Longer than that of the program: this one is not optimised, and other tests run beside it.
const PATIENCE: Duration = Duration::from_secs(20);

fn run(targets: &[&Target], inputs: u64, seed: u64) -> Vec<(&'static str, Tally)> {
    let folder = tempfile::tempdir().unwrap();
    let mut tallies = Vec::new();
    let effort = |_: &Target| Effort { inputs, until: None, seed };
    crew(targets, 2, PATIENCE, folder.path(), folder.path(), &effort, &mut |target, tally| {
        tallies.push((target.name, tally.clone()))
    })
    .unwrap();
    tallies.sort_by_key(|(name, _)| *name);
    tallies
}

#[test]
fn no_reader_panics_hangs_takes_much_memory_or_shows_a_record() {
    let tallies = run(&ALL.iter().collect::<Vec<_>>(), INPUTS, 1);
    assert_eq!(tallies.len(), ALL.len());
    for (name, tally) in tallies {
        let target = named(name).unwrap();
        assert!(tally.failures.is_empty(), "{name}: {:?}", tally.failures);
        assert_eq!(tally.inputs, INPUTS);
        // Deep enough: some get through, and those that do not are refused for many reasons.
        assert!(
            tally.accepted * 1000 >= target.accepted * INPUTS,
            "{name}: {} accepted",
            tally.accepted
        );
        assert!(tally.shapes.len() >= target.shapes, "{name}: {:#?}", tally.shapes);
    }
}

#[test]
fn what_once_did_harm_does_no_more() {
    let mut all = 0;
    for target in ALL {
        for kind in ["corpus", "regressions"] {
            let scratch = Scratch::new().unwrap();
            (target.prepare)(&scratch).unwrap();
            for (path, input) in committed(kind, target.name).unwrap() {
                let result = watch::run(target, &scratch, &input);
                assert!(result.seen.is_ok(), "{}: {:?}", path.display(), result.seen);
                all += usize::from(kind == "regressions");
            }
        }
    }
    assert!(all > 0);
}

#[test]
fn runs_are_the_same_whatever_the_threads() {
    let targets = ["jsonl", "ledger", "number"].map(|name| named(name).unwrap());
    let count = |tallies: Vec<(&'static str, Tally)>| {
        tallies
            .into_iter()
            .map(|(name, tally)| (name, tally.accepted, tally.shapes))
            .collect::<Vec<_>>()
    };
    let all = count(run(&targets, 300, 7));
    let one = count(targets.iter().flat_map(|target| run(&[target], 300, 7)).collect());
    assert_eq!(all, one);
}

/// A target that does what must be found.
fn bad(run: fn(&Scratch, &[u8]) -> Seen) -> Target {
    Target {
        name: "bad",
        structure: fuzz::structure::Structure::Plain,
        private: true,
        run,
        ..*named("lines").unwrap()
    }
}

#[test]
fn harm_is_seen() {
    let scratch = Scratch::new().unwrap();
    let seen = |run| watch::run(&bad(run), &scratch, b"input").seen;
    let fine = || Seen { accepted: true, said: String::new() };
    assert_eq!(seen(|_, _| Seen { accepted: true, said: String::new() }), Ok(fine()));
    let panicked =
        seen(|_, input| Seen { accepted: input[9] == 0, said: String::new() }).unwrap_err();
    assert!(panicked.contains("panicked at") && panicked.contains("fuzz.rs"), "{panicked}");
    let large = seen(|_, input| Seen {
        accepted: vec![0u8; 65 << 20].len() > input.len(),
        said: String::new(),
    })
    .unwrap_err();
    assert!(large.starts_with("memory"), "{large}");
    let shown =
        seen(|_, _| Seen { accepted: false, said: format!("line 1: {}", MARKER[0]) }).unwrap_err();
    assert!(shown.starts_with("shows a record"), "{shown}");
    let wordy = seen(|_, _| Seen { accepted: false, said: "x".repeat(1 << 15) }).unwrap_err();
    assert!(wordy.starts_with("message"), "{wordy}");
}
