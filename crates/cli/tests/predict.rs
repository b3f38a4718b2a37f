//! `muffle predict` and `muffle eval` of classifiers, multi-label classifiers and regressions.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use model::activation::Activation;
use model::hf::{self, Architecture, BertConfig, Pooling, SaveOptions};
use model::{Checkpoint, Network};
use muffle::evaluate::metrics::ClassTally;
use program::{muffle, run_toml};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Runs the program in a folder. It must succeed.
fn succeed(place: &Path, arguments: &[&str]) -> Output {
    let output = muffle(arguments).current_dir(place).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    output
}

fn stdout(place: &Path, arguments: &[&str]) -> String {
    String::from_utf8(succeed(place, arguments).stdout).unwrap()
}

/// Parses standard output, which must be one JSON object.
fn json(place: &Path, arguments: &[&str]) -> Value {
    serde_json::from_slice(&succeed(place, &[arguments, &["--json"]].concat()).stdout).unwrap()
}

/// Runs the program, which must refuse with exit code 2. Returns its message.
fn refusal(place: &Path, arguments: &[&str]) -> String {
    let output = muffle(arguments).current_dir(place).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty());
    stderr
}

/// Writes a small BERT without a head to `bert`, with its tokenizer.
fn write_bert(place: &Path) {
    let texts: Vec<String> = (0..40).map(|i| format!("good bad {i} fine poor")).collect();
    let tokenizer =
        text::Tokenizer::train(texts.iter().map(String::as_str), 280, &["<pad>"]).unwrap();
    let bert = BertConfig {
        vocab: tokenizer.vocab_size(),
        positions: 24,
        types: 1,
        width: 16,
        layers: 1,
        heads: 2,
        inner: 16,
        activation: Activation::GeluErf,
        epsilon: 1e-5,
        labels: 2,
        pooling: Pooling::FirstToken,
    };
    let config = hf::Config::new(Architecture::Bert(bert));
    let (config, network, params) =
        Checkpoint::new(config, None, 1).unwrap().network(&cpu::Cpu, |_| true).unwrap();
    let folder = place.join("bert");
    Checkpoint::save(&folder, &config, &network, &params, &SaveOptions::default()).unwrap();
    tokenizer.save(&folder.join("tokenizer.json")).unwrap();
    let bytes: Vec<(&str, Vec<usize>, Vec<u8>)> = network
        .tensors(&params)
        .iter()
        .filter(|(name, _)| !name.starts_with("classifier."))
        .map(|(name, tensor)| {
            let bytes = tensor.data().iter().flat_map(|x| x.to_le_bytes()).collect();
            (*name, tensor.shape().to_vec(), bytes)
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        let dtype = safetensors::Dtype::F32;
        (*name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// Trains on `train.csv` without privacy, so that a few steps are enough. Returns the result.
fn train(place: &Path, data: &str) -> Value {
    std::fs::write(place.join("RUN.toml"), run_file(data)).unwrap();
    json(place, &["train", "RUN.toml", "--out", "run"])
}

fn run_file(data: &str) -> String {
    format!(
        "[model]\nsource = \"bert\"\n[data]\ntrain = \"train.csv\"\nvalidation = \"public.csv\"\n\
         evaluation_data = \"public\"\n{data}\n[optimizer]\nname = \"adam\"\nlearning_rate = 0.01\n\
         [training]\nsteps = 40\nlot_size = 40\n[evaluation]\nevery = 20\n"
    )
}

fn write(place: &Path, name: &str, text: &str) -> PathBuf {
    let path = place.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A table of texts with labels.
fn table(rows: impl Iterator<Item = (String, String)>) -> String {
    let row =
        |(text, label): (String, String)| format!("{text},\"{}\"\n", label.replace('"', "\"\""));
    "text,label\n".to_string() + &rows.map(row).collect::<String>()
}

fn sentiment(i: usize) -> (String, String) {
    let (word, label) = [("good", "pos"), ("bad", "neg"), ("poor", "neg")][i % 3];
    (format!("{word} {i}"), label.into())
}

/// A sentence encoder is classified by the mean of its tokens, also after it was saved.
#[test]
fn the_mean_of_all_tokens_is_classified() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    write_bert(place);
    let stated = place.join("bert/config.json");
    let base = std::fs::read_to_string(&stated).unwrap();
    let base = base.replace("BertForSequenceClassification", "BertModel");
    std::fs::write(&stated, base).unwrap();
    std::fs::create_dir(place.join("bert/1_Pooling")).unwrap();
    write(place, "bert/1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": true}");
    write(place, "train.csv", &table((0..60).map(sentiment)));
    write(place, "public.csv", &table((60..90).map(sentiment)));
    let metrics = train(place, "")["metrics"].clone();
    assert!(metrics["accuracy"].as_f64().unwrap() > 0.9, "{metrics}");
    let saved = std::fs::read_to_string(place.join("run/model/config.json")).unwrap();
    assert!(saved.contains("\"classifier_pooling\": \"mean\""), "{saved}");
    let weights = std::fs::read(place.join("run/model/model.safetensors")).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert!(weights.names().iter().all(|name| !name.contains("pooler")));
    let eval = json(place, &["eval", "run", "--data", "public.csv"]);
    assert_eq!(eval["nll"], metrics["nll"]);
}

#[test]
fn texts_are_classified() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    write_bert(place);
    write(place, "train.csv", &table((0..60).map(sentiment)));
    write(place, "public.csv", &table((60..90).map(sentiment)));
    let result = train(place, "");
    let metrics = &result["metrics"];
    assert!(metrics["accuracy"].as_f64().unwrap() > 0.9, "{metrics}");
    assert!(metrics["perplexity"].is_null() && metrics["macro_f1"].as_f64().unwrap() > 0.9);
    assert_eq!(metrics["confusion_matrix"]["labels"], serde_json::json!(["neg", "pos"]));

    let eval = json(place, &["eval", "run", "--data", "public.csv"]);
    for name in ["nll", "accuracy", "macro_f1", "auroc", "confusion_matrix"] {
        assert_eq!(eval[name], metrics[name], "{name}");
    }
    let shown = stdout(place, &["eval", "run", "--data", "public.csv"]);
    assert!(
        shown.contains("macro-F1") && shown.contains("AUROC") && !shown.contains("perplexity"),
        "{shown}"
    );
    assert!(shown.contains("class \\ predicted  neg  pos"), "{shown}");

    // Data with labels, with the same metrics as the evaluation.
    let object = json(place, &["predict", "run", "--data", "public.csv"]);
    let rows = object["rows"].as_array().unwrap();
    let mut tally = ClassTally::new(2);
    for (row, i) in rows.iter().zip(60..90) {
        let p = ["neg", "pos"].map(|label| row["probabilities"][label].as_f64().unwrap());
        assert!((p[0] + p[1] - 1.0).abs() < 1e-12);
        assert_eq!(row["label"], if p[1] > p[0] { "pos" } else { "neg" });
        tally.add(u32::from(sentiment(i).1 == "pos"), &p);
    }
    assert_eq!(rows.len(), 30);
    assert_eq!(
        (tally.accuracy(), tally.auroc()),
        (eval["accuracy"].as_f64(), eval["auroc"].as_f64())
    );

    // The same texts without labels, in all formats, and as CSV and JSONL.
    let texts: Vec<String> = (60..90).map(|i| sentiment(i).0).collect();
    let lines = texts.iter().map(|text| format!("{text}\n")).collect::<String>();
    write(place, "new.txt", &lines);
    write(place, "new.csv", &("text\n".to_string() + &lines));
    write(place, "bare.csv", &lines);
    let named = texts.iter().map(|text| format!("7,{text}\n")).collect::<String>();
    write(place, "named.csv", &("id,review\n".to_string() + &named));
    let objects = texts.iter().map(|text| format!("{{\"text\":\"{text}\"}}\n"));
    write(place, "new.jsonl", &objects.collect::<String>());
    for arguments in [
        &["new.txt"][..],
        &["new.csv"],
        &["bare.csv"],
        &["new.jsonl"],
        &["named.csv", "--text-column", "review"],
    ] {
        let arguments = [&["predict", "run", "--data"], arguments].concat();
        assert_eq!(json(place, &arguments), object, "{arguments:?}");
    }
    let csv = stdout(place, &["predict", "run", "--data", "new.txt"]);
    let mut cells = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    assert_eq!(cells.next().unwrap(), ["row", "label", "neg", "pos"]);
    for (line, row) in cells.zip(rows) {
        assert_eq!((line[0], line[1]), (&*row["row"].to_string(), row["label"].as_str().unwrap()));
        assert_eq!(line[3].parse::<f64>().ok(), row["probabilities"]["pos"].as_f64());
    }
    let written = |name: &str| {
        succeed(place, &["predict", "run", "--data", "new.txt", "--out", name]);
        std::fs::read_to_string(place.join(name)).unwrap()
    };
    assert_eq!(written("out.csv"), csv);
    let line: Value = serde_json::from_str(written("out.jsonl").lines().next().unwrap()).unwrap();
    assert_eq!(&line, &rows[0]);

    // Empty rows have no prediction, and keep their place; long ones are cut.
    write(place, "odd.txt", &format!("good 1\n\n{}\nbad 2\n", "good ".repeat(30)));
    let output = succeed(place, &["predict", "run", "--data", "odd.txt"]);
    let csv = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[1].starts_with("1,pos,") && lines[4].starts_with("4,neg,"), "{csv}");
    assert!(lines[2] == "2,,," && lines[3].starts_with("3,pos,"), "{csv}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("because they are empty: 1\n"), "{stderr}");

    // Nothing is overwritten or left behind by an invalid file.
    let before = std::fs::read(place.join("out.csv")).unwrap();
    write(place, "broken.csv", "text\ngood\n\"bad\n");
    refusal(place, &["predict", "run", "--data", "broken.csv", "--out", "out.csv"]);
    assert_eq!(std::fs::read(place.join("out.csv")).unwrap(), before);
    assert!(!place.join("out.csv.partial").exists());
    let same = refusal(place, &["predict", "run", "--data", "new.csv", "--out", "new.csv"]);
    assert!(same.contains("--out: expected another file than --data"), "{same}");
    let name = refusal(place, &["predict", "run", "--data", "new.csv", "--out", "new.parquet"]);
    assert!(name.contains(".csv or .jsonl"), "{name}");
    let names = refusal(place, &["predict", "run", "--data", "new.csv", "--labels", "a,b,c"]);
    assert!(names.contains("expected 2 different names"), "{names}");
}

#[test]
fn numbers_are_predicted() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    write_bert(place);
    let price = |i: usize| {
        let (word, price) = [("good", 130.5), ("bad", 90.0), ("poor", 80.25)][i % 3];
        (format!("{word} {}", i % 7), price.to_string())
    };
    write(place, "train.csv", &table((0..60).map(price)));
    write(place, "public.csv", &table((60..90).map(price)));
    let keys = "task = \"regression\"\ntarget_mean = 100.0\ntarget_scale = 20.0";
    let result = train(place, keys);
    let metrics = &result["metrics"];
    assert!(metrics["r2"].as_f64().unwrap() > 0.8, "{metrics}");
    let rmse = metrics["rmse"].as_f64().unwrap();
    assert!(metrics["nll"].is_null() && metrics["accuracy"].is_null() && rmse < 10.0);
    assert!(metrics["best_rmse"].as_f64().is_some() && metrics["mae"].as_f64().unwrap() <= rmse);
    let saved: Value =
        serde_json::from_slice(&std::fs::read(place.join("run/model/config.json")).unwrap())
            .unwrap();
    assert_eq!(
        (&saved["problem_type"], &saved["target_mean"]),
        (&"regression".into(), &100.0.into())
    );
    assert_eq!(saved["id2label"].as_object().unwrap().len(), 1);
    let report = std::fs::read_to_string(place.join("run/report.html")).unwrap();
    assert!(report.contains("RMSE") && !report.contains("perplexity"));

    let eval = json(place, &["eval", "run", "--data", "public.csv"]);
    assert_eq!((&eval["rmse"], &eval["r2"]), (&metrics["rmse"], &metrics["r2"]));
    let rows = json(place, &["predict", "run", "--data", "public.csv"]);
    let mut squares = 0.0;
    for (row, i) in rows["rows"].as_array().unwrap().iter().zip(60..90) {
        squares += (row["value"].as_f64().unwrap() - price(i).1.parse::<f64>().unwrap()).powi(2);
    }
    assert!(((squares / 30.0).sqrt() - rmse).abs() < 1e-4 * rmse);
    let csv = stdout(place, &["predict", "run", "--data", "public.csv"]);
    assert!(csv.starts_with("row,value\n1,"), "{csv}");

    // JSON numbers; numbers that are not finite are refused without showing them.
    write(
        place,
        "new.jsonl",
        "{\"text\":\"good\",\"label\":130.5}\n{\"text\":\"bad\",\"label\":90}\n",
    );
    let eval = json(place, &["eval", "run", "--data", "new.jsonl"]);
    assert_eq!(eval["examples"], 2);
    write(place, "train.csv", "text,label\ngood,1\nbad,NaN\n");
    let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
    assert!(refused.contains("line 3: \"label\" has no value"), "{refused}");
    for number in ["inf", "seven"] {
        write(place, "train.csv", &format!("text,label\ngood,1\nbad,{number}\n"));
        let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
        let end = "line 3: expected a finite number, got another\n";
        assert!(refused.ends_with(end), "{refused}");
    }
    for (keys, part) in [
        ("task = \"regression\"\nlabels = [\"a\"]", "data.labels: expected none"),
        ("task = \"regression\"\ntarget_scale = 0.0", "data.target_scale: expected a finite"),
        ("target_mean = 3.0", "data.target_mean: expected data.task = \"regression\""),
        ("task = \"regresion\"", "data.task"),
    ] {
        write(place, "RUN.toml", &run_file(keys));
        let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
        assert!(refused.contains(part), "{refused}");
    }
    // A model with a head for numbers is trained on numbers with its constants.
    write(place, "train.csv", &table((0..60).map(price)));
    for (keys, part) in [
        ("labels = [\"0\", \"1\"]", "data.task: expected \"regression\", as the model has"),
        ("task = \"regression\"", "expected the constants of the model"),
    ] {
        write(place, "RUN.toml", &run_file(keys).replace("\"bert\"", "\"run/model\""));
        let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
        assert!(refused.contains(part), "{refused}");
    }
    write(place, "RUN.toml", &run_file(&format!("{keys}\n[evaluation]\nselect = \"best-nll\"")));
    let text = std::fs::read_to_string(place.join("RUN.toml")).unwrap();
    write(place, "RUN.toml", text.rsplit_once("[evaluation]").unwrap().0);
    let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
    assert!(refused.contains("choose \"best-rmse\""), "{refused}");
}

#[test]
fn several_labels_are_predicted() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    write_bert(place);
    let row = |i: usize| {
        let (word, labels) =
            [("good", "kind;warm"), ("bad", "cold"), ("poor", ""), ("fine", "[\"warm\"]")][i % 4];
        (format!("{word} {}", i % 5), labels.to_string())
    };
    write(place, "train.csv", &table((0..80).map(row)));
    write(place, "public.csv", &table((80..120).map(row)));
    let result = train(place, "task = \"multi-label\"");
    let metrics = &result["metrics"];
    for name in ["micro_f1", "macro_f1", "auroc"] {
        assert!(metrics[name].as_f64().unwrap() > 0.8, "{metrics}");
    }
    assert!(metrics["accuracy"].is_null() && metrics["nll"].as_f64().is_some());
    let saved: Value =
        serde_json::from_slice(&std::fs::read(place.join("run/model/config.json")).unwrap())
            .unwrap();
    assert_eq!(saved["problem_type"], "multi_label_classification");
    assert_eq!(saved["id2label"], serde_json::json!({"0": "cold", "1": "kind", "2": "warm"}));
    let eval = json(place, &["eval", "run", "--data", "public.csv"]);
    assert_eq!((&eval["micro_f1"], &eval["auroc"]), (&metrics["micro_f1"], &metrics["auroc"]));

    let rows = json(place, &["predict", "run", "--data", "public.csv"]);
    assert_eq!(rows["rows"][0]["labels"], serde_json::json!(["kind", "warm"]));
    assert_eq!(rows["rows"][2]["labels"], serde_json::json!([]));
    let csv = stdout(place, &["predict", "run", "--data", "public.csv"]);
    assert!(csv.starts_with("row,label,cold,kind,warm\n1,kind;warm,"), "{csv}");
    let jsonl =
        "{\"text\":\"good\",\"label\":[\"kind\",\"warm\"]}\n{\"text\":\"poor\",\"label\":[]}\n";
    write(place, "new.jsonl", jsonl);
    assert_eq!(json(place, &["eval", "run", "--data", "new.jsonl"])["examples"], 2);
    write(place, "train.csv", "text,label\ngood,kind\nbad,unkind\n");
    let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
    assert!(
        refused.contains("expected labels of data.labels") && !refused.contains("unkind"),
        "{refused}"
    );
}

/// Images need no file of labels.
#[test]
fn images_are_classified() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    for (name, count) in [("train", 60u8), ("t10k", 20)] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 8, 0, 0, 0, 8];
        images.extend((0..count).flat_map(|i| {
            (0..64u8).map(move |pixel| if pixel / 32 == i % 2 { 200 } else { pixel })
        }));
        std::fs::write(place.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
        labels.extend((0..count).map(|i| i % 2));
        std::fs::write(place.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    }
    let config = "[model]\nsource = \"linear\"\n[data]\ntrain = \"train-images-idx3-ubyte\"\n\
        validation = \"t10k-images-idx3-ubyte\"\nlabels = [\"low\", \"high\"]\n[optimizer]\n\
        name = \"adam\"\n[training]\nsteps = 20\nlot_size = 30\n";
    write(place, "RUN.toml", config);
    let output = succeed(place, &["train", "RUN.toml", "--out", "run"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    // Figures on validation data that are not declared public keep their mark.
    for name in ["NLL", "accuracy", "macro-F1", "AUROC"] {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("NON-PRIVATE"), "{line}");
    }
    assert!(!shown.contains("perplexity"), "{shown}");
    std::fs::remove_file(place.join("t10k-labels-idx1-ubyte")).unwrap();
    let object = json(place, &["predict", "run", "--data", "t10k-images-idx3-ubyte"]);
    let rows = object["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row["label"], ["low", "high"][i % 2]);
    }
    write(place, "new.txt", "a text\n");
    let refused = refusal(place, &["predict", "run", "--data", "new.txt"]);
    assert!(refused.contains("expected an image"), "{refused}");
}

/// A language model is refused, and the message names the command that fits.
#[test]
fn language_models_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 1);
    let place = place.path();
    succeed(place, &["train", config.to_str().unwrap(), "--out", "run"]);
    let refused = refusal(place, &["predict", "run", "--data", "public.txt"]);
    assert!(refused.contains("muffle generate"), "{refused}");
    let text = std::fs::read_to_string(&config).unwrap();
    write(place, "RUN.toml", &text.replace("[data]", "[data]\ntask = \"regression\""));
    let refused = refusal(place, &["train", "RUN.toml", "--out", "x"]);
    assert!(refused.contains("data.task: expected \"auto\""), "{refused}");
}
