//! Records that do not fit into memory, in an unnamed temporary file.
//!
//! The file has no path by which another process could open it, and is gone when the process ends.

use crate::Records;
use engine::{Combination, Example, Input, Part, Target};
use protocol::Refused;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Collects the places of a data set one by one: in memory up to a limit, then in a file.
///
/// ```
/// use curator::Collector;
/// use engine::Example;
///
/// // At most 1 MiB in memory.
/// let mut collector = Collector::new(&std::env::temp_dir(), 1 << 20);
/// collector.push(Some(Example::features(vec![0.5], 1)))?;
/// collector.push(None)?;
/// assert_eq!(collector.finish()?.places(), 2);
/// # Ok::<(), protocol::Refused>(())
/// ```
pub struct Collector {
    folder: PathBuf,
    max_bytes: usize,
    memory: Vec<Option<Example>>,
    /// Bytes of the places in memory.
    bytes: usize,
    /// Holds all places once the limit is exceeded.
    file: Option<SpillWriter>,
}

/// The file while it is written.
struct SpillWriter {
    file: BufWriter<File>,
    /// See [`Spill::ends`].
    ends: Vec<u64>,
    /// The end of the last record.
    end: u64,
}

impl Collector {
    /// Creates a collector that holds about `max_bytes` bytes in memory.
    ///
    /// The file is created in `folder`, which must be on a disk that may hold such data.
    pub fn new(folder: &Path, max_bytes: usize) -> Self {
        Self { folder: folder.into(), max_bytes, memory: Vec::new(), bytes: 0, file: None }
    }

    /// Adds the next place: its record, or `None` if it is vacant.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn push(&mut self, place: Option<Example>) -> Result<(), Refused> {
        if self.file.is_none() {
            self.bytes += size_of::<Option<Example>>() + place.as_ref().map_or(0, size_in_memory);
            self.memory.push(place);
            return if self.bytes > self.max_bytes { self.spill() } else { Ok(()) };
        }
        self.write(place.as_ref())
    }

    /// Returns the number of places, taken or vacant.
    pub fn len(&self) -> usize {
        self.memory.len() + self.file.as_ref().map_or(0, |file| file.ends.len())
    }

    /// Whether there are no places.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the records.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> Result<Records, Refused> {
        let Some(writer) = self.file else { return Ok(Records::with_vacancies(self.memory)) };
        let file = writer.file.into_inner().map_err(|error| failed(&error))?;
        Ok(Records::spilled(Spill { file: Mutex::new(file), ends: writer.ends }))
    }

    /// Moves all places from memory to a new file.
    fn spill(&mut self) -> Result<(), Refused> {
        let file = tempfile::tempfile_in(&self.folder).map_err(|error| failed(&error))?;
        self.file = Some(SpillWriter { file: BufWriter::new(file), ends: Vec::new(), end: 0 });
        std::mem::take(&mut self.memory).iter().try_for_each(|place| self.write(place.as_ref()))
    }

    /// Appends a place to the file.
    fn write(&mut self, place: Option<&Example>) -> Result<(), Refused> {
        let Some(writer) = &mut self.file else { return Ok(()) };
        // A vacant place takes no bytes; every record takes some.
        let encoded = place.map(encode).unwrap_or_default();
        writer.file.write_all(&encoded).map_err(|error| failed(&error))?;
        writer.end += encoded.len() as u64;
        writer.ends.push(writer.end);
        Ok(())
    }
}

/// A file of records.
pub(crate) struct Spill {
    file: Mutex<File>,
    /// The offset in the file at which each place ends. A vacant place takes no bytes.
    ends: Vec<u64>,
}

impl Spill {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the record in a place; `None` if the place is vacant.
    pub(crate) fn at(&self, place: usize) -> Result<Option<Example>, Refused> {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        if self.ends[place] == start {
            return Ok(None);
        }
        let mut encoded = vec![0; (self.ends[place] - start) as usize];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut encoded))
            .map_err(|error| failed(&error))?;
        decode(&encoded).map(Some).ok_or_else(|| failed(&"its content has changed"))
    }
}

fn failed(error: &dyn std::fmt::Display) -> Refused {
    Refused::Failed(format!("temporary file of records: {error}"))
}

