//! Parquet and Arrow files: kinds of columns, compression, damaged files, memory.
#![allow(clippy::unwrap_used)]

use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Float64Array, Int64Array,
    LargeStringArray, RecordBatch, StringArray, StringViewArray, StructArray, UInt8Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Fields};
use data::{Content, Error, Format, Label, Missing, ReadOptions, Record};
use image::{DynamicImage, GrayImage, ImageFormat, Luma};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn strings(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, values)| (name, values, true)),
    )
    .unwrap()
}

fn parquet(batch: &RecordBatch, compression: Compression) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(100))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn feather(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer =
        FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Writes bytes to a file and reads it in its detected format.
fn read(bytes: &[u8], options: &ReadOptions) -> Result<Vec<Record>, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, bytes).unwrap();
    Format::detect(&path)?.read(&path, options)?.collect()
}

/// A batch in every file format.
fn files(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    let mut files: Vec<_> = compressions.map(|codec| parquet(batch, codec)).into();
    let codecs = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];
    files.extend(codecs.map(|codec| feather(batch, codec)));
    files
}

/// Text, label and group of each record; `None` for a row without a value.
fn rows(records: &[Record]) -> Vec<Option<(String, String, String)>> {
    let cells = |record: &Record| {
        let group = record.group.clone().unwrap_or_default();
        match &record.content {
            Content::Labelled { text, label } => Some((text.clone(), label.clone(), group)),
            Content::Text { source, target, .. } => {
                Some((source.clone().unwrap_or_default(), target.clone(), group))
            }
            Content::Missing => None,
            Content::Image { .. } => panic!("no text"),
        }
    };
    records.iter().map(cells).collect()
}

fn row(text: &str, label: &str, group: &str) -> Option<(String, String, String)> {
    Some((text.into(), label.into(), group.into()))
}

fn refusal(batch: &RecordBatch, options: &ReadOptions) -> String {
    let messages: Vec<String> = files(batch)
        .iter()
        .map(|file| read(file, options).unwrap_err().to_string())
        .map(|message| message.split_once("/data").map_or(message.clone(), |(_, m)| m.into()))
        .collect();
    assert!(messages.iter().all(|message| *message == messages[0]), "{messages:#?}");
    messages[0].clone()
}

#[test]
fn texts_and_labels_of_every_type_are_read() {
    let texts = [Some("a"), Some(" b é ")];
    let dictionary: DictionaryArray<Int32Type> = vec!["x", "y"].into_iter().collect();
    let columns: [(ArrayRef, ArrayRef, [&str; 2]); 6] = [
        (strings(&texts), strings(&[Some("x"), Some(" y")]), ["x", "y"]),
        (Arc::new(LargeStringArray::from(texts.to_vec())), Arc::new(dictionary), ["x", "y"]),
        (
            Arc::new(StringViewArray::from(texts.to_vec())),
            Arc::new(Int64Array::from(vec![-1, 7])),
            ["-1", "7"],
        ),
        (strings(&texts), Arc::new(UInt8Array::from(vec![0, 255])), ["0", "255"]),
        (strings(&texts), Arc::new(BooleanArray::from(vec![true, false])), ["true", "false"]),
        (strings(&texts), Arc::new(Float64Array::from(vec![1.0, -3.0])), ["1", "-3"]),
    ];
    for (text, label, names) in columns {
        let batch = batch(vec![
            ("other", strings(&[None, None])),
            ("Label", label),
            ("text", text),
            ("user", strings(&[Some("ann"), Some("bob")])),
        ]);
        let grouped = ReadOptions { group: Some("user".into()), ..ReadOptions::default() };
        for file in files(&batch) {
            let records = read(&file, &grouped).unwrap();
            assert_eq!(rows(&records), [row("a", names[0], "ann"), row("b é", names[1], "bob")]);
            assert_eq!(records.iter().map(|record| record.line).collect::<Vec<_>>(), [1, 2]);
        }
        assert_eq!(read(&stream(&batch), &grouped).unwrap().len(), 4);
        // A stream can be compressed as a whole.
        let packed = zstd::stream::encode_all(&stream(&batch)[..], 1).unwrap();
        assert_eq!(read(&packed, &grouped).unwrap().len(), 4);
    }
}

