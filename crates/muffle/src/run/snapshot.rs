//! A checkpoint of a run on disk: parameters and the optimizer's state, all of it public. Damage is
//! detected by digests.

use crate::Error;
use crate::config::Select;
use crate::run::chain::Mark;
use crate::run::disk;
use crate::run::folder;
use crate::run::selection::{Selection, StepParams};
use optim::State;
use protocol::Params;
use safetensors::tensor::{Dtype, View};
use safetensors::{SafeTensorError, SafeTensors, serialize_to_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use tensor::Array;

/// A run at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Number of steps completed.
    pub step: u64,
    /// The trained tensors.
    pub params: Params,
    /// The state of the optimizer.
    pub optimizer: State,
    /// A fingerprint of each trained tensor before the first step.
    pub initial_fingerprints: Vec<u64>,
    /// The run that it belongs to.
    pub identity: RunIdentity,
    /// The selected parameters so far; `None` if the last ones are released.
    pub selection: Option<Selection>,
}

/// What a resumed run must have in common with its snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunIdentity {
    /// SHA-256 of the configuration, without settings that do not change what is released.
    pub config: String,
    /// A fingerprint of the frozen weights.
    pub frozen: u64,
    /// The position of the ledger.
    pub ledger: Mark,
    /// Number of lots drawn.
    pub draws: u64,
}

/// Why a snapshot is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file `snapshot` is not a line with a digest, followed by text.
    #[error("{HEAD}: expected a digest and JSON in UTF-8")]
    Head,
    /// A file has another digest than was written.
    #[error("{0}: expected the recorded SHA-256, got another")]
    Digest(&'static str),
    /// The file `snapshot` has another structure.
    #[error("{HEAD}: {0}")]
    Json(#[from] serde_json::Error),
    /// The snapshot has another version.
    #[error("{HEAD}: version: expected {VERSION}, got {0}")]
    Version(u32),
    /// A file of tensors cannot be read.
    #[error("{file}: {source}")]
    Tensors {
        /// The file.
        file: &'static str,
        /// The error of the reader.
        source: SafeTensorError,
    },
    /// A tensor is missing, or has another type or length.
    #[error("{0}: a tensor is missing or not f32")]
    MissingTensor(&'static str),
}

/// The content of the file `snapshot`, after the line with its digest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotHead {
    version: u32,
    step: u64,
    optimizer: StateOutline,
    #[serde(rename = "first")]
    initial_fingerprints: Vec<u64>,
    #[serde(rename = "belongs")]
    identity: RunIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selection: Option<SelectionOutline>,
    /// SHA-256 of each file.
    files: BTreeMap<String, String>,
}

/// A selection without its tensors: steps of the parameters.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectionOutline {
    rule: Select,
    /// The step of the best evaluation, and the bits of its figure.
    best: Option<(u64, u64)>,
    chosen: Option<u64>,
    latest: Option<u64>,
}

/// The state of an optimizer without its tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateOutline {
    kind: String,
    /// Bits of each number, because JSON has no infinite numbers.
    numbers: BTreeMap<String, u64>,
    /// The indices of the tensors of each name.
    tensors: BTreeMap<String, Vec<usize>>,
    /// The number of shared tensors of each name.
    shared: BTreeMap<String, usize>,
    parts: BTreeMap<String, StateOutline>,
}

const VERSION: u32 = 3;
/// A line with the digest of the rest, which is JSON.
const HEAD: &str = "snapshot";
const PARAMS: &str = "params.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// Only if parameters are selected.
const SELECTION: &str = "selection.safetensors";

/// The content of three files of a snapshot: head, parameters, optimizer.
///
/// These are all that a process needs to continue; only the first process selects parameters.
pub(crate) type SnapshotFiles = [Vec<u8>; 3];

/// Number of snapshots that are retained: if the last one is damaged, the one before it is used.
const MAX_SNAPSHOTS: usize = 2;

impl Snapshot {
    /// Returns the step and the parameters of the model that a run with this last snapshot
    /// releases.
    pub fn released(&self) -> (u64, &Params) {
        match self.selection.as_ref().and_then(|selection| selection.chosen.as_ref()) {
            Some(chosen) => (chosen.step, &chosen.params),
            None => {
                let average = optim::Optimizer::saved_average(&self.optimizer);
                (self.step, average.unwrap_or(&self.params))
            }
        }
    }

