//! The header of a safetensors file: eight bytes of length, then a JSON object with the type, shape
//! and byte range of each tensor. The data follow.
//!
//! The `safetensors` crate supplies the types of an entry. Its own check of a file is not used: it
//! panics if overflow checks are on and the sizes add up to nearly 2^64, it takes the last of two
//! tensors with the same name, and its errors do not always name the tensor. The format requires
//! that the tensors cover the data exactly: without overlap, without gaps, up to the end of the
//! file. <https://github.com/huggingface/safetensors#format>

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};

use super::tensor_map::{METADATA, TensorMap};
use crate::Error;

/// Largest size of a header in bytes, as the format defines it.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Type, shape and position of a tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Byte range in the file.
    pub(super) bytes: Range<usize>,
}

/// Reads the header of a file and returns its tensors by name.
pub(super) fn read(path: &Path, file: &[u8]) -> Result<BTreeMap<String, Entry>, Error> {
    parse(file).map_err(|reason| Error::malformed(path, reason))
}

fn parse(file: &[u8]) -> Result<BTreeMap<String, Entry>, String> {
    if file.starts_with(b"version https://git-lfs") {
        return Err(
            "expected a safetensors file, got a Git LFS pointer; run \"git lfs pull\" to download \
             the file"
                .into(),
        );
    }
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(format!("expected a safetensors file of 8 bytes or more, got {}", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "expected a safetensors header of at most {MAX_HEADER_BYTES} bytes, got {length}"
        ));
    }
    // The length was checked to be at most 10^8.
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(format!("truncated: expected a header of {length} bytes, got {}", rest.len()));
    };
    let TensorMap(infos) = serde_json::from_slice::<TensorMap<TensorInfo>>(header)
        .map_err(|error| format!("invalid safetensors header: {error}"))?;

    let mut order: Vec<_> = infos.into_iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    let base = file.len() - data.len();
    let mut end = 0;
    let mut entries = BTreeMap::new();
    for (name, TensorInfo { dtype, shape, data_offsets: (from, to) }) in order {
        if from != end {
            return Err(format!(
                "tensor {name:?}: expected to begin at byte {end} of the data, where the previous \
                 tensor ends, got {from}"
            ));
        }
        match size(dtype, &shape) {
            Some(size) if from.checked_add(size) == Some(to) => {}
            Some(size) => {
                return Err(format!(
                    "tensor {name:?}: expected {size} bytes for {dtype} of shape {shape:?}, got \
                     {from}..{to}"
                ));
            }
            None => {
                return Err(format!(
                    "tensor {name:?}: {dtype} of shape {shape:?} is not a whole number of bytes or \
                     is too large"
                ));
            }
        }
        if to > data.len() {
            return Err(format!(
                "truncated: tensor {name:?} expects {to} bytes of data, got {}",
                data.len()
            ));
        }
        entries.insert(name, Entry { dtype, shape, bytes: base + from..base + to });
        end = to;
    }
    if end != data.len() {
        return Err(format!("expected {end} bytes of data after the header, got {}", data.len()));
    }
    Ok(entries)
}

