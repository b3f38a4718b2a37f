//! Tests of the Hugging Face layout: saved models are loaded, invalid files are refused.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use model::Error;
use model::hf::{Config, Dtype, ExistingModel, SaveOptions, Weights, save};
use tensor::Array;

#[path = "hf/configs.rs"]
mod configs;
#[path = "hf/folder.rs"]
mod folder;
#[path = "hf/fuzz.rs"]
mod fuzz;

use folder::Folder;

/// Tensors with 0 to 3 dimensions, one of them larger than a chunk of a write.
fn tensors() -> Vec<(&'static str, Array)> {
    // Multiples of 1/4 below 64 are exact in every type.
    let element = |i: usize| (i * 7 % 255) as f32 / 4.0 - 31.75;
    vec![
        ("wte.weight", Array::from_fn([301, 257], element)),
        ("h.0.c.weight", Array::from_fn([3, 4, 5], element)),
        ("h.0.c.bias", Array::from_fn([5], element)),
        ("scale", Array::from_fn([], element)),
        ("none", Array::zeros([0, 7])),
    ]
}

fn by_reference<'a>(tensors: &'a [(&'a str, Array)]) -> Vec<(&'a str, &'a Array)> {
    tensors.iter().map(|(name, array)| (*name, array)).collect()
}

fn config() -> Config {
    Config::parse(configs::GPT2.as_bytes(), "config.json").unwrap()
}

fn write(dir: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    save(dir, &config(), &by_reference(&tensors()), options)
}

/// Returns a safetensors file with this header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Returns a safetensors file with one tensor `a` of two elements.
fn two_elements(dtype: &str, data: &[u8]) -> Vec<u8> {
    file(
        &format!(r#"{{"a":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{}]}}}}"#, data.len()),
        data,
    )
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn saved_models_are_loaded() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (shard_bytes, files) in [(u64::MAX, 1), (400, 2), (20, 4), (0, 5)] {
            let folder = Folder::new();
            let dir = folder.join("a/b/model");
            write(&dir, &SaveOptions { dtype, shard_bytes, ..Default::default() }).unwrap();
            let names: Vec<String> = folder::names(&dir);
            let shards = names.iter().filter(|name| name.ends_with(".safetensors")).count();
            let sharded = names.contains(&"model.safetensors.index.json".to_string());
            assert!(
                (shards > 1) == sharded && shards <= files && (files == 1) == (shards == 1),
                "{names:?}"
            );
            assert_eq!(folder::names(dir.parent().unwrap()), ["model"]);

            let weights = Weights::open(&dir).unwrap();
            let mut expected = tensors();
            expected.sort_by_key(|(name, _)| *name);
            assert_eq!(
                weights.names().collect::<Vec<_>>(),
                expected.iter().map(|(name, _)| *name).collect::<Vec<_>>()
            );
            for (name, array) in &expected {
                assert!(weights.contains(name));
                assert_eq!(weights.shape(name), Some(array.shape()));
                assert_eq!(&weights.load(name, array.shape()).unwrap(), array);
            }
            weights.check_all_used().unwrap();

            let read = Config::read(&dir).unwrap();
            assert_eq!(read.architecture, config().architecture);
            assert_eq!(read.other_keys["dtype"], dtype.to_string());
            assert_eq!(read.other_keys["torch_dtype"], dtype.to_string());
        }
    }
}

#[test]
fn the_safetensors_crate_reads_the_same_tensors() {
    let folder = Folder::new();
    write(&folder.join("m"), &SaveOptions::default()).unwrap();
    let bytes = fs::read(folder.join("m/model.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), tensors().len());
    for (name, array) in tensors() {
        let view = theirs.tensor(name).unwrap();
        let bytes: Vec<u8> = array.data().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!((view.shape(), view.data()), (array.shape(), &bytes[..]));
    }
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
}

#[test]
fn a_single_file_is_opened() {
    let folder = Folder::new();
    fs::write(
        folder.join("x.safetensors"),
        two_elements("F64", &[0.5f64.to_le_bytes(), (-2f64).to_le_bytes()].concat()),
    )
    .unwrap();
    let weights = Weights::open(folder.join("x.safetensors")).unwrap();
    assert_eq!(weights.load("a", &[2]).unwrap().data(), [0.5, -2.0]);
    write(&folder.join("m"), &SaveOptions { shard_bytes: 0, ..Default::default() }).unwrap();
    assert_eq!(
        Weights::open(folder.join("m/model.safetensors.index.json")).unwrap().names().count(),
        5
    );
}

#[test]
fn a_tensor_of_another_shape_or_type_is_refused() {
    let folder = Folder::new();
    let path = folder.join("x.safetensors");
    let shown = path.display().to_string();
    let load = |bytes: Vec<u8>, name: &str, shape: &[usize]| {
        fs::write(&path, bytes).unwrap();
        message(Weights::open(&path).unwrap().load(name, shape))
    };
    let single = |a: f32, b: f32| two_elements("F32", &[a.to_le_bytes(), b.to_le_bytes()].concat());
    assert_eq!(load(single(1.0, 2.0), "b", &[2]), format!("{shown}: there is no tensor \"b\""));
    assert_eq!(
        load(single(1.0, 2.0), "a", &[2, 1]),
        format!("{shown}: tensor \"a\" must have the shape [2, 1], got [2]")
    );
    let not_finite = format!("{shown}: tensor \"a\" must be finite in float32, got");
    assert_eq!(load(single(1.0, f32::NAN), "a", &[2]), format!("{not_finite} NaN at index 1"));
    assert_eq!(
        load(single(f32::NEG_INFINITY, 1.0), "a", &[2]),
        format!("{not_finite} -inf at index 0")
    );
    assert_eq!(
        load(two_elements("F16", &[0, 0, 0, 0x7c]), "a", &[2]),
        format!("{not_finite} inf at index 1")
    );
    assert_eq!(
        load(two_elements("BF16", &[0x80, 0x7f, 0, 0]), "a", &[2]),
        format!("{not_finite} inf at index 0")
    );
    assert_eq!(
        load(two_elements("F64", &[[0; 8], 1e39f64.to_le_bytes()].concat()), "a", &[2]),
        format!("{not_finite} inf at index 1")
    );
    let dtype = format!("{shown}: tensor \"a\" must be of type F32, F16, BF16 or F64, got");
    assert_eq!(load(two_elements("I64", &[0; 16]), "a", &[2]), format!("{dtype} I64"));
    assert_eq!(load(two_elements("BOOL", &[0; 2]), "a", &[2]), format!("{dtype} BOOL"));
    assert_eq!(load(two_elements("F8_E4M3", &[0; 2]), "a", &[2]), format!("{dtype} F8_E4M3"));
}

#[test]
fn a_tensor_is_found_with_and_without_its_prefix() {
    let folder = Folder::new();
    write(&folder.join("m"), &SaveOptions::default()).unwrap();
    let weights = Weights::open(folder.join("m")).unwrap();
    assert_eq!(weights.find(&["transformer.wte.weight", "wte.weight"]).unwrap(), "wte.weight");
    assert!(message(weights.find(&["a", "b"])).ends_with("there is no tensor \"a\" or \"b\""));
}

#[test]
fn unused_tensors_are_refused() {
    let folder = Folder::new();
    let one = Array::zeros([1]);
    let names = [
        "h.0.attn.bias",
        "h.0.attn.c_attn.bias",
        "transformer.h.3.attn.masked_bias",
        "bert.embeddings.position_ids",
        "x.rotary_emb.inv_freq",
    ];
    save(folder.join("m"), &config(), &names.map(|name| (name, &one)), &SaveOptions::default())
        .unwrap();
    let weights = Weights::open(folder.join("m")).unwrap();
    assert_eq!(weights.unused().collect::<Vec<_>>(), ["h.0.attn.c_attn.bias"]);
    // A failed load does not count as use.
    weights.load("h.0.attn.c_attn.bias", &[2]).unwrap_err();
    assert!(
        message(weights.check_all_used())
            .ends_with("1 tensor(s) are not parameters of the model: \"h.0.attn.c_attn.bias\"")
    );
    weights.load("h.0.attn.c_attn.bias", &[1]).unwrap();
    weights.check_all_used().unwrap();
}

#[test]
fn an_inconsistent_index_is_refused() {
    let folder = Folder::new();
    let path = folder.join("model.safetensors.index.json");
    let tensor = |name: &str| {
        file(
            &format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#),
            &[0; 4],
        )
    };
    for (name, tensor_name) in
        [("1.safetensors", "a"), ("2.safetensors", "b"), ("3.safetensors", "a")]
    {
        fs::write(folder.join(name), tensor(tensor_name)).unwrap();
    }
    fs::create_dir(folder.join("sub")).unwrap();
    fs::write(folder.join("sub/1.safetensors"), tensor("a")).unwrap();
    let open = |index: &str| {
        fs::write(&path, index).unwrap();
        Weights::open(&*folder)
    };
    assert_eq!(
        open(r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#)
            .unwrap()
            .names()
            .count(),
        2
    );
    let absolute = folder.join("1.safetensors").display().to_string();
    let long = format!(r#"{{"weight_map":{{"a":"{}"}}}}"#, "x".repeat(3000));
    for (index, part) in [
        (
            r#"{"weight_map":{"a":"1.safetensors","b":"4.safetensors"}}"#,
            "4.safetensors: cannot be read",
        ),
        (
            r#"{"weight_map":{"a":"1.safetensors","c":"2.safetensors"}}"#,
            "expected tensor \"c\" in \"2.safetensors\"",
        ),
        (
            r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#,
            "expected tensor \"a\" in \"2.safetensors\"",
        ),
        (
            r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"}}"#,
            "duplicate tensor \"a\": it is also in",
        ),
        (r#"{"weight_map":{"a":"1.safetensors","a":"3.safetensors"}}"#, "duplicate tensor \"a\""),
        (
            r#"{"weight_map":{"a":"../x.safetensors"}}"#,
            "shard \"../x.safetensors\": expected a file name without a directory",
        ),
        (r#"{"weight_map":{"a":"sub/1.safetensors"}}"#, "expected a file name without a directory"),
        (
            r#"{"weight_map":{"a":"sub\\1.safetensors"}}"#,
            "expected a file name without a directory",
        ),
        (r#"{"weight_map":{"a":""}}"#, "expected a file name without a directory"),
        (r#"{"weight_map":{"a":"sub"}}"#, "sub: cannot be read: not a regular file"),
        (
            &format!(r#"{{"weight_map":{{"a":{absolute:?}}}}}"#),
            "expected a file name without a directory",
        ),
        (&long, "cannot be read"),
        (r#"{"weight_map":{}}"#, "expected 1 to 10000 shards, got 0"),
        (r#"{"weight_map":{"a":1}}"#, "tensor \"a\": invalid type"),
        (r#"{"metadata":{}}"#, "weight_map"),
        ("", "EOF"),
        ("\u{0}\u{1}", "index.json: expected value"),
    ] {
        let error = message(open(index));
        assert!(error.contains(part) && error.contains(&folder.display().to_string()), "{error}");
    }
    open(r#"{"weight_map":{"a":"1.safetensors"}}"#).unwrap();
    fs::write(folder.join("model.safetensors"), tensor("a")).unwrap();
    assert!(message(Weights::open(&*folder)).contains("got both"));
}

#[test]
fn missing_files_are_errors() {
    let folder = Folder::new();
    assert!(message(Weights::open(&*folder)).contains("model.safetensors: cannot be read"));
    assert!(message(Config::read(&*folder)).contains("config.json: cannot be read"));
    assert!(message(Weights::open(folder.join("none"))).contains("none: cannot be read"));
    fs::write(folder.join("model.safetensors"), "").unwrap();
    assert!(
        message(Weights::open(&*folder))
            .contains("expected a safetensors file of 8 bytes or more, got 0")
    );
    fs::create_dir(folder.join("config.json")).unwrap();
    assert!(message(Config::read(&*folder)).contains("cannot be read"));
}

#[test]
fn an_existing_model_is_replaced_only_on_request() {
    let folder = Folder::new();
    let dir = folder.join("m");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    fs::write(dir.join("vocab.txt"), "old").unwrap();
    // A directory without a model is accepted.
    write(&dir, &SaveOptions { shard_bytes: 0, ..Default::default() }).unwrap();
    let before = folder::contents(&dir);
    let error = message(write(&dir, &SaveOptions::default()));
    assert!(error.contains("config.json: the directory already contains a model"), "{error}");
    assert_eq!(folder::contents(&dir), before);

    // A failed save leaves the directory unchanged.
    let bad = Array::from_fn([40_000], |i| if i == 39_999 { f32::NAN } else { 0.0 });
    let replace = SaveOptions { existing: ExistingModel::Replace, ..Default::default() };
    let error =
        message(save(&dir, &config(), &[("ok", &Array::zeros([3])), ("bad", &bad)], &replace));
    assert!(
        error.contains("tensor \"bad\" must be finite in float32, got NaN at index 39999"),
        "{error}"
    );
    let half = SaveOptions { dtype: Dtype::F16, ..replace.clone() };
    let error = message(save(&dir, &config(), &[("large", &Array::from_fn([1], |_| 7e4))], &half));
    assert!(error.contains("must be finite in float16, got 70000 at index 0"), "{error}");
    assert!(
        message(save(&dir, &config(), &[("a", &bad), ("a", &bad)], &replace))
            .contains("duplicate tensor \"a\"")
    );
    assert!(
        message(save(&dir, &config(), &[("__metadata__", &Array::zeros([1]))], &replace))
            .contains("duplicate tensor \"__metadata__\"")
    );
    assert_eq!(folder::contents(&dir), before);
    assert!(
        message(save(folder.join("new"), &config(), &[("bad", &bad)], &replace)).contains("NaN")
    );
    assert_eq!(folder::names(&folder), ["m"]);

    let source = folder.join("source");
    fs::create_dir(&source).unwrap();
    for name in ["tokenizer.json", "merges.txt", "unrelated.bin"] {
        fs::write(source.join(name), name).unwrap();
    }
    write(&dir, &SaveOptions { tokenizer: Some(&source), ..replace.clone() }).unwrap();
    // The old shards, their index and the old tokenizer are removed.
    assert_eq!(
        folder::names(&dir),
        ["config.json", "merges.txt", "model.safetensors", "notes.txt", "tokenizer.json"]
    );
    assert_eq!(fs::read(dir.join("merges.txt")).unwrap(), b"merges.txt");
    // The tokenizer can come from the same directory.
    write(&dir, &SaveOptions { tokenizer: Some(&dir), shard_bytes: 400, ..replace.clone() })
        .unwrap();
    assert_eq!(fs::read(dir.join("tokenizer.json")).unwrap(), b"tokenizer.json");
    assert!(Weights::open(&dir).is_ok() && !dir.join("model.safetensors").exists());
    assert!(
        message(write(&dir, &SaveOptions { tokenizer: Some(&folder.join("none")), ..replace }))
            .contains("none: cannot be read")
    );
    assert!(Weights::open(&dir).is_ok());
}

#[test]
fn an_invalid_configuration_is_not_saved() {
    let folder = Folder::new();
    let mut config = config();
    let model::hf::Architecture::Gpt2(gpt2) = &mut config.architecture else { unreachable!() };
    gpt2.heads = 5;
    let error = message(save::<&str>(folder.join("m"), &config, &[], &SaveOptions::default()));
    assert!(error.contains("\"n_head\" must be a divisor of n_embd (768), got 5"), "{error}");
    assert!(folder::names(&folder).is_empty());
}

/// Loads tiny models made by `transformers`, see peers/golden_models.py.
#[test]
fn golden_models_are_loaded() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut models = 0;
    for entry in fs::read_dir(&golden).unwrap() {
        let dir = entry.unwrap().path();
        let config = Config::read(&dir).unwrap();
        let weights = Weights::open(&dir).unwrap();
        for name in weights.names() {
            let array = weights.load(name, weights.shape(name).unwrap()).unwrap();
            assert!(array.data().iter().any(|&x| x != 0.0));
        }
        weights.check_all_used().unwrap();
        assert_eq!(
            Config::parse(config.to_json(Dtype::F32).as_bytes(), "again").unwrap().architecture,
            config.architecture
        );
        models += 1;
    }
    assert!(models >= 7);
}