    /// Writes the snapshot into a new subfolder of `folder`, then removes older ones.
    ///
    /// The subfolder gets its name when all of it is on disk. A snapshot of the same step is not
    /// overwritten: the new one gets another name, so that at every moment there is a complete one.
    ///
    /// # Errors
    /// If the system refuses. The existing snapshots are then unchanged.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let same_step: Vec<SnapshotFolder> =
            list_snapshots(folder)?.into_iter().filter(|known| known.step == self.step).collect();
        if same_step
            .last()
            .is_some_and(|last| Self::load(&last.path).is_ok_and(|(saved, _)| saved == *self))
        {
            return Ok(());
        }
        let target = folder.join(match same_step.last() {
            None => format!("step-{:09}", self.step),
            Some(last) => format!("step-{:09}.{}", self.step, last.version + 1),
        });
        let temporary = folder.join(".writing");
        disk::remove_tree(&temporary)
            .and_then(|()| disk::create_dir_all(&temporary))
            .map_err(Error::io(&temporary))?;
        let result = self.write(&temporary).and_then(|()| {
            let moved = disk::rename(&temporary, &target).and_then(|()| disk::sync_dir(folder));
            moved.map_err(Error::io(&target))
        });
        if result.is_err() {
            // The first error matters more than one of the clean-up.
            let _ = disk::remove_tree(&temporary);
            return result;
        }
        disk::finish_removals(folder).map_err(Error::io(folder))?;
        let older = list_snapshots(folder)?
            .into_iter()
            .rev()
            .filter(|known| known.step != self.step)
            .skip(MAX_SNAPSHOTS - 1);
        for old in same_step.into_iter().chain(older) {
            disk::remove_dir(&old.path).map_err(Error::io(&old.path))?;
        }
        Ok(())
    }

    fn write(&self, folder: &Path) -> Result<(), Error> {
        let named = self.params.iter().enumerate().map(|(k, tensor)| (k.to_string(), tensor));
        let mut files = BTreeMap::new();
        files.insert(PARAMS.into(), write_tensors(&folder.join(PARAMS), named)?);
        let mut tensors = Vec::new();
        let optimizer = split_state(&self.optimizer, "", &mut tensors);
        files
            .insert(OPTIMIZER.into(), write_tensors(&folder.join(OPTIMIZER), tensors.into_iter())?);
        if let Some(selection) = &self.selection {
            let tensors = selection_tensors(selection).into_iter();
            files.insert(SELECTION.into(), write_tensors(&folder.join(SELECTION), tensors)?);
        }
        let head = SnapshotHead {
            version: VERSION,
            step: self.step,
            optimizer,
            initial_fingerprints: self.initial_fingerprints.clone(),
            identity: self.identity.clone(),
            selection: self.selection.as_ref().map(|selection| SelectionOutline {
                rule: selection.rule,
                best: selection.best.map(|(step, figure)| (step, figure.to_bits())),
                chosen: selection.chosen.as_ref().map(|chosen| chosen.step),
                latest: selection.latest.as_ref().map(|latest| latest.step),
            }),
            files,
        };
        let text = serde_json::to_string_pretty(&head).map_err(Error::Encoding)?;
        folder::write(&folder.join(HEAD), format!("{}\n{text}", digest(text.as_bytes())).as_bytes())
    }

    /// Loads the newest intact snapshot; `warn` gets a line for each damaged one before it.
    ///
    /// # Errors
    /// If all snapshots are damaged.
    pub fn newest(folder: &Path, warn: &mut dyn FnMut(&str)) -> Result<Option<Self>, Error> {
        Ok(Self::newest_with_files(folder, warn)?.map(|(snapshot, _)| snapshot))
    }

    /// Loads the newest intact snapshot and the content of its files.
    pub(crate) fn newest_with_files(
        folder: &Path,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Option<(Self, SnapshotFiles)>, Error> {
        let snapshots = list_snapshots(folder)?;
        for known in snapshots.iter().rev() {
            match Self::load(&known.path) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(source) => {
                    let damaged = Error::Snapshot { path: known.path.clone(), source };
                    warn(&format!("warning: {damaged}; the checkpoint before it is used"));
                }
            }
        }
        match snapshots.is_empty() {
            true => Ok(None),
            false => Err(Error::format(folder, "all checkpoints are damaged")),
        }
    }

    fn load(folder: &Path) -> Result<(Self, SnapshotFiles), SnapshotError> {
        let read = |file: &'static str| {
            fs::read(folder.join(file)).map_err(|source| SnapshotError::Io { file, source })
        };
        let files = [read(HEAD)?, read(PARAMS)?, read(OPTIMIZER)?];
        let (mut snapshot, head) = Self::parse(&files)?;
        if let Some(outline) = &head.selection {
            let bytes = read(SELECTION)?;
            head.check_digest(SELECTION, &bytes)?;
            let tensors = parse_tensors(SELECTION, &bytes)?;
            let selection = join_selection(outline, &tensors, snapshot.params.len());
            snapshot.selection = Some(selection.ok_or(SnapshotError::MissingTensor(SELECTION))?);
        }
        Ok((snapshot, files))
    }

    /// Parses a snapshot from the content of its files, if their digests match.
    ///
    /// The selected parameters are not in these files.
    pub(crate) fn from_files(files: &SnapshotFiles) -> Result<Self, SnapshotError> {
        Ok(Self::parse(files)?.0)
    }

    fn parse(files: &SnapshotFiles) -> Result<(Self, SnapshotHead), SnapshotError> {
        let [head, params, optimizer] = files;
        let text = std::str::from_utf8(head).map_err(|_| SnapshotError::Head)?;
        let (stated, text) = text.split_once('\n').ok_or(SnapshotError::Head)?;
        if digest(text.as_bytes()) != stated {
            return Err(SnapshotError::Digest(HEAD));
        }
        let head: SnapshotHead = serde_json::from_str(text)?;
        if head.version != VERSION {
            return Err(SnapshotError::Version(head.version));
        }
        for (name, bytes) in [(PARAMS, params), (OPTIMIZER, optimizer)] {
            head.check_digest(name, bytes)?;
        }
        let params = parse_tensors(PARAMS, params)?;
        let missing = || SnapshotError::MissingTensor(PARAMS);
        let params =
            (0..params.len()).map(|k| read_tensor(&params, &k.to_string()).ok_or_else(missing));
        let params = Params::new(params.collect::<Result<_, _>>()?);
        let optimizer = join_state(&head.optimizer, "", &parse_tensors(OPTIMIZER, optimizer)?)
            .ok_or(SnapshotError::MissingTensor(OPTIMIZER))?;
        let snapshot = Self {
            step: head.step,
            params,
            optimizer,
            initial_fingerprints: head.initial_fingerprints.clone(),
            identity: head.identity.clone(),
            selection: None,
        };
        Ok((snapshot, head))
    }
}

