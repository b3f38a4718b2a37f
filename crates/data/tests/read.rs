//! The readers on small files, damaged files, files larger than memory, and the real data sets.
#![allow(clippy::unwrap_used)]

use data::{Content, Error, Format, Label, LabelRule, ReadOptions, Record, merge_by_source};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

// ── Tools ──

/// A temporary directory that is removed after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("muffle-read-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(
    format: Format,
    bytes: impl AsRef<[u8]>,
    options: &ReadOptions,
) -> Result<Vec<Record>, Error> {
    format.read_from(Cursor::new(bytes.as_ref().to_vec()), "data", options)?.collect()
}

fn refusal(format: Format, bytes: impl AsRef<[u8]>, options: &ReadOptions) -> String {
    read(format, bytes, options).unwrap_err().to_string()
}

/// Source, target and line of each record.
fn texts(format: Format, bytes: impl AsRef<[u8]>) -> Vec<(Option<String>, String, u64)> {
    read(format, bytes, &ReadOptions::default()).unwrap().into_iter().map(text).collect()
}

fn text(record: Record) -> (Option<String>, String, u64) {
    match record.content {
        Content::Text { source, target, references } if references.is_empty() => {
            (source, target, record.line)
        }
        _ => panic!("no fresh text"),
    }
}

fn given(source: &str, target: &str, line: u64) -> (Option<String>, String, u64) {
    (Some(source.into()), target.into(), line)
}

/// Text, label, group and line of each record.
fn labelled(
    format: Format,
    bytes: impl AsRef<[u8]>,
    options: &ReadOptions,
) -> Vec<(String, String, String, u64)> {
    let of = |record: Record| match record.content {
        Content::Labelled { text, label } => {
            (text, label, record.group.unwrap_or_default(), record.line)
        }
        _ => panic!("not labelled"),
    };
    read(format, bytes, options).unwrap().into_iter().map(of).collect()
}

fn row(text: &str, label: &str, group: &str, line: u64) -> (String, String, String, u64) {
    (text.into(), label.into(), group.into(), line)
}

fn options(text: Option<&str>, label: Option<&str>, group: Option<&str>) -> ReadOptions {
    ReadOptions {
        text: text.map(Into::into),
        label: label.map(Into::into),
        group: group.map(Into::into),
        ..ReadOptions::default()
    }
}

fn short(max_row_bytes: usize) -> ReadOptions {
    ReadOptions { max_row_bytes, ..ReadOptions::default() }
}

fn gz(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes.as_ref()).unwrap();
    packed.finish().unwrap()
}

fn zst(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    zstd::stream::encode_all(bytes.as_ref(), 1).unwrap()
}

fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let magic = 0x0800 + sizes.len() as u32;
    [magic]
        .iter()
        .chain(sizes)
        .flat_map(|number| number.to_be_bytes())
        .chain(bytes.iter().copied())
        .collect()
}

/// Rows of `width` pixels with the values 0, 1, 2, …
fn strip(width: u32, height: u32, color: png::ColorType, depth: png::BitDepth) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    let count = width as usize * height as usize * color.samples() * depth as usize / 8;
    encoder
        .write_header()
        .unwrap()
        .write_image_data(&(0..count).map(|i| i as u8).collect::<Vec<_>>())
        .unwrap();
    bytes
}

// ── Names ──

#[test]
fn format_names_parse() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
    }
    let error = "json".parse::<Format>().unwrap_err().to_string();
    assert_eq!(
        error,
        "data.format: expected one of e2e, dart, lines, instructions, tsv, csv, jsonl, idx, \
         png-strip, parquet, arrow, image-folder, got \"json\""
    );
}

// ── E2E ──

#[test]
fn e2e_lines_are_read() {
    let expected = [
        given("name : A | food : B ", "A is B .", 1),
        given("", "C ‖ d", 3),
        given("x", "y || z", 6),
        given("e", "", 7),
    ];
    let plain = "name : A | food : B || A is B . \n\n||C ‖ d\n \t\n\nx||y || z\ne||";
    assert_eq!(texts(Format::E2e, plain), expected);
    assert_eq!(
        texts(Format::E2e, format!("\u{feff}{}\r\n", plain.replace('\n', "\r\n"))),
        expected
    );
    assert_eq!(texts(Format::E2e, gz(plain)), expected);
    // Two members one after another are one file.
    assert_eq!(
        texts(Format::E2e, [gz("a||b\n"), gz("c||d\n")].concat()),
        [given("a", "b", 1), given("c", "d", 2)]
    );
}

#[test]
fn e2e_csv_is_read() {
    let plain = "mr,ref\n\"name[A], food[B]\",\"A, so \"\"B\"\", is\nhere . \"\n\nname[C],C \
        is \"it\"\n\"name[D]\",\"\"\n";
    let expected = |end: &str| {
        let first = format!("A, so \"B\", is{end}here .");
        [
            given("name[A], food[B]", &first, 2),
            given("name[C]", "C is \"it\"", 5),
            given("name[D]", "", 6),
        ]
    };
    assert_eq!(texts(Format::E2e, plain), expected("\n"));
    assert_eq!(
        texts(
            Format::E2e,
            plain.replacen("mr,ref", "\u{feff}\"MR\", \"ref\"", 1).replace('\n', "\r\n")
        ),
        expected("\r\n")
    );
    assert_eq!(texts(Format::E2e, plain.trim_end()), expected("\n"));
    // Only at the beginning is it a header.
    assert_eq!(
        texts(Format::E2e, "a||b\nmr,ref||c"),
        [given("a", "b", 1), given("mr,ref", "c", 2)]
    );
}

#[test]
fn invalid_e2e_rows_are_refused() {
    let none = ReadOptions::default();
    assert_eq!(
        refusal(Format::E2e, "a||b\n\nsecret\n", &none),
        "data, line 3: expected `||` between source and text, got none"
    );
    assert_eq!(
        refusal(Format::E2e, b"a||b\nab\xff||c", &none),
        "data, line 2: expected UTF-8, got an invalid byte at offset 2 of the row"
    );
    assert_eq!(
        refusal(Format::E2e, "mr,ref\na,b,c\n", &none),
        "data, line 2: expected 2 columns, got 3"
    );
    assert_eq!(
        refusal(Format::E2e, "mr,ref\na\n", &none),
        "data, line 2: expected 2 columns, got 1"
    );
    assert_eq!(
        refusal(Format::E2e, "mr,ref\na,b\na,\"b\nc,d\n", &none),
        "data, line 3: expected a quotation mark at the end of a quoted cell, got the end of the \
         file"
    );
    assert_eq!(refusal(Format::E2e, "mr,ref\n", &none), "data: no records");
}

// ── DART ──

const ENTRY: &str = concat!(
    r#"{"tripleset": [["A", "HAS_B", "C ]}"], ["[TABLECONTEXT]", "[TITLE]", "É \"q\\"]],"#,
    "\n",
    r#"  "subtree_was_extended": true, "#,
    r#""annotations": [{"source": "x", "text": " One. "}, {"text": "Tw\u00f6."}]}"#,
);

#[test]
fn dart_entries_are_read() {
    let source = "A : has_b : C ]} | [TABLECONTEXT] : [title] : É \"q\\";
    let array =
        format!("\u{feff}\r\n[{ENTRY}\n,{{\"annotations\":[],\"tripleset\":[]}} , {ENTRY}]\n ");
    let expected = [
        given(source, "One.", 2),
        given(source, "Twö.", 2),
        given(source, "One.", 4),
        given(source, "Twö.", 4),
    ];
    assert_eq!(texts(Format::Dart, &array), expected);
    assert_eq!(texts(Format::Dart, gz(&array)), expected);
    let merged: Vec<_> = merge_by_source(
        Format::Dart.read_from(Cursor::new(array), "", &ReadOptions::default()).unwrap(),
    )
    .map(Result::unwrap)
    .collect();
    let [Record { content: Content::Text { target, references, .. }, line: 2, .. }] = &merged[..]
    else {
        panic!("one source")
    };
    assert_eq!((target.as_str(), references.join(" ").as_str()), ("One.", "One. Twö. One. Twö."));
}

