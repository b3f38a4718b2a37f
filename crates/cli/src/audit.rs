//! `muffle audit`: attacks on the claimed guarantee.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, short, up, up_e, warn};
use super::train::{Changes, free};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use muffle::Config;
use muffle::audits::{AuditFolder, AuditKind, Expense, Mechanism, OneRun, Others, Replay, Verdict};
use muffle::run::folder;
use std::path::{Path, PathBuf};

/// Attack the mechanism, a run, or its sensitivity, and compare with the claim
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle audit\n  muffle audit mechanism --noise-multiplier 0.8 \
        --steps 3 --sampling-rate 0.1 --trials 20000\n  \
    muffle audit run RUN.toml --canaries 1000\n  muffle audit replay RUN.toml --optimizer dp-prism \
    --set model.lora_rank=4\n\n\
    An audit gives a lower bound on ε. Above the claim, it refutes it: exit code 1. Below, it \
    proves nothing; how near it comes to the truth depends on the attack.\n\
    mechanism comes within a few per cent (at the default, σ = 1, one release, 100,000 trials), on \
    made-up records. run trains once more on the training data with canaries added, \
    and finds a small part of a \
    large ε, but of the whole run; its cost is written to a ledger of its own and, for the \
    folder of a run, added to the cost of the run. \
    replay is exact about sensitivity and control flow, on made-up records unless --real-records \
    is given, and says nothing about the noise."
)]
pub(crate) struct Audit {
    /// The target of the attack
    #[arg(value_enum, default_value_t)]
    target: Target,
    /// The configuration: a RUN.toml, or the folder of a run; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    /// mechanism: noise standard deviation divided by the clip bound, of each block
    #[arg(long, short = 's', value_name = "S", value_parser = real, default_value = "1")]
    noise_multiplier: f64,
    /// mechanism: probability of a record to be in a lot
    #[arg(long, short = 'q', value_name = "Q", value_parser = real, default_value = "1")]
    sampling_rate: f64,
    /// mechanism: trials with the record, and as many without
    #[arg(long, value_name = "N", value_parser = count, default_value = "100000")]
    trials: u64,
    /// mechanism: clip every tensor by itself, each with the noise multiplier
    #[arg(long)]
    per_tensor: bool,
    /// run: canaries, each included with probability ½. replay: records that are exchanged
    /// [default: 1000, 4]
    #[arg(long, value_name = "M", value_parser = count)]
    canaries: Option<u64>,
    /// run: the folder with the audit's ledger, which must be new [default: DIR/audits/1, 2, … for
    /// the folder DIR of a run; otherwise the first free of muffle-audit, muffle-audit-2, …]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// replay: use the first records of the training data as the other records, instead of
    /// made-up ones (NON-PRIVATE: figures without noise)
    #[arg(long)]
    real_records: bool,
    /// The probability with which the bound holds
    #[arg(long, value_name = "P", value_parser = real, default_value = "0.99")]
    confidence: f64,
    /// Of made-up records, and of replayed randomness; the coins and the noise of the other audits
    /// come from the system
    #[arg(long, value_name = "S", value_parser = count, default_value = "0")]
    seed: u64,
    #[command(flatten)]
    changes: Changes,
    /// Write a chart of the result
    #[arg(long, short = 'o', value_name = "FILE.svg")]
    out: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The target of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Target {
    /// Many releases of a small model, with and without one record
    #[default]
    Mechanism,
    /// A whole run with canaries added (Steinke, Nasr, Jagielski 2023)
    Run,
    /// The same randomness on neighbouring data: sensitivity and control flow
    Replay,
}

impl Target {
    fn kind(self) -> AuditKind {
        match self {
            Self::Mechanism => AuditKind::Mechanism,
            Self::Run => AuditKind::Run,
            Self::Replay => AuditKind::Replay,
        }
    }

    fn name(self) -> &'static str {
        self.kind().name()
    }
}

/// Steps of a replay, and records, if nothing is said.
const REPLAYED: (u64, u64) = (6, 4);
const CANARIES: u64 = 1000;