/// Returns about how many bytes the values of an example take.
fn size_in_memory(example: &Example) -> usize {
    let size = |part: &Part| {
        let targets = match &part.target {
            Target::Next(targets) | Target::Labels(targets) => targets.len(),
            Target::Class(_) | Target::Value(_) => 1,
        };
        size_of::<Part>() + 4 * (part.input.len() + targets)
    };
    example.parts().iter().map(size).sum()
}

/// Encodes an example as 32-bit words: the combination of its parts, then each part.
fn encode(example: &Example) -> Vec<u8> {
    let combination = match example.combination() {
        Combination::Mean => 0,
        Combination::Sum => 1,
    };
    let words = std::iter::once(combination).chain(example.parts().iter().flat_map(part_words));
    words.flat_map(u32::to_le_bytes).collect()
}

/// Encodes a part as 32-bit words: the counts of inputs and targets, their kinds, the values.
fn part_words(part: &Part) -> Vec<u32> {
    let (inputs, input_kind): (Vec<u32>, u32) = match &part.input {
        Input::Tokens(tokens) => (tokens.clone(), 0),
        Input::Features(features) => (features.iter().map(|x| x.to_bits()).collect(), 1),
    };
    let (targets, target_kind) = match &part.target {
        Target::Next(targets) => (targets.clone(), 0),
        Target::Class(class) => (vec![*class], 1),
        Target::Labels(labels) => (labels.clone(), 2),
        Target::Value(value) => (vec![value.to_bits()], 3),
    };
    let head = [inputs.len() as u32, targets.len() as u32, input_kind | target_kind << 1];
    [&head, &inputs[..], &targets].concat()
}

/// Decodes an example; `None` if the words are invalid.
fn decode(encoded: &[u8]) -> Option<Example> {
    let words: Vec<u32> =
        encoded.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let (&combination, mut words) = words.split_first()?;
    let combination = match combination {
        0 => Combination::Mean,
        1 => Combination::Sum,
        _ => return None,
    };
    let mut parts = Vec::new();
    while !words.is_empty() {
        let (part, rest) = decode_part(words)?;
        parts.push(part.into());
        words = rest;
    }
    Example::combined(parts, combination)
}

