//! Fuzzes the readers of everything that comes from outside.

use clap::Parser;
use fuzz::crew::crew;
use fuzz::hunt::{Effort, Tally, keep};
use fuzz::scratch::Scratch;
use fuzz::target::{ALL, Target, named};
use fuzz::watch;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Damages inputs, and sees whether anything panics, hangs, takes much memory or shows a record
#[derive(Parser)]
struct Arguments {
    /// Only these; all by default
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Inputs for each target
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    inputs: u64,
    /// Where the damage comes from
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Seconds for each target at the most
    #[arg(long, value_name = "T")]
    seconds: Option<u64>,
    /// Targets at a time
    #[arg(long, default_value_t = 1, value_name = "K")]
    threads: usize,
    /// Where inputs that do harm are put
    #[arg(long, default_value = "target/fuzz-failures", value_name = "FOLDER")]
    failures: PathBuf,
    /// Only this input, for one target
    #[arg(long, value_name = "FILE", requires = "target")]
    replay: Option<PathBuf>,
    /// Show the shapes of all messages
    #[arg(long)]
    shapes: bool,
    /// List the targets
    #[arg(long)]
    list: bool,
}

/// Address space of the process that does the work, in kilobytes: a length out of a damaged file
/// must not take down the machine.
const SPACE: u64 = 8 << 20;

/// Set in the process that does the work: where it puts what it is at.
const INNER: &str = "MUFFLE_FUZZ_INNER";

/// An input that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = if arguments.list {
        ALL.iter().for_each(|target| eprintln!("{:<14} {}", target.name, target.about));
        Ok(true)
    } else if let Some(path) = &arguments.replay {
        replay(&arguments, path)
    } else {
        match std::env::var_os(INNER) {
            Some(currents) => inner(&arguments, Path::new(&currents)),
            None => outer(&arguments),
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("muffle-fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn chosen(arguments: &Arguments) -> Result<Vec<&'static Target>, String> {
    if arguments.target.is_empty() {
        return Ok(ALL.iter().collect());
    }
    arguments
        .target
        .iter()
        .map(|name| named(name).ok_or_else(|| format!("there is no target {name:?}: see --list")))
        .collect()
}

fn replay(arguments: &Arguments, path: &Path) -> Result<bool, String> {
    let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut good = true;
    for target in chosen(arguments)? {
        let scratch = Scratch::new().map_err(|error| error.to_string())?;
        (target.prepare)(&scratch).map_err(|error| error.to_string())?;
        let result = watch::run(target, &scratch, &input);
        good &= result.seen.is_ok();
        eprintln!(
            "{}: {:?}\n{} bytes at a time, {:?}",
            target.name, result.seen, result.peak, result.time
        );
    }
    Ok(good)
}

/// Starts the process that does the work, and sees what it was at if it does not survive.
fn outer(arguments: &Arguments) -> Result<bool, String> {
    chosen(arguments)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let currents = Scratch::new().map_err(|error| error.to_string())?;
    let status = Command::new("sh")
        .args(["-c", &format!("ulimit -v {SPACE}; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INNER, currents.at(""))
        .status()
        .map_err(|error| format!("sh cannot be started: {error}"))?;
    if status.code().is_none() {
        eprintln!("muffle-fuzz: the process did not survive ({status}); it was at");
        for entry in std::fs::read_dir(currents.at("")).into_iter().flatten().flatten() {
            let (name, input) =
                (entry.file_name(), std::fs::read(entry.path()).unwrap_or_default());
            eprintln!("!! {}", keep(&arguments.failures, &name.to_string_lossy(), &input));
        }
    }
    Ok(status.success())
}

fn inner(arguments: &Arguments, currents: &Path) -> Result<bool, String> {
    let targets = chosen(arguments)?;
    let effort = |_: &Target| Effort {
        inputs: arguments.inputs,
        until: arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        seed: arguments.seed,
    };
    eprintln!(
        "| target | inputs | accepted | shapes | µs each | slowest, ms | most memory, kB | \
         failures |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut all, mut failed) = (0, 0);
    let mut show = |target: &Target, tally: &Tally| {
        eprintln!("{}", row(target, tally));
        for (what, place) in &tally.failures {
            eprintln!("!! {}: {what}\n!! {}", target.name, place.display());
        }
        if arguments.shapes {
            tally.shapes.iter().for_each(|shape| eprintln!("   {shape}"));
        }
        all += tally.inputs;
        failed += tally.failures.len();
    };
    crew(&targets, arguments.threads, PATIENCE, &arguments.failures, currents, &effort, &mut show)
        .map_err(|error| error.to_string())?;
    eprintln!("{all} inputs, {failed} failures");
    Ok(failed == 0)
}

fn row(target: &Target, tally: &Tally) -> String {
    let share = 100.0 * tally.accepted as f64 / tally.inputs.max(1) as f64;
    format!(
        "| {} | {} | {share:.1} % | {} | {:.0} | {:.1} | {} | {} |",
        target.name,
        tally.inputs,
        tally.shapes.len(),
        1e6 * tally.time.as_secs_f64() / tally.inputs.max(1) as f64,
        1e3 * tally.slowest.as_secs_f64(),
        tally.peak / 1024,
        tally.failures.len()
    )
}
