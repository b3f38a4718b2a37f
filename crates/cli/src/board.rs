//! `muffle board`: a local page with runs, a planner and reports.

use super::error::Error;
use super::output::{print, print_json};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show runs, a planner and reports on a page of this machine
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle board\n  muffle board runs comparisons --port 8123\n\n\
    Open the printed address in a browser on this machine. Runs: progress, curves, configuration \
    and samples, also while a run trains. Planner: noise, ε and risk while you drag. Report: the \
    report of a finished run, and muffle verify at a click.\n\
    The address holds a random secret and is valid until the board ends (Ctrl-C). The board reads \
    the folders of runs and writes nothing; it never reads private state or data, and checkpoints \
    only to verify them.\n\
    From another machine: ssh -L 8123:127.0.0.1:8123 HOST, with --port 8123 there."
)]
pub(crate) struct Board {
    /// Folders with runs, up to three levels deep [default: the current folder]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// The port on 127.0.0.1; 0 for one that the system chooses
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// One JSON object with the address on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    address: &'a str,
}

impl Board {
    pub(crate) fn run(self) -> Result<(), Error> {
        let folders = match self.folders.is_empty() {
            true => vec![PathBuf::from(".")],
            false => self.folders,
        };
        let board = board::Board::open(&folders, self.port)?;
        if self.json {
            print_json(&Output { address: board.address() })?;
        } else {
            print(board.address());
            print("Only this machine can reach it. Ctrl-C ends it.");
        }
        board.serve();
        Ok(())
    }
}
