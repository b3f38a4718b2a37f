//! `muffle sign`: signs the privacy statement of a run.

use super::error::Error;
use super::output::{fields, print, print_json, warn};
use clap::Args;
use muffle::run::folder;
use muffle::verify::signature::{self, SecretKey};
use muffle::verify::{Verdict, verify};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Sign the privacy statement of a finished run
#[derive(Args)]
#[command(after_help = "Example:\n  muffle sign muffle-run --key signing.key\n\n\
    Verifies the statement first and refuses to sign an inconsistent one. The signature is written \
    to privacy.json.sig beside privacy.json. It covers the whole statement, with the hashes of \
    ledger, configuration and weights. muffle keygen creates a key; muffle verify --key verifies \
    the signature.\n\n\
    Exit codes: 0 signed, 1 inconsistent and not signed, 2 invalid usage or input.")]
pub(crate) struct Sign {
    /// The folder of a run, a folder with a model and its privacy.json, or a privacy.json
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// The secret key, as muffle keygen writes it
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    signature: &'a Path,
    signer: &'a str,
    run_id: &'a str,
}

impl Sign {
    pub(crate) fn run(self) -> Result<(), Error> {
        let key = SecretKey::read(&self.key)?;
        let verdict = verify(&self.path)?;
        let statement = signable(&verdict)?;
        for missing in verdict.missing() {
            warn(&format!("not checked before signing: {}: {}", missing.name, missing.detail));
        }
        let file = signature::file(&verdict.path);
        folder::write(&file, key.sign(statement)?.as_bytes())?;
        let fingerprint = key.public().fingerprint();
        if self.json {
            return print_json(&Output {
                signature: &file,
                signer: &fingerprint,
                run_id: &statement.run_id,
            });
        } else {
            print(&fields(&[
                ("run", statement.run_id.clone()),
                ("signature", file.display().to_string()),
                ("signer", fingerprint),
            ]));
        }
        Ok(())
    }
}

/// The statement, if no check failed.
fn signable(verdict: &Verdict) -> Result<&muffle::Statement, Error> {
    let failed: Vec<&str> =
        verdict.checks.iter().filter(|check| !check.passed).map(|check| check.name).collect();
    if !failed.is_empty() {
        return Err(Error::Refuted(format!(
            "{}: inconsistent ({}); not signed",
            verdict.path.display(),
            failed.join(", ")
        )));
    }
    verdict
        .statement
        .as_ref()
        .ok_or_else(|| Error::Refuted(format!("{}: no statement", verdict.path.display())))
}
