//! What no other tool looks at. Each check is a function that returns its complaints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who may depend on whom. A crate that is not listed is a complaint: the graph is a decision, not
/// an accident.
const GRAPH: [(&str, &[&str]); 14] = [
    ("muffle-accounting", &[]),
    ("muffle-tensor", &[]),
    // Bytes and numbers between processes; it does not know what they mean.
    ("muffle-ranks", &[]),
    ("muffle-protocol", &["muffle-tensor"]),
    ("muffle-model", &["muffle-tensor", "muffle-protocol"]),
    // The audit is for its tests: errors are planted in it and must be found.
    (
        "muffle-curator",
        &[
            "muffle-accounting",
            "muffle-tensor",
            "muffle-ranks",
            "muffle-protocol",
            "muffle-model",
            "muffle-audit",
        ],
    ),
    // The analyst. It must reach neither the curator nor the model nor the data.
    ("muffle-optim", &["muffle-tensor", "muffle-protocol"]),
    ("muffle-text", &["muffle-tensor", "muffle-model"]),
    // Preparation turns records into tokens, so it needs the tokenizer.
    ("muffle-data", &["muffle-model", "muffle-text"]),
    // Sees what is released, and nothing else.
    ("muffle-audit", &["muffle-accounting", "muffle-tensor", "muffle-protocol"]),
    (
        "muffle",
        &[
            "muffle-accounting",
            "muffle-tensor",
            "muffle-ranks",
            "muffle-protocol",
            "muffle-model",
            "muffle-curator",
            "muffle-optim",
            "muffle-data",
            "muffle-text",
            "muffle-audit",
        ],
    ),
    // The program. Models and tokenizers are for its tests.
    (
        "muffle-cli",
        &["muffle", "muffle-accounting", "muffle-tensor", "muffle-model", "muffle-text"],
    ),
    ("muffle-fuzz", &["muffle-tensor", "muffle"]),
    ("xtask", &[]),
];

/// Lines of a source file before its tests. One idea a file.
const LONGEST: usize = 550;

/// Runs all checks.
pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let files = tracked(root)?;
    let mut complaints = graph()?;
    complaints.extend(sources(root, &files));
    complaints.extend(links(root, &files));
    complaints.extend(promises(root, &files));
    complaints.extend(unchecked(root, &files));
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

/// The files of the project: those that git knows or would take.
fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git cannot be started: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(PathBuf::from)
        .filter(|path| root.join(path).is_file())
        .collect())
}

/// Dependencies between our own crates, dependencies for tests and builds included.
fn graph() -> Result<Vec<String>, String> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(program)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let empty = Vec::new();
    let mut complaints = Vec::new();
    for package in metadata["packages"].as_array().unwrap_or(&empty) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = GRAPH.iter().find(|(known, _)| *known == name) else {
            complaints.push(format!("{name}: not in the crate graph of xtask/src/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&empty) {
            let target = dependency["name"].as_str().unwrap_or_default();
            if GRAPH.iter().any(|(known, _)| *known == target) && !allowed.contains(&target) {
                complaints.push(format!("{name} must not depend on {target}"));
            }
        }
    }
    Ok(complaints)
}

fn sources(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut complaints = Vec::new();
    // Written apart, so that this file does not complain about itself.
    let stubs = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    // Clocks jump: nothing may depend on the time of day.
    let clock = concat!("System", "Time");
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let shown = path.display();
        let length = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if path.starts_with("crates")
            && path.components().any(|c| c.as_os_str() == "src")
            && length > LONGEST
        {
            complaints
                .push(format!("{shown}: {length} lines before the tests, {LONGEST} are the most"));
        }
        let code = path.components().any(|c| c.as_os_str() == "src");
        for (number, line) in text.lines().enumerate() {
            if let Some(word) =
                stubs.iter().chain(code.then_some(&clock)).find(|word| line.contains(**word))
            {
                complaints.push(format!("{shown}:{}: {word}", number + 1));
            }
        }
        if !text.starts_with("//!") {
            complaints.push(format!("{shown}: does not say what it is (//!)"));
        }
    }
    complaints
}

/// Relative links in Markdown lead somewhere.
fn links(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                complaints.push(format!("{}: the link to {target} leads nowhere", path.display()));
            }
        }
    }
    complaints
}

