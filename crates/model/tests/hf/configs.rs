//! Tests of `config.json`: published configurations are parsed, unsupported ones are refused.

use crate::folder::Folder;
use model::hf::{
    Activation, Architecture, BertConfig, Config, Dtype, Gpt2Config, LlamaConfig, Pooling,
    RopeConfig, RopeScaling,
};
use model::{Error, Loss};
use serde_json::{Value, json};

/// The published configuration of GPT-2.
pub(crate) const GPT2: &str = r#"{
    "activation_function":"gelu_new","architectures":["GPT2LMHeadModel"],"attn_pdrop":0.1,
    "bos_token_id":50256,"embd_pdrop":0.1,"eos_token_id":50256,"initializer_range":0.02,
    "layer_norm_epsilon":1e-05,"model_type":"gpt2","n_ctx":1024,"n_embd":768,"n_head":12,
    "n_layer":12,"n_positions":1024,"resid_pdrop":0.1,"summary_type":"cls_index",
    "task_specific_params":{"text-generation":{"max_length":50}},"vocab_size":50257}"#;

/// The published configuration of Llama 3.2.
pub(crate) const LLAMA: &str = r#"{
    "architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
    "bos_token_id":128000,"eos_token_id":[128001,128008],"head_dim":64,"hidden_act":"silu",
    "hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,
    "max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama",
    "num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,
    "rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
    "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
    "rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":true,
    "vocab_size":128256}"#;

/// The configuration of a sentence encoder.
pub(crate) const BERT: &str = r#"{
    "_name_or_path":"x","architectures":["BertModel"],"attention_probs_dropout_prob":0.1,
    "gradient_checkpointing":false,"hidden_act":"gelu","hidden_dropout_prob":0.1,
    "hidden_size":384,"initializer_range":0.02,"intermediate_size":1536,"layer_norm_eps":1e-12,
    "max_position_embeddings":512,"model_type":"bert","num_attention_heads":12,
    "num_hidden_layers":6,"pad_token_id":0,"position_embedding_type":"absolute",
    "transformers_version":"4.8.2","type_vocab_size":2,"use_cache":true,"vocab_size":30522}"#;

fn parse(text: &str) -> Result<Config, Error> {
    Config::parse(text.as_bytes(), "config.json")
}

/// Returns the text with other values for some keys; null removes the key.
fn with(text: &str, changes: Value) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    for (key, change) in changes.as_object().unwrap() {
        match change {
            Value::Null => value.as_object_mut().unwrap().remove(key),
            other => value.as_object_mut().unwrap().insert(key.clone(), other.clone()),
        };
    }
    value.to_string()
}

