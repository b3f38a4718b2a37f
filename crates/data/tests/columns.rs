//! Columns of tables: separators, missing values, and messages that name the key to set.
#![allow(clippy::unwrap_used)]

use data::{Content, Error, Format, Missing, ReadOptions, Record, Separator};
use std::io::Cursor;

fn read(format: Format, text: &str, options: &ReadOptions) -> Result<Vec<Record>, Error> {
    format.read_from(Cursor::new(text.to_owned().into_bytes()), "data", options)?.collect()
}

/// Text, label and line of each record; `None` for a row without a value.
fn rows(format: Format, text: &str, options: &ReadOptions) -> Vec<(Option<[String; 2]>, u64)> {
    let cells = |content: Content| match content {
        Content::Labelled { text, label } => Some([text, label]),
        Content::Text { source, target, .. } => Some([source.unwrap_or_default(), target]),
        Content::Missing => None,
        Content::Image { .. } => panic!("no text"),
    };
    let records = read(format, text, options).unwrap();
    records.into_iter().map(|record| (cells(record.content), record.line)).collect()
}

fn row(text: &str, label: &str, line: u64) -> (Option<[String; 2]>, u64) {
    (Some([text.into(), label.into()]), line)
}

fn refusal(format: Format, text: &str, options: &ReadOptions) -> String {
    read(format, text, options).unwrap_err().to_string()
}

fn skip() -> ReadOptions {
    ReadOptions { missing: Missing::Skip, ..ReadOptions::default() }
}

#[test]
fn separators_are_detected_from_the_header() {
    for (separator, character) in Separator::ALL.into_iter().zip([",", ";", "\t", "|"]) {
        assert_eq!(character.parse::<Separator>().unwrap(), separator);
        let table =
            "id~text~label\r\n1~\"a~, ; \"\"b\"\"\r\n| c\"~x\r\n\r\n2~d \"e\"~\"y\"\r\n3~f~z";
        let table = table.replace('~', character);
        let second = format!("a{character}, ; \"b\"\r\n| c");
        let expected = [row(&second, "x", 2), row("d \"e\"", "y", 5), row("f", "z", 6)];
        for given in [None, Some(separator)] {
            let options = ReadOptions { separator: given, ..ReadOptions::default() };
            assert_eq!(rows(Format::Csv, &table, &options), expected, "{separator:?}");
        }
        let expected = if separator == Separator::Tab { Format::Tsv } else { Format::Csv };
        let detected = Format::detect_from_bytes("x.txt".as_ref(), table.as_bytes()).unwrap();
        assert_eq!(detected, expected);
        // Names of the options count as well.
        let named = ReadOptions {
            text: Some("id".into()),
            label: Some("label".into()),
            ..ReadOptions::default()
        };
        assert_eq!(rows(Format::Csv, &table, &named)[0], row("1", "x", 2));
    }
    assert!("x".parse::<Separator>().is_err());
}

/// Without known names the first line may be a private row: its content is not interpreted.
#[test]
fn without_a_header_cells_are_separated_by_commas() {
    let numbered =
        ReadOptions { text: Some("1".into()), label: Some("2".into()), ..ReadOptions::default() };
    assert_eq!(
        rows(Format::Csv, "a; b; c,1\nd,2", &numbered),
        [row("a; b; c", "1", 1), row("d", "2", 2)]
    );
    assert_eq!(
        refusal(Format::Csv, "secret;1\n", &ReadOptions::default()),
        "data: expected a column \"sentence\" or \"text\" or \"content\" for the text, got 1 \
         column without a known name (see data.separator); set data.text_column to a name, or in \
         a table to a number counted from 1"
    );
}

#[test]
fn characters_after_a_quoted_cell_belong_to_it() {
    let table = "text,label\n\"a\"b ,1\n";
    assert_eq!(rows(Format::Csv, table, &ReadOptions::default()), [row("ab", "1", 2)]);
}

#[test]
fn separators_do_not_apply_to_other_formats() {
    let options = ReadOptions { separator: Some(Separator::Semicolon), ..ReadOptions::default() };
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Csv) {
        assert_eq!(
            refusal(format, "", &options),
            format!("data.separator does not apply to the format {format}; remove it")
        );
    }
}

