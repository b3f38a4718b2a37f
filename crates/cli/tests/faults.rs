//! Faults of the machine: kills, a full disk, missing permissions, jumping clocks, too little
//! memory.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

#[path = "support/program.rs"]
mod program;

use noise::{PublicRandom, Rng};
use program::{charges, muffle, run_toml, snapshots, wait_for_charges};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether the last line starts with the name of the program, and there is no panic.
fn is_one_clear_line(output: &Output, code: i32) -> bool {
    let stderr = stderr(output);
    let last = stderr.lines().last().unwrap_or_default();
    output.status.code() == Some(code)
        && last.starts_with("muffle: ")
        && !stderr.contains("panicked")
}

/// Checks that the statement is that of the ledger, and within the promise.
fn statement_holds(out: &Path) {
    let output = muffle(&["verify", out.to_str().unwrap(), "--json"]).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert!(
        output.status.success()
            && object["consistent"] == true
            && object["epsilon_stated"].as_f64().is_some_and(|epsilon| epsilon <= 8.0),
        "{object:#}"
    );
}

/// Runs that are killed more than fifty times at random moments finish with a valid statement.
///
/// The ledger is intact each time and never shrinks, and no snapshot is ahead of it. Tested with
/// Poisson sampling, shuffled epochs, and probes of the learning rate.
#[test]
fn more_than_fifty_kills() {
    let mut words = PublicRandom::from_seed(50).words();
    let (mut kills, mut began) = (0, 0);
    let ways: [&[&str]; 3] = [
        &[],
        &["--set", "privacy.sampling=\"shuffled\"", "--epsilon", "8"],
        &["--learning-rate", "hyfree"],
    ];
    for way in ways {
        let place = tempfile::tempdir().unwrap();
        let config = run_toml(place.path(), 60);
        let out = place.path().join("run");
        let folder = out.to_str().unwrap();
        let (mut most, mut here) = (0, 0);
        loop {
            let resumes = out.join("config.toml").is_file();
            let mut arguments = if resumes {
                vec!["resume", folder]
            } else {
                vec!["train", config.to_str().unwrap(), "--out", folder]
            };
            if !resumes {
                arguments.extend(way);
                began += 1;
            }
            let mut child = muffle(&arguments).spawn().unwrap();
            if here >= 18 {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{way:?}: {}", stderr(&output));
                break;
            }
            // From the start of the process to the middle of training.
            std::thread::sleep(Duration::from_millis(u64::from(words.next_u32() % 700)));
            if child.try_wait().unwrap().is_some() {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{way:?}: {}", stderr(&output));
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            (kills, here) = (kills + 1, here + 1);
            let now = charges(&out);
            assert!(now >= most, "{way:?}: {most} charges became {now}");
            assert!(
                snapshots(&out) <= now || way.len() > 2,
                "{way:?}: a snapshot knows more steps than were charged"
            );
            most = now;
            // A kill before the run was created leaves a folder without a run and without charges.
            if out.exists() && !out.join("config.toml").is_file() {
                assert_eq!(now, 0);
                std::fs::remove_dir_all(&out).unwrap();
            }
        }
        let statement: Value =
            serde_json::from_str(&std::fs::read_to_string(out.join("model/privacy.json")).unwrap())
                .unwrap();
        let ledger: accounting::Ledger =
            serde_json::from_value(statement["ledger"].clone()).unwrap();
        assert_eq!(ledger.events().len(), charges(&out));
        assert!(ledger.events().len() >= most, "{way:?}");
        statement_holds(&out);
    }
    assert!(kills > 50 || began > 3, "{kills} kills");
}

/// A full disk, simulated by a limit on file sizes, gives an error that names the file.
///
/// The ledger and the last snapshot stay intact, and the run is resumed without the limit.
#[test]
fn a_full_disk_is_survived() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 12);
    let out = place.path().join("run");
    let mut child = muffle(&["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .spawn()
        .unwrap();
    assert!(wait_for_charges(&mut child, &out, 3));
    child.kill().unwrap();
    child.wait().unwrap();
    let (spent, step) = (charges(&out), snapshots(&out));
    let limited = |kib: u32| {
        let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
        Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_muffle"), "resume", out.to_str().unwrap()])
            .output()
            .unwrap()
    };
    // Enough for the ledger, too little for a snapshot.
    let output = limited(64);
    assert!(
        is_one_clear_line(&output, 5) && stderr(&output).contains("checkpoints"),
        "{}",
        stderr(&output)
    );
    assert!(charges(&out) >= spent && snapshots(&out) == step);
    // Too little for the ledger: nothing is computed without a written charge.
    let before = charges(&out);
    let output = limited(0);
    assert!(is_one_clear_line(&output, 5), "{}", stderr(&output));
    assert_eq!((charges(&out), snapshots(&out)), (before, step));
    let output = muffle(&["resume", out.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    statement_holds(&out);
}

/// Read-only folders give an error that names them, and are unchanged.
#[test]
fn a_folder_that_is_read_only_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 6);
    let out = place.path().join("run");
    let mut child = muffle(&["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .spawn()
        .unwrap();
    assert!(wait_for_charges(&mut child, &out, 1));
    child.kill().unwrap();
    child.wait().unwrap();
    // Root is replaced by another user, which needs access to the program.
    let program = place.path().join("muffle");
    std::fs::copy(env!("CARGO_BIN_EXE_muffle"), &program).unwrap();
    let all = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
    };
    let as_guest = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments);
        if std::fs::metadata("/proc/self")
            .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
        {
            command.uid(65534).gid(65534);
        }
        command.output().unwrap()
    };
    for folder in [place.path(), &out, &out.join("sealed"), &out.join("checkpoints")] {
        all(folder, 0o555);
    }
    let before = charges(&out);
    let new = place.path().join("new");
    for arguments in [
        &["train", config.to_str().unwrap(), "--out", new.to_str().unwrap()][..],
        &["resume", out.to_str().unwrap()],
    ] {
        let output = as_guest(arguments);
        assert!(is_one_clear_line(&output, 2), "{}", stderr(&output));
    }
    assert!(!new.exists());
    for folder in [place.path(), &out, &out.join("sealed"), &out.join("checkpoints")] {
        all(folder, 0o755);
    }
    assert_eq!(charges(&out), before);
    assert!(muffle(&["resume", out.to_str().unwrap()]).output().unwrap().status.success());
}

