//! The end of a run: evaluates and saves the model, and writes statement, figures and report.

use crate::Error;
use crate::Statement;
use crate::config::Publicity;
use crate::evaluate::{self, GeneratedText, Scores, TextScores, Writing};
use crate::load::data::{self, Split};
use crate::report::{self, statement};
use crate::run::chain::Chain;
use crate::run::disk;
use crate::run::folder::Folder;
use crate::run::result::{self, Metrics, RESULT, RunResult, SAMPLES};
use crate::run::snapshot;
use crate::run::{Files, Run, RunObserver};
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
    /// Figures of generated texts, if they were requested.
    pub texts: Option<TextScores>,
    /// A few generated texts.
    pub samples: Vec<GeneratedText>,
    /// Whether those data are public.
    pub publicity: Publicity,
    /// The folder of the run.
    pub folder: PathBuf,
    /// The optimizer's name.
    pub optimizer: String,
}

impl Outcome {
    /// The figures, as `result.json` has them.
    pub fn result(&self) -> RunResult {
        RunResult::new(
            &self.statement,
            &self.chain,
            &self.optimizer,
            self.folder.clone(),
            Metrics::new(self.scores, self.texts),
        )
    }
}

/// Saves and evaluates the model, writes all documents, and removes what was sealed.
pub(crate) fn finish(
    mut run: Run<'_>,
    files: &Files<'_>,
    observer: &mut dyn RunObserver,
) -> Result<Outcome, Error> {
    let folder = files.folder;
    let unmoved = run.unmoved();
    if !unmoved.is_empty() {
        observer.message(&format!(
            "warning: {} did not move in {} steps",
            unmoved.join(", "),
            run.session.steps()
        ));
    }
    let lost = run.session.plan().steps.saturating_sub(run.session.steps());
    if lost > 0 {
        observer.message(&format!(
            "{lost} steps were charged and lost in an interruption; they are not \
            repeated"
        ));
    }
    // The model comes first: it is saved whatever is wrong with the test data.
    let model = folder.join("model");
    save(&run, folder, &model)?;
    if run.session.plan().budget.is_none() {
        files.ledger.charge_steps(run.session.steps())?;
    }
    let statement = Statement::new(
        run.config,
        run.session.plan(),
        &files.ledger.chain(),
        run.session.steps(),
        run.session.isolation(),
        weights(&model)?,
    )?;
    // The ledger is closed before the statement is written.
    files.ledger.close(statement.closing()?)?;
    let text = serde_json::to_string_pretty(&statement).map_err(Error::Encoding)?;
    crate::run::folder::write(&model.join(statement::FILE), (text + "\n").as_bytes())?;
    let which = if run.config.data.test.is_some() || run.config.data.train == "embedded" {
        Split::Test
    } else {
        Split::Validation
    };
    observer.message("evaluating the model");
    let params = run.session.params().clone();
    let preparation = run.subject.preparation(run.labels, run.limit);
    let scores = match data::rows(&run.config.data, which)? {
        Some(rows) => Some(evaluate::rows(
            &mut run.subject.network.new_instance(),
            &params,
            &preparation,
            rows,
        )?),
        None => None,
    };
    let (texts, samples) = write(&mut run, &params, which)?;
    let outcome = Outcome {
        statement,
        chain: files.ledger.chain(),
        scores,
        texts,
        samples,
        publicity: run.publicity(),
        folder: folder.path().into(),
        optimizer: run.config.optimizer.name().into(),
    };
    result::write(folder, SAMPLES, &outcome.samples)?;
    result::write(folder, RESULT, &outcome.result())?;
    report::write(folder)?;
    // Last of all: the run can be resumed as long as something is sealed.
    folder.remove_sealed()?;
    Ok(outcome)
}

/// Generates a few texts; all of them, with scores, if that is requested.
fn write(
    run: &mut Run<'_>,
    params: &protocol::Params,
    which: Split,
) -> Result<(Option<TextScores>, Vec<GeneratedText>), Error> {
    let options = &run.config.evaluation;
    let writing = Writing {
        beams: options.beams,
        length_penalty: options.length_penalty,
        max_new_tokens: options.max_new_tokens,
        min_new_tokens: options.min_new_tokens,
    };
    // Private rows are not shown, not even in part.
    let few = if run.publicity() == Publicity::Public { options.samples as usize } else { 0 };
    let all = if options.score { usize::MAX } else { few };
    let mut samples = Vec::new();
    let Some(rows) = data::rows(&run.config.data, which)?.filter(|_| all > 0) else {
        return Ok((None, samples));
    };
    let texts = evaluate::write(&mut run.subject, params, rows, writing, all, &mut |written| {
        if samples.len() < few {
            samples.push(written);
        }
    })?;
    Ok((texts.filter(|_| options.score), samples))
}

fn save(run: &Run<'_>, folder: &Folder, model: &Path) -> Result<(), Error> {
    let own = folder.join("tokenizer");
    let tokenizer = match (&run.subject.tokenizer_folder, &run.subject.tokenizer) {
        (Some(folder), _) => Some(folder.clone()),
        (None, Some(tokenizer)) => {
            disk::create_dir_all(&own).map_err(Error::io(&own))?;
            let file = own.join("tokenizer.json");
            disk::produce(&file, || Ok(tokenizer.save(&file)?), Error::io(&file))?;
            Some(own)
        }
        (None, None) => None,
    };
    let options = SaveOptions {
        existing: ExistingModel::Replace,
        tokenizer: tokenizer.as_deref(),
        ..SaveOptions::default()
    };
    disk::moment().map_err(Error::io(model))?;
    Checkpoint::save(
        model,
        &run.subject.config,
        &run.subject.network,
        run.session.params(),
        &options,
    )?;
    disk::moment().map_err(Error::io(model))
}

/// The digests of the files of weights.
fn weights(folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            list.push((name, snapshot::digest_file(&path)?));
        }
    }
    list.sort();
    Ok(list)
}
