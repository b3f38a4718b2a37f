//! Audits of the unmodified program. That they find planted errors is tested in the curator, where
//! errors can be planted.

#![allow(clippy::unwrap_used)]

use cpu::Network;
use engine::Example;
use model::Mlp;
use model::activation::Activation;
use muffle::Config;
use muffle::audits::{MechanismSettings, OneRunSettings, ReplaySettings};
use muffle::curator::Records;
use serde_json::Value;
use std::process::Command;

/// The default settings. The noise is random: a correct mechanism fails in at most one of ten
/// thousand audits.
const USUAL: MechanismSettings = MechanismSettings {
    sigma: 1.0,
    steps: 1,
    rate: 1.0,
    per_tensor: false,
    delta: 1e-5,
    trials: 20_000,
    confidence: 0.9999,
};

/// σ = 1, one release, δ = 1e-5: the true ε is 4.377. The audit passes within a fifth of it.
#[test]
fn the_mechanism_passes_and_the_bound_is_near() {
    let verdict = USUAL.run(&mut |_, _| ()).unwrap();
    assert!(verdict.passed(), "{verdict:?}");
    assert!((verdict.epsilon_claimed - 4.377_18).abs() < 1e-3);
    assert!(verdict.epsilon_lower > 0.8 * verdict.epsilon_claimed, "{}", verdict.epsilon_lower);
    assert!(verdict.chart.svg().contains("claimed"));
}

/// Several sampled lots, and one clip block per tensor.
#[test]
fn other_mechanisms_pass_too() {
    // With sampled lots the bound is weaker.
    for (mechanism, share) in [
        (MechanismSettings { rate: 0.5, ..USUAL }, 0.3),
        (MechanismSettings { steps: 4, sigma: 2.0, trials: 3000, ..USUAL }, 0.4),
        (MechanismSettings { per_tensor: true, sigma: 2.0, trials: 5000, ..USUAL }, 0.4),
    ] {
        let verdict = mechanism.run(&mut |_, _| ()).unwrap();
        assert!(verdict.passed(), "{mechanism:?} {verdict:?}");
        assert!(
            verdict.epsilon_lower > share * verdict.epsilon_claimed,
            "{mechanism:?} {}",
            verdict.epsilon_lower
        );
    }
    assert!(MechanismSettings { sigma: -1.0, ..USUAL }.run(&mut |_, _| ()).is_err());
    assert!(MechanismSettings { delta: 0.0, ..USUAL }.run(&mut |_, _| ()).is_err());
}

fn mlp() -> (Network, muffle::protocol::Params) {
    let graph =
        Mlp { input: 40, hidden: vec![64], classes: 2, activation: Activation::Tanh }.graph();
    let values = graph.init(0).unwrap();
    Network::new(graph, values, |_| true).unwrap()
}

fn people(count: usize) -> Vec<Example> {
    let number = |i: usize, j: usize| ((i * 37 + j * 101) % 97) as f32 / 97.0 - 0.5;
    (0..count)
        .map(|i| Example::features((0..40).map(|j| number(i, j)).collect(), (i % 2) as u32))
        .collect()
}

/// A run without noise memorizes its canaries and reveals them; the same run with noise does not.
#[test]
fn one_run_distinguishes_private_from_non_private_training() {
    let (network, params) = mlp();
    let audit = OneRunSettings { canaries: 300, confidence: 0.95, seed: 1 };
    let run = |text: &str| {
        let config = Config::parse(text).unwrap();
        audit
            .with(&config, &network, &params, Records::new(people(100)), None, &mut |_, _| ())
            .unwrap()
    };
    let bare = run(
        "[optimizer]\nname = \"adam\"\nlearning_rate = 0.01\n[training]\nsteps = 150\nlot_size = \
         400\n[privacy]\nsampling = \"full\"",
    );
    assert!(bare.epsilon_lower > 0.5, "{bare:?}");
    assert!(bare.epsilon_claimed == f64::INFINITY && bare.passed() && !bare.private);
    assert_eq!(bare.spent.unwrap().price, None);
    for adjacency in ["add-remove", "replace-one"] {
        let private = run(&format!(
            "[optimizer]\nname = \"dp-adam\"\nlearning_rate = 0.01\n[training]\nsteps = \
             20\nlot_size = 100\n[privacy]\nepsilon = 1.0\nadjacency = \"{adjacency}\""
        ));
        assert!(
            private.passed() && private.epsilon_lower <= 1.0 && private.epsilon_claimed <= 1.0,
            "{private:?}"
        );
        let spent = private.spent.unwrap();
        assert!(private.private && spent.spent.ledger.events().len() == 20);
        assert!((spent.price.unwrap().epsilon - private.epsilon_claimed).abs() < 1e-9);
    }
    let config = Config::parse("[training]\nsteps = 2\nlot_size = 10").unwrap();
    let few = OneRunSettings { canaries: 3, ..audit };
    assert!(
        few.with(&config, &network, &params, Records::new(people(30)), None, &mut |_, _| ())
            .is_err()
    );
}

