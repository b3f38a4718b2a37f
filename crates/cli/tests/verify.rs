//! Verification: unchanged statements are consistent, changed statements and files are detected,
//! missing evidence is reported.

#![allow(clippy::unwrap_used)]

#[path = "../../muffle/tests/support/folders.rs"]
mod folders;

use accounting::Ledger;
use folders::copy;
use muffle::config::{Auto, Config, Publicity};
use muffle::run::chain::Chain;
use muffle::run::{Progress, RunObserver, RunStart, Silent, resume, train};
use muffle::verify::signature::{self, PublicKey, SecretKey};
use muffle::verify::{Conclusion, UncheckedReason, Verdict, verify, verify_signed};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use tempfile::TempDir;

/// Writes private and public texts and a tokenizer.
static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    let line =
        |pair: muffle::load::corpus::CorpusPair| format!("{}||{}\n", pair.source, pair.target);
    for (name, part, count) in [
        ("people.txt", muffle::load::data::Split::Train, 200),
        ("public.txt", muffle::load::data::Split::Validation, 10),
    ] {
        std::fs::write(
            place.path().join(name),
            muffle::load::corpus::pairs(part, count).into_iter().map(line).collect::<String>(),
        )
        .unwrap();
    }
    // Two rows of each person.
    let row = |(i, pair): (usize, muffle::load::corpus::CorpusPair)| {
        json!({ "prompt": pair.source, "completion": pair.target, "who": format!("p{}", i / 2) })
            .to_string()
            + "\n"
    };
    let rows: String = muffle::load::corpus::pairs(muffle::load::data::Split::Train, 200)
        .into_iter()
        .enumerate()
        .map(row)
        .collect();
    std::fs::write(place.path().join("people.jsonl"), rows).unwrap();
    let texts: Vec<String> =
        muffle::load::corpus::pairs(muffle::load::data::Split::Validation, 200)
            .into_iter()
            .map(|pair| pair.source + &pair.target)
            .collect();
    text::Tokenizer::train(texts.iter().map(String::as_str), 300, &["<bos>", "<eos>"])
        .unwrap()
        .save(&place.path().join("tokenizer.json"))
        .unwrap();
    place
});

/// A small run.
fn config(more: &str) -> Config {
    let file = |name: &str| FILES.path().join(name);
    let mut config = Config::default();
    config.privacy.epsilon = Auto::Value(8.0);
    config.evaluation.beams = 1;
    config.training.steps = Auto::Value(4);
    config.training.lot_size = Auto::Value(20);
    config.training.checkpoint_every = 2;
    config.data.max_length = Auto::Value(129);
    config.data.train = file("people.txt").to_string_lossy().into();
    config.data.validation = Some(file("public.txt"));
    config.data.evaluation_data = Auto::Value(Publicity::Public);
    config.model.source = "tiny".into();
    config.model.tokenizer = Auto::Value(file("tokenizer.json"));
    config.evaluation.samples = 1;
    config.evaluation.examples = 5;
    config.evaluation.max_new_tokens = 3;
    more.lines()
        .filter(|line| !line.trim().is_empty())
        .fold(config, |config, change| config.with(change.trim()).unwrap())
}

fn trained(more: &str) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    train(&config(more), &out, &mut Silent).unwrap();
    (place, out)
}

/// One run for all tests that read it or work on a copy.
static RUN: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| trained(""));

/// A copy of the run, which a test can change.
fn a_copy() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    copy(&RUN.1, &out);
    (place, out)
}

fn failed(verdict: &Verdict) -> Vec<&'static str> {
    verdict.checks.iter().filter(|check| !check.passed).map(|check| check.name).collect()
}

fn missing(verdict: &Verdict) -> Vec<&'static str> {
    verdict.missing().map(|missing| missing.name).collect()
}

fn holds(path: &Path) -> Verdict {
    let verdict = verify(path).unwrap();
    assert!(verdict.consistent(), "{:#?}", verdict.checks);
    verdict
}

fn statement(out: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(out.join("model/privacy.json")).unwrap()).unwrap()
}

#[test]
fn a_run_its_model_and_its_statement_are_consistent() {
    let (_keep, out) = &*RUN;
    let verdict = holds(out);
    let names: Vec<&str> = verdict.checks.iter().map(|check| check.name).collect();
    let of_run = [
        "plan",
        "plan file",
        "statement",
        "ledger file",
        "result",
        "history",
        "checkpoints",
        "report",
    ];
    assert!(
        names.ends_with(&of_run)
            && verdict.conclusion() == Conclusion::Consistent
            && names.len() == 19,
        "{names:?}"
    );
    // Properties that no file can show are always listed.
    let open: Vec<&str> = verdict
        .unchecked
        .iter()
        .filter(|unchecked| unchecked.reason == UncheckedReason::OutOfReach)
        .map(|unchecked| unchecked.name)
        .collect();
    assert_eq!(
        open,
        ["signature", "sealed mark", "older copy", "other copies", "program", "data", "figures"]
    );
    let stated = verdict.statement.unwrap().epsilon.unwrap();
    // On the same machine, ε is the same to the last bit.
    assert_eq!(verdict.price.unwrap().epsilon, stated);
    assert_eq!(holds(&out.join("model")).checks.len(), 11);
    let alone = holds(&out.join("model/privacy.json"));
    assert_eq!((missing(&alone), alone.conclusion()), (vec!["run"], Conclusion::Incomplete));
    // White space and the notation of numbers do not matter.
    let (_keep, out) = a_copy();
    let text = statement(&out).to_string().replace("\"lot_size\":20.0", "\"lot_size\":2e1");
    assert!(text.contains("2e1"));
    std::fs::write(out.join("model/privacy.json"), text).unwrap();
    holds(&out);
}

