//! A run of a few steps on a few texts, and an observer that stops it.

#![allow(dead_code, clippy::unwrap_used)]

use muffle::config::{Auto, Config, Publicity};
use muffle::load::corpus::{CorpusPair, pairs};
use muffle::load::data::Split;
use muffle::run::{Progress, RunObserver, RunStart};
use std::path::Path;

/// Writes data and a tokenizer to `place`, and returns a configuration that uses them.
///
/// Each line of `more` changes a key.
pub(crate) fn config(place: &Path, more: &str) -> Config {
    let texts = |split, count| {
        let line = |pair: CorpusPair| format!("{}||{}\n", pair.source, pair.target);
        pairs(split, count).into_iter().map(line).collect::<String>()
    };
    let (train, public) = (place.join("people.txt"), place.join("public.txt"));
    std::fs::write(&train, texts(Split::Train, 200)).unwrap();
    std::fs::write(&public, texts(Split::Validation, 12)).unwrap();
    let words = texts(Split::Validation, 200);
    let tokenizer = place.join("tokenizer.json");
    text::Tokenizer::train(words.lines(), 300, &["<bos>", "<eos>"])
        .unwrap()
        .save(&tokenizer)
        .unwrap();
    let mut config = Config::default();
    config.privacy.epsilon = Auto::Value(8.0);
    config.evaluation.beams = 1;
    config.training.steps = Auto::Value(6);
    config.training.lot_size = Auto::Value(20);
    config.training.checkpoint_every = 4;
    config.data.max_length = Auto::Value(129);
    config.data.train = train.to_string_lossy().into();
    config.data.validation = Some(public);
    config.data.evaluation_data = Auto::Value(Publicity::Public);
    config.model.source = "tiny".into();
    config.model.tokenizer = Auto::Value(tokenizer);
    config.evaluation.every = Auto::Value(1);
    config.evaluation.examples = u64::MAX;
    config.evaluation.samples = 1;
    config.evaluation.max_new_tokens = 6;
    more.lines()
        .filter(|line| !line.trim().is_empty())
        .fold(config, |config, change| config.with(change.trim()).unwrap())
}

/// An observer that stops after a step and records messages.
#[derive(Default)]
pub(crate) struct Stopping {
    pub(crate) after: Option<u64>,
    pub(crate) step: u64,
    pub(crate) messages: Vec<String>,
}

impl RunObserver for Stopping {
    fn message(&mut self, line: &str) {
        self.messages.push(line.into());
    }
    fn started(&mut self, _: &RunStart<'_>) {}
    fn stepped(&mut self, progress: &Progress) {
        self.step = progress.step;
    }
    fn should_stop(&mut self) -> bool {
        self.after == Some(self.step)
    }
}
