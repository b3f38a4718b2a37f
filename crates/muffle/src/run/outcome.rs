//! The end of a run: saves and evaluates the model, writes statement, figures and report.

use crate::Error;
use crate::Statement;
use crate::config::Publicity;
use crate::evaluate::{self, GeneratedText, Scores, TextScores};
use crate::load::corpus::slots::SlotCounts;
use crate::load::data::{self, Split};
use crate::report::{self, statement};
use crate::run::chain::Chain;
use crate::run::disk;
use crate::run::folder::Folder;
use crate::run::history::{self, BestFigures};
use crate::run::model_files::{self, ADAPTER_FILE};
use crate::run::result::{self, Metrics, RESULT, RunResult, SAMPLES};
use crate::run::snapshot;
use crate::run::watched::watched;
use crate::run::{Run, RunFiles, RunObserver};
use model::Checkpoint;
use model::hf::{ExistingModel, SaveOptions};
use std::path::{Path, PathBuf};

/// The outcome of a finished run.
#[derive(Debug)]
pub struct Outcome {
    /// The privacy statement.
    pub statement: Statement,
    /// The ledger, closed.
    pub chain: Chain,
    /// Figures on the test data or, without test data, on the validation data.
    pub scores: Option<Scores>,
    /// The best figures of the evaluations on the validation data during training.
    pub best: BestFigures,
    /// Scores of generated texts, if they were requested.
    pub texts: Option<TextScores>,
    /// A few generated texts.
    pub samples: Vec<GeneratedText>,
    /// Whether the evaluation data are public.
    pub publicity: Publicity,
    /// The folder of the run.
    pub folder: PathBuf,
    /// The optimizer's name.
    pub optimizer: String,
}

impl Outcome {
    /// The content of `result.json`.
    pub fn result(&self) -> RunResult {
        RunResult::new(
            &self.statement,
            &self.chain,
            &self.optimizer,
            self.folder.clone(),
            Metrics::new(self.scores.as_ref(), self.texts).with_best(self.best),
        )
    }
}

/// Saves and evaluates the model, writes all documents, and removes the private state.
pub(crate) fn finish(
    mut run: Run<'_>,
    files: &RunFiles<'_>,
    observer: &mut dyn RunObserver,
) -> Result<Outcome, Error> {
    let folder = files.folder;
    let unchanged = run.unchanged_tensors();
    if !unchanged.is_empty() {
        observer.message(&format!(
            "warning: {} did not change in {} steps",
            unchanged.join(", "),
            run.released().0
        ));
    }
    if let Some(selection) = &run.selection {
        observer.message(&selection.message(run.released().0));
    }
    let lost_steps = run.session.plan().steps.saturating_sub(run.session.steps());
    if lost_steps > 0 && run.early_stop.is_due() {
        observer.message(&run.early_stop.message(run.session.steps(), run.session.plan().steps));
    } else if lost_steps > 0 {
        observer.message(&format!(
            "{lost_steps} steps were charged and lost in an interruption; they are not repeated"
        ));
    }
    // The model comes first: it is saved even if the test data is invalid.
    let model = folder.join("model");
    save(&run, folder, &model)?;
    if run.session.plan().budget.is_none() {
        files.ledger.charge_non_private_steps(run.session.steps())?;
    }
    run.charge_remaining_steps(&files.ledger)?;
    let statement = Statement::new(
        run.config,
        run.session.plan(),
        &files.ledger.chain(),
        run.session.steps(),
        run.released().0,
        run.session.isolation(),
        weight_digests(&model)?,
    )?;
    // The ledger is closed before the statement is written.
    files.ledger.close(statement.closing()?)?;
    let text = serde_json::to_string_pretty(&statement).map_err(Error::Encoding)?;
    crate::run::folder::write(&model.join(statement::FILE), (text + "\n").as_bytes())?;
    model_files::write_card(&run, &statement, &model)?;
    let split = if run.config.data.test.is_some() || run.config.data.train == "embedded" {
        Split::Test
    } else {
        Split::Validation
    };
    observer.message("evaluating the model");
    let (scores, (texts, samples)) =
        evaluate_released(&mut run, split, observer).inspect_err(|error| {
            if matches!(error, Error::Stopped) {
                observer.message(
                    "the evaluation was stopped; the model and its privacy statement are written, \
                     and muffle resume repeats the evaluation only",
                );
            }
        })?;
    if scores.as_ref().and_then(|scores| scores.nll).is_some_and(|nll| !nll.is_finite()) {
        observer.message(
            "warning: the NLL of the model is not finite: the run diverged; lower \
             optimizer.learning_rate",
        );
    }
    if let Some(scores) = scores.as_ref().filter(|_| run.publicity() == Publicity::Public) {
        let key = if split == Split::Test { "data.test" } else { "data.validation" };
        let rows = scores.examples + scores.skipped;
        let warning = data::dropped_warning(key, scores.skipped, rows, run.length_limit);
        warning.iter().for_each(|warning| observer.message(warning));
    }
    let outcome = Outcome {
        statement,
        chain: files.ledger.chain(),
        scores,
        best: BestFigures::of(&history::read(folder, u64::MAX)?),
        texts,
        samples,
        publicity: run.publicity(),
        folder: folder.path().into(),
        optimizer: run.config.optimizer.name().into(),
    };
    result::write(folder, SAMPLES, &outcome.samples)?;
    result::write(folder, RESULT, &outcome.result())?;
    report::write(folder, &report::Redaction::default())?;
    // Last: the run can be resumed as long as the private state exists.
    folder.remove_sealed()?;
    Ok(outcome)
}

