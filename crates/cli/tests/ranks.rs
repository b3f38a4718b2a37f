//! The program under an MPI launcher: the same result as alone, and what happens when a process
//! dies, hangs or has no memory left.

#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/program.rs"]
mod program;

use accounting::Ledger;
use program::{charges, muffle, run_toml, wait_for_charges};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// So many processes of the program. The launcher must be there: this is what is tested.
fn launch(count: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // More processes than cores, as root, in whatever machine tests run on.
    command
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            &count.to_string(),
            env!("CARGO_BIN_EXE_muffle"),
        ])
        .args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits, but not for ever: a job that hangs is a failure.
fn ended(mut child: Child) -> Output {
    let patience = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if patience.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the job hangs: {}", said(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// The process of a rank that works on this folder.
fn process(out: &Path, rank: usize) -> String {
    let find = || {
        std::fs::read_dir("/proc").unwrap().find_map(|entry| {
            let path = entry.ok()?.path();
            let holds = |file: &str, what: &str| {
                let text = std::fs::read(path.join(file)).unwrap_or_default();
                text.split(|&byte| byte == 0).any(|word| word == what.as_bytes())
            };
            let own = holds("environ", &format!("OMPI_COMM_WORLD_RANK={rank}"))
                && holds("cmdline", out.to_str()?);
            own.then(|| path.file_name().unwrap().to_str().unwrap().to_string())
        })
    };
    let again = |_| {
        std::thread::sleep(Duration::from_millis(20));
        find()
    };
    (0..500).find_map(again).expect("no such process")
}

fn signal(process: &str, name: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}

fn statement_holds(out: &Path) {
    let output = muffle(&["verify", out.to_str().unwrap(), "--json"]).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert!(
        object["consistent"] == true
            && object["epsilon_stated"].as_f64().is_some_and(|epsilon| epsilon <= 8.0),
        "{object:#}"
    );
}

/// The weights of a run's model, tensor after tensor.
fn weights(out: &Path) -> Vec<f32> {
    let bytes = std::fs::read(out.join("model/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    let numbers = |name: &&str| {
        tensors
            .tensor(name)
            .unwrap()
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|x| f32::from_le_bytes(*x))
            .collect::<Vec<_>>()
    };
    names.iter().flat_map(numbers).collect()
}

fn ledger(out: &Path) -> Ledger {
    muffle::run::chain::Chain::parse(&std::fs::read_to_string(out.join("ledger.json")).unwrap())
        .unwrap()
        .ledger()
        .clone()
}

/// With the same randomness 1, 2 and 4 processes make the same model of the embedded corpus, but
/// for rounding, and charge exactly the same. Lots are so large that sums travel early.
#[test]
fn any_number_of_ranks_trains_the_same() {
    let place = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 2] = [&[], &["--optimizer", "dp-adam-bc", "--learning-rate", "hyfree"]];
    for (way, more) in ways.iter().enumerate() {
        let train = |count: usize| {
            let out = place.path().join(format!("{way}-{count}"));
            let mut arguments =
                vec!["train", "--out", out.to_str().unwrap(), "--steps", "5", "--lot-size", "150"];
            arguments.extend([
                "--model",
                "tiny",
                "--set",
                "optimizer.ema_decay=0",
                "--set",
                "privacy.seed=5",
                "--set",
                "evaluation.samples=0",
                "--set",
                "evaluation.score=false",
                "--set",
                "training.checkpoint_every=2",
            ]);
            arguments.extend(*more);
            let output = if count == 1 {
                muffle(&arguments).output().unwrap()
            } else {
                launch(count, &arguments).output().unwrap()
            };
            assert!(output.status.success(), "{count}: {}", said(&output));
            // One process speaks.
            assert_eq!(String::from_utf8_lossy(&output.stdout).matches("privacy ").count(), 1);
            out
        };
        let alone = train(1);
        let largest = weights(&alone).iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for count in [2, 4] {
            let out = train(count);
            let apart = weights(&out)
                .iter()
                .zip(weights(&alone))
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            // Newton and Schulz's iteration and Adam's division carry rounding on.
            assert!(apart < 2e-3 * largest, "{count} ranks: {apart:e} of {largest}");
            assert_eq!(ledger(&out), ledger(&alone), "{count} ranks");
            let stated = |out: &Path| {
                serde_json::from_str::<Value>(
                    &std::fs::read_to_string(out.join("model/privacy.json")).unwrap(),
                )
                .unwrap()
            };
            for key in
                ["epsilon", "delta", "noise_multiplier", "steps", "records", "lot_size", "ledger"]
            {
                assert_eq!(stated(&out)[key], stated(&alone)[key], "{key}");
            }
        }
    }
}

