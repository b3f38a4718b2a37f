//! Starts the program on a small run.

#![allow(dead_code, clippy::unwrap_used)]

use muffle::run::chain::Chain;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn muffle(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muffle"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Writes a tokenizer of public texts, `tokenizer.json`.
pub(crate) fn write_tokenizer(place: &Path) {
    let words: Vec<String> =
        muffle::load::corpus::pairs(muffle::load::data::Split::Validation, 200)
            .into_iter()
            .map(|pair| pair.source + &pair.target)
            .collect();
    let tokenizer =
        text::Tokenizer::train(words.iter().map(String::as_str), 400, &["<bos>", "<eos>"]).unwrap();
    tokenizer.save(&place.join("tokenizer.json")).unwrap();
}

/// Writes the data and the RUN.toml of a small run.
pub(crate) fn run_toml(place: &Path, steps: u64) -> PathBuf {
    let texts = |part, count| {
        let line =
            |pair: muffle::load::corpus::CorpusPair| format!("{}||{}\n", pair.source, pair.target);
        muffle::load::corpus::pairs(part, count).into_iter().map(line).collect::<String>()
    };
    std::fs::write(place.join("people.txt"), texts(muffle::load::data::Split::Train, 300)).unwrap();
    std::fs::write(place.join("public.txt"), texts(muffle::load::data::Split::Validation, 20))
        .unwrap();
    write_tokenizer(place);
    let text = format!(
        "[model]\nsource = \"tiny\"\ntokenizer = \"tokenizer.json\"\n[data]\ntrain = \"people.txt\"\nvalidation \
         = \"public.txt\"\nevaluation_data = \"public\"\nmax_length = 129\n\
         [privacy]\nepsilon = 8.0\n[training]\nsteps = {steps}\nlot_size = 10\ncheckpoint_every = \
         3\n[evaluation]\nevery = 5\nsamples = 1\nbeams = 2\nmax_new_tokens = 5\n"
    );
    let path = place.join("RUN.toml");
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) fn charges(out: &Path) -> u64 {
    let Ok(text) = std::fs::read_to_string(out.join("ledger.json")) else { return 0 };
    Chain::parse(&text).unwrap().charges()
}

pub(crate) fn snapshots(out: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(out.join("checkpoints")) else { return 0 };
    let step = |entry: std::fs::DirEntry| {
        entry.file_name().to_str()?.strip_prefix("step-")?.split('.').next()?.parse().ok()
    };
    entries.filter_map(|entry| step(entry.unwrap())).max().unwrap_or(0)
}

/// Waits until the run has made more charges than before, or is finished.
pub(crate) fn wait_for_charges(child: &mut Child, out: &Path, more_than: u64) -> bool {
    let patience = Instant::now();
    while charges(out) <= more_than {
        assert!(patience.elapsed() < Duration::from_secs(120), "no progress");
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}