#[test]
fn runs_of_every_kind_are_consistent() {
    for more in [
        "privacy.sampling=shuffled\ntraining.steps=12",
        "privacy.sampling=fixed\noptimizer.name=dp-adam",
        "privacy.sampling=full\noptimizer.name=dp-sgd\ntraining.steps=2",
        "privacy.adjacency=replace-one\nprivacy.accountant=rdp",
        "optimizer.learning_rate=hyfree\noptimizer.hyfree.every=2",
        "optimizer.learning_rate=hyfree\noptimizer.hyfree.every=1\noptimizer.hyfree.lot=same\n\
         optimizer.name=dp-adam-bc",
        "privacy.epsilon=auto\nprivacy.sigma=1.5\nprivacy.delta=1e-4\ndata.evaluation_data=private",
        "model.lora_rank=2\noptimizer.name=dp-prism",
        "optimizer.name=dp-macadam\ntraining.steps=auto\ntraining.epochs=0.3",
    ] {
        let (_keep, out) = trained(more);
        let verdict = holds(&out);
        assert!(
            verdict.conclusion() == Conclusion::Consistent && verdict.statement.unwrap().private,
            "{more}"
        );
        holds(&out.join("model"));
    }
}

/// The unit of protection is a person, named by a column with any name.
#[test]
fn statements_about_persons_are_checked() {
    let people = FILES.path().join("people.jsonl");
    let more = format!(
        "data.train={}\ndata.group=who\ndata.person_rows=separate\ndata.rows_per_person=2",
        people.display()
    );
    let (_keep, out) = trained(&more);
    let unit = holds(&out).statement.unwrap().unit.unwrap();
    assert_eq!(unit.rows, 2);
    let stated = statement(&out);
    let failed_with = |changes: &[(&str, Value)]| {
        let mut other = stated.clone();
        changes.iter().for_each(|(key, value)| other[*key] = value.clone());
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        failed(&verify(&out.join("model")).unwrap())
    };
    assert!(failed_with(&[]).is_empty());
    // With another column the sentence differs; without one, there is no guarantee for persons.
    assert_eq!(failed_with(&[("person_column", json!("whom"))]), ["summary"]);
    assert_eq!(failed_with(&[("person_column", Value::Null)]), ["private", "summary"]);
    assert_eq!(failed_with(&[("person_rows", Value::Null)]), ["private"]);
    let no_persons = [("person_column", Value::Null), ("person_rows", Value::Null)];
    assert_eq!(failed_with(&no_persons), ["private", "summary"]);
    // Rows that are one record are not several records.
    assert_eq!(failed_with(&[("person_rows", json!("combined"))]), ["private", "summary"]);
}

/// A non-private run states that it has no guarantee, and cannot claim one.
#[test]
fn a_non_private_run_states_no_guarantee() {
    for (more, secret) in [("optimizer.name=adam", false), ("privacy.seed=7", true)] {
        let (_keep, out) = trained(more);
        let verdict = holds(&out);
        assert!(!verdict.statement.unwrap().private);
        assert_eq!(verdict.price.unwrap().epsilon.is_finite(), secret);
        let mut other = statement(&out);
        other["private"] = json!(true);
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        for place in [out.clone(), out.join("model")] {
            let verdict = verify(&place).unwrap();
            assert!(failed(&verdict).contains(&"private"), "{more} {:#?}", verdict.checks);
        }
        // Another stated source of randomness does not change that.
        other["randomness"] = json!("operating-system");
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        assert!(!verify(&out).unwrap().consistent());
    }
}

/// Charged and lost steps are part of the statement.
#[test]
fn an_interrupted_run_is_consistent() {
    struct Stop(u64);
    impl RunObserver for Stop {
        fn message(&mut self, _: &str) {}
        fn started(&mut self, _: &RunStart<'_>) {}
        fn stepped(&mut self, progress: &Progress) {
            self.0 = progress.step;
        }
        fn should_stop(&mut self) -> bool {
            self.0 == 3
        }
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    assert!(train(&config(""), &out, &mut Stop(0)).is_err());
    // An unfinished run cannot be verified.
    let refused = verify(&out).unwrap_err().to_string();
    assert!(refused.contains("not finished") && refused.contains("muffle resume"), "{refused}");
    std::fs::remove_dir_all(out.join("checkpoints/step-000000003")).unwrap();
    resume(&out, &mut Silent).unwrap();
    let statement = holds(&out).statement.unwrap();
    assert_eq!((statement.steps, statement.ledger.events().len()), (3, 4));
}

/// The JSON pointers of all leaves of a value.
fn leaves(value: &Value, within: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| leaves(value, &format!("{within}/{key}"), found))
        }
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(index, value)| leaves(value, &format!("{within}/{index}"), found)),
        _ => found.push(within.into()),
    }
}

/// Small changes of a leaf.
fn changed(leaf: &Value) -> Vec<(&'static str, Value)> {
    match leaf {
        Value::Bool(is) => vec![("not", json!(!is))],
        Value::Null => vec![("there", json!(1))],
        Value::Number(number) if number.is_u64() => {
            let number = number.as_u64().unwrap();
            vec![
                ("+", json!(number + 1)),
                ("-", json!(number.wrapping_sub(1) as i64)),
                ("negative", json!(-1 - number as i64)),
            ]
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            vec![
                ("+", json!(number * (1.0 + 1e-5))),
                ("-", json!(number * (1.0 - 1e-5))),
                ("negative", json!(-number)),
                ("none", Value::Null),
            ]
        }
        Value::String(text) => {
            let mut letters: Vec<char> = text.chars().collect();
            let middle = letters.len() / 2;
            letters[middle] = if letters[middle] == 'e' { 'a' } else { 'e' };
            vec![
                ("letter", json!(letters.iter().collect::<String>())),
                ("longer", json!(format!("{text} "))),
                ("empty", json!("")),
            ]
        }
        _ => unreachable!("{leaf}"),
    }
}

