//! `muffle report`: writes the HTML report of a run.

use super::error::Error;
use super::output::{print, print_json};
use clap::Args;
use muffle::report;
use muffle::run::folder::Folder;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Write the report of a run as one self-contained HTML page
#[derive(Args)]
#[command(
    after_help = "Example:\n  muffle report muffle-run\n\nThe privacy statement for machines is \
        DIR/model/privacy.json."
)]
pub(crate) struct Report {
    /// The folder of the run
    #[arg(value_name = "DIR")]
    folder: PathBuf,
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
        let path = report::write(&Folder::open_read_only(&self.folder)?)?;
        if self.json {
            return print_json(&Output { path: &path });
        } else {
            print(&path.display().to_string());
        }
        Ok(())
    }
}
