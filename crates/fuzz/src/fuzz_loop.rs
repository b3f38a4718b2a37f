//! The fuzzing loop: mutate an input, run it, keep it if its message is of a new kind.

use crate::monitor::{self, RunningInput};
use crate::mutate::Material;
use crate::random::Random;
use crate::scratch::Scratch;
use crate::shape::shape;
use crate::target::Target;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limits of a run on one target.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of inputs.
    pub inputs: u64,
    /// The time after which no further input is started.
    pub until: Option<Instant>,
    /// The seed of the mutations.
    pub seed: u64,
}

/// The results of a run on one target.
#[derive(Clone, Debug, Default)]
pub struct TargetStats {
    /// The number of inputs, seeds included.
    pub inputs: u64,
    /// The number of accepted inputs.
    pub accepted: u64,
    /// The kinds of all messages.
    pub shapes: BTreeSet<String>,
    /// The time of the slowest input.
    pub slowest: Duration,
    /// The peak memory of an input in bytes.
    pub peak: u64,
    /// The total time.
    pub time: Duration,
    /// Failures, one of each kind, with the path of the input.
    pub failures: Vec<(String, PathBuf)>,
}

/// Largest number of inputs that are kept beyond the seeds.
const MAX_CORPUS: usize = 1024;
/// Number of failures after which a target is stopped.
const MAX_FAILURES: usize = 10;

/// The files of a target in the folder `corpus` or `regressions` of this crate, by name.
///
/// # Errors
/// If they cannot be read.
pub fn committed(kind: &str, target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    paths.into_iter().map(|path| Ok((path.clone(), fs::read(&path)?))).collect()
}

/// Saves a failing input in a folder, named by its hash; returns the path.
pub fn save_input(folder: &Path, target: &str, input: &[u8]) -> String {
    let name = input.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = folder.join(target).join(format!("{name:016x}"));
    let written = fs::create_dir_all(folder.join(target)).and_then(|()| fs::write(&path, input));
    written.map_or_else(
        |error| format!("{}: {error}", path.display()),
        |()| path.display().to_string(),
    )
}

/// Fuzzes a target.
///
/// Failing inputs are saved in `failures`; the current input is saved in `current`, in case the
/// process dies.
///
/// # Errors
/// If seeds cannot be read, or files cannot be written.
pub fn fuzz_loop(
    target: &Target,
    limits: Limits,
    running_input: &RunningInput,
    failures: &Path,
    current: &Path,
) -> io::Result<TargetStats> {
    let scratch = Scratch::new()?;
    (target.prepare)(&scratch)?;
    let seeds: Vec<Vec<u8>> =
        committed("corpus", target.name)?.into_iter().map(|(_, bytes)| bytes).collect();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut random = Random::new(target.name, limits.seed);
    let mut stats = TargetStats::default();
    let mut file = File::create(current)?;
    let start = Instant::now();
    while stats.inputs < limits.inputs
        && limits.until.is_none_or(|until| Instant::now() < until)
        && stats.failures.len() < MAX_FAILURES
    {
        let input = match seeds.get(stats.inputs as usize) {
            Some(seed) => seed.clone(),
            None => {
                let pick = |random: &mut Random| {
                    let from = if kept.is_empty() || random.once_in(2) { &seeds } else { &kept };
                    random.one(from).map_or(&[][..], Vec::as_slice)
                };
                let (input, other) = (pick(&mut random), pick(&mut random));
                target.structure.mutate(
                    &mut random,
                    input,
                    Material { words: target.words, other, max_length: target.max_length },
                )
            }
        };
        file.rewind()?;
        file.write_all(&input)?;
        file.set_len(input.len() as u64)?;
        running_input.begin(target.name, &input);
        let result = monitor::run(target, &scratch, &input);
        running_input.end();
        stats.inputs += 1;
        stats.slowest = stats.slowest.max(result.time);
        stats.peak = stats.peak.max(result.peak);
        match result.outcome {
            Ok(seen) => {
                stats.accepted += u64::from(seen.accepted);
                if stats.shapes.insert(format!(
                    "{} {}",
                    if seen.accepted { "✓" } else { "✗" },
                    shape(&seen.message)
                )) {
                    if kept.len() < MAX_CORPUS {
                        kept.push(input);
                    } else {
                        let place = random.below(MAX_CORPUS);
                        kept[place] = input;
                    }
                }
            }
            Err(what) => {
                if stats.shapes.insert(format!("✗ {}", shape(&what))) {
                    stats
                        .failures
                        .push((what, PathBuf::from(save_input(failures, target.name, &input))));
                }
            }
        }
    }
    stats.time = start.elapsed();
    Ok(stats)
}