/// The check that must detect a change of each leaf.
const WHO: [(&str, &str); 25] = [
    ("/accountant", "epsilon"),
    ("/coverage", "summary"),
    ("/delta", "epsilon"),
    ("/epsilon", "epsilon"),
    ("/ledger/", "ledger"),
    ("/ledger_head", "ledger"),
    ("/lot_size", "sampling"),
    ("/model_step", "steps"),
    ("/noise_multiplier", "noise"),
    ("/person_column", "summary"),
    ("/private", "private"),
    ("/promised_epsilon", "promise"),
    ("/randomness", "private"),
    ("/records", "sampling"),
    ("/run_id", "ledger"),
    ("/sampling", "sampling"),
    ("/selection", "summary"),
    ("/sessions", "ledger"),
    ("/software", "software"),
    ("/steps", "steps"),
    ("/summary", "summary"),
    ("/unit/adjacency", "epsilon"),
    ("/unit/rows", "epsilon"),
    ("/version", "software"),
    ("/weights_sha256", "weights"),
];

#[test]
fn another_kind_of_noise_is_detected() {
    let (_keep, out) = a_copy();
    let mut other = statement(&out);
    assert_eq!(other["coverage"]["noise"], "grid");
    other["coverage"]["noise"] = json!("float");
    std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
    assert_eq!(failed(&verify(&out.join("model")).unwrap()), ["summary"]);
}

#[test]
fn every_changed_value_of_the_statement_is_detected() {
    let (_keep, out) = a_copy();
    let whole = statement(&out);
    let mut places = Vec::new();
    leaves(&whole, "", &mut places);
    assert!(places.len() >= 32, "{places:?}");
    let mut survivors = Vec::new();
    for place in &places {
        let who =
            WHO.iter().find(|(beginning, _)| place.starts_with(beginning)).map(|(_, name)| *name);
        for (how, value) in changed(whole.pointer(place).unwrap()) {
            let mut other = whole.clone();
            *other.pointer_mut(place).unwrap() = value;
            std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
            // The statement alone first: that is faster, and detects nearly everything.
            let alone = verify(&out.join("model")).unwrap();
            let failed = failed(&alone);
            if alone.consistent() {
                survivors.push(format!("{place} {how}"));
                let verdict = verify(&out).unwrap();
                assert!(!verdict.consistent(), "{place} {how} was not noticed");
            } else {
                // The responsible check fails, unless the statement is malformed.
                assert!(
                    failed == ["form"] || who.is_some_and(|who| failed.contains(&who)),
                    "{place} {how}: {failed:?}"
                );
            }
        }
    }
    // A statement alone cannot show another configuration or a smaller promise.
    assert_eq!(survivors, ["/config_sha256 letter", "/promised_epsilon +"]);
}

/// Valid values that are not those of this statement.
#[test]
fn another_accountant_or_unit_is_another_figure() {
    let (_keep, out) = a_copy();
    let whole = statement(&out);
    for (place, value) in [
        ("/accountant", json!("rdp")),
        ("/accountant", json!("gdp")),
        ("/accountant", json!("best")),
        ("/unit/adjacency", json!("replace-one")),
        ("/unit/rows", json!(2)),
        ("/delta", json!(1e-3)),
        ("/ledger/events", json!([])),
        ("/ledger/events", json!([["non-private", 4]])),
    ] {
        let mut other = whole.clone();
        *other.pointer_mut(place).unwrap() = value;
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        let verdict = verify(&out.join("model")).unwrap();
        assert!(failed(&verdict).contains(&"epsilon"), "{place}: {:#?}", verdict.checks);
    }
}

#[test]
fn missing_unknown_and_duplicate_fields_are_refused() {
    let (_keep, out) = a_copy();
    let whole = statement(&out);
    let refused = |text: &str, what: &str| {
        std::fs::write(out.join("model/privacy.json"), text).unwrap();
        assert_eq!(failed(&verify(&out).unwrap()), ["form"], "{what}");
    };
    for key in whole.as_object().unwrap().keys() {
        let mut other = whole.clone();
        other.as_object_mut().unwrap().remove(key);
        refused(&other.to_string(), key);
        let twice = whole.to_string().replacen('{', &format!("{{\"{key}\":{},", whole[key]), 1);
        refused(&twice, key);
    }
    for place in [
        "",
        "/unit",
        "/coverage",
        "/sessions/0",
        "/ledger",
        "/ledger/events/0/0",
        "/ledger/events/0/0/gaussian",
        "/ledger/events/0/0/gaussian/lots",
    ] {
        let mut other = whole.clone();
        other
            .pointer_mut(place)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .insert("note".into(), json!("trust me"));
        refused(&other.to_string(), place);
    }
    let text = whole.to_string();
    let epsilon = whole["epsilon"].to_string();
    for nonsense in ["NaN", "Infinity", "1e999", "-1", "\"8\""] {
        refused(
            &text.replace(&format!("\"epsilon\":{epsilon}"), &format!("\"epsilon\":{nonsense}")),
            nonsense,
        );
    }
    refused("", "empty");
    refused(&text[..text.len() - 9], "cut");
    refused(&(text.clone() + "{}"), "more");
    std::fs::write(out.join("model/privacy.json"), [0xff, 0xfe]).unwrap();
    assert_eq!(failed(&verify(&out).unwrap()), ["form"]);
}

