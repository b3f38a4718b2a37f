//! Numbers in files, and f32 in memory.

use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype as Stored;

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dtype {
    /// As they are.
    #[default]
    F32,
    /// Half precision: 11 bits, up to 65504.
    F16,
    /// The upper half of a f32: 8 bits.
    Bf16,
}

impl Dtype {
    /// The name in `config.json`.
    pub(super) fn torch(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// The type in a safetensors header.
    pub(super) fn stored(self) -> Stored {
        match self {
            Self::F32 => Stored::F32,
            Self::F16 => Stored::F16,
            Self::Bf16 => Stored::BF16,
        }
    }

    /// Bytes of a number.
    pub(super) fn size(self) -> usize {
        self.stored().bitsize() / 8
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.torch())
    }
}

/// Numbers that a thread takes at a time: they stay in its cache between conversion and check.
pub(super) const PIECE: usize = 1 << 15;

/// Numbers that are converted from half precision at a time.
const BLOCK: usize = 1 << 10;

/// The numbers, and the index of the first that is not finite; nothing if the type is not one of
/// those that are read.
pub(super) fn decode(dtype: Stored, bytes: &[u8]) -> Option<(Vec<f32>, Option<usize>)> {
    let convert = match dtype {
        Stored::F32 => from_f32,
        Stored::F16 => from_f16,
        Stored::BF16 => from_bf16,
        Stored::F64 => from_f64,
        _ => return None,
    };
    let size = dtype.bitsize() / 8;
    let mut numbers = vec![0.0; bytes.len() / size];
    let one = |(bytes, numbers): (&[u8], &mut [f32])| {
        convert(bytes, numbers);
        first_wild(numbers)
    };
    let wild = if numbers.len() <= PIECE {
        one((bytes, &mut numbers))
    } else {
        let pieces = bytes.par_chunks(PIECE * size).zip(numbers.par_chunks_mut(PIECE));
        pieces.enumerate().filter_map(|(piece, both)| Some(piece * PIECE + one(both)?)).min()
    };
    Some((numbers, wild))
}

/// The index of the first number that is NaN or infinite.
fn first_wild(numbers: &[f32]) -> Option<usize> {
    // Without an early exit the loop runs over many numbers at a time.
    let tame = numbers.iter().fold(true, |tame, x| tame & x.is_finite());
    if tame { None } else { numbers.iter().position(|x| !x.is_finite()) }
}

fn from_f32(bytes: &[u8], numbers: &mut [f32]) {
    for (number, &bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = f32::from_le_bytes(bytes);
    }
}

fn from_f64(bytes: &[u8], numbers: &mut [f32]) {
    for (number, &bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = f64::from_le_bytes(bytes) as f32;
    }
}

fn from_bf16(bytes: &[u8], numbers: &mut [f32]) {
    for (number, &bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

fn from_f16(bytes: &[u8], numbers: &mut [f32]) {
    let mut halves = [f16::ZERO; BLOCK];
    for (numbers, bytes) in numbers.chunks_mut(BLOCK).zip(bytes.chunks(2 * BLOCK)) {
        for (half, &bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(bytes);
        }
        halves[..numbers.len()].convert_to_f32_slice(numbers);
    }
}

/// Adds the bytes of the numbers, rounded to nearest.
///
/// # Errors
/// With the index of the first number that is not finite once rounded.
pub(super) fn encode(dtype: Dtype, numbers: &[f32], bytes: &mut Vec<u8>) -> Result<(), usize> {
    match dtype {
        Dtype::F32 => {
            if let Some(index) = first_wild(numbers) {
                return Err(index);
            }
            bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        }
        Dtype::F16 => {
            let mut halves = vec![f16::ZERO; numbers.len()];
            halves.convert_from_f32_slice(numbers);
            if let Some(index) = halves.iter().position(|x| !x.is_finite()) {
                return Err(index);
            }
            bytes.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
        }
        Dtype::Bf16 => {
            let mut halves = vec![bf16::ZERO; numbers.len()];
            halves.convert_from_f32_slice(numbers);
            if let Some(index) = halves.iter().position(|x| !x.is_finite()) {
                return Err(index);
            }
            bytes.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half there is, to f32 and back.
    #[test]
    fn every_half_comes_back() {
        for (dtype, stored) in [(Dtype::F16, Stored::F16), (Dtype::Bf16, Stored::BF16)] {
            let finite = |bits: &u16| match dtype {
                Dtype::F16 => f16::from_bits(*bits).is_finite(),
                _ => bf16::from_bits(*bits).is_finite(),
            };
            let bytes: Vec<u8> = (0..=u16::MAX).filter(finite).flat_map(u16::to_le_bytes).collect();
            let (numbers, wild) = decode(stored, &bytes).unwrap();
            assert_eq!(wild, None);
            let mut back = Vec::new();
            encode(dtype, &numbers, &mut back).unwrap();
            assert_eq!(back, bytes);
            // Known values: 1.5, the least half above zero, the largest.
            let known: [(u16, f32); 3] = match dtype {
                Dtype::F16 => [(0x3e00, 1.5), (0x0001, 5.960_464_5e-8), (0x7bff, 65504.0)],
                _ => [(0x3fc0, 1.5), (0x0001, 9.183_55e-41), (0x7f7f, 3.389_531_4e38)],
            };
            for (bits, value) in known {
                assert_eq!(decode(stored, &bits.to_le_bytes()).unwrap().0, [value]);
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_found() {
        let count = 3 * PIECE + 7;
        for index in [0, 1, PIECE - 1, PIECE, 2 * PIECE + 5, count - 1] {
            for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut numbers = vec![1.0f32; count];
                numbers[index] = wild;
                numbers[count - 1] = f32::NAN;
                let single: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                let double: Vec<u8> =
                    numbers.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect();
                let half: Vec<u8> =
                    numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
                let brain: Vec<u8> =
                    numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
                for (stored, bytes) in [
                    (Stored::F32, single),
                    (Stored::F64, double),
                    (Stored::F16, half),
                    (Stored::BF16, brain),
                ] {
                    assert_eq!(decode(stored, &bytes).unwrap().1, Some(index));
                }
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                    assert_eq!(encode(dtype, &numbers, &mut Vec::new()), Err(index));
                }
            }
        }
        // A double that no f32 holds.
        assert_eq!(decode(Stored::F64, &1e300f64.to_le_bytes()).unwrap().1, Some(0));
        assert_eq!(encode(Dtype::F16, &[1.0, 65520.0], &mut Vec::new()), Err(1));
        assert_eq!(encode(Dtype::Bf16, &[f32::MAX], &mut Vec::new()), Err(0));
        assert_eq!(decode(Stored::I64, &[0; 8]), None);
    }

    #[test]
    fn pieces_do_not_show() {
        let numbers: Vec<f32> = (0..2 * PIECE + 3).map(|i| (i as f32 - 40_000.0) * 0.37).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(decode(Stored::F32, &bytes).unwrap().0, numbers);
        let bytes: Vec<u8> = numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let expected: Vec<f32> = numbers.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        assert_eq!(decode(Stored::F16, &bytes).unwrap().0, expected);
        assert_eq!(decode(Stored::F32, &[]).unwrap(), (vec![], None));
    }
}
