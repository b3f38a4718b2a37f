//! Checks that no other tool makes. Each is a function that returns its findings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allowed dependencies between our crates. Every crate must be listed.
///
/// Name, dependencies, and further dependencies for tests; without the prefix `muffle-`.
const GRAPH: [(&str, &str, &str); 19] = [
    ("accounting", "", ""),
    ("tensor", "", ""),
    // Keys, samples and mechanisms. It holds no records: sums come in, noisy values come out.
    ("noise", "", ""),
    ("protocol", "tensor", ""),
    // The interface to everything that computes gradients.
    ("engine", "tensor protocol", ""),
    ("model", "tensor noise protocol engine", ""),
    ("cpu", "tensor noise protocol engine model", ""),
    // It uses engines and reducers through their traits only.
    ("curator", "accounting tensor noise protocol engine", "audit cpu distributed model"),
    // The analyst. It must reach neither the curator nor the model nor the data.
    // Of `noise`, which holds no records, it uses public randomness.
    ("optim", "tensor noise protocol", ""),
    // Wraps the sums of a lot and the state of an optimizer. It holds no records.
    ("distributed", "tensor noise protocol engine optim", ""),
    ("text", "noise engine model", "cpu"),
    // Preparation turns records into tokens, so it needs the tokenizer.
    ("data", "engine text", "model"),
    // It sees releases only.
    ("audit", "accounting tensor protocol", "noise"),
    (
        "muffle",
        "accounting tensor noise protocol engine model cpu curator optim distributed data text audit",
        "",
    ),
    // It reads the folders of runs and asks the accountant.
    ("board", "muffle accounting", ""),
    ("cli", "board muffle accounting tensor noise", "cpu engine model text"),
    // It converts arguments and results, and computes nothing.
    ("python", "muffle accounting curator engine optim protocol tensor", ""),
    ("fuzz", "tensor noise muffle", ""),
    ("xtask", "", ""),
];

/// Largest number of lines of a source file before its tests.
const MAX_LINES: usize = 550;

/// Runs all checks.
pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let files = tracked(root)?;
    let mut findings = graph()?;
    findings.extend(sources(root, &files));
    findings.extend(links(root, &files));
    findings.extend(named_tests(root, &files));
    findings.extend(unsafe_code(root, &files));
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

/// The files of the project: tracked by git, or untracked and not ignored.
fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(PathBuf::from)
        .filter(|path| root.join(path).is_file())
        .collect())
}

/// Checks dependencies between our crates, dev- and build-dependencies included.
fn graph() -> Result<Vec<String>, String> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(program)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let empty = Vec::new();
    let mut findings = Vec::new();
    let short = |name: &str| name.strip_prefix("muffle-").unwrap_or(name).to_string();
    for package in metadata["packages"].as_array().unwrap_or(&empty) {
        let name = short(package["name"].as_str().unwrap_or_default());
        let Some((_, normal, tests)) = GRAPH.iter().find(|(known, ..)| *known == name) else {
            findings.push(format!("{name}: not in the crate graph of xtask/src/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&empty) {
            let target = short(dependency["name"].as_str().unwrap_or_default());
            let ours = GRAPH.iter().any(|(known, ..)| *known == target);
            let allowed = normal.split(' ').any(|allowed| allowed == target)
                || dependency["kind"] == "dev" && tests.split(' ').any(|allowed| allowed == target);
            if ours && !allowed {
                findings.push(format!("{name} must not depend on {target}"));
            }
        }
    }
    Ok(findings)
}

/// Checks file lengths, stubs, wall-clock use and module comments.
fn sources(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut findings = Vec::new();
    // Split, so that this file does not match itself.
    let stubs = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    // The wall clock can jump: no code may depend on it.
    let clock = concat!("System", "Time");
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let shown = path.display();
        let length = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if path.starts_with("crates")
            && path.components().any(|c| c.as_os_str() == "src")
            && length > MAX_LINES
        {
            findings.push(format!(
                "{shown}: {length} lines before the tests, at most {MAX_LINES} are allowed"
            ));
        }
        let code = path.components().any(|c| c.as_os_str() == "src");
        for (number, line) in text.lines().enumerate() {
            if let Some(word) =
                stubs.iter().chain(code.then_some(&clock)).find(|word| line.contains(**word))
            {
                findings.push(format!("{shown}:{}: {word}", number + 1));
            }
        }
        if !text.starts_with("//!") {
            findings.push(format!("{shown}: must start with a module comment (//!)"));
        }
    }
    findings
}

