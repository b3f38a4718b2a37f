//! `muffle audit`: attacks on the claimed guarantee.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, short, up, up_e, warn};
use super::train::{Changes, unused_path};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use muffle::Config;
use muffle::audits::{
    AuditCost, AuditFolder, AuditKind, AuditResult, MechanismSettings, OneRunSettings,
    OtherRecords, ReplaySettings,
};
use muffle::run::folder;
use std::path::{Path, PathBuf};

/// Attack the mechanism, a run, or its sensitivity, and compare with the claim
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle audit\n  muffle audit mechanism --noise-multiplier 0.8 \
        --steps 3 --sampling-rate 0.1 --trials 20000\n  \
    muffle audit run RUN.toml --canaries 1000\n  muffle audit replay RUN.toml --optimizer dp-prism \
    --set model.lora_rank=4\n\n\
    An audit gives a lower bound on ε. A bound above the claim refutes it: exit code 1. A bound \
    below the claim proves nothing; its distance from the true ε depends on the attack.\n\
    mechanism: the bound is within a few per cent of the claim (at the default, σ = 1, one \
    release, 100,000 trials). It uses synthetic records.\n\
    run: trains once more on the training data with canaries added. The bound is a small part of \
    a large ε, but covers the whole run. The cost is written to the audit's own ledger and, for \
    the folder of a run, added to the cost of the run.\n\
    replay: tests sensitivity and control flow exactly, and does not test the noise. It uses \
    synthetic records unless --real-records is given."
)]
pub(crate) struct Audit {
    /// The target of the attack
    #[arg(value_enum, default_value_t)]
    target: Target,
    /// The configuration: a RUN.toml, or the folder of a run; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    /// mechanism: probability that a record is in a lot
    #[arg(long, short = 'q', value_name = "Q", value_parser = real, default_value = "1")]
    sampling_rate: f64,
    /// mechanism: trials with the record, and as many without
    #[arg(long, value_name = "N", value_parser = count, default_value = "100000")]
    trials: u64,
    /// mechanism: one clip block per tensor, each with the noise multiplier
    #[arg(long)]
    per_tensor: bool,
    /// run: number of canaries, each included with probability ½. replay: number of target records
    /// [default: 1000, 4]
    #[arg(long, value_name = "M", value_parser = count)]
    canaries: Option<u64>,
    /// run: the folder with the audit's ledger, which must be new [default: DIR/audits/1, 2, … for
    /// the folder DIR of a run; otherwise the first free of muffle-audit, muffle-audit-2, …]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// replay: use the first records of the training data as the other records, instead of
    /// synthetic ones (NON-PRIVATE: figures without noise)
    #[arg(long)]
    real_records: bool,
    /// The probability with which the bound holds
    #[arg(long, value_name = "P", value_parser = real, default_value = "0.99")]
    confidence: f64,
    /// Seed of synthetic records and of replayed randomness; coins and noise of the other audits
    /// come from the operating system
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

/// The default number of steps of a replay.
const REPLAY_STEPS: u64 = 6;
/// The default number of target records of a replay.
const REPLAY_RECORDS: u64 = 4;
/// The default number of canaries.
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
        self.check_options()?;
        let result = match self.target {
            Target::Mechanism => {
                if self.config.is_some() {
                    return Err(Error::usage(
                        "audit mechanism uses its own model: expected no RUN.toml; use audit run \
                         or audit replay",
                    ));
                }
                let settings = MechanismSettings {
                    sigma: self.changes.noise_multiplier.unwrap_or(1.0),
                    steps: self.changes.steps.unwrap_or(1),
                    rate: self.sampling_rate,
                    per_tensor: self.per_tensor,
                    delta: self.changes.delta.unwrap_or(1e-5),
                    trials: self.trials,
                    confidence: self.confidence,
                };
                settings.run(&mut progress)?
            }
            Target::Run => {
                let canaries = self.canaries.unwrap_or(CANARIES) as usize;
                let config = self.config()?;
                let settings =
                    OneRunSettings { canaries, confidence: self.confidence, seed: self.seed };
                settings.run(&config, &self.folder(&config)?, &mut progress)?
            }
            Target::Replay => {
                let settings = ReplaySettings {
                    steps: self.changes.steps.unwrap_or(REPLAY_STEPS),
                    records: self.canaries.unwrap_or(REPLAY_RECORDS).max(1) as usize,
                    seed: self.seed,
                };
                let others =
                    if self.real_records { OtherRecords::Real } else { OtherRecords::Synthetic };
                settings.run(&self.config()?, others, &mut progress)?
            }
        };
        bar.finish_and_clear();
        if !result.private {
            warn(
                "NON-PRIVATE: the result was computed from real records without a guarantee; it is \
                 for the holder of the data only",
            );
        }
        if let Some(path) = &self.out {
            folder::write(path, result.chart.svg().as_bytes())?;
        }
        if self.json {
            print_json(&result.document(self.target.kind()))?
        } else {
            print(&self.text(&result))
        }
        if result.passed() { Ok(()) } else { Err(Error::Refuted(refutation(&result))) }
    }

    /// The configuration of a file or of the folder of a run, with the changes.
    fn config(&self) -> Result<Config, Error> {
        let file = self
            .config
            .as_deref()
            .map(|path| if path.is_dir() { path.join("config.toml") } else { path.to_path_buf() });
        Ok(self.changes.read(file.as_deref())?.absolute()?)
    }

    /// Refuses options of another target.
    fn check_options(&self) -> Result<(), Error> {
        let options = [
            ("--folder", self.folder.is_some(), Target::Run),
            ("--real-records", self.real_records, Target::Replay),
        ];
        match options.into_iter().find(|(_, given, target)| *given && *target != self.target) {
            Some((option, _, target)) => Err(Error::usage(format!(
                "{option} is for muffle audit {}, not for {}",
                target.name(),
                self.target.name()
            ))),
            None => Ok(()),
        }
    }

    /// The folder of an audit that trains.
    fn folder(&self, config: &Config) -> Result<AuditFolder, Error> {
        let audited = self.config.as_deref().unwrap_or(Path::new(""));
        let default = || unused_path("muffle-audit");
        Ok(AuditFolder::choose(audited, self.folder.as_deref(), config, default)?)
    }

    /// The result as a table.
    fn text(&self, result: &AuditResult) -> String {
        let claimed = up(result.epsilon_claimed, 3);
        let mut rows: Vec<(&str, String)> =
            result.details.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        if self.target != Target::Replay {
            let share = result.epsilon_lower / result.epsilon_claimed;
            let share = if share.is_finite() && share > 0.0 {
                format!(": {:.0} % of the claim", 100.0 * share)
            } else {
                String::new()
            };
            rows.push((
                "ε at least",
                format!(
                    "{} with confidence {}{share}",
                    short(result.epsilon_lower),
                    result.confidence
                ),
            ));
        }
        rows.push(("ε claimed", format!("at most {claimed} at δ = {}", up_e(result.delta))));
        if let Some(cost) = &result.spent {
            rows.extend(cost_rows(cost));
        }
        let conclusion =
            if result.passed() { "passed: nothing contradicts the claim" } else { "FAILED" };
        rows.push(("verdict", conclusion.into()));
        let mut text = fields(&rows);
        result.violations.iter().for_each(|line| text.push_str(&format!("\n  ✗ {line}")));
        if let Some(path) = &self.out {
            text.push_str(&format!("\nchart: {}", Path::display(path)));
        }
        text
    }
}

/// The rows about the cost of the audit.
fn cost_rows(cost: &AuditCost) -> Vec<(&'static str, String)> {
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
            price(&cost.price)
        ),
    )];
    if let Some(joint) = &cost.joint {
        rows.push(("together", format!("{}: {}", price(&joint.price), joint.of.join(" + "))));
    }
    if let Some(path) = &cost.ledger {
        rows.push(("ledger", path.display().to_string()));
    }
    rows
}

/// Says why the claim is refuted.
fn refutation(result: &AuditResult) -> String {
    match result.violations.first() {
        Some(first) => format!("the claim does not hold: {first}"),
        None => format!(
            "the claim does not hold: ε is at least {}, claimed is {}",
            short(result.epsilon_lower),
            up(result.epsilon_claimed, 3)
        ),
    }
}
