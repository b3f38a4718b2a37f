//! The commands. Each parses its arguments into checked values, asks the library, and prints either a table for people or one JSON object.

mod account;
mod bench;
mod calibrate;
mod generate;
mod number;
mod output;
mod plan;
mod repeat;
mod run;
mod score;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Differentially private training of neural networks.
#[derive(Parser)]
#[command(name = "muffle", version, propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
#[command(
    after_help = "Every command has --help with an example, and --json for machines: one object on standard output, warnings on standard error.\n\
    Exit codes: 0 success, 2 bad usage or input, 3 a promise that cannot be kept. Numbers may be written as 1024/42043."
)]
struct Muffle {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Account(account::Account),
    Calibrate(calibrate::Calibrate),
    Plan(plan::Plan),
    Generate(generate::Generate),
    Score(score::Score),
    Bench(bench::Bench),
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments, or what they name, are no good.
    Input(String),
    /// The library refused.
    Refused(accounting::Error),
}

impl From<accounting::Error> for Failure {
    fn from(error: accounting::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        Self::Input(error.to_string())
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Refused(accounting::Error::Unreachable { .. }) => 3,
            _ => 2,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input(message) => f.write_str(message),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    // clap exits with 2 on bad usage and 0 on --help by itself.
    let muffle = Muffle::parse();
    let result = match muffle.command {
        Command::Account(command) => command.run(),
        Command::Calibrate(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Bench(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("muffle: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
