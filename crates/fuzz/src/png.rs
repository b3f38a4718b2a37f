//! PNG files as chunks: pixels are mutated uncompressed, and checksums are recomputed.

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read, Write};

const SIGNATURE: &[u8; 8] = b"\x89PNG\r\n\x1a\n";
/// Largest number of bytes that are decompressed.
const MAX_DECOMPRESSED: u64 = 1 << 16;

/// The chunks, each preceded by its name; the pixels are in one of them.
pub(crate) fn open(file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = file.strip_prefix(SIGNATURE)?;
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    let mut pixels: Option<(usize, Vec<u8>)> = None;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?.checked_add(4)?;
        let (chunk, after) = after.split_at_checked(length)?;
        match (chunk.strip_prefix(b"IDAT"), &mut pixels) {
            (Some(part), Some((_, pixels))) => pixels.extend(part),
            (Some(part), None) => pixels = Some((chunks.len(), part.to_vec())),
            (None, _) => chunks.push(chunk.to_vec()),
        }
        rest = after.get(4..)?;
    }
    if let Some((place, compressed)) = pixels {
        let mut plain = b"IDAT".to_vec();
        ZlibDecoder::new(&compressed[..]).take(MAX_DECOMPRESSED).read_to_end(&mut plain).ok()?;
        chunks.insert(place, plain);
    }
    Some(chunks)
}

/// The file of these chunks.
pub(crate) fn close(chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut file = SIGNATURE.to_vec();
    for chunk in chunks {
        let chunk = match chunk.strip_prefix(b"IDAT") {
            Some(pixels) => [b"IDAT", &zlib(pixels)[..]].concat(),
            None => chunk.clone(),
        };
        file.extend((chunk.len().saturating_sub(4) as u32).to_be_bytes());
        file.extend(&chunk);
        file.extend(checksum(&chunk).to_be_bytes());
    }
    file
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// CRC-32.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_round_trip_with_valid_checksums() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
        let chunks = [b"IHDRxyz".to_vec(), b"IDAT0123456789".to_vec(), b"IEND".to_vec()];
        assert_eq!(open(&close(&chunks)).unwrap(), chunks);
        assert_eq!(open(b"GIF89a"), None);
    }
}
