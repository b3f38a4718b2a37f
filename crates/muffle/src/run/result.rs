//! `result.json` and `samples.json`: figures and generated texts of a finished run.
//!
//! Unknown fields are refused.

use crate::Error;
use crate::evaluate::{ConfusionMatrix, GeneratedText, Scores, TextScores};
use crate::report::{Marking, Number, Statement};
use crate::run::chain::Chain;
use crate::run::folder::Folder;
use crate::run::history::BestFigures;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The file with the figures of a finished run.
pub const RESULT: &str = "result.json";
/// The file with texts that the model generated.
pub const SAMPLES: &str = "samples.json";

/// The figures of a finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// ε spent; `private` says whether it is a guarantee.
    pub epsilon: Number,
    /// δ of that ε.
    pub delta: Option<f64>,
    /// The noise multiplier.
    pub sigma: Option<f64>,
    /// Steps that were completed.
    pub steps: u64,
    /// The step after which the model has its parameters.
    pub model_step: u64,
    /// Number of places of the data set.
    pub records: usize,
    /// The public lot size.
    pub lot_size: f64,
    /// The optimizer.
    pub optimizer: String,
    /// The folder of the run.
    pub out: PathBuf,
    /// Figures on evaluation data.
    pub metrics: Metrics,
    /// Whether there is a guarantee.
    pub private: bool,
    /// The id of the run.
    pub run_id: String,
    /// Number of processes that worked on the run, one after the other.
    pub sessions: usize,
    /// The head of the ledger's hash chain, after its closing.
    pub ledger_head: String,
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// SHA-256 of the privacy statement.
    pub statement_sha256: Option<String>,
    /// Whether the metrics are public.
    pub figures: Marking,
}

/// Figures on evaluation data; those that were not measured are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Mean negative log-likelihood of a target, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nll: Option<f64>,
    /// e^NLL; language models only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// The share of targets predicted correctly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The mean F1 of the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macro_f1: Option<f64>,
    /// F1 of all labels together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_f1: Option<f64>,
    /// The area under the ROC curve: of the second of two classes, or the mean over the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auroc: Option<f64>,
    /// Numbers of rows by class and predicted class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion_matrix: Option<ConfusionMatrix>,
    /// The root of the mean squared error, in units of the labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rmse: Option<f64>,
    /// The mean absolute error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mae: Option<f64>,
    /// R², the share of the labels' variance that is explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    /// Number of targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Number of examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// BLEU of generated texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// ROUGE-L of generated texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rouge_l: Option<f64>,
    /// The share of the slots of the embedded corpus that generated texts state correctly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_accuracy: Option<f64>,
    /// NLL of the last evaluation on the validation data during training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_nll: Option<f64>,
    /// The smallest NLL of these evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_nll: Option<f64>,
    /// The step of `best_nll`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_nll_step: Option<u64>,
    /// The largest accuracy of these evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_accuracy: Option<f64>,
    /// The step of `best_accuracy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_accuracy_step: Option<u64>,
    /// The largest BLEU of these evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_bleu: Option<f64>,
    /// The step of `best_bleu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_bleu_step: Option<u64>,
    /// The smallest RMSE of these evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_rmse: Option<f64>,
    /// The step of `best_rmse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_rmse_step: Option<u64>,
}

impl Metrics {
    /// Collects the figures of an evaluation.
    pub fn new(scores: Option<&Scores>, texts: Option<TextScores>) -> Self {
        let measured = scores.map_or_else(Self::default, |scores| Self {
            nll: scores.nll,
            perplexity: scores.perplexity,
            accuracy: scores.accuracy,
            macro_f1: scores.macro_f1,
            micro_f1: scores.micro_f1,
            auroc: scores.auroc,
            confusion_matrix: scores.confusion_matrix.clone(),
            rmse: scores.rmse,
            mae: scores.mae,
            r2: scores.r2,
            tokens: Some(scores.tokens),
            examples: Some(scores.examples),
            ..Self::default()
        });
        Self {
            bleu: texts.map(|texts| texts.bleu),
            rouge_l: texts.map(|texts| texts.rouge_l),
            slot_accuracy: texts.and_then(|texts| texts.slots?.accuracy()),
            ..measured
        }
    }

    /// Replaces the figures of the evaluations during training.
    #[must_use]
    pub fn with_best(self, best: BestFigures) -> Self {
        let (step, figure) = (|at: (u64, f64)| at.0, |at: (u64, f64)| at.1);
        Self {
            validation_nll: best.last_nll,
            best_nll: best.nll.map(figure),
            best_nll_step: best.nll.map(step),
            best_accuracy: best.accuracy.map(figure),
            best_accuracy_step: best.accuracy.map(step),
            best_bleu: best.bleu.map(figure),
            best_bleu_step: best.bleu.map(step),
            best_rmse: best.rmse.map(figure),
            best_rmse_step: best.rmse.map(step),
            ..self
        }
    }
}

impl RunResult {
    /// Builds the result from a statement, the closed ledger and the metrics.
    pub(crate) fn new(
        statement: &Statement,
        chain: &Chain,
        optimizer: &str,
        out: PathBuf,
        metrics: Metrics,
    ) -> Self {
        Self {
            epsilon: statement.epsilon.unwrap_or(f64::INFINITY).into(),
            delta: statement.delta,
            sigma: statement.noise_multiplier,
            steps: statement.steps,
            model_step: statement.model_step,
            records: statement.records,
            lot_size: statement.lot_size,
            optimizer: optimizer.into(),
            out,
            metrics,
            private: statement.private,
            run_id: statement.run_id.clone(),
            sessions: statement.sessions.len(),
            ledger_head: chain.head(),
            weights_sha256: statement.weights_sha256.clone(),
            statement_sha256: chain.closing().map(|closing| closing.statement_sha256.clone()),
            figures: statement.coverage.figures,
        }
    }

    /// Reads `result.json`; `None` if the run is not finished.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn read(folder: &Folder) -> Result<Option<Self>, Error> {
        read(folder, RESULT)
    }
}

/// Reads `samples.json`; empty if there is none.
///
/// # Errors
/// If it is damaged.
pub fn samples(folder: &Folder) -> Result<Vec<GeneratedText>, Error> {
    Ok(read(folder, SAMPLES)?.unwrap_or_default())
}

/// Reads a document of a run; `None` if it is missing.
pub(super) fn read<T: DeserializeOwned>(folder: &Folder, name: &str) -> Result<Option<T>, Error> {
    let Some(text) = folder.read(name)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(Error::json(&folder.join(name)))
}

/// Writes a document of a run as one line of JSON.
pub(crate) fn write(folder: &Folder, name: &str, document: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(document).map_err(Error::Encoding)?;
    folder.write(name, &(text + "\n"))
}
