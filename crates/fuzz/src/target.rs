//! The fuzz targets: one row for each reader.

use crate::scratch::Scratch;
use crate::structure::Structure;
use crate::targets::{data, models, runs, texts};
use std::io;

/// A reader of untrusted input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of its folder of seeds.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Largest length of an input.
    pub max_length: usize,
    /// The container structure.
    pub structure: Structure,
    /// Words of the format.
    pub words: &'static [&'static str],
    /// Whether inputs are private records, which no message may show.
    pub private: bool,
    /// Memory limit in bytes, beyond 64 for each byte of the input.
    pub memory: u64,
    /// Creates the files needed besides the input.
    pub prepare: fn(&Scratch) -> io::Result<()>,
    /// Reads an input.
    pub run: fn(&Scratch, &[u8]) -> ReadOutcome,
    /// Smallest number of accepted inputs in a thousand.
    pub accepted: u64,
    /// Smallest number of kinds of messages in some thousand inputs.
    pub shapes: usize,
}

/// The result of reading an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Whether the input was accepted.
    pub accepted: bool,
    /// The error, or a short description of what was accepted, to distinguish inputs.
    pub message: String,
}

impl ReadOutcome {
    /// Makes an outcome from a result.
    pub fn of<T>(result: Result<T, impl ToString>, about: impl FnOnce(T) -> String) -> Self {
        match result {
            Ok(value) => Self { accepted: true, message: about(value) },
            Err(error) => Self { accepted: false, message: error.to_string() },
        }
    }
}

/// A word in the records of private seeds; no message may contain either half.
pub const MARKER: [&str; 2] = ["QWXZ", "VJKQ"];

const MEGABYTE: u64 = 1 << 20;

/// Defaults: a plain, public text.
const PLAIN: Target = Target {
    name: "",
    about: "",
    max_length: 4096,
    structure: Structure::Plain,
    words: &[],
    private: false,
    memory: 64 * MEGABYTE,
    prepare: |_| Ok(()),
    run: |_, _| ReadOutcome { accepted: true, message: String::new() },
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
    ";",
    "NA",
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

/// Defaults of private records.
const RECORDS: Target = Target { words: DATA, private: true, ..PLAIN };

/// All targets.
pub const ALL: &[Target] = &[
    Target {
        name: "weights",
        about: "model.safetensors beside a config.json",
        max_length: 16 << 10,
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
        max_length: 8192,
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
        max_length: 256,
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
        max_length: 512,
        words: runs::TOML,
        run: runs::set,
        ..PLAIN
    },
    Target {
        name: "number",
        about: "numbers on the command line",
        max_length: 64,
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
        name: "zstd",
        about: "data: compressed with zstd",
        structure: Structure::Zstd,
        prepare: data::prepare_labels,
        run: data::zstd,
        ..RECORDS
    },
    Target { name: "parquet", about: "data: Parquet", run: data::parquet, shapes: 3, ..RECORDS },
    Target { name: "arrow", about: "data: Arrow", run: data::arrow, shapes: 3, ..RECORDS },
    Target {
        name: "image-file",
        about: "data: an image file in a list",
        structure: Structure::Png,
        run: data::image_file,
        shapes: 3,
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
        about: "preparation of examples",
        max_length: 1024,
        run: texts::prepare,
        ..RECORDS
    },
    Target {
        name: "template",
        about: "data.template",
        max_length: 1024,
        words: texts::TEMPLATE,
        run: texts::template,
        shapes: 3,
        ..PLAIN
    },
    Target {
        name: "chat-template",
        about: "chat_template.jinja",
        words: texts::CHAT,
        run: texts::chat_template,
        ..PLAIN
    },
    Target {
        name: "score",
        about: "BLEU and ROUGE-L of texts",
        run: texts::score,
        max_length: 2048,
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
        max_length: 512,
        words: runs::KEYS,
        prepare: runs::prepare,
        run: runs::keys,
        shapes: 2,
        ..PLAIN
    },
    Target {
        name: "ledger",
        about: "the charges of privacy.json, and their cost",
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
        max_length: 16 << 10,
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
