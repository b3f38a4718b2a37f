//! What a run is at a step, on disk: parameters and the optimizer's memory, all of it public. A
//! damaged one is recognised.

use crate::Error;
use crate::run::chain::Mark;
use crate::run::disk;
use crate::run::folder;
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
    /// Steps that were made.
    pub step: u64,
    /// The trained tensors.
    pub params: Params,
    /// What the optimizer remembers.
    pub optimizer: State,
    /// A fingerprint of each tensor as it was before the first step.
    pub first: Vec<u64>,
    /// What it belongs to.
    pub belongs: RunIdentity,
}

/// What must not have changed, or gone back, when a run goes on from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunIdentity {
    /// SHA-256 of the configuration, as far as it decides what is trained and charged.
    pub config: String,
    /// A fingerprint of the frozen weights.
    pub frozen: u64,
    /// How far the ledger was.
    pub ledger: Mark,
    /// Lots that were drawn.
    pub draws: u64,
}

/// What stands in the file `snapshot`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    step: u64,
    optimizer: Skeleton,
    first: Vec<u64>,
    belongs: RunIdentity,
    /// SHA-256 of each file.
    files: BTreeMap<String, String>,
}

/// A state without its tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skeleton {
    kind: String,
    /// As bits, so that what is not finite has a written form.
    numbers: BTreeMap<String, u64>,
    /// The indices of the tensors of each name.
    tensors: BTreeMap<String, Vec<usize>>,
    /// The number of shared tensors of each name.
    shared: BTreeMap<String, usize>,
    parts: BTreeMap<String, Skeleton>,
}

const VERSION: u32 = 3;
/// A line with the digest of the rest, which is JSON.
const HEAD: &str = "snapshot";
const PARAMS: &str = "params.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// What is in the three files of a snapshot.
pub(crate) type Files = [Vec<u8>; 3];

/// How many are kept: a damaged one has one before it.
const KEPT: usize = 2;

