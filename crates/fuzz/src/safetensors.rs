//! Safetensors files as header and data, with recomputed offsets.

use crate::random::Random;
use serde_json::{Map, Value, json};

/// Largest tensor in bytes whose offsets are recomputed.
const LARGEST: u64 = 4096;

/// Header and data.
pub(crate) fn open(file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    let (header, numbers) =
        rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(vec![header.to_vec(), numbers.to_vec()])
}

/// A file of valid length; every other time its tensors are contiguous and fill it.
pub(crate) fn close(random: &mut Random, parts: &[Vec<u8>]) -> Vec<u8> {
    let (mut header, mut numbers) =
        (parts.first().cloned().unwrap_or_default(), parts.get(1..).unwrap_or_default().concat());
    if random.once_in(2)
        && let Ok(Value::Object(mut tensors)) = serde_json::from_slice(&header)
    {
        let length = recompute_offsets(random, &mut tensors);
        numbers.resize(length, 0);
        header = Value::Object(tensors).to_string().into_bytes();
    }
    [&(header.len() as u64).to_le_bytes(), &header[..], &numbers].concat()
}

/// May change a tensor, then recomputes all offsets; returns the end of the last tensor.
fn recompute_offsets(random: &mut Random, tensors: &mut Map<String, Value>) -> usize {
    let names: Vec<String> =
        tensors.keys().filter(|name| *name != "__metadata__").cloned().collect();
    if random.once_in(2)
        && let Some(name) = random.one(&names)
    {
        let types = ["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F4", "C64", "F8_E4M3"];
        match (random.below(4), tensors.get_mut(name)) {
            (1, Some(Value::Object(tensor))) => {
                drop(tensor.insert("dtype".into(), json!(random.one(&types))))
            }
            (2, Some(Value::Object(tensor))) => {
                drop(tensor.insert(
                    "shape".into(),
                    (0..random.below(4)).map(|_| json!(random.below(9))).collect(),
                ));
            }
            (3, Some(tensor)) => {
                let copy = tensor.clone();
                tensors.insert(format!("{name}.x"), copy);
            }
            _ => drop(tensors.remove(name)),
        }
    }
    let mut end = 0;
    for (_, tensor) in tensors.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        if let (Some(size), Some(tensor)) = (size(tensor), tensor.as_object_mut()) {
            tensor.insert("data_offsets".into(), json!([end, end + size]));
            end += size;
        }
    }
    end as usize
}

fn size(tensor: &Value) -> Option<u64> {
    let bits: u64 = match tensor["dtype"].as_str()? {
        "F4" => 4,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 8,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F32" | "I32" | "U32" => 32,
        _ => 64,
    };
    let count = tensor["shape"]
        .as_array()?
        .iter()
        .try_fold(1u64, |count, side| count.checked_mul(side.as_u64()?));
    count?.checked_mul(bits).map(|bits| bits.div_ceil(8)).filter(|size| *size <= LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recomputed_offsets_are_accepted() {
        let header = br#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,1]},
"b":{"dtype":"F16","shape":[],"data_offsets":[7,7]}}"#;
        let mut good = 0;
        for seed in 0..100 {
            let file = close(&mut Random::new("lay", seed), &[header.to_vec(), vec![0; 5]]);
            assert_eq!(open(&file).unwrap().len(), 2);
            good += usize::from(muffle::model::hf::Weights::from_bytes(file, "x").is_ok());
        }
        assert!(good > 20, "{good}");
    }
}
