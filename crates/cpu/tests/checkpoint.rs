//! Saving and loading of checkpoints, with low-rank adapters, padding tokens and untied heads.

#![allow(clippy::unwrap_used)]

use cpu::Cpu;
use engine::{Engine, Example, Target};
use model::hf::{Dtype, ExistingModel, SaveOptions};
use model::{Checkpoint, Lora, Network};
use protocol::{Params, Role, Trainable};
use std::path::PathBuf;

/// Returns the directory of a model of `peers/golden_models.py`.
fn directory(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden")).join(name)
}

/// Returns the path of a temporary directory.
fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("muffle-checkpoint-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn lora() -> Option<Lora> {
    Some(Lora { rank: 3, alpha: 6.0, on: Vec::new() })
}

/// Returns the logits of every token of a text, or of its class.
fn logits(network: &mut dyn Network, params: &Params, name: &str) -> Vec<f32> {
    let tokens = vec![3, 1, 4, 1, 5, 9];
    let mut example = if name.starts_with("bert") {
        Example::labelled(tokens, 0)
    } else {
        Example::continuation(tokens, 0)
    };
    if let Target::Next(targets) = &mut example.parts_mut()[0].target {
        targets.fill(0);
    }
    network.logits(params, &[&example]).unwrap()
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance)
}

const ALL: [&str; 7] =
    ["gpt2-tied", "gpt2-untied", "gpt2-f16", "llama-gqa", "llama-tied", "llama-rope3", "bert-cls"];

