//! What is public of a run does not depend on what one row, or one person, says: a row that cannot
//! be used is a vacant place.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use program::{muffle, write_tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const ROWS: usize = 60;

/// A tokenizer of public texts, and a RUN.toml that evaluates on nothing: what is printed then
/// depends on no noise.
fn prepare(place: &Path, data: &str) {
    write_tokenizer(place);
    let text = format!(
        "[model]\ntokenizer = \"tokenizer.json\"\n[data]\n{data}\n[privacy]\nepsilon = \
         8.0\nadjacency = \"replace-one\"\n\
         [training]\nepochs = 0.5\ncheckpoint_every = 3\n"
    );
    std::fs::write(place.join("RUN.toml"), text).unwrap();
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// A text in which random ids, and hashes of them and of noisy weights, are dots: words of 32 or 64
/// hexadecimal digits.
fn without_ids(text: &str) -> String {
    let is_id =
        |word: &str| matches!(word.len(), 32 | 64) && word.bytes().all(|c| c.is_ascii_hexdigit());
    let words = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    words
        .map(|part| {
            let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if is_id(word) { "…".to_string() + &part[word.len()..] } else { part.to_string() }
        })
        .collect()
}

/// Trains on a file and gives everything that is public: what was printed, and every file,
/// without the weights, random ids and hashes of either.
fn public(place: &Path, rows: &str, more: &[&str]) -> BTreeMap<String, String> {
    std::fs::write(place.join("people"), rows).unwrap();
    let out = place.join("run");
    let arguments = [&["train", "RUN.toml", "--out", "run"], more].concat();
    let output = muffle(&arguments).current_dir(place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut seen = BTreeMap::new();
    seen.insert(
        "standard output".to_string(),
        without_ids(&String::from_utf8(output.stdout).unwrap()),
    );
    seen.insert(
        "standard error".to_string(),
        without_ids(&String::from_utf8(output.stderr).unwrap()),
    );
    for path in walk(&out) {
        let name = path.strip_prefix(&out).unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let content = if name.ends_with(".safetensors") || name.starts_with("checkpoints") {
            format!("{} bytes of noisy weights", bytes.len())
        } else {
            without_ids(&String::from_utf8(bytes).unwrap())
        };
        seen.insert(name, content);
    }
    std::fs::remove_dir_all(&out).unwrap();
    seen
}

fn assert_same(what: &str, one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{what}");
    for (name, content) in one {
        assert_eq!(content, &other[name], "{what}: {name}");
    }
    let statement: Value = serde_json::from_str(&one["model/privacy.json"]).unwrap();
    assert_eq!(statement["records"], ROWS, "{what}");
}

/// One row is too long, has one token, or has none: nothing that is public differs.
#[test]
fn a_row_that_cannot_be_used_is_not_seen() {
    let place = tempfile::tempdir().unwrap();
    prepare(place.path(), "train = \"people\"\nformat = \"lines\"\nmax_length = 40");
    let rows = |changed: &str| -> String {
        (0..ROWS)
            .map(|i| {
                if i == 17 {
                    format!("{changed}\n")
                } else {
                    format!("Ines bakes bread on day {i}.\n")
                }
            })
            .collect()
    };
    let usual = public(place.path(), &rows("Nils bakes bread on day 17."), &["--json"]);
    for (what, row) in [
        ("too long", "welder ".repeat(100)),
        ("of one token", "a".into()),
        ("blank", String::new()),
        ("white space", " \t".into()),
    ] {
        assert_same(what, &usual, &public(place.path(), &rows(&row), &["--json"]));
    }
    // Whether any row can be used is not seen either.
    let none: String = (0..ROWS).map(|_| "welder ".repeat(100) + "\n").collect();
    assert_same("all of them", &usual, &public(place.path(), &none, &["--json"]));
    // As text, too.
    assert_same(
        "text",
        &public(place.path(), &rows("Nils bakes."), &[]),
        &public(place.path(), &rows(&"welder ".repeat(100)), &[]),
    );
}

/// The rows of one person are replaced by others, some of which cannot be used or are beyond the
/// limit: nothing that is public differs.
#[test]
fn what_a_person_says_is_not_seen() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"instructions\"\nmax_length = 40\ngroup \
         = \"who\"\nrows_per_person = 2",
    );
    // Every third row is the person's, whose names and texts are given; the others have two rows
    // each.
    let rows = |names: [&str; 3], text: &dyn Fn(usize) -> String| -> String {
        let own =
            |i: usize| json!({ "prompt": "say", "completion": text(i), "who": names[i / 3 % 3] });
        let other = |i: usize| {
            json!({ "prompt": "say", "completion": format!("day \
            {i}"), "who": format!("person {}", i / 4) })
        };
        (0..ROWS).map(|i| if i % 3 == 0 { own(i) } else { other(i) }.to_string() + "\n").collect()
    };
    let usual =
        public(place.path(), &rows(["x", "y", "z"], &|i| format!("night {i}")), &["--json"]);
    for (what, names) in [("beyond the limit", ["x"; 3]), ("fewer beyond it", ["x", "x", "z"])] {
        assert_same(
            what,
            &usual,
            &public(place.path(), &rows(names, &|i| format!("night {i}")), &["--json"]),
        );
    }
    let long = |i: usize| if i < 30 { "welder ".repeat(100) } else { format!("night {i}") };
    assert_same(
        "too long",
        &usual,
        &public(place.path(), &rows(["x", "y", "z"], &long), &["--json"]),
    );
}

/// How many rows hold no record is said where that is asked for, marked, and on standard error
/// only.
#[test]
fn left_out_rows_are_counted_on_request() {
    let place = tempfile::tempdir().unwrap();
    prepare(place.path(), "train = \"people\"\nformat = \"lines\"\nmax_length = 40");
    let rows: String = (0..ROWS)
        .map(|i| if i % 4 == 0 { "welder ".repeat(100) + "\n" } else { format!("day {i}\n\n") })
        .collect();
    let seen = public(place.path(), &rows, &["--show-left-out"]);
    let line = seen["standard error"].lines().find(|line| line.contains("NON-PRIVATE")).unwrap();
    assert!(line.contains("15 too long, 45 empty, 0 beyond"), "{line}");
    assert!(
        seen.iter()
            .all(|(name, content)| name == "standard error" || !content.contains("too long"))
    );
}

/// Where it is declared public which rows are too long, they are removed, and the statement says
/// so.
#[test]
fn a_declaration_is_stated() {
    let place = tempfile::tempdir().unwrap();
    let data = "train = \"people\"\nformat = \"lines\"\nmax_length = 40";
    let rows: String = (0..ROWS)
        .map(|i| if i % 4 == 0 { "welder ".repeat(100) + "\n" } else { format!("day {i}\n") })
        .collect();
    let statement = |more: &str| -> Value {
        prepare(place.path(), &format!("{data}\n{more}"));
        serde_json::from_str(&public(place.path(), &rows, &[])["model/privacy.json"]).unwrap()
    };
    let (vacant, public) = (statement(""), statement("dropped_rows = \"public\""));
    let stated = |statement: &Value| {
        (statement["records"].clone(), statement["coverage"]["dropped_rows"].clone())
    };
    assert_eq!(stated(&vacant), (json!(60), json!("vacant")));
    assert_eq!(stated(&public), (json!(45), json!("public")));
    let sentence = "removed as too long or empty";
    assert!(!vacant.to_string().contains("removed") && public.to_string().contains(sentence));
}
