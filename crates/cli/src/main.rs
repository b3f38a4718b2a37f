//! The commands. Each parses its arguments into checked values, asks the library, and prints either
//! a table for people or one JSON object.

mod account;
mod audit;
mod bench;
mod calibrate;
mod compare;
mod eval;
mod generate;
mod keygen;
mod number;
mod output;
mod plan;
mod progress;
mod repeat;
mod report;
mod run;
mod score;
mod sign;
mod train;
mod verify;

use clap::{Parser, Subcommand};
use muffle::Failed;
use muffle::ranks::Ranks;
use muffle::{engine, model};
use std::path::Path;
use std::process::ExitCode;

/// Differentially private training of neural networks.
#[derive(Parser)]
#[command(
    name = "muffle",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Every command has --help with an example, and --json for machines: one object on \
        standard output, warnings on standard error.\n\
    Exit codes: 0 success, 1 a claim that does not hold (audit, verify), 2 bad usage or input, 3 a \
    promise that cannot be kept, 4 evidence is missing (verify), 130 stopped. Numbers may be \
    written as 1024/42043."
)]
struct Muffle {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Train>),
    Resume(train::Resume),
    Eval(eval::Eval),
    Compare(Box<compare::Compare>),
    Report(report::Report),
    Verify(verify::Verify),
    Sign(sign::Sign),
    Keygen(keygen::Keygen),
    Audit(Box<audit::Audit>),
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
    /// A run ended without a result.
    Run(Failed),
    /// A claim is false.
    Refuted(String),
    /// Nothing contradicts a claim, but evidence is missing.
    Incomplete(String),
    /// A run was asked to stop, and can go on: this is how.
    Stopped(String),
}

impl Failure {
    /// With the folder to go on in.
    fn of_run(failed: Failed, folder: &Path) -> Self {
        match failed {
            Failed::Stopped => Self::Stopped(format!("muffle resume {}", folder.display())),
            other => Self::Run(other),
        }
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        Self::Run(failed)
    }
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

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        Self::Input(error.to_string())
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Refused(accounting::Error::Unreachable { .. })
            | Self::Run(Failed::Promise(_)) => 3,
            Self::Refuted(_) => 1,
            Self::Incomplete(_) => 4,
            Self::Stopped(_) => 130,
            _ => 2,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input(message) | Self::Refuted(message) | Self::Incomplete(message) => {
                f.write_str(message)
            }
            Self::Refused(error) => error.fmt(f),
            Self::Run(failed) => failed.fmt(f),
            Self::Stopped(how) => write!(f, "stopped; go on with: {how}"),
        }
    }
}

/// Runs the program.
fn main() -> ExitCode {
    // clap exits with 2 on bad usage and 0 on --help by itself.
    let muffle = Muffle::parse();
    let together = match &muffle.command {
        Command::Train(_) | Command::Resume(_) => true,
        Command::Bench(bench) => bench.together(),
        _ => false,
    };
    let ranks = match launched(together) {
        Ok(ranks) => ranks,
        Err(failure) => {
            if muffle::ranks::launcher().is_none_or(|(rank, _)| rank == 0) {
                eprintln!("muffle: {failure}");
            } else {
                // The launcher kills the other ranks as soon as one fails: rank 0 prints first.
                std::thread::sleep(std::time::Duration::from_secs(2));
            }
            return ExitCode::from(failure.code());
        }
    };
    let result = match muffle.command {
        Command::Train(command) => command.run(&ranks),
        Command::Resume(command) => command.run(&ranks),
        Command::Eval(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Sign(command) => command.run(),
        Command::Keygen(command) => command.run(),
        Command::Audit(command) => command.run(),
        Command::Account(command) => command.run(),
        Command::Calibrate(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Bench(command) => command.run(&ranks),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Names and texts out of files may hold anything; a terminal gets one line.
            let line: String = failure
                .to_string()
                .chars()
                .map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c })
                .collect();
            // Of several processes that fail alike, the first one says so and ends all.
            if matches!(failure, Failure::Stopped(_)) && !ranks.is_first() {
                return ExitCode::from(failure.code());
            }
            if !ranks.is_first() {
                std::thread::sleep(std::time::Duration::from_secs(2));
            }
            let who = if ranks.is_first() { String::new() } else { format!("{}: ", ranks.name()) };
            eprintln!("muffle: {who}{line}");
            if !matches!(failure, Failure::Stopped(_)) {
                ranks.end(failure.code());
            }
            ExitCode::from(failure.code())
        }
    }
}

/// This process among those that an MPI launcher started, or alone.
fn launched(together: bool) -> Result<Ranks, Failure> {
    let Some((_, count)) = muffle::ranks::launcher().filter(|(_, count)| *count > 1) else {
        return Ok(Ranks::alone());
    };
    if !together {
        return Err(Failure::Input(format!(
            "started as {count} processes; only train, resume and bench ranks work together; start \
             it once"
        )));
    }
    #[cfg(feature = "mpi")]
    match muffle::ranks::launched().map_err(|lost| Failure::Input(lost.to_string()))? {
        Some(ranks) if ranks.count() == count => Ok(ranks),
        _ => Err(Failure::Input(format!(
            "started as {count} processes that do not find each other, so that each would train by \
             itself: the launcher is of another MPI than this program"
        ))),
    }
    #[cfg(not(feature = "mpi"))]
    Err(Failure::Input(format!(
        "started as {count} processes, but built without MPI, so that each would train by itself: \
         build it with --features mpi"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts go by them.
    #[test]
    fn exit_codes() {
        let line = || "line".to_string();
        assert_eq!(Failure::Refuted(line()).code(), 1);
        assert_eq!(Failure::Input(line()).code(), 2);
        assert_eq!(Failure::Run(Failed::Promise(line())).code(), 3);
        assert_eq!(Failure::Incomplete(line()).code(), 4);
        assert_eq!(Failure::Stopped(line()).code(), 130);
    }
}
