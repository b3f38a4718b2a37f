//! Fuzzes all readers of untrusted input.

use clap::Parser;
use fuzz::fuzz_loop::{Limits, TargetStats, save_input};
use fuzz::monitor;
use fuzz::run_targets::run_targets;
use fuzz::scratch::Scratch;
use fuzz::target::{ALL, Target, named};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Mutates inputs and checks for panics, hangs, excessive memory and leaked records
#[derive(Parser)]
struct Arguments {
    /// The targets; all by default
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Number of inputs for each target
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    inputs: u64,
    /// Seed of the mutations
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Time limit for each target in seconds
    #[arg(long, value_name = "T")]
    seconds: Option<u64>,
    /// Number of targets run in parallel
    #[arg(long, default_value_t = 1, value_name = "K")]
    threads: usize,
    /// Folder for failing inputs
    #[arg(long, default_value = "target/fuzz-failures", value_name = "FOLDER")]
    failures: PathBuf,
    /// Run only this input, for one target
    #[arg(long, value_name = "FILE", requires = "target")]
    replay: Option<PathBuf>,
    /// Show the kinds of all messages
    #[arg(long)]
    shapes: bool,
    /// List the targets
    #[arg(long)]
    list: bool,
}

/// Address space of the worker process in kilobytes, which bounds allocations by damaged lengths.
const SPACE: u64 = 8 << 20;

/// Environment variable of the worker process: the folder for the current inputs.
const INNER: &str = "MUFFLE_FUZZ_INNER";

/// Time after which an input counts as a hang.
const TIME_LIMIT: Duration = Duration::from_secs(2);

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
        .map(|name| named(name).ok_or_else(|| format!("unknown target {name:?}; see --list")))
        .collect()
}

fn replay(arguments: &Arguments, path: &Path) -> Result<bool, String> {
    let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut good = true;
    for target in chosen(arguments)? {
        let scratch = Scratch::new().map_err(|error| error.to_string())?;
        (target.prepare)(&scratch).map_err(|error| error.to_string())?;
        let result = monitor::run(target, &scratch, &input);
        good &= result.outcome.is_ok();
        eprintln!(
            "{}: {:?}\n{} bytes at a time, {:?}",
            target.name, result.outcome, result.peak, result.time
        );
    }
    Ok(good)
}

/// Starts the worker process, and reports its current inputs if it dies.
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
        .map_err(|error| format!("cannot start sh: {error}"))?;
    if status.code().is_none() {
        eprintln!("muffle-fuzz: the process did not survive ({status}); it was at");
        for entry in std::fs::read_dir(currents.at("")).into_iter().flatten().flatten() {
            let (name, input) =
                (entry.file_name(), std::fs::read(entry.path()).unwrap_or_default());
            eprintln!("!! {}", save_input(&arguments.failures, &name.to_string_lossy(), &input));
        }
    }
    Ok(status.success())
}

fn inner(arguments: &Arguments, currents: &Path) -> Result<bool, String> {
    let targets = chosen(arguments)?;
    let limits = |_: &Target| Limits {
        inputs: arguments.inputs,
        until: arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        seed: arguments.seed,
    };
    eprintln!(
        "| target | inputs | accepted | shapes | µs each | slowest, ms | most memory, kB | \
         failures |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut all, mut failed) = (0, 0);
    let mut show = |target: &Target, stats: &TargetStats| {
        eprintln!("{}", row(target, stats));
        for (what, place) in &stats.failures {
            eprintln!("!! {}: {what}\n!! {}", target.name, place.display());
        }
        if arguments.shapes {
            stats.shapes.iter().for_each(|shape| eprintln!("   {shape}"));
        }
        all += stats.inputs;
        failed += stats.failures.len();
    };
    run_targets(
        &targets,
        arguments.threads,
        TIME_LIMIT,
        &arguments.failures,
        currents,
        &limits,
        &mut show,
    )
    .map_err(|error| error.to_string())?;
    eprintln!("{all} inputs, {failed} failures");
    Ok(failed == 0)
}

fn row(target: &Target, stats: &TargetStats) -> String {
    let share = 100.0 * stats.accepted as f64 / stats.inputs.max(1) as f64;
    format!(
        "| {} | {} | {share:.1} % | {} | {:.0} | {:.1} | {} | {} |",
        target.name,
        stats.inputs,
        stats.shapes.len(),
        1e6 * stats.time.as_secs_f64() / stats.inputs.max(1) as f64,
        1e3 * stats.slowest.as_secs_f64(),
        stats.peak / 1024,
        stats.failures.len()
    )
}