#[test]
fn invalid_dart_entries_are_refused() {
    let cases = [
        ("", "data: no records"),
        (" \n", "data: no records"),
        ("[ ]", "data: no records"),
        ("\n {}", "data, line 2, column 2: expected an array, got another character"),
        ("[1]", "data, line 1, column 2: expected an object, got another character"),
        (
            "[",
            "data, line 1, column 2: expected an object or the end of the array, got the end of \
             the file",
        ),
        ("[,", "data, line 1, column 2: expected an object, got another character"),
        ("[{\"a\": 1}", "data, line 1, column 9: missing field `tripleset`"),
        (
            "[{\"a\"\n:[\"}]",
            "data, line 2, column 6: expected the end of an object, got the end of the file",
        ),
        ("[{\"a\": \"secret}\",}]", "data, line 1, column 18: invalid JSON: trailing comma"),
        ("[{]", "data, line 1, column 3: invalid JSON: key must be a string"),
        (
            "[{\"tripleset\": \"secret\"}]",
            "data, line 1, column 23: expected a sequence, got another value",
        ),
        (
            "[{\"tripleset\": [[\"s\", \"r\"]]}]",
            "data, line 1, column 26: expected an array of length 3, got another value",
        ),
        (
            "[{\"tripleset\": [[\"s\", \"r\", \", expected secret\", 7]]}]",
            "data, line 1, column 49: invalid JSON: trailing characters",
        ),
        (
            "[{\"tripleset\": [[\"s\", \"r\", 7]]}]",
            "data, line 1, column 28: expected a string, got another value",
        ),
        (
            "[{\"tripleset\": [],\n\"tripleset\": []}]",
            "data, line 2, column 11: duplicate field `tripleset`",
        ),
        (
            "[{\"tripleset\": [], \"annotations\": [\", expected secret\"]}]",
            "data, line 1, column 54: expected an annotation with \"text\", got another value",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refusal(Format::Dart, bytes, &ReadOptions::default()), expected, "{bytes}");
    }
    let after = |end: &str| {
        let mut rows = Format::Dart
            .read_from(Cursor::new(format!("[{ENTRY}{end}")), "data", &ReadOptions::default())
            .unwrap();
        assert!(rows.next().unwrap().is_ok() && rows.next().unwrap().is_ok());
        let message = rows.next().unwrap().unwrap_err().to_string();
        assert!(rows.next().is_none(), "it ends after a refusal");
        message
    };
    let end = ENTRY.lines().last().unwrap().len();
    let place = |more: usize| format!("data, line 2, column {}: ", end + more);
    assert_eq!(
        after(""),
        place(1) + "expected an object or the end of the array, got the end of the file"
    );
    assert_eq!(
        after(ENTRY),
        place(1) + "expected a comma or the end of the array, got another character"
    );
    assert_eq!(after(",]"), place(2) + "expected an object, got another character");
    assert_eq!(after("],"), place(2) + "expected nothing after the array, got more");
    let message = refusal(Format::Dart, b"[\n{\"a\": \"\xff\"}]", &ReadOptions::default());
    assert_eq!(message, "data, line 2: expected UTF-8, got an invalid byte at offset 7 of the row");
    assert_eq!(
        refusal(Format::Dart, format!("[{ENTRY}]"), &short(64)),
        "data, line 1: expected a row of at most 64 bytes, got a longer one"
    );
    // Deeply nested brackets.
    let deep = format!("[{{\"tripleset\": {}1{}}}]", "[".repeat(100_000), "]".repeat(100_000));
    assert!(read(Format::Dart, deep, &ReadOptions::default()).is_err());
}

// ── Lines ──

#[test]
fn lines_are_read_unchanged() {
    // A blank line is a row without text: the number of rows does not depend on their content.
    let blank = |line| (None, String::new(), line);
    let expected = [(None, " a\tb ".to_owned(), 1), blank(2), blank(3), (None, "c".to_owned(), 4)];
    assert_eq!(texts(Format::Lines, " a\tb \n\n  \nc"), expected);
    assert_eq!(texts(Format::Lines, "\u{feff} a\tb \r\n\r\n \t\r\nc\r\n"), expected);
    assert_eq!(texts(Format::Lines, " \r\n\t"), [blank(1), blank(2)]);
    for empty in ["", "\u{feff}"] {
        assert_eq!(refusal(Format::Lines, empty, &ReadOptions::default()), "data: no records");
    }
    assert_eq!(
        refusal(Format::Lines, b"\n\xfe\xff", &ReadOptions::default()),
        "data, line 2: expected UTF-8, got an invalid byte at offset 0 of the row"
    );
}

// ── Instructions ──

#[test]
fn instructions_with_three_sets_of_keys_are_read() {
    let rows = r#"{"instruction": "Do", "input": "", "output": "Done"}
{"instruction": "Do", "input": "it", "output": "Done\n"}

{"instruction": "Say", "context": "so", "response": "So", "extra": {"a": [1, {"b": null}]}}
{"instruction": "Say", "output": ""}
{"prompt": "Once ", "completion": "upon"}
MESSAGES
{"messages": [{"role": "assistant", "content": "Ho"}], "instruction": "ignored"}"#;
    let messages = concat!(
        r#"{"messages": [{"role": "system", "content": "Be"}, "#,
        r#"{"role": "user", "content": "Hi", "id": 7}, "#,
        r#"{"role": "assistant", "content": "Ho"}], "prompt": 1}"#,
    );
    let rows = &rows.replace("MESSAGES", messages);
    let expected = [
        given("Do", "Done", 1),
        given("Do\n\nit", "Done\n", 2),
        given("Say\n\nso", "So", 4),
        given("Say", "", 5),
        given("Once ", "upon", 6),
        given("system: Be\nuser: Hi", "Ho", 7),
        (None, "Ho".to_owned(), 8),
    ];
    assert_eq!(texts(Format::Instructions, rows), expected);
    assert_eq!(
        texts(Format::Instructions, format!("\u{feff}{}\r\n", rows.replace('\n', "\r\n"))),
        expected
    );
    let group = options(None, None, Some("user"));
    let rows = concat!(
        r#"{"prompt": "", "completion": "", "user": " ann "}"#,
        "\n",
        r#"{"prompt": "", "completion": "", "user": -7}"#,
    );
    let groups: Vec<_> = read(Format::Instructions, rows, &group)
        .unwrap()
        .into_iter()
        .map(|record| record.group.unwrap())
        .collect();
    assert_eq!(groups, ["ann", "-7"]);
    // The group can be one of the other keys.
    let groups = read(
        Format::Instructions,
        "{\"prompt\": \"p\", \"completion\": \"c\"}",
        &options(None, None, Some("prompt")),
    )
    .unwrap();
    assert_eq!(groups[0].group.as_deref(), Some("p"));
}