/// Dates of files in the past or in the future change no result. The program does not read the time
/// of day.
#[test]
fn results_do_not_depend_on_clocks() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 8);
    let out = place.path().join("run");
    let mut child = muffle(&["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .spawn()
        .unwrap();
    assert!(wait_for_charges(&mut child, &out, 3));
    child.kill().unwrap();
    child.wait().unwrap();
    for (date, pattern) in
        [("1971-01-01", "*.json"), ("2099-12-31", "*.safetensors"), ("2038-02-01", "*.toml")]
    {
        let touched = Command::new("find")
            .arg(place.path())
            .args(["-name", pattern, "-exec", "touch", "-d", date, "{}", ";"])
            .status()
            .unwrap();
        assert!(touched.success());
    }
    let output = muffle(&["resume", out.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    statement_holds(&out);
}

/// A micro-batch that exceeds the memory is halved until it fits; the result is the same up to
/// rounding.
#[test]
fn too_little_memory_is_survived() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 2);
    // Validation texts are short, so that training needs the most memory.
    std::fs::write(place.path().join("public.txt"), "name : Ines||Ines helps.\n".repeat(20))
        .unwrap();
    let train = |name: &str, limit: &str| {
        let out = place.path().join(name);
        let script = format!("{limit} exec \"$0\" \"$@\"");
        let output = Command::new("bash")
            .args([
                "-c",
                &script,
                env!("CARGO_BIN_EXE_muffle"),
                "train",
                config.to_str().unwrap(),
                "--out",
                out.to_str().unwrap(),
            ])
            .args([
                "--lot-size",
                "200",
                "--set",
                "privacy.sampling=\"full\"",
                "--set",
                "training.micro_batch=32",
                "--set",
                "privacy.seed=5",
            ])
            .args(["--set", "training.threads=1"])
            .output()
            .unwrap();
        let result = std::fs::read_to_string(out.join("result.json"))
            .ok()
            .map(|text| serde_json::from_str::<Value>(&text).unwrap());
        (output, result)
    };
    let (output, free) = train("free", "");
    assert!(output.status.success(), "{}", stderr(&output));
    // The memory that the program needs before training differs between machines: the limit is
    // lowered until the micro-batch must be halved. Steps are small, because other allocations may
    // fail at some of the limits.
    let narrow = (100..=356).rev().step_by(2).find_map(|mib| {
        let (output, result) =
            train(&format!("narrow-{mib}"), &format!("ulimit -v {};", mib << 10));
        (output.status.success() && stderr(&output).contains("out of memory")).then_some(result)
    });
    let narrow = narrow.expect("no limit at which the micro-batch is halved");
    let (free, narrow) = (free.unwrap(), narrow.unwrap());
    let nll = |result: &Value| result["metrics"]["nll"].as_f64().unwrap();
    assert!((nll(&free) - nll(&narrow)).abs() < 1e-3, "{free} {narrow}");
    assert_eq!((&free["epsilon"], &free["steps"]), (&narrow["epsilon"], &narrow["steps"]));
}