#[test]
fn published_configurations_are_parsed() {
    let gpt2 = Gpt2Config {
        vocab: 50257,
        positions: 1024,
        width: 768,
        layers: 12,
        heads: 12,
        inner: 3072,
        activation: Activation::GeluTanh,
        epsilon: 1e-5,
        tied: true,
    };
    assert_eq!(parse(GPT2).unwrap().architecture, Architecture::Gpt2(gpt2));
    let llama = LlamaConfig {
        vocab: 128_256,
        positions: 131_072,
        width: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        inner: 8192,
        epsilon: 1e-5,
        rope: RopeConfig {
            theta: 5e5,
            scaling: RopeScaling::Llama3 {
                factor: 32.0,
                low: 1.0,
                high: 4.0,
                original_positions: 8192,
            },
        },
        tied: true,
        attention_bias: false,
        mlp_bias: false,
    };
    assert_eq!(parse(LLAMA).unwrap().architecture, Architecture::Llama(llama.clone()));
    let bert = BertConfig {
        vocab: 30522,
        positions: 512,
        types: 2,
        width: 384,
        layers: 6,
        heads: 12,
        inner: 1536,
        activation: Activation::GeluErf,
        epsilon: 1e-12,
        labels: 2,
        pooling: Pooling::FirstToken,
    };
    assert_eq!(parse(BERT).unwrap().architecture, Architecture::Bert(bert));

    // Keys that older files do not have.
    let old = with(
        LLAMA,
        json!({"head_dim": null, "num_key_value_heads": null, "rope_scaling": null,
            "rope_theta": null, "attention_bias": null, "mlp_bias": null,
            "tie_word_embeddings": null}),
    );
    let rope = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None };
    assert_eq!(
        parse(&old).unwrap().architecture,
        Architecture::Llama(LlamaConfig { kv_heads: 32, rope, tied: false, ..llama.clone() })
    );
    // Without `model_type`, the class determines the architecture.
    assert_eq!(
        parse(&with(LLAMA, json!({"model_type": null}))).unwrap().architecture,
        Architecture::Llama(llama.clone())
    );
    // Mistral without sliding-window attention.
    let mistral =
        with(LLAMA, json!({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}))
            .replace('{', "{\"sliding_window\":null,");
    let mistral =
        mistral.replacen("\"rope_scaling\":{\"sliding_window\":null,", "\"rope_scaling\":{", 1);
    let config = parse(&mistral).unwrap();
    assert_eq!(config.architecture, Architecture::Llama(llama));
    let again: Value = serde_json::from_str(&config.to_json(Dtype::F32)).unwrap();
    assert_eq!(
        (&again["model_type"], &again["architectures"], &again["sliding_window"]),
        (&json!("mistral"), &json!(["MistralForCausalLM"]), &Value::Null)
    );
}