/// All kinds of queries, under both adjacencies and with all sampling methods.
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
        let text = format!(
            "[optimizer]\nname = \"{optimizer}\"\n{rate}[training]\nsteps = 4\nlot_size = \
             16\n{more}"
        );
        let config = Config::parse(&text).unwrap();
        let replay = ReplaySettings { steps: 4, records: 3, seed: 3 };
        let verdict = replay.with(&config, &network, &params, &people(31), &mut |_, _| ()).unwrap();
        assert!(verdict.passed(), "{optimizer}: {verdict:?}");
    }
    let config =
        Config::parse("[optimizer]\nname = \"adam\"\n[training]\nsteps = 4\nlot_size = 16")
            .unwrap();
    let replay = ReplaySettings { steps: 4, records: 1, seed: 3 };
    assert!(replay.with(&config, &network, &params, &people(31), &mut |_, _| ()).is_err());
}

/// An MLP with ReLU, whose hidden units have a kink, before the first step.
fn kinked() -> (Network, muffle::protocol::Params) {
    let graph =
        Mlp { input: 64, hidden: vec![17], classes: 2, activation: Activation::Relu }.graph();
    let values = graph.init(0).unwrap();
    Network::new(graph, values, |_| true).unwrap()
}

fn adversarial(network: &Network, params: &muffle::protocol::Params) {
    for optimizer in ["dp-sgd", "dp-macadam", "dp-muon-bc"] {
        for adjacency in ["add-remove", "replace-one"] {
            let text = format!(
                "[optimizer]\nname = \"{optimizer}\"\n[training]\nsteps = 2\n[privacy]\nepsilon = \
                 3.0\nadjacency = \"{adjacency}\""
            );
            let config = Config::parse(&text).unwrap();
            let replay = ReplaySettings { steps: 2, records: 1, seed: 3 };
            let verdict = replay.adversarial(&config, network, params, &mut |_, _| ()).unwrap();
            assert!(
                verdict.passed(),
                "{optimizer}, {adjacency}: {:#?} {:#?}",
                verdict.details,
                verdict.violations
            );
        }
    }
}

/// Rounding carries no record into the contributions of others: zeros, equal, huge and tiny
/// features, duplicates.
#[test]
fn replays_pass_on_adversarial_lots() {
    let (network, params) = mlp();
    adversarial(&network, &params);
}

/// The same for records at which a derivative jumps.
#[test]
fn replays_pass_on_kinks() {
    let (network, params) = kinked();
    adversarial(&network, &params);
}

/// Writes a RUN.toml with private data files.
fn run_toml(place: &std::path::Path) {
    let texts = |part, count| {
        let line =
            |pair: muffle::load::corpus::CorpusPair| format!("{}||{}\n", pair.source, pair.target);
        muffle::load::corpus::pairs(part, count).into_iter().map(line).collect::<String>()
    };
    std::fs::write(place.join("people.txt"), texts(muffle::load::data::Split::Train, 100)).unwrap();
    let words = texts(muffle::load::data::Split::Validation, 200);
    text::Tokenizer::train(words.lines(), 300, &["<bos>", "<eos>"])
        .unwrap()
        .save(&place.join("tokenizer.json"))
        .unwrap();
    let text = "[model]\nsource = \"tiny\"\ntokenizer = \"tokenizer.json\"\n[data]\ntrain \
        = \"people.txt\"\n[privacy]\nepsilon = 4.0\n\
                [training]\nsteps = 3\nlot_size = 10\n";
    std::fs::write(place.join("RUN.toml"), text).unwrap();
}

