//! Container structure of formats: lengths, checksums, compression.
//!
//! The content is mutated and the container recomputed, so that readers reach the mutated content.

use crate::mutate::{Material, mutate};
use crate::png;
use crate::random::Random;
use crate::safetensors;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};

/// The container structure of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Plain bytes.
    Plain,
    /// Safetensors: a length, a JSON header, data.
    Safetensors,
    /// PNG: chunks with checksums, one of them compressed.
    Png,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// Three files, two of them safetensors, with their digests.
    Snapshot,
}

/// The files of a snapshot.
pub const FILES: [&str; 3] = ["snapshot", "params.safetensors", "optimizer.safetensors"];

/// Largest number of bytes that are decompressed.
const MAX_DECOMPRESSED: u64 = 1 << 16;

impl Structure {
    /// A mutated version of an input.
    pub fn mutate(self, random: &mut Random, input: &[u8], material: Material<'_>) -> Vec<u8> {
        let within = if random.once_in(6) { None } else { self.open(input) };
        let Some(mut parts) = within.filter(|parts| !parts.is_empty()) else {
            let mut bytes = input.to_vec();
            mutate(random, &mut bytes, material);
            return bytes;
        };
        for _ in 0..1 + random.below(2) {
            let which = random.below(parts.len());
            mutate(random, &mut parts[which], material);
        }
        if self == Self::Png && random.once_in(8) {
            let (from, to) = (random.below(parts.len()), random.below(parts.len()));
            let part = parts[from].clone();
            parts.insert(to, part);
        }
        let mut bytes = self.close(random, parts);
        if random.once_in(24) {
            mutate(random, &mut bytes, material);
        }
        bytes.truncate(material.max_length);
        bytes
    }

    /// The parts that can be mutated separately.
    fn open(self, input: &[u8]) -> Option<Vec<Vec<u8>>> {
        match self {
            Self::Plain => None,
            Self::Safetensors => safetensors::open(input),
            Self::Png => png::open(input),
            Self::Gzip => {
                let mut inner = Vec::new();
                GzDecoder::new(input).take(MAX_DECOMPRESSED).read_to_end(&mut inner).ok()?;
                Some(vec![inner])
            }
            Self::Zstd => {
                let mut inner = Vec::new();
                let decoder = zstd::stream::read::Decoder::new(input).ok()?;
                decoder.take(MAX_DECOMPRESSED).read_to_end(&mut inner).ok()?;
                Some(vec![inner])
            }
            Self::Snapshot => {
                let [head, params, optimizer] = unpack(input);
                let text = head.splitn(2, |byte| *byte == b'\n').nth(1)?.to_vec();
                Some(
                    [vec![text], safetensors::open(params)?, safetensors::open(optimizer)?]
                        .concat(),
                )
            }
        }
    }

    fn close(self, random: &mut Random, parts: Vec<Vec<u8>>) -> Vec<u8> {
        match self {
            Self::Plain => parts.concat(),
            Self::Safetensors => safetensors::close(random, &parts),
            Self::Png => png::close(&parts),
            Self::Gzip => gzip(&parts.concat()),
            Self::Zstd => zstd::stream::encode_all(&parts.concat()[..], 1).unwrap_or_default(),
            Self::Snapshot => {
                let (head, files) = parts.split_at(1.min(parts.len()));
                let (params, optimizer) = files.split_at(2.min(files.len()));
                let files =
                    [safetensors::close(random, params), safetensors::close(random, optimizer)];
                snapshot(&head.concat(), &files)
            }
        }
    }
}

/// Compresses at the fastest level.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// A snapshot's three files as one: a length in four bytes before each.
pub fn pack(files: [&[u8]; 3]) -> Vec<u8> {
    files.iter().flat_map(|file| [&(file.len() as u32).to_le_bytes(), *file].concat()).collect()
}

/// The three files, as far as they are present.
pub fn unpack(bytes: &[u8]) -> [&[u8]; 3] {
    let mut rest = bytes;
    [(); 3].map(|()| {
        let Some((length, after)) = rest.split_first_chunk::<4>() else { return &[][..] };
        let (file, after) = after.split_at((u32::from_le_bytes(*length) as usize).min(after.len()));
        rest = after;
        file
    })
}

/// A snapshot with recomputed digests, as far as the text still has fields for them.
fn snapshot(text: &[u8], files: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut text = text.to_vec();
    for (name, file) in FILES[1..].iter().zip(files) {
        let key = format!("\"{name}\"");
        let after = text
            .windows(key.len())
            .position(|window| window == key.as_bytes())
            .map(|at| at + key.len());
        let quoted = after.and_then(|after| {
            Some(after + text[after..].iter().position(|byte| *byte == b'"')? + 1)
        });
        if let Some(place) = quoted.and_then(|start| text.get_mut(start..start + 64)) {
            place.copy_from_slice(digest(file).as_bytes());
        }
    }
    let head = [digest(&text).as_bytes(), b"\n", &text].concat();
    pack([&head, &files[0], &files[1]])
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_files_round_trip() {
        let files: [&[u8]; 3] = [b"head", b"", b"optimizer"];
        assert_eq!(unpack(&pack(files)), files);
        for cut in 0..pack(files).len() {
            unpack(&pack(files)[..cut]);
        }
        assert_eq!(unpack(&[0xff; 9])[0].len(), 5);
    }

    #[test]
    fn structures_round_trip() {
        let mut random = Random::new("structure", 1);
        let gz = Structure::Gzip.close(&mut random, vec![b"some text".to_vec()]);
        assert_eq!(Structure::Gzip.open(&gz).unwrap(), [b"some text".to_vec()]);
        let head = br#"{"files":{"params.safetensors":"","x":1}}"#;
        let closed = snapshot(head, &[vec![], vec![]]);
        assert!(unpack(&closed)[0].ends_with(head));
    }
}
