//! What is fuzzed: one row a reader.

use crate::scratch::Scratch;
use crate::structure::Structure;
use crate::targets::{data, models, runs, texts};
use std::io;

/// One thing that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder of seeds.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// No input is longer.
    pub longest: usize,
    /// What lies around its bytes.
    pub structure: Structure,
    /// Words of its format.
    pub words: &'static [&'static str],
    /// Whether inputs are people's records, of which no message may show a word.
    pub private: bool,
    /// Bytes that it may hold at a time, beyond 64 for each byte of the input.
    pub memory: u64,
    /// Makes the files that it needs beside the input.
    pub prepare: fn(&Scratch) -> io::Result<()>,
    /// Reads an input.
    pub run: fn(&Scratch, &[u8]) -> Seen,
    /// In a thousand inputs, so many are accepted at least.
    pub accepted: u64,
    /// In some thousand inputs there are messages of so many shapes at least.
    pub shapes: usize,
}

/// What a reader made of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it was accepted.
    pub accepted: bool,
    /// What was said: errors, and a few words about what was accepted, so that inputs can be told
    /// apart.
    pub said: String,
}

impl Seen {
    /// From a result.
    pub fn of<T>(result: Result<T, impl ToString>, about: impl FnOnce(T) -> String) -> Self {
        match result {
            Ok(value) => Self { accepted: true, said: about(value) },
            Err(error) => Self { accepted: false, said: error.to_string() },
        }
    }
}

/// The seeds of private formats have this word in their records, and no message may have a half of
/// it.
pub const MARKER: [&str; 2] = ["QWXZ", "VJKQ"];

const MEGABYTE: u64 = 1 << 20;

/// A plain text that is not private; rows say what is different.
const PLAIN: Target = Target {
    name: "",
    about: "",
    longest: 4096,
    structure: Structure::Plain,
    words: &[],
    private: false,
    memory: 64 * MEGABYTE,
    prepare: |_| Ok(()),
    run: |_, _| Seen { accepted: true, said: String::new() },
    accepted: 5,
    shapes: 10,
};

const JSON: &[&str] = &[
    "null", "true", "false", "\"\"", "{}", "[]", "[1]", "\"x\":1,", "1.5", "\"a\"", ",", ":",
    "\\u0000", "\\\"",
];

const DATA: &[&str] = &[
    "||",
    "\t",
    ",",
    "\"",
    "\"\"",
    "\r\n",
    "\n\n",
    "mr,ref",
    "text",
    "label",
    "sentence",
    "class",
    "user",
    "review",
    "QWXZVJKQ",
    "\"text\":",
    "\"label\":",
    "\"messages\":",
    "\"role\":",
    "\"assistant\"",
    "\"content\":",
    "\"instruction\":",
    "\"output\":",
    "\"prompt\":",
    "\"completion\":",
    "\"tripleset\":",
    "\"annotations\":",
    "null",
    "true",
    "{}",
    "[]",
    "1",
];

/// A reader of people's records.
const RECORDS: Target = Target { words: DATA, private: true, ..PLAIN };