#[test]
fn prompts_answers_and_messages_are_read() {
    let one = |text: &str| strings(&[Some(text), Some("b")]);
    for (columns, expected) in [
        (vec![("prompt", one("p")), ("completion", one("c"))], ["p", "c"]),
        (vec![("source", one("p")), ("target", one("c"))], ["p", "c"]),
        (vec![("instruction", one("p")), ("output", one("c"))], ["p", "c"]),
        (
            vec![("instruction", one("p")), ("response", one("c")), ("input", one("i"))],
            ["p\n\ni", "c"],
        ),
        (vec![("text", one("c"))], ["", "c"]),
    ] {
        let batch = batch(columns);
        for file in files(&batch) {
            let records = read(&file, &ReadOptions::default()).unwrap();
            assert_eq!(rows(&records)[0], row(expected[0], expected[1], ""));
        }
    }
    let fields: Fields =
        vec![Field::new("role", DataType::Utf8, true), Field::new("content", DataType::Utf8, true)]
            .into();
    let mut messages = ListBuilder::new(StructBuilder::from_fields(fields, 4));
    for (role, content) in [("user", "hello"), ("assistant", "good day")] {
        let turn = messages.values();
        turn.field_builder::<StringBuilder>(0).unwrap().append_value(role);
        turn.field_builder::<StringBuilder>(1).unwrap().append_value(content);
        turn.append(true);
    }
    messages.append(true);
    let turn = messages.values();
    turn.field_builder::<StringBuilder>(0).unwrap().append_value("user");
    turn.field_builder::<StringBuilder>(1).unwrap().append_value("secret");
    turn.append(true);
    messages.append(true);
    let batch = batch(vec![("messages", Arc::new(messages.finish()) as ArrayRef)]);
    for file in files(&batch.slice(0, 1)) {
        let records = read(&file, &ReadOptions::default()).unwrap();
        assert_eq!(rows(&records), [row("user: hello", "good day", "")]);
    }
    assert_eq!(
        refusal(&batch, &ReadOptions::default()),
        ", row 2: \"messages\" must be messages that end with the assistant's, got another role \
         at the end"
    );
}

#[test]
fn rows_without_a_value_are_errors_or_skipped() {
    let labels = Float64Array::from(vec![Some(1.0), None, Some(f64::NAN), Some(2.0)]);
    let texts = strings(&[Some("a"), Some("b"), Some("c"), None]);
    let batch = batch(vec![("text", texts), ("label", Arc::new(labels) as ArrayRef)]);
    let expected = ", row 2: \"label\" has no value; complete the row, or set data.missing = \
         \"skip\" to leave its place vacant";
    assert_eq!(refusal(&batch, &ReadOptions::default()), expected);
    let skip = ReadOptions { missing: Missing::Skip, ..ReadOptions::default() };
    for file in files(&batch) {
        assert_eq!(rows(&read(&file, &skip).unwrap()), [row("a", "1", ""), None, None, None]);
    }
}

fn png(value: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image = GrayImage::from_pixel(3, 2, Luma([value]));
    DynamicImage::from(image).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// As bytes, and as a structure of bytes and path, the way `datasets` of Hugging Face stores them.
#[test]
fn images_are_read() {
    let images = [png(51), png(255)];
    let bytes: ArrayRef =
        Arc::new(BinaryArray::from(images.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    let structure: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("bytes", DataType::Binary, true)), Arc::clone(&bytes)),
        (Arc::new(Field::new("path", DataType::Utf8, true)), strings(&[None, Some("x.png")])),
    ]));
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 0]));
    for image in [bytes, structure] {
        let batch = batch(vec![("image", image), ("label", Arc::clone(&labels))]);
        for file in files(&batch) {
            let records = read(&file, &ReadOptions::default()).unwrap();
            let expected = Content::Image {
                pixels: vec![0.2; 6],
                height: 2,
                width: 3,
                channels: 1,
                label: Label::Name("3".into()),
            };
            assert!(records.len() == 2 && records[0].content == expected);
        }
    }
}

#[test]
fn unsuitable_columns_are_refused() {
    let none = ReadOptions::default();
    let one = || strings(&[Some("secret")]);
    let set = "to a name, or in a table to a number counted from 1";
    assert_eq!(
        refusal(&batch(vec![("a", one()), ("label", one())]), &none),
        format!(
            ": expected a column \"sentence\" or \"text\" or \"content\" for the text, got the \
             columns \"a\", \"label\"; set data.text_column {set}"
        )
    );
    let group = ReadOptions { group: Some("user".into()), ..ReadOptions::default() };
    for pair in [["text", "label"], ["prompt", "completion"]] {
        let [first, second] = pair;
        assert_eq!(
            refusal(&batch(vec![(first, one()), (second, one())]), &group),
            format!(
                ": expected a column \"user\" for the group, got the columns {first:?}, \
                 {second:?}; set data.group {set}"
            )
        );
    }
    let both = ["text", "label", "prompt", "completion"].map(|name| (name, one()));
    assert!(
        refusal(&batch(both.to_vec()), &none)
            .ends_with("set data.text_column and data.label_column, or remove one of these pairs")
    );
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert_eq!(
        refusal(&batch(vec![("text", Arc::clone(&numbers)), ("label", numbers)]), &none),
        ", row 1: \"text\" must be a string, got an integer"
    );
    let real: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    assert_eq!(
        refusal(&batch(vec![("text", one()), ("label", real)]), &none),
        ", row 1: \"label\" must be a string, a whole number or a Boolean, got a number"
    );
    let short = ReadOptions { max_row_bytes: 1 << 8, ..ReadOptions::default() };
    let long = "x".repeat(300);
    let batch = batch(vec![("text", strings(&[Some(&long)]))]);
    let message = read(&stream(&batch), &short).unwrap_err().to_string();
    assert!(message.ends_with("row 1: expected a value of at most 256 bytes, got a longer one"));
    // A Parquet file needs its end first.
    let bytes = parquet(&batch, Compression::SNAPPY);
    let refused = Format::Parquet.read_from(Cursor::new(bytes), "x", &none).err().unwrap();
    assert_eq!(refused.to_string(), "x: the format parquet must be read from a file or folder");
}