impl Audit {
    pub(crate) fn run(self) -> Result<(), Error> {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left") {
            bar.set_style(style);
        }
        let mut progress = |done: u64, all: u64| {
            bar.set_length(all);
            bar.set_position(done);
        };
        self.check()?;
        let verdict = match self.target {
            Target::Mechanism => {
                if self.config.is_some() {
                    return Err(Error::usage(
                        "the mechanism is attacked on a model of its own: no RUN.toml expected; \
                         run and replay take one",
                    ));
                }
                let mechanism = Mechanism {
                    sigma: self.noise_multiplier,
                    steps: self.changes.steps.unwrap_or(1),
                    rate: self.sampling_rate,
                    blocks: self.per_tensor,
                    delta: self.changes.delta.unwrap_or(1e-5),
                    trials: self.trials,
                    confidence: self.confidence,
                };
                mechanism.run(&mut progress)?
            }
            Target::Run => {
                let canaries = self.canaries.unwrap_or(CANARIES) as usize;
                let config = self.config()?;
                OneRun { canaries, confidence: self.confidence, seed: self.seed }.run(
                    &config,
                    &self.folder(&config)?,
                    &mut progress,
                )?
            }
            Target::Replay => {
                let steps = self.changes.steps.unwrap_or(REPLAYED.0);
                Replay {
                    steps,
                    records: self.canaries.unwrap_or(REPLAYED.1).max(1) as usize,
                    seed: self.seed,
                }
                .run(
                    &self.config()?,
                    if self.real_records { Others::Real } else { Others::MadeUp },
                    &mut progress,
                )?
            }
        };
        bar.finish_and_clear();
        if !verdict.private {
            warn(
                "NON-PRIVATE: the result was computed from real records without a guarantee; it is \
                 for the holder of the data only",
            );
        }
        if let Some(path) = &self.out {
            folder::write(path, verdict.chart.svg().as_bytes())?;
        }
        if self.json {
            print_json(&verdict.document(self.target.kind()))?
        } else {
            print(&self.text(&verdict))
        }
        if verdict.passed() { Ok(()) } else { Err(Error::Refuted(refutation(&verdict))) }
    }

    fn config(&self) -> Result<Config, Error> {
        let inside = self
            .config
            .as_deref()
            .map(|path| if path.is_dir() { path.join("config.toml") } else { path.to_path_buf() });
        Ok(self.changes.apply(inside.as_deref())?.absolute()?)
    }

    /// Refuses options that have no meaning for the target.
    fn check(&self) -> Result<(), Error> {
        let refused = [
            ("--folder", self.folder.is_some(), Target::Run),
            ("--real-records", self.real_records, Target::Replay),
        ];
        match refused.into_iter().find(|(_, given, of)| *given && *of != self.target) {
            Some((option, _, of)) => Err(Error::usage(format!(
                "{option} is for muffle audit {}, not for {}",
                of.name(),
                self.target.name()
            ))),
            None => Ok(()),
        }
    }

    /// The folder of an audit that trains: in the folder of the run, if one is audited.
    fn folder(&self, config: &Config) -> Result<AuditFolder, Error> {
        let run = self.config.as_deref().filter(|path| path.is_dir());
        match (run, &self.folder) {
            (Some(run), None) => {
                // Costs are added up for the same data and the same unit only.
                if Config::read(&run.join("config.toml"))?.data != config.data {
                    return Err(Error::usage(format!(
                        "[data]: expected that of the run in {}, got another; audit a RUN.toml of \
                         its own instead",
                        run.display()
                    )));
                }
                Ok(AuditFolder::within(run)?)
            }
            (Some(run), Some(_)) => Err(Error::usage(format!(
                "--folder: the audits of a run are kept in its folder ({}/audits), so that all of \
                 them are added up",
                run.display()
            ))),
            (None, Some(path)) => Ok(AuditFolder::create(path)?),
            (None, None) => Ok(AuditFolder::create(&free("muffle-audit"))?),
        }
    }

    fn text(&self, verdict: &Verdict) -> String {
        let claimed = up(verdict.epsilon_claimed, 3);
        let mut rows: Vec<(&str, String)> =
            verdict.details.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        if self.target != Target::Replay {
            let share = verdict.epsilon_lower / verdict.epsilon_claimed;
            let of = if share.is_finite() && share > 0.0 {
                format!(": {:.0} % of the claim", 100.0 * share)
            } else {
                String::new()
            };
            rows.push((
                "ε at least",
                format!(
                    "{} with confidence {}{of}",
                    short(verdict.epsilon_lower),
                    verdict.confidence
                ),
            ));
        }
        rows.push(("ε claimed", format!("at most {claimed} at δ = {}", up_e(verdict.delta))));
        if let Some(expense) = &verdict.spent {
            rows.extend(expenses(expense));
        }
        let word =
            if verdict.passed() { "passed: nothing contradicts the claim" } else { "FAILED" };
        rows.push(("verdict", word.into()));
        let mut text = fields(&rows);
        verdict.violations.iter().for_each(|line| text.push_str(&format!("\n  ✗ {line}")));
        if let Some(path) = &self.out {
            text.push_str(&format!("\nchart: {}", Path::display(path)));
        }
        text
    }
}

/// The cost of the audit.
fn expenses(expense: &Expense) -> Vec<(&'static str, String)> {
    let price = |price: &Option<accounting::Guarantee>| match price {
        Some(price) => {
            format!("ε = {} at δ = {}, {}", up(price.epsilon, 3), up_e(price.delta), price.unit)
        }
        None => "NON-PRIVATE: no joint guarantee".into(),
    };
    let mut rows = vec![(
        "spent",
        format!(
            "{}: by this audit's training run; it covers everything shown here",
            price(&expense.price)
        ),
    )];
    if let Some(joint) = &expense.joint {
        rows.push(("together", format!("{}: {}", price(&joint.price), joint.of.join(" + "))));
    }
    if let Some(path) = &expense.ledger {
        rows.push(("ledger", path.display().to_string()));
    }
    rows
}

/// The claim that does not hold.
fn refutation(verdict: &Verdict) -> String {
    match verdict.violations.first() {
        Some(first) => format!("the claim does not hold: {first}"),
        None => format!(
            "the claim does not hold: ε is at least {}, claimed is {}",
            short(verdict.epsilon_lower),
            up(verdict.epsilon_claimed, 3)
        ),
    }
}