/// Tests that a claim names as its check are there: in Markdown after "**Checked by:**", in the
/// documentation of code after "# Checked by".
fn promises(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let read = |kind: &str| {
        let of_kind = files.iter().filter(|path| path.extension().is_some_and(|e| e == kind));
        of_kind
            .filter_map(|path| {
                Some((path.display().to_string(), fs::read_to_string(root.join(path)).ok()?))
            })
            .collect::<Vec<_>>()
    };
    let (sources, pages) = (read("rs"), read("md"));
    let mut complaints = Vec::new();
    let in_code = sources.iter().flat_map(|(path, text)| {
        passages(text, "/// # Checked by", "///").map(move |passage| (path, passage))
    });
    let in_pages = pages.iter().flat_map(|(path, text)| {
        passages(text, "**Checked by:**", "").map(move |passage| (path, passage))
    });
    // The page of pitfalls names a test in nearly every row.
    let in_table = pages
        .iter()
        .filter(|(path, _)| path.ends_with("pitfalls.md"))
        .map(|(path, text)| (path, text.clone()));
    for (path, passage) in in_code.chain(in_pages).chain(in_table) {
        // Names of tests have several words; other names in a passage do not.
        let names = passage
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.matches('_').count() >= 2 && !name.contains([' ', ':', '/']));
        for name in names
            .filter(|name| !sources.iter().any(|(_, text)| text.contains(&format!("fn {name}("))))
        {
            complaints.push(format!("{path}: no test is called {name}"));
        }
    }
    complaints
}

/// What follows a heading, up to the next line that is empty (after `prefix`) or begins another
/// heading.
fn passages<'a>(
    text: &'a str,
    heading: &'a str,
    prefix: &'a str,
) -> impl Iterator<Item = String> + 'a {
    text.split(heading).skip(1).map(move |rest| {
        let ends = |line: &str| {
            line.trim()
                .strip_prefix(prefix)
                .is_none_or(|line| line.trim().is_empty() || line.trim().starts_with('#'))
        };
        let (first, others) = rest.split_once('\n').unwrap_or((rest, ""));
        let others = others.lines().take_while(|line| !ends(line));
        std::iter::once(first).chain(others).collect::<Vec<_>>().join("\n")
    })
}

/// The page that says of every place why it is sound.
const INVENTORY: &str = "docs/supply-chain.md";

/// Code that the compiler takes on trust: every file that has some is in the inventory, with as
/// many places as it has.
fn unchecked(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let page = fs::read_to_string(root.join(INVENTORY)).unwrap_or_default();
    let listed = inventory(&page);
    let mut complaints = Vec::new();
    let mut seen = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let (shown, text) =
            (path.display().to_string(), fs::read_to_string(root.join(path)).unwrap_or_default());
        let (there, explained) = (
            places(&text),
            listed.iter().find(|(name, _)| *name == shown).map_or(0, |(_, count)| *count),
        );
        if there != explained {
            complaints.push(format!(
                "{shown}: {there} places that the compiler does not check, \
                    {explained} of them explained in {INVENTORY}"
            ));
        }
        seen.push(shown);
    }
    let gone = listed.iter().filter(|(name, _)| !seen.contains(name));
    complaints.extend(gone.map(|(name, _)| format!("{INVENTORY}: {name} is not there")));
    complaints
}

/// Rows of a table that begin with the name of a source file and a number.
fn inventory(page: &str) -> Vec<(String, usize)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?;
        name.ends_with(".rs").then_some((name.to_string(), cells.next()?.trim().parse().ok()?))
    };
    page.lines().filter_map(row).collect()
}

/// How often the keyword stands in code: before a block, a function, an implementation or in an
/// attribute.
fn places(text: &str) -> usize {
    // Written apart, so that this file does not find itself.
    let word = concat!("un", "safe");
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let count = |line: &str| {
        let starts = line.match_indices(word).filter(|(at, _)| {
            let before = line[..*at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
                && after.is_none_or(|c| c == ' ' || c == '{' || c == '(')
        });
        starts.count()
    };
    code.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_not_checked_are_counted() {
        let count = |text: &str| places(&text.replace('@', concat!("un", "safe")));
        assert_eq!(
            count("let x = @ { y };\n@ impl Send for X {}\npub @ fn f() {}\n#[@(no_mangle)]"),
            4
        );
        assert_eq!(
            count("// @ { }\n/// @ fn\n#![forbid(@_code)]\n\"style-src '@-inline'\"\nnot@ {"),
            0
        );
        assert_eq!(count("@ { a } + @ { b } // @ { c }"), 2);
    }

    #[test]
    fn the_inventory_is_a_table() {
        let page = "| file | places |\n|---|---|\n| `a/b.rs` | 3 | because |\n| `c.md` | 1 | x \
            |\n| `d.rs` | many | x |";
        assert_eq!(inventory(page), [("a/b.rs".to_string(), 3)]);
    }
}