#[test]
fn invalid_instructions_are_refused() {
    let cases = [
        (
            "{}",
            "data, line 1: expected a key \"instruction\" or \"prompt\" or \"messages\", got none; \
             set data.format if the rows are of another format",
        ),
        ("\n[]", "data, line 2, column 1: expected an object, got another value"),
        ("\"secret\"", "data, line 1, column 8: expected an object, got another value"),
        (
            "{\"prompt\": \"secret\"",
            "data, line 1, column 19: invalid JSON: EOF while parsing an object",
        ),
        (
            "{\"prompt\": \"secret\"} x",
            "data, line 1, column 22: invalid JSON: trailing characters",
        ),
        (
            "{\"prompt\": \"secret\"}",
            "data, line 1: \"completion\" has no value; complete the row, or set \
             data.missing = \"skip\" to leave its place vacant",
        ),
        (
            "{\"prompt\": \"secret\", \"completion\": null}",
            "data, line 1: \"completion\" has no value; complete the row, or set \
             data.missing = \"skip\" to leave its place vacant",
        ),
        ("{\"prompt\": 1.5}", "data, line 1: \"prompt\" must be a string, got a number"),
        (
            "{\"prompt\": \"\", \"prompt\": \"\"}",
            "data, line 1: \"prompt\" must be a string, got two values",
        ),
        (
            "{\"instruction\": true}",
            "data, line 1: \"instruction\" must be a string, got true or false",
        ),
        (
            "{\"instruction\": \"\", \"input\": {}}",
            "data, line 1: \"input\" must be a string, got an object",
        ),
        (
            "{\"instruction\": \"\"}",
            "data, line 1: \"output\" has no value; complete the row, or set \
             data.missing = \"skip\" to leave its place vacant",
        ),
        (
            "{\"messages\": \"secret\"}",
            "data, line 1: \"messages\" must be an array of messages, got a string",
        ),
        (
            "{\"messages\": 3}",
            "data, line 1: \"messages\" must be an array of messages, got a number",
        ),
        (
            "{\"messages\": []}",
            "data, line 1: \"messages\" must be an array of messages, got an empty array",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"secret\"}]}",
            "data, line 1: \"messages\" must be an array that ends with the assistant's message, \
             got another role at the end",
        ),
        (
            "{\"messages\": [{\"role\": \"secret\"}]}",
            "data, line 1, column 32: missing field `content`",
        ),
        (
            "{\"messages\": [\"secret\"]}",
            "data, line 1, column 22: expected a message with \"role\" and \"content\", got \
             another value",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": [\"secret\"]}]}",
            "data, line 1, column 42: expected a string, got another value",
        ),
        ("", "data: no records"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(
            refusal(Format::Instructions, bytes, &ReadOptions::default()),
            expected,
            "{bytes}"
        );
    }
    let group = options(None, None, Some("user"));
    let cases = [
        (
            "{\"prompt\": \"\", \"completion\": \"\"}",
            "data: expected a column \"user\" for the group, got the columns \"prompt\", \
             \"completion\"; set data.group to a name, or in a table to a number counted from 1",
        ),
        (
            "{\"prompt\": \"\", \"completion\": \"\", \"user\": \" \"}",
            "data, line 1: \"user\" (data.group) has no value; expected the name of a person in \
             every row, also with data.missing = \"skip\"",
        ),
        (
            "{\"prompt\": \"\", \"completion\": \"\", \"user\": [1]}",
            "data, line 1: \"user\" must be a string, an integer, true or false, got an array",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refusal(Format::Instructions, bytes, &group), expected, "{bytes}");
    }
}

// ── Labelled text ──

#[test]
fn tables_with_a_header_are_read() {
    let none = ReadOptions::default();
    let tsv = "sentence\tlabel\nit 's \"a\" , good \t1\n\ny\t0\nx\tpos\n";
    let expected =
        [row("it 's \"a\" , good", "1", "", 2), row("y", "0", "", 4), row("x", "pos", "", 5)];
    assert_eq!(labelled(Format::Tsv, tsv, &none), expected);
    assert_eq!(
        labelled(Format::Tsv, format!("\u{feff}{}", tsv.trim_end().replace('\n', "\r\n")), &none),
        expected
    );
    assert_eq!(labelled(Format::Tsv, gz(tsv), &none), expected);
    let csv = "Id, Target ,TEXT\n7,pos,\"a, \"\"b\"\"\nc\"\n8,neg,d\n";
    assert_eq!(
        labelled(Format::Csv, csv, &none),
        [row("a, \"b\"\nc", "pos", "", 2), row("d", "neg", "", 4)]
    );
    assert_eq!(
        labelled(Format::Csv, csv, &options(None, Some("id"), None))[1],
        row("d", "8", "", 4)
    );
    assert_eq!(
        labelled(Format::Csv, csv, &options(None, Some("1"), Some("Target")))[1],
        row("d", "8", "neg", 4)
    );
    // In the order of the default names, not of the file.
    assert_eq!(
        labelled(Format::Csv, "content,text,class,label\na,b,c,d", &none),
        [row("b", "d", "", 2)]
    );
    // A header with names from the options.
    let named = options(Some("review"), Some("stars"), Some("user id"));
    assert_eq!(
        labelled(Format::Csv, "stars,User ID,review\n5, ann ,fine", &named),
        [row("fine", "5", "ann", 2)]
    );
}

/// Which columns are read does not depend on the content of the first row.
#[test]
fn the_first_row_of_a_table_without_a_header_is_a_row() {
    let numbered = options(Some("3"), Some("1"), Some("2"));
    for first in ["5,ann,fine", "user,sentence,review", "3,1,2", "2,3,1", "text,label,x"] {
        let cells: Vec<&str> = first.split(',').collect();
        assert_eq!(
            labelled(Format::Csv, format!("{first}\n4,bob,bad"), &numbered),
            [row(cells[2], cells[0], cells[1], 1), row("bad", "4", "bob", 2)],
            "{first}"
        );
    }
    // Numbers are not guessed from the first row either.
    for first in ["good\t1", "1\tgood", "good\tbad"] {
        let message = refusal(Format::Tsv, first, &ReadOptions::default());
        assert!(message.contains("got 2 columns without a known name"), "{message}");
    }
    // A header that would be a record is refused.
    assert_eq!(
        refusal(Format::Csv, "label,user,review\n5,ann,fine", &numbered),
        "data: data.label_column is a number, so the first row is a record, but it has the name \
         \"label\" in that column; set data.label_column to the name, or remove the first row"
    );
    // One name makes a header of the first row; the names of other columns do not count.
    let mixed = options(Some("3"), Some("label"), None);
    assert_eq!(
        labelled(Format::Csv, "label,user,review\n5,ann,fine", &mixed),
        [row("fine", "5", "", 2)]
    );
}

/// A line of tabs is a row of empty cells; a blank line is not a row.
#[test]
fn a_row_of_empty_cells_is_a_row() {
    let skip = ReadOptions { missing: data::Missing::Skip, ..ReadOptions::default() };
    let records = read(Format::Tsv, "text\tlabel\n\n\t\na\t1\n", &skip).unwrap();
    let lines: Vec<u64> = records.iter().map(|record| record.line).collect();
    assert_eq!(lines, [3, 4]);
    assert!(records[0].content == Content::Missing);
}

/// The first object does not determine which keys of the others are read.
#[test]
fn objects_are_read_independently() {
    let skip = ReadOptions { missing: data::Missing::Skip, ..ReadOptions::default() };
    let rest = "{\"sentence\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"class\": 2}";
    for first in ["{\"text\": \"x\", \"label\": 0}", "{\"content\": \"x\"}", "{}"] {
        let records = read(Format::Jsonl, format!("{first}\n{rest}"), &skip).unwrap();
        let rest: Vec<_> = records.into_iter().skip(1).map(|record| record.content).collect();
        let expected = [("a", "1"), ("b", "2")]
            .map(|(text, label)| Content::Labelled { text: text.into(), label: label.into() });
        assert_eq!(rest, expected, "{first}");
    }
}

#[test]
fn invalid_tables_are_refused() {
    let none = ReadOptions::default();
    let absent = |role: &str, names: &str, got: &str| {
        format!(
            "data: expected a column {names} for the {role}, got {got}; set data.{role}_column to a \
             name, or in a table to a number counted from 1"
        )
    };
    let text = |got: &str| absent("text", "\"sentence\" or \"text\" or \"content\"", got);
    let label = |got: &str| absent("label", "\"label\" or \"class\" or \"target\"", got);
    let none_known = |count: usize| format!("{count} columns without a known name");
    let cases = [
        ("", "data: no records".into()),
        ("text\tlabel\n", "data: no records".into()),
        ("good\tbad\n", text(&none_known(2))),
        ("1\t2\n", text(&none_known(2))),
        ("secret\t1\t2\n", text(&none_known(3))),
        ("label\tx\n", text("the columns \"label\", \"x\"")),
        ("text\tx\n", label("the columns \"text\", \"x\"")),
        ("x\n", text("1 column without a known name (see data.separator)")),
        ("text\tlabel\na\t1\nb\n", "data, line 3: expected 2 columns, got 1".into()),
        ("text\tlabel\na\t1\nb\t1\t2\t\n", "data, line 3: expected 2 columns, got 4".into()),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refusal(Format::Tsv, bytes, &none), expected, "{bytes}");
        assert_eq!(refusal(Format::Csv, bytes.replace('\t', ","), &none), expected, "{bytes}");
    }
    for given in ["user", "0", "4", "-1", ""] {
        let expected = format!(
            "data: expected a column {given:?} for the group, got the columns \"text\", \
             \"label\", \"x\"; set data.group to a name, or in a table to a number counted from 1"
        );
        assert_eq!(
            refusal(Format::Tsv, "text\tlabel\tx\na\t1\tb", &options(None, None, Some(given))),
            expected
        );
    }
    assert_eq!(
        refusal(Format::Csv, "text,label\n\"a\n,1\n", &none),
        "data, line 2: expected a quotation mark at the end of a quoted cell, got the end of the \
         file"
    );
    assert_eq!(
        refusal(Format::Csv, ",".repeat(5000), &none),
        "data, line 1: expected 4096 columns, got 5001"
    );
    assert_eq!(
        refusal(Format::Csv, b"text,label\n\"a\n\xc3\",1", &none),
        "data, line 2: expected UTF-8, got an invalid byte at offset 3 of the row"
    );
    assert_eq!(
        refusal(Format::Csv, "text,label\n\"a\nbcdefgh\",1", &short(11)),
        "data, line 2: expected a row of at most 11 bytes, got a longer one"
    );
}

