//! Models from untrusted sources: weights, index, configuration, tokenizer, the hub's cache.

use super::done;
use crate::scratch::Scratch;
use crate::shape::shape;
use crate::target::ReadOutcome;
use muffle::hub::{Hub, NetworkAccess};
use muffle::model::hf::{self, Architecture, Dtype, Weights};
use muffle::model::{Checkpoint, Loss, NewHead};
use muffle::text::{SpecialTokens, Tokenizer};
use std::fs;
use std::io;

pub(crate) const WEIGHTS: &[&str] = &[
    "\"F32\"",
    "\"F16\"",
    "\"BF16\"",
    "\"F64\"",
    "\"I64\"",
    "\"F4\"",
    "\"BOOL\"",
    "\"dtype\":",
    "\"shape\":",
    "\"data_offsets\":",
    "[0,0]",
    "[]",
    "[4,3]",
    "\"__metadata__\":{}",
    "lm_head.weight",
    "transformer.wte.weight",
    "wte.weight",
    "bert.",
    "classifier.weight",
    "h.0.attn.bias",
    "model.",
];
pub(crate) const INDEX: &[&str] = &[
    "\"weight_map\":",
    "\"metadata\":",
    "\"total_size\":",
    "one.safetensors",
    "two.safetensors",
    "../",
    "/etc/passwd",
    "..",
    ".",
    "\\u0000",
    "\"a\"",
    "\"b\"",
    ".safetensors",
    "{}",
    "null",
];
pub(crate) const HUB: &[&str] =
    &["../", "/", "main", "0123456789012345678901234567890123456789", "\n", "\0", ".."];
pub(crate) const CONFIG: &[&str] = &[
    "\"gpt2\"",
    "\"llama\"",
    "\"mistral\"",
    "\"bert\"",
    "\"muffle-cnn\"",
    "null",
    "true",
    "false",
    "\"gelu\"",
    "\"silu\"",
    "\"n_layer\":",
    "\"n_embd\":",
    "\"rope_scaling\":",
    "\"rope_parameters\":",
    "{\"rope_type\":\"linear\",\"factor\":2.0}",
    "{\"rope_type\":\"llama3\"}",
    "\"id2label\":",
    "{\"0\":\"x\"}",
    "\"num_labels\":",
    "\"problem_type\":",
    "\"regression\"",
    "\"multi_label_classification\"",
    "\"stages\":",
    "[4]",
    "\"architectures\":",
    "\"head_dim\":",
    "\"sliding_window\":",
    "\"quantization_config\":",
    "\"n_inner\":",
];
pub(crate) const TOKENIZER: &[&str] = &[
    "\"BPE\"",
    "\"WordPiece\"",
    "\"Unigram\"",
    "\"WordLevel\"",
    "\"ByteLevel\"",
    "\"Metaspace\"",
    "\"Sequence\"",
    "\"Replace\"",
    "{\"Regex\":\"(a*)*b\"}",
    "{\"String\":\"\"}",
    "\"Split\"",
    "\"behavior\":\"Isolated\"",
    "\"NFC\"",
    "\"BertNormalizer\"",
    "\"TemplateProcessing\"",
    "\"Strip\"",
    "\"Digits\"",
    "null",
    "\"vocab\":",
    "\"merges\":",
    "\"unk_token\":",
    "\"byte_fallback\":true",
    "\"added_tokens\":",
    "\"Precompiled\"",
    "\"Truncate\"",
    "\"CTC\"",
    "\"Fuse\"",
    "\"pattern\":",
    "(?<=a)",
    "\\\\1",
    "[^\\\\s]+",
    "\"dropout\":0.5",
];

const GPT2: &str = r#"{"model_type":"gpt2","vocab_size":5,"n_positions":4,"n_embd":4,"n_layer":1,
"n_head":2,"n_inner":6,
"activation_function":"gelu_new","layer_norm_epsilon":1e-5}"#;
const LLAMA: &str = r#"{"model_type":"llama","vocab_size":5,"max_position_embeddings":4,
"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,
"num_key_value_heads":1,"intermediate_size":6,"hidden_act":"silu","rms_norm_eps":1e-5,
"rope_theta":10000.0,"tie_word_embeddings":true}"#;
const BERT: &str = r#"{"model_type":"bert","vocab_size":5,"max_position_embeddings":4,
"type_vocab_size":2,"hidden_size":4,"num_hidden_layers":1,
"num_attention_heads":2,"intermediate_size":6,"hidden_act":"gelu","layer_norm_eps":1e-12,
"num_labels":2}"#;
const CNN: &str = r#"{"model_type":"muffle-cnn","image_height":4,"image_width":4,
"image_channels":1,"stages":[2,4],"activation":"relu","groups":2,"global_pooling":true,
"classes":3}"#;