/// Returns the size of a tensor in bytes, or `None` if it is not a whole number or overflows.
fn size(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let count =
        shape.iter().try_fold(1usize, |product, &dimension| product.checked_mul(dimension))?;
    let bits = count.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Returns the header of a file with these tensors, in this order and all of one type.
pub(super) fn write(
    path: &Path,
    dtype: Dtype,
    tensors: &[(&str, &[usize])],
) -> Result<Vec<u8>, Error> {
    let mut header = Map::new();
    header.insert(METADATA.into(), json!({ "format": "pt" }));
    let mut end = 0usize;
    for (name, shape) in tensors {
        let from = end;
        end = size(dtype, shape).and_then(|size| from.checked_add(size)).ok_or_else(|| {
            Error::malformed(path, format!("tensor {name:?}: shape {shape:?} is too large"))
        })?;
        let info =
            json!({ "dtype": dtype.to_string(), "shape": shape, "data_offsets": [from, end] });
        // Also refuses a tensor named like the metadata.
        if header.insert((*name).into(), info).is_some() {
            return Err(Error::malformed(path, format!("duplicate tensor {name:?}")));
        }
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // The data begin at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(Error::malformed(
            path,
            format!("expected a header of at most {MAX_HEADER_BYTES} bytes, got {}", text.len()),
        ));
    }
    let mut start = (text.len() as u64).to_le_bytes().to_vec();
    start.append(&mut text);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn entries_have_the_byte_ranges_of_the_header() {
        let header = r#"{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
            "a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},
            "none":{"dtype":"F32","shape":[0,9],"data_offsets":[28,28]},
            "one":{"dtype":"F64","shape":[],"data_offsets":[28,36]}}"#;
        let base = 8 + header.len();
        let entries = parse(&file(header, 36)).unwrap();
        assert_eq!(
            entries["a"],
            Entry { dtype: Dtype::F16, shape: vec![2], bytes: base..base + 4 }
        );
        assert_eq!(
            entries["b"],
            Entry { dtype: Dtype::F32, shape: vec![2, 3], bytes: base + 4..base + 28 }
        );
        assert_eq!(entries["none"].bytes, base + 28..base + 28);
        assert_eq!(entries["one"].bytes.len(), 8);
    }

    #[test]
    fn inconsistent_headers_are_refused() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let two = |first: &str, second: &str| {
            format!(
                r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first}}},
                    "b":{{"dtype":"F32","shape":[2],"data_offsets":{second}}}}}"#
            )
        };
        for (header, data, part) in [
            (
                one("F32", "[2]", "[0,8]"),
                4,
                "truncated: tensor \"a\" expects 8 bytes of data, got 4",
            ),
            (one("F32", "[2]", "[0,8]"), 9, "expected 8 bytes of data after the header, got 9"),
            (one("F32", "[3]", "[0,8]"), 8, "expected 12 bytes"),
            (one("F32", "[2]", "[8,0]"), 8, "expected to begin at byte 0"),
            (one("F32", "[2]", "[4,12]"), 12, "expected to begin at byte 0"),
            (one("F32", "[-2]", "[0,8]"), 8, "tensor \"a\": invalid value"),
            (
                one("F32", "[4611686018427387904,4]", "[0,0]"),
                0,
                "not a whole number of bytes or is too large",
            ),
            (one("F4", "[3]", "[0,1]"), 1, "not a whole number of bytes or is too large"),
            (one("Q4", "[2]", "[0,8]"), 8, "unknown variant `Q4`"),
            (two("[0,8]", "[4,12]"), 12, "expected to begin at byte 8"),
            (two("[0,8]", "[12,20]"), 20, "expected to begin at byte 8"),
            (two("[0,8]", "[0,8]"), 8, "expected to begin at byte 8"),
            (two("[0,8]", "[8,16]").replace("\"b\"", "\"a\""), 16, "duplicate tensor \"a\""),
            ("{".into(), 0, "invalid safetensors header"),
            ("[]".into(), 0, "invalid safetensors header"),
            ("{}".into(), 1, "expected 0 bytes"),
            ("[".repeat(100_000), 0, "invalid safetensors header"),
        ] {
            let error = parse(&file(&header, data)).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    /// Eight tensors of valid sizes, of which the sum plus the header overflows.
    #[test]
    fn overflow_of_the_total_size_is_refused() {
        let each = usize::MAX / 8;
        let ends: Vec<usize> = (0..9).map(|i| if i < 8 { i * each } else { usize::MAX }).collect();
        let entry = |pair: &[usize]| {
            format!(
                r#""{0}":{{"dtype":"U8","shape":[{1}],"data_offsets":[{0},{2}]}}"#,
                pair[0],
                pair[1] - pair[0],
                pair[1]
            )
        };
        let header = format!("{{{}}}", ends.windows(2).map(entry).collect::<Vec<_>>().join(","));
        assert!(parse(&file(&header, 8)).unwrap_err().contains("truncated"));
    }

    #[test]
    fn invalid_files_are_refused() {
        for (bytes, part) in [
            (vec![], "got 0"),
            (vec![1, 2, 3], "got 3"),
            (vec![0xff; 64], "at most 100000000"),
            (vec![9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], "expected a header of 9 bytes, got 2"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00".to_vec(), "git lfs pull"),
            (file("{\"a\u{0}\":1}", 0), "invalid"),
        ] {
            let error = parse(&bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn written_headers_are_read() {
        let path = Path::new("x");
        let shapes: [(&str, &[usize]); 3] = [("b", &[3]), ("a", &[2, 2]), ("c", &[])];
        let mut bytes = write(path, Dtype::BF16, &shapes).unwrap();
        let base = bytes.len();
        assert_eq!(base % 8, 0);
        bytes.resize(base + 16, 0);
        let entries = read(path, &bytes).unwrap();
        assert_eq!(
            entries["b"],
            Entry { dtype: Dtype::BF16, shape: vec![3], bytes: base..base + 6 }
        );
        assert_eq!(entries["a"].bytes, base + 6..base + 14);
        assert!(write(path, Dtype::F32, &[("a", &[1]), ("a", &[1])]).is_err());
        assert!(write(path, Dtype::F32, &[(METADATA, &[1])]).is_err());
        assert!(write(path, Dtype::F32, &[("a", &[usize::MAX, 2])]).is_err());
    }
}
