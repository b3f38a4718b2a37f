//! Logits, losses and per-example gradients of tiny random models equal those of `transformers`
//! (files made by `peers/golden_models.py`).

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{Engine, Example, Input, Target};
use model::Checkpoint;
use protocol::{Blocks, Geometry, Params};
use safetensors::SafeTensors;
use std::path::PathBuf;
use support::{close, run};

/// Returns the directory of a model of `peers/golden_models.py`.
fn directory(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden")).join(name)
}

/// Expected values of a model, as a safetensors file.
struct Golden(Vec<u8>);

impl Golden {
    fn open(name: &str) -> Self {
        Self(std::fs::read(directory(name).join("golden.safetensors")).unwrap())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let all = SafeTensors::deserialize(&self.0).unwrap();
        all.tensor(name)
            .unwrap()
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        let all = SafeTensors::deserialize(&self.0).unwrap();
        all.tensor(name)
            .unwrap()
            .data()
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    fn examples(&self) -> Vec<Example> {
        let (ids, lengths) = (self.integers("ids"), self.integers("lengths"));
        let mut start = 0;
        let slices = lengths.iter().map(|&length| {
            start += length as usize;
            start - length as usize..start
        });
        let target = |id: i64| u32::try_from(id).unwrap_or(Target::NONE);
        let example = |(index, range): (usize, std::ops::Range<usize>)| {
            let tokens = ids[range.clone()].iter().map(|&id| id as u32).collect();
            if self.has("labels") {
                Example::labelled(tokens, self.integers("labels")[index] as u32)
            } else {
                let targets =
                    self.integers("targets")[range].iter().map(|&id| target(id)).collect();
                Example::new(Input::Tokens(tokens), Target::Next(targets))
            }
        };
        slices.enumerate().map(example).collect()
    }
}

fn open(name: &str) -> (Network, Params) {
    let checkpoint = Checkpoint::open(directory(name), None, 0).unwrap();
    Network::new(checkpoint.graph, checkpoint.values, |_| true).unwrap()
}

/// Returns the example with a target for every token, so that all logits are computed.
fn with_all_targets(example: &Example) -> Example {
    let mut part = example.parts()[0].clone();
    if let Target::Next(targets) = &mut part.target {
        targets.fill(0);
    }
    part.into()
}

/// Compares a model with its expected values.
fn check(name: &str) {
    let golden = Golden::open(name);
    let (mut network, params) = open(name);
    let examples = golden.examples();
    let every: Vec<Example> = examples.iter().map(with_all_targets).collect();
    let logits = network.logits(&params, &every.iter().collect::<Vec<_>>()).unwrap();
    let expected = golden.floats("logits");
    assert_eq!(logits.len(), expected.len(), "{name}");
    let worst = logits.iter().zip(&expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    let scale = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(
        worst < 2e-5 * (1.0 + scale),
        "{name}: logits differ by {worst}, the largest is {scale}"
    );

    let references: Vec<&Example> = examples.iter().collect();
    let blocks = Blocks::each(params.len());
    let outcome = run(&mut network, &params, &references, &Geometry::Identity, &blocks, |_, _| 0.0);
    let specs = network.trainable();
    for (example, loss) in golden.floats("losses").into_iter().enumerate() {
        assert!(
            close(outcome.losses[example], f64::from(loss), 1e-5, 1e-5),
            "{name}: loss {example}: {} {loss}",
            outcome.losses[example]
        );
        for (k, spec) in specs.iter().enumerate() {
            let square = f64::from(golden.floats(&format!("gradnorm2.{example}.{}", spec.name))[0]);
            let norm = outcome.norms[example][k];
            assert!(
                close(norm, square.sqrt(), 1e-3, 1e-5),
                "{name}: norm of {} in {example}: {norm} {}",
                spec.name,
                square.sqrt()
            );
        }
        if golden.has(&format!("grad.{example}.{}", specs[0].name)) {
            let only =
                run(&mut network, &params, &references, &Geometry::Identity, &blocks, |i, _| {
                    f64::from(u8::from(i == example))
                });
            for (k, spec) in specs.iter().enumerate() {
                let expected = golden.floats(&format!("grad.{example}.{}", spec.name));
                let scale = expected.iter().fold(1e-2f32, |m, x| m.max(x.abs()));
                for (got, expected) in only.sum[k].data().iter().zip(&expected) {
                    assert!(
                        (got - expected).abs() < 1e-4 * scale,
                        "{name}: gradient of {} in {example}: {got} {expected}",
                        spec.name
                    );
                }
            }
        }
    }
    if golden.has("greedy") {
        let Input::Tokens(tokens) = &examples[0].parts()[0].input else { unreachable!() };
        let mut tokens = tokens[..2].to_vec();
        for expected in golden.integers("greedy") {
            let mut query = Example::continuation(tokens.clone(), tokens.len()).parts()[0].clone();
            let Target::Next(targets) = &mut query.target else { unreachable!() };
            *targets.last_mut().unwrap() = 0;
            let query = query.into();
            let logits = network.logits(&params, &[&query]).unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(best as i64, expected, "{name}: greedy text");
            tokens.push(best as u32);
        }
    }
}

#[test]
fn gpt2_equals_transformers() {
    ["gpt2-tied", "gpt2-untied", "gpt2-f16"].into_iter().for_each(check);
}

#[test]
fn llama_equals_transformers() {
    ["llama-gqa", "llama-tied", "llama-rope3"].into_iter().for_each(check);
}

#[test]
fn bert_equals_transformers() {
    check("bert-cls");
}