fn muffle(place: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_muffle"))
        .args(arguments)
        .current_dir(place)
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn json(place: &std::path::Path, arguments: &[&str]) -> Value {
    let (code, out, stderr) = muffle(place, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    serde_json::from_str(&out).unwrap()
}

fn ledger(path: &std::path::Path) -> accounting::Ledger {
    muffle::run::chain::Chain::parse(&std::fs::read_to_string(path).unwrap())
        .unwrap()
        .ledger()
        .clone()
}

/// An audit of a run trains again on the same data: its cost is written, and added to that of the
/// run and of other audits.
#[test]
fn the_cost_of_an_audit_is_added_to_that_of_its_run() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    run_toml(place.path());
    let run = json(place.path(), &["train", "RUN.toml", "--out", "run", "--json"]);
    let statement = std::fs::read(at("run/model/privacy.json")).unwrap();
    let mut last = run["epsilon"].as_f64().unwrap();
    let mut all = ledger(&at("run/ledger.json"));
    for number in 1..=2 {
        let audit = json(place.path(), &["audit", "run", "run", "--canaries", "20", "--json"]);
        let folder = at(&format!("run/audits/{number}"));
        let own = ledger(&folder.join("ledger.json"));
        assert_eq!(own.events().len(), 3);
        assert!(
            audit["private"].as_bool().unwrap()
                && audit["spent"]["epsilon"].as_f64().unwrap() <= 4.0,
            "{audit}"
        );
        assert!(
            audit["spent"]["ledger"]
                .as_str()
                .unwrap()
                .ends_with(&format!("audits/{number}/ledger.json"))
        );
        // The joint cost is that of one ledger with all charges, at the larger δ.
        all.merge(&own).unwrap();
        let joint = audit["joint"]["epsilon"].as_f64().unwrap();
        let delta = accounting::Delta::new(run["delta"].as_f64().unwrap()).unwrap();
        let again = all
            .cost(accounting::Adjacency::AddRemove)
            .unwrap()
            .epsilon(accounting::Accountant::Best, delta)
            .unwrap();
        assert!((joint - again.epsilon).abs() < 1e-9 && joint > last + 0.1, "{audit}");
        last = joint;
        let names: Vec<&str> = audit["joint"]["of"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        assert_eq!(names, ["run", "audits/1", "audits/2"][..=number]);
        assert_eq!(
            serde_json::from_str::<Value>(
                &std::fs::read_to_string(folder.join("audit.json")).unwrap()
            )
            .unwrap(),
            audit
        );
    }
    // The statement of the run is unchanged and consistent.
    assert_eq!(std::fs::read(at("run/model/privacy.json")).unwrap(), statement);
    assert_eq!(muffle(place.path(), &["verify", "run"]).0, Some(0));
    // An interrupted audit counts as well: it has a ledger.
    std::fs::remove_file(at("run/audits/2/audit.json")).unwrap();
    let (code, text, _) = muffle(place.path(), &["audit", "run", "run", "--canaries", "20"]);
    assert!(
        code == Some(0)
            && text.contains("run + audits/1 + audits/2 + audits/3")
            && text.contains("spent"),
        "{text}"
    );
    // Costs on other data or for other persons are not added up.
    for change in ["data.group=who", "data.dropped_rows=public"] {
        let (code, _, stderr) = muffle(place.path(), &["audit", "run", "run", "--set", change]);
        assert!(
            code == Some(2) && stderr.contains("[data]: expected the section of the run"),
            "{stderr}"
        );
    }
    let (code, _, stderr) = muffle(place.path(), &["audit", "run", "run", "--folder", "elsewhere"]);
    assert!(code == Some(2) && stderr.contains("--folder"), "{stderr}");
    // Without a guarantee there is no joint cost.
    let bare = json(
        place.path(),
        &["audit", "run", "run", "--canaries", "20", "--optimizer", "adam", "--json"],
    );
    assert_eq!(
        (&bare["private"], &bare["spent"]["epsilon"], &bare["joint"]["epsilon"]),
        (&Value::Bool(false), &"inf".into(), &"inf".into())
    );
    assert!(ledger(&at("run/audits/4/ledger.json")).events().has_non_private());
    let after = json(place.path(), &["audit", "run", "run", "--canaries", "20", "--json"]);
    assert_eq!(after["joint"]["epsilon"], "inf");
}

/// Nothing is computed before its charge is on disk; an audit that cannot start leaves no files.
#[test]
fn charges_of_an_audit_are_written_before_computing() {
    let place = tempfile::tempdir().unwrap();
    run_toml(place.path());
    let mut config = Config::read(&place.path().join("RUN.toml")).unwrap();
    config.training.steps = muffle::config::Auto::Value(4);
    let folder = muffle::audits::AuditFolder::create(&place.path().join("audit")).unwrap();
    let path = folder.ledger();
    let mut charged = Vec::new();
    let audit = OneRunSettings { canaries: 20, confidence: 0.95, seed: 1 };
    audit
        .run(&config, &folder, &mut |done, _| charged.push((done, ledger(&path).events().len())))
        .unwrap();
    assert_eq!(charged, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    let read = Config::read(&place.path().join("audit/audit.toml")).unwrap();
    assert_eq!(read.privacy.delta, muffle::config::Auto::Value(0.1 / 120.0));
    // A folder that is not empty is refused; an invalid configuration leaves no folder.
    let (code, _, stderr) =
        muffle(place.path(), &["audit", "run", "RUN.toml", "--folder", "audit"]);
    assert!(code == Some(2) && stderr.contains("not empty"), "{stderr}");
    for bad in [
        &["--lot-size", "100000"][..],
        &["--canaries", "3"],
        &["--set", "data.train=\"nothing.txt\""],
    ] {
        let (code, _, stderr) =
            muffle(place.path(), &[&["audit", "run", "RUN.toml"], bad].concat());
        assert!(
            code == Some(2) && !place.path().join("muffle-audit").exists(),
            "{bad:?}: {stderr}"
        );
    }
    // A failing journal stops the audit before anything is computed.
    let (network, params) = mlp();
    let text = "[training]\nsteps = 2\nlot_size = 10\n[optimizer]\nname = \"dp-sgd\"";
    let failed = audit.with(
        &Config::parse(text).unwrap(),
        &network,
        &params,
        Records::new(people(30)),
        Some(Box::new(|_| Err("the disk is full".into()))),
        &mut |_, _| panic!("a step was made"),
    );
    assert!(failed.unwrap_err().to_string().contains("the disk is full"));
}

/// A replay shows figures without noise: of real records only on request, and marked.
#[test]
fn real_records_are_used_on_request_and_marked() {
    let place = tempfile::tempdir().unwrap();
    run_toml(place.path());
    let quick = ["--steps", "1", "--canaries", "1", "--optimizer", "dp-adam"];
    let replay = |more: &[&str]| {
        muffle(place.path(), &[&["audit", "replay", "RUN.toml"], &quick[..], more].concat())
    };
    let (code, synthetic, stderr) = replay(&[]);
    assert!(
        code == Some(0) && !synthetic.contains("NON-PRIVATE") && !stderr.contains("NON-PRIVATE"),
        "{synthetic}{stderr}"
    );
    let object: Value = serde_json::from_str(&replay(&["--json"]).1).unwrap();
    assert_eq!((&object["private"], &object["spent"]), (&Value::Bool(true), &Value::Null));
    let (code, real, stderr) = replay(&["--real-records", "--out", "seen.svg"]);
    assert!(
        code == Some(0) && real.contains("NON-PRIVATE") && stderr.contains("NON-PRIVATE"),
        "{real}{stderr}"
    );
    assert!(
        std::fs::read_to_string(place.path().join("seen.svg")).unwrap().contains("NON-PRIVATE")
    );
    let object: Value = serde_json::from_str(&replay(&["--real-records", "--json"]).1).unwrap();
    assert_eq!(object["private"], false);
    // Synthetic records do not depend on the data.
    let rows: String = (0..100).map(|i| format!("other {i}||other {i}\n")).collect();
    std::fs::write(place.path().join("people.txt"), rows).unwrap();
    assert_eq!(replay(&[]).1, synthetic);
    assert_ne!(replay(&["--real-records"]).1, real);
    // Options of other audits are refused.
    for bad in [
        &["audit", "--real-records"][..],
        &["audit", "run", "--real-records"],
        &["audit", "replay", "--folder", "x"],
    ] {
        assert_eq!(muffle(place.path(), bad).0, Some(2), "{bad:?}");
    }
}

#[test]
fn the_program_prints_the_result_of_an_audit() {
    let place = tempfile::tempdir().unwrap();
    let muffle = |arguments: &[&str]| muffle(place.path(), arguments);
    let (code, out, _) = muffle(&[
        "audit",
        "--trials",
        "400",
        "--confidence",
        "0.9999",
        "--json",
        "--out",
        "seen.svg",
    ]);
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &object["passed"]), (Some(0), &Value::Bool(true)));
    assert!(
        object["epsilon_lower"].as_f64().unwrap() <= object["epsilon_claimed"].as_f64().unwrap()
    );
    assert!(std::fs::read_to_string(place.path().join("seen.svg")).unwrap().starts_with("<svg"));
    let (code, out, _) = muffle(&[
        "audit",
        "replay",
        "--steps",
        "2",
        "--canaries",
        "1",
        "--optimizer",
        "dp-prism",
        "--set",
        "model.lora_rank=2",
    ]);
    assert!(code == Some(0) && out.contains("passed"), "{out}");
    for bad in [
        &["audit", "--trials", "3"][..],
        &["audit", "RUN.toml"],
        &["audit", "run", "nothing.toml"],
        &["audit", "--confidence", "2", "--trials", "100"],
    ] {
        let (code, _, stderr) = muffle(bad);
        assert_eq!(code, Some(2), "{bad:?}: {stderr}");
    }
}
