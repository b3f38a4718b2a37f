//! Finds the folders of runs and gives them short names.
//!
//! Folders are searched to a depth of three, without following symbolic links. An id, once given,
//! stays with its folder as long as the board runs.

use crate::display_name;
use crate::pace::Pace;
use crate::spent::Spent;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How deep below a given folder runs are found.
const DEPTH: usize = 3;

/// The largest number of folders that are looked into.
const MAX_FOLDERS: usize = 5_000;

/// The largest number of runs that are shown.
pub(crate) const MAX_RUNS: usize = 500;

/// The least time between two searches.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// At most this share of the time is spent on searches: one part in so many.
const SEARCH_SHARE: u32 = 20;

/// Folders without runs inside: those of a run, and of build tools.
const SKIPPED: [&str; 6] =
    ["sealed", "checkpoints", "model", "tokenizer", "target", "node_modules"];

/// A run that was found.
#[derive(Debug)]
pub(crate) struct FoundRun {
    /// The name by which requests refer to it.
    pub(crate) id: String,
    /// The name that is shown: its path below the given folder.
    pub(crate) name: String,
    /// Canonical.
    pub(crate) path: PathBuf,
    /// Whether the last search found it.
    present: bool,
    /// How fast it trains.
    pub(crate) pace: Pace,
    /// The ε that it has spent.
    pub(crate) spent: Spent,
}

/// All runs that were found.
pub(crate) struct Catalog {
    roots: Vec<PathBuf>,
    runs: Vec<FoundRun>,
    /// When the next search is due.
    next_search: Option<Instant>,
    /// Whether the last search ended at a limit.
    pub(crate) incomplete: bool,
}

impl Catalog {
    /// A catalog of runs below these canonical paths.
    pub(crate) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, runs: Vec::new(), next_search: None, incomplete: false }
    }

    /// The runs that exist, by name. Searches again if the last search is too old.
    pub(crate) fn runs(&mut self) -> impl Iterator<Item = &mut FoundRun> {
        if self.next_search.is_none_or(|next| Instant::now() >= next) {
            self.search();
        }
        self.runs.iter_mut().filter(|run| run.present)
    }

    /// The path and name of a run by its id.
    pub(crate) fn find(&self, id: &str) -> Option<(PathBuf, String)> {
        let known = self.runs.iter().find(|run| run.present && run.id == id)?;
        Some((known.path.clone(), known.name.clone()))
    }

    fn search(&mut self) {
        let start = Instant::now();
        let mut search = Search { found: Vec::new(), folders: 0, incomplete: false };
        for root in &self.roots {
            search.walk(root, DEPTH);
        }
        self.incomplete = search.incomplete;
        self.runs.iter_mut().for_each(|run| run.present = false);
        for path in search.found {
            match self.runs.iter_mut().find(|run| run.path == path) {
                Some(known) => known.present = true,
                None => {
                    let id = format!("r{}", self.runs.len() + 1);
                    let name = self.name(&path);
                    let (pace, spent) = (Pace::default(), Spent::default());
                    self.runs.push(FoundRun { id, name, path, present: true, pace, spent });
                }
            }
        }
        let pause = SEARCH_EVERY.max(start.elapsed() * SEARCH_SHARE);
        self.next_search = Some(Instant::now() + pause);
    }

    /// The path below its root; the name of the root comes first if there are several.
    fn name(&self, path: &Path) -> String {
        let root = self.roots.iter().find(|root| path.starts_with(root));
        let below = root.and_then(|root| path.strip_prefix(root).ok()).unwrap_or(path);
        let below = below.to_string_lossy();
        match (root, below.is_empty(), self.roots.len()) {
            (Some(root), true, _) => display_name(root),
            (Some(root), false, 2..) => format!("{}/{below}", display_name(root)),
            _ => below.into_owned(),
        }
    }
}

/// A search through folders.
struct Search {
    found: Vec<PathBuf>,
    folders: usize,
    incomplete: bool,
}

impl Search {
    fn add(&mut self, run: &Path) {
        if !self.found.iter().any(|known| known == run) {
            self.found.push(run.into());
        }
    }

    /// Adds the run in a folder, or those in the folders below it.
    fn walk(&mut self, folder: &Path, depth: usize) {
        if self.folders >= MAX_FOLDERS || self.found.len() >= MAX_RUNS {
            self.incomplete = true;
            return;
        }
        self.folders += 1;
        if is_run(folder) {
            self.add(folder);
            // The run without privacy beside one on the embedded records.
            let reference = folder.join("reference");
            if fs::symlink_metadata(&reference).is_ok_and(|it| it.is_dir()) && is_run(&reference) {
                self.add(&reference);
            }
            return;
        }
        let Some(depth) = depth.checked_sub(1) else { return };
        // A folder that cannot be read has no runs to show.
        let Ok(entries) = fs::read_dir(folder) else { return };
        let mut below: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            // The kind of the entry itself: a symbolic link is not a folder.
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                !name.starts_with('.') && !SKIPPED.contains(&name.as_ref())
            })
            .take(MAX_FOLDERS)
            .map(|entry| entry.path())
            .collect();
        below.sort();
        below.iter().for_each(|folder| self.walk(folder, depth));
    }
}

/// Whether a folder holds a run: a configuration, and a ledger or a lock.
fn is_run(folder: &Path) -> bool {
    let exists = |name: &str| fs::symlink_metadata(folder.join(name)).is_ok();
    exists("config.toml") && (exists("ledger.json") || exists(".lock"))
}