/// Rows of texts whose labels are several names, numbers, or not read.
#[test]
fn labels_follow_their_rule() {
    let rule = |label_rule| ReadOptions { label_rule, ..ReadOptions::default() };
    let (names, number, ignored) =
        (rule(LabelRule::Names), rule(LabelRule::Number), rule(LabelRule::Ignored));
    let labels = |format, bytes: &str, options: &ReadOptions| {
        let rows = labelled(format, bytes, options).into_iter();
        rows.map(|(_, label, _, _)| label).collect::<Vec<_>>()
    };
    assert_eq!(labels(Format::Csv, "text,label\na,x;y\nb,\n", &names), ["x;y", ""]);
    let objects = "{\"text\":\"a\",\"label\":[\"x\",\"y;\"]}\n{\"text\":\"b\",\"label\":\"\"}\n\
        {\"text\":\"c\",\"label\":[]}";
    assert_eq!(labels(Format::Jsonl, objects, &names), ["[\"x\",\"y;\"]", "", "[]"]);
    let mixed = "{\"text\":\"a\",\"label\":[\"x\",1]}";
    assert_eq!(
        refusal(Format::Jsonl, mixed, &names),
        "data, line 1: \"label\" must be a string or a list of strings, got an array"
    );
    let numbers = "{\"text\":\"a\",\"label\":-2.5}\n{\"text\":\"b\",\"label\":7}\n\
        {\"text\":\"c\",\"label\":\"1e3\"}";
    assert_eq!(labels(Format::Jsonl, numbers, &number), ["-2.5", "7", "1e3"]);
    assert_eq!(
        refusal(Format::Jsonl, "{\"text\":\"a\",\"label\":true}", &number),
        "data, line 1: \"label\" must be a number, got true or false"
    );
    assert!(refusal(Format::Csv, "text,label\na,\n", &number).contains("\"label\" has no value"));

    let texts = |format, bytes: &str| {
        let records = read(format, bytes, &ignored).unwrap().into_iter();
        records.map(|record| text(record).1).collect::<Vec<_>>()
    };
    for (format, bytes) in [
        (Format::Csv, "text\na\nb\n"),
        (Format::Csv, "a\nb\n"),
        (Format::Csv, "label,text\n,a\n2,b\n"),
        (Format::Jsonl, "{\"text\":\"a\"}\n{\"text\":\"b\",\"label\":{}}\n"),
    ] {
        assert_eq!(texts(format, bytes), ["a", "b"], "{bytes}");
    }
    assert!(refusal(Format::Csv, "x,y\na,b\n", &ignored).contains("for the text"));
    assert!(refusal(Format::Tsv, "a\t1\nb\t2\n", &ignored).contains("for the text"));
}

/// Images need no labels if these are not read.
#[test]
fn images_are_read_without_labels() {
    let ignored = ReadOptions { label_rule: LabelRule::Ignored, ..ReadOptions::default() };
    let images = idx(&[2, 1, 1], &[0, 255]);
    let png = strip(4, 2, png::ColorType::Grayscale, png::BitDepth::Eight);
    for (format, bytes) in [(Format::Idx, images), (Format::PngStrip, png)] {
        let records = read(format, bytes, &ignored).unwrap();
        assert_eq!(records.len(), 2);
        for record in records {
            let Content::Image { label, .. } = record.content else { panic!("no image") };
            assert!(label == Label::None);
        }
    }
}

#[test]
fn labelled_objects_are_read() {
    let none = ReadOptions::default();
    let rows = concat!(
        r#"{"text": " a ", "label": 1, "user": "ann"}"#,
        "\r\n\r\n",
        r#"{"label": true, "text": "\u00e9", "user": 2}"#,
        "\n",
        r#"{"text": "", "label": "pos", "user": "b"}"#,
    );
    let expected = [row("a", "1", "", 1), row("é", "true", "", 3), row("", "pos", "", 4)];
    assert_eq!(labelled(Format::Jsonl, rows, &none), expected);
    assert_eq!(labelled(Format::Jsonl, format!("\u{feff}{rows}\n"), &none), expected);
    let groups: Vec<_> = labelled(Format::Jsonl, rows, &options(None, None, Some("user")))
        .into_iter()
        .map(|row| row.2)
        .collect();
    assert_eq!(groups, ["ann", "2", "b"]);
    let other = options(Some("user"), Some("text"), None);
    assert_eq!(
        refusal(Format::Jsonl, rows, &other),
        "data, line 3: \"user\" must be a string, got a number"
    );
}

#[test]
fn invalid_labelled_objects_are_refused() {
    let good = "{\"text\": \"\", \"label\": 1}\n";
    let name = "must be a string, an integer, true or false, got";
    let absent = |role: &str, names: &str, got: &str| {
        format!(
            "data: expected a column {names} for the {role}, got the columns {got}; set \
             data.{role}_column to a name, or in a table to a number counted from 1"
        )
    };
    let missing = |key: &str| {
        format!(
            "data, line 2: {key:?} has no value; complete the row, or set data.missing = \"skip\" \
             to leave its place vacant"
        )
    };
    let cases = [
        (
            "{\"label\": 1}".into(),
            absent("text", "\"sentence\" or \"text\" or \"content\"", "\"label\""),
        ),
        (
            "{\"text\": \"\"}".into(),
            absent("label", "\"label\" or \"class\" or \"target\"", "\"text\""),
        ),
        (format!("{good}{{\"label\": 1}}"), missing("sentence or text or content")),
        (format!("{good}{{\"text\": \"\", \"label\": null}}"), missing("label")),
        (
            format!("{good}{{\"text\": \"\", \"label\": 0.5}}"),
            format!(
                "data, line 2: \"label\" \
            {name} a number"
            ),
        ),
        (
            format!("{good}{{\"text\": \"\", \"label\": 1, \"label\": 1}}"),
            format!(
                "data, line \
            2: \"label\" {name} two values"
            ),
        ),
        (
            format!("{good}{{\"text\": \"secret\n\""),
            "data, line 2, column 16: invalid JSON: EOF while \
            parsing a string"
                .into(),
        ),
        (
            format!("{good}{{\"text\": \"\\ud800\"}}"),
            "data, line 2, column 17: invalid JSON: \
            unexpected end of hex escape"
                .into(),
        ),
        (
            format!("{good}[1]"),
            "data, line 2, column 1: expected an object, got another \
            value"
                .into(),
        ),
        ("\n\n".into(), "data: no records".into()),
    ];
    for (bytes, expected) in cases {
        let bytes: String = bytes;
        let expected: String = expected;
        assert_eq!(refusal(Format::Jsonl, &bytes, &ReadOptions::default()), expected, "{bytes}");
    }
}

// ── Images ──