/// A folder for each architecture, with its configuration.
pub(crate) fn prepare(scratch: &Scratch) -> io::Result<()> {
    for (name, config) in [("gpt2", GPT2), ("llama", LLAMA), ("bert", BERT), ("cnn", CNN)] {
        scratch.put(&format!("{name}/config.json"), config.as_bytes())?;
        // Weights for the configurations that are fuzzed; a missing file would be an error before
        // the model is built.
        let parsed =
            hf::Config::parse(config.as_bytes(), "config.json").map_err(io::Error::other)?;
        let fresh = Checkpoint::new(parsed, None, 1).map_err(io::Error::other)?;
        let tensors: Vec<_> =
            fresh.graph.params().iter().map(|spec| spec.name.as_str()).zip(&fresh.values).collect();
        let place = scratch.at(&format!("whole-{name}"));
        hf::save(&place, &fresh.config, &tensors, &hf::SaveOptions::default())
            .map_err(io::Error::other)?;
    }
    Ok(())
}

/// `model.safetensors`, through the loader of a whole model and alone.
pub(crate) fn weights(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let has = |name: &str| input.windows(name.len()).any(|window| window == name.as_bytes());
    let kind = if has("model.layers") {
        "llama"
    } else if has("bert.") {
        "bert"
    } else if has("stages.") {
        "cnn"
    } else {
        "gpt2"
    };
    let alone = Weights::from_bytes(input.to_vec(), "model.safetensors").map(|weights| {
        for name in weights.names() {
            let shape = weights.shape(name).unwrap_or_default();
            if let Ok(array) = weights.load(name, shape) {
                assert_eq!(array.shape(), shape);
                assert!(
                    array.data().iter().all(|number| number.is_finite()),
                    "a weight that is not finite was accepted"
                );
            }
        }
        weights.names().count()
    });
    done(scratch.put(&format!("{kind}/model.safetensors"), input));
    let opened = Checkpoint::open(scratch.at(kind), None, 0);
    assert!(alone.is_ok() || opened.is_err(), "a model was loaded from invalid weights");
    match opened {
        Ok(checkpoint) => {
            assert!(
                checkpoint
                    .values
                    .iter()
                    .all(|value| value.data().iter().all(|number| number.is_finite()))
            );
            ReadOutcome {
                accepted: true,
                message: format!("{kind} with fresh {:?}", checkpoint.initialized),
            }
        }
        Err(error) => ReadOutcome { accepted: false, message: strip(scratch, &error.to_string()) },
    }
}

/// Removes the folder's name, which differs from run to run.
pub(super) fn strip(scratch: &Scratch, message: &str) -> String {
    message.replace(&*scratch.at("").to_string_lossy(), "")
}

fn shard(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat()
}

pub(crate) fn prepare_shards(scratch: &Scratch) -> io::Result<()> {
    for (file, tensor) in [("one", "a"), ("two", "b")] {
        scratch.put(&format!("{file}.safetensors"), &shard(tensor))?;
    }
    Ok(())
}

/// `model.safetensors.index.json`, with two shards beside it.
pub(crate) fn index(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    done(scratch.put("model.safetensors.index.json", input));
    let seen = ReadOutcome::of(Weights::open(scratch.at("")), |weights| {
        assert!(weights.names().all(|name| weights.load(name, &[2]).is_ok()));
        format!("{} tensors", weights.names().count())
    });
    // The name of a missing shard is not a new kind.
    let message =
        seen.message.split_once(": cannot be read").map_or(seen.message.as_str(), |(_, why)| why);
    assert!(!seen.message.contains(char::is_control), "a name with control characters is shown");
    ReadOutcome { message: strip(scratch, message), ..seen }
}

