//! Metrics equal those of scikit-learn (`peers/golden_evaluation.py`).

#![allow(clippy::unwrap_used)]

use muffle::evaluate::metrics::{ClassTally, LabelTally, ValueTally};
use serde_json::Value;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/evaluation.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn cases(golden: &Value, kind: &str) -> Vec<Value> {
    let cases = golden[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Compares a figure with the one of a case, by name.
fn compare(case: &Value, name: &str, figure: Option<f64>) {
    let (figure, expected) = (figure.unwrap(), case[name].as_f64().unwrap());
    // Targets of 10⁶ are rounded to 10⁻¹⁰, so that R² has ten correct digits.
    assert!((figure - expected).abs() < 1e-10, "{} {name}: {figure} {expected}", case["name"]);
}

#[test]
fn metrics_of_classes_are_those_of_scikit_learn() {
    for case in cases(&golden(), "classes") {
        let rows = case["probabilities"].as_array().unwrap();
        let classes = numbers(&rows[0]).len();
        let mut tally = ClassTally::new(classes);
        for (target, row) in case["targets"].as_array().unwrap().iter().zip(rows) {
            tally.add(target.as_u64().unwrap() as u32, &numbers(row));
        }
        compare(&case, "accuracy", tally.accuracy());
        compare(&case, "macro_f1", tally.macro_f1());
        compare(&case, "auroc", tally.auroc());
        let labels: Vec<String> = (0..classes).map(|class| class.to_string()).collect();
        let matrix = tally.confusion_matrix(&labels).unwrap();
        assert_eq!(serde_json::to_value(&matrix.counts).unwrap(), case["confusion_matrix"]);
    }
}

#[test]
fn metrics_of_labels_are_those_of_scikit_learn() {
    for case in cases(&golden(), "labels") {
        let rows = case["probabilities"].as_array().unwrap();
        let mut tally = LabelTally::new(numbers(&rows[0]).len());
        for (target, row) in case["targets"].as_array().unwrap().iter().zip(rows) {
            let marks = numbers(target).into_iter().zip(0u32..);
            let labels: Vec<u32> =
                marks.filter(|(mark, _)| *mark == 1.0).map(|(_, label)| label).collect();
            tally.add(&labels, &numbers(row));
        }
        compare(&case, "micro_f1", Some(tally.micro_f1()));
        compare(&case, "macro_f1", tally.macro_f1());
        compare(&case, "auroc", tally.auroc());
    }
}

#[test]
fn metrics_of_values_are_those_of_scikit_learn() {
    for case in cases(&golden(), "values") {
        let mut tally = ValueTally::default();
        let predictions = numbers(&case["predictions"]);
        for (target, predicted) in numbers(&case["targets"]).into_iter().zip(predictions) {
            tally.add(target, predicted);
        }
        compare(&case, "rmse", tally.rmse());
        compare(&case, "mae", tally.mae());
        compare(&case, "r2", tally.r2());
    }
}