#[test]
fn the_configuration_of_a_cnn_is_parsed_and_checked() {
    let cnn = model::Cnn {
        image: model::patches::ImageShape { height: 28, width: 28, channels: 1 },
        stages: vec![16, 32],
        activation: Activation::Tanh,
        groups: 4,
        global_pooling: false,
        classes: 10,
    };
    let config = Config::new(Architecture::Cnn(cnn));
    let text = config.to_json(Dtype::F32);
    assert_eq!(parse(&text).unwrap().architecture, config.architecture);
    for (changes, part) in [
        (json!({"groups": 5}), "a divisor of"),
        (json!({"groups": 70000}), "at most 65536"),
        (json!({"stages": vec![16; 65]}), "at most 64"),
        (json!({"activation": "step"}), "one of relu"),
        (json!({"global_pooling": null}), "global_pooling"),
        (json!({"global_pooling": 1}), "true or false"),
        (json!({"stages": [16, "x"]}), "a list of numbers of channels"),
        (json!({"stages": [16, 32, 32, 32, 32, 32, 32]}), "at least 64"),
        (json!({"image_height": 0}), "between 1"),
        (json!({"classes": null}), "classes"),
    ] {
        let error = parse(&with(&text, changes)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_number_of_labels_is_parsed_and_written() {
    let labels = |changes| match parse(&with(BERT, changes)).unwrap().architecture {
        Architecture::Bert(config) => config.labels,
        _ => unreachable!(),
    };
    assert_eq!(labels(json!({})), 2);
    assert_eq!(labels(json!({"num_labels": 7})), 7);
    assert_eq!(labels(json!({"id2label": {"0": "no", "1": "yes", "2": "perhaps"}})), 3);
    assert_eq!(labels(json!({"id2label": {"0": "no"}, "num_labels": 1})), 1);

    // Names are retained if their number fits, else replaced.
    let mut config = parse(&with(BERT, json!({"id2label": {"0": "no", "1": "yes"}}))).unwrap();
    let names = |config: &Config| {
        serde_json::from_str::<Value>(&config.to_json(Dtype::F32)).unwrap()["id2label"].clone()
    };
    assert_eq!(names(&config), json!({"0": "no", "1": "yes"}));
    let Architecture::Bert(bert) = &mut config.architecture else { unreachable!() };
    bert.labels = 3;
    assert_eq!(names(&config), json!({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}));
    // An old `num_labels` is not written back.
    config.other_keys.insert("num_labels".into(), 2.into());
    assert_eq!(parse(&config.to_json(Dtype::F32)).unwrap().architecture, config.architecture);
}

fn pooling(config: &Config) -> Pooling {
    let Architecture::Bert(bert) = &config.architecture else { panic!("{config:?}") };
    bert.pooling
}

#[test]
fn pooling_is_parsed_and_written() {
    for (stated, expected) in [
        (json!({}), Pooling::FirstToken),
        (json!({"classifier_pooling": "cls"}), Pooling::FirstToken),
        (json!({"classifier_pooling": "mean"}), Pooling::Mean),
    ] {
        let config = parse(&with(BERT, stated)).unwrap();
        assert_eq!(pooling(&config), expected);
        let written = config.to_json(Dtype::F32);
        assert_eq!(pooling(&parse(&written).unwrap()), expected);
        // No class of `transformers` computes the mean.
        assert_eq!(written.contains("ForSequenceClassification"), expected != Pooling::Mean);
    }
    let refused = parse(&with(BERT, json!({"classifier_pooling": "max"}))).unwrap_err();
    assert!(refused.to_string().contains("classifier_pooling"), "{refused}");
}

/// A folder of `sentence-transformers` states how its base model is pooled.
#[test]
fn pooling_of_sentence_encoders_is_read() {
    let folder = Folder::new();
    let read = |config: &str, modes: &str| {
        std::fs::write(folder.join("config.json"), config).unwrap();
        std::fs::write(folder.join("1_Pooling/config.json"), modes).unwrap();
        Config::read(folder.join("config.json"))
            .map(|config| pooling(&config))
            .map_err(|e| e.to_string())
    };
    std::fs::create_dir(folder.join("1_Pooling")).unwrap();
    let mean = r#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": false,
        "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false}"#;
    let first = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
    assert_eq!(read(BERT, mean), Ok(Pooling::Mean));
    assert_eq!(read(BERT, first), Ok(Pooling::FirstToken));
    // What config.json says comes first, and a classifier has a pooler that was trained.
    let stated = with(BERT, json!({"classifier_pooling": "cls"}));
    assert_eq!(read(&stated, mean), Ok(Pooling::FirstToken));
    let classifier = with(BERT, json!({"architectures": ["BertForSequenceClassification"]}));
    assert_eq!(read(&classifier, mean), Ok(Pooling::FirstToken));
    for other in [r#"{"pooling_mode_max_tokens": true}"#, "{}", "[]"] {
        let refused = read(BERT, other).unwrap_err();
        assert!(refused.contains("1_Pooling"), "{refused}");
    }
}

#[test]
fn the_loss_is_parsed_and_written() {
    let loss = |changes| parse(&with(BERT, changes)).map(|config| config.loss);
    assert_eq!(loss(json!({})).unwrap(), Loss::CrossEntropy);
    assert_eq!(loss(json!({"problem_type": null})).unwrap(), Loss::CrossEntropy);
    // As in transformers, a single output is a number.
    assert_eq!(loss(json!({"num_labels": 1})).unwrap(), Loss::SquaredError);
    for (name, labels, expected) in [
        ("single_label_classification", 3, Loss::CrossEntropy),
        ("multi_label_classification", 3, Loss::BinaryCrossEntropy),
        ("multi_label_classification", 1, Loss::BinaryCrossEntropy),
        ("regression", 1, Loss::SquaredError),
    ] {
        let changes = json!({"problem_type": name, "num_labels": labels});
        let config = parse(&with(BERT, changes)).unwrap();
        assert_eq!(config.loss, expected, "{name}");
        let written = config.to_json(Dtype::F32);
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap()["problem_type"], name);
        assert_eq!(parse(&written).unwrap().loss, expected, "{name}");
    }
    for (changes, part) in [
        (json!({"problem_type": "ranking"}), "one of single_label_classification"),
        (json!({"problem_type": 3}), "a string"),
        (json!({"problem_type": "regression", "num_labels": 2}), "has 2 outputs"),
    ] {
        let error = loss(changes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // A language model has no such problem; the key is retained.
    let config = parse(&with(GPT2, json!({"problem_type": "regression"}))).unwrap();
    assert_eq!(config.loss, Loss::CrossEntropy);
    assert!(config.to_json(Dtype::F32).contains("\"regression\""));
    let mut config = parse(GPT2).unwrap();
    config.loss = Loss::SquaredError;
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("regression of a language model"), "{error}");
}

#[test]
fn other_keys_are_retained() {
    let mut config = parse(GPT2).unwrap();
    let Architecture::Gpt2(gpt2) = &mut config.architecture else { unreachable!() };
    gpt2.vocab += 1;
    config.other_keys.insert("pad_token_id".into(), 50257.into());
    let written: Value = serde_json::from_str(&config.to_json(Dtype::Bf16)).unwrap();
    for (key, value) in [
        ("task_specific_params", json!({"text-generation": {"max_length": 50}})),
        ("bos_token_id", json!(50256)),
        ("pad_token_id", json!(50257)),
        ("vocab_size", json!(50258)),
        ("n_inner", json!(3072)),
        ("layer_norm_epsilon", json!(1e-5)),
        ("resid_pdrop", json!(0.0)),
        ("tie_word_embeddings", json!(true)),
        ("dtype", json!("bfloat16")),
        ("torch_dtype", json!("bfloat16")),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    // A synonym of the activation function is retained.
    let config = parse(&with(GPT2, json!({"activation_function": "gelu_pytorch_tanh"}))).unwrap();
    assert!(config.to_json(Dtype::F32).contains("gelu_pytorch_tanh"));
    // A new configuration has null for special tokens: the default of transformers is GPT-2's.
    let new = serde_json::from_str::<Value>(&Config::new(config.architecture).to_json(Dtype::F32))
        .unwrap();
    assert!(new.as_object().unwrap().contains_key("eos_token_id") && new["eos_token_id"].is_null());
}

#[test]
fn errors_name_the_missing_key() {
    for (text, keys) in [
        (
            GPT2,
            &[
                "vocab_size",
                "n_positions",
                "n_embd",
                "n_layer",
                "n_head",
                "activation_function",
                "layer_norm_epsilon",
            ][..],
        ),
        (
            LLAMA,
            &[
                "vocab_size",
                "max_position_embeddings",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "rms_norm_eps",
            ],
        ),
        (
            BERT,
            &[
                "vocab_size",
                "max_position_embeddings",
                "type_vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "hidden_act",
                "layer_norm_eps",
            ],
        ),
    ] {
        for key in keys {
            let error = parse(&with(text, json!({ *key: null }))).unwrap_err().to_string();
            assert_eq!(error, format!("config.json: the key \"{key}\" is missing"));
        }
    }
    let error = parse(&with(GPT2, json!({"model_type": null, "architectures": null})))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "config.json: the key \"model_type\" is missing");
}

#[test]
fn unsupported_configurations_are_refused() {
    let huge = json!({"vocab_size": 16_000_000, "n_embd": 16_000_000, "n_head": 1, "n_inner": 1});
    for (text, changes, part) in [
        (
            GPT2,
            json!({"scale_attn_by_inverse_layer_idx": true}),
            "\"scale_attn_by_inverse_layer_idx\" must be false, got true",
        ),
        (
            GPT2,
            json!({"scale_attn_weights": false}),
            "\"scale_attn_weights\" must be true, got false",
        ),
        (GPT2, json!({"add_cross_attention": true}), "add_cross_attention"),
        (GPT2, json!({"activation_function": "gelu_fast"}), "got \"gelu_fast\""),
        (GPT2, json!({"n_head": 5}), "\"n_head\" must be a divisor of n_embd (768), got 5"),
        (GPT2, json!({"n_head": 0}), "\"n_head\" must be between 1 and 16777216, got 0"),
        (GPT2, json!({"n_embd": 0}), "\"n_embd\" must be between 1"),
        (GPT2, json!({"n_embd": -768}), "\"n_embd\" must be a non-negative integer, got -768"),
        (GPT2, json!({"n_embd": "768"}), "got \"768\""),
        (GPT2, json!({"n_embd": 768.5}), "got 768.5"),
        (GPT2, json!({"n_layer": 10_001}), "\"n_layer\" must be between 1 and 10000, got 10001"),
        (GPT2, json!({"vocab_size": 1u64 << 60}), "\"vocab_size\" must be between 1"),
        (GPT2, huge, "\"number of parameters\" must be at most 1099511627776"),
        (GPT2, json!({"layer_norm_epsilon": 0}), "\"layer_norm_epsilon\" must be positive"),
        (GPT2, json!({"layer_norm_epsilon": 1e-60}), "\"layer_norm_epsilon\" must be positive"),
        (GPT2, json!({"layer_norm_epsilon": "1e-5"}), "a finite number"),
        (GPT2, json!({"tie_word_embeddings": 1}), "true or false"),
        (GPT2, json!({"pruned_heads": {"0": [1]}}), "pruned_heads"),
        (GPT2, json!({"quantization_config": {"bits": 4}}), "quantization_config"),
        (GPT2, json!({"is_encoder_decoder": true}), "is_encoder_decoder"),
        (
            GPT2,
            json!({"model_type": "gptj"}),
            "\"model_type\" must be gpt2, llama, mistral, bert or muffle-cnn, got \"gptj\"",
        ),
        (GPT2, json!({"model_type": "llama"}), "a class of model_type llama"),
        (
            GPT2,
            json!({"model_type": null, "architectures": ["GPT2XForCausalLM"]}),
            "\"model_type\" is missing",
        ),
        (GPT2, json!({"architectures": "GPT2LMHeadModel"}), "a list"),
        (LLAMA, json!({"hidden_act": "gelu"}), "\"hidden_act\" must be silu"),
        (
            LLAMA,
            json!({"num_key_value_heads": 5}),
            "\"num_key_value_heads\" must be a divisor of num_attention_heads (32), got 5",
        ),
        (LLAMA, json!({"num_attention_heads": 0}), "\"num_attention_heads\" must be between 1"),
        (LLAMA, json!({"head_dim": 63}), "\"head_dim\" must be even"),
        (LLAMA, json!({"head_dim": 1 << 24}), "head_dim × num_attention_heads"),
        (LLAMA, json!({"sliding_window": 4096}), "\"sliding_window\" must be null, got 4096"),
        (LLAMA, json!({"use_sliding_window": true}), "use_sliding_window"),
        (LLAMA, json!({"layer_types": ["full_attention", "sliding_attention"]}), "layer_types"),
        (LLAMA, json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}), "rope_type"),
        (
            LLAMA,
            json!({"model_type": "mistral", "architectures": null}),
            "\"sliding_window\" must be null, got nothing",
        ),
        (
            LLAMA,
            json!({"model_type": "mistral", "architectures": null, "sliding_window": 4096}),
            "\"sliding_window\" must be null, got 4096",
        ),
        (LLAMA, json!({"model_type": "smollm3", "architectures": null}), "model_type"),
        (
            BERT,
            json!({"position_embedding_type": "relative_key"}),
            "\"position_embedding_type\" must be absolute, got \"relative_key\"",
        ),
        (BERT, json!({"is_decoder": true}), "is_decoder"),
        (
            BERT,
            json!({"num_labels": 3, "id2label": {"0": "no", "1": "yes"}}),
            "equal to the size of id2label (2), got 3",
        ),
        (BERT, json!({"num_labels": 0}), "\"num_labels\" must be between 1"),
        (BERT, json!({"id2label": ["a"]}), "an object"),
    ] {
        let error = parse(&with(text, changes)).unwrap_err().to_string();
        assert!(error.contains(part) && error.starts_with("config.json: "), "{error}");
    }
    for text in ["", "[]", "null", "{", "{\"model_type\": \"gpt2\"", "\u{0}", &"[".repeat(1 << 20)]
    {
        assert!(parse(text).unwrap_err().to_string().contains("expected a JSON object"));
    }
}
