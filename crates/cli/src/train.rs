//! `muffle train` and `muffle resume`: trains a model or resumes a run.

use super::data_options::DataOptions;
use super::dry::print_dry_run;
use super::error::Error;
use super::eval::score_fields;
use super::number::{count, real};
use super::output::{fields, note, print, print_json, unit_words, up, up_e, warn};
use super::progress::Terminal;
use clap::Args;
use muffle::Outcome;
use muffle::config::{Auto, Config, LearningRate, PersonRows, Publicity};
use muffle::distributed::Ranks;
use muffle::optim::registry;
use muffle::run::dry::dry_run;
use muffle::run::result::RunResult;
use muffle::run::{self, Progress, RunObserver, RunStart, Silent};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Train a model privately
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle train\n  muffle train RUN.toml --epsilon 3 --out \
        runs/three\n  \
    muffle train RUN.toml --optimizer dp-adam --set optimizer.clip=0.5 --set data.max_length=80\n  \
    muffle train --print-config > RUN.toml\n  \
    muffle train RUN.toml --dry-run                           (plan, time and memory)\n\n\
    Without a RUN.toml, a small model is trained on a generated corpus. Paths in a RUN.toml are \
    relative to its folder.\n\
    Resume an interrupted run (Ctrl-C, crash) with: muffle resume DIR\n\
    On several machines or in several processes: mpirun -n 4 muffle train RUN.toml (built with the \
    feature mpi)")]
pub(crate) struct Train {
    /// The configuration; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// The folder of the run, which must be new [default: the first free of muffle-run,
    /// muffle-run-2, …]
    #[arg(long, short = 'o', value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the complete configuration with a comment for every key, and exit
    #[arg(long)]
    print_config: bool,
    /// Check all inputs, print plan, time and memory, and exit: nothing is trained or charged, and
    /// no folder is created
    #[arg(long, conflicts_with = "print_config")]
    dry_run: bool,
    /// Also print how many rows have no record: too long, empty, over the limit of their person
    /// (NON-PRIVATE: for the holder of the data only)
    #[arg(long)]
    show_left_out: bool,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Changes to the RUN.toml from the command line.
#[derive(Args)]
pub(crate) struct Changes {
    #[arg(long, value_name = "NAME", help = optimizer_help())]
    pub(crate) optimizer: Option<String>,
    /// The learning rate: a number, or hyfree
    #[arg(long, value_name = "X|hyfree")]
    learning_rate: Option<String>,
    /// The promised ε
    #[arg(long, short = 'e', value_name = "E", value_parser = real, allow_hyphen_values = true)]
    epsilon: Option<f64>,
    /// The noise multiplier σ, instead of ε; of each block in audit mechanism [there 1 by default]
    #[arg(
        long,
        alias = "sigma",
        value_name = "S",
        value_parser = real,
        allow_hyphen_values = true,
        conflicts_with = "epsilon"
    )]
    pub(crate) noise_multiplier: Option<f64>,
    /// The promised δ
    #[arg(long, short = 'd', value_name = "D", value_parser = real, allow_hyphen_values = true)]
    pub(crate) delta: Option<f64>,
    /// Number of steps
    #[arg(long, short = 't', value_name = "T", value_parser = count, conflicts_with = "epochs")]
    pub(crate) steps: Option<u64>,
    /// The expected number of times that a record is used
    #[arg(long, value_name = "E", value_parser = real, allow_hyphen_values = true)]
    epochs: Option<f64>,
    /// The expected number of records in a lot
    #[arg(long, short = 'b', value_name = "B", value_parser = count)]
    lot_size: Option<u64>,
    /// A preset, a directory in the Hugging Face layout, or a name on the hub
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    reading: DataOptions,
    /// Any other key: --set optimizer.clip=0.5; may be given several times
    #[arg(long, short = 's', value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The help of `--optimizer`, with the names of the registry.
fn optimizer_help() -> String {
    let names = |private: bool| {
        let names = registry::ALL.iter().filter(|entry| entry.private == private);
        names.map(|entry| entry.name).collect::<Vec<_>>().join(" ")
    };
    format!(
        "Replaces the optimizer of the RUN.toml, without its learning rate, clip bound, momentum \
         and keys that the new optimizer does not read: {} (not private), {}",
        names(false),
        names(true)
    )
}

impl Changes {
    /// The configuration of a file, or the embedded one, with these changes.
    pub(crate) fn read(&self, file: Option<&Path>) -> Result<Config, Error> {
        self.apply(match file {
            Some(path) => Config::read(path)?,
            None => Config::embedded(),
        })
    }

