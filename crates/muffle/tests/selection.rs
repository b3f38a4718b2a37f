//! Selection of the released parameters by figures on public validation data.

#![allow(clippy::unwrap_used)]

#[path = "support/small_run.rs"]
mod small_run;

use muffle::Error;
use muffle::Outcome;
use muffle::config::Select;
use muffle::run::chain::Chain;
use muffle::run::folder::Folder;
use muffle::run::history::{self, HistoryEntry};
use muffle::run::{Silent, resume, train};
use muffle::verify::{Conclusion, verify};
use small_run::{Stopping, config};
use std::path::Path;

/// Large steps, so that the last parameters are not the best ones, with noise that can be repeated.
const DIVERGING: &str = "optimizer.name=dp-sgd\noptimizer.learning_rate=40\noptimizer.schedule=\
    constant\nprivacy.seed=5";

fn entries(out: &Path) -> Vec<HistoryEntry> {
    history::read(&Folder::open_read_only(out).unwrap(), u64::MAX).unwrap()
}

fn entry(out: &Path, step: u64) -> HistoryEntry {
    entries(out).into_iter().find(|entry| entry.step == step).unwrap()
}

/// The names of the checks of `muffle verify` that fail.
fn failed(out: &Path) -> Vec<&'static str> {
    let verdict = verify(out).unwrap();
    verdict.checks.iter().filter(|check| !check.passed).map(|check| check.name).collect()
}

fn run(place: &Path, out: &Path, select: &str) -> Outcome {
    let select = format!("{DIVERGING}\nevaluation.select={select}");
    train(&config(place, &select), out, &mut Silent).unwrap()
}

#[test]
fn a_run_releases_the_selected_parameters() {
    let place = tempfile::tempdir().unwrap();
    let mut steps = Vec::new();
    for select in ["last", "best-nll", "best-bleu", "nearest-best-nll", "best-accuracy"] {
        let out = place.path().join(select);
        let outcome = run(place.path(), &out, select);
        let statement = &outcome.statement;
        // All steps are charged, whichever parameters are released.
        assert_eq!((statement.steps, statement.ledger.events().len()), (6, 6), "{select}");
        assert_eq!(statement.selection.name(), select);
        // The figures of the model, over all validation examples, are those of the selected step.
        let step = statement.model_step;
        let (scores, selected) = (outcome.scores.clone().unwrap(), entry(&out, step));
        assert!((scores.nll.unwrap() - selected.nll.unwrap()).abs() < 1e-6, "{select}: {scores:?}");
        let result = outcome.result();
        assert_eq!((result.steps, result.model_step), (6, step));
        assert_eq!(result.metrics.best_nll, entry(&out, result.metrics.best_nll_step.unwrap()).nll);
        assert_eq!(result.metrics.validation_nll, entry(&out, 6).nll);
        assert_eq!(selected.bleu.is_some(), statement.selection == Select::BestBleu);
        assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent, "{select}");
        let html = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(html.contains(&format!("after step {step} ({select})")), "{select}");
        steps.push(step);
    }
    let best = entries(&place.path().join("best-nll"))
        .iter()
        .filter(|entry| entry.step > 0)
        .min_by(|a, b| a.nll.unwrap().total_cmp(&b.nll.unwrap()))
        .map(|entry| entry.step)
        .unwrap();
    assert!(best < 5, "the last step is the best: the test selects nothing");
    // Checkpoints are those of steps 4 and 6.
    assert_eq!((steps[0], steps[1], steps[3]), (6, best, 4));
}

