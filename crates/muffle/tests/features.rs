//! Features of images: runs, evaluation of saved models, and refusals.

#![allow(clippy::unwrap_used)]

use muffle::config::Config;
use muffle::load::data::{Split, rows};
use muffle::run::{Silent, train};
use muffle::{LoadedModel, evaluate};
use std::path::{Path, PathBuf};

/// Writes grey images of which the upper half (class 0) or the lower half (class 1) has stripes.
fn images(folder: &Path, name: &str, count: u8, side: u8) -> PathBuf {
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, side, 0, 0, 0, side];
    for image in 0..count {
        for (row, col) in (0..side).flat_map(|row| (0..side).map(move |col| (row, col))) {
            let striped = (row < side / 2) == (image % 2 == 0);
            images.push(if striped && col % 2 == 0 { 250 } else { 100 + image % 7 });
        }
    }
    let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
    labels.extend((0..count).map(|image| image % 2));
    std::fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    let path = folder.join(format!("{name}-images-idx3-ubyte"));
    std::fs::write(&path, images).unwrap();
    path
}

/// A run on images, with these changes.
fn config(train: &Path, validation: &Path, changes: &[&str]) -> Config {
    let text = format!(
        "[data]\ntrain = {train:?}\nvalidation = {validation:?}\nevaluation_data = \"public\"\n\
         labels = [\"up\", \"down\"]\nfeatures = \"scattering\"\n[model]\nsource = \"linear\"\n\
         [privacy]\nepsilon = 8.0\ndelta = 1e-3\n[optimizer]\nname = \"adam\"\n\
         learning_rate = 0.05\n[training]\nsteps = 10\nlot_size = 50\n[evaluation]\nsamples = 0\n"
    );
    changes
        .iter()
        .fold(Config::parse(&text).unwrap(), |config, change| config.with(change).unwrap())
}

/// A saved model is evaluated on images, with the features that it was trained on.
#[test]
fn saved_models_apply_their_features() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (training, test) =
        (images(folder.path(), "train", 100, 9), images(folder.path(), "t10k", 20, 9));
    for (source, rate) in [("linear", 0.05), ("scatter-cnn", 0.005), ("cnn", 0.01)] {
        // The features of 9 × 9 pixels are an image of 2 × 2, which is too small for "cnn".
        let trained = train(
            &config(
                &training,
                &test,
                &[
                    &format!("model.source={source}"),
                    &format!("optimizer.learning_rate={rate}"),
                    "training.steps=20",
                ],
            ),
            &at(source),
            &mut Silent,
        );
        if source == "cnn" {
            let refused = trained.unwrap_err().to_string();
            assert!(refused.contains("smaller of image_height and image_width"), "{refused}");
            continue;
        }
        let scores = trained.unwrap().scores.unwrap();
        assert!(scores.accuracy > Some(0.9), "{source}: {scores:?}");
        let model =
            LoadedModel::open_for_inference(at(source).to_str().unwrap(), &mut |_| ()).unwrap();
        let labels = model.labels();
        let preparation = model.preparation(&labels, model.max_tokens() + 1);
        let mut network = model.network.new_instance();
        let data = config(&test, &test, &["data.features=none"]).data;
        let again = evaluate::rows(
            &mut network,
            &model.params,
            &preparation,
            rows(&data, Split::Train).unwrap().unwrap(),
            usize::MAX,
        )
        .unwrap();
        assert_eq!((again.examples, again.nll), (20, scores.nll), "{source}");
        // Images of another shape are refused.
        let narrow = images(folder.path(), "narrow", 2, 3);
        let data = config(&narrow, &narrow, &[]).data;
        let rows = rows(&data, Split::Train).unwrap().unwrap();
        let refused =
            evaluate::rows(&mut network, &model.params, &preparation, rows, 1).unwrap_err();
        assert!(
            refused.to_string().contains("an image of the size that the model reads"),
            "{refused}"
        );
    }
}

/// The probe accepts the zero weights of a linear model, and a private run learns.
#[test]
fn a_private_run_learns_from_features() {
    let folder = tempfile::tempdir().unwrap();
    let (training, test) =
        (images(folder.path(), "train", 200, 8), images(folder.path(), "t10k", 20, 8));
    let changes = ["optimizer.name=dp-sgd", "optimizer.clip=0.1", "optimizer.learning_rate=4"];
    let outcome =
        train(&config(&training, &test, &changes), &folder.path().join("run"), &mut Silent)
            .unwrap();
    assert!(outcome.statement.private);
    assert!(outcome.scores.as_ref().unwrap().accuracy > Some(0.9), "{:?}", outcome.scores);
}