/// Checks that relative links in Markdown lead to existing files.
fn links(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                findings.push(format!("{}: broken link to {target}", path.display()));
            }
        }
    }
    findings
}

/// Checks that the tests named by claims exist.
///
/// They are named in Markdown after "**Checked by:**", in doc comments after "# Checked by".
fn named_tests(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let read = |kind: &str| {
        let of_kind = files.iter().filter(|path| path.extension().is_some_and(|e| e == kind));
        of_kind
            .filter_map(|path| {
                Some((path.display().to_string(), fs::read_to_string(root.join(path)).ok()?))
            })
            .collect::<Vec<_>>()
    };
    let (sources, pages) = (read("rs"), read("md"));
    let mut findings = Vec::new();
    let in_code = sources.iter().flat_map(|(path, text)| {
        passages(text, "/// # Checked by", "///").map(move |passage| (path, passage))
    });
    let in_pages = pages.iter().flat_map(|(path, text)| {
        passages(text, "**Checked by:**", "").map(move |passage| (path, passage))
    });
    // pitfalls.md names tests in its table.
    let in_table = pages
        .iter()
        .filter(|(path, _)| path.ends_with("pitfalls.md"))
        .map(|(path, text)| (path, text.clone()));
    for (path, passage) in in_code.chain(in_pages).chain(in_table) {
        // Names of tests have several words, other names in a passage have fewer.
        let names = passage
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.matches('_').count() >= 2 && !name.contains([' ', ':', '/']));
        for name in names
            .filter(|name| !sources.iter().any(|(_, text)| text.contains(&format!("fn {name}("))))
        {
            findings.push(format!("{path}: expected a test {name}, found none"));
        }
    }
    findings
}

/// The text after each heading, up to the next empty line (after `prefix`) or heading.
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

/// The page that lists every use of unsafe code with its reason.
const INVENTORY: &str = "docs/supply-chain.md";

/// Checks that the inventory lists every file with unsafe code, and how often it is used.
fn unsafe_code(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let page = fs::read_to_string(root.join(INVENTORY)).unwrap_or_default();
    let listed = inventory(&page);
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let (shown, text) =
            (path.display().to_string(), fs::read_to_string(root.join(path)).unwrap_or_default());
        let (found, expected) = (
            count_unsafe(&text),
            listed.iter().find(|(name, _)| *name == shown).map_or(0, |(_, count)| *count),
        );
        if found != expected {
            findings.push(format!(
                "{shown}: {found} uses of `unsafe`, {expected} of them listed in {INVENTORY}"
            ));
        }
        seen.push(shown);
    }
    let missing = listed.iter().filter(|(name, _)| !seen.contains(name));
    findings.extend(missing.map(|(name, _)| format!("{INVENTORY}: {name} does not exist")));
    findings
}

/// The rows of the inventory: source file and number of uses.
fn inventory(page: &str) -> Vec<(String, usize)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?;
        name.ends_with(".rs").then_some((name.to_string(), cells.next()?.trim().parse().ok()?))
    };
    page.lines().filter_map(row).collect()
}

/// Counts the keyword in code: before a block, a function, an implementation or in an attribute.
fn count_unsafe(text: &str) -> usize {
    // Split, so that this file does not match itself.
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
    fn uses_of_unsafe_code_are_counted() {
        let count = |text: &str| count_unsafe(&text.replace('@', concat!("un", "safe")));
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
    fn the_inventory_is_parsed() {
        let page = "| file | places |\n|---|---|\n| `a/b.rs` | 3 | because |\n| `c.md` | 1 | x \
            |\n| `d.rs` | many | x |";
        assert_eq!(inventory(page), [("a/b.rs".to_string(), 3)]);
    }
}