impl SnapshotHead {
    fn check_digest(&self, name: &'static str, bytes: &[u8]) -> Result<(), SnapshotError> {
        match self.files.get(name) {
            Some(expected) if digest(bytes) == *expected => Ok(()),
            _ => Err(SnapshotError::Digest(name)),
        }
    }
}

/// The tensors of a selection, named by their role.
fn selection_tensors(selection: &Selection) -> Vec<(String, &Array)> {
    let named = [("chosen", &selection.chosen), ("latest", &selection.latest)];
    let present = named.into_iter().filter_map(|(name, at)| Some((name, at.as_ref()?)));
    present
        .flat_map(|(name, at)| {
            at.params.iter().enumerate().map(move |(k, tensor)| (format!("{name}.{k}"), tensor))
        })
        .collect()
}

/// Rebuilds a selection of parameters with `count` tensors; `None` if one is missing.
fn join_selection(
    outline: &SelectionOutline,
    tensors: &SafeTensors<'_>,
    count: usize,
) -> Option<Selection> {
    let read = |name: &str, step: Option<u64>| {
        let tensor = |k| read_tensor(tensors, &format!("{name}.{k}"));
        Some(match step {
            None => None,
            Some(step) => {
                let params = Params::new((0..count).map(tensor).collect::<Option<_>>()?);
                Some(StepParams { step, params })
            }
        })
    };
    Some(Selection {
        rule: outline.rule,
        best: outline.best.map(|(step, bits)| (step, f64::from_bits(bits))),
        chosen: read("chosen", outline.chosen)?,
        latest: read("latest", outline.latest)?,
    })
}

