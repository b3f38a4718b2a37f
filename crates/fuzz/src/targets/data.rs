//! Private records in every format, with its options. No message may show a record.

use super::done;
use crate::scratch::Scratch;
use crate::target::ReadOutcome;
use muffle::data::{
    self, Content, Error, Format, LabelRule, Missing, ReadOptions, RecordIter, merge_by_source,
};
use std::io::{self, Cursor};
use std::path::Path;

/// Reads all records, and says what kinds there are, or why not.
fn read(
    format: Format,
    path: &Path,
    options: &ReadOptions,
    input: &[u8],
) -> Result<String, String> {
    let input = Cursor::new(input.to_vec());
    kinds(format.read_from(input, path, options)).map_err(|error| message(&error))
}

/// A message without the names of columns, which are public and can be anything in an input.
fn message(error: &Error) -> String {
    let message = error.to_string();
    match message.split_once("the columns ") {
        Some((start, rest)) => {
            [start, rest.rsplit_once("; set data.").map_or("", |(_, end)| end)].concat()
        }
        None => message,
    }
}

/// The kinds of all records.
fn kinds(records: data::Result<RecordIter>) -> data::Result<String> {
    let (mut count, mut kinds) = (0u32, [false; 6]);
    for record in merge_by_source(records?) {
        let record = record?;
        assert_eq!(format!("{record:?}"), "Record(…)");
        count += 1;
        kinds[3] |= record.group.is_some();
        match record.content {
            Content::Text { source, references, .. } => {
                kinds[0] |= source.is_some();
                kinds[1] |= references.len() > 1;
            }
            Content::Labelled { text, .. } => kinds[2] |= text.is_empty(),
            Content::Image { pixels, height, width, channels, .. } => {
                assert_eq!(pixels.len(), height * width * channels);
                kinds[4] = channels == 3;
            }
            Content::Missing => kinds[5] = true,
        }
    }
    // Powers of two, so that not every count is a new kind.
    Ok(format!(
        "{:?} of {}",
        kinds,
        ["one", "few", "many", "very many"]
            [(count.checked_ilog2().unwrap_or(0) as usize / 2).min(3)]
    ))
}

/// Reads with each of the options; accepted if the first read succeeds.
fn with(format: Format, name: &str, options: &[ReadOptions], input: &[u8]) -> ReadOutcome {
    let path = Path::new(name);
    let all: Vec<Result<String, String>> =
        options.iter().map(|options| read(format, path, options, input)).collect();
    let accepted = all.first().is_some_and(Result::is_ok);
    ReadOutcome {
        accepted,
        message: all
            .into_iter()
            .map(|one| one.unwrap_or_else(|error| error))
            .collect::<Vec<_>>()
            .join(" | "),
    }
}

/// Rows of at most a few bytes.
fn short() -> ReadOptions {
    ReadOptions { max_row_bytes: 48, ..ReadOptions::default() }
}

fn columns() -> ReadOptions {
    ReadOptions {
        text: Some("review".into()),
        label: Some("2".into()),
        group: Some("user".into()),
        ..ReadOptions::default()
    }
}

/// The default options, with each kind of labels.
fn label_rules() -> Vec<ReadOptions> {
    [LabelRule::Name, LabelRule::Names, LabelRule::Number, LabelRule::Ignored]
        .map(|label_rule| ReadOptions { label_rule, ..ReadOptions::default() })
        .into()
}

pub(crate) fn lines(_: &Scratch, input: &[u8]) -> ReadOutcome {
    with(Format::Lines, "data.txt", &[ReadOptions::default(), short()], input)
}

pub(crate) fn e2e(_: &Scratch, input: &[u8]) -> ReadOutcome {
    with(Format::E2e, "data.txt", &[ReadOptions::default(), short()], input)
}

pub(crate) fn dart(_: &Scratch, input: &[u8]) -> ReadOutcome {
    with(
        Format::Dart,
        "data.json",
        &[ReadOptions::default(), ReadOptions { max_row_bytes: 200, ..ReadOptions::default() }],
        input,
    )
}

pub(crate) fn instructions(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let grouped = ReadOptions { group: Some("user".into()), ..ReadOptions::default() };
    with(Format::Instructions, "data.jsonl", &[ReadOptions::default(), grouped], input)
}

pub(crate) fn tsv(_: &Scratch, input: &[u8]) -> ReadOutcome {
    with(Format::Tsv, "data.tsv", &[label_rules(), vec![columns(), short()]].concat(), input)
}

pub(crate) fn csv(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let skip = ReadOptions { missing: Missing::Skip, ..ReadOptions::default() };
    let options = [label_rules(), vec![columns(), short(), skip]].concat();
    with(Format::Csv, "data.csv", &options, input)
}

pub(crate) fn jsonl(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let keys = ReadOptions { label: Some("class".into()), ..columns() };
    with(Format::Jsonl, "data.jsonl", &[label_rules(), vec![keys]].concat(), input)
}

/// Labels for the images of the seeds, in both formats.
pub(crate) fn prepare_labels(scratch: &Scratch) -> io::Result<()> {
    scratch.put("labels-idx1", &[&[0, 0, 8, 1, 0, 0, 0, 3][..], &[1, 2, 3]].concat())?;
    scratch.put(
        "labels.json",
        format!("{:?}", (0..64).map(|label| label % 10).collect::<Vec<_>>()).as_bytes(),
    )?;
    Ok(())
}

