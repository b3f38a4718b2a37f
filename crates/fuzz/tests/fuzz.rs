//! Short runs of every target, and all regressions.

#![allow(clippy::unwrap_used)]

use fuzz::fuzz_loop::{Limits, TargetStats, committed};
use fuzz::monitor;
use fuzz::run_targets::run_targets;
use fuzz::scratch::Scratch;
use fuzz::target::{ALL, MARKER, ReadOutcome, Target, named};
use std::time::Duration;

/// Number of inputs for each target.
const INPUTS: u64 = 1500;

/// Longer than that of the program: tests are not optimised and run in parallel.
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn run(targets: &[&Target], inputs: u64, seed: u64) -> Vec<(&'static str, TargetStats)> {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    let limits = |_: &Target| Limits { inputs, until: None, seed };
    run_targets(
        targets,
        2,
        TIME_LIMIT,
        folder.path(),
        folder.path(),
        &limits,
        &mut |target, stats| all.push((target.name, stats.clone())),
    )
    .unwrap();
    all.sort_by_key(|(name, _)| *name);
    all
}

#[test]
fn readers_do_not_panic_hang_use_much_memory_or_show_records() {
    let stats = run(&ALL.iter().collect::<Vec<_>>(), INPUTS, 1);
    assert_eq!(stats.len(), ALL.len());
    for (name, stats) in stats {
        let target = named(name).unwrap();
        assert!(stats.failures.is_empty(), "{name}: {:?}", stats.failures);
        assert_eq!(stats.inputs, INPUTS);
        // Coverage: some inputs are accepted, and the others are refused for many reasons.
        assert!(
            stats.accepted * 1000 >= target.accepted * INPUTS,
            "{name}: {} accepted",
            stats.accepted
        );
        assert!(stats.shapes.len() >= target.shapes, "{name}: {:#?}", stats.shapes);
    }
}

#[test]
fn regressions_stay_fixed() {
    let mut all = 0;
    for target in ALL {
        for kind in ["corpus", "regressions"] {
            let scratch = Scratch::new().unwrap();
            (target.prepare)(&scratch).unwrap();
            for (path, input) in committed(kind, target.name).unwrap() {
                let result = monitor::run(target, &scratch, &input);
                assert!(result.outcome.is_ok(), "{}: {:?}", path.display(), result.outcome);
                all += usize::from(kind == "regressions");
            }
        }
    }
    assert!(all > 0);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let targets = ["jsonl", "ledger", "number"].map(|name| named(name).unwrap());
    let count = |stats: Vec<(&'static str, TargetStats)>| {
        stats
            .into_iter()
            .map(|(name, stats)| (name, stats.accepted, stats.shapes))
            .collect::<Vec<_>>()
    };
    let all = count(run(&targets, 300, 7));
    let one = count(targets.iter().flat_map(|target| run(&[target], 300, 7)).collect());
    assert_eq!(all, one);
}

/// A target with a fault that must be detected.
fn bad(run: fn(&Scratch, &[u8]) -> ReadOutcome) -> Target {
    Target {
        name: "bad",
        structure: fuzz::structure::Structure::Plain,
        private: true,
        run,
        ..*named("lines").unwrap()
    }
}

#[test]
fn faults_are_detected() {
    let scratch = Scratch::new().unwrap();
    let seen = |run| monitor::run(&bad(run), &scratch, b"input").outcome;
    let fine = || ReadOutcome { accepted: true, message: String::new() };
    assert_eq!(seen(|_, _| ReadOutcome { accepted: true, message: String::new() }), Ok(fine()));
    let panicked = seen(|_, input| ReadOutcome { accepted: input[9] == 0, message: String::new() })
        .unwrap_err();
    assert!(panicked.contains("panicked at") && panicked.contains("fuzz.rs"), "{panicked}");
    let large = seen(|_, input| ReadOutcome {
        accepted: vec![0u8; 65 << 20].len() > input.len(),
        message: String::new(),
    })
    .unwrap_err();
    assert!(large.starts_with("memory"), "{large}");
    let shown =
        seen(|_, _| ReadOutcome { accepted: false, message: format!("line 1: {}", MARKER[0]) })
            .unwrap_err();
    assert!(shown.starts_with("message shows a record"), "{shown}");
    let wordy =
        seen(|_, _| ReadOutcome { accepted: false, message: "x".repeat(1 << 15) }).unwrap_err();
    assert!(wordy.starts_with("message"), "{wordy}");
}