/// Decodes the first part and returns it with the other words; `None` if they are invalid.
fn decode_part(words: &[u32]) -> Option<(Part, &[u32])> {
    let (&[inputs, targets, kind], rest) = words.split_first_chunk::<3>()?;
    let (inputs, rest) = rest.split_at_checked(inputs as usize)?;
    let (targets, rest) = rest.split_at_checked(targets as usize)?;
    let input = if kind & 1 == 0 {
        Input::Tokens(inputs.to_vec())
    } else {
        Input::Features(inputs.iter().map(|&x| f32::from_bits(x)).collect())
    };
    let target = match kind >> 1 {
        0 => Target::Next(targets.to_vec()),
        1 => Target::Class(*targets.first()?),
        2 => Target::Labels(targets.to_vec()),
        3 => Target::Value(f32::from_bits(*targets.first()?)),
        _ => return None,
    };
    Some((Part { input, target }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Example> {
        let mut list: Vec<Example> = (0..40u32)
            .map(|i| Example::continuation((0..i % 7).map(|t| t * i).collect(), (i % 3) as usize))
            .collect();
        list.push(Example::labelled(vec![1, 2, 3], 4));
        list.push(Example::new(Input::Tokens(vec![1, 2]), Target::Labels(vec![0, 5])));
        list.push(Example::new(Input::Features(vec![0.5]), Target::Labels(Vec::new())));
        list.push(Example::new(Input::Tokens(vec![3]), Target::Value(-0.5)));
        list.push(Example::features(vec![0.5, -0.0, f32::NAN], 1));
        list.push(Example::labelled(vec![], 0));
        for combination in [Combination::Mean, Combination::Sum] {
            let parts = [list[3].clone(), list[5].clone(), list[45].clone()];
            list.extend(Example::combined(parts, combination));
        }
        list
    }

    /// The encoded example: its bits are compared, so that NaN is equal to itself.
    /// Returns the encoding without the combination, which is compared by itself.
    fn bits_of(example: &Example) -> (Combination, Vec<u8>) {
        (example.combination(), encode(example).split_off(4))
    }

    /// The examples, with vacant places at the beginning, at the end and between them.
    fn places() -> Vec<Option<Example>> {
        let taken = examples().into_iter().enumerate().flat_map(|(i, example)| {
            if i % 5 == 0 { vec![None, Some(example)] } else { vec![Some(example)] }
        });
        taken.chain([None, None]).collect()
    }

    #[test]
    fn places_come_back_from_the_file_as_they_went_in() {
        for most in [0, 300, 1 << 20] {
            let folder = std::env::temp_dir();
            let mut collector = Collector::new(&folder, most);
            places().into_iter().for_each(|place| collector.push(place).unwrap());
            let count = places().len();
            assert_eq!(
                (collector.len(), collector.is_empty(), collector.file.is_some()),
                (count, false, most < 1 << 20)
            );
            let records = collector.finish().unwrap();
            assert_eq!((records.places(), count), (count, 60));
            for (place, expected) in places().iter().enumerate().rev() {
                let found = records.at(place).unwrap();
                assert_eq!(
                    found.as_deref().map(bits_of),
                    expected.as_ref().map(bits_of),
                    "{place}"
                );
            }
            let records = records.and_places(vec![None, Some(examples()[3].clone())]);
            assert_eq!(records.places(), count + 2);
            assert!(records.at(count).unwrap().is_none());
            assert_eq!(bits_of(&records.at(count + 1).unwrap().unwrap()), bits_of(&examples()[3]));
            assert_eq!(bits_of(&records.at(count - 3).unwrap().unwrap()), bits_of(&examples()[47]));
        }
    }

    #[test]
    fn a_data_set_can_be_all_vacant() {
        for most in [0, 1 << 20] {
            let mut collector = Collector::new(&std::env::temp_dir(), most);
            (0..3).for_each(|_| collector.push(None).unwrap());
            let records = collector.finish().unwrap();
            assert_eq!(records.places(), 3);
            assert!((0..3).all(|place| records.at(place).unwrap().is_none()));
        }
    }

    /// Every token and every bit of a number comes back, whatever its size.
    #[test]
    fn no_number_is_cut_short() {
        let tokens: Vec<u32> =
            (0..32).flat_map(|bits| [(1u32 << bits) - 1, 1 << bits]).chain([u32::MAX]).collect();
        let numbers: Vec<f32> = tokens.iter().map(|&bits| f32::from_bits(bits)).collect();
        let class = |class: u32| Example::labelled(tokens.clone(), class);
        let next = Example::new(
            Input::Tokens(tokens.clone()),
            Target::Next(tokens.iter().rev().copied().collect()),
        );
        let long = Example::labelled((0..70_000).collect(), 3);
        let all =
            [class(u32::MAX), class(1 << 16), next, Example::features(numbers, 1 << 20), long];
        let mut collector = Collector::new(&std::env::temp_dir(), 0);
        all.iter().for_each(|example| collector.push(Some(example.clone())).unwrap());
        let records = collector.finish().unwrap();
        for (place, example) in all.iter().enumerate() {
            let back = records.at(place).unwrap().unwrap().into_owned();
            let bits = |example: &Example| match &example.parts()[0].input {
                Input::Tokens(tokens) => tokens.clone(),
                Input::Features(numbers) => numbers.iter().map(|x| x.to_bits()).collect(),
            };
            assert!(
                bits(&back) == bits(example) && back.parts()[0].target == example.parts()[0].target,
                "{place}"
            );
        }
    }

    /// The file has no name while it is used, and is gone afterwards.
    #[test]
    fn the_file_cannot_be_found() {
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut collector = Collector::new(folder.path(), 0);
        examples().into_iter().for_each(|example| collector.push(Some(example)).unwrap());
        assert_eq!((files(), collector.file.is_some()), (0, true));
        let records = collector.finish().unwrap();
        assert!(records.at(3).unwrap().is_some());
        assert_eq!(files(), 0);
        drop(records);
        assert_eq!(files(), 0);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_a_refusal() {
        let mut collector = Collector::new(Path::new("/nowhere/at/all"), 0);
        let refused = collector.push(Some(Example::labelled(vec![1], 0))).unwrap_err();
        assert!(matches!(refused, Refused::Failed(_)));
    }
}