#[test]
fn idx_images_are_read() {
    let scratch = Scratch::new();
    let (images, labels) = (idx(&[2, 1, 3], &[0, 51, 255, 1, 2, 3]), idx(&[2], &[7, 0]));
    for (plain, packed) in [(true, false), (false, true), (true, true)] {
        let scratch = Scratch::new();
        let images = if packed {
            scratch.file("a-images-idx3-ubyte.gz", gz(&images))
        } else {
            scratch.file("a-images-idx3-ubyte", &images)
        };
        if plain {
            scratch.file("a-labels-idx1-ubyte", &labels)
        } else {
            scratch.file("a-labels-idx1-ubyte.gz", gz(&labels))
        };
        let format = Format::detect(&images).unwrap();
        let records: Vec<_> =
            format.read(&images, &ReadOptions::default()).unwrap().map(Result::unwrap).collect();
        assert_eq!((format, records.len(), records[1].line), (Format::Idx, 2, 2));
        let expected = Content::Image {
            pixels: vec![0.0, 0.2, 1.0],
            height: 1,
            width: 3,
            channels: 1,
            label: Label::Index(7),
        };
        assert!(records[0].content == expected);
    }
    // Four dimensions: the channels of a pixel are consecutive.
    let coloured = scratch.file("a-images-idx4-ubyte", idx(&[2, 2, 1, 3], &[51; 12]));
    scratch.file("a-labels-idx1-ubyte", &labels);
    let mut records = Format::Idx.read(&coloured, &ReadOptions::default()).unwrap();
    let expected = Content::Image {
        pixels: vec![0.2; 6],
        height: 2,
        width: 1,
        channels: 3,
        label: Label::Index(7),
    };
    assert!(records.next().unwrap().unwrap().content == expected);
    let labels =
        ReadOptions { labels: Some(scratch.file("other", &labels)), ..ReadOptions::default() };
    assert_eq!(read(Format::Idx, &images, &labels).unwrap().len(), 2);
    // A file of labels is not a file of images.
    assert!(
        refusal(Format::Idx, idx(&[2], &[0; 20]), &labels)
            .contains("the magic number must be 0x00000803 or 0x00000804, got 0x00000801")
    );
}

#[test]
fn invalid_idx_files_are_refused() {
    let scratch = Scratch::new();
    let with = |name: &str, bytes: Vec<u8>| ReadOptions {
        labels: Some(scratch.file(name, bytes)),
        ..ReadOptions::default()
    };
    let two = with("two", idx(&[2], &[7, 0]));
    let cases = [
        (vec![], "the magic number must have 4 bytes, got 0; the file is truncated"),
        (
            idx(&[2, 1, 3], &[])[..15].to_vec(),
            "the list of sizes must have 12 bytes, got 11; the file is truncated",
        ),
        (idx(&[2, 1, 3], &[0; 5]), "image 2 must have 3 bytes, got 2; the file is truncated"),
        (idx(&[2, 1, 3], &[0; 7]), "the file must be at its end after 2 images, got more bytes"),
        (idx(&[2, 0, 3], &[]), "the size of an image must be from 1 to 16777216 bytes, got 0 × 3"),
        (
            idx(&[2, u32::MAX, u32::MAX], &[]),
            "the size of an image must be from 1 to 16777216 bytes, got 4294967295 × 4294967295",
        ),
        (
            idx(&[2, 4096, 4096, 3], &[]),
            "the size of an image must be from 1 to 16777216 bytes, got 4096 × 4096 × 3",
        ),
        (
            idx(&[2, 2, 2, u32::MAX], &[]),
            "the size of an image must be from 1 to 16777216 bytes, got 2 × 2 × 4294967295",
        ),
        (
            idx(&[2, 1, 3, 1, 1], &[0; 6]),
            "the magic number must be 0x00000803 or 0x00000804, got 0x00000805",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refusal(Format::Idx, bytes, &two), format!("data: {expected}"));
    }
    let images = idx(&[2, 1, 1], &[0; 2]);
    let cases = [
        (
            with("three", idx(&[3], &[0; 3])),
            "three: the number of labels must be 2, as there are images, got 3",
        ),
        (
            with("cut", idx(&[2], &[0])),
            "cut: label 2 must have 1 bytes, got 0; the file is truncated",
        ),
        (
            with("more", idx(&[2], &[0; 3])),
            "more: the file must be at its end after 2 labels, got more bytes",
        ),
        (
            with("images", images.clone()),
            "images: the magic number must be 0x00000801, got 0x00000803",
        ),
        (
            ReadOptions { labels: Some(scratch.0.join("nowhere")), ..ReadOptions::default() },
            "cannot be read",
        ),
        (
            ReadOptions::default(),
            "data: expected a file of labels beside it (its name has no \"images\" in it), got \
             none; put it there",
        ),
    ];
    for (options, expected) in cases {
        let message = refusal(Format::Idx, &images, &options);
        assert!(message.contains(expected), "{message}");
    }
    let path = scratch.file("b-images-idx3-ubyte", &images);
    let message = Format::Idx.read(path, &ReadOptions::default()).err().unwrap().to_string();
    assert!(message.contains("(b-labels-idx1-ubyte or b-labels-idx1-ubyte.gz)"), "{message}");
    assert_eq!(
        refusal(Format::Idx, idx(&[0, 1, 1], &[]), &with("none", idx(&[0], &[]))),
        "data: no records"
    );
    assert!(refusal(Format::Idx, &gz(&images)[..12], &two).contains("data: cannot be read"));
}

#[test]
fn png_strips_are_read() {
    let scratch = Scratch::new();
    scratch.file("train_lables.json", "[0, 1, 2,3,4, 5]");
    scratch.file("test_labels.json", "[9,8]");
    let rgb = strip(4, 2, png::ColorType::Rgb, png::BitDepth::Eight);
    let labels = |name: &str| -> Vec<u32> {
        let path = scratch.file(name, &rgb);
        assert_eq!(Format::detect(&path).unwrap(), Format::PngStrip);
        let records =
            Format::PngStrip.read(&path, &ReadOptions::default()).unwrap().map(Result::unwrap);
        records
            .map(|record| {
                if let Content::Image { label: Label::Index(label), .. } = record.content {
                    label
                } else {
                    panic!("no image")
                }
            })
            .collect()
    };
    assert_eq!(labels("data_batch_1.png"), [0, 1]);
    assert_eq!(labels("data_batch_3.png"), [4, 5]);
    assert_eq!(labels("test_batch.png"), [9, 8]);
    let message = |name: &str| {
        Format::PngStrip
            .read(scratch.file(name, &rgb), &ReadOptions::default())
            .err()
            .unwrap()
            .to_string()
    };
    assert!(
        message("data_batch_4.png")
            .ends_with("train_lables.json: the number of labels must be 8 or more, got 6")
    );
    assert!(message("cifar10.png").ends_with(
        "train_lables.json: the number of labels must be 2, as there are images, got 6"
    ));

    let options =
        ReadOptions { labels: Some(scratch.0.join("test_labels.json")), ..ReadOptions::default() };
    let records = read(Format::PngStrip, &rgb, &options).unwrap();
    let pixels = (12..24).map(|value| value as f32 / 255.0).collect();
    let label = Label::Index(8);
    assert!(
        records[1].content == Content::Image { pixels, height: 2, width: 2, channels: 3, label }
            && records[1].line == 2
    );
    let grey = strip(9, 2, png::ColorType::Grayscale, png::BitDepth::Eight);
    let Content::Image { pixels, channels: 1, height: 3, width: 3, .. } =
        &read(Format::PngStrip, gz(grey), &options).unwrap()[0].content
    else {
        panic!("grey")
    };
    assert_eq!(pixels.len(), 9);
}