/// Views are parts of one record: the number of records and the cost stay the same.
#[test]
fn views_cost_no_privacy() {
    let folder = tempfile::tempdir().unwrap();
    let (training, test) =
        (images(folder.path(), "train", 200, 8), images(folder.path(), "t10k", 20, 8));
    let run = |views: &str| {
        let changes = [
            "optimizer.name=dp-sgd",
            "optimizer.learning_rate=4",
            "privacy.seed=3",
            &format!("data.views={views}"),
        ];
        let out = folder.path().join(views);
        train(&config(&training, &test, &changes), &out, &mut Silent).unwrap()
    };
    let (alone, viewed) = (run("none"), run("flip-shift"));
    assert_eq!(alone.statement.ledger, viewed.statement.ledger);
    assert_eq!(alone.statement.epsilon, viewed.statement.epsilon);
    assert_eq!(alone.statement.records, viewed.statement.records);
    assert_ne!(alone.statement.weights_sha256, viewed.statement.weights_sha256);
    assert!(viewed.scores.as_ref().unwrap().accuracy > Some(0.9), "{:?}", viewed.scores);
    // Evaluations are on the images alone.
    assert_eq!(viewed.scores.unwrap().examples, 20);
}

/// What does not fit together is refused, with the key to change.
#[test]
fn features_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (small, large) = (images(folder.path(), "small", 60, 7), images(folder.path(), "l", 60, 9));
    let test = images(folder.path(), "t10k", 10, 9);
    let other = images(folder.path(), "other", 60, 12);
    std::fs::write(at("texts.tsv"), "sentence\tlabel\nfine\tup\nbad\tdown\n").unwrap();
    let saved = |name: &str| format!("model.source={}", at(name).join("model").display());
    train(&config(&large, &test, &[]), &at("scattering"), &mut Silent).unwrap();
    train(&config(&large, &test, &["data.features=none"]), &at("pixels"), &mut Silent).unwrap();
    let texts = format!("data.train={}", at("texts.tsv").display());
    let cases: [(&Path, &[&str], &str); 9] = [
        (&small, &[], "data.features: scattering features: expected images of 8 to 256 rows"),
        (&large, &[&texts], "data.features: expected \"none\", because data.train has no images"),
        (
            &large,
            &["model.source=tiny"],
            "data.features: expected \"none\", because model.source is a model of texts",
        ),
        (
            &large,
            &["model.source=scatter-cnn", "data.features=none"],
            "data.features: expected \"scattering\", because model.source is \"scatter-cnn\"",
        ),
        (
            &large,
            &[&saved("scattering"), "data.features=none"],
            "data.features: expected \"scattering\", as the model takes",
        ),
        (
            &other,
            &[&saved("scattering")],
            "data.train: expected images of 9 × 9 × 1, on which the model was trained; got 12 × 12",
        ),
        (
            &large,
            &[&saved("pixels")],
            "model.source: expected a model of 2 × 2 × 81 features, because data.features is \
             \"scattering\", such as \"linear\" or \"scatter-cnn\"; got a model of 81 elements",
        ),
        (
            &large,
            &[&texts, "data.features=none", "data.views=flip", "model.source=tiny"],
            "data.views: expected \"none\", because data.train has no images",
        ),
        (&large, &["model.source=preset:x"], "gpt2, cnn, linear, scatter-cnn), got \"x\""),
    ];
    for (data, changes, expected) in cases {
        let refused = train(&config(data, &test, changes), &at("refused"), &mut Silent)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(expected), "{changes:?}: {refused}");
    }
    let stored = at("scattering").join("model/config.json");
    let text = std::fs::read_to_string(&stored).unwrap();
    // The name of the former transform.
    let former = text.replace("\"whitened-scattering\"", "\"scattering\"");
    assert!(former != text);
    std::fs::write(&stored, former).unwrap();
    let refused = LoadedModel::open_for_inference(at("scattering").to_str().unwrap(), &mut |_| ())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("config.json: invalid \"image_features\""), "{refused}");
    assert!(refused.contains("train it again"), "{refused}");
}