/// Longer and shorter lists, and a ledger with an event less, with and without matching hashes.
#[test]
fn truncated_lists_and_ledgers_are_detected() {
    let (_keep, out) = a_copy();
    let whole = statement(&out);
    let check = |other: &Value, expected: &[&str]| {
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        let verdict = verify(&out).unwrap();
        let failed = failed(&verdict);
        assert!(expected.iter().all(|name| failed.contains(name)), "{expected:?} {failed:?}");
    };
    for list in ["summary", "weights_sha256"] {
        for index in 0..whole[list].as_array().unwrap().len() {
            let mut other = whole.clone();
            other[list].as_array_mut().unwrap().remove(index);
            check(&other, &[]);
            assert!(!verify(&out.join("model")).unwrap().consistent(), "{list} {index}");
            let mut other = whole.clone();
            let again = other[list][index].clone();
            other[list].as_array_mut().unwrap().push(again);
            check(&other, &["statement"][..usize::from(list != "weights_sha256")]);
        }
    }
    // One event less with a matching hash: ε is too large for it, and the files of the run differ.
    let mut other = whole.clone();
    other["ledger"]["events"][0][1] = json!(3);
    check(&other, &["ledger", "steps", "epsilon", "summary", "ledger file"]);
    let shorter: Ledger = serde_json::from_value(other["ledger"].clone()).unwrap();
    let sessions: Vec<_> = serde_json::from_value(other["sessions"].clone()).unwrap();
    let chain =
        Chain::rebuild(other["run_id"].as_str().unwrap(), shorter.events(), &sessions).unwrap();
    other["ledger_head"] = json!(chain.head());
    check(&other, &["steps", "epsilon", "summary", "ledger file"]);
    // With a fully matching statement, only the files of the run can show it.
    let unit = accounting::Unit::from(accounting::Adjacency::AddRemove);
    let delta = accounting::Delta::new(whole["delta"].as_f64().unwrap()).unwrap();
    let price = |ledger: &Ledger, rows| {
        let cost = ledger.cost(accounting::Unit { rows, ..unit }).unwrap();
        cost.epsilon(accounting::Accountant::Best, delta).unwrap().epsilon
    };
    other["epsilon"] = json!(price(&shorter, 1));
    (other["steps"], other["model_step"]) = (json!(3), json!(3));
    let longer: Ledger = serde_json::from_value(whole["ledger"].clone()).unwrap();
    let up = |x: f64, digits: i32| {
        let scale = 10f64.powi(digits);
        format!("{:.*}", digits as usize, (x * scale - 1e-6).ceil() / scale)
    };
    let rows = |ledger: &Ledger| {
        let (two, ten) = (up(price(ledger, 2), 1), up(price(ledger, 10), 1));
        format!("with 2 rows ε is {two}, with 10 rows {ten}")
    };
    let factor = |ledger: &Ledger| {
        let epsilon = up(price(ledger, 1), 3);
        let factor = epsilon.parse::<f64>().unwrap().exp();
        format!("e^{epsilon} ≤ {}", up(factor, 2))
    };
    let found = |ledger: &Ledger, rows: u64| {
        let unit = accounting::Unit { adjacency: accounting::Adjacency::AddRemove, rows: 1 };
        let delta = accounting::Delta::new(whole["delta"].as_f64().unwrap()).unwrap();
        let curve = ledger.cost(unit).unwrap().trade_off(delta).unwrap();
        let rate = (0..rows).fold(0.01, |rate, _| curve.tpr(rate));
        format!("finds at most {} %", up(100.0 * rate, 1))
    };
    let mut changes = 0;
    for line in other["summary"].as_array_mut().unwrap() {
        let text = line.as_str().unwrap();
        let fitted = text
            .replace("All 4 lots", "All 3 lots")
            .replace("after step 4", "after step 3")
            .replace(&rows(&longer), &rows(&shorter))
            .replace(&factor(&longer), &factor(&shorter))
            .replace(&found(&longer, 1), &found(&shorter, 1))
            .replace(&found(&longer, 10), &found(&shorter, 10));
        changes += u32::from(fitted != text);
        *line = json!(fitted);
    }
    assert_eq!(changes, 5, "{:#}", other["summary"]);
    check(&other, &["ledger file", "result", "history", "checkpoints", "report"]);
    holds(&out.join("model"));
}

/// A statement or another file of another run, with other noise, is detected.
#[test]
fn files_of_another_run_are_detected() {
    let (_keep, theirs) = trained("privacy.epsilon=3\noptimizer.name=dp-sgd");
    for (file, expected) in [
        (
            "model/privacy.json",
            &[
                "weights",
                "plan",
                "statement",
                "ledger file",
                "result",
                "history",
                "checkpoints",
                "report",
            ][..],
        ),
        ("model/model.safetensors", &["weights", "checkpoints"]),
        ("ledger.json", &["ledger file"]),
        ("result.json", &["result", "report"]),
        ("history.jsonl", &["result", "history", "report"]),
        ("plan.json", &["plan file"]),
        ("config.toml", &["plan", "plan file", "statement", "result", "checkpoints", "report"]),
        ("report.html", &["report"]),
        ("checkpoints/step-000000004/params.safetensors", &["checkpoints"]),
    ] {
        let (_keep, out) = a_copy();
        std::fs::copy(theirs.join(file), out.join(file)).unwrap();
        let verdict = verify(&out).unwrap();
        assert_eq!(failed(&verdict), expected, "{file}: {:#?}", verdict.checks);
    }
}

