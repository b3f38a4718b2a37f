//! Fuzz tests: damaged files cause neither panics nor large allocations, and accepted files are
//! valid.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use model::hf::{Config, Dtype, SaveOptions, Weights, save};
use serde_json::{Map, Value, json};
use tensor::Array;

use super::configs;
use super::folder::Folder;

/// Returns the number of cases and the seed.
///
/// `MUFFLE_CASES=20` draws twenty times as many cases, with a new seed each time.
fn cases(cases: usize) -> (usize, u64) {
    match std::env::var("MUFFLE_CASES").ok().and_then(|times| times.parse::<usize>().ok()) {
        Some(times) => {
            (cases * times, SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
        }
        None => (cases, 7),
    }
}

/// A SplitMix64 generator.
struct SplitMix(u64);

impl SplitMix {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Returns the peak size of the address space in bytes, on Linux.
fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
}

/// Asserts that the address space grew by less than a gigabyte.
///
/// Threads and other tests take some hundred megabytes; a length from a damaged file would take
/// more.
fn assert_less_than_a_gigabyte(before: Option<usize>) {
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        assert!(after - before < 1 << 30, "{} bytes of memory", after - before);
    }
}

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "16",
    "-1",
    "1e3",
    "4294967296",
    "2305843009213693952",
    "18446744073709551615",
    "18446744073709551616",
];
const WORDS: [&str; 12] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "\"F32\"",
    "\"F4\"",
    "\"wte.weight\"",
    "\"shape\":[1],",
];

/// Damages the text of a header or an index in up to four places.
fn damage_text(text: &str, random: &mut SplitMix) -> String {
    let mut bytes = text.trim_end().as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(7) {
            // Replace a number.
            0 | 1 => {
                let Some(from) = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit()) else {
                    continue;
                };
                let to = (from..bytes.len())
                    .find(|&i| !bytes[i].is_ascii_digit())
                    .unwrap_or(bytes.len());
                bytes.splice(from..to, random.choose(&NUMBERS).bytes());
            }
            2 => drop(bytes.splice(at..at, random.choose(&WORDS).bytes())),
            3 => drop(bytes.drain(at..(at + 1 + random.below(20)).min(bytes.len()))),
            4 => bytes[at] ^= 1 << random.below(8),
            // Duplicate a part.
            5 => {
                let to = (at + random.below(120)).min(bytes.len());
                let part = bytes[at..to].to_vec();
                let at = random.below(bytes.len());
                bytes.splice(at..at, part);
            }
            // Replace a type.
            _ => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let names: [&str; 9] =
                    ["F32", "F16", "BF16", "F64", "I64", "U8", "F4", "BOOL", "C64"];
                let (old, new) = (*random.choose(&names[..3]), *random.choose(&names));
                bytes = text.replacen(old, new, 1 + random.below(2)).into_bytes();
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Damages a safetensors file.
fn damage_file(file: &[u8], random: &mut SplitMix) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut bytes = file.to_vec();
    match random.below(10) {
        // Damage the header; its length is correct.
        0..=4 => {
            let header = damage_text(std::str::from_utf8(&file[8..8 + length]).unwrap(), random);
            bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &file[8 + length..]]
                .concat();
        }
        // Change the length of the header.
        5 => {
            let new = *random.choose(&[
                0,
                1,
                length as u64 - 1,
                length as u64 + 1,
                file.len() as u64,
                100_000_000,
                100_000_001,
                1 << 40,
                u64::MAX - 7,
                u64::MAX,
            ]);
            bytes[..8].copy_from_slice(&new.to_le_bytes());
        }
        6 => bytes.truncate(random.below(file.len())),
        7 => bytes.extend((0..1 + random.below(64)).map(|_| random.bits() as u8)),
        // Flip bits of the data.
        8 => (0..=random.below(8)).for_each(|_| {
            bytes[8 + length + random.below(file.len() - 8 - length)] ^= 1 << random.below(8)
        }),
        _ => (0..=random.below(8))
            .for_each(|_| bytes[8 + random.below(length)] = random.bits() as u8),
    }
    bytes
}

#[test]
fn damaged_weights_are_refused_or_loaded() {
    let folder = Folder::new();
    let (cases, seed) = cases(40_000);
    let mut random = SplitMix(seed);
    let arrays = [
        Array::from_fn([4, 3], |i| i as f32),
        Array::from_fn([5], |i| -(i as f32)),
        Array::zeros([0, 2]),
        Array::from_fn([], |_| 1.0),
    ];
    let names = ["wte.weight", "h.0.ln.bias", "empty", "scale"];
    let tensors: Vec<(&str, &Array)> = names.into_iter().zip(&arrays).collect();
    let config = Config::parse(configs::GPT2.as_bytes(), "config.json").unwrap();
    let valid = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| {
        let dir = folder.join(dtype.to_string());
        save(&dir, &config, &tensors, &SaveOptions { dtype, ..Default::default() }).unwrap();
        fs::read(dir.join("model.safetensors")).unwrap()
    });

    let (mut opened, mut loaded, mut refused) = (0, 0, 0);
    let path = folder.join("damaged.safetensors");
    let from_disk = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Weights::open(&path)
    };
    let before = peak_memory();
    for case in 0..cases {
        let file: &Vec<u8> = random.choose(&valid);
        let bytes = damage_file(file, &mut random);
        // Files are slow, so only some cases use them.
        let weights = if case % 64 == 0 {
            from_disk(&bytes)
        } else {
            Weights::from_bytes(bytes.clone(), "x")
        };
        let Ok(weights) = weights.map_err(|error| assert!(error.to_string().len() < 1000)) else {
            refused += 1;
            continue;
        };
        opened += 1;
        // The `safetensors` crate, which is less strict, must accept the file too.
        assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok(), "seed {seed}, case {case}");
        for name in weights.names() {
            let shape = weights.shape(name).unwrap();
            if let Ok(array) = weights.load(name, shape) {
                loaded += 1;
                assert_eq!(array.shape(), shape, "seed {seed}, case {case}");
                assert!(array.data().iter().all(|x| x.is_finite()), "seed {seed}, case {case}");
                assert!(array.len() * 2 <= bytes.len(), "seed {seed}, case {case}");
            }
        }
    }
    assert_less_than_a_gigabyte(before);
    // The test is meaningful only if enough files are accepted and refused.
    assert!(
        opened > cases / 20 && refused > cases / 4 && loaded > cases / 20,
        "{opened} {refused} {loaded}"
    );
}