fn parse_tensors<'a>(
    file: &'static str,
    bytes: &'a [u8],
) -> Result<SafeTensors<'a>, SnapshotError> {
    SafeTensors::deserialize(bytes).map_err(|source| SnapshotError::Tensors { file, source })
}

/// The folder of a snapshot, parsed from its name.
struct SnapshotFolder {
    path: PathBuf,
    step: u64,
    /// Of several with the same step, the largest is the newest.
    version: u64,
}

/// Lists the snapshots of a folder, the newest last.
fn list_snapshots(folder: &Path) -> Result<Vec<SnapshotFolder>, Error> {
    let parse = |name: &str| {
        let name = name.strip_prefix("step-")?;
        let (step, version) = name.split_once('.').unwrap_or((name, "1"));
        Some((step.parse().ok()?, version.parse().ok()?))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        let numbers = path.file_name().and_then(|name| parse(name.to_str()?));
        found.extend(numbers.map(|(step, version)| SnapshotFolder { path, step, version }));
    }
    found.sort_by_key(|known| (known.step, known.version));
    Ok(found)
}

/// An array as the safetensors library reads it.
struct ArrayView<'a>(&'a Array);

impl View for ArrayView<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.data().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn data_len(&self) -> usize {
        self.0.len() * 4
    }
}

/// Writes tensors to a file and returns its digest.
fn write_tensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (String, &'a Array)>,
) -> Result<String, Error> {
    let write_file = || {
        serialize_to_file(tensors.map(|(name, array)| (name, ArrayView(array))), None, path)
            .map_err(|error| match error {
                SafeTensorError::IoError(source) => Error::io(path)(source),
                other => Error::format(path, other.to_string()),
            })
    };
    disk::write_with(path, write_file, Error::io(path))?;
    digest_file(path)
}

