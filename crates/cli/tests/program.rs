//! Training with the program: kills, stops, resuming, comparisons, reports.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "support/program.rs"]
mod program;

use program::{charges, muffle, run_toml, snapshots, wait_for_charges};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A run that is killed repeatedly finishes within its promise, and its ledger never shrinks.
#[test]
fn a_run_survives_being_killed() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 40);
    let out = place.path().join("run");
    let (mut kills, mut most) = (0u64, 0);
    let mut arguments = vec![
        "train".to_string(),
        config.display().to_string(),
        "--out".into(),
        out.display().to_string(),
    ];
    loop {
        let mut child =
            muffle(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
        if kills >= 6 || !wait_for_charges(&mut child, &out, most + kills % 3) {
            break assert!(child.wait_with_output().unwrap().status.success());
        }
        std::thread::sleep(Duration::from_millis(7 * kills));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let now = charges(&out);
        assert!(now > most, "a charge was lost");
        most = now;
        arguments = vec!["resume".into(), out.display().to_string()];
    }
    let result: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    let spent = charges(&out);
    assert!(kills >= 1 && spent == 40, "{kills} kills, {spent} charges");
    // Every charge is a step in the model, or was lost in a kill.
    let steps = result["steps"].as_u64().unwrap();
    assert!(steps <= 40 && steps + 4 * kills >= 40, "{steps} steps after {kills} kills");
    assert_eq!(snapshots(&out), steps);
    assert!(result["epsilon"].as_f64().unwrap() <= 8.0);
}

/// On Ctrl-C the step is finished and the run is saved; the exit code is 130.
#[test]
fn a_run_can_be_stopped() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 30);
    let out = place.path().join("run");
    let mut child = muffle(&["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .spawn()
        .unwrap();
    assert!(wait_for_charges(&mut child, &out, 3));
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("muffle resume"), "{stderr}");
    assert_eq!(charges(&out), snapshots(&out));
    let object = json(&muffle(&["resume", out.to_str().unwrap(), "--json"]).output().unwrap());
    assert_eq!(
        (object["steps"].as_u64(), object["optimizer"].as_str()),
        (Some(30), Some("dp-adam"))
    );
    for key in ["epsilon", "delta", "sigma", "out", "metrics"] {
        assert!(!object[key].is_null(), "{key}");
    }
}

#[test]
fn finished_runs_of_a_comparison_are_not_repeated() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 3);
    let out = place.path().join("comparison");
    let arguments = [
        "compare",
        config.to_str().unwrap(),
        "--optimizers",
        "dp-adam,dp-adam+hyfree",
        "--seeds",
        "0,1",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ];
    let object = json(&muffle(&arguments).output().unwrap());
    let rows = object["rows"].as_array().unwrap();
    assert_eq!(
        rows.iter().map(|row| row["optimizer"].as_str().unwrap()).collect::<Vec<_>>(),
        ["dp-adam", "dp-adam+hyfree"]
    );
    assert!(rows.iter().all(|row| row["nll_mean"].as_f64().unwrap() > 0.0
        && row["nll_std"].as_f64().is_some()
        && row["epsilon"].as_f64().unwrap() <= 8.0));
    // The joint cost is larger than that of one run.
    assert!(object["together"]["epsilon"].as_f64().unwrap() > 8.0);
    for file in ["comparison.html", "comparison.md", "comparison.csv", "comparison.svg"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    // A second time nothing is trained, and the result is the same.
    let before = std::fs::metadata(out.join("dp-adam-0/result.json")).unwrap().modified().unwrap();
    let again = muffle(&arguments).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).matches("already finished").count() == 4);
    assert_eq!(json(&again)["rows"], object["rows"]);
    assert_eq!(
        std::fs::metadata(out.join("dp-adam-0/result.json")).unwrap().modified().unwrap(),
        before
    );
    // Without --json, aligned tables.
    let shown = muffle(&arguments[..arguments.len() - 1]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("\noptimizer ") && shown.contains("────"), "{shown}");
    assert!(shown.contains("* ") && !shown.contains('|'), "{shown}");
    // A missing run is trained again; another configuration is refused.
    std::fs::remove_dir_all(out.join("dp-adam-1")).unwrap();
    assert!(muffle(&arguments).output().unwrap().status.success());
    let other = muffle(&[&arguments[..], &["--epsilon", "3"]].concat()).output().unwrap();
    assert!(
        other.status.code() == Some(2)
            && String::from_utf8_lossy(&other.stderr).contains("another configuration")
    );
}