#[test]
fn rows_without_a_value_are_errors_or_skipped() {
    let none = ReadOptions::default();
    for missing in ["", " ", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "\"\""] {
        for (cells, column) in [("a~", "label"), ("~1", "text")] {
            let cells = match cells.strip_prefix('~') {
                Some(rest) => format!("{missing},{rest}"),
                None => cells.replace('~', &format!(",{missing}")),
            };
            let table = format!("text,label\nx,1\n{cells}\ny,2\n");
            assert_eq!(
                refusal(Format::Csv, &table, &none),
                format!(
                    "data, line 3: {column:?} has no value; complete the row, or set \
                     data.missing = \"skip\" to leave its place vacant"
                )
            );
            assert_eq!(
                rows(Format::Csv, &table, &skip()),
                [row("x", "1", 2), (None, 3), row("y", "2", 4)]
            );
        }
    }
    // These are labels.
    assert_eq!(rows(Format::Csv, "text,label\nx,none\n", &none), [row("x", "none", 2)]);
}

/// A skipped row stays with its group. A row without a group is refused.
#[test]
fn groups_are_never_missing() {
    let grouped = ReadOptions { group: Some("user".into()), ..skip() };
    for (format, good, bad) in [
        (Format::Tsv, "text\tlabel\tuser\na\t\tann\n", "b\t2\t\n"),
        (
            Format::Jsonl,
            "{\"text\": \"a\", \"label\": null, \"user\": \"ann\"}\n\n",
            "{\"text\": \"b\", \"label\": 2, \"user\": null}\n",
        ),
        (
            Format::Instructions,
            "{\"prompt\": \"a\", \"completion\": null, \"user\": \"ann\"}\n\n",
            "{\"prompt\": \"a\", \"completion\": \"b\", \"user\": \" \"}\n",
        ),
    ] {
        let records = read(format, good, &grouped).unwrap();
        assert!(records[0].content == Content::Missing);
        assert_eq!(records[0].group.as_deref(), Some("ann"));
        assert_eq!(
            refusal(format, &format!("{good}{bad}"), &grouped),
            "data, line 3: \"user\" (data.group) has no value; expected the name of a person in \
             every row, also with data.missing = \"skip\""
        );
    }
}

#[test]
fn keys_without_a_value_are_skipped() {
    let objects = concat!(
        "{\"text\": \"a\", \"label\": null}\n",
        "{\"text\": null, \"label\": 1}\n",
        "{\"label\": 1}\n",
        "{\"text\": \"a\"}\n",
        "{\"text\": \"a\", \"label\": \" \"}\n",
        "{\"text\": \"\", \"label\": 1}\n",
    );
    let vacant = |line| (None, line);
    assert_eq!(
        rows(Format::Jsonl, objects, &skip()),
        [vacant(1), vacant(2), vacant(3), vacant(4), vacant(5), row("", "1", 6)]
    );
    let pairs =
        "{\"prompt\": \"a\", \"completion\": null}\n{\"prompt\": \"a\", \"completion\": \"b\"}";
    assert_eq!(rows(Format::Instructions, pairs, &skip()), [vacant(1), row("a", "b", 2)]);
}

/// The names of a header are shown; the cells of a row without known names are not.
#[test]
fn absent_columns_are_reported_with_the_columns_that_exist() {
    let group = ReadOptions { group: Some("user".into()), ..ReadOptions::default() };
    let expected = "data: expected a column \"user\" for the group, got the columns \"text\", \
         \"label\", \"person\"; set data.group to a name, or in a table to a number counted from 1";
    assert_eq!(refusal(Format::Csv, "text,label,person\na,1,b\n", &group), expected);
    let object = "{\"text\": \"a\", \"label\": 1, \"person\": \"b\"}\n";
    assert_eq!(refusal(Format::Jsonl, object, &group), expected);
    let image = ReadOptions { image: Some("photo".into()), ..ReadOptions::default() };
    assert_eq!(
        refusal(Format::Csv, "text,label\na,1\n", &image),
        "data: expected a column \"photo\" for the image, got the columns \"text\", \"label\"; set \
         data.image_column to a name, or in a table to a number counted from 1"
    );
    let many: Vec<String> = (0..30).map(|i| format!("c{i}")).collect();
    let message = refusal(Format::Csv, &format!("text,{}\n", many.join(",")), &group);
    assert!(message.contains("\"c18\" and 11 more;"), "{message}");
    let both = ReadOptions { text: Some("a".into()), ..image };
    assert_eq!(
        refusal(Format::Csv, "", &both),
        "expected data.text_column or data.image_column, got both"
    );
}
