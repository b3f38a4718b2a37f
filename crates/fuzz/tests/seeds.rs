//! Writes the seeds that need a library, and checks the size of all seeds.

#![allow(clippy::unwrap_used)]

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use fuzz::structure::{FILES, pack};
use fuzz::target::{ALL, MARKER};
use fuzz::{build, tensors};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use muffle::run::chain::Mark;
use muffle::run::snapshot::{RunIdentity, Snapshot};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

/// To be run by hand when the format of snapshots has changed.
#[test]
#[ignore = "writes into the corpus"]
fn write_snapshots_of_every_optimizer() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/snapshot");
    fs::create_dir_all(&place).unwrap();
    for (name, rate) in [
        ("dp-sgd", "0.1"),
        ("dp-adam", "0.1"),
        ("dp-muon-bc", "0.1"),
        ("dp-adaclip", "0.1"),
        ("dp-macadam", "0.1"),
        ("dp-prism", "0.1"),
        ("dp-sgd", "hyfree"),
    ] {
        let config = muffle::Config::embedded()
            .with_optimizer(name)
            .unwrap()
            .with(&format!("optimizer.learning_rate={rate}"))
            .unwrap();
        let (tensors, params) = tensors(name == "dp-prism");
        let optimizer = build(&config, &tensors, &params).unwrap();
        // Before the first step the state of most optimizers has no tensors.
        let mut state = optimizer.save().unwrap();
        let descent = state.parts.get_mut("descent").unwrap();
        descent.set_tensors("moments", &params.clone().into());
        let ledger = Mark { run_id: "0".repeat(32), entries: 2, charges: 1, head: "0".repeat(64) };
        let identity = RunIdentity { config: "x".into(), frozen: 7, ledger, draws: 2 };
        let folder = tempfile::tempdir().unwrap();
        Snapshot {
            step: 1,
            params,
            optimizer: state,
            initial_fingerprints: vec![1, 2, 3],
            identity,
            selection: None,
        }
        .save(folder.path())
        .unwrap();
        let files =
            FILES.map(|file| fs::read(folder.path().join("step-000000001").join(file)).unwrap());
        let suffix = if rate == "hyfree" { "-hyfree" } else { "" };
        fs::write(place.join(format!("{name}{suffix}")), pack([&files[0], &files[1], &files[2]]))
            .unwrap();
    }
}

/// To be run by hand: the files cannot be made without a library.
#[test]
#[ignore = "writes into the corpus"]
fn write_tables_images_and_compressed_texts() {
    let mark = MARKER.concat();
    let put = |target: &str, name: &str, bytes: Vec<u8>| {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(name), bytes).unwrap();
    };
    let image = |format: ImageFormat| {
        let mut bytes = Cursor::new(Vec::new());
        let image = RgbImage::from_fn(6, 5, |x, y| Rgb([x as u8 * 40, y as u8 * 50, 7]));
        DynamicImage::from(image).write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    };
    put("image-file", "photo.png", image(ImageFormat::Png));
    put("image-file", "photo.jpg", image(ImageFormat::Jpeg));
    for (name, text) in [
        ("lines", format!("Some text of {mark}\nMore of it\n")),
        ("e2e", format!("a : {mark}||b\nc||d\n")),
        ("csv", format!("text;label\n{mark};1\n")),
    ] {
        put("zstd", name, zstd::stream::encode_all(text.as_bytes(), 3).unwrap());
    }
    let text = |value: &str| Arc::new(StringArray::from(vec![Some(value), None])) as ArrayRef;
    let png = image(ImageFormat::Png);
    let images = Arc::new(BinaryArray::from(vec![&png[..], &png[..]])) as ArrayRef;
    let numbers = Arc::new(Int64Array::from(vec![Some(1), None])) as ArrayRef;
    for (name, columns) in [
        ("labelled", vec![("text", text(&mark)), ("label", numbers), ("user", text("ann"))]),
        ("prompts", vec![("prompt", text(&mark)), ("completion", text("fine"))]),
        ("images", vec![("image", images), ("label", text(&mark))]),
    ] {
        let columns = columns.into_iter().map(|(name, values)| (name, values, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        // Without nulls, as most files are, so that they are accepted by default.
        let batch = if name == "images" { batch.slice(0, 1) } else { batch };
        for (rows, batch) in [("one", batch.slice(0, 1)), ("all", batch)] {
            let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
            let mut file =
                ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
            file.write(&batch).unwrap();
            put("parquet", &format!("{name}-{rows}"), file.into_inner().unwrap());
            let mut file = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            file.write(&batch).unwrap();
            put("arrow", &format!("{name}-{rows}"), file.into_inner().unwrap());
        }
        let options = IpcWriteOptions::default()
            .try_with_compression(Some(CompressionType::LZ4_FRAME))
            .unwrap();
        let mut file =
            FileWriter::try_new_with_options(Vec::new(), &batch_of(&mark).schema(), options)
                .unwrap();
        file.write(&batch_of(&mark)).unwrap();
        put("arrow", "file-lz4", file.into_inner().unwrap());
    }
}

fn batch_of(text: &str) -> RecordBatch {
    let column = || Arc::new(StringArray::from(vec![text.repeat(20)])) as ArrayRef;
    RecordBatch::try_from_iter([("source", column()), ("target", column())]).unwrap()
}

#[test]
fn every_target_has_small_seeds() {
    let mut all = 0;
    for target in ALL {
        let seeds = fuzz::fuzz_loop::committed("corpus", target.name).unwrap();
        assert!(seeds.len() >= 2, "{}", target.name);
        for (path, seed) in seeds {
            assert!(
                seed.len() <= 4096 && seed.len() <= target.max_length,
                "{}: {} bytes",
                path.display(),
                seed.len()
            );
            all += seed.len();
        }
    }
    assert!(all < 200 << 10, "{all} bytes of seeds");
}