/// A whole table from one file: a grid, changes, and a reference without privacy.
#[test]
fn a_comparison_is_described_by_a_file() {
    let place = tempfile::tempdir().unwrap();
    let run = run_toml(place.path(), 3);
    let text = std::fs::read_to_string(&run).unwrap()
        + "select = \"best-nll\"\n[compare]\noptimizers = [\"dp-adam\", \"sgd\"]\nseeds = [0, \
           1]\ngrid_for.dp-adam.optimizer.learning_rate = [0.001, 0.02]\n\
           set_for.sgd.optimizer.learning_rate = 0.5\n";
    let file = place.path().join("TABLE.toml");
    std::fs::write(&file, text).unwrap();
    let (file, out) = (file.to_str().unwrap(), place.path().join("comparison"));
    let arguments = ["compare", file, "--out", out.to_str().unwrap(), "--json"];
    let object = json(&muffle(&arguments).output().unwrap());
    let rows = object["rows"].as_array().unwrap();
    let named: Vec<_> =
        rows.iter().map(|row| (row["optimizer"].as_str().unwrap(), &row["settings"])).collect();
    let rate = |value: &str| serde_json::json!({"optimizer.learning_rate": value});
    assert_eq!(
        named,
        [("dp-adam", &rate("0.001")), ("dp-adam", &rate("0.02")), ("sgd", &serde_json::json!({}))]
    );
    assert_eq!(object["metric"], "best_nll");
    assert_eq!(rows.iter().filter(|row| row["best"] == true).count(), 2);
    for row in rows {
        for key in ["best_nll_mean", "best_nll_std", "nll_mean", "perplexity_mean", "seconds_mean"]
        {
            assert!(row[key].as_f64().unwrap() >= 0.0, "{key}: {row}");
        }
        assert_eq!(row["seconds_figures"], "NON-PRIVATE");
    }
    // The reference has no guarantee, and the joint cost is that of the private runs.
    assert_eq!(object["without_guarantee"], serde_json::json!(["sgd"]));
    assert!(rows[2]["epsilon"].is_null());
    let together = object["together"]["epsilon"].as_f64().unwrap();
    assert!(together > 8.0 && together < 4.0 * 8.0, "{together}");
    let runs = object["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    assert!(runs.iter().all(|run| run["metrics"]["best_nll_step"].as_u64().unwrap() <= 3));
    let table = std::fs::read_to_string(out.join("comparison.md")).unwrap();
    for part in ["learning_rate = 0.02", "(best)", "WITHOUT A GUARANTEE", ": sgd.", "| 1 | ∞ |"] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    let curves = std::fs::read_to_string(out.join("curves.csv")).unwrap();
    // Six runs, evaluated at the start and at the last step.
    assert_eq!(curves.lines().count(), 1 + 6 * 2, "{curves}");
    assert!(out.join("dp-adam-optimizer.learning_rate=0.02-1/report.html").is_file());
    // The command line overrides the file; finished runs are not repeated.
    let some = [&arguments[..], &["--optimizers", "sgd", "--seeds", "1"]].concat();
    let output = muffle(&some).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("already finished"));
    let object = json(&output);
    assert_eq!(object["runs"].as_array().unwrap().len(), 1);
    assert!(object["together"].is_null());
    // A single run is not trained from the file of a comparison.
    let refused = muffle(&["train", file]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && stderr.contains("muffle compare"), "{stderr}");
    let without = muffle(&["compare", run.to_str().unwrap()]).output().unwrap();
    let stderr = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(2) && stderr.contains("--optimizers"), "{stderr}");
}

/// A run whose steps are too small to change a tensor prints a warning.
#[test]
fn unchanged_tensors_are_named() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 1);
    let run = |rate: &str, name: &str| {
        let out = place.path().join(name);
        let output = muffle(&[
            "train",
            config.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
            "--learning-rate",
            rate,
        ])
        .output()
        .unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).contains("did not change in 1 steps")
    };
    assert!(run("1e-35", "still") && !run("0.001", "moving"));
}