#[test]
fn invalid_png_strips_are_refused() {
    let scratch = Scratch::new();
    let with = |bytes: &str| ReadOptions {
        labels: Some(scratch.file("labels", bytes)),
        ..ReadOptions::default()
    };
    let (rgb, eight) = (png::ColorType::Rgb, png::BitDepth::Eight);
    let good = strip(4, 2, rgb, eight);
    let message = |bytes: &[u8]| refusal(Format::PngStrip, bytes, &with("[1, 2]"));
    assert_eq!(
        message(&strip(1000, 2, rgb, eight)),
        "data: the width must be a square of at most 16777216 bytes, such as 1024 for 32 × 32, got \
         1000"
    );
    assert_eq!(
        message(&strip(4, 2, png::ColorType::Rgba, eight)),
        "data: a pixel must be 8-bit grey or RGB, got Rgba of 8 bits"
    );
    assert_eq!(
        message(&strip(4, 2, rgb, png::BitDepth::Sixteen)),
        "data: a pixel must be 8-bit grey or RGB, got Rgb of 16 bits"
    );
    assert_eq!(
        message(&patched(&good, 28, 1)),
        "data: the strip must be non-interlaced, got interlaced"
    );
    assert!(message(&patched(&good, 16, 0x40)).contains("the width must be a square"));
    assert_eq!(message(&good[..good.len() - 20]), "data, image 2: the file is truncated");
    assert_eq!(message(&good[..44]), "data, image 1: the file is truncated");
    assert_eq!(
        message(&[&good[..45], &[7; 40]].concat()),
        "data, image 1: Corrupt deflate stream. DistanceTooFarBack"
    );
    assert_eq!(message(b"secret"), "data, image 1: Invalid PNG signature.");
    // The name of a damaged chunk may consist of private pixels.
    let hidden = [&good[..8], &4u32.to_be_bytes(), b"SECRsomething"].concat();
    assert_eq!(message(&hidden), "data, image 1: a chunk is damaged or misplaced");
    assert_eq!(message(b""), "data, image 1: the file is truncated");
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 4, 2);
    encoder.set_color(rgb);
    encoder.set_animated(1, 0).unwrap();
    encoder.write_header().unwrap().write_image_data(&[0; 24]).unwrap();
    assert_eq!(message(&bytes), "data: the strip must be a single image, got an animation");

    let message = |labels: &str| refusal(Format::PngStrip, &good, &with(labels));
    assert!(
        message("[1]")
            .ends_with("labels: the number of labels must be 2, as there are images, got 1")
    );
    assert!(
        message("[1, -2]").ends_with("labels, line 1, column 6: expected u32, got another value"),
        "{}",
        message("[1, -2]")
    );
    assert!(message("").contains("invalid JSON: EOF while parsing a value"));
    let mut options = with(&format!("[1,{}2]", " ".repeat(2000)));
    options.max_row_bytes = 1000;
    assert!(refusal(Format::PngStrip, &good, &options).contains("at most 1000 bytes"));
    let path = scratch.file("x.png", &good);
    let message = Format::PngStrip.read(&path, &ReadOptions::default()).err().unwrap().to_string();
    assert!(message.contains("(train_lables.json or train_labels.json)"), "{message}");
}

/// The PNG with a changed byte in its header and a valid checksum.
fn patched(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = byte;
    let mut sum = flate2::Crc::new();
    sum.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.sum().to_be_bytes());
    bytes
}

// ── Detection, options, files ──

#[test]
fn formats_are_detected() {
    let cases = [
        ("x.txt", "a||b\n\nc||d", "e2e"),
        ("x.src", "a||b", "e2e"),
        ("x.csv", "mr,ref\na,b", "e2e"),
        ("x.csv", "\"mr\",\"ref\"\na,b", "e2e"),
        ("x.csv", "text,label", "csv"),
        ("x.csv", "{a},[b]", "csv"),
        ("X.TSV.GZ", "a\tb", "tsv"),
        ("x.json", "[\n {\"tripleset\": [", "dart"),
        ("x", "[{\"annotations\": [], \"tripleset\": [", "dart"),
        ("x.jsonl", "{\"text\": \"\", \"label\": 0}\n{", "jsonl"),
        ("x.json", "{\"sentence\": \"\", \"class\": 0}", "jsonl"),
        ("x.jsonl", "{\"prompt\": \"\", \"completion\": \"\"}", "instructions"),
        ("x.jsonl", "{\"instruction\": \"\", \"output\": \"\"}", "instructions"),
        ("x.ndjson", "{\"messages\": []}", "instructions"),
        ("x.txt", "Sentence\tLabel\na\t1", "tsv"),
        ("x.txt", "\"text\",label\na,1", "csv"),
        ("x.txt", "Once\nupon", "lines"),
        ("x", "[once] {upon}\n", "lines"),
        ("x.txt", "{not json\n", "lines"),
        ("x.txt", "a\tb\nc", "lines"),
    ];
    for (name, head, expected) in cases {
        assert_eq!(
            Format::detect_from_bytes(Path::new(name), head.as_bytes()).unwrap().name(),
            expected,
            "{name}: {head}"
        );
    }
    assert_eq!(
        Format::detect_from_bytes(Path::new("x"), b"\x89PNG\r\n\x1a\n").unwrap(),
        Format::PngStrip
    );
    assert_eq!(Format::detect_from_bytes(Path::new("x.txt"), &[0, 0, 8, 1]).unwrap(), Format::Idx);
    // Latin-1 is refused by the reader, which reports the line.
    assert_eq!(Format::detect_from_bytes(Path::new("x.txt"), b"caf\xe9\n").unwrap(), Format::Lines);
}

#[test]
fn ambiguous_formats_are_refused() {
    let cases: [(&str, &[u8], &str); 10] = [
        ("x.txt", b"a||b\nc", "it could be any of e2e, lines"),
        ("x.txt", b"a\tb\nc\td", "it could be any of tsv, lines"),
        ("x.md", b"once", "it could be lines"),
        ("x.json", b"[1]", "it could be any of dart, instructions, jsonl"),
        ("x.jsonl", b"{\"a\": 1}", "it could be any of instructions, jsonl"),
        (
            "x.jsonl",
            b"{\"prompt\": \"\", \"completion\": \"\", \"text\": \"\", \"label\": 1}",
            "it could be any of instructions, jsonl",
        ),
        ("x.jsonl", b"{\"text\": \"cut off", "it could be any of instructions, jsonl"),
        (
            "x.txt",
            b"\xff\xfea\0",
            "it looks like none of e2e, dart, lines, instructions, tsv, csv, jsonl, idx, png-strip, \
             parquet, arrow, image-folder",
        ),
        (
            "x.txt",
            b"a\0b",
            "it looks like none of e2e, dart, lines, instructions, tsv, csv, jsonl, idx, png-strip, \
             parquet, arrow, image-folder",
        ),
        (
            "x.txt",
            b"  \xff",
            "it looks like none of e2e, dart, lines, instructions, tsv, csv, jsonl, idx, png-strip, \
             parquet, arrow, image-folder",
        ),
    ];
    for (name, head, expected) in cases {
        let message = Format::detect_from_bytes(Path::new(name), head).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("{name}: cannot detect the format, {expected}; set data.format (--format)")
        );
    }
    for empty in ["", " \n"] {
        assert_eq!(
            Format::detect_from_bytes(Path::new("x.txt"), empty.as_bytes())
                .unwrap_err()
                .to_string(),
            "x.txt: no records"
        );
    }
}

#[test]
fn files_are_read_and_missing_ones_refused() {
    let scratch = Scratch::new();
    let path = scratch.file("x.txt.gz", gz("\u{feff}a||b\n"));
    assert_eq!(Format::detect(&path).unwrap(), Format::E2e);
    assert_eq!(Format::E2e.read(&path, &ReadOptions::default()).unwrap().count(), 1);
    // Larger than the bytes that detection reads, which end within a row.
    let path = scratch.file("y.txt", "a||b\n".repeat(20_000));
    assert_eq!(Format::detect(&path).unwrap(), Format::E2e);
    assert!(matches!(Format::detect(scratch.0.join("none")), Err(Error::Io { .. })));
    assert!(matches!(
        Format::Lines.read(scratch.0.join("none"), &ReadOptions::default()),
        Err(Error::Io { .. })
    ));
    assert!(
        matches!(Format::Lines.read(&scratch.0, &ReadOptions::default()), Err(Error::Io { .. })),
        "a directory"
    );
    let cut = gz("a||b\n".repeat(1000));
    assert!(matches!(
        read(Format::E2e, &cut[..cut.len() - 3], &ReadOptions::default()),
        Err(Error::Io { .. })
    ));
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let column = |format| {
        !matches!(
            format,
            Format::Tsv | Format::Csv | Format::Jsonl | Format::Parquet | Format::Arrow
        )
    };
    let labels = ReadOptions { labels: Some("x".into()), ..ReadOptions::default() };
    for format in Format::ALL {
        let refused =
            |options: &ReadOptions| matches!(read(format, "", options), Err(Error::Option { .. }));
        assert_eq!(refused(&options(Some("a"), None, None)), column(format));
        assert_eq!(refused(&options(None, Some("a"), None)), column(format));
        assert_eq!(
            refused(&options(None, None, Some("a"))),
            column(format) && format != Format::Instructions
        );
        assert_eq!(refused(&labels), !matches!(format, Format::Idx | Format::PngStrip));
    }
    let message = refusal(Format::Lines, "", &options(None, None, Some("user")));
    assert_eq!(message, "data.group does not apply to the format lines; remove it");
}

