//! Files beside the weights: settings of tokenizer and generation, model card, adapters for PEFT.

#![allow(clippy::unwrap_used)]

use model::hf::Weights;
use model::{Checkpoint, hf};
use muffle::config::{Auto, Config, Publicity};
use muffle::load::corpus;
use muffle::load::data::Split;
use muffle::run::{Silent, train};
use muffle::verify::verify;
use serde_json::Value;
use std::path::Path;
use tensor::Array;
use tensor::matmul::product;

/// Four steps on a few rows of the embedded corpus, in a folder.
fn config(folder: &Path, changes: &[&str]) -> Config {
    let pairs = |split, count| {
        let file = folder.join(format!("{split:?}.txt"));
        let line = |pair: corpus::CorpusPair| format!("{}||{}\n", pair.source, pair.target);
        std::fs::write(
            &file,
            corpus::pairs(split, count).into_iter().map(line).collect::<String>(),
        )
        .unwrap();
        file
    };
    let mut config = Config::default();
    config.privacy.epsilon = Auto::Value(8.0);
    config.evaluation.beams = 1;
    config.data.train = pairs(Split::Train, 60).to_string_lossy().into_owned();
    config.data.validation = Some(pairs(Split::Validation, 10));
    config.data.evaluation_data = Auto::Value(Publicity::Public);
    config.training.steps = Auto::Value(4);
    config.training.lot_size = Auto::Value(20);
    config.evaluation.samples = 0;
    changes.iter().fold(config, |config, change| config.with(change).unwrap())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A small GPT-2 with a tokenizer, as one would download it.
fn base_model(folder: &Path) -> String {
    let texts: Vec<String> =
        corpus::pairs(Split::Validation, 200).into_iter().map(|pair| pair.target).collect();
    let tokenizer =
        text::Tokenizer::train(texts.iter().map(String::as_str), 300, &["<bos>", "<eos>"]).unwrap();
    let mut architecture = model::Preset::Tiny.architecture();
    let hf::Architecture::Gpt2(gpt2) = &mut architecture else { panic!("GPT-2") };
    (gpt2.vocab, gpt2.width, gpt2.inner) = (tokenizer.vocab_size(), 16, 32);
    let mut config = hf::Config::new(architecture);
    config.other_keys.insert("bos_token_id".into(), 0.into());
    config.other_keys.insert("eos_token_id".into(), 1.into());
    let new = Checkpoint::new(config, None, 3).unwrap();
    let tensors: Vec<(&str, &Array)> =
        new.graph.params().iter().map(|spec| spec.name.as_str()).zip(&new.values).collect();
    let dir = folder.join("base");
    hf::save(&dir, &new.config, &tensors, &hf::SaveOptions::default()).unwrap();
    tokenizer.save(&dir.join("tokenizer.json")).unwrap();
    dir.to_string_lossy().into_owned()
}

#[test]
fn a_model_with_its_own_tokenizer_names_its_special_tokens() {
    let place = tempfile::tempdir().unwrap();
    let source = format!("model.source={:?}", base_model(place.path()));
    let out = place.path().join("run");
    let outcome = train(&config(place.path(), &[&source]), &out, &mut Silent).unwrap();
    let tokenizer = json(&out.join("model/tokenizer_config.json"));
    assert_eq!(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(
        (&tokenizer["bos_token"], &tokenizer["eos_token"]),
        (&"<bos>".into(), &"<eos>".into())
    );
    assert_eq!(tokenizer["model_max_length"], 128);
    let generation = json(&out.join("model/generation_config.json"));
    assert_eq!((&generation["bos_token_id"], &generation["eos_token_id"]), (&0.into(), &1.into()));
    assert_eq!(generation["pad_token_id"], 1);
    let card = std::fs::read_to_string(out.join("model/README.md")).unwrap();
    assert!(card.starts_with("---\nlibrary_name: transformers\npipeline_tag: text-generation\n"));
    // A local folder is not a name on the hub.
    assert!(!card.contains("base_model") && !card.contains("peft"), "{card}");
    for sentence in outcome.statement.words().iter().chain(&outcome.statement.covered()) {
        assert!(card.contains(sentence.as_str()), "{sentence}");
    }
    assert!(card.contains("**ε = 8.000** at δ = "), "{card}");
}

#[test]
fn the_card_of_a_model_without_privacy_says_so() {
    let place = tempfile::tempdir().unwrap();
    let source = format!("model.source={:?}", base_model(place.path()));
    let config = config(place.path(), &[&source]).with_optimizer("adam").unwrap();
    train(&config, &place.path().join("run"), &mut Silent).unwrap();
    let card = std::fs::read_to_string(place.path().join("run/model/README.md")).unwrap();
    assert!(card.contains("**no privacy guarantee**") && !card.contains("**ε"), "{card}");
}

/// The original weight plus α/r · lora_B lora_A of the adapter is the saved, merged weight.
#[test]
fn an_adapter_and_the_original_model_are_the_saved_model() {
    let place = tempfile::tempdir().unwrap();
    let base = base_model(place.path());
    for (index, init) in ["balanced", "spectral"].into_iter().enumerate() {
        let (source, init) =
            (format!("model.source={base:?}"), format!("model.lora_init={init:?}"));
        let changes = [
            &source,
            "model.lora_rank=3",
            "model.lora_alpha=5",
            "model.also_train=[\"ln_f\"]",
            &init,
        ];
        let out = place.path().join(format!("run{index}"));
        train(&config(place.path(), &changes), &out, &mut Silent).unwrap();
        let folder = out.join("model/adapter");
        let about = json(&folder.join("adapter_config.json"));
        assert_eq!((&about["r"], &about["fan_in_fan_out"]), (&6.into(), &true.into()));
        assert_eq!(about["modules_to_save"], serde_json::json!(["transformer.ln_f"]));
        let scale = about["lora_alpha"].as_f64().unwrap() / 6.0;
        assert!((scale - 5.0 / 3.0).abs() < 1e-6, "{scale}");
        let adapter = Weights::open(folder.join("adapter_model.safetensors")).unwrap();
        let (original, merged) =
            (Weights::open(&base).unwrap(), Weights::open(out.join("model")).unwrap());
        let load = |weights: &Weights, name: &str| {
            weights.load(name, weights.shape(name).unwrap()).unwrap()
        };
        let targets: Vec<String> = about["target_modules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| target.as_str().unwrap().into())
            .collect();
        // Four matrices in each of two layers, and the head.
        assert_eq!(targets.len(), 9, "{targets:?}");
        let mut changed = 0.0f32;
        for target in &targets {
            let [a, b] = ["lora_A", "lora_B"].map(|factor| {
                load(&adapter, &format!("base_model.model.{target}.{factor}.weight"))
            });
            let update = product(b.view(), a.view());
            let name = format!("{target}.weight");
            let (before, after) = (load(&original, &name), load(&merged, &name));
            // GPT-2 stores the weights of its layers as inputs × outputs, the head as its transpose.
            let transposed = target != "lm_head";
            let (outputs, inputs) = (update.rows(), update.cols());
            for row in 0..outputs {
                for column in 0..inputs {
                    let at =
                        if transposed { column * outputs + row } else { row * inputs + column };
                    let change = scale as f32 * update.data()[row * inputs + column];
                    let error = before.data()[at] + change - after.data()[at];
                    assert!(error.abs() < 2e-6, "{target} {row} {column}: {error}");
                    changed = changed.max(change.abs());
                }
            }
        }
        assert!(changed > 1e-4, "{changed}");
        let trained = load(&adapter, "base_model.model.transformer.ln_f.weight");
        assert_eq!(trained, load(&merged, "transformer.ln_f.weight"));
        assert_ne!(trained, load(&original, "transformer.ln_f.weight"));

        let consistent = || verify(&out).unwrap().consistent();
        assert!(consistent());
        let weights = folder.join("adapter_model.safetensors");
        let mut bytes = std::fs::read(&weights).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&weights, bytes).unwrap();
        assert!(!consistent(), "an altered adapter");
        // Without the adapter, the model is complete.
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(consistent());
    }
}

#[test]
fn an_adapter_that_the_statement_does_not_list_is_inconsistent() {
    let place = tempfile::tempdir().unwrap();
    let source = format!("model.source={:?}", base_model(place.path()));
    let out = place.path().join("run");
    train(&config(place.path(), &[&source]), &out, &mut Silent).unwrap();
    let folder = out.join("model/adapter");
    assert!(!folder.exists() && verify(&out).unwrap().consistent());
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(out.join("model/model.safetensors"), folder.join("adapter_model.safetensors"))
        .unwrap();
    assert!(!verify(&out).unwrap().consistent());
}

#[test]
fn a_rank_above_the_width_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let source = format!("model.source={:?}", base_model(place.path()));
    let refusal = |rank: &str| {
        let config = config(place.path(), &[&source, rank]);
        train(&config, &place.path().join("run"), &mut Silent).unwrap_err().to_string()
    };
    let message = refusal("model.lora_rank=17");
    assert!(
        message.contains("model.lora_rank: expected at most 16, the smaller side of"),
        "{message}"
    );
}
