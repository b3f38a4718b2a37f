//! `timings.json` of a comparison: how long each run took.
//!
//! The duration of a step depends on the records of its lot. So these figures are not private, are
//! marked as such, and are not part of the folder of a run.

use crate::Error;
use crate::report::Marking;
use crate::run::folder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The name of the file.
const FILE: &str = "timings.json";

/// Durations of the runs of a comparison, by the names of their folders.
#[derive(Debug)]
pub(super) struct Timings {
    path: PathBuf,
    content: Content,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    figures: Marking,
    runs: BTreeMap<String, Timing>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timing {
    /// Wall-clock seconds of all processes that worked on the run.
    seconds: f64,
    /// Whether a process is at work, or was killed.
    running: bool,
    /// Whether the time of every process is included.
    complete: bool,
}

impl Timings {
    /// Reads the timings of a comparison; empty if there are none yet.
    pub(super) fn read(out: &Path) -> Result<Self, Error> {
        let path = out.join(FILE);
        let content = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(Error::json(&path))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Content { figures: Marking::NonPrivate, runs: BTreeMap::new() }
            }
            Err(error) => return Err(Error::io(&path)(error)),
        };
        Ok(Self { path, content })
    }

    /// Measures a run that is started, or resumed if `resumes`.
    ///
    /// The entry is written first: if the process is killed, the next one finds it open, and the
    /// run has no duration.
    pub(super) fn measure<T>(
        &mut self,
        name: &str,
        resumes: bool,
        run: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let known = self.content.runs.get(name).filter(|_| resumes);
        let complete = known.map_or(!resumes, |timing| timing.complete && !timing.running);
        let before = known.map_or(0.0, |timing| timing.seconds);
        self.set(name, Timing { seconds: before, running: true, complete })?;
        let start = Instant::now();
        let result = run();
        let seconds = before + start.elapsed().as_secs_f64();
        self.set(name, Timing { seconds, running: false, complete })?;
        result
    }

    /// The duration of a run, if the time of every process is known.
    pub(super) fn seconds(&self, name: &str) -> Option<f64> {
        let timing = self.content.runs.get(name)?;
        (timing.complete && !timing.running).then_some(timing.seconds)
    }

    fn set(&mut self, name: &str, timing: Timing) -> Result<(), Error> {
        self.content.runs.insert(name.into(), timing);
        let text = serde_json::to_string_pretty(&self.content).map_err(Error::Encoding)?;
        folder::write(&self.path, (text + "\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_add_up_unless_a_process_was_killed() {
        let place = tempfile::tempdir().unwrap();
        let mut timings = Timings::read(place.path()).unwrap();
        assert_eq!(timings.seconds("a"), None);
        let stopped: Result<(), _> = timings.measure("a", false, || Err(Error::Stopped));
        assert!(matches!(stopped, Err(Error::Stopped)));
        let first = timings.seconds("a").unwrap();
        let mut timings = Timings::read(place.path()).unwrap();
        timings.measure("a", true, || Ok(())).unwrap();
        assert!(timings.seconds("a").unwrap() >= first);
        let text = std::fs::read_to_string(place.path().join(FILE)).unwrap();
        assert!(text.contains("NON-PRIVATE"), "{text}");
        // A process that was killed leaves its entry open.
        std::fs::write(place.path().join(FILE), text.replace("false", "true")).unwrap();
        let mut timings = Timings::read(place.path()).unwrap();
        assert_eq!(timings.seconds("a"), None);
        timings.measure("a", true, || Ok(())).unwrap();
        assert_eq!(timings.seconds("a"), None);
        // A run that was started without an entry has none either; a new one has.
        timings.measure("b", true, || Ok(())).unwrap();
        assert_eq!(timings.seconds("b"), None);
        timings.measure("a", false, || Ok(())).unwrap();
        assert!(timings.seconds("a").is_some());
    }
}