/// Many rows are read a few at a time.
#[test]
fn large_files_are_streamed() {
    let text = "word ".repeat(200);
    let rows = 20_000;
    let texts: ArrayRef =
        Arc::new(StringArray::from((0..rows).map(|i| format!("{i} {text}")).collect::<Vec<_>>()));
    let labels: ArrayRef = Arc::new(Int64Array::from((0..rows).collect::<Vec<_>>()));
    let bytes = parquet(&batch(vec![("text", texts), ("label", labels)]), Compression::SNAPPY);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    fs::write(&path, &bytes).unwrap();
    drop(bytes);
    let mut count = 0;
    let seen = allocation_counter::measure(|| {
        let records = Format::Parquet.read(&path, &ReadOptions::default()).unwrap();
        count = records.map(Result::unwrap).count();
    });
    assert_eq!(count, rows as usize);
    // 20 MB of text.
    assert!(seen.bytes_max < 8 << 20, "{}", seen.bytes_max);
}

/// A word in every text of the damaged files.
const SECRET: &str = "Zq7x";

/// Every byte of a file is changed in turn, and the file is cut at every byte.
#[test]
fn damaged_files_give_one_error_without_content() {
    let texts = strings(&[Some(SECRET), Some("Zq7x Zq7x"), None]);
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let batch = batch(vec![("text", texts), ("label", labels)]);
    let folder = tempfile::tempdir().unwrap();
    let options =
        ReadOptions { max_row_bytes: 1 << 16, missing: Missing::Skip, ..ReadOptions::default() };
    let mut refused = 0;
    for file in [
        parquet(&batch, Compression::SNAPPY),
        parquet(&batch, Compression::UNCOMPRESSED),
        feather(&batch, Some(CompressionType::LZ4_FRAME)),
        stream(&batch),
    ] {
        let path = folder.path().join("data");
        let mut check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let seen = allocation_counter::measure(|| {
                refused += usize::from(survives(&path, &options));
            });
            assert!(seen.bytes_max < 16 << 20, "{}", seen.bytes_max);
        };
        for at in 0..file.len() {
            for byte in [file[at] ^ 1, file[at] ^ 0x80, 0xff, 0] {
                let mut damaged = file.clone();
                damaged[at] = byte;
                check(&damaged);
            }
            check(&file[..at]);
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Reads a file in both formats, to its end. Returns whether one was refused.
fn survives(path: &Path, options: &ReadOptions) -> bool {
    let mut any = false;
    for format in [Format::Parquet, Format::Arrow] {
        let result: Result<Vec<Record>, Error> =
            format.read(path, options).and_then(Iterator::collect);
        if let Err(error) = result {
            let message = format!("{error} {error:?}");
            let message = message.split("the columns").next().unwrap();
            assert!(!message.contains(SECRET), "{message}");
            any = true;
        }
    }
    any
}

/// Written by pyarrow and pandas, with `tests/columnar/make.py`.
fn made_by_pyarrow(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/columnar").join(name)
}

#[test]
fn files_of_other_programs_are_read() {
    for (name, format) in [
        ("pandas.parquet", Format::Parquet),
        ("pandas.feather", Format::Arrow),
        ("datasets.arrow", Format::Arrow),
    ] {
        let path = made_by_pyarrow(name);
        assert!(fs::metadata(&path).unwrap().len() < 4096, "{name}");
        assert_eq!(Format::detect(&path).unwrap(), format);
        let options = ReadOptions {
            missing: Missing::Skip,
            group: Some("user".into()),
            ..Default::default()
        };
        let records: Vec<Record> =
            format.read(&path, &options).unwrap().map(Result::unwrap).collect();
        assert_eq!(
            rows(&records),
            [row("a fine film", "1", "ann"), None, row("grüße", "0", "bob")],
            "{name}"
        );
    }
}