/// The number of steps depends on releases, so that the guarantee is that of the whole plan.
#[test]
fn a_run_that_stops_early_is_charged_as_planned() {
    let place = tempfile::tempdir().unwrap();
    let settings = format!("{DIVERGING}\nevaluation.patience=1\nevaluation.tensorboard=true");
    let out = place.path().join("early");
    let mut observer = Stopping::default();
    let whole = train(&config(place.path(), &settings), &out, &mut observer).unwrap().statement;
    assert!(whole.steps < 6, "the run does not stop early: {}", whole.steps);
    assert_eq!((whole.ledger.events().len(), whole.model_step), (6, whole.steps));
    let planned = train(&config(place.path(), DIVERGING), &place.path().join("all"), &mut Silent);
    assert_eq!(whole.epsilon, planned.unwrap().statement.epsilon);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent, "{:?}", failed(&out));
    let said = format!("stopped early after step {} of 6", whole.steps);
    assert!(observer.messages.iter().any(|line| line.contains(&said)), "{:?}", observer.messages);
    assert!(out.join(muffle::run::tensorboard::FILE).is_file());
    // A run that is interrupted before it stops early stops at the same step.
    let out = place.path().join("resumed");
    let mut observer = Stopping { after: Some(1), ..Stopping::default() };
    assert!(train(&config(place.path(), &settings), &out, &mut observer).is_err());
    let resumed = resume(&out, &mut Silent).unwrap().statement;
    assert_eq!((resumed.steps, resumed.ledger.events().len()), (whole.steps, 6));
    assert_eq!(resumed.weights_sha256, whole.weights_sha256);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent, "{:?}", failed(&out));
}

/// A dry run has the plan of the run, and leaves nothing behind.
#[test]
fn a_dry_run_has_the_plan_of_the_run() {
    let place = tempfile::tempdir().unwrap();
    let config = config(place.path(), DIVERGING);
    let files = || std::fs::read_dir(place.path()).unwrap().count();
    let before = files();
    let dry = muffle::run::dry::dry_run(&config, &mut |_| ()).unwrap();
    assert_eq!(files(), before);
    let statement = train(&config, &place.path().join("run"), &mut Silent).unwrap().statement;
    assert_eq!((dry.plan.steps, dry.plan.records), (statement.steps, statement.records));
    assert_eq!(dry.plan.price.map(|price| price.epsilon), statement.epsilon);
    assert_eq!(Some(dry.plan.sigma.gradient), statement.noise_multiplier);
    assert!(dry.cost.per_record > 0.0 && dry.cost.step(10.0) > dry.cost.step(1.0));
}

/// A run that is stopped anywhere selects what the whole run selects.
#[test]
fn a_resumed_run_selects_the_same_parameters() {
    for select in ["best-nll", "nearest-best-nll"] {
        let place = tempfile::tempdir().unwrap();
        let whole = run(place.path(), &place.path().join("whole"), select).statement;
        for after in [1, 3, 5] {
            let out = place.path().join(format!("stopped-{after}"));
            let settings = format!("{DIVERGING}\nevaluation.select={select}");
            let mut observer = Stopping { after: Some(after), ..Stopping::default() };
            let stopped = train(&config(place.path(), &settings), &out, &mut observer);
            assert!(matches!(stopped, Err(Error::Stopped)));
            let mut observer = Stopping::default();
            let resumed = resume(&out, &mut observer).unwrap().statement;
            assert_eq!(resumed.model_step, whole.model_step, "{select}, {after}");
            assert_eq!(resumed.weights_sha256, whole.weights_sha256, "{select}, {after}");
            assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent);
            let named = format!("the parameters of step {}", whole.model_step);
            assert!(observer.messages.iter().any(|line| line.contains(&named)), "{named}");
        }
    }
}

/// After a kill, the selection is that of the snapshot: lost steps are not selected.
#[test]
fn lost_steps_are_not_selected() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let settings = format!("{DIVERGING}\nevaluation.select=nearest-best-nll");
    let mut observer = Stopping { after: Some(5), ..Stopping::default() };
    assert!(train(&config(place.path(), &settings), &out, &mut observer).is_err());
    // The state after a kill in step 5: the checkpoint of step 4 is the last one.
    std::fs::remove_dir_all(out.join("checkpoints/step-000000005")).unwrap();
    let outcome = resume(&out, &mut Silent).unwrap();
    // Five of six charges were made, of which four are in the checkpoint: one more step is left.
    assert_eq!((outcome.statement.steps, outcome.statement.ledger.events().len()), (5, 6));
    assert!(entries(&out).iter().all(|entry| entry.step <= 5));
    assert_eq!(outcome.statement.model_step, 4);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent);
}