/// A small change to any file of the run is detected.
#[test]
fn every_changed_file_is_detected() {
    let tampered = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, expected: &[&str]| {
        let (_keep, out) = a_copy();
        let bytes = std::fs::read(out.join(file)).unwrap();
        let other = change(bytes.clone());
        assert!(other != bytes, "{file}");
        std::fs::write(out.join(file), other).unwrap();
        let verdict = verify(&out).unwrap();
        assert_eq!(failed(&verdict), expected, "{file}: {:#?}", verdict.checks);
    };
    let replaced = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replacen(from, to, 1).into_bytes()
    };
    let flipped = |mut bytes: Vec<u8>| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    tampered("model/model.safetensors", &flipped, &["weights", "checkpoints"]);
    tampered("checkpoints/step-000000004/params.safetensors", &flipped, &["checkpoints"]);
    tampered("checkpoints/step-000000004/snapshot", &flipped, &["checkpoints"]);
    tampered("ledger.json", &replaced(",4]", ",3]"), &["ledger file"]);
    tampered("ledger.json", &replaced("{", ""), &["ledger file"]);
    for (from, to) in [
        ("\"promised_epsilon\":8.0", "\"promised_epsilon\":0.8"),
        ("\"steps\":4", "\"steps\":40"),
        ("\"charges\":4", "\"charges\":3"),
        ("\"noise_multiplier\":", "\"noise_multiplier\":1"),
        ("{", ""),
    ] {
        tampered("plan.json", &replaced(from, to), &["plan file"]);
    }
    tampered("result.json", &replaced("\"private\":true", "\"private\":false"), &["result"]);
    tampered("result.json", &replaced("\"steps\":4", "\"steps\":5"), &["result"]);
    tampered("result.json", &replaced("\"model_step\":4", "\"model_step\":3"), &["result"]);
    tampered("result.json", &replaced("\"best_nll\":", "\"best_nll\":1"), &["result", "report"]);
    tampered(
        "history.jsonl",
        &replaced("\"figures\":\"public\"", "\"figures\":\"NON-PRIVATE\""),
        &["history"],
    );
    tampered("report.html", &replaced("<i>ε</i> = 8.000", "<i>ε</i> = 1.000"), &["report"]);
    tampered("report.html", &replaced("at most by the factor", "by no factor"), &["report"]);
    tampered("report.html", &|bytes| [bytes, b"<p>ok</p>\n".to_vec()].concat(), &["report"]);
    // Rows of the machine may differ, and nothing else: no further row, no markup in one.
    let machine = "<tr><th scope=\"row\">threads</th><td>";
    for (from, to) in [("<main>\n", "<main>\n{}9</td></tr>\n"), ("{}", "{}<b>ε = 0.01</b>")] {
        let [from, to] = [from, to].map(|text| text.replace("{}", machine));
        let change = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(&from), "{from}");
            text.replacen(&from, &to, 1).into_bytes()
        };
        tampered("report.html", &change, &["report"]);
    }
    tampered(
        "config.toml",
        &replaced("epsilon = 8.0", "epsilon = 9.0"),
        &["plan", "plan file", "statement", "checkpoints", "report"],
    );
    tampered(
        "config.toml",
        &replaced("adjacency = \"add-remove\"", "adjacency = \"replace-one\""),
        &["plan", "plan file", "statement", "checkpoints", "report"],
    );
    tampered(
        "config.toml",
        &replaced("steps = 4", "steps = 5"),
        &["plan", "plan file", "statement", "checkpoints", "report"],
    );
    tampered(
        "config.toml",
        &replaced("learning_rate = \"auto\"", "learning_rate = 0.06"),
        &["statement", "checkpoints", "report"],
    );
    tampered(
        "config.toml",
        &replaced("[privacy]\n", "[privacy]\nseed = 1\n"),
        &["statement", "checkpoints", "report"],
    );
    tampered("config.toml", &replaced("[privacy]", "[privcy]"), &["plan"]);
    let (_keep, out) = a_copy();
    let history = std::fs::read_to_string(out.join("history.jsonl")).unwrap();
    let other = history.replace("\"step\":4", "\"step\":9");
    assert_ne!(other, history);
    std::fs::write(out.join("history.jsonl"), other).unwrap();
    let mut detected = failed(&verify(&out).unwrap());
    // Whether the best figures in the result are of this step depends on the noise.
    detected.retain(|name| *name != "result");
    assert_eq!(detected, ["history", "report"]);
    // Weights that the statement does not name.
    let (_keep, out) = a_copy();
    for name in ["adapter_model.safetensors", "pytorch_model.bin"] {
        std::fs::write(out.join("model").join(name), "x").unwrap();
        assert_eq!(failed(&verify(&out).unwrap()), ["weights"]);
        std::fs::remove_file(out.join("model").join(name)).unwrap();
    }
}