    /// Refuses a promise on the command line for an optimizer that keeps none.
    fn refuse_noise_without_privacy(&self, config: &Config) -> Result<(), Error> {
        let given = [("--epsilon", self.epsilon), ("--noise-multiplier", self.noise_multiplier)];
        match given.iter().find(|(_, value)| value.is_some()) {
            Some((option, _)) if !config.optimizer.entry().private => Err(Error::usage(format!(
                "{option}: expected a private optimizer, such as dp-adam; got {}, which adds no \
                 noise",
                config.optimizer.name()
            ))),
            _ => Ok(()),
        }
    }

    /// A configuration with these changes.
    pub(crate) fn apply(&self, mut config: Config) -> Result<Config, Error> {
        if let Some(name) = &self.optimizer {
            config =
                config.with_optimizer(name).map_err(|error| Error::usage(error.to_string()))?;
        }
        for change in &self.set {
            config = config.with(change)?;
        }
        if let Some(rate) = &self.learning_rate {
            config.optimizer.learning_rate = Auto::Value(match rate.as_str() {
                "hyfree" => LearningRate::HyFree,
                number => LearningRate::Fixed(
                    real(number)
                        .map_err(|error| Error::usage(format!("--learning-rate: {error}")))?,
                ),
            });
        }
        if let Some(epsilon) = self.epsilon {
            (config.privacy.epsilon, config.privacy.sigma) = (Auto::Value(epsilon), Auto::Auto);
        }
        if let Some(sigma) = self.noise_multiplier {
            (config.privacy.epsilon, config.privacy.sigma) = (Auto::Auto, Auto::Value(sigma));
        }
        if let Some(delta) = self.delta {
            config.privacy.delta = Auto::Value(delta);
        }
        if let Some(steps) = self.steps {
            (config.training.steps, config.training.epochs) = (Auto::Value(steps), Auto::Auto);
        }
        if let Some(epochs) = self.epochs {
            (config.training.steps, config.training.epochs) = (Auto::Auto, Auto::Value(epochs));
        }
        if let Some(lot) = self.lot_size {
            config.training.lot_size = Auto::Value(lot);
        }
        if let Some(model) = &self.model {
            config.model.source.clone_from(model);
        }
        self.reading.apply(&mut config.data);
        Ok(config)
    }
}

impl Train {
    pub(crate) fn run(self, ranks: &Ranks) -> Result<(), Error> {
        let config = self.changes.read(self.config.as_deref())?;
        self.changes.refuse_noise_without_privacy(&config)?;
        if self.print_config {
            if ranks.is_first() {
                // Paths are printed so that the file can be saved anywhere.
                let config = if self.config.is_some() { config.absolute()? } else { config };
                print(config.annotated().map_err(muffle::Error::from)?.trim_end());
            }
            return Ok(());
        }
        if self.dry_run {
            if !ranks.is_first() {
                return Ok(());
            }
            let dry = dry_run(&config, &mut |line| note!("{line}"))?;
            return print_dry_run(&config, &dry, self.json);
        }
        let out = self.out.unwrap_or_else(|| unused_path("muffle-run"));
        let mut observer = observer(ranks, self.show_left_out);
        let outcome = run::train_among(ranks, &config, &out, &mut *observer)
            .map_err(|error| Error::of_run(error, &out))?;
        let Some(outcome) = outcome else { return Ok(()) };
        if !self.json {
            print_outcome(&outcome);
        }
        let reference = config.reference().filter(|_| ranks.count() == 1).and_then(|config| {
            observer.message("training a reference without privacy, to see what privacy costs");
            slot_accuracy(&train_reference(&config, &outcome, &mut *observer)?)
        });
        if self.json {
            return print_json(&Output { result: outcome.result(), reference });
        }
        if let Some(reference) = reference {
            let folder = outcome.folder.join(REFERENCE).display().to_string();
            let share = format!("{:.1} % of the same facts without privacy", 100.0 * reference);
            print(&fields(&[("reference", format!("{share}; see {folder}"))]));
        }
        Ok(())
    }
}

/// The folder of the reference, in that of the run.
const REFERENCE: &str = "reference";

/// The share of facts that the texts of a model state correctly.
fn slot_accuracy(outcome: &Outcome) -> Option<f64> {
    outcome.texts?.slots?.accuracy()
}

/// Trains the run without privacy beside a run on the embedded corpus.
///
/// Its figures are an addition: if it is stopped or fails, there are none.
fn train_reference(
    config: &Config,
    outcome: &Outcome,
    observer: &mut dyn RunObserver,
) -> Option<Outcome> {
    let folder = outcome.folder.join(REFERENCE);
    run::train(config, &folder, &mut Reference(observer))
        .inspect_err(|error| warn(&format!("there is no reference: {error}")))
        .ok()
}

/// The observer of a reference: it shows no messages, and stops as the other does.
struct Reference<'a>(&'a mut dyn RunObserver);

