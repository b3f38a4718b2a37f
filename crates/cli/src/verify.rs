//! `muffle verify`: verifies a privacy statement against its ledger and the files of its run.

use super::error::Error;
use super::output::{Number, print, print_json};
use clap::Args;
use muffle::verify::signature::PublicKey;
use muffle::verify::{Check, Conclusion, Unchecked, UncheckedReason, Verdict, verify_signed};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Verify a privacy statement by recomputing it
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle verify muffle-run\n  muffle verify muffle-run --key \
        signing.key.pub\n  muffle verify muffle-run/model/privacy.json --json\n\n\
    Recomputed from the ledger in privacy.json: the hash chain over sessions and charges, ε at the \
    stated δ for the stated unit, the promise, sampling, lot size, noise, steps, the sentences, \
    and the SHA-256 of the weights. In the folder of a run also: config.toml and its plan, \
    ledger.json with its closing entry, result.json, history.jsonl, the last checkpoint and \
    report.html. With --key: the signature (muffle sign).\n\n\
    A consistent statement may still be false. The files cannot show whether the run did what the \
    ledger says, with good noise; whether the whole folder of a run was restored to an older state \
    and resumed; whether another copy of it was resumed as well (compare run ids and heads). \
    Without a signature, anyone who can write a false ledger can write matching hashes. Figures \
    such as NLL are not recomputed; tokenizer and config.json are not hashed. Everything that was \
    not checked is listed.\n\n\
    Exit codes: 0 consistent, with all evidence; 1 inconsistent, or --key is given and the \
    signature is missing or invalid; 2 nothing to verify: no run, or an unfinished one; 4 no check \
    failed, but evidence is missing.")]
pub(crate) struct Verify {
    /// The folder of a run, a folder with a model and its privacy.json, or a privacy.json with the
    /// weights beside it
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// The public key that must have signed the statement, as muffle keygen writes it
    #[arg(long, value_name = "PUB")]
    key: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<(), Error> {
        let key = self.key.as_deref().map(PublicKey::read).transpose()?;
        let verdict = verify_signed(&self.path, key.as_ref())?;
        if self.json {
            print_json(&Output::from(&verdict))?;
        } else {
            print(&text(&verdict));
        }
        match verdict.conclusion() {
            Conclusion::Consistent => Ok(()),
            Conclusion::Incomplete => {
                Err(Error::Incomplete(format!("evidence is missing: {}", verdict.missing_names())))
            }
            Conclusion::Inconsistent => {
                let failed = verdict.checks.iter().filter(|check| !check.passed).count();
                Err(Error::Refuted(format!(
                    "inconsistent: {failed} of {} checks failed",
                    verdict.checks.len()
                )))
            }
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    consistent: bool,
    complete: bool,
    private: bool,
    epsilon: Option<Number>,
    delta: Option<f64>,
    epsilon_stated: Option<f64>,
    run_id: Option<&'a str>,
    sessions: Option<usize>,
    ledger_head: Option<&'a str>,
    signed: bool,
    signer: Option<&'a str>,
    statement: &'a Path,
    checks: &'a [Check],
    unchecked: Vec<UncheckedOutput<'a>>,
}

/// A check that was not made.
#[derive(Serialize)]
struct UncheckedOutput<'a> {
    name: &'a str,
    missing: bool,
    detail: &'a str,
}

impl<'a> From<&'a Verdict> for Output<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        let stated = verdict.statement.as_ref();
        let output = |unchecked: &'a Unchecked| UncheckedOutput {
            name: unchecked.name,
            missing: unchecked.reason == UncheckedReason::Missing,
            detail: &unchecked.detail,
        };
        Self {
            consistent: verdict.consistent(),
            complete: verdict.missing().next().is_none(),
            private: verdict.consistent() && stated.is_some_and(|statement| statement.private),
            epsilon: verdict.price.map(|price| price.epsilon.into()),
            delta: stated.and_then(|statement| statement.delta),
            epsilon_stated: stated.and_then(|statement| statement.epsilon),
            run_id: stated.map(|statement| statement.run_id.as_str()),
            sessions: stated.map(|statement| statement.sessions.len()),
            ledger_head: stated.map(|statement| statement.ledger_head.as_str()),
            signed: verdict.signer.is_some(),
            signer: verdict.signer.as_deref(),
            statement: &verdict.path,
            checks: &verdict.checks,
            unchecked: verdict.unchecked.iter().map(output).collect(),
        }
    }
}

/// The verdict as text.
fn text(verdict: &Verdict) -> String {
    let names = verdict
        .checks
        .iter()
        .map(|check| check.name)
        .chain(verdict.unchecked.iter().map(|unchecked| unchecked.name));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |mark: &str, name: &str, detail: &str| format!("{mark} {name:width$}  {detail}");
    let mut lines = vec![verdict.path.display().to_string()];
    if let Some(statement) = &verdict.statement {
        lines.push(format!(
            "run {}, {} sessions, ledger head {}",
            statement.run_id,
            statement.sessions.len(),
            statement.ledger_head
        ));
        let session = |entry: &muffle::run::chain::SessionEntry| {
            format!(
                "  session {} after {} charges, from head {}",
                entry.id, entry.charges, entry.from
            )
        };
        lines.extend(statement.sessions.iter().map(session));
    }
    lines.push(String::new());
    lines.extend(
        verdict
            .checks
            .iter()
            .map(|check| line(if check.passed { "✓" } else { "✗" }, check.name, &check.detail)),
    );
    for (reason, title) in [
        (UncheckedReason::Missing, "Missing, and not checked:"),
        (UncheckedReason::OutOfReach, "Cannot be checked from these files:"),
    ] {
        let mut of_reason =
            verdict.unchecked.iter().filter(|unchecked| unchecked.reason == reason).peekable();
        if of_reason.peek().is_some() {
            lines.extend([String::new(), title.into()]);
            lines.extend(of_reason.map(|unchecked| line("–", unchecked.name, &unchecked.detail)));
        }
    }
    lines.push(String::new());
    lines.push(verdict.sentence());
    lines.join("\n")
}
