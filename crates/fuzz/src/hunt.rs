//! The loop: damage an input, run it, keep it if it went a way that none went before.

use crate::chance::Chance;
use crate::mutate::Material;
use crate::scratch::Scratch;
use crate::shape::shape;
use crate::target::Target;
use crate::watch::{self, Slot};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Inputs.
    pub inputs: u64,
    /// No further input after this.
    pub until: Option<Instant>,
    /// Where the damage comes from.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Inputs that were run, seeds included.
    pub inputs: u64,
    /// Those that were accepted.
    pub accepted: u64,
    /// The shapes of all messages.
    pub shapes: BTreeSet<String>,
    /// The slowest input.
    pub slowest: Duration,
    /// The most bytes that one held at a time.
    pub peak: u64,
    /// All of them together.
    pub time: Duration,
    /// What went wrong, once for each way in which it did, and where the input is.
    pub failures: Vec<(String, PathBuf)>,
}

/// Inputs that are kept, beyond the seeds.
const MOST_KEPT: usize = 1024;
/// Failures after which a target is given up.
const MOST_FAILURES: usize = 10;

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

/// Puts an input that did harm into a folder, under a name made of its bytes.
pub fn keep(folder: &Path, target: &str, input: &[u8]) -> String {
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

/// Runs a target. Inputs that do harm are put into `failures`; what runs at the moment lies in
/// `current`, should the process not survive it.
///
/// # Errors
/// If seeds cannot be read or files not written.
pub fn hunt(
    target: &Target,
    effort: Effort,
    slot: &Slot,
    failures: &Path,
    current: &Path,
) -> io::Result<Tally> {
    let scratch = Scratch::new()?;
    (target.prepare)(&scratch)?;
    let seeds: Vec<Vec<u8>> =
        committed("corpus", target.name)?.into_iter().map(|(_, bytes)| bytes).collect();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut chance = Chance::new(target.name, effort.seed);
    let mut tally = Tally::default();
    let mut file = File::create(current)?;
    let start = Instant::now();
    while tally.inputs < effort.inputs
        && effort.until.is_none_or(|until| Instant::now() < until)
        && tally.failures.len() < MOST_FAILURES
    {
        let input = match seeds.get(tally.inputs as usize) {
            Some(seed) => seed.clone(),
            None => {
                let pick = |chance: &mut Chance| {
                    let from = if kept.is_empty() || chance.once_in(2) { &seeds } else { &kept };
                    chance.one(from).map_or(&[][..], Vec::as_slice)
                };
                let (input, other) = (pick(&mut chance), pick(&mut chance));
                target.structure.damage(
                    &mut chance,
                    input,
                    Material { words: target.words, other, longest: target.longest },
                )
            }
        };
        file.rewind()?;
        file.write_all(&input)?;
        file.set_len(input.len() as u64)?;
        slot.begin(target.name, &input);
        let result = watch::run(target, &scratch, &input);
        slot.end();
        tally.inputs += 1;
        tally.slowest = tally.slowest.max(result.time);
        tally.peak = tally.peak.max(result.peak);
        match result.seen {
            Ok(seen) => {
                tally.accepted += u64::from(seen.accepted);
                if tally.shapes.insert(format!(
                    "{} {}",
                    if seen.accepted { "✓" } else { "✗" },
                    shape(&seen.said)
                )) {
                    if kept.len() < MOST_KEPT {
                        kept.push(input);
                    } else {
                        let place = chance.below(MOST_KEPT);
                        kept[place] = input;
                    }
                }
            }
            Err(what) => {
                if tally.shapes.insert(format!("✗ {}", shape(&what))) {
                    tally.failures.push((what, PathBuf::from(keep(failures, target.name, &input))));
                }
            }
        }
    }
    tally.time = start.elapsed();
    Ok(tally)
}
