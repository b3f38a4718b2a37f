//! `muffle theory` as its users meet it: arguments in, tables or JSON out, refusals.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn muffle(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muffle")).args(arguments.split_whitespace()).output().unwrap()
}

fn json(arguments: &str) -> Value {
    let output = muffle(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

const SETTINGS: &str = "theory --noise-multiplier 1 --clip 1 --lot-size 1024 --steps 300";

/// The noise in the momentum is what the formulas of Lemma C.1 say, shape by shape.
#[test]
fn noise_in_the_momentum_of_each_shape() {
    let object = json(&format!("{SETTINGS} --momentum 0.95 --shape 768x768 --shape 768x3072"));
    let shapes = object["matrices"].as_array().unwrap();
    assert_eq!(shapes.len(), 2);
    assert_eq!(number(&object["gradient_noise_std"]), 1.0 / 1024.0);
    for (shape, cols) in shapes.iter().zip([768.0, 3072.0]) {
        assert_eq!(number(&shape["cols"]), cols);
        let noise = shape["noise"].as_array().unwrap();
        let steps: Vec<u64> = noise.iter().map(|row| row["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [1, 20, 300]);
        let last = &noise[2];
        // 300 steps are enough for the limit ν √((1−β)/(1+β)).
        let std = (0.05f64 / 1.95).sqrt() / 1024.0;
        assert!((number(&last["std"]) / std - 1.0).abs() < 1e-6);
        let frobenius = std * (768.0 * cols).sqrt();
        assert!((number(&last["frobenius"]) / frobenius - 1.0).abs() < 1e-6);
        let spectral = std * (768f64.sqrt() + cols.sqrt());
        assert!((number(&last["spectral"]) / spectral - 1.0).abs() < 1e-6);
        assert_eq!(number(&noise[0]["std"]), 1.0 / 1024.0);
        // One row for each rank: 1, √r and r.
        let ranks: Vec<u64> = shape["bias"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["rank"].as_u64().unwrap())
            .collect();
        assert_eq!(ranks, [1, 28, 768]);
    }
}

/// The expansion agrees with a simulation where the noise is small; where it is not, the command
/// says so.
#[test]
fn the_bias_is_simulated() {
    let small = "theory --shape 12x16 --noise-multiplier 1 --lot-size 500 --steps 50 --rank 12 \
        --signal 1 --newton-schulz-steps 3 --samples 300";
    let object = json(small);
    let row = &object["matrices"][0]["bias"][0];
    let seen = &row["simulated"];
    assert_eq!(row["usable"], Value::Bool(true), "{row}");
    let off = (number(&seen["bias"]) - number(&row["leading"])).abs();
    let allowed = 5.0 * number(&seen["bias_error"]) + 2.0 * number(&row["next"]) + 1e-5;
    assert!(off < allowed, "{row}");
    assert!(number(&row["corrected"]) < number(&row["leading"]), "{row}");

    let loud = "theory --shape 12x16 --noise-multiplier 50 --lot-size 10 --steps 50 --rank 12";
    let object = json(loud);
    let matrix = &object["matrices"][0];
    assert_eq!(matrix["bias"][0]["usable"], Value::Bool(false));
    assert!(number(&matrix["tracking"]["noise_over_signal"]) > 1.0);
    let notes = object["notes"].to_string();
    assert!(notes.contains("equation (7) is vacuous") && notes.contains("✗"), "{notes}");
    let text = String::from_utf8(muffle(loud).stdout).unwrap();
    assert!(text.contains("12×16") && text.contains('✗') && text.contains("vacuous"), "{text}");
}

/// Theorem 3.4 is printed when all its constants are given, and only then.
#[test]
fn the_theorem_needs_its_constants() {
    let settings = format!("{SETTINGS} --shape 64x64");
    assert!(json(&settings)["matrices"][0].get("stationarity").is_none());
    let all = "--learning-rate 0.003 --smoothness 10 --descent 3 --gradient-norm 2";
    let terms = &json(&format!("{settings} {all}"))["matrices"][0]["stationarity"];
    assert!((number(&terms["optimization"]) - 3.0 / (0.003 * 300.0)).abs() < 1e-9);
    assert!((number(&terms["clipping"]) - 8.0 * 4.0).abs() < 1e-9);
    assert!(number(&terms["bound"]) > number(&terms["clipping"]));
    let text = String::from_utf8(muffle(&format!("{settings} {all}")).stdout).unwrap();
    assert!(text.contains("Theorem 3.4 for 64×64") && text.contains("D₀/(ηT)"), "{text}");
    let output = muffle(&format!("{settings} --learning-rate 0.003"));
    assert_eq!(output.status.code(), Some(2));
}

/// Shapes and settings of a configuration: the noise of one matrix is that of its block.
#[test]
fn a_configuration_gives_shapes_and_settings() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("RUN.toml");
    let config = |name: &str| {
        let text = format!(
            "[privacy]\nsigma = 1.0\n[optimizer]\nname = \"{name}\"\n[training]\nsteps = 20\n\
             lot_size = 50\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    let arguments = |path: &Path| format!("theory --config {} --dataset-size 1000", path.display());
    config("dp-muon-bc");
    let object = json(&arguments(&path));
    // The embedded model: 2 layers of width 64.
    let matrices = object["matrices"].as_array().unwrap();
    let count: u64 = matrices.iter().map(|matrix| matrix["count"].as_u64().unwrap()).sum();
    assert!(matrices.iter().any(|matrix| matrix["rows"] == 64 && matrix["cols"] == 64));
    // All matrices and the rest are paid for together: σ √(count + 1).
    let sigma = number(&object["noise_multiplier"]);
    assert!((sigma - ((count + 1) as f64).sqrt()).abs() < 1e-9, "{sigma}");
    assert_eq!((number(&object["lot_size"]), number(&object["steps"])), (50.0, 20.0));
    assert_eq!(number(&object["clip"]), 0.1);

    config("dp-adam");
    let output = muffle(&arguments(&path));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("expected dp-muon or dp-muon-bc, got dp-adam"), "{said}");
}

#[test]
fn invalid_arguments_are_refused() {
    for (arguments, expected) in [
        (format!("{SETTINGS} --shape 768"), "rows and columns"),
        (format!("{SETTINGS} --shape 0x3"), "rows and columns"),
        (format!("{SETTINGS} --shape 4x4 --momentum 1"), "the momentum β"),
        (format!("{SETTINGS} --shape 4x4 --newton-schulz-degree 0"), "a degree from 1 to 50"),
        (format!("{SETTINGS} --shape 4x4 --signal 0"), "the norm"),
        (SETTINGS.to_string(), "--shape"),
        ("theory --shape 4x4".to_string(), "--noise-multiplier"),
        ("theory --config none.toml".to_string(), "--dataset-size"),
        (format!("{SETTINGS} --config none.toml --dataset-size 5"), "cannot be used with"),
    ] {
        let output = muffle(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}