/// Parts of a report can be hidden; the page says so, and is still verified.
#[test]
fn redacted_reports_are_verified() {
    let about = "about.data=letters
         about.owner=Example Clinic
         about.purpose=drafts
         data.evaluation_data=private";
    let (_place, out) = trained(about);
    let folder = out.to_str().unwrap();
    let report = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muffle"));
        command.arg("report").args(arguments).output().unwrap()
    };
    let page = |parts: &[&str]| {
        let more = if parts.is_empty() { vec![] } else { vec!["--redact", parts[0]] };
        let output = report(&[&[folder], more.as_slice()].concat());
        assert!(output.status.success(), "{output:?}");
        assert_eq!(failed(&verify(&out).unwrap()), Vec::<&str>::new(), "{parts:?}");
        std::fs::read_to_string(out.join("report.html")).unwrap()
    };
    let texts = ["letters", "Example Clinic", "drafts", ">NON-PRIVATE<", "RUN.toml"];
    let shown = |page: &str| texts.map(|text| page.contains(text));
    let whole = page(&[]);
    let configuration = page(&["configuration"]);
    assert_eq!(shown(&configuration), [true, true, true, true, false]);
    assert_eq!(shown(&whole), [true; 5]);
    assert!(!whole.contains("muffle-hidden"));
    let hidden = page(&["names,non-private"]);
    assert_eq!(shown(&hidden), [false; 5]);
    assert!(hidden.contains("hidden parts of this page: non-private, names, configuration"));
    assert!(!hidden.contains("people.txt") && !hidden.contains("public.txt"));
    let without = page(&["environment"]);
    assert_eq!(shown(&without), [true; 5]);
    assert!(whole.contains(">threads<") && !without.contains(">threads<"));
    // A page that hides less or more than it says is not the recomputed one.
    for (from, to) in [("content=\"environment\"", "content=\"\""), ("<h2>Figures</h2>", "")] {
        let changed = without.replacen(from, to, 1);
        assert_ne!(changed, without);
        std::fs::write(out.join("report.html"), changed).unwrap();
        assert_eq!(failed(&verify(&out).unwrap()), ["report"], "{from}");
    }
    // Samples of public prompts are shown unless they are hidden.
    let (_place, public) = a_copy();
    for (parts, shown) in [("", true), ("non-private", true), ("samples", false)] {
        assert!(report(&[public.to_str().unwrap(), "--redact", parts]).status.success());
        let page = std::fs::read_to_string(public.join("report.html")).unwrap();
        assert_eq!(page.contains("Sample 1"), shown, "{parts}");
        assert_eq!(failed(&verify(&public).unwrap()), Vec::<&str>::new(), "{parts}");
    }
    let output = report(&[folder, "--redact", "epsilon"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--redact: expected some of"));
}

/// The report leads with what an attacker can do, and its curve of ε is the accountant's.
#[test]
fn the_report_states_bounds() {
    let statement = muffle::Statement::of_run(&RUN.1).unwrap();
    let (unit, delta) = statement.promise().unwrap();
    let delta = accounting::Delta::new(delta).unwrap();
    let words = statement.words();
    let cost = |rows| statement.ledger.cost(accounting::Unit { rows, ..unit }).unwrap();
    let one = cost(1).trade_off(delta).unwrap();
    assert!(words[0].contains("tests whether a record took part"));
    let stated = |after: &str| -> f64 {
        words[0].split(after).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    let found = stated("take part finds at most ");
    let least = 100.0 * one.tpr(0.01);
    assert!(found >= least && found <= least + 0.11, "{found} {least}");
    // Ten rows: an upper bound of the direct one.
    let found = stated("with 10 rows, it finds at most ");
    let direct = 100.0 * cost(10).trade_off(delta).unwrap().tpr(0.01);
    assert!(found >= direct && found <= 100.0, "{found} {direct}");
    // The factor is that of the printed ε.
    let figures = words[1].split("e^").nth(1).unwrap().split(", plus").next().unwrap();
    let (epsilon, factor) = figures.split_once(" ≤ ").unwrap();
    let [epsilon, factor]: [f64; 2] = [epsilon, factor].map(|text| text.parse().unwrap());
    assert!(epsilon >= statement.epsilon.unwrap());
    assert!(factor >= epsilon.exp() && factor <= epsilon.exp() + 0.011, "{epsilon} {factor}");
    // The first charge costs most: a line from (0, 0) would be far below.
    let folder = muffle::run::folder::Folder::open_read_only(&RUN.1).unwrap();
    let page = muffle::report::page(&folder, &muffle::report::Redaction::default()).unwrap();
    let panel = page.charts.iter().find(|panel| panel.chart.title == "Privacy cost").unwrap();
    let points = &panel.chart.series[0].points;
    assert_eq!(points.iter().map(|point| point.0).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(points[3].1, statement.epsilon.unwrap());
    let mut first = Ledger::new();
    first.charge(statement.ledger.events().runs()[0].0.clone(), 1).unwrap();
    let alone = first.cost(unit).unwrap().epsilon(statement.accountant.unwrap(), delta).unwrap();
    assert_eq!(points[0].1, alone.epsilon);
    assert!(points[0].1 > 0.5 * points[3].1, "{points:?}");
    // The date is part of the ledger's chain.
    let started = &statement.sessions[0].started;
    assert_eq!(started.len(), 10);
    assert!(page.about.rows.iter().any(|(_, value)| value.starts_with(started)));
}

/// Missing evidence is reported, and is not the same as consistent.
#[test]
fn missing_evidence_is_named() {
    for (file, expected) in [
        ("ledger.json", &["ledger file"][..]),
        ("plan.json", &["plan file"]),
        ("result.json", &["result", "report"]),
        ("history.jsonl", &["history", "report"]),
        ("samples.json", &["report"]),
        ("report.html", &["report"]),
        ("checkpoints", &["checkpoints"]),
    ] {
        let (_keep, out) = a_copy();
        let path = out.join(file);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
        let verdict = verify(&out).unwrap();
        assert_eq!(
            (verdict.conclusion(), missing(&verdict)),
            (Conclusion::Incomplete, expected.to_vec()),
            "{file}: {:#?}",
            verdict.checks
        );
        let (code, output) = program(&out, &["--json"]);
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (code, &object["consistent"], &object["complete"]),
            (Some(4), &json!(true), &json!(false)),
            "{file}"
        );
        let named =
            |unchecked: &Value| unchecked["missing"] == true && unchecked["name"] == expected[0];
        assert!(object["unchecked"].as_array().unwrap().iter().any(named), "{object:#}");
        assert!(
            String::from_utf8(output.stderr)
                .unwrap()
                .contains(&format!("evidence is missing: {}", expected.join(", ")))
        );
    }
    // Without weights, the checkpoint cannot be compared with them either.
    let (_keep, out) = a_copy();
    std::fs::remove_file(out.join("model/model.safetensors")).unwrap();
    let verdict = verify(&out.join("model")).unwrap();
    assert_eq!(
        (verdict.conclusion(), missing(&verdict)),
        (Conclusion::Incomplete, vec!["weights", "run"])
    );
    assert_eq!(failed(&verify(&out).unwrap()), ["checkpoints"]);
    // Other weights are not missing evidence but a contradiction.
    std::fs::write(out.join("model/other.safetensors"), "x").unwrap();
    assert_eq!(failed(&verify(&out.join("model")).unwrap()), ["weights"]);
}

/// Replaced weights with a matching hash in the statement are detected by the ledger or by the
/// result, each alone.
#[test]
fn replaced_weights_are_detected() {
    let flip = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(path, &bytes).unwrap();
        use sha2::{Digest, Sha256};
        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let edited = || {
        let (keep, out) = a_copy();
        let sum = flip(&out.join("model/model.safetensors"));
        let mut other = statement(&out);
        other["weights_sha256"][0][1] = json!(sum);
        std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
        std::fs::remove_dir_all(out.join("checkpoints")).unwrap();
        std::fs::remove_file(out.join("history.jsonl")).unwrap();
        std::fs::remove_file(out.join("report.html")).unwrap();
        (keep, out, sum)
    };
    let (_keep, out, sum) = edited();
    let verdict = verify(&out).unwrap();
    assert_eq!(failed(&verdict), ["ledger file", "result"], "{:#?}", verdict.checks);
    assert!(
        verdict
            .checks
            .iter()
            .any(|check| check.detail.contains("closes with the hash of another weights")),
        "{:#?}",
        verdict.checks
    );
    // The result changed as well, or removed: detected by the ledger's closing.
    let mut result: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    result["weights_sha256"][0][1] = json!(sum);
    std::fs::write(out.join("result.json"), result.to_string()).unwrap();
    assert_eq!(failed(&verify(&out).unwrap()), ["ledger file", "result"]);
    std::fs::remove_file(out.join("result.json")).unwrap();
    assert_eq!(failed(&verify(&out).unwrap()), ["ledger file"]);
    // The closing changed, without the hashes after it.
    let mut ledger: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("ledger.json")).unwrap()).unwrap();
    ledger["closing"]["weights_sha256"][0][1] = json!(sum);
    std::fs::write(out.join("ledger.json"), ledger.to_string()).unwrap();
    let verdict = verify(&out).unwrap();
    assert!(
        failed(&verdict) == ["ledger file"]
            && verdict.checks.iter().any(|check| check.detail.contains("an entry was changed"))
    );
    // The ledger removed: detected by the result.
    let (_keep, out, _) = edited();
    std::fs::remove_file(out.join("ledger.json")).unwrap();
    assert_eq!(failed(&verify(&out).unwrap()), ["result"]);
}

