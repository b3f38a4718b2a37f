//! Runs that are killed at each operation on files are resumed, lose no charge, and finish with a
//! consistent statement.

// Only builds with debug assertions have the hook that aborts the process.
#![cfg(all(unix, debug_assertions))]
#![allow(clippy::unwrap_used)]

#[path = "../../muffle/tests/support/folders.rs"]
mod folders;

use folders::copy;
use model::activation::Activation;
use model::hf::{self, Architecture, SaveOptions};
use model::patches::ImageShape;
use model::{Checkpoint, Cnn};
use muffle::Config;
use muffle::Error;
use muffle::run::chain::Chain;
use muffle::run::history::HistoryEntry;
use muffle::run::snapshot::Snapshot;
use muffle::run::{Progress, RunObserver, RunStart, Silent, resume, train};
use muffle::verify::{Conclusion, verify};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SIGABRT: i32 = 6;

/// Writes a small run on images of 8 × 8 pixels, with a checkpoint and an evaluation each step.
fn run_toml(place: &Path, way: &Way) -> PathBuf {
    let cnn = Cnn {
        image: ImageShape { channels: 1, height: 8, width: 8 },
        stages: vec![2],
        activation: Activation::Relu,
        groups: 1,
        global_pooling: true,
        classes: 2,
    };
    let fresh = Checkpoint::new(hf::Config::new(Architecture::Cnn(cnn)), None, 3).unwrap();
    let (config, network, params) = fresh.network(&cpu::Cpu, |_| true).unwrap();
    Checkpoint::save(place.join("cnn"), &config, &network, &params, &SaveOptions::default())
        .unwrap();
    for (name, count) in [("train", 24u8), ("t10k", 6)] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 8, 0, 0, 0, 8];
        images.extend((0..count).flat_map(|i| {
            (0..64u8).map(move |pixel| if pixel / 32 == i % 2 { 200 } else { pixel })
        }));
        std::fs::write(place.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
        labels.extend((0..count).map(|i| i % 2));
        std::fs::write(place.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    }
    let text = format!(
        "[model]\nsource = {:?}\n[data]\ntrain = \"train-images-idx3-ubyte\"\n\
         validation = \"t10k-images-idx3-ubyte\"\nevaluation_data = \"public\"\nlabels = \
         [\"low\", \"high\"]\n\
         [privacy]\nsigma = 4.0\ndelta = 1e-3\naccountant = \"rdp\"\nsampling = \
         {:?}\n[optimizer]\nname = \"dp-sgd\"\n\
         [training]\nsteps = {}\nlot_size = 12\ncheckpoint_every = 1\nthreads = \
         1\n[evaluation]\nevery = 1\nselect = {:?}\n",
        place.join("cnn"),
        way.sampling,
        way.steps,
        way.select,
    );
    let path = place.join("RUN.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs the program until its n-th operation on files.
fn killed(arguments: &[&Path], operation: u64) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muffle"))
        .args(arguments)
        .env("MUFFLE_ABORT_AT", operation.to_string())
        .output()
        .unwrap()
}

/// Whether the program was killed; otherwise it must have succeeded.
fn was_killed(output: &Output) -> bool {
    if output.status.success() {
        return false;
    }
    assert_eq!(
        output.status.signal(),
        Some(SIGABRT),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    true
}

fn chain(out: &Path) -> Option<Chain> {
    let text = std::fs::read_to_string(out.join("ledger.json")).ok()?;
    Some(Chain::parse(&text).unwrap())
}

/// The number of steps that were computed, from the newest snapshot and the history.
fn computed(out: &Path) -> u64 {
    let mut warnings = Vec::new();
    let snapshot =
        Snapshot::newest(&out.join("checkpoints"), &mut |line| warnings.push(line.to_string()))
            .unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let history = std::fs::read_to_string(out.join("history.jsonl")).unwrap_or_default();
    let looks = history.lines().filter_map(|line| serde_json::from_str::<HistoryEntry>(line).ok());
    looks.map(|look| look.step).chain(snapshot.map(|snapshot| snapshot.step)).max().unwrap_or(0)
}

/// Checks the folder after a kill and resumes the run. A charge pays for `steps_each` steps.
fn survives(out: &Path, steps_each: u64, when: &str) {
    if !out.join("config.toml").is_file() {
        assert_eq!(
            chain(out).map_or(0, |chain| chain.charges()),
            0,
            "{when}: charged without a run"
        );
        return;
    }
    let before = chain(out).unwrap();
    assert!(
        before.charges() * steps_each >= computed(out),
        "{when}: {} charges for {} steps",
        before.charges(),
        computed(out)
    );
    match resume(out, &mut Silent) {
        Ok(outcome) => assert!(
            outcome.statement.epsilon.unwrap() <= outcome.statement.promised_epsilon.unwrap(),
            "{when}"
        ),
        Err(failed) => {
            assert!(failed.to_string().contains("the run is complete"), "{when}: {failed}")
        }
    }
    let after = chain(out).unwrap();
    let contained = after.check(&before.mark(), "the ledger before");
    contained.unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(
        after.charges() >= before.charges() && after.charges() * steps_each >= computed(out),
        "{when}"
    );
    let verdict = verify(out).unwrap();
    assert_eq!(verdict.conclusion(), Conclusion::Consistent, "{when}: {:#?}", verdict.checks);
    assert_eq!(verdict.statement.unwrap().ledger, *after.ledger(), "{when}");
    assert!(
        std::fs::read_dir(out).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("sealed")),
        "{when}"
    );
}

/// A sampling method, with the number of steps per charge and in total, and a selection.
struct Way {
    sampling: &'static str,
    steps_each: u64,
    steps: u64,
    select: &'static str,
}

const POISSON: Way = Way { sampling: "poisson", steps_each: 1, steps: 2, select: "last" };
/// Two shuffled epochs: the order of an epoch is saved over an interruption.
const SHUFFLED: Way = Way { sampling: "shuffled", steps_each: 2, steps: 3, select: "last" };
/// Selected parameters are saved over an interruption.
const SELECTING: Way = Way { select: "best-nll", ..POISSON };

fn killed_at_every_write_of(way: &Way) {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), way);
    let out = place.path().join("run");
    for operation in 1.. {
        let output = killed(&["train".as_ref(), &config, "--out".as_ref(), &out], operation);
        survives(&out, way.steps_each, &format!("{}, operation {operation}", way.sampling));
        if !was_killed(&output) {
            assert!(operation > 100, "only {operation} operations");
            break;
        }
        if out.exists() {
            std::fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn killed_at_every_write() {
    killed_at_every_write_of(&POISSON);
}

#[test]
fn killed_at_every_write_of_shuffled_epochs() {
    killed_at_every_write_of(&SHUFFLED);
}

#[test]
fn killed_at_every_write_of_a_selection() {
    killed_at_every_write_of(&SELECTING);
}

/// Kills of a resumed run: before the first step, in the middle, and when only the last files are
/// missing.
#[test]
fn killed_at_every_write_of_a_resumed_run() {
    struct Stop(u64, u64);
    impl RunObserver for Stop {
        fn message(&mut self, _: &str) {}
        fn started(&mut self, _: &RunStart<'_>) {}
        fn stepped(&mut self, progress: &Progress) {
            self.1 = progress.step;
        }
        fn should_stop(&mut self) -> bool {
            self.0 == self.1
        }
    }
    let place = tempfile::tempdir().unwrap();
    // One charge is lost below and one may be lost in a kill: the third pays for a step.
    let config = Config::read(&run_toml(place.path(), &Way { steps: 3, ..POISSON })).unwrap();
    let stopped = place.path().join("stopped");
    assert!(matches!(train(&config, &stopped, &mut Stop(1, 0)), Err(Error::Stopped)));
    // Back to the checkpoint before the first step: charges since then count.
    std::fs::remove_dir_all(stopped.join("checkpoints/step-000000001")).unwrap();
    let out = place.path().join("run");
    for operation in 1.. {
        copy(&stopped, &out);
        let output = killed(&["resume".as_ref(), &out], operation);
        survives(&out, POISSON.steps_each, &format!("resume, operation {operation}"));
        let sessions = chain(&out).unwrap().sessions().len();
        assert!((2..=3).contains(&sessions), "{sessions} sessions");
        std::fs::remove_dir_all(&out).unwrap();
        if !was_killed(&output) {
            assert!(operation > 80, "only {operation} operations");
            break;
        }
    }
}
