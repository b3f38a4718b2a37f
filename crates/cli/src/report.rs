//! `muffle report`: writes the HTML report of a run.

use super::error::Error;
use super::output::{print, print_json};
use clap::Args;
use muffle::report::{self, Redaction};
use muffle::run::folder::Folder;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Write the report of a run as one self-contained HTML page
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle report muffle-run\n  muffle report muffle-run --redact \
        names,non-private\n\nParts that can be hidden: non-private (figures, charts and samples that \
        no guarantee covers), names (of data, files, models and columns, owner and purpose; also hides the \
        configuration), samples, configuration, environment. The page says what is hidden, and muffle \
        verify accepts it. Other files, such as \
        model/README.md and model/privacy.json, are not changed.\n\nThe privacy statement for machines is \
        DIR/model/privacy.json."
)]
pub(crate) struct Report {
    /// The folder of the run
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Hide parts of the page, such as names
    #[arg(long, value_name = "PARTS")]
    redact: Option<String>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    path: &'a Path,
}

impl Report {
    pub(crate) fn run(self) -> Result<(), Error> {
        let hidden = Redaction::parse(self.redact.as_deref().unwrap_or_default())?;
        let path = report::write(&Folder::open_read_only(&self.folder)?, &hidden)?;
        if self.json {
            return print_json(&Output { path: &path });
        } else {
            print(&path.display().to_string());
        }
        Ok(())
    }
}
