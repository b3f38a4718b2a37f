//! Runs in a folder on an engine and records of the caller.

#![allow(clippy::unwrap_used)]

use cpu::Network;
use curator::Records;
use engine::Example;
use model::{Mlp, activation::Activation};
use muffle::config::ExternalModel;
use muffle::run::result::Metrics;
use muffle::run::{EngineRun, RunInputs};
use muffle::verify::verify;
use muffle::{Config, Error};
use protocol::Params;
use std::path::Path;

fn config() -> Config {
    let mut config = Config::default();
    config.model.source = ExternalModel::New.source().into();
    config.data.train = "external".into();
    for change in [
        "privacy.epsilon=3.0",
        "training.steps=6",
        "training.lot_size=40",
        "training.checkpoint_every=2",
        "optimizer.name=\"dp-adam\"",
        "evaluation.samples=0",
    ] {
        config = config.with(change).unwrap();
    }
    config
}

fn network() -> (Network, Params) {
    let mlp = Mlp { input: 2, hidden: vec![8], classes: 2, activation: Activation::Tanh };
    let graph = mlp.graph();
    let values = graph.init(0).unwrap();
    Network::new(graph, values, |_| true).unwrap()
}

fn records() -> Records {
    let example = |i: u32| Example::features(vec![i as f32 / 200.0, 1.0], u32::from(i < 100));
    Records::new((0..200).map(example).collect())
}

fn inputs(records: &str) -> impl Fn(&Config) -> Result<RunInputs, Error> {
    let inputs = RunInputs { records: records.into(), frozen: 7 };
    move |_| Ok(inputs.clone())
}

fn create(out: &Path, config: &Config) -> Result<EngineRun<Network>, Error> {
    let (network, params) = network();
    EngineRun::create(config, network, params, records(), out, &inputs("a"))
}

fn resume(out: &Path, data: &str) -> Result<EngineRun<Network>, Error> {
    let (network, params) = network();
    EngineRun::resume(out, network, params, records(), &inputs(data))
}

fn finish(run: EngineRun<Network>) -> muffle::run::result::RunResult {
    let model = run.model_folder();
    std::fs::create_dir_all(&model).unwrap();
    std::fs::write(model.join("model.pt"), "weights").unwrap();
    run.finish(Metrics { accuracy: Some(0.5), ..Metrics::default() }).unwrap()
}

/// Names of the checks that a folder fails, and whether evidence is missing.
fn failures(out: &Path) -> (Vec<String>, bool) {
    let verdict = verify(out).unwrap();
    let failed = verdict.checks.iter().filter(|check| !check.passed);
    (failed.map(|check| check.name.to_string()).collect(), verdict.missing().next().is_some())
}

#[test]
fn a_run_is_resumed_and_verified() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let mut run = create(&out, &config()).unwrap();
    run.record(&Metrics { accuracy: Some(0.25), ..Metrics::default() }).unwrap();
    assert!(run.step().unwrap().is_some() && run.step().unwrap().is_some());
    run.step().unwrap();
    // Killed after the third step: the last checkpoint is of the second one.
    drop(run);
    assert!(create(&out, &config()).unwrap_err().to_string().contains("muffle resume"));
    let refused = resume(&out, "b").unwrap_err().to_string();
    assert!(refused.contains("not those that the run started with"), "{refused}");
    let mut run = resume(&out, "a").unwrap();
    assert_eq!(run.session().steps(), 2);
    while run.step().unwrap().is_some() {}
    // The lost step stays charged and is not repeated.
    assert_eq!(run.session().steps(), 5);
    assert!(run.unchanged_tensors().is_empty());
    run.record(&Metrics { accuracy: Some(0.75), ..Metrics::default() }).unwrap();
    let result = finish(run);
    assert!(result.private && result.epsilon.0 <= 3.0 && result.sessions == 2);
    assert_eq!(failures(&out), (vec![], false));
    assert!(resume(&out, "a").unwrap_err().to_string().contains("complete"));
    std::fs::write(out.join("model/model.pt"), "others").unwrap();
    assert_eq!(failures(&out), (vec!["weights".to_string()], false));
}

#[test]
fn a_run_that_ends_early_charges_all_steps() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let mut run = create(&out, &config()).unwrap();
    run.step().unwrap();
    run.record(&Metrics::default()).unwrap();
    let planned = run.session().plan().price.unwrap().epsilon;
    let result = finish(run);
    assert_eq!((result.steps, result.epsilon.0), (1, planned));
    assert_eq!(failures(&out), (vec![], false));
}

#[test]
fn refused_runs_leave_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let (network, params) = network();
    let wide = Records::new(vec![Example::features(vec![0.0; 3], 0)]);
    let refused = EngineRun::create(&config(), network, params, wide, &out, &inputs("a"));
    assert!(refused.is_err() && !out.exists());
    let other = config().with("model.source=\"tiny\"").unwrap();
    assert!(create(&out, &other).unwrap_err().to_string().contains("external"));
    let mut run = create(&out, &config()).unwrap();
    run.step().unwrap();
    let refused = run.finish(Metrics::default()).unwrap_err().to_string();
    assert!(refused.contains("model"), "{refused}");
}