impl Snapshot {
    /// Writes it into a folder of its own within `folder`, which appears when all of it is on the
    /// disk; only then are older ones removed.
    ///
    /// A snapshot of the same step is not overwritten: the new one gets a name of its own, so that
    /// at every moment there is a whole one.
    ///
    /// # Errors
    /// If the system refuses. What was there is then as it was.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let same: Vec<SnapshotFolder> =
            all(folder)?.into_iter().filter(|place| place.step == self.step).collect();
        if same
            .last()
            .is_some_and(|place| Self::load(&place.path).is_ok_and(|(there, _)| there == *self))
        {
            return Ok(());
        }
        let place = folder.join(match same.last() {
            None => format!("step-{:09}", self.step),
            Some(last) => format!("step-{:09}.{}", self.step, last.version + 1),
        });
        let beside = folder.join(".writing");
        disk::clear(&beside)
            .and_then(|()| disk::create_dir_all(&beside))
            .map_err(Error::io(&beside))?;
        let result = self.write(&beside).and_then(|()| {
            let moved = disk::rename(&beside, &place).and_then(|()| disk::sync_dir(folder));
            moved.map_err(Error::io(&place))
        });
        if result.is_err() {
            // The first error matters more than one of the clean-up.
            let _ = disk::clear(&beside);
            return result;
        }
        disk::finish_removals(folder).map_err(Error::io(folder))?;
        let older =
            all(folder)?.into_iter().rev().filter(|place| place.step != self.step).skip(KEPT - 1);
        for old in same.into_iter().chain(older) {
            disk::remove_dir(&old.path).map_err(Error::io(&old.path))?;
        }
        Ok(())
    }

    fn write(&self, folder: &Path) -> Result<(), Error> {
        let named = self.params.iter().enumerate().map(|(k, tensor)| (k.to_string(), tensor));
        let mut files = BTreeMap::new();
        files.insert(PARAMS.into(), store(&folder.join(PARAMS), named)?);
        let mut tensors = Vec::new();
        let optimizer = skeleton(&self.optimizer, "", &mut tensors);
        files.insert(OPTIMIZER.into(), store(&folder.join(OPTIMIZER), tensors.into_iter())?);
        let head = Written {
            version: VERSION,
            step: self.step,
            optimizer,
            first: self.first.clone(),
            belongs: self.belongs.clone(),
            files,
        };
        let text = serde_json::to_string_pretty(&head).map_err(Error::Encoding)?;
        folder::write(&folder.join(HEAD), format!("{}\n{text}", digest(text.as_bytes())).as_bytes())
    }

    /// The newest that is whole. For each that is not, `said` is told.
    ///
    /// # Errors
    /// If there are some, and none is whole.
    pub fn newest(folder: &Path, said: &mut dyn FnMut(&str)) -> Result<Option<Self>, Error> {
        Ok(Self::newest_with_files(folder, said)?.map(|(snapshot, _)| snapshot))
    }

    /// The same, and its files.
    pub(crate) fn newest_with_files(
        folder: &Path,
        said: &mut dyn FnMut(&str),
    ) -> Result<Option<(Self, Files)>, Error> {
        let all = all(folder)?;
        for place in all.iter().rev() {
            match Self::load(&place.path) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(failed) => {
                    said(&format!("warning: {failed}; the checkpoint before it is used"))
                }
            }
        }
        match all.is_empty() {
            true => Ok(None),
            false => Err(Error::format(folder, "all checkpoints are damaged")),
        }
    }

    fn load(folder: &Path) -> Result<(Self, Files), Error> {
        let damaged =
            |what: &dyn std::fmt::Display| Error::format(folder, format!("damaged: {what}"));
        let read = |name: &str| fs::read(folder.join(name)).map_err(|error| damaged(&error));
        let files = [read(HEAD)?, read(PARAMS)?, read(OPTIMIZER)?];
        Ok((Self::from_files(&files).map_err(|what| damaged(&what))?, files))
    }

    /// From what is in its files, if that is what was written.
    pub(crate) fn from_files([head, params, optimizer]: &Files) -> Result<Self, String> {
        let damaged = |what: &dyn std::fmt::Display| what.to_string();
        let text = std::str::from_utf8(head).map_err(|error| damaged(&error))?;
        let (sum, text) = text.split_once('\n').ok_or_else(|| damaged(&"not whole"))?;
        if digest(text.as_bytes()) != sum {
            return Err(damaged(&format!("{HEAD} is not what was written")));
        }
        let head: Written = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        if head.version != VERSION {
            return Err(damaged(&format!("version {}, {VERSION} expected", head.version)));
        }
        for (name, bytes) in [(PARAMS, params), (OPTIMIZER, optimizer)] {
            let expected =
                head.files.get(name).ok_or_else(|| damaged(&format!("no digest of {name}")))?;
            if digest(bytes) != *expected {
                return Err(damaged(&format!("{name} is not what was written")));
            }
        }
        let params = SafeTensors::deserialize(params).map_err(|error| damaged(&error))?;
        let params = (0..params.len()).map(|k| {
            array(&params, &k.to_string()).ok_or_else(|| damaged(&"a parameter is missing"))
        });
        let params = Params::new(params.collect::<Result<_, _>>()?);
        let tensors = SafeTensors::deserialize(optimizer).map_err(|error| damaged(&error))?;
        let optimizer = state(&head.optimizer, "", &tensors)
            .ok_or_else(|| damaged(&"the optimizer's memory is incomplete"))?;
        Ok(Self { step: head.step, params, optimizer, first: head.first, belongs: head.belongs })
    }
}

/// Where a snapshot is.
struct SnapshotFolder {
    path: PathBuf,
    step: u64,
    /// Of several with the same step, the largest is the newest.
    version: u64,
}

/// The snapshots of a folder, the newest last.
fn all(folder: &Path) -> Result<Vec<SnapshotFolder>, Error> {
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
    found.sort_by_key(|place| (place.step, place.version));
    Ok(found)
}