// ── Bounds ──

/// The peak memory of reading, beyond the input. The records are dropped one by one.
fn peak(
    format: Format,
    bytes: impl Read + Send + 'static,
    options: &ReadOptions,
) -> (u64, u64, Option<String>) {
    let (mut count, mut refused) = (0, None);
    let seen = allocation_counter::measure(|| match format.read_from(bytes, "data", options) {
        Ok(records) => records.for_each(|record| match record {
            Ok(_) => count += 1,
            Err(error) => refused = Some(format!("{error} {error:?}")),
        }),
        Err(error) => refused = Some(format!("{error} {error:?}")),
    });
    (seen.bytes_max, count, refused)
}

#[test]
fn rows_beyond_the_limit_are_refused_in_bounded_memory() {
    for (format, start, endless) in [
        (Format::E2e, "", b'a'),
        (Format::E2e, "mr,ref\n\"", b'\n'),
        (Format::Dart, "[{\"", b'a'),
        (Format::Dart, "[{", b'['),
        (Format::Lines, "", 0),
        (Format::Instructions, "{\"", b'a'),
        (Format::Tsv, "", b'\t'),
        (Format::Csv, "", b','),
        (Format::Csv, "\"", b'\n'),
        (Format::Jsonl, "", b'['),
    ] {
        let (peak, count, refused) =
            peak(format, Cursor::new(start).chain(io::repeat(endless)), &short(1 << 20));
        assert!(
            refused.is_some_and(|message| message.contains("at most 1048576 bytes")) && count == 0,
            "{format}"
        );
        // A row and its cells, each in a buffer that grows by doubling.
        assert!(peak < 6 << 20, "{format}: {peak}");
    }
    let (peak, _, refused) = peak(Format::Lines, io::repeat(b'a'), &ReadOptions::default());
    assert!(
        refused.is_some_and(|message| message.contains("at most 16777216 bytes"))
            && peak < 64 << 20,
        "{peak}"
    );
}

#[test]
fn memory_of_a_row_is_bounded() {
    let long = 1 << 20;
    let cases = [
        (
            Format::Jsonl,
            format!("{{\"text\": \"\", \"label\": 1, \"x\": [{}1]}}", "[],".repeat(long / 3)),
        ),
        (Format::Jsonl, format!("{{\"text\": [{}1], \"label\": 1}}", "1,".repeat(long / 2))),
        (
            Format::Instructions,
            format!(
                "{{\"messages\": [{}1]}}",
                "{\"role\":\"\",\"content\":\"\"},".repeat(long / 26)
            ),
        ),
        (
            Format::Dart,
            format!("[{{\"tripleset\": [{}1]}}]", "[\"\",\"\",\"\"],".repeat(long / 12)),
        ),
        (
            Format::Dart,
            format!(
                "[{{\"tripleset\": [], \"annotations\": [{}{{}}]}}]",
                "{\"text\":\"\"},".repeat(long / 12)
            ),
        ),
        (Format::Csv, format!("text,label\n{}", ",".repeat(long))),
        (Format::Csv, format!("text,label\n\"{}\",1", "\"\"".repeat(long / 2))),
        (Format::Tsv, "\t".repeat(long)),
    ];
    for (format, bytes) in cases {
        let (peak, ..) = peak(format, Cursor::new(bytes.clone()), &ReadOptions::default());
        assert!(peak < 16 * long as u64, "{format}: {peak}, {}", &bytes[..40]);
    }
}

#[test]
fn large_files_are_streamed() {
    let scratch = Scratch::new();
    let path = scratch.0.join("large.jsonl");
    let row = format!(
        "{{\"text\": \"{}\", \"label\": 1, \"user\": 12345, \"more\": [1, 2, {{}}]}}\n",
        "word ".repeat(180)
    );
    let rows = 100_000_000 / row.len() as u64 + 1;
    let mut file = BufWriter::new(File::create(&path).unwrap());
    for _ in 0..rows {
        file.write_all(row.as_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    assert!(fs::metadata(&path).unwrap().len() >= 100_000_000);
    let (peak, count, refused) =
        peak(Format::Jsonl, File::open(&path).unwrap(), &options(None, None, Some("user")));
    assert_eq!((count, refused), (rows, None));
    assert!(peak < 1 << 20, "{peak} bytes at once");
}

/// A word in every record of the valid files below; no message may contain it.
const SECRET: &str = "Zq7x";

/// Valid files, each with its format.
fn valid() -> Vec<(Format, Vec<u8>)> {
    let pixels: Vec<u8> = (0..24).collect();
    let files = vec![
        format!("a : {SECRET}||{SECRET} é .\n\nb||{SECRET}\n").into_bytes(),
        format!(
            "[{{\"tripleset\": [[\"{SECRET}\", \"R\", \"{SECRET}\"]], \
             \"annotations\": [{{\"text\": \"{SECRET}\"}}]}}, \
             {{\"tripleset\": [], \"annotations\": []}}]"
        )
        .into_bytes(),
        format!("{SECRET}\n{SECRET} ü\n").into_bytes(),
        format!(
            "{{\"instruction\": \"{SECRET}\", \"output\": \"{SECRET}\"}}\n\
             {{\"prompt\": \"{SECRET}\", \"completion\": \"\\u00e9\"}}\n\
             {{\"messages\": [{{\"role\": \"user\", \"content\": \"{SECRET}\"}}, \
             {{\"role\": \"assistant\", \"content\": \"{SECRET}\"}}]}}"
        )
        .into_bytes(),
        format!("text\tlabel\n{SECRET}\t{SECRET}\n{SECRET}\t0\n").into_bytes(),
        format!("text,label\n\"{SECRET}, \"\"x\"\"\",{SECRET}\n{SECRET},\"0\n1\"\n").into_bytes(),
        format!(
            "{{\"text\": \"{SECRET}\", \"label\": \"{SECRET}\"}}\n\
             {{\"label\": 1, \"text\": \"{SECRET}\"}}\n"
        )
        .into_bytes(),
        idx(&[2, 3, 4], &pixels),
        strip(4, 2, png::ColorType::Rgb, png::BitDepth::Eight),
        format!("mr,ref\n{SECRET},\"{SECRET}\n\"\n").into_bytes(),
    ];
    let formats = [
        Format::E2e,
        Format::Dart,
        Format::Lines,
        Format::Instructions,
        Format::Tsv,
        Format::Csv,
        Format::Jsonl,
        Format::Idx,
        Format::PngStrip,
        Format::E2e,
    ];
    let files: Vec<_> = formats.into_iter().zip(files).collect();
    let packed = |pack: fn(&Vec<u8>) -> Vec<u8>| {
        files.iter().map(|(format, bytes)| (*format, pack(bytes))).collect::<Vec<_>>()
    };
    [files.clone(), packed(|bytes| gz(bytes)), packed(|bytes| zst(bytes))].concat()
}

#[derive(Debug, Clone)]
enum Damage {
    Set(u8),
    Flip(u8),
    Insert(u8),
    Remove(usize),
    Repeat(usize),
    Cut,
}

fn damaged(mut bytes: Vec<u8>, damage: &[(usize, Damage)]) -> Vec<u8> {
    for (at, damage) in damage {
        let at = at % (bytes.len() + 1);
        let upto = |length: &usize| (at + length).min(bytes.len());
        match damage {
            Damage::Set(byte) => bytes.get_mut(at).into_iter().for_each(|old| *old = *byte),
            Damage::Flip(bit) => bytes.get_mut(at).into_iter().for_each(|old| *old ^= 1 << bit),
            Damage::Insert(byte) => bytes.insert(at, *byte),
            Damage::Remove(length) => drop(bytes.drain(at..upto(length))),
            Damage::Repeat(length) => {
                let again = bytes[at..upto(length)].to_vec();
                bytes.splice(at..at, again);
            }
            Damage::Cut => bytes.truncate(at),
        }
    }
    bytes
}

fn any_byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), proptest::sample::select(b"\n\r\t,\"|{}[]:\\0\0\xff\xef".to_vec())]
}