impl RunObserver for Reference<'_> {
    fn message(&mut self, _: &str) {}
    fn started(&mut self, _: &RunStart<'_>) {}
    fn stepped(&mut self, progress: &Progress) {
        self.0.evaluating("steps of the reference:", progress.step);
    }
    fn evaluating(&mut self, what: &str, count: u64) {
        self.0.evaluating(what, count);
    }
    fn should_stop(&mut self) -> bool {
        self.0.should_stop()
    }
}

/// Resume an interrupted run
#[derive(Args)]
#[command(after_help = "Example:\n  muffle resume muffle-run\n\n\
    The run resumes from the last checkpoint. Charges made since then count: the run ends that \
    many steps earlier, within the same budget.\n\
    A ledger that is older than the mark in sealed/ or has other hashes is refused, and so are \
    files of another run.\n\
    Under an MPI launcher the number of processes may differ from before.")]
pub(crate) struct Resume {
    /// The folder of the run
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub(crate) fn run(self, ranks: &Ranks) -> Result<(), Error> {
        let outcome = run::resume_among(ranks, &self.folder, &mut *observer(ranks, false))
            .map_err(|error| Error::of_run(error, &self.folder))?;
        match outcome {
            Some(outcome) if self.json => {
                print_json(&Output { result: outcome.result(), reference: None })
            }
            Some(outcome) => {
                print_outcome(&outcome);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The observer of this process: only the first one prints and decides when to stop.
fn observer(ranks: &Ranks, shows_dropped: bool) -> Box<dyn RunObserver> {
    match ranks.is_first() {
        true if shows_dropped => Box::new(Terminal::new(ranks.count()).showing_dropped()),
        true => Box::new(Terminal::new(ranks.count())),
        false => Box::new(Silent),
    }
}

/// The first of `base`, `base-2`, `base-3`, … that does not exist.
pub(crate) fn unused_path(base: &str) -> PathBuf {
    let name = |number: u64| {
        PathBuf::from(if number == 1 { base.into() } else { format!("{base}-{number}") })
    };
    (1..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(1))
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    result: RunResult,
    /// Slot accuracy of the reference without privacy.
    #[serde(rename = "reference_slot_accuracy", skip_serializing_if = "Option::is_none")]
    reference: Option<f64>,
}

/// Prints the outcome of a run as a table.
fn print_outcome(outcome: &Outcome) {
    let statement = &outcome.statement;
    let marked = if outcome.publicity == Publicity::Private {
        " (NON-PRIVATE: records outside the guarantee)"
    } else {
        ""
    };
    let mut rows = vec![match (statement.epsilon, statement.delta, statement.unit) {
        (Some(epsilon), Some(delta), Some(unit)) if statement.private => {
            let unit = unit_words(unit, statement.person_rows == Some(PersonRows::Combined));
            ("privacy", format!("ε = {} at δ = {}, {unit}", up(epsilon, 3), up_e(delta)))
        }
        (Some(_), _, _) => ("privacy", "NONE: the seed of the noise was fixed".into()),
        _ => ("privacy", "NONE".into()),
    }];
    rows.push((
        "steps",
        match statement.model_step == statement.steps {
            true => statement.steps.to_string(),
            false => format!(
                "{}; the model has the parameters of step {} (evaluation.select = {:?})",
                statement.steps,
                statement.model_step,
                statement.selection.name()
            ),
        },
    ));
    if let Some(scores) = &outcome.scores {
        rows.extend(score_fields(scores).into_iter().map(|(name, text)| (name, text + marked)));
    }
    if let Some((step, nll)) = outcome.best.nll {
        rows.push(("best NLL", format!("{nll:.4} in validation, at step {step}{marked}")));
    }
    if let Some((step, rmse)) = outcome.best.rmse {
        rows.push(("best RMSE", format!("{rmse:.4} in validation, at step {step}{marked}")));
    }
    if let Some(texts) = outcome.texts {
        let skipped = if texts.skipped > 0 {
            format!(", {} prompts were too long", texts.skipped)
        } else {
            String::new()
        };
        rows.push((
            "BLEU",
            format!(
                "{:.2}, ROUGE-L {:.2}, {} texts{skipped}{marked}",
                texts.bleu, texts.rouge_l, texts.items
            ),
        ));
    }
    if let Some(accuracy) = slot_accuracy(outcome) {
        rows.push(("facts right", format!("{:.1} % of those of unseen records", 100.0 * accuracy)));
    }
    for sample in &outcome.samples {
        rows.push(("prompt", sample.source.clone()));
        rows.push(("generated", sample.text.clone()));
    }
    rows.push(("model", format!("{} (with privacy.json)", outcome.folder.join("model").display())));
    rows.push(("report", outcome.folder.join("report.html").display().to_string()));
    print(&fields(&rows));
}