/// Numbers of a tensor, one after the other.
struct Stored<'a>(&'a Array);

impl View for Stored<'_> {
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

/// Writes tensors; the digest of the file.
fn store<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (String, &'a Array)>,
) -> Result<String, Error> {
    let make = || {
        serialize_to_file(tensors.map(|(name, array)| (name, Stored(array))), None, path).map_err(
            |error| match error {
                SafeTensorError::IoError(source) => Error::io(path)(source),
                other => Error::format(path, other.to_string()),
            },
        )
    };
    disk::produce(path, make, Error::io(path))?;
    digest_file(path)
}

/// SHA-256 of a file, in hexadecimal digits.
pub(crate) fn digest_file(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let (mut sum, mut piece) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut piece).map_err(Error::io(path))? {
            0 => return Ok(hex(&sum.finalize())),
            read => sum.update(&piece[..read]),
        }
    }
}

/// A number that stands for the bits of some tensors.
pub(crate) fn fingerprint<'a>(tensors: impl Iterator<Item = &'a Array>) -> u64 {
    let mut sum = Sha256::new();
    for tensor in tensors {
        for numbers in tensor.data().chunks(1 << 14) {
            sum.update(numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
    }
    u64::from_le_bytes(*sum.finalize().first_chunk().unwrap_or(&[0; 8]))
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn array(tensors: &SafeTensors<'_>, name: &str) -> Option<Array> {
    let view = tensors.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
    let numbers: Vec<f32> =
        view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (numbers.len() == view.shape().iter().product::<usize>())
        .then(|| Array::from_fn(view.shape(), |i| numbers[i]))
}

fn skeleton<'a>(
    state: &'a State,
    within: &str,
    tensors: &mut Vec<(String, &'a Array)>,
) -> Skeleton {
    for (name, list) in &state.tensors {
        tensors.extend(list.iter().map(|(k, tensor)| (format!("{within}{name}.{k}"), tensor)));
    }
    for (name, params) in &state.shared {
        let named = |(k, tensor): (usize, &'a Array)| (shared_key(within, name, k), tensor);
        tensors.extend(params.iter().enumerate().map(named));
    }
    Skeleton {
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
                (name.clone(), skeleton(part, &format!("{within}{name}/"), tensors))
            })
            .collect(),
    }
}

/// The key of a shared tensor, which no other tensor has.
fn shared_key(within: &str, name: &str, k: usize) -> String {
    format!("{within}shared/{name}.{k}")
}

fn state(skeleton: &Skeleton, within: &str, tensors: &SafeTensors<'_>) -> Option<State> {
    let mut state = State::new(&skeleton.kind);
    state.numbers =
        skeleton.numbers.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits))).collect();
    let read = |name: &str, k: usize| array(tensors, &format!("{within}{name}.{k}"));
    for (name, indices) in &skeleton.tensors {
        let each = |&k: &usize| Some((k, read(name, k)?));
        state.tensors.insert(name.clone(), indices.iter().map(each).collect::<Option<_>>()?);
    }
    for (name, count) in &skeleton.shared {
        let tensors = (0..*count)
            .map(|k| array(tensors, &shared_key(within, name, k)))
            .collect::<Option<_>>()?;
        state.shared.insert(name.clone(), Params::new(tensors));
    }
    for (name, part) in &skeleton.parts {
        state.parts.insert(name.clone(), self::state(part, &format!("{within}{name}/"), tensors)?);
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
            first: vec![1, u64::MAX, 3],
            belongs: RunIdentity {
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
        }
    }

    fn silent() -> impl FnMut(&str) {
        |_| ()
    }

    #[test]
    fn what_is_written_is_read() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(Snapshot::newest(place.path(), &mut silent()).unwrap(), None);
        for step in [5, 100, 20] {
            snapshot(step).save(place.path()).unwrap();
        }
        assert_eq!(Snapshot::newest(place.path(), &mut silent()).unwrap(), Some(snapshot(100)));
        // Two are kept.
        assert_eq!(
            all(place.path()).unwrap().iter().map(|place| place.step).collect::<Vec<_>>(),
            [20, 100]
        );
    }

    #[test]
    fn a_damaged_one_is_recognised_and_the_one_before_it_used() {
        for file in [HEAD, PARAMS, OPTIMIZER] {
            for damage in ["flip", "cut", "gone", "empty"] {
                let place = tempfile::tempdir().unwrap();
                snapshot(1).save(place.path()).unwrap();
                snapshot(2).save(place.path()).unwrap();
                let path = place.path().join("step-000000002").join(file);
                let mut bytes = fs::read(&path).unwrap();
                match damage {
                    "flip" => {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 4;
                    }
                    "cut" => bytes.truncate(bytes.len() - 3),
                    _ => bytes.clear(),
                }
                if damage == "gone" {
                    fs::remove_file(&path).unwrap()
                } else {
                    fs::write(&path, bytes).unwrap()
                }
                let mut told = Vec::new();
                let found = Snapshot::newest(place.path(), &mut |what| told.push(what.to_string()))
                    .unwrap();
                assert_eq!(found, Some(snapshot(1)), "{file} {damage}");
                assert!(told.len() == 1 && told[0].contains("damaged"), "{told:?}");
                fs::remove_dir_all(place.path().join("step-000000001")).unwrap();
                assert!(Snapshot::newest(place.path(), &mut silent()).is_err());
            }
        }
    }

    #[test]
    fn a_damaged_one_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        snapshot(1).save(place.path()).unwrap();
        for name in ["step-000000001", "step-000000001.2"] {
            fs::write(place.path().join(name).join(PARAMS), "x").unwrap();
            snapshot(1).save(place.path()).unwrap();
            assert_eq!(Snapshot::newest(place.path(), &mut silent()).unwrap(), Some(snapshot(1)));
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        }
    }

    /// ResumeState at any operation, by a new step or by the same one written again: there is a
    /// whole snapshot.
    #[test]
    fn at_every_moment_there_is_a_whole_one() {
        let first = snapshot(1);
        let other = Snapshot { first: vec![5, 6, 7], ..snapshot(1) };
        for next in [snapshot(2), other] {
            for operation in 0.. {
                let place = tempfile::tempdir().unwrap();
                snapshot(0).save(place.path()).unwrap();
                first.save(place.path()).unwrap();
                // What an interruption before this one may have left.
                fs::create_dir(place.path().join(".removing-step-000000000")).unwrap();
                fs::remove_dir_all(place.path().join("step-000000000")).unwrap();
                disk::fault::fail_from(Some(operation));
                let done = next.save(place.path()).is_ok();
                disk::fault::fail_from(None);
                let found =
                    Snapshot::newest(place.path(), &mut |what| panic!("{operation}: {what}"))
                        .unwrap()
                        .unwrap();
                assert!(found == next || !done && found == first, "{operation}");
                // And what comes after it is saved.
                snapshot(3).save(place.path()).unwrap();
                assert_eq!(
                    Snapshot::newest(place.path(), &mut silent()).unwrap(),
                    Some(snapshot(3))
                );
                assert!(fs::read_dir(place.path()).unwrap().count() <= KEPT, "{operation}");
                if done {
                    assert!(operation > 10, "only {operation} operations");
                    break;
                }
            }
        }
    }

    #[test]
    fn one_that_was_not_finished_is_not_there() {
        let place = tempfile::tempdir().unwrap();
        snapshot(1).save(place.path()).unwrap();
        fs::create_dir(place.path().join(".writing")).unwrap();
        fs::write(place.path().join(".writing").join(HEAD), "half").unwrap();
        assert_eq!(Snapshot::newest(place.path(), &mut silent()).unwrap(), Some(snapshot(1)));
        snapshot(2).save(place.path()).unwrap();
        assert_eq!(Snapshot::newest(place.path(), &mut silent()).unwrap(), Some(snapshot(2)));
    }
}