fn any_damage() -> impl Strategy<Value = (usize, Damage)> {
    let damage = prop_oneof![
        any_byte().prop_map(Damage::Set),
        (0..8_u8).prop_map(Damage::Flip),
        any_byte().prop_map(Damage::Insert),
        (0..32_usize).prop_map(Damage::Remove),
        (0..64_usize).prop_map(Damage::Repeat),
        Just(Damage::Cut),
    ];
    (any::<usize>(), damage)
}

/// A message without the names of columns, which a damaged file can have among its rows.
fn without_columns(message: &str) -> String {
    let names = |part: &str| match part.split_once("; set data.") {
        Some((_, rest)) => rest.to_owned(),
        None => String::new(),
    };
    let mut parts = message.split("the columns ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + &names(part))
}

/// Runs every reader on these bytes: no panic, bounded time and memory, no content in messages.
fn survives(bytes: &[u8], images: &[ReadOptions; 2]) -> Result<(), TestCaseError> {
    for name in ["x.txt", "x.csv", "x.json", "x"] {
        if let Err(error) = Format::detect_from_bytes(Path::new(name), bytes) {
            let message = format!("{error} {error:?}");
            prop_assert!(!without_columns(&message).contains(SECRET));
        }
    }
    let plain = short(4096);
    for format in Format::ALL {
        let options = match format {
            Format::Idx => &images[0],
            Format::PngStrip => &images[1],
            _ => &plain,
        };
        let (peak, count, refused) = peak(format, Cursor::new(bytes.to_vec()), options);
        // Compressed, a byte can stand for a thousand.
        prop_assert!(count <= 1100 * bytes.len() as u64, "{} records", count);
        prop_assert!(count > 0 || refused.is_some());
        prop_assert!(peak < 1 << 20, "{}: {} bytes at once", format, peak);
        prop_assert!(
            refused.is_none_or(|message| !without_columns(&message).contains(SECRET)),
            "{} shows a record",
            format
        );
    }
    Ok(())
}

fn image_options(scratch: &Scratch) -> [ReadOptions; 2] {
    let with = |name: &str, bytes: &[u8]| ReadOptions {
        labels: Some(scratch.file(name, bytes)),
        max_row_bytes: 4096,
        ..ReadOptions::default()
    };
    [with("idx", &idx(&[2], &[0, 1])), with("json", b"[0, 1]")]
}

/// Returns one byte per read, and is interrupted before each.
struct Trickle(Cursor<Vec<u8>>, bool);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            Err(io::ErrorKind::Interrupted.into())
        } else {
            Read::by_ref(&mut self.0).take(1).read(into)
        }
    }
}

#[test]
fn valid_files_are_read() {
    let scratch = Scratch::new();
    let [idx, png] = image_options(&scratch);
    for (format, bytes) in valid() {
        let options = match format {
            Format::Idx => idx.clone(),
            Format::PngStrip => png.clone(),
            _ => short(4096),
        };
        let records = read(format, &bytes, &options).unwrap();
        assert!(!records.is_empty(), "{format}");
        let slow =
            format.read_from(Trickle(Cursor::new(bytes.clone()), false), "data", &options).unwrap();
        assert!(slow.map(Result::unwrap).eq(records), "{format}");
        survives(&bytes, &[idx.clone(), png.clone()]).unwrap();
    }
}

#[test]
fn arbitrary_bytes_do_not_panic() {
    let scratch = Scratch::new();
    let (images, valid) = (image_options(&scratch), valid());
    let config =
        ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
    let random = proptest::collection::vec(any_byte(), 0..200);
    let broken = (0..valid.len(), proptest::collection::vec(any_damage(), 1..6))
        .prop_map(move |(at, damage)| damaged(valid[at].1.clone(), &damage));
    let bytes = prop_oneof![1 => random.boxed(), 3 => broken.boxed()];
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner.run(&bytes, |bytes| survives(&bytes, &images)).unwrap();
}

// ── Real data sets ──

/// The directory with the data sets; prints a notice if it is missing.
fn data() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("MUFFLE_DATA").map_or_else(beside, PathBuf::from);
    if !path.is_dir() {
        eprintln!("SKIPPED: there are no data sets in {} (set MUFFLE_DATA)", path.display());
        return None;
    }
    Some(path)
}

/// The numbers of records and of distinct consecutive sources; the format must be detected.
fn counted(path: &Path, format: Format) -> (usize, usize) {
    assert_eq!(Format::detect(path).unwrap(), format, "{}", path.display());
    let read = || format.read(path, &ReadOptions::default()).unwrap();
    (read().map(Result::unwrap).count(), merge_by_source(read()).map(Result::unwrap).count())
}

#[test]
fn e2e_is_read() {
    let Some(data) = data() else { return };
    let count = |name: &str| counted(&data.join("e2e").join(name), Format::E2e);
    assert_eq!(count("src1_train.txt"), (42_061, 42_057));
    assert_eq!(count("src1_valid.txt"), (4_672, 547));
    assert_eq!(count("src1_test.txt"), (4_693, 630));
    assert_eq!(count("devset.csv"), (4_672, 547));
    assert_eq!(count("testset_w_refs.csv"), (4_693, 630));
    let first = Format::E2e
        .read(data.join("e2e/src1_test.txt"), &ReadOptions::default())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let source = "name : Blue Spice | Type : coffee shop | area : city centre";
    assert_eq!(
        text(first),
        given(source, "A coffee shop in the city centre area called Blue Spice .", 1)
    );
}

#[test]
fn dart_is_read() {
    let Some(data) = data() else { return };
    let count = |name: &str| counted(&data.join("dart").join(name), Format::Dart);
    // 30,525, 2,768 and 5,097 entries; some neighbours have the same triples.
    assert_eq!(count("dart-v1.1.1-full-train.rebuilt.json"), (62_659, 30_436));
    assert_eq!(count("dart-v1.1.1-full-dev.json"), (6_980, 2_761));
    assert_eq!(count("dart-v1.1.1-full-test.latest-5097.json"), (12_552, 5_092));
    let path = data.join("dart/dart-v1.1.1-full-train.rebuilt.json");
    let mut lines: Vec<u64> = Format::Dart
        .read(&path, &ReadOptions::default())
        .unwrap()
        .map(|record| record.unwrap().line)
        .collect();
    lines.dedup();
    assert_eq!(lines.len(), 30_525);
    let first = Format::Dart.read(path, &ReadOptions::default()).unwrap().next().unwrap().unwrap();
    let source = "First Clearing : location : On NYS 52 1 Mi. Youngsville | On NYS 52 1 Mi. \
        Youngsville : city_or_town : Callicoon, New York";
    let target =
        "First Clearing\tbased on Callicoon, New York and location at On NYS 52 1 Mi. Youngsville";
    assert_eq!(text(first), given(source, target, 2));
}

#[test]
fn sst2_is_read() {
    let Some(data) = data() else { return };
    for (name, count) in [("train.tsv", 67_349), ("dev.tsv", 872), ("test-labeled.tsv", 1_821)] {
        let path = data.join("sst2").join(name);
        assert_eq!(Format::detect(&path).unwrap(), Format::Tsv);
        let rows = labelled(Format::Tsv, fs::read(&path).unwrap(), &ReadOptions::default());
        assert_eq!(rows.len(), count);
        assert!(rows.iter().all(|(text, label, ..)| matches!(label.as_str(), "0" | "1")
            && !text.is_empty()
            && text.trim() == text));
    }
}
