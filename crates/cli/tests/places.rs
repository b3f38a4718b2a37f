//! Public files and output do not depend on the content of one row or one person: an unusable row
//! is a vacant place.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use program::{muffle, write_tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const ROWS: usize = 60;

/// Writes a tokenizer of public texts and a RUN.toml without evaluation data.
///
/// The output then does not depend on noise.
fn prepare(place: &Path, data: &str) {
    write_tokenizer(place);
    let text = format!(
        "[model]\nsource = \"tiny\"\ntokenizer = \"tokenizer.json\"\n[data]\n{data}\n[privacy]\nepsilon = \
         8.0\nadjacency = \"replace-one\"\n\
         [training]\nepochs = 0.5\ncheckpoint_every = 3\n"
    );
    std::fs::write(place.join("RUN.toml"), text).unwrap();
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Replaces random ids and hashes, words of 32 or 64 hexadecimal digits, by dots.
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

/// Trains on a file and returns public output and files, without weights, ids and hashes.
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

/// If one row is too long, has one token, or has none, the public files are the same.
#[test]
fn unusable_rows_do_not_change_public_files() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"lines\"\nmax_length = 40\ntoo_long = \"drop\"",
    );
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
    // They do not show whether any row is usable.
    let none: String = (0..ROWS).map(|_| "welder ".repeat(100) + "\n").collect();
    assert_same("all of them", &usual, &public(place.path(), &none, &["--json"]));
    // The same for the text output.
    assert_same(
        "text",
        &public(place.path(), &rows("Nils bakes."), &[]),
        &public(place.path(), &rows(&"welder ".repeat(100)), &[]),
    );
}

/// If one text has one chunk, several, or more than are used, the public files are the same.
#[test]
fn long_texts_do_not_change_public_files() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"lines\"\nmax_length = 20\nmax_chunks = 3",
    );
    let rows = |changed: &str| -> String {
        (0..ROWS)
            .map(|i| if i == 17 { format!("{changed}\n") } else { format!("day {i}.\n") })
            .collect()
    };
    let usual = public(place.path(), &rows("Nils bakes."), &["--json"]);
    for repeats in [8, 100] {
        let row = "welder ".repeat(repeats);
        assert_same("long", &usual, &public(place.path(), &rows(&row), &["--json"]));
    }
}

/// If the rows of one person are replaced, by unusable ones or by ones over the limit as well, the
/// public files are the same.
#[test]
fn the_content_of_rows_does_not_change_public_files() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"instructions\"\nmax_length = 40\ntoo_long = \"drop\"\ngroup \
         = \"who\"\nperson_rows = \"separate\"\nrows_per_person = 2",
    );
    // Every third row belongs to the person with the given names and texts; the other persons have
    // two rows each.
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

/// If rows are combined, the rows of one person can be replaced by any number of others, usable or
/// not: the public files are the same.
#[test]
fn the_rows_of_a_combined_person_do_not_change_public_files() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"instructions\"\nmax_length = 40\ntoo_long = \"drop\"\ngroup = \"who\"",
    );
    let row = |who: String, text: String| {
        json!({ "prompt": "say", "completion": text, "who": who }).to_string() + "\n"
    };
    // All persons but one have two or more rows each.
    let rows = |own: &[String]| -> String {
        let own = || own.iter().map(|text| row("x".into(), text.clone())).collect::<String>();
        (0..2 * ROWS)
            .map(|i| {
                let other = row(format!("person {}", i % (ROWS - 1)), format!("day {i}"));
                if i == 10 { own() + &other } else { other }
            })
            .collect()
    };
    let usual = public(place.path(), &rows(&["night".into()]), &["--json"]);
    let long = "welder ".repeat(100);
    for (what, own) in [
        ("many rows", (0..40).map(|i| format!("night {i}")).collect()),
        ("unusable", vec![long.clone()]),
        ("both", vec![long, "night".into()]),
    ] {
        let own: Vec<String> = own;
        assert_same(what, &usual, &public(place.path(), &rows(&own), &["--json"]));
    }
}

/// The number of rows without a record is printed on request, marked, on standard error only.
#[test]
fn dropped_rows_are_counted_on_request() {
    let place = tempfile::tempdir().unwrap();
    prepare(
        place.path(),
        "train = \"people\"\nformat = \"lines\"\nmax_length = 40\ntoo_long = \"drop\"",
    );
    let rows: String = (0..ROWS)
        .map(|i| if i % 4 == 0 { "welder ".repeat(100) + "\n" } else { format!("day {i}\n\n") })
        .collect();
    let seen = public(place.path(), &rows, &["--show-left-out"]);
    let line = seen["standard error"].lines().find(|line| line.contains("NON-PRIVATE")).unwrap();
    assert!(line.contains("15 too long, 45 empty or without a value, 0 over"), "{line}");
    assert!(
        seen.iter()
            .all(|(name, content)| name == "standard error" || !content.contains("too long"))
    );
}

/// If dropped rows are declared public, they are removed, and the statement says so.
#[test]
fn public_dropped_rows_are_stated() {
    let place = tempfile::tempdir().unwrap();
    let data = "train = \"people\"\nformat = \"lines\"\nmax_length = 40\ntoo_long = \"drop\"";
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