/// All of them.
pub const ALL: &[Target] = &[
    Target {
        name: "weights",
        about: "model.safetensors beside a config.json",
        longest: 16 << 10,
        structure: Structure::Safetensors,
        words: models::WEIGHTS,
        prepare: models::prepare,
        run: models::weights,
        ..PLAIN
    },
    Target {
        name: "index",
        about: "model.safetensors.index.json",
        words: models::INDEX,
        prepare: models::prepare_shards,
        run: models::index,
        ..PLAIN
    },
    Target {
        name: "model-config",
        about: "config.json",
        words: models::CONFIG,
        prepare: models::prepare,
        run: models::config,
        ..PLAIN
    },
    Target {
        name: "tokenizer",
        about: "tokenizer.json, and texts through it",
        words: models::TOKENIZER,
        longest: 8192,
        run: models::tokenizer,
        ..PLAIN
    },
    Target {
        name: "hub-index",
        about: "an index in the hub's cache",
        words: models::INDEX,
        prepare: models::prepare_hub,
        run: models::hub_index,
        ..PLAIN
    },
    Target {
        name: "hub-ref",
        about: "refs/main in the hub's cache",
        longest: 256,
        words: models::HUB,
        prepare: models::prepare_hub,
        run: models::hub_ref,
        shapes: 2,
        ..PLAIN
    },
    Target {
        name: "run-toml",
        about: "RUN.toml, its plan and its optimizer",
        words: runs::TOML,
        run: runs::config,
        ..PLAIN
    },
    Target {
        name: "set",
        about: "--set KEY=VALUE",
        longest: 512,
        words: runs::TOML,
        run: runs::set,
        ..PLAIN
    },
    Target {
        name: "number",
        about: "numbers on the command line",
        longest: 64,
        words: texts::NUMBERS,
        run: texts::number,
        shapes: 2,
        ..PLAIN
    },
    Target { name: "lines", about: "data: lines", run: data::lines, shapes: 3, ..RECORDS },
    Target { name: "e2e", about: "data: e2e", run: data::e2e, ..RECORDS },
    Target { name: "dart", about: "data: dart", run: data::dart, ..RECORDS },
    Target {
        name: "instructions",
        about: "data: instructions",
        run: data::instructions,
        ..RECORDS
    },
    Target { name: "tsv", about: "data: tsv, with and without columns", run: data::tsv, ..RECORDS },
    Target { name: "csv", about: "data: csv, with and without columns", run: data::csv, ..RECORDS },
    Target {
        name: "jsonl",
        about: "data: jsonl, with and without keys",
        run: data::jsonl,
        ..RECORDS
    },
    Target {
        name: "idx",
        about: "data: images in IDX",
        prepare: data::prepare_labels,
        run: data::idx,
        ..RECORDS
    },
    Target {
        name: "idx-labels",
        about: "data: labels in IDX",
        prepare: data::prepare_labels,
        run: data::idx_labels,
        shapes: 5,
        ..RECORDS
    },
    Target {
        name: "png",
        about: "data: images in a PNG",
        structure: Structure::Png,
        prepare: data::prepare_labels,
        run: data::png,
        ..RECORDS
    },
    Target {
        name: "png-labels",
        about: "data: labels of a PNG",
        prepare: data::prepare_labels,
        run: data::png_labels,
        ..RECORDS
    },
    Target {
        name: "gzip",
        about: "data: compressed",
        structure: Structure::Gzip,
        prepare: data::prepare_labels,
        run: data::gzip,
        ..RECORDS
    },
    Target {
        name: "sniff",
        about: "data: the format told from a file",
        prepare: data::prepare_labels,
        run: data::sniff,
        ..RECORDS
    },
    Target {
        name: "prepare",
        about: "records as examples",
        longest: 1024,
        run: texts::prepare,
        ..RECORDS
    },
    Target {
        name: "score",
        about: "BLEU and ROUGE-L of texts",
        run: texts::score,
        longest: 2048,
        shapes: 5,
        ..RECORDS
    },
    Target {
        name: "chain",
        about: "ledger.json",
        words: runs::CHAIN,
        run: runs::chain,
        accepted: 1,
        ..PLAIN
    },
    Target {
        name: "keys",
        about: "keys of signatures",
        longest: 512,
        words: runs::KEYS,
        prepare: runs::prepare,
        run: runs::keys,
        shapes: 2,
        ..PLAIN
    },
    Target {
        name: "ledger",
        about: "the charges of privacy.json, and their price",
        words: runs::LEDGER,
        run: runs::ledger,
        ..PLAIN
    },
    Target {
        name: "sealed",
        about: "sealed/sampler.json",
        words: runs::SEALED,
        private: true,
        run: runs::sealed,
        shapes: 2,
        ..PLAIN
    },
    Target {
        name: "snapshot",
        about: "checkpoints/step-…, and the optimizer's state",
        longest: 16 << 10,
        structure: Structure::Snapshot,
        words: runs::SNAPSHOT,
        run: runs::snapshot,
        ..PLAIN
    },
    Target {
        name: "statement",
        about: "privacy.json",
        words: runs::STATEMENT,
        prepare: runs::prepare,
        run: runs::statement,
        ..PLAIN
    },
    Target {
        name: "history",
        about: "history.jsonl, and the report of it",
        words: runs::HISTORY,
        prepare: runs::prepare,
        run: runs::history,
        shapes: 3,
        ..PLAIN
    },
    Target {
        name: "result",
        about: "result.json, and the report of it",
        words: runs::RESULT,
        prepare: runs::prepare,
        run: runs::result,
        ..PLAIN
    },
    Target {
        name: "samples",
        about: "samples.json, and the report of it",
        words: JSON,
        prepare: runs::prepare,
        run: runs::samples,
        ..PLAIN
    },
];

/// The target of this name.
pub fn named(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