fn labelled(scratch: &Scratch, name: &str) -> ReadOptions {
    ReadOptions { labels: Some(scratch.at(name)), ..ReadOptions::default() }
}

fn stripped(scratch: &Scratch, seen: ReadOutcome) -> ReadOutcome {
    ReadOutcome { message: super::models::strip(scratch, &seen.message), ..seen }
}

pub(crate) fn idx(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    stripped(scratch, with(Format::Idx, "images-idx3", &[labelled(scratch, "labels-idx1")], input))
}

/// Labels for three images of 2 × 2.
pub(crate) fn idx_labels(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let images = [&[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2][..], &[9; 12]].concat();
    done(scratch.put("fuzzed", input));
    stripped(scratch, with(Format::Idx, "images-idx3", &[labelled(scratch, "fuzzed")], &images))
}

/// A strip with a number in its name, which may have fewer rows than there are labels.
pub(crate) fn png(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    stripped(
        scratch,
        with(Format::PngStrip, "data_batch_1.png", &[labelled(scratch, "labels.json")], input),
    )
}

/// Labels for a strip of four grey images of one pixel, by itself and as the third of several.
pub(crate) fn png_labels(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let header =
        [&b"IHDR"[..], &1u32.to_be_bytes(), &4u32.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let strip = crate::png::close(&[
        header,
        [&b"IDAT"[..], &[0, 1, 0, 2, 0, 3, 0, 4]].concat(),
        b"IEND".to_vec(),
    ]);
    done(scratch.put("fuzzed", input));
    let options = [labelled(scratch, "fuzzed")];
    let (whole, part) = (
        with(Format::PngStrip, "strip.png", &options, &strip),
        with(Format::PngStrip, "data_batch_3.png", &options, &strip),
    );
    stripped(
        scratch,
        ReadOutcome {
            accepted: whole.accepted || part.accepted,
            message: format!("{} | {}", whole.message, part.message),
        },
    )
}

/// Detects the format by name and content, then reads the file, including gzip.
fn detect_and_read(scratch: &Scratch, names: &[&str], input: &[u8]) -> ReadOutcome {
    let mut accepted = false;
    let mut message = Vec::new();
    for name in names {
        let path = done(scratch.put(name, input));
        message.push(match Format::detect(&path) {
            Ok(format) => {
                let options = match format {
                    Format::Idx => labelled(scratch, "labels-idx1"),
                    Format::PngStrip => labelled(scratch, "labels.json"),
                    _ => ReadOptions::default(),
                };
                let read = read(format, &path, &options, input);
                accepted |= read.is_ok();
                format!("{format}: {}", read.unwrap_or_else(|error| error))
            }
            Err(error) => error.to_string(),
        });
    }
    stripped(scratch, ReadOutcome { accepted, message: message.join(" | ") })
}

pub(crate) fn sniff(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    detect_and_read(scratch, &["data", "data.json", "data.csv"], input)
}

pub(crate) fn gzip(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    detect_and_read(scratch, &["data.txt.gz"], input)
}

pub(crate) fn zstd(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    detect_and_read(scratch, &["data.txt.zst"], input)
}

/// Reads the input as a file, with each of the options; accepted if the first read succeeds.
fn file(scratch: &Scratch, format: Format, options: &[ReadOptions], input: &[u8]) -> ReadOutcome {
    let path = done(scratch.put("input", input));
    let all: Vec<Result<String, String>> = options
        .iter()
        .map(|options| kinds(format.read(&path, options)).map_err(|error| message(&error)))
        .collect();
    let accepted = all.first().is_some_and(Result::is_ok);
    let messages: Vec<String> = all.into_iter().map(|one| one.unwrap_or_else(|e| e)).collect();
    stripped(scratch, ReadOutcome { accepted, message: messages.join(" | ") })
}

/// Small limits of pages, messages and images, and rows without a value.
fn limited() -> [ReadOptions; 2] {
    let limited = ReadOptions { max_row_bytes: 1 << 18, ..ReadOptions::default() };
    let skip = ReadOptions {
        missing: Missing::Skip,
        image_size: Some([4, 4, 3]),
        group: Some("user".into()),
        ..limited.clone()
    };
    [limited, skip]
}

pub(crate) fn parquet(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    file(scratch, Format::Parquet, &limited(), input)
}

pub(crate) fn arrow(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    file(scratch, Format::Arrow, &limited(), input)
}

/// An image file that a table lists.
pub(crate) fn image_file(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    done(scratch.put("image", input));
    let list = done(scratch.put("list.csv", b"image,label\nimage,a\nimage,b\n"));
    let [limited, scaled] = limited();
    let all = [limited, ReadOptions { group: None, ..scaled }]
        .map(|options| kinds(Format::Csv.read(&list, &options)).map_err(|error| message(&error)));
    let accepted = all.iter().any(Result::is_ok);
    let messages = all.map(|one| one.unwrap_or_else(|error| error));
    stripped(scratch, ReadOutcome { accepted, message: messages.join(" | ") })
}