/// Files that are all rewritten are consistent without a key; a signature detects the change.
#[test]
fn a_signature_identifies_the_signer() {
    let (keep, out) = a_copy();
    let (key, stranger) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
    let path = out.join("model/privacy.json");
    let with = |key: &PublicKey| verify_signed(&out, Some(key)).unwrap();
    let verdict = with(&key.public());
    assert!(
        failed(&verdict) == ["signature"] && verdict.signer.is_none(),
        "a statement that is not signed"
    );
    let read = || muffle::Statement::of_run(&out).unwrap();
    let sign = |key: &SecretKey| {
        std::fs::write(signature::file(&path), key.sign(&read()).unwrap()).unwrap()
    };
    sign(&key);
    let verdict = with(&key.public());
    assert_eq!(
        (verdict.conclusion(), verdict.signer),
        (Conclusion::Consistent, Some(key.public().fingerprint()))
    );
    assert_eq!(failed(&with(&stranger.public())), ["signature"]);
    // The notation of the statement does not matter.
    std::fs::write(&path, statement(&out).to_string()).unwrap();
    assert!(with(&key.public()).consistent());
    // Any change and any damage is detected.
    let mut other = statement(&out);
    other["config_sha256"] = json!("0".repeat(64));
    std::fs::write(&path, other.to_string()).unwrap();
    assert!(failed(&with(&key.public())).contains(&"signature"));
    copy(&RUN.1, &out);
    let text = std::fs::read_to_string(signature::file(&path)).unwrap();
    let last = if text.ends_with("0\n") { "1\n" } else { "0\n" };
    for damaged in [
        "",
        "x",
        &text[..60],
        &format!("{}{last}", &text[..text.len() - 2]),
        &text.replace(&key.public().fingerprint(), &stranger.public().fingerprint()),
    ] {
        std::fs::write(signature::file(&path), damaged).unwrap();
        assert_eq!(failed(&with(&key.public())), ["signature"], "{damaged}");
    }
    // Rewritten completely with weights of another run: consistent, but not signed by the key.
    let (_other, theirs) = trained("");
    copy(&theirs, &out);
    assert_eq!(verify(&out).unwrap().conclusion(), Conclusion::Consistent);
    std::fs::write(signature::file(&path), &text).unwrap();
    assert_eq!(failed(&with(&key.public())), ["signature"]);
    drop(keep);
}

