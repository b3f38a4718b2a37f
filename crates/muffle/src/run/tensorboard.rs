//! The figures of `history.jsonl` as a TensorBoard event file (`evaluation.tensorboard`).
//!
//! The format: each record has its length, a checksum of the length, the data and a checksum of the
//! data. The data are a Protocol Buffers message `Event` with the step and tagged numbers. Tags of
//! figures that are not private begin with `NON-PRIVATE`.
//!
//! The wall time of an event is its step, not a time: how long a step takes depends on the records
//! of its lot.

use crate::Error;
use crate::report::Marking;
use crate::run::disk;
use crate::run::folder::Folder;
use crate::run::history::HistoryEntry;

/// The name of the file. TensorBoard finds files by the part `tfevents`.
pub const FILE: &str = "events.out.tfevents.0.muffle";

/// Replaces the file by the entries of a history.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn rewrite(folder: &Folder, history: &[HistoryEntry]) -> Result<(), Error> {
    let mut bytes = record(&[double(1, 0.0), text(3, "brain.Event:2")].concat());
    history.iter().for_each(|entry| bytes.extend(event(entry)));
    crate::run::folder::write(&folder.join(FILE), &bytes)
}

/// Appends an entry to the file.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn append(folder: &Folder, entry: &HistoryEntry) -> Result<(), Error> {
    let path = folder.join(FILE);
    disk::append(&path, &event(entry)).map_err(Error::io(&path))
}

/// The figures of an entry with their tags.
fn figures(entry: &HistoryEntry) -> Vec<(String, f64)> {
    let prefix = match entry.figures {
        Marking::Public => "",
        Marking::NonPrivate => "NON-PRIVATE/",
    };
    let validation = [
        ("nll", entry.nll),
        ("accuracy", entry.accuracy),
        ("bleu", entry.bleu),
        ("rmse", entry.rmse),
    ];
    let measured = validation
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{prefix}validation/{name}"), value?)));
    let public = [
        ("privacy/epsilon".to_string(), entry.epsilon),
        ("training/learning_rate".to_string(), Some(entry.learning_rate)),
    ];
    public.into_iter().filter_map(|(tag, value)| Some((tag, value?))).chain(measured).collect()
}

/// The record of an entry.
fn event(entry: &HistoryEntry) -> Vec<u8> {
    let value = |(name, value): (String, f64)| {
        message(1, &[text(1, &name), float(2, value as f32)].concat())
    };
    let summary: Vec<u8> = figures(entry).into_iter().flat_map(value).collect();
    record(&[double(1, entry.step as f64), integer(2, entry.step), message(5, &summary)].concat())
}

/// A record: length and data, each with its checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// The checksum as the format stores it.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: records are short and rare.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A number of seven bits per byte, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The tag of a field: its number and how it is encoded.
fn key(field: u64, encoding: u64) -> Vec<u8> {
    varint(field << 3 | encoding)
}

fn integer(field: u64, value: u64) -> Vec<u8> {
    [key(field, 0), varint(value)].concat()
}

fn double(field: u64, value: f64) -> Vec<u8> {
    [key(field, 1), value.to_le_bytes().to_vec()].concat()
}

fn float(field: u64, value: f32) -> Vec<u8> {
    [key(field, 5), value.to_le_bytes().to_vec()].concat()
}

fn message(field: u64, bytes: &[u8]) -> Vec<u8> {
    [key(field, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn text(field: u64, value: &str) -> Vec<u8> {
    message(field, value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: u64, figures: Marking) -> HistoryEntry {
        HistoryEntry {
            step,
            epsilon: Some(0.5),
            learning_rate: 0.25,
            figures,
            nll: Some(1.5),
            accuracy: None,
            bleu: None,
            rmse: None,
        }
    }

    /// The fields of a message: number, and the content as a number or as bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, f64, Vec<u8>)> {
        fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
            let (taken, rest) = bytes.split_at(count);
            *bytes = rest;
            taken
        }
        fn number(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = take(bytes, 1)[0];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut list = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let (value, content) = match key & 7 {
                0 => (number(&mut bytes) as f64, Vec::new()),
                1 => (f64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap()), Vec::new()),
                5 => {
                    let value = f32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap());
                    (f64::from(value), Vec::new())
                }
                2 => {
                    let length = number(&mut bytes) as usize;
                    (0.0, take(&mut bytes, length).to_vec())
                }
                other => panic!("encoding {other}"),
            };
            list.push((key >> 3, value, content));
        }
        list
    }

    /// The data of each record, after its checksums are compared.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut list = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(bytes[8..12], masked(crc32c(&bytes[..8])).to_le_bytes());
            let data = &bytes[12..12 + length];
            assert_eq!(bytes[12 + length..16 + length], masked(crc32c(data)).to_le_bytes());
            list.push(data.to_vec());
            bytes = &bytes[16 + length..];
        }
        list
    }

    #[test]
    fn files_are_parsed_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::create(&place.path().join("run")).unwrap();
        rewrite(&folder, &[entry(0, Marking::Public)]).unwrap();
        append(&folder, &entry(300, Marking::NonPrivate)).unwrap();
        let events = records(&std::fs::read(folder.join(FILE)).unwrap());
        assert_eq!(events.len(), 3);
        assert_eq!(fields(&events[0])[1], (3, 0.0, b"brain.Event:2".to_vec()));
        for (event, step, tag) in
            [(1, 0.0, "validation/nll"), (2, 300.0, "NON-PRIVATE/validation/nll")]
        {
            let event = fields(&events[event]);
            assert_eq!((event[0].1, event[1].0, event[1].1), (step, 2, step));
            let values: Vec<(String, f64)> = fields(&event[2].2)
                .iter()
                .map(|(_, _, value)| {
                    let value = fields(value);
                    (String::from_utf8(value[0].2.clone()).unwrap(), value[1].1)
                })
                .collect();
            let expected = [("privacy/epsilon", 0.5), ("training/learning_rate", 0.25), (tag, 1.5)];
            assert_eq!(values, expected.map(|(tag, value)| (tag.to_string(), value)));
        }
    }

    /// The check value of CRC-32C, and the mask of the format for it.
    #[test]
    fn checksums_are_those_of_the_format() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(0), 0xa282_ead8);
    }
}
