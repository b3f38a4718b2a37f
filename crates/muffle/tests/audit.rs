//! The audits as users meet them. That they find planted errors is tested where errors can be planted, in the curator.

#![allow(clippy::unwrap_used)]

use model::activation::Activation;
use model::{Example, Mlp, Network};
use muffle::Config;
use muffle::audits::{Mechanism, OneRun, Replay};
use muffle::curator::Records;
use serde_json::Value;
use std::process::Command;

/// The noise is the system's, so that a healthy mechanism fails by chance: in one of ten thousand attacks at most.
const USUAL: Mechanism = Mechanism { sigma: 1.0, steps: 1, rate: 1.0, blocks: false, delta: 1e-5, trials: 20_000, confidence: 0.9999 };

/// σ = 1, one release, δ = 1e-5: the truth is 4.377. It passes, and comes within a fifth of it.
#[test]
fn the_mechanism_passes_and_the_bound_is_near() {
    let verdict = USUAL.run(&mut |_, _| ()).unwrap();
    assert!(verdict.passed(), "{verdict:?}");
    assert!((verdict.epsilon_claimed - 4.377_18).abs() < 1e-3);
    assert!(verdict.epsilon_lower > 0.8 * verdict.epsilon_claimed, "{}", verdict.epsilon_lower);
    assert!(verdict.plot.svg().contains("claimed"));
}

/// Sampled lots, several of them, and blocks that are clipped by themselves.
#[test]
fn other_mechanisms_pass_too() {
    // Of lots that are sampled less can be seen.
    for (mechanism, share) in [
        (Mechanism { rate: 0.5, ..USUAL }, 0.3),
        (Mechanism { steps: 4, sigma: 2.0, trials: 3000, ..USUAL }, 0.4),
        (Mechanism { blocks: true, sigma: 2.0, trials: 5000, ..USUAL }, 0.4),
    ] {
        let verdict = mechanism.run(&mut |_, _| ()).unwrap();
        assert!(verdict.passed(), "{mechanism:?} {verdict:?}");
        assert!(verdict.epsilon_lower > share * verdict.epsilon_claimed, "{mechanism:?} {}", verdict.epsilon_lower);
    }
    assert!(Mechanism { sigma: -1.0, ..USUAL }.run(&mut |_, _| ()).is_err());
    assert!(Mechanism { delta: 0.0, ..USUAL }.run(&mut |_, _| ()).is_err());
}

fn mlp() -> (Network, protocol::Params) {
    let graph = Mlp { input: 40, hidden: vec![64], classes: 2, activation: Activation::Tanh }.graph();
    let values = graph.init(0).unwrap();
    Network::new(graph, values, |_| true).unwrap()
}

fn people(count: usize) -> Vec<Example> {
    let number = |i: usize, j: usize| ((i * 37 + j * 101) % 97) as f32 / 97.0 - 0.5;
    (0..count).map(|i| Example::numbers((0..40).map(|j| number(i, j)).collect(), (i % 2) as u32)).collect()
}

/// A run that learns its records by heart tells of its canaries; the same run with noise does not.
#[test]
fn one_run_tells_a_private_one_from_one_that_is_not() {
    let (network, params) = mlp();
    let audit = OneRun { canaries: 300, confidence: 0.95, seed: 1 };
    let run = |text: &str| {
        let config = Config::parse(text).unwrap();
        audit.with(&config, &network, &params, Records::new(people(100)), &mut |_, _| ()).unwrap()
    };
    let bare =
        run("[optimizer]\nname = \"adam\"\nlearning_rate = 0.01\n[training]\nsteps = 150\nlot_size = 400\n[privacy]\nsampling = \"full\"");
    assert!(bare.epsilon_lower > 0.5, "{bare:?}");
    assert!(bare.epsilon_claimed == f64::INFINITY && bare.passed());
    for adjacency in ["add-remove", "replace-one"] {
        let private = run(&format!(
            "[optimizer]\nname = \"dp-adam\"\nlearning_rate = 0.01\n[training]\nsteps = 20\nlot_size = 100\n[privacy]\nepsilon = 1.0\nadjacency = \"{adjacency}\""
        ));
        assert!(private.passed() && private.epsilon_lower <= 1.0 && private.epsilon_claimed <= 1.0, "{private:?}");
    }
    let config = Config::parse("[training]\nsteps = 2\nlot_size = 10").unwrap();
    let few = OneRun { canaries: 3, ..audit };
    assert!(few.with(&config, &network, &params, Records::new(people(30)), &mut |_, _| ()).is_err());
}

/// Every kind of question that an optimizer asks, under both relations of neighbours and all ways of drawing.
#[test]
fn replays_pass() {
    let (network, params) = mlp();
    for (optimizer, more) in [
        ("dp-adam", "[privacy]\nepsilon = 3.0\nadjacency = \"replace-one\""),
        ("dp-muon-bc", "[privacy]\nepsilon = 3.0\nsampling = \"fixed\""),
        ("dp-macadam", "[privacy]\nepsilon = 3.0\nsampling = \"shuffled\""),
        ("dp-sgd", "[privacy]\nepsilon = 3.0\nnoise = \"float\""),
    ] {
        let rate = if optimizer == "dp-sgd" { "learning_rate = \"hyfree\"\n" } else { "" };
        let text = format!("[optimizer]\nname = \"{optimizer}\"\n{rate}[training]\nsteps = 4\nlot_size = 16\n{more}");
        let config = Config::parse(&text).unwrap();
        let replay = Replay { steps: 4, records: 3, seed: 3 };
        let verdict = replay.with(&config, &network, &params, &people(31), &mut |_, _| ()).unwrap();
        assert!(verdict.passed(), "{optimizer}: {verdict:?}");
    }
    let config = Config::parse("[optimizer]\nname = \"adam\"\n[training]\nsteps = 4\nlot_size = 16").unwrap();
    let replay = Replay { steps: 4, records: 1, seed: 3 };
    assert!(replay.with(&config, &network, &params, &people(31), &mut |_, _| ()).is_err());
}

#[test]
fn the_program_says_what_it_found() {
    let place = tempfile::tempdir().unwrap();
    let muffle = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_muffle")).args(arguments).current_dir(place.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, out, _) = muffle(&["audit", "--trials", "400", "--confidence", "0.9999", "--json", "--out", "seen.svg"]);
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &object["passed"]), (Some(0), &Value::Bool(true)));
    assert!(object["epsilon_lower"].as_f64().unwrap() <= object["epsilon_claimed"].as_f64().unwrap());
    assert!(std::fs::read_to_string(place.path().join("seen.svg")).unwrap().starts_with("<svg"));
    let (code, out, _) =
        muffle(&["audit", "replay", "--steps", "2", "--canaries", "1", "--optimizer", "dp-prism", "--set", "model.lora_rank=2"]);
    assert!(code == Some(0) && out.contains("passed"), "{out}");
    for bad in [
        &["audit", "--trials", "3"][..],
        &["audit", "RUN.toml"],
        &["audit", "run", "nothing.toml"],
        &["audit", "--confidence", "2", "--trials", "100"],
    ] {
        let (code, _, said) = muffle(bad);
        assert_eq!(code, Some(2), "{bad:?}: {said}");
    }
}