#[test]
fn saved_models_are_loaded() {
    for name in ALL {
        let (config, mut network, params) =
            Checkpoint::open(directory(name), None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        let before = logits(&mut network, &params, name);
        let dir = scratch(name);
        Checkpoint::save(&dir, &config, &network, &params, &SaveOptions::default()).unwrap();
        let (_, mut network, again) =
            Checkpoint::open(&dir, None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        assert_eq!(params, again, "{name}");
        assert_eq!(before, logits(&mut network, &again, name), "{name}");
        // An existing model is replaced only on request, here with another type and with shards.
        assert!(
            Checkpoint::save(&dir, &config, &network, &params, &SaveOptions::default()).is_err()
        );
        let options = SaveOptions {
            dtype: Dtype::Bf16,
            shard_bytes: 4000,
            existing: ExistingModel::Replace,
            ..SaveOptions::default()
        };
        Checkpoint::save(&dir, &config, &network, &params, &options).unwrap();
        let (_, mut network, again) =
            Checkpoint::open(&dir, None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        assert!(close(&before, &logits(&mut network, &again, name), 1.0), "{name}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn adapters_start_without_effect_and_are_merged() {
    for name in ALL {
        let (_, mut network, params) =
            Checkpoint::open(directory(name), None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        let before = logits(&mut network, &params, name);
        let (config, mut network, mut params) = Checkpoint::open(directory(name), lora(), 7)
            .unwrap()
            .network(&Cpu, |name| name.contains(".lora_"))
            .unwrap();
        let is_left = |tensor: &Trainable| matches!(tensor.role, Role::Left(_));
        assert!(network.trainable().iter().any(is_left), "{name}");
        assert!(
            close(&before, &logits(&mut network, &params, name), 1e-3),
            "{name}: initial adapters"
        );
        params.iter_mut().for_each(|tensor| {
            tensor
                .data_mut()
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x += 0.05 * ((i % 7) as f32 - 3.0))
        });
        let after = logits(&mut network, &params, name);
        assert!(!close(&before, &after, 1e-2), "{name}: changed adapters must have an effect");
        let dir = scratch(&format!("lora-{name}"));
        Checkpoint::save(&dir, &config, &network, &params, &SaveOptions::default()).unwrap();
        let (_, mut merged, all) =
            Checkpoint::open(&dir, None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        assert!(close(&after, &logits(&mut merged, &all, name), 1e-3), "{name}: merged");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// Spectral initialization does not change the model; it moves the largest singular values of the
/// weights to the adapters.
#[test]
fn spectral_adapters_take_the_largest_singular_values() {
    for name in ALL {
        let (_, mut plain, params) =
            Checkpoint::open(directory(name), None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        let before = logits(&mut plain, &params, name);
        let checkpoint =
            Checkpoint::open(directory(name), lora(), 0).unwrap().with_spectral_adapters().unwrap();
        let weights: Vec<(String, Vec<f32>)> = (checkpoint.graph.adapters().iter())
            .map(|adapter| {
                let weight = adapter.weight.index();
                (
                    checkpoint.graph.params()[weight].name.clone(),
                    tensor::linalg::svd(&checkpoint.values[weight]).unwrap().1,
                )
            })
            .collect();
        let (_, mut network, adapters) =
            checkpoint.network(&Cpu, |name| name.contains(".lora_")).unwrap();
        assert!(close(&before, &logits(&mut network, &adapters, name), 2e-3), "{name}");
        for (name, remaining) in weights {
            let tensors = plain.tensors(&params);
            let (_, original) = tensors.iter().find(|(known, _)| *known == name).unwrap();
            let (_, all, _) = tensor::linalg::svd(original).unwrap();
            // With rank 3, the largest remaining singular value was the fourth.
            assert!(
                (remaining[0] - all.get(3).copied().unwrap_or(0.0)).abs() < 1e-3 * all[0],
                "{name}: {} {:?}",
                remaining[0],
                all
            );
        }
    }
}

#[test]
fn the_rows_of_a_pad_token_are_means() {
    for (name, lora) in [
        ("gpt2-tied", None),
        ("gpt2-untied", None),
        ("llama-gqa", None),
        ("bert-cls", None),
        ("gpt2-untied", lora()),
    ] {
        let open = || {
            let mut checkpoint = Checkpoint::open(directory(name), lora.clone(), 0).unwrap();
            // Adapters that are larger than their initial values.
            for (spec, value) in checkpoint.graph.params().iter().zip(&mut checkpoint.values) {
                if spec.name.contains(".lora_") {
                    value.data_mut().iter_mut().for_each(|x| *x *= 20.0);
                }
            }
            checkpoint
        };
        let (plain, padded) = (open(), open().with_pad_token());
        let mut tables = 0;
        for (old, new) in plain.values.iter().zip(&padded.values) {
            if old.shape() == new.shape() {
                assert_eq!(old, new);
                continue;
            }
            tables += 1;
            let (rows, cols) = (old.rows(), old.cols());
            assert_eq!(new.shape(), [rows + 1, cols]);
            assert_eq!(new.data()[..rows * cols], *old.data());
            for j in 0..cols {
                let mean = (0..rows).map(|i| f64::from(old.data()[i * cols + j])).sum::<f64>()
                    / rows as f64;
                let new = f64::from(new.data()[rows * cols + j]);
                assert!((new - mean).abs() < 1e-6);
            }
        }
        assert!(tables >= 1);
        let (_, mut network, params) = plain.network(&Cpu, |_| true).unwrap();
        let before = logits(&mut network, &params, name);
        let (_, mut network, params) = padded.network(&Cpu, |_| true).unwrap();
        let after = logits(&mut network, &params, name);
        let (old, new) = (before.len() / 6, after.len() / 6);
        if !name.starts_with("bert") {
            assert_eq!(new, old + 1);
            for t in 0..6 {
                let (before, after) =
                    (&before[t * old..(t + 1) * old], &after[t * new..(t + 1) * new]);
                assert!(close(before, &after[..old], 1e-5));
                let mean = before.iter().sum::<f32>() / old as f32;
                assert!((after[old] - mean).abs() < 1e-4, "{name}: {} {mean}", after[old]);
            }
        }
    }
}

#[test]
fn an_untied_head_starts_as_the_table() {
    for name in ["gpt2-tied", "gpt2-untied", "llama-gqa", "bert-cls"] {
        let (_, mut tied, params) =
            Checkpoint::open(directory(name), None, 0).unwrap().network(&Cpu, |_| true).unwrap();
        let (_, mut untied, untied_params) = Checkpoint::open(directory(name), None, 0)
            .unwrap()
            .with_untied_head()
            .network(&Cpu, |_| true)
            .unwrap();
        assert!(
            close(
                &logits(&mut tied, &params, name),
                &logits(&mut untied, &untied_params, name),
                1e-6
            ),
            "{name}"
        );
        let tensors = untied.tensors(&untied_params);
        let heads = tensors.iter().filter(|(name, _)| *name == "lm_head.weight").count();
        assert_eq!(heads, usize::from(name != "bert-cls"), "{name}");
        let tied_before = name == "gpt2-tied";
        assert_eq!(untied_params.len(), params.len() + usize::from(tied_before), "{name}");
    }
}

#[test]
fn a_missing_classifier_is_initialized_and_reported() {
    let (config, network, params) =
        Checkpoint::open(directory("bert-cls"), None, 0).unwrap().network(&Cpu, |_| true).unwrap();
    let dir = scratch("headless");
    let all = network.tensors(&params);
    let tensors: Vec<_> = all
        .iter()
        .filter(|(name, _)| !name.starts_with("classifier"))
        .map(|(name, value)| (*name, &**value))
        .collect();
    model::hf::save(&dir, &config, &tensors, &SaveOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(&dir, None, 3).unwrap();
    assert_eq!(checkpoint.initialized, ["classifier.weight", "classifier.bias"]);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Encoders are often saved without pooler and head; both are new then, and others are not.
#[test]
fn an_encoder_without_pooler_gets_a_new_one() {
    let dir = scratch("no-pooler");
    let whole = Checkpoint::open(directory("bert-cls"), None, 0).unwrap();
    let tensors: Vec<(&str, &tensor::Array)> = whole
        .graph
        .params()
        .iter()
        .map(|spec| spec.name.as_str())
        .zip(&whole.values)
        .filter(|(name, _)| !model::is_head(name))
        .map(|(name, value)| (name.strip_prefix("bert.").unwrap(), value))
        .collect();
    model::hf::save(&dir, &whole.config, &tensors, &SaveOptions::default()).unwrap();
    let opened = Checkpoint::open(&dir, None, 7).unwrap();
    assert_eq!(
        opened.initialized,
        [
            "bert.pooler.dense.weight",
            "bert.pooler.dense.bias",
            "classifier.weight",
            "classifier.bias"
        ]
    );
    let spec = |index: usize| opened.graph.params()[index].name.as_str();
    for (index, (new, old)) in opened.values.iter().zip(&whole.values).enumerate() {
        assert_eq!(new == old, !model::is_head(spec(index)), "{}", spec(index));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn pickled_weights_are_named_with_what_to_do() {
    let dir = scratch("pickled");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(directory("bert-cls").join("config.json"), dir.join("config.json")).unwrap();
    std::fs::write(dir.join("pytorch_model.bin"), "x").unwrap();
    let message = Checkpoint::open(&dir, None, 0).unwrap_err().to_string();
    assert!(
        message.contains("expected model.safetensors, got pytorch_model.bin")
            && message.contains("save_pretrained"),
        "{message}"
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
