//! The end of a run: figures, texts, the model with its privacy statement, the report.

use crate::Failed;
use crate::Statement;
use crate::config::Publicity;
use crate::evaluate::{self, Scores, TextScores, Writing, Written};
use crate::load::data::{self, Which};
use crate::report;
use crate::run::chain::Chain;
use crate::run::disk;
use crate::run::folder::Folder;
use crate::run::snapshot;
use crate::run::{Files, Run, Watch};
use model::Checkpoint;
use model::hf::{Existing, SaveOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The files of the end.
pub const RESULT: &str = "result.json";
/// Texts that the model wrote.
pub const SAMPLES: &str = "samples.json";
const STATEMENT: &str = "privacy.json";

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What is promised.
    pub statement: Statement,
    /// The ledger, closed.
    pub chain: Chain,
    /// Figures on the test data or, if there are none, on the validation data.
    pub scores: Option<Scores>,
    /// Figures of what it wrote, if that was asked for.
    pub texts: Option<TextScores>,
    /// A few of its texts.
    pub samples: Vec<Written>,
    /// Whether those data were public.
    pub publicity: Publicity,
    /// Where everything is.
    pub folder: PathBuf,
    /// The optimizer's name.
    pub optimizer: String,
}

impl Outcome {
    /// As one object.
    pub fn json(&self) -> Value {
        let statement = &self.statement;
        let mut metrics = serde_json::Map::new();
        if let Some(scores) = self.scores {
            metrics.insert("nll".into(), json!(scores.nll));
            metrics.insert("perplexity".into(), json!(scores.perplexity()));
            metrics.insert("accuracy".into(), json!(scores.accuracy));
            metrics.insert("tokens".into(), json!(scores.tokens));
            metrics.insert("examples".into(), json!(scores.examples));
        }
        if let Some(texts) = self.texts {
            metrics.insert("bleu".into(), json!(texts.bleu));
            metrics.insert("rouge_l".into(), json!(texts.rouge_l));
        }
        json!({
            // Of the noise as such; "private" says whether anybody has it.
            "epsilon": statement.epsilon.map_or_else(|| json!("inf"), |epsilon| json!(epsilon)),
            "delta": statement.delta,
            "sigma": statement.noise_multiplier,
            "steps": statement.steps,
            "records": statement.records,
            "lot_size": statement.lot_size,
            "optimizer": self.optimizer,
            "out": self.folder,
            "metrics": metrics,
            "private": statement.private,
            "run_id": statement.run_id,
            "sessions": statement.sessions.len(),
            "ledger_head": self.chain.head(),
            "weights_sha256": statement.weights_sha256,
            "statement_sha256": self.chain.closing().map(|closing| closing.statement_sha256.as_str()),
            "figures": if self.publicity == Publicity::Public { "public" } else { "NON-PRIVATE" },
        })
    }
}

/// Looks at the result, writes everything, and removes what was sealed.
pub(crate) fn finish(
    mut run: Run<'_>,
    files: &Files<'_>,
    watch: &mut dyn Watch,
) -> Result<Outcome, Failed> {
    let folder = files.folder;
    let unmoved = run.unmoved();
    if !unmoved.is_empty() {
        watch.said(&format!(
            "warning: {} did not move in {} steps",
            unmoved.join(", "),
            run.session.steps()
        ));
    }
    let lost = run.session.plan().steps.saturating_sub(run.session.steps());
    if lost > 0 {
        watch.said(&format!(
            "{lost} steps were charged and lost in an interruption; the budget \
            does not pay for them twice"
        ));
    }
    // The model comes first: whatever is wrong with the test data, it is there.
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
    // The ledger says what is released before the statement does.
    files.ledger.close(statement.closing()?)?;
    let text = serde_json::to_string_pretty(&statement)
        .map_err(|error| Failed::Input(error.to_string()))?;
    crate::run::folder::write(&model.join(STATEMENT), (text + "\n").as_bytes())?;
    let which = if run.config.data.test.is_some() || run.config.data.train == "embedded" {
        Which::Test
    } else {
        Which::Validation
    };
    watch.said("looking at the result");
    let params = run.session.params().clone();
    let preparation = run.subject.preparation(run.labels, run.limit);
    let scores = match data::rows(&run.config.data, which)? {
        Some(rows) => {
            Some(evaluate::rows(&mut run.subject.network.twin(), &params, &preparation, rows)?)
        }
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
    let samples: Vec<Value> = outcome
        .samples
        .iter()
        .map(|written| json!({ "source": written.source, "text": written.text, "references": written.references }))
        .collect();
    folder.write(SAMPLES, &(Value::Array(samples).to_string() + "\n"))?;
    folder.write(RESULT, &(outcome.json().to_string() + "\n"))?;
    report::write(folder)?;
    // Last of all: as long as something is sealed, the run can go on to its end.
    folder.remove_sealed()?;
    Ok(outcome)
}

/// Reads the statement of a finished run.
///
/// # Errors
/// If there is none, or it is damaged.
pub fn statement(folder: &Path) -> Result<Statement, Failed> {
    let path = folder.join("model").join(STATEMENT);
    let text = std::fs::read_to_string(&path).map_err(Failed::at(&path))?;
    serde_json::from_str(&text)
        .map_err(|error| Failed::Input(format!("{}: {error}", path.display())))
}

/// A few texts, and all of them scored if that is asked for.
fn write(
    run: &mut Run<'_>,
    params: &protocol::Params,
    which: Which,
) -> Result<(Option<TextScores>, Vec<Written>), Failed> {
    let options = &run.config.evaluation;
    let writing = Writing {
        beams: options.beams,
        length_penalty: options.length_penalty,
        max_new_tokens: options.max_new_tokens,
        min_new_tokens: options.min_new_tokens,
    };
    // People's rows are not shown, not even in part.
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

fn save(run: &Run<'_>, folder: &Folder, model: &Path) -> Result<(), Failed> {
    let own = folder.join("tokenizer");
    let tokenizer = match (&run.subject.tokenizer_folder, &run.subject.tokenizer) {
        (Some(folder), _) => Some(folder.clone()),
        (None, Some(tokenizer)) => {
            disk::create_dir_all(&own).map_err(Failed::at(&own))?;
            let file = own.join("tokenizer.json");
            disk::produce(&file, || Ok(tokenizer.save(&file)?), Failed::at(&file))?;
            Some(own)
        }
        (None, None) => None,
    };
    let options = SaveOptions {
        existing: Existing::Replace,
        tokenizer: tokenizer.as_deref(),
        ..SaveOptions::default()
    };
    disk::moment().map_err(Failed::at(model))?;
    Checkpoint::save(
        model,
        &run.subject.config,
        &run.subject.network,
        run.session.params(),
        &options,
    )?;
    disk::moment().map_err(Failed::at(model))
}

/// The digests of the files of weights.
fn weights(folder: &Path) -> Result<Vec<(String, String)>, Failed> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Failed::at(folder))? {
        let path = entry.map_err(Failed::at(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            list.push((name, snapshot::digest_file(&path)?));
        }
    }
    list.sort();
    Ok(list)
}
