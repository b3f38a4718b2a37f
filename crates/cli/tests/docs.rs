//! Runs every line `$ muffle …` of the README and of docs/; training commands for two steps.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Splits a command line into words, with quotation marks.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                all.extend((!word.is_empty()).then(|| std::mem::take(&mut word)))
            }
            c => word.push(c),
        }
    }
    all.extend((!word.is_empty()).then_some(word));
    all
}

/// The commands of a page's console blocks, in order. A backslash continues a line.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```console\n").skip(1).filter_map(|block| block.split("```").next());
    let lines = blocks
        .flat_map(|block| block.replace("\\\n", " ").lines().map(String::from).collect::<Vec<_>>());
    lines.filter_map(|line| line.strip_prefix("$ ").map(String::from)).collect()
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.sort();
    pages.push(root.join("README.md"));
    pages
}

#[test]
fn every_command_of_every_page_works() {
    let mut count = 0;
    for page in pages() {
        let place = tempfile::tempdir().unwrap();
        for line in commands(&std::fs::read_to_string(&page).unwrap()) {
            // `cargo run` is the same program. `cargo test` is running already, the scripts in
            // peers/ are not part of the tests, and the board does not end.
            let line = line.replace("cargo run --release -- ", "muffle ");
            let mut arguments = words(&line);
            if arguments.first().is_none_or(|program| program != "muffle")
                || arguments.get(1).is_some_and(|command| command == "bench" || command == "board")
            {
                continue;
            }
            arguments.remove(0);
            if ["train", "compare"].contains(&arguments[0].as_str())
                && !arguments.iter().any(|argument| argument == "--print-config")
            {
                let quick = "--steps 2 --lot-size 8 --set evaluation.examples=5 --set \
                    evaluation.max_new_tokens=3 --set evaluation.samples=1 --set \
                    evaluation.score=false";
                arguments.extend(words(quick));
            }
            if arguments[0] == "audit" {
                let quick = if arguments.iter().any(|argument| argument == "run") {
                    "--steps 2 --lot-size 8 --canaries 20"
                } else {
                    "--trials 500 --confidence 0.9999"
                };
                arguments.extend(words(quick));
            }
            let output = Command::new(env!("CARGO_BIN_EXE_muffle"))
                .args(&arguments)
                .current_dir(place.path())
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}: {line}\n{}",
                page.display(),
                String::from_utf8_lossy(&output.stderr)
            );
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} commands were found");
}

/// The example configurations are valid.
#[test]
fn every_configuration_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut count = 0;
    let files = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let results = files(&folder.join("results"));
    for path in files(&folder).into_iter().chain(results).filter(|path| path.is_file()) {
        let (config, section) =
            muffle::Config::read_comparison(&path).unwrap_or_else(|what| panic!("{what}"));
        muffle::Plan::check(&config).unwrap();
        if !section.optimizers.is_empty() {
            let comparison = muffle::compare::Comparison {
                optimizers: section.optimizers.clone(),
                changes: section.changes(),
                grids: section.grids().unwrap(),
                seeds: section.seeds.clone(),
                ..muffle::compare::Comparison::new(config)
            };
            assert!(comparison.plan().unwrap_or_else(|what| panic!("{what}")).len() > 1);
        }
        count += 1;
    }
    assert!(count >= 8);
    // The TOML blocks of the pages are valid, too.
    for page in pages() {
        for block in std::fs::read_to_string(&page).unwrap().split("```toml\n").skip(1) {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("RUN.toml");
            std::fs::write(&path, block.split("```").next().unwrap()).unwrap();
            muffle::Config::read_comparison(&path)
                .unwrap_or_else(|what| panic!("{}: {what}", page.display()));
        }
    }
}
