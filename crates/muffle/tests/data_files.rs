//! Data as they come: folders of images, tables with missing values, and their classes.

#![allow(clippy::unwrap_used)]

use data::{LongTexts, ModelInput, Preparation, Task};
use image::{DynamicImage, GrayImage, Luma};
use muffle::Config;
use muffle::load::data::{TrainingData, labels_and_shape, training_data};
use muffle::run::{Silent, train};
use std::fs;
use std::path::Path;
use text::Tokenizer;

fn config(changes: &[String]) -> Config {
    let mut config = Config::embedded();
    config.evaluation = Default::default();
    config.optimizer.ema_decay = 0.0;
    changes.iter().fold(config, |config, change| config.with(change).unwrap())
}

/// Writes grey images of different sizes, whose upper or lower half is light.
fn write_images(folder: &Path, count: u32) {
    for (class, half) in [("upper", 0), ("lower", 1)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for at in 0..count {
            let value = |y: u32| if y / 4 == half { 220 } else { 30 };
            let image = GrayImage::from_fn(8 + at % 3, 8, |_, y| Luma([value(y) + at as u8 % 9]));
            let path = folder.join(class).join(format!("{at}.png"));
            DynamicImage::from(image).save(path).unwrap();
        }
    }
}

/// Names of subfolders are not read from the private folder.
#[test]
fn classes_of_image_folders_are_declared_or_public() {
    let place = tempfile::tempdir().unwrap();
    let (photos, public) = (place.path().join("photos"), place.path().join("public"));
    write_images(&photos, 2);
    write_images(&public, 1);
    let base = [format!("data.train={}", photos.display()), "data.image_size=[8, 8, 1]".into()];
    let with = |more: &[String]| {
        labels_and_shape(&config(&[&base[..], more].concat()).data).map_err(|e| e.to_string())
    };
    let refused = with(&[]).unwrap_err();
    assert!(refused.contains("data.labels: expected at least 2 classes"), "{refused}");
    let validation = format!("data.validation={}", public.display());
    let refused = with(std::slice::from_ref(&validation)).unwrap_err();
    assert!(refused.contains("data.labels"), "{refused}");
    let (labels, shape) = with(&[validation, "data.evaluation_data=public".into()]).unwrap();
    assert_eq!(labels, ["lower", "upper"]);
    assert_eq!(shape.map(|shape| (shape.height, shape.width, shape.channels)), Some((8, 8, 1)));
    let (labels, _) = with(&["data.labels=[\"upper\", \"lower\"]".into()]).unwrap();
    assert_eq!(labels, ["upper", "lower"]);
    let unsized_ =
        labels_and_shape(&config(&["data.image_size=[8, 8]".into(), base[0].clone()]).data);
    assert!(unsized_.unwrap_err().to_string().contains("data.image_size: expected height, width"),);
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let refused = labels_and_shape(&config(&[format!("data.train={}", empty.display())]).data);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("got a folder without images"), "{refused}");
}

#[test]
fn a_model_is_trained_on_a_folder_of_images() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    write_images(&at("photos"), 20);
    write_images(&at("public"), 5);
    let config = config(&[
        "model.source=cnn".into(),
        format!("data.train={}", at("photos").display()),
        format!("data.validation={}", at("public").display()),
        "data.evaluation_data=public".into(),
        "data.image_size=[8, 8, 3]".into(),
        "optimizer.name=adam".into(),
        "training.steps=30".into(),
        "training.lot_size=20".into(),
    ]);
    // The training images are not evaluated, under whatever path.
    let same = config.with(&format!("data.validation={}/.", at("photos").display())).unwrap();
    let refused = train(&same, &at("same"), &mut Silent).unwrap_err().to_string();
    assert!(refused.contains("is the training data"), "{refused}");
    let outcome = train(&config, &at("run"), &mut Silent).unwrap();
    assert!(outcome.scores.as_ref().unwrap().accuracy > Some(0.9), "{:?}", outcome.scores);
    let model =
        muffle::LoadedModel::open_for_inference(at("run").to_str().unwrap(), &mut |_| ()).unwrap();
    assert_eq!(
        (model.image_size(), model.labels()),
        (vec![8, 8, 3], vec!["lower".into(), "upper".into()])
    );
}

fn read(table: &str, changes: &[&str]) -> Result<TrainingData, String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("rows.csv");
    fs::write(&path, table).unwrap();
    let tokenizer = Tokenizer::train(["a b c"].into_iter(), 258, &["<bos>", "<eos>"]).unwrap();
    let labels = ["good".to_string(), "bad".to_string()];
    let input = ModelInput::Classifier { tokenizer: &tokenizer };
    let (task, long_texts) = (Task::Classification, LongTexts::default());
    let preparation = Preparation { input, task, labels: &labels, limit: 100, long_texts };
    let train = format!("data.train={}", path.display());
    let changes: Vec<String> =
        [train].into_iter().chain(changes.iter().map(|change| (*change).into())).collect();
    training_data(&config(&changes), &preparation, place.path(), 32 << 20)
        .map_err(|error| error.to_string())
}

/// N is the number of rows, also if rows that are too long or empty are declared public.
#[test]
fn rows_without_a_value_are_vacant_places() {
    let complete = "text;label;who\na;good;x\nb;bad;y\nc;good;y\n";
    let missing = "text;label;who\na;good;x\nb;NA;y\n;good;y\n";
    let refused = read(missing, &[]).err().unwrap();
    assert!(
        refused.contains("rows.csv, line 3: \"label\" has no value")
            && refused.contains("data.missing = \"skip\""),
        "{refused}"
    );
    let skip = "data.missing=skip";
    for more in [&[skip][..], &[skip, "data.dropped_rows=public"]] {
        let data = read(missing, more).unwrap();
        assert_eq!((data.records.places(), data.dropped.missing, data.dropped.empty), (3, 2, 0));
        assert_eq!(read(complete, more).unwrap().records.places(), 3);
        // A person whose rows have no value keeps a place.
        let persons = [more, &["data.group=who"]].concat();
        for table in [complete, missing] {
            assert_eq!(read(table, &persons).unwrap().records.places(), 2);
        }
    }
}
