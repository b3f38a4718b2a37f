//! `muffle audit`: attacks on what we claim.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, short, up, up_e, warn};
use super::train::{Changes, free};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use muffle::Config;
use muffle::audits::{AuditFolder, Expense, Mechanism, OneRun, Others, Replay, Verdict};
use muffle::run::folder;
use std::path::{Path, PathBuf};

/// Attack the mechanism, a run, or its sensitivity, and compare with what is claimed
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle audit\n  muffle audit mechanism --noise-multiplier 0.8 \
        --steps 3 --sampling-rate 0.1 --trials 20000\n  \
    muffle audit run RUN.toml --canaries 1000\n  muffle audit replay RUN.toml --optimizer dp-prism \
    --set model.lora_rank=4\n\n\
    An audit gives a lower bound on ε. Above the claim, it refutes it: exit code 1. Below, it \
    proves nothing; how near it comes to the truth depends on the attack.\n\
    mechanism comes within a few per cent (at the default, σ = 1, one release, 100,000 trials), on \
    made-up records. run trains once more on the training data, with canaries among the people, \
    and shows little of a \
    large ε, but of the whole run; what it spends is written into a ledger of its own and, for the \
    folder of a run, added to what the run has spent. \
    replay is exact about sensitivity and control flow, on made-up records unless --real-records \
    is given, and says nothing about the noise."
)]
pub(crate) struct Audit {
    /// What is attacked
    #[arg(value_enum, default_value_t)]
    what: What,
    /// What the run does: a RUN.toml, or the folder of a run; without it, the embedded default
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
    /// run: canaries, each put in with probability ½. replay: records that are looked at [default:
    /// 1000, 4]
    #[arg(long, value_name = "M", value_parser = count)]
    canaries: Option<u64>,
    /// run: the folder with the audit's ledger, which must be new [default: DIR/audits/1, 2, … for
    /// the folder DIR of a run; otherwise the first free of muffle-audit, muffle-audit-2, …]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// replay: the first records of the training data beside those that are looked at, instead of
    /// made-up ones (NON-PRIVATE: figures without noise)
    #[arg(long)]
    real_records: bool,
    /// With which probability the bound holds
    #[arg(long, value_name = "P", value_parser = real, default_value = "0.99")]
    confidence: f64,
    /// Of made-up records, and of replayed randomness; the coins and the noise of the other audits
    /// come from the system
    #[arg(long, value_name = "S", value_parser = count, default_value = "0")]
    seed: u64,
    #[command(flatten)]
    changes: Changes,
    /// Also draw what was seen
    #[arg(long, short = 'o', value_name = "FILE.svg")]
    out: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// What is attacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum What {
    /// Many releases of a small model, with and without one record
    #[default]
    Mechanism,
    /// A whole run with canaries among the people (Steinke, Nasr, Jagielski 2023)
    Run,
    /// The same randomness on neighbouring data: sensitivity and control flow
    Replay,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Mechanism => "mechanism",
            Self::Run => "run",
            Self::Replay => "replay",
        }
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
        let mut said = |done: u64, all: u64| {
            bar.set_length(all);
            bar.set_position(done);
        };
        self.check()?;
        let verdict = match self.what {
            What::Mechanism => {
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
                mechanism.run(&mut said)?
            }
            What::Run => {
                let canaries = self.canaries.unwrap_or(CANARIES) as usize;
                let config = self.config()?;
                OneRun { canaries, confidence: self.confidence, seed: self.seed }.run(
                    &config,
                    &self.folder(&config)?,
                    &mut said,
                )?
            }
            What::Replay => {
                let steps = self.changes.steps.unwrap_or(REPLAYED.0);
                Replay {
                    steps,
                    records: self.canaries.unwrap_or(REPLAYED.1).max(1) as usize,
                    seed: self.seed,
                }
                .run(
                    &self.config()?,
                    if self.real_records { Others::Real } else { Others::MadeUp },
                    &mut said,
                )?
            }
        };
        bar.finish_and_clear();
        if !verdict.private {
            warn(
                "NON-PRIVATE: what follows was computed from real records without a guarantee; it \
                 is for the holder of the data only",
            );
        }
        if let Some(path) = &self.out {
            folder::write(path, verdict.plot.svg().as_bytes())?;
        }
        if self.json {
            print_json(&verdict.json(self.what.name()))
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

    /// Every option that was given must mean something.
    fn check(&self) -> Result<(), Error> {
        let refused = [
            ("--folder", self.folder.is_some(), What::Run),
            ("--real-records", self.real_records, What::Replay),
        ];
        match refused.into_iter().find(|(_, given, of)| *given && *of != self.what) {
            Some((option, _, of)) => Err(Error::usage(format!(
                "{option} is for muffle audit {}, not for {}",
                of.name(),
                self.what.name()
            ))),
            None => Ok(()),
        }
    }

    /// The folder of an audit that trains: in the folder of the run, if one is audited.
    fn folder(&self, config: &Config) -> Result<AuditFolder, Error> {
        let run = self.config.as_deref().filter(|path| path.is_dir());
        match (run, &self.folder) {
            (Some(run), None) => {
                // What is added up must be about the same data and the same persons.
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
        if self.what != What::Replay {
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
        let word = if verdict.passed() {
            "passed: nothing was seen that speaks against the claim"
        } else {
            "FAILED"
        };
        rows.push(("verdict", word.into()));
        let mut text = fields(&rows);
        verdict.violations.iter().for_each(|line| text.push_str(&format!("\n  ✗ {line}")));
        if let Some(path) = &self.out {
            text.push_str(&format!("\ndrawn in {}", Path::display(path)));
        }
        text
    }
}

/// What it cost to find out.
fn expenses(expense: &Expense) -> Vec<(&'static str, String)> {
    let price = |price: &Option<accounting::Guarantee>| match price {
        Some(price) => {
            format!("ε = {} at δ = {}, {}", up(price.epsilon, 3), up_e(price.delta), price.unit)
        }
        None => "NON-PRIVATE: no guarantee that could be added up".into(),
    };
    let mut rows = vec![(
        "spent",
        format!(
            "{}: by this audit's training run, which covers all that is shown here",
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

/// One line that says what is false.
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
