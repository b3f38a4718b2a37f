//! Element types of files, and their conversion from and to f32.

use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype as StoredDtype;

/// Element type of saved tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dtype {
    /// Single precision.
    #[default]
    F32,
    /// Half precision: 11 significant bits, at most 65504.
    F16,
    /// bfloat16: 8 significant bits, the range of f32.
    Bf16,
}

impl Dtype {
    /// Returns the name in `config.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Returns the type in a safetensors header.
    pub(super) fn stored(self) -> StoredDtype {
        match self {
            Self::F32 => StoredDtype::F32,
            Self::F16 => StoredDtype::F16,
            Self::Bf16 => StoredDtype::BF16,
        }
    }

    /// Returns the size of an element in bytes.
    pub(super) fn size(self) -> usize {
        self.stored().bitsize() / 8
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Elements that a thread converts and checks at a time: they fit into its cache.
pub(super) const CHUNK: usize = 1 << 15;

/// Elements converted from half precision at a time.
const F16_CHUNK: usize = 1 << 10;

/// Converts the bytes of a tensor to f32. Returns `None` if the type is not supported.
///
/// The second result is the index of the first element that is not finite.
pub(super) fn decode(dtype: StoredDtype, bytes: &[u8]) -> Option<(Vec<f32>, Option<usize>)> {
    let convert = match dtype {
        StoredDtype::F32 => from_f32,
        StoredDtype::F16 => from_f16,
        StoredDtype::BF16 => from_bf16,
        StoredDtype::F64 => from_f64,
        _ => return None,
    };
    let size = dtype.bitsize() / 8;
    let mut elements = vec![0.0; bytes.len() / size];
    let decode_chunk = |(bytes, elements): (&[u8], &mut [f32])| {
        convert(bytes, elements);
        first_non_finite(elements)
    };
    let non_finite = if elements.len() <= CHUNK {
        decode_chunk((bytes, &mut elements))
    } else {
        let chunks = bytes.par_chunks(CHUNK * size).zip(elements.par_chunks_mut(CHUNK));
        chunks.enumerate().filter_map(|(i, chunk)| Some(i * CHUNK + decode_chunk(chunk)?)).min()
    };
    Some((elements, non_finite))
}

/// Returns the index of the first element that is NaN or infinite.
fn first_non_finite(elements: &[f32]) -> Option<usize> {
    // Without an early exit the loop is vectorized.
    let all_finite = elements.iter().fold(true, |all, x| all & x.is_finite());
    if all_finite { None } else { elements.iter().position(|x| !x.is_finite()) }
}

fn from_f32(bytes: &[u8], elements: &mut [f32]) {
    for (element, &bytes) in elements.iter_mut().zip(bytes.as_chunks().0) {
        *element = f32::from_le_bytes(bytes);
    }
}

fn from_f64(bytes: &[u8], elements: &mut [f32]) {
    for (element, &bytes) in elements.iter_mut().zip(bytes.as_chunks().0) {
        *element = f64::from_le_bytes(bytes) as f32;
    }
}

fn from_bf16(bytes: &[u8], elements: &mut [f32]) {
    for (element, &bytes) in elements.iter_mut().zip(bytes.as_chunks().0) {
        *element = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

fn from_f16(bytes: &[u8], elements: &mut [f32]) {
    let mut halves = [f16::ZERO; F16_CHUNK];
    for (elements, bytes) in elements.chunks_mut(F16_CHUNK).zip(bytes.chunks(2 * F16_CHUNK)) {
        for (half, &bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(bytes);
        }
        halves[..elements.len()].convert_to_f32_slice(elements);
    }
}

/// Appends the bytes of the elements, rounded to nearest.
///
/// # Errors
/// The index of the first element that is not finite after rounding.
pub(super) fn encode(dtype: Dtype, elements: &[f32], bytes: &mut Vec<u8>) -> Result<(), usize> {
    match dtype {
        Dtype::F32 => {
            if let Some(index) = first_non_finite(elements) {
                return Err(index);
            }
            bytes.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
        }
        Dtype::F16 => {
            let mut halves = vec![f16::ZERO; elements.len()];
            halves.convert_from_f32_slice(elements);
            if let Some(index) = halves.iter().position(|x| !x.is_finite()) {
                return Err(index);
            }
            bytes.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
        }
        Dtype::Bf16 => {
            let mut halves = vec![bf16::ZERO; elements.len()];
            halves.convert_from_f32_slice(elements);
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

    /// All finite values of both half-precision types are converted to f32 and back.
    #[test]
    fn half_precision_round_trips_exactly() {
        for (dtype, stored) in [(Dtype::F16, StoredDtype::F16), (Dtype::Bf16, StoredDtype::BF16)] {
            let finite = |bits: &u16| match dtype {
                Dtype::F16 => f16::from_bits(*bits).is_finite(),
                _ => bf16::from_bits(*bits).is_finite(),
            };
            let bytes: Vec<u8> = (0..=u16::MAX).filter(finite).flat_map(u16::to_le_bytes).collect();
            let (elements, non_finite) = decode(stored, &bytes).unwrap();
            assert_eq!(non_finite, None);
            let mut back = Vec::new();
            encode(dtype, &elements, &mut back).unwrap();
            assert_eq!(back, bytes);
            // Known values: 1.5, the smallest positive value, the largest value.
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
    fn elements_that_are_not_finite_are_found() {
        let count = 3 * CHUNK + 7;
        for index in [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5, count - 1] {
            for non_finite in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut elements = vec![1.0f32; count];
                elements[index] = non_finite;
                elements[count - 1] = f32::NAN;
                let single: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
                let double: Vec<u8> =
                    elements.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect();
                let half: Vec<u8> =
                    elements.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
                let brain: Vec<u8> =
                    elements.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
                for (stored, bytes) in [
                    (StoredDtype::F32, single),
                    (StoredDtype::F64, double),
                    (StoredDtype::F16, half),
                    (StoredDtype::BF16, brain),
                ] {
                    assert_eq!(decode(stored, &bytes).unwrap().1, Some(index));
                }
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                    assert_eq!(encode(dtype, &elements, &mut Vec::new()), Err(index));
                }
            }
        }
        // An f64 beyond the range of f32.
        assert_eq!(decode(StoredDtype::F64, &1e300f64.to_le_bytes()).unwrap().1, Some(0));
        assert_eq!(encode(Dtype::F16, &[1.0, 65520.0], &mut Vec::new()), Err(1));
        assert_eq!(encode(Dtype::Bf16, &[f32::MAX], &mut Vec::new()), Err(0));
        assert_eq!(decode(StoredDtype::I64, &[0; 8]), None);
    }

    #[test]
    fn chunks_do_not_change_the_result() {
        let elements: Vec<f32> = (0..2 * CHUNK + 3).map(|i| (i as f32 - 40_000.0) * 0.37).collect();
        let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(decode(StoredDtype::F32, &bytes).unwrap().0, elements);
        let bytes: Vec<u8> =
            elements.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let expected: Vec<f32> = elements.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        assert_eq!(decode(StoredDtype::F16, &bytes).unwrap().0, expected);
        assert_eq!(decode(StoredDtype::F32, &[]).unwrap(), (vec![], None));
    }
}