#[test]
fn figures_and_reports() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 3);
    let out = place.path().join("run");
    let trained = json(
        &muffle(&["train", config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"])
            .output()
            .unwrap(),
    );
    let data = place.path().join("public.txt");
    let object = json(
        &muffle(&[
            "eval",
            out.to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
            "--beam",
            "2",
            "--max-new-tokens",
            "5",
            "--json",
        ])
        .output()
        .unwrap(),
    );
    assert!(
        (object["nll"].as_f64().unwrap() - trained["metrics"]["nll"].as_f64().unwrap()).abs()
            < 1e-6
    );
    assert!(
        object["bleu"].as_f64().is_some()
            && object["rouge_l"].as_f64().is_some()
            && object["texts"].as_u64() == Some(20)
    );
    let only = json(
        &muffle(&[
            "eval",
            out.to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
            "--no-texts",
            "--json",
        ])
        .output()
        .unwrap(),
    );
    assert!(only["bleu"].is_null() && only["nll"] == object["nll"]);
    std::fs::remove_file(out.join("report.html")).unwrap();
    let object = json(&muffle(&["report", out.to_str().unwrap(), "--json"]).output().unwrap());
    assert!(Path::new(object["path"].as_str().unwrap()).is_file());
    let texts = muffle(&["generate", out.to_str().unwrap(), "--source", "name : Ines", "--json"])
        .output()
        .unwrap();
    assert_eq!(json(&texts)["outputs"].as_array().unwrap().len(), 1);
}

#[test]
fn refusals_have_their_codes() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 3);
    let config = config.to_str().unwrap();
    let out = place.path().join("run");
    let code = |arguments: &[&str]| {
        let output =
            muffle(&[arguments, &["--out", out.to_str().unwrap()]].concat()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.stdout.is_empty(), "{arguments:?}");
        (output.status.code(), stderr)
    };
    assert_eq!(code(&["train", config, "--epsilon", "1e-12", "--delta", "1e-300"]).0, Some(3));
    assert_eq!(code(&["train", "/nowhere/RUN.toml"]).0, Some(2));
    assert_eq!(
        code(&["train", config, "--set", "privacy.epsilom=3"]),
        (Some(2), "muffle: privacy.epsilom: unknown key; did you mean \"epsilon\"?\n".into())
    );
    assert_eq!(code(&["train", config, "--optimizer", "dp-moun"]).0, Some(2));
    assert_eq!(
        code(&["compare", config, "--optimizers", "dp-sgd", "--set-for", "dp-adam:x=1"]).0,
        Some(2)
    );
    assert!(!out.exists());
    let printed = muffle(&["train", config, "--print-config", "--epsilon", "3"]).output().unwrap();
    let read = muffle::Config::parse(&String::from_utf8(printed.stdout).unwrap()).unwrap();
    assert_eq!(read.privacy.epsilon, muffle::config::Auto::Value(3.0));
}

/// The NLL is that of `transformers` for the sentence without special tokens.
#[test]
fn a_pretrained_model_is_evaluated() {
    let shared = std::env::var_os("MUFFLE_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let model = shared.join("models/stories15M");
    if !model.is_dir() {
        eprintln!(
            "SKIPPED: {} is not there; set MUFFLE_SHARED to a directory that holds \
             models/stories15M",
            model.display()
        );
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("lines.txt");
    std::fs::write(
        &file,
        "Once upon a time, there was a little girl named Lily. She loved to play \
        outside in the sunshine.\n",
    )
    .unwrap();
    let object = json(
        &muffle(&[
            "eval",
            model.to_str().unwrap(),
            "--data",
            file.to_str().unwrap(),
            "--format",
            "lines",
            "--json",
        ])
        .output()
        .unwrap(),
    );
    assert!(
        (object["nll"].as_f64().unwrap() - 0.234_872_7).abs() < 1e-5
            && object["tokens"].as_u64() == Some(24),
        "{object}"
    );
}

/// The embedded run states how many facts its texts state, beside a run without privacy.
#[test]
fn the_embedded_run_has_a_reference() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let out = out.to_str().unwrap();
    let arguments = |more: &[&'static str]| {
        let all = ["train", "--steps", "2", "--lot-size", "64", "--set", "evaluation.every=2"];
        let small = ["--set", "evaluation.test_examples=8", "--out", out];
        all.into_iter().chain(small).chain(more.iter().copied()).map(String::from).collect()
    };
    let run = |more: &[&'static str]| {
        let arguments: Vec<String> = arguments(more);
        muffle(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap()
    };
    let trained = json(&run(&["--json"]));
    let share = |value: &Value| value.as_f64().unwrap();
    let accuracy = share(&trained["metrics"]["slot_accuracy"]);
    // The public model states most facts before it has seen a record; two steps with much noise
    // may spoil some of them.
    assert!((0.1..=1.0).contains(&accuracy), "{accuracy}");
    assert!((0.1..=1.0).contains(&share(&trained["reference_slot_accuracy"])));
    assert!(trained["private"].as_bool().unwrap() && share(&trained["epsilon"]) <= 3.0);
    let reference: Value = serde_json::from_str(
        &std::fs::read_to_string(place.path().join("run/reference/result.json")).unwrap(),
    )
    .unwrap();
    assert!(!reference["private"].as_bool().unwrap());
    assert_eq!(reference["metrics"]["slot_accuracy"], trained["reference_slot_accuracy"]);
    // Without texts, or without privacy, there is nothing to compare.
    std::fs::remove_dir_all(out).unwrap();
    let trained = json(&run(&["--json", "--set", "evaluation.score=false"]));
    assert!(trained["reference_slot_accuracy"].is_null());
    assert!(!place.path().join("run/reference").exists());
    // The first line does not wait for the data, and the model can be used.
    std::fs::remove_dir_all(out).unwrap();
    let output = run(&["--optimizer", "adam"]);
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(lines.starts_with("loading    model embedded, data embedded"), "{lines}");
    assert!(!lines.contains("reference"), "{lines}");
    let source = "name : Ines | day : Friday";
    let generated =
        json(&muffle(&["generate", out, "--source", source, "--json"]).output().unwrap());
    assert!(generated["tokens"][0].as_u64().unwrap() > 0, "{generated}");
}
