//! `muffle score`: computes BLEU and ROUGE-L of files.

use super::error::Error;
use super::output::{fields, print, print_json};
use clap::Args;
use muffle::text::{self, bleu, rouge};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Compute BLEU and ROUGE-L of generated texts
#[derive(Args)]
#[command(after_help = "Example:\n  muffle score --hypotheses generated.txt --references \
        references.txt\n\n\
    One hypothesis per line. The references of the same line of the other file are separated by \
    tabs; empty ones are ignored.\n\
    BLEU is sacrebleu's (13a, effective order), ROUGE-L that of rouge_score with stemming: the \
    best of the references, the mean over items, times 100.")]
pub(crate) struct Score {
    /// Generated texts, one per line
    #[arg(long, short = 'y', value_name = "FILE")]
    hypotheses: PathBuf,
    /// Reference texts: those of one item on one line, separated by tabs
    #[arg(long, short = 'r', value_name = "FILE")]
    references: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    bleu: f64,
    rouge_l: f64,
    items: u64,
    precisions: [f64; bleu::ORDERS],
    brevity_penalty: f64,
    hypothesis_length: u64,
    reference_length: u64,
}

impl Score {
    pub(crate) fn run(self) -> Result<(), Error> {
        let (mut hypotheses, mut references) =
            (Lines::open(&self.hypotheses)?, Lines::open(&self.references)?);
        let (mut statistics, mut mean) = (bleu::Statistics::default(), rouge::Mean::default());
        let mut row = 0u64;
        loop {
            row += 1;
            let (hypothesis, line) = match (hypotheses.next_line()?, references.next_line()?) {
                (Some(hypothesis), Some(line)) => (hypothesis, line),
                (None, None) => break,
                (None, Some(_)) => {
                    return Err(unequal_lengths(&self.hypotheses, &self.references, row));
                }
                (Some(_), None) => {
                    return Err(unequal_lengths(&self.references, &self.hypotheses, row));
                }
            };
            let mut targets: Vec<&str> =
                line.split('\t').filter(|reference| !reference.trim().is_empty()).collect();
            if targets.is_empty() {
                targets.push("");
            }
            let at_line = |error: text::Error| Error::line(&self.references, row, error);
            statistics.add(&hypothesis, &targets).map_err(at_line)?;
            mean.add(&hypothesis, &targets, rouge::Words::Stemmed).map_err(at_line)?;
        }
        if statistics.items() == 0 {
            return Err(Error::usage(format!(
                "{}: expected at least 1 line, got 0",
                self.hypotheses.display()
            )));
        }
        let bleu = statistics.bleu(bleu::BleuOptions {
            order: bleu::Order::Effective,
            ..bleu::BleuOptions::default()
        });
        let rouge = mean.score().percent();
        if self.json {
            return print_json(&Output {
                bleu: bleu.score,
                rouge_l: rouge.f1,
                items: statistics.items(),
                precisions: bleu.precisions,
                brevity_penalty: bleu.brevity_penalty,
                hypothesis_length: bleu.hypothesis_length,
                reference_length: bleu.reference_length,
            });
        } else {
            print(&fields(&[
                ("BLEU", format!("{:.2}", bleu.score)),
                ("ROUGE-L", format!("{:.2}", rouge.f1)),
                ("items", statistics.items().to_string()),
                (
                    "brevity penalty",
                    format!(
                        "{:.4} ({} words for {})",
                        bleu.brevity_penalty, bleu.hypothesis_length, bleu.reference_length
                    ),
                ),
            ]));
        }
        Ok(())
    }
}

/// Makes an error about files with different numbers of lines.
fn unequal_lengths(short: &Path, long: &Path, row: u64) -> Error {
    Error::usage(format!("{} ends before line {row}, {} does not", short.display(), long.display()))
}

/// Reads a file line by line.
struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    /// The number of the last line, counted from 1.
    row: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(muffle::Error::io(path))?;
        Ok(Self { path: path.into(), file: BufReader::new(file), row: 0 })
    }

    fn next_line(&mut self) -> Result<Option<String>, Error> {
        self.row += 1;
        let mut line = String::new();
        let read = self
            .file
            .read_line(&mut line)
            .map_err(|error| Error::line(&self.path, self.row, error))?;
        let end = line.trim_end_matches(['\n', '\r']).len();
        line.truncate(end);
        Ok((read > 0).then_some(line))
    }
}