/// Figures and generated texts of the released model.
type Figures = (Option<Scores>, (Option<TextScores>, Vec<GeneratedText>));

/// Evaluates the released model. The observer may stop it.
fn evaluate_released(
    run: &mut Run<'_>,
    split: Split,
    observer: &mut dyn RunObserver,
) -> Result<Figures, Error> {
    let params = run.released().1.clone();
    let preparation = run.model.preparation(run.labels, run.length_limit);
    let limit = row_limit(run.config.evaluation.test_examples);
    let mut network = run.model.network.new_instance();
    let scores = match data::rows(&run.config.data, split)?.filter(|_| limit > 0) {
        Some(rows) => Some(watched("rows evaluated:", rows, observer, |rows| {
            evaluate::rows(&mut network, &params, &preparation, rows, limit)
        })?),
        None => None,
    };
    Ok((scores, generate(run, &params, split, observer)?))
}

/// Converts a number of rows; "all" is the largest number.
fn row_limit(examples: u64) -> usize {
    usize::try_from(examples).unwrap_or(usize::MAX)
}

/// Generates a few texts; if scores are requested, a text for every prompt.
fn generate(
    run: &mut Run<'_>,
    params: &protocol::Params,
    split: Split,
    observer: &mut dyn RunObserver,
) -> Result<(Option<TextScores>, Vec<GeneratedText>), Error> {
    let options = &run.config.evaluation;
    // Private rows are not shown, not even in part.
    let sample_count =
        if run.publicity() == Publicity::Public { options.samples as usize } else { 0 };
    let count = match options.score {
        true => row_limit(options.test_examples).max(sample_count),
        false => sample_count,
    };
    let mut samples = Vec::new();
    let Some(rows) = data::rows(&run.config.data, split)?.filter(|_| count > 0) else {
        return Ok((None, samples));
    };
    let mut slots = data::is_embedded(&run.config.data, split).then(SlotCounts::default);
    let model = &mut run.model;
    let texts = watched("texts generated:", rows, observer, |rows| {
        evaluate::generate(model, params, rows, options.into(), count, &mut |generated| {
            if let Some(slots) = &mut slots {
                slots.add(&generated.source, &generated.text);
            }
            if samples.len() < sample_count {
                samples.push(generated);
            }
        })
    })?;
    let texts = texts.filter(|_| options.score).map(|texts| TextScores { slots, ..texts });
    Ok((texts, samples))
}

/// Saves the model with its tokenizer.
fn save(run: &Run<'_>, folder: &Folder, model: &Path) -> Result<(), Error> {
    let new_folder = folder.join("tokenizer");
    let tokenizer = match (&run.model.tokenizer_folder, &run.model.tokenizer) {
        (Some(folder), _) => Some(folder.clone()),
        (None, Some(tokenizer)) => {
            disk::create_dir_all(&new_folder).map_err(Error::io(&new_folder))?;
            let file = new_folder.join("tokenizer.json");
            disk::write_with(&file, || Ok(tokenizer.save(&file)?), Error::io(&file))?;
            Some(new_folder)
        }
        (None, None) => None,
    };
    let options = SaveOptions {
        existing: ExistingModel::Replace,
        tokenizer: tokenizer.as_deref(),
        ..SaveOptions::default()
    };
    disk::interruption_point().map_err(Error::io(model))?;
    Checkpoint::save(model, &run.model.config, &run.model.network, run.released().1, &options)?;
    model_files::write(run, model)?;
    disk::interruption_point().map_err(Error::io(model))
}

/// SHA-256 of each file of weights, by name.
fn weight_digests(folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            list.push((name, snapshot::digest_file(&path)?));
        }
    }
    let adapter = folder.join(ADAPTER_FILE);
    if adapter.is_file() {
        list.push((ADAPTER_FILE.into(), snapshot::digest_file(&adapter)?));
    }
    list.sort();
    Ok(list)
}
