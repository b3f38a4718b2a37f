//! `muffle verify`: whether a privacy statement is true.

use super::Failure;
use super::output::{json_number, print, print_json, up, up_e};
use crate::verify::{Check, Verdict, verify};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Check a privacy statement: everything it says, computed again
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle verify muffle-run\n  muffle verify muffle-run/model/privacy.json --json\n\n\
    From the ledger in privacy.json: its SHA-256, ε at the stated δ for the stated unit, the promise, sampling, lot size, noise, steps, the words of \
    what is covered, and the SHA-256 of the weights beside it. In the folder of a run also config.toml and the plan that follows from it, ledger.json, \
    result.json, history.jsonl, the last checkpoint and report.html.\n\n\
    What it cannot see: whether the run really did what the ledger says, and drew its noise well. Whoever can write a false ledger can write hashes that \
    fit it: get the statement from somebody you trust, or train again. Without the folder of the run it cannot see whether less was promised than is said, \
    whether more steps are in the model than it says, and what the configuration said of columns, frozen weights and evaluation data. Figures such as NLL are not \
    computed again; tokenizer and config.json are not hashed.\n\n\
    Exit codes: 0 everything holds, 1 something does not, 2 nothing to verify: no run, or one that is not finished.")]
pub(crate) struct Verify {
    /// The folder of a run, a folder with a model and its privacy.json, or a privacy.json with the weights beside it
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let verdict = verify(&self.path)?;
        if self.json {
            print_json(&object(&verdict));
        } else {
            print(&text(&verdict));
        }
        let failed = verdict.checks.iter().filter(|check| !check.passed).count();
        if verdict.passed() { Ok(()) } else { Err(Failure::Refuted(format!("{failed} of {} checks failed", verdict.checks.len()))) }
    }
}

fn object(verdict: &Verdict) -> Value {
    let stated = verdict.statement.as_ref();
    let check = |check: &Check| json!({ "name": check.name, "passed": check.passed, "detail": check.detail });
    let skipped = |check: &Check| json!({ "name": check.name, "detail": check.detail });
    json!({
        "passed": verdict.passed(),
        "private": verdict.passed() && stated.is_some_and(|statement| statement.private),
        "epsilon": verdict.price.map(|price| json_number(price.epsilon)),
        "delta": stated.and_then(|statement| statement.delta),
        "epsilon_stated": stated.and_then(|statement| statement.epsilon),
        "statement": verdict.path,
        "checks": verdict.checks.iter().map(check).collect::<Vec<_>>(),
        "skipped": verdict.skipped.iter().map(skipped).collect::<Vec<_>>(),
    })
}

fn text(verdict: &Verdict) -> String {
    let all = verdict.checks.iter().chain(&verdict.skipped);
    let width = all.map(|check| check.name.chars().count()).max().unwrap_or(0);
    let line = |mark: &str, check: &Check| format!("{mark} {:width$}  {}", check.name, check.detail);
    let mut lines = vec![verdict.path.display().to_string(), String::new()];
    lines.extend(verdict.checks.iter().map(|check| line(if check.passed { "✓" } else { "✗" }, check)));
    lines.extend(verdict.skipped.iter().map(|check| line("–", check)));
    lines.push(String::new());
    lines.push(match (&verdict.statement, verdict.price) {
        _ if !verdict.passed() => "Do not rely on this statement.".into(),
        (Some(statement), Some(price)) if statement.private => {
            format!("True: ε = {} at δ = {} ({}).", up(price.epsilon, 3), up_e(price.delta), price.unit)
        }
        _ => "True, and what it says is that NOBODY IS PROTECTED.".into(),
    });
    lines.join("\n")
}
