//! A safetensors file as header and numbers, and a header whose offsets are right again.

use crate::chance::Chance;
use serde_json::{Map, Value, json};

/// Tensors beyond this are left as they say.
const LARGEST: u64 = 4096;

/// Header and numbers.
pub(crate) fn open(file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    let (header, numbers) =
        rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(vec![header.to_vec(), numbers.to_vec()])
}

/// A file whose length is right; every other time its tensors lie one after the other, and end
/// where it does.
pub(crate) fn close(chance: &mut Chance, parts: &[Vec<u8>]) -> Vec<u8> {
    let (mut header, mut numbers) =
        (parts.first().cloned().unwrap_or_default(), parts.get(1..).unwrap_or_default().concat());
    if chance.once_in(2)
        && let Ok(Value::Object(mut tensors)) = serde_json::from_slice(&header)
    {
        let length = lay(chance, &mut tensors);
        numbers.resize(length, 0);
        header = Value::Object(tensors).to_string().into_bytes();
    }
    [&(header.len() as u64).to_le_bytes(), &header[..], &numbers].concat()
}

/// Perhaps changes a tensor, then gives all of them their places. Returns where the last one ends.
fn lay(chance: &mut Chance, tensors: &mut Map<String, Value>) -> usize {
    let names: Vec<String> =
        tensors.keys().filter(|name| *name != "__metadata__").cloned().collect();
    if chance.once_in(2)
        && let Some(name) = chance.one(&names)
    {
        let types = ["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F4", "C64", "F8_E4M3"];
        match (chance.below(4), tensors.get_mut(name)) {
            (1, Some(Value::Object(tensor))) => {
                drop(tensor.insert("dtype".into(), json!(chance.one(&types))))
            }
            (2, Some(Value::Object(tensor))) => {
                drop(tensor.insert(
                    "shape".into(),
                    (0..chance.below(4)).map(|_| json!(chance.below(9))).collect(),
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
    fn what_is_laid_is_accepted() {
        let header = br#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,1]},"b":{"dtype":"F16","shape":[],"data_offsets":[7,7]}}"#;
        let mut good = 0;
        for seed in 0..100 {
            let file = close(&mut Chance::new("lay", seed), &[header.to_vec(), vec![0; 5]]);
            assert_eq!(open(&file).unwrap().len(), 2);
            good += usize::from(muffle::model::hf::Weights::from_bytes(file, "x").is_ok());
        }
        assert!(good > 20, "{good}");
    }
}