/// The commands keygen, sign and verify --key.
#[test]
fn keys_and_signatures_of_the_program() {
    let (keep, out) = a_copy();
    let key = keep.path().join("signing.key");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_muffle"))
            .args(arguments)
            .current_dir(keep.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text, stderr) = run(&["keygen", "signing.key", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let made: Value = serde_json::from_str(&text).unwrap();
    let (code, _, stderr) = run(&["keygen", "signing.key"]);
    assert!(code == Some(2) && stderr.contains("not overwritten"), "{stderr}");
    let (code, text, _) = run(&["verify", "run", "--key", "signing.key.pub"]);
    assert!(
        code == Some(1) && text.contains("✗ signature") && text.contains("is not signed"),
        "{text}"
    );
    let (code, text, stderr) = run(&["sign", "run", "--key", "signing.key", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["signer"], made["fingerprint"]);
    let (code, text, _) = run(&["verify", "run", "--key", "signing.key.pub", "--json"]);
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &object["signed"], &object["signer"]),
        (Some(0), &json!(true), &made["fingerprint"])
    );
    let (_, text, _) = run(&["verify", "run", "--json"]);
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&object["signed"], &object["signer"]), (&json!(false), &Value::Null));
    // The secret key does not verify, a public one does not sign, and neither is shown.
    let secret = std::fs::read_to_string(&key).unwrap();
    for arguments in
        [["verify", "run", "--key", "signing.key"], ["sign", "run", "--key", "signing.key.pub"]]
    {
        let (code, text, stderr) = run(&arguments);
        assert!(
            code == Some(2) && !stderr.contains(&secret[30..50]) && text.is_empty(),
            "{stderr}"
        );
    }
    // An inconsistent statement is not signed.
    let mut other = statement(&out);
    other["epsilon"] = json!(1.0);
    std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
    std::fs::remove_file(out.join("model/privacy.json.sig")).unwrap();
    let (code, _, stderr) = run(&["sign", "run", "--key", "signing.key"]);
    assert!(
        code == Some(1)
            && stderr.contains("inconsistent")
            && !out.join("model/privacy.json.sig").exists(),
        "{stderr}"
    );
}

fn program(path: &Path, more: &[&str]) -> (Option<i32>, Output) {
    let output = Command::new(env!("CARGO_BIN_EXE_muffle"))
        .arg("verify")
        .arg(path)
        .args(more)
        .output()
        .unwrap();
    (output.status.code(), output)
}

#[test]
fn verify_prints_text_json_and_exit_codes() {
    let (_keep, out) = a_copy();
    let (code, output) = program(&out, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        (code, text.matches('✓').count(), text.matches('✗').count()),
        (Some(0), 19, 0),
        "{text}"
    );
    assert!(text.contains("\nConsistent: ε = 8.000 at δ = ") && output.stderr.is_empty(), "{text}");
    let stated = statement(&out);
    let head = format!(
        "run {}, 1 sessions, ledger head {}",
        stated["run_id"].as_str().unwrap(),
        stated["ledger_head"].as_str().unwrap()
    );
    assert!(
        text.contains(&head)
            && text.contains("older copy")
            && text.contains("restored to an older state"),
        "{text}"
    );
    let object: Value = serde_json::from_slice(&program(&out, &["--json"]).1.stdout).unwrap();
    assert_eq!(
        (&object["consistent"], &object["complete"], object["checks"].as_array().unwrap().len()),
        (&json!(true), &json!(true), 19)
    );
    assert_eq!(
        (&object["run_id"], &object["sessions"], &object["ledger_head"]),
        (&stated["run_id"], &json!(1), &stated["ledger_head"])
    );
    assert!(
        object["unchecked"]
            .as_array()
            .unwrap()
            .iter()
            .all(|unchecked| unchecked["missing"] == false && unchecked["detail"].is_string())
    );
    assert_eq!(
        (&object["epsilon"], &object["delta"]),
        (&object["epsilon_stated"], &statement(&out)["delta"])
    );
    assert!(
        object["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["passed"] == json!(true) && check["name"].is_string())
    );
    // A failed check.
    let mut other = statement(&out);
    other["epsilon"] = json!(1.0);
    std::fs::write(out.join("model/privacy.json"), other.to_string()).unwrap();
    let (code, output) = program(&out.join("model/privacy.json"), &["--json"]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (code, &object["consistent"], &object["private"], &object["epsilon_stated"]),
        (Some(1), &json!(false), &json!(false), &json!(1.0))
    );
    assert!(object["epsilon"].as_f64().unwrap() > 7.9);
    let (code, output) = program(&out, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        code == Some(1)
            && text.contains("✗ epsilon")
            && text.contains("\nInconsistent. Do not rely on this statement"),
        "{text}"
    );
    assert!(String::from_utf8(output.stderr).unwrap().ends_with(" of 19 checks failed\n"));
    let help = Command::new(env!("CARGO_BIN_EXE_muffle"))
        .args(["verify", "--help"])
        .output()
        .unwrap()
        .stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(
        help.contains("Examples:\n  muffle verify muffle-run")
            && help.replace('\n', " ").contains("A consistent statement may still be false")
            && help.replace('\n', " ").contains("4 no check failed"),
        "{help}"
    );
    // Nothing to verify.
    std::fs::remove_file(out.join("model/privacy.json")).unwrap();
    for path in
        [out.clone(), out.join("model"), out.join("nowhere"), out.join("nowhere/privacy.json")]
    {
        let (code, output) = program(&path, &["--json"]);
        assert!(code == Some(2) && output.stdout.is_empty(), "{}", path.display());
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
    }
}