/// If no step is left after a resumption, the last snapshot is the last checkpoint.
#[test]
fn the_last_checkpoint_can_be_that_of_a_stop() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    // Little noise, so that every step is better than the one before.
    let settings = "optimizer.name=dp-adam\noptimizer.learning_rate=0.003\nprivacy.epsilon=auto\n\
        privacy.sigma=0.4\nevaluation.select=nearest-best-nll";
    let mut observer = Stopping { after: Some(5), ..Stopping::default() };
    assert!(train(&config(place.path(), settings), &out, &mut observer).is_err());
    // The state after a resumption and a kill in step 6: its charge is lost.
    let ledger = out.join("ledger.json");
    let mut chain = Chain::parse(&std::fs::read_to_string(&ledger).unwrap()).unwrap();
    let event = chain.ledger().events().runs()[0].0.clone();
    chain.charge(&event).unwrap();
    std::fs::write(&ledger, chain.to_text().unwrap()).unwrap();
    let outcome = resume(&out, &mut Silent).unwrap();
    assert_eq!((outcome.statement.steps, outcome.statement.ledger.events().len()), (5, 6));
    assert_eq!(outcome.best.nll.unwrap().0, 5);
    assert_eq!(outcome.statement.model_step, 5);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent);
}

#[test]
fn settings_that_select_cannot_change() {
    let place = tempfile::tempdir().unwrap();
    let settings = format!("{DIVERGING}\nevaluation.select=best-nll");
    for (from, to) in
        [("select = \"best-nll\"", "select = \"last\""), ("every = 1\n", "every = 2\n")]
    {
        let out = place.path().join("run");
        let mut observer = Stopping { after: Some(2), ..Stopping::default() };
        assert!(train(&config(place.path(), &settings), &out, &mut observer).is_err());
        let file = out.join("config.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let refused = resume(&out, &mut Silent).unwrap_err().to_string();
        assert!(refused.contains("not the configuration that the run started with"), "{refused}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn selection_is_refused_without_public_figures() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let mut private = config(place.path(), "evaluation.select=best-nll");
    private.data.evaluation_data = muffle::config::Auto::Auto;
    let mut without = config(place.path(), "evaluation.select=best-nll");
    without.data.validation = None;
    let mut lines = config(place.path(), "evaluation.select=best-bleu");
    lines.data.format = muffle::config::Auto::Value("lines".into());
    for (config, part) in [
        (private, "costs privacy that is not charged"),
        (without, "needs validation data"),
        (lines, "validation data with sources"),
    ] {
        let refused = train(&config, &out, &mut Silent).unwrap_err().to_string();
        assert!(refused.contains("evaluation.select") && refused.contains(part), "{refused}");
        assert!(!out.exists());
    }
}

/// Files that were changed to show another selection are inconsistent.
#[test]
fn another_selection_is_detected() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let outcome = run(place.path(), &out, "best-nll");
    let change = |file: &str, change: &dyn Fn(&str) -> String| {
        let path = out.join(file);
        let whole = std::fs::read_to_string(&path).unwrap();
        let other = change(&whole);
        assert_ne!(other, whole, "{file}");
        std::fs::write(&path, other).unwrap();
        let failed = failed(&out);
        std::fs::write(&path, whole).unwrap();
        failed
    };
    assert!(failed(&out).is_empty());
    let best = outcome.best.nll.unwrap();
    let smaller = |text: &str| text.replace(&best.1.to_string(), &(best.1 / 2.0).to_string());
    assert!(change("result.json", &smaller).contains(&"result"));
    // Another evaluation is the best one.
    let last = entry(&out, 6).nll.unwrap();
    let other = |text: &str| text.replace(&last.to_string(), &(best.1 / 2.0).to_string());
    assert!(change("history.jsonl", &other).contains(&"history"));
    let step = |text: &str| {
        text.replace(&format!("\"model_step\": {}", best.0), &format!("\"model_step\": {}", 5))
    };
    assert!(change("model/privacy.json", &step).contains(&"checkpoints"));
    let step = |text: &str| {
        text.replace(&format!("\"model_step\": {}", best.0), &format!("\"model_step\": {}", 7))
    };
    assert!(change("model/privacy.json", &step).contains(&"steps"));
}
