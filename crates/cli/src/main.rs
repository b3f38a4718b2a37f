//! The program `muffle`. Each command parses its arguments, calls the library, and prints text or
//! one JSON object.

mod account;
mod audit;
mod bench;
mod board;
mod calibrate;
mod compare;
mod data_options;
mod dry;
mod error;
mod estimate;
mod eval;
mod generate;
mod keygen;
mod number;
mod output;
mod plan;
mod predict;
mod progress;
mod repeat;
mod report;
mod run;
mod score;
mod sign;
mod theory;
mod train;
mod verify;

use clap::{Parser, Subcommand};
use error::Error;
use muffle::distributed::Ranks;
use output::note;
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
        standard output, warnings on standard error. Numbers may be written as 1024/42043.\n\n\
    Exit codes:\n  \
    0    success\n  \
    1    a claim does not hold (audit, verify, sign)\n  \
    2    invalid usage or input: an argument, a configuration, a file\n  \
    3    a promise of privacy cannot be kept, or its budget is spent\n  \
    4    evidence is missing (verify)\n  \
    5    a fault of the program or the machine, or a lost process\n  \
    130  stopped; the run can be resumed"
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
    Predict(predict::Predict),
    Compare(Box<compare::Compare>),
    Report(report::Report),
    Verify(verify::Verify),
    Sign(sign::Sign),
    Keygen(keygen::Keygen),
    Audit(Box<audit::Audit>),
    Account(account::Account),
    Calibrate(calibrate::Calibrate),
    Plan(plan::Plan),
    Theory(Box<theory::Theory>),
    Generate(generate::Generate),
    Score(score::Score),
    Bench(bench::Bench),
    Board(board::Board),
}

/// Runs the program. A panic is an internal fault and has its exit code.
fn main() -> ExitCode {
    std::panic::catch_unwind(run_command).unwrap_or(ExitCode::from(error::FAULT))
}

fn run_command() -> ExitCode {
    // On invalid usage clap exits with 2, on --help with 0.
    let muffle = Muffle::parse();
    let runs_in_processes = match &muffle.command {
        Command::Train(_) | Command::Resume(_) => true,
        Command::Bench(bench) => bench.runs_in_processes(),
        _ => false,
    };
    let ranks = match connect_ranks(runs_in_processes) {
        Ok(ranks) => ranks,
        Err(error) => {
            if muffle::distributed::launcher_rank().is_none_or(|(rank, _)| rank == 0) {
                note!("muffle: {error}");
            } else {
                // The launcher kills the other ranks as soon as one fails: rank 0 prints first.
                std::thread::sleep(std::time::Duration::from_secs(2));
            }
            return ExitCode::from(error.code());
        }
    };
    let result = match muffle.command {
        Command::Train(command) => command.run(&ranks),
        Command::Resume(command) => command.run(&ranks),
        Command::Eval(command) => command.run(),
        Command::Predict(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Sign(command) => command.run(),
        Command::Keygen(command) => command.run(),
        Command::Audit(command) => command.run(),
        Command::Account(command) => command.run(),
        Command::Calibrate(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Theory(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Bench(command) => command.run(&ranks),
        Command::Board(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Names and texts from files may hold control characters; a terminal gets one line.
            let line: String = error
                .to_string()
                .chars()
                .map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c })
                .collect();
            // Rank 0 reports a stop for all ranks.
            if matches!(error, Error::Stopped { .. }) && !ranks.is_first() {
                return ExitCode::from(error.code());
            }
            // If all ranks fail for the same reason, rank 0 prints it and aborts the others.
            if !ranks.is_first() {
                std::thread::sleep(std::time::Duration::from_secs(2));
            }
            let rank = if ranks.is_first() { String::new() } else { format!("{}: ", ranks.name()) };
            note!("muffle: {rank}{line}");
            if !matches!(error, Error::Stopped { .. }) {
                ranks.abort(error.code());
            }
            ExitCode::from(error.code())
        }
    }
}

/// Joins the processes that an MPI launcher started, if there are several.
fn connect_ranks(runs_in_processes: bool) -> Result<Ranks, Error> {
    let Some((_, count)) = muffle::distributed::launcher_rank().filter(|(_, count)| *count > 1)
    else {
        return Ok(Ranks::alone());
    };
    if !runs_in_processes {
        return Err(Error::usage(format!(
            "started as {count} processes, but only train, resume and bench ranks run in several; \
             start it without the launcher"
        )));
    }
    #[cfg(feature = "mpi")]
    match muffle::distributed::connect_mpi()? {
        Some(ranks) if ranks.count() == count => Ok(ranks),
        _ => Err(Error::usage(format!(
            "started as {count} processes that cannot communicate, so that each would train alone; \
             the launcher belongs to another MPI than this program"
        ))),
    }
    #[cfg(not(feature = "mpi"))]
    Err(Error::usage(format!(
        "started as {count} processes, but built without MPI, so that each would train alone; \
         build with --features mpi"
    )))
}