/// `config.json`: the model is built, and loaded from weights that fit the seeds.
pub(crate) fn config(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let config = match hf::Config::parse(input, "config.json") {
        Ok(config) => config,
        Err(error) => return ReadOutcome { accepted: false, message: error.to_string() },
    };
    done(config.architecture.check());
    let again = done(hf::Config::parse(config.to_json(Dtype::F32).as_bytes(), "again"));
    assert_eq!(again.architecture, config.architecture, "the configuration does not round-trip");
    let place = match config.architecture {
        Architecture::Gpt2(_) => "whole-gpt2",
        Architecture::Llama(_) => "whole-llama",
        Architecture::Bert(_) => "whole-bert",
        Architecture::Cnn(_) => "whole-cnn",
    };
    done(scratch.put(&format!("{place}/config.json"), input));
    let opened = Checkpoint::open_with_head(
        scratch.at(place),
        None,
        0,
        Some(NewHead { outputs: 3, loss: Loss::CrossEntropy }),
    );
    ReadOutcome {
        accepted: true,
        message: opened
            .map_or_else(|error| shape(&strip(scratch, &error.to_string())), |_| "whole".into()),
    }
}

const TEXTS: [&str; 6] = [
    "",
    "the cat sat on the mat",
    " a\nb\tc  ",
    "Ünïcödé \u{1f600} ẞ\u{301}",
    "[CLS] <s> </s> <unk> 12,345",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
];

/// `tokenizer.json`: an accepted tokenizer must handle any text and any token.
pub(crate) fn tokenizer(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let path = done(scratch.put("tokenizer.json", input));
    let opened = Tokenizer::open(&path).map(|tokenizer| {
        let mut message = String::new();
        for frame in [SpecialTokens::Omit, SpecialTokens::Add] {
            for text in TEXTS {
                message += match tokenizer.encode(text, frame) {
                    Ok(tokens) if tokenizer.decode(&tokens).is_ok_and(|back| back == text) => "=",
                    Ok(_) => "~",
                    Err(_) => "!",
                };
            }
        }
        // Unknown tokens must give an error.
        for token in [0, 1, 7, u32::MAX] {
            message += if tokenizer.decode(&[token]).is_ok() { "d" } else { "-" };
        }
        format!(
            "{message} {} {}",
            tokenizer.token_id("a").is_some(),
            !tokenizer.tokens_with_newline().is_empty()
        )
    });
    let seen = ReadOutcome::of(opened, |message| message);
    ReadOutcome { message: strip(scratch, &seen.message), ..seen }
}

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A model in the cache of the hub, in two shards.
pub(crate) fn prepare_hub(scratch: &Scratch) -> io::Result<()> {
    scratch.put("models--x--y/refs/main", COMMIT.as_bytes())?;
    let place = format!("models--x--y/snapshots/{COMMIT}");
    for (file, bytes) in [
        ("config.json", GPT2.as_bytes()),
        ("tokenizer.json", b"{}"),
        ("one.safetensors", &shard("a")),
        ("two.safetensors", &shard("b")),
    ] {
        scratch.put(&format!("{place}/{file}"), bytes)?;
    }
    scratch.put(
        &format!("{place}/model.safetensors.index.json"),
        br#"{"weight_map":{"a":"one.safetensors"}}"#,
    )?;
    Ok(())
}

fn fetch(scratch: &Scratch) -> ReadOutcome {
    let hub = Hub {
        cache: scratch.at(""),
        endpoint: "http://127.0.0.1:9".into(),
        network: NetworkAccess::Forbidden,
        token: None,
    };
    let seen = ReadOutcome::of(hub.fetch("x/y", &mut |_| ()), |place| {
        fs::metadata(place).map_or("nowhere", |_| "there").to_string()
    });
    ReadOutcome { message: strip(scratch, &seen.message), ..seen }
}

/// The index of a model in the cache.
pub(crate) fn hub_index(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    done(
        scratch
            .put(&format!("models--x--y/snapshots/{COMMIT}/model.safetensors.index.json"), input),
    );
    fetch(scratch)
}

/// The commit of a model in the cache.
pub(crate) fn hub_ref(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    done(scratch.put("models--x--y/refs/main", input));
    fetch(scratch)
}