#[test]
fn damaged_indices_are_refused_or_loaded() {
    let folder = Folder::new();
    let (cases, seed) = cases(400);
    let mut random = SplitMix(seed);
    let config = Config::parse(configs::GPT2.as_bytes(), "config.json").unwrap();
    let array = Array::zeros([2]);
    let names = ["a", "b", "c"].map(|name| (name, &array));
    save(folder.join("m"), &config, &names, &SaveOptions { shard_bytes: 0, ..Default::default() })
        .unwrap();
    let path = folder.join("m/model.safetensors.index.json");
    let valid = fs::read_to_string(&path).unwrap();
    let mut opened = 0;
    for case in 0..cases {
        fs::write(&path, damage_text(&valid, &mut random)).unwrap();
        if let Ok(weights) = Weights::open(folder.join("m")) {
            opened += 1;
            assert!(
                weights.names().all(|name| weights.load(name, &[2]).is_ok()),
                "seed {seed}, case {case}"
            );
        }
    }
    assert!(opened > 0 && opened < cases);
}

/// Returns a random JSON value.
fn value(random: &mut SplitMix, depth: usize) -> Value {
    match random.below(if depth == 0 { 9 } else { 12 }) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(random.bits()),
        3 => json!(-(random.below(1 << 30) as i64)),
        4 => json!(random.below(1 << 26)),
        5 => json!(f64::from_bits(random.bits())),
        6 => json!(random.below(40)),
        7 => json!(*random.choose(&[
            "",
            "gelu",
            "silu",
            "linear",
            "llama3",
            "default",
            "bert",
            "llama",
            "mistral",
            "GPT2LMHeadModel",
            "absolute",
            "1"
        ])),
        8 => json!(1u64 << random.below(64)),
        9 => (0..random.below(5)).map(|_| value(random, depth - 1)).collect(),
        10 => {
            let keys = ["rope_type", "factor", "rope_theta"];
            keys.map(|key| (key.to_string(), value(random, 0))).into_iter().collect()
        }
        _ => (0..random.below(5))
            .map(|i| (i.to_string(), value(random, depth - 1)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

/// Changes up to four keys of a configuration.
fn damage_config(
    valid: &Map<String, Value>,
    keys: &[String],
    random: &mut SplitMix,
) -> Map<String, Value> {
    let mut map = valid.clone();
    for _ in 0..=random.below(3) {
        let key = random.choose(keys).clone();
        match random.below(8) {
            0 => drop(map.remove(&key)),
            1 if map.get(&key).is_some_and(Value::is_object) => {
                let inner: Vec<String> = map[&key].as_object().unwrap().keys().cloned().collect();
                if !inner.is_empty() {
                    map[&key][random.choose(&inner)] = value(random, 1);
                }
            }
            _ => drop(map.insert(key, value(random, 3))),
        }
    }
    map
}

#[test]
fn damaged_configurations_are_refused_or_parsed() {
    let (cases, seed) = cases(30_000);
    let mut random = SplitMix(seed);
    let valid = [configs::GPT2, configs::LLAMA, configs::BERT]
        .map(|text| serde_json::from_str::<Map<String, Value>>(text).unwrap());
    let more = [
        "rope_parameters",
        "id2label",
        "num_labels",
        "n_inner",
        "sliding_window",
        "layer_types",
        "partial_rotary_factor",
        "pruned_heads",
    ];
    let mut keys: Vec<String> =
        valid.iter().flat_map(|map| map.keys().cloned()).chain(more.map(String::from)).collect();
    keys.sort();
    keys.dedup();
    let before = peak_memory();
    let (mut accepted, mut refused) = (0, 0);
    for case in 0..cases {
        let text = match random.below(4) {
            0 => {
                damage_text(&Value::Object(random.choose(&valid).clone()).to_string(), &mut random)
            }
            _ => {
                Value::Object(damage_config(random.choose(&valid), &keys, &mut random)).to_string()
            }
        };
        match Config::parse(text.as_bytes(), Path::new("config.json")) {
            Ok(config) => {
                accepted += 1;
                config.architecture.check().unwrap();
                let again = Config::parse(config.to_json(Dtype::F32).as_bytes(), "again").unwrap();
                assert_eq!(
                    again.architecture, config.architecture,
                    "seed {seed}, case {case}: {text}"
                );
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(
                    error.starts_with("config.json: ")
                        && error.len() < 1000
                        && !error.contains('\n'),
                    "seed {seed}, case {case}: {error}"
                );
            }
        }
    }
    assert_less_than_a_gigabyte(before);
    assert!(accepted > cases / 20 && refused > cases / 20, "{accepted} {refused}");
}