/// SHA-256 of a file, in hexadecimal digits.
pub(crate) fn digest_file(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).map_err(Error::io(path))? {
            0 => return Ok(hex(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// The first 64 bits of the SHA-256 of the elements of some tensors.
pub(crate) fn fingerprint<'a>(tensors: impl Iterator<Item = &'a Array>) -> u64 {
    let mut hasher = Sha256::new();
    for tensor in tensors {
        for elements in tensor.data().chunks(1 << 14) {
            hasher.update(elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
    }
    u64::from_le_bytes(*hasher.finalize().first_chunk().unwrap_or(&[0; 8]))
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal digits of some bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a tensor by its name; `None` if it is missing or not f32.
fn read_tensor(tensors: &SafeTensors<'_>, name: &str) -> Option<Array> {
    let view = tensors.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
    let elements: Vec<f32> =
        view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (elements.len() == view.shape().iter().product::<usize>())
        .then(|| Array::from_fn(view.shape(), |i| elements[i]))
}

/// Splits a state into its outline and its tensors, whose names start with `prefix`.
fn split_state<'a>(
    state: &'a State,
    prefix: &str,
    tensors: &mut Vec<(String, &'a Array)>,
) -> StateOutline {
    for (name, list) in &state.tensors {
        tensors.extend(list.iter().map(|(k, tensor)| (format!("{prefix}{name}.{k}"), tensor)));
    }
    for (name, params) in &state.shared {
        let named = |(k, tensor): (usize, &'a Array)| (shared_key(prefix, name, k), tensor);
        tensors.extend(params.iter().enumerate().map(named));
    }
    StateOutline {
        kind: state.kind.clone(),
        numbers: state
            .numbers
            .iter()
            .map(|(name, number)| (name.clone(), number.to_bits()))
            .collect(),
        tensors: state
            .tensors
            .iter()
            .map(|(name, tensors)| (name.clone(), tensors.indices().collect()))
            .collect(),
        shared: state.shared.iter().map(|(name, list)| (name.clone(), list.len())).collect(),
        parts: state
            .parts
            .iter()
            .map(|(name, part)| {
                (name.clone(), split_state(part, &format!("{prefix}{name}/"), tensors))
            })
            .collect(),
    }
}

/// The key of a shared tensor, which no other tensor has.
fn shared_key(prefix: &str, name: &str, k: usize) -> String {
    format!("{prefix}shared/{name}.{k}")
}

/// Rebuilds a state from its outline and its tensors; `None` if a tensor is missing.
fn join_state(outline: &StateOutline, prefix: &str, tensors: &SafeTensors<'_>) -> Option<State> {
    let mut state = State::new(&outline.kind);
    state.numbers =
        outline.numbers.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits))).collect();
    let read = |name: &str, k: usize| read_tensor(tensors, &format!("{prefix}{name}.{k}"));
    for (name, indices) in &outline.tensors {
        let each = |&k: &usize| Some((k, read(name, k)?));
        state.tensors.insert(name.clone(), indices.iter().map(each).collect::<Option<_>>()?);
    }
    for (name, count) in &outline.shared {
        let tensors = (0..*count)
            .map(|k| read_tensor(tensors, &shared_key(prefix, name, k)))
            .collect::<Option<_>>()?;
        state.shared.insert(name.clone(), Params::new(tensors));
    }
    for (name, part) in &outline.parts {
        state.parts.insert(name.clone(), join_state(part, &format!("{prefix}{name}/"), tensors)?);
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::TensorMap;

    fn snapshot(step: u64) -> Snapshot {
        let tensor = |shape: &[usize]| Array::from_fn(shape, |i| i as f32 + step as f32 * 0.5);
        let mut optimizer = State::new("optimizer");
        optimizer.numbers.insert("steps".into(), step as f64);
        optimizer.numbers.insert("rate".into(), f64::INFINITY);
        let mut part = State::new("adam");
        let m = [(0, tensor(&[2, 3])), (2, tensor(&[4]))];
        part.tensors.insert("m".into(), m.into_iter().collect());
        part.tensors.insert("none".into(), TensorMap::new());
        part.shared.insert("center".into(), Params::new(vec![tensor(&[2]), tensor(&[0])]));
        optimizer.parts.insert("descent".into(), part);
        Snapshot {
            step,
            params: Params::new(vec![tensor(&[2, 3]), tensor(&[0]), tensor(&[4])]),
            optimizer,
            initial_fingerprints: vec![1, u64::MAX, 3],
            identity: RunIdentity {
                config: "x".into(),
                frozen: 7,
                ledger: Mark {
                    run_id: "r".into(),
                    entries: step + 1,
                    charges: step,
                    head: "h".into(),
                },
                draws: 2 * step,
            },
            selection: None,
        }
    }

    /// A snapshot of a run that selects checkpoints.
    fn selecting(step: u64) -> Snapshot {
        let at = |step: u64| StepParams { step, params: snapshot(step).params };
        Snapshot {
            selection: Some(Selection {
                rule: Select::NearestBestNll,
                best: Some((step, 0.1 + 0.2)),
                chosen: (step > 0).then(|| at(step - 1)),
                latest: Some(at(step)),
            }),
            ..snapshot(step)
        }
    }

    fn silent() -> impl FnMut(&str) {
        |_| ()
    }

    #[test]
    fn snapshots_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Snapshot::newest(folder.path(), &mut silent()).unwrap(), None);
        for step in [5, 100, 20] {
            snapshot(step).save(folder.path()).unwrap();
        }
        assert_eq!(Snapshot::newest(folder.path(), &mut silent()).unwrap(), Some(snapshot(100)));
        // Two are kept.
        assert_eq!(
            list_snapshots(folder.path())
                .unwrap()
                .iter()
                .map(|known| known.step)
                .collect::<Vec<_>>(),
            [20, 100]
        );
    }

    #[test]
    fn selections_round_trip() {
        for step in [0, 5] {
            let folder = tempfile::tempdir().unwrap();
            selecting(step).save(folder.path()).unwrap();
            let (read, files) =
                Snapshot::newest_with_files(folder.path(), &mut silent()).unwrap().unwrap();
            assert_eq!(read, selecting(step));
            // Other processes get no selection.
            assert_eq!(Snapshot::from_files(&files).unwrap(), snapshot(step));
            // Another selection at the same step is saved.
            snapshot(step).save(folder.path()).unwrap();
            let newest = Snapshot::newest(folder.path(), &mut silent()).unwrap();
            assert_eq!(newest, Some(snapshot(step)));
        }
    }

    #[test]
    fn a_damaged_snapshot_is_detected_and_the_one_before_it_used() {
        for file in [HEAD, PARAMS, OPTIMIZER, SELECTION] {
            for damage in ["flip", "last", "cut", "gone", "empty"] {
                let folder = tempfile::tempdir().unwrap();
                snapshot(1).save(folder.path()).unwrap();
                selecting(2).save(folder.path()).unwrap();
                let path = folder.path().join("step-000000002").join(file);
                let mut bytes = fs::read(&path).unwrap();
                match damage {
                    "flip" => {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 4;
                    }
                    "last" => *bytes.last_mut().unwrap() ^= 4,
                    "cut" => bytes.truncate(bytes.len() - 3),
                    _ => bytes.clear(),
                }
                if damage == "gone" {
                    fs::remove_file(&path).unwrap()
                } else {
                    fs::write(&path, bytes).unwrap()
                }
                let mut warnings = Vec::new();
                let newest =
                    Snapshot::newest(folder.path(), &mut |line| warnings.push(line.to_string()));
                assert_eq!(newest.unwrap(), Some(snapshot(1)), "{file} {damage}");
                assert!(warnings.len() == 1 && warnings[0].contains("damaged"), "{warnings:?}");
                fs::remove_dir_all(folder.path().join("step-000000001")).unwrap();
                assert!(Snapshot::newest(folder.path(), &mut silent()).is_err());
            }
        }
    }

    #[test]
    fn a_damaged_snapshot_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        snapshot(1).save(folder.path()).unwrap();
        for name in ["step-000000001", "step-000000001.2"] {
            fs::write(folder.path().join(name).join(PARAMS), "x").unwrap();
            snapshot(1).save(folder.path()).unwrap();
            assert_eq!(Snapshot::newest(folder.path(), &mut silent()).unwrap(), Some(snapshot(1)));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    /// After an interruption at any operation, of a new step or of the same step written again,
    /// there is a complete snapshot.
    #[test]
    fn at_every_moment_there_is_a_complete_snapshot() {
        let first = snapshot(1);
        let other = Snapshot { initial_fingerprints: vec![5, 6, 7], ..snapshot(1) };
        for next in [snapshot(2), selecting(2), other] {
            for operation in 0.. {
                let folder = tempfile::tempdir().unwrap();
                snapshot(0).save(folder.path()).unwrap();
                first.save(folder.path()).unwrap();
                // What an interruption before this one may have left.
                fs::create_dir(folder.path().join(".removing-step-000000000")).unwrap();
                fs::remove_dir_all(folder.path().join("step-000000000")).unwrap();
                disk::fault::fail_from(Some(operation));
                let done = next.save(folder.path()).is_ok();
                disk::fault::fail_from(None);
                let found =
                    Snapshot::newest(folder.path(), &mut |what| panic!("{operation}: {what}"))
                        .unwrap()
                        .unwrap();
                assert!(found == next || !done && found == first, "{operation}");
                // A later snapshot is saved as usual.
                snapshot(3).save(folder.path()).unwrap();
                assert_eq!(
                    Snapshot::newest(folder.path(), &mut silent()).unwrap(),
                    Some(snapshot(3))
                );
                assert!(
                    fs::read_dir(folder.path()).unwrap().count() <= MAX_SNAPSHOTS,
                    "{operation}"
                );
                if done {
                    assert!(operation > 10, "only {operation} operations");
                    break;
                }
            }
        }
    }

    #[test]
    fn an_unfinished_snapshot_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        snapshot(1).save(folder.path()).unwrap();
        fs::create_dir(folder.path().join(".writing")).unwrap();
        fs::write(folder.path().join(".writing").join(HEAD), "half").unwrap();
        assert_eq!(Snapshot::newest(folder.path(), &mut silent()).unwrap(), Some(snapshot(1)));
        snapshot(2).save(folder.path()).unwrap();
        assert_eq!(Snapshot::newest(folder.path(), &mut silent()).unwrap(), Some(snapshot(2)));
    }
}