/// Begins a run on so many ranks and waits until some steps are charged.
fn begun(place: &Path, count: usize, steps: u64, charged: u64) -> (PathBuf, Child) {
    let config = run_toml(place, steps);
    let out = place.join("run");
    let mut child =
        launch(count, &["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()])
            .spawn()
            .unwrap();
    assert!(
        wait_for_charges(&mut child, &out, charged),
        "{}",
        said(&child.wait_with_output().unwrap())
    );
    (out, child)
}

/// Goes on with so many ranks, to the end; nothing that was charged is forgotten.
fn finished(out: &Path, count: usize, before: u64) {
    let output = launch(count, &["resume", out.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(charges(out) >= before);
    statement_holds(out);
}

/// A rank is killed, again and again, and the run goes on with another number of ranks each time.
#[test]
fn a_rank_that_dies_ends_the_job_and_any_number_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let (out, child) = begun(place.path(), 2, 40, 4);
    signal(&process(&out, 1), "-KILL");
    let output = ended(child);
    assert!(!output.status.success() && said(&output).contains("rank 1"), "{}", said(&output));
    let mut most = charges(&out);
    for (count, rank) in [(3, 0), (4, 2)] {
        let mut child = launch(count, &["resume", out.to_str().unwrap()]).spawn().unwrap();
        assert!(
            wait_for_charges(&mut child, &out, most + 3),
            "{}",
            said(&child.wait_with_output().unwrap())
        );
        signal(&process(&out, rank), "-KILL");
        assert!(!ended(child).status.success());
        assert!(charges(&out) >= most + 3);
        most = charges(&out);
    }
    // Alone, without a launcher; what it left can be finished by several again.
    let mut child = muffle(&["resume", out.to_str().unwrap()]).spawn().unwrap();
    assert!(wait_for_charges(&mut child, &out, most + 2));
    child.kill().unwrap();
    child.wait().unwrap();
    finished(&out, 2, most);
}

/// A rank that stands still is noticed, and named in one line, by the others, whichever it is.
#[test]
fn a_rank_that_hangs_ends_the_job() {
    for rank in [0, 1] {
        let place = tempfile::tempdir().unwrap();
        let (out, child) = begun(place.path(), 2, 60, 2);
        signal(&process(&out, rank), "-STOP");
        let output = ended(child);
        let lines: Vec<String> = said(&output)
            .lines()
            .filter(|line| line.contains("has sent nothing for"))
            .map(String::from)
            .collect();
        assert!(!output.status.success() && lines.len() == 1, "{}", said(&output));
        assert!(
            lines[0].starts_with(&format!("muffle: rank {rank} "))
                && lines[0].contains("muffle resume"),
            "{lines:?}"
        );
        finished(&out, 1, charges(&out));
    }
}

/// A rank that gets no more memory ends the job, instead of the others waiting for it.
#[test]
fn a_rank_without_memory_ends_the_job() {
    let place = tempfile::tempdir().unwrap();
    let (out, child) = begun(place.path(), 2, 400, 2);
    let limited = Command::new("prlimit")
        .args(["--pid", &process(&out, 1), "--as=1048576"])
        .status()
        .unwrap();
    assert!(limited.success());
    let output = ended(child);
    assert!(!output.status.success() && said(&output).contains("memory"), "{}", said(&output));
    finished(&out, 3, charges(&out));
}

/// What is wrong for all of them is said once; and what is wrong for one of them ends all.
#[test]
fn errors_are_said_once() {
    let place = tempfile::tempdir().unwrap();
    let lines = |output: &Output| {
        said(output)
            .lines()
            .filter(|line| line.starts_with("muffle: "))
            .map(String::from)
            .collect::<Vec<_>>()
    };
    for (arguments, expected) in [
        (&["train", "--set", "optimizer.clp=1"][..], "did you mean"),
        (&["resume", "/nowhere"], "not the folder of a run"),
        (&["train", "--set", "data.train=\"/nowhere.txt\"", "--out", "x"], "/nowhere.txt"),
        (&["verify", "/nowhere"], "only train, resume"),
    ] {
        let output = ended(launch(3, arguments).current_dir(place.path()).spawn().unwrap());
        let said = lines(&output);
        assert!(
            !output.status.success() && said.len() == 1 && said[0].contains(expected),
            "{arguments:?}: {said:?}"
        );
    }
    // Two configurations at once.
    let config = run_toml(place.path(), 4);
    let (program, config) = (env!("CARGO_BIN_EXE_muffle"), config.to_str().unwrap());
    let mut command = Command::new("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "1",
        program,
        "train",
        config,
        "--out",
        "y",
        ":",
    ]);
    command
        .args(["-n", "1", program, "train", config, "--out", "y", "--steps", "5"])
        .current_dir(place.path());
    let output = ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert!(
        !output.status.success() && lines(&output)[0].contains("rank 1 has another configuration"),
        "{}",
        said(&output)
    );
    assert!(!place.path().join("y/config.toml").exists());
}
