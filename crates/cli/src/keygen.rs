//! `muffle keygen`: creates a key that signs privacy statements.

use super::error::Error;
use super::output::{fields, print, print_json};
use clap::Args;
use muffle::verify::signature::SecretKey;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Create a key that signs privacy statements
#[derive(Args)]
#[command(after_help = "Example:\n  muffle keygen signing.key\n  muffle sign muffle-run --key \
        signing.key\n  muffle verify muffle-run --key signing.key.pub\n\n\
    Writes an Ed25519 secret key to OUT, which only its owner can read, and the public key to \
    OUT.pub. Neither is overwritten if it exists.\n\
    Give the public key, or its fingerprint, to verifiers through a channel that they trust; keep \
    the secret key off the machines that train, if possible.\n\
    The files have one line each: \"muffle-ed25519-secret \" or \"muffle-ed25519-public \" and 64 \
    hexadecimal digits.")]
pub(crate) struct Keygen {
    /// The file of the secret key, which must be new
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    secret: &'a Path,
    public: &'a Path,
    fingerprint: &'a str,
}

impl Keygen {
    pub(crate) fn run(self) -> Result<(), Error> {
        let key = SecretKey::generate()?;
        let public = key.write(&self.out)?;
        let fingerprint = key.public().fingerprint();
        if self.json {
            return print_json(&Output {
                secret: &self.out,
                public: &public,
                fingerprint: &fingerprint,
            });
        } else {
            let rows = [
                ("secret key", format!("{} (keep it secret)", self.out.display())),
                ("public key", public.display().to_string()),
                ("fingerprint", fingerprint),
            ];
            print(&fields(&rows));
        }
        Ok(())
    }
}
