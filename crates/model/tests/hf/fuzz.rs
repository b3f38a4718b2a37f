//! Damaged files, many thousands of them: none panics, none asks for much memory, and whatever is
//! accepted keeps its promises.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use model::hf::{Config, Dtype, SaveOptions, Weights, save};
use serde_json::{Map, Value, json};
use tensor::Array;

use super::configs;
use super::folder::Folder;

/// How many cases, and the seed. `MUFFLE_CASES=20` draws twenty times as many, new ones each time.
fn cases(cases: usize) -> (usize, u64) {
    match std::env::var("MUFFLE_CASES").ok().and_then(|times| times.parse::<usize>().ok()) {
        Some(times) => {
            (cases * times, SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
        }
        None => (cases, 7),
    }
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Bytes of address space that the process has had at most, where the system tells.
fn peak() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
}

/// Threads and other tests take some hundreds of megabytes of address space; a length out of a
/// damaged file would take more.
fn no_more_than_a_gigabyte(before: Option<usize>) {
    if let (Some(before), Some(after)) = (before, peak()) {
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

/// A header, a little wrong.
fn damage_text(text: &str, chance: &mut Chance) -> String {
    let mut bytes = text.trim_end().as_bytes().to_vec();
    for _ in 0..=chance.below(3) {
        let at = chance.below(bytes.len());
        match chance.below(7) {
            // Another number in place of one.
            0 | 1 => {
                let Some(from) = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit()) else {
                    continue;
                };
                let to = (from..bytes.len())
                    .find(|&i| !bytes[i].is_ascii_digit())
                    .unwrap_or(bytes.len());
                bytes.splice(from..to, chance.one(&NUMBERS).bytes());
            }
            2 => drop(bytes.splice(at..at, chance.one(&WORDS).bytes())),
            3 => drop(bytes.drain(at..(at + 1 + chance.below(20)).min(bytes.len()))),
            4 => bytes[at] ^= 1 << chance.below(8),
            // A part of it twice.
            5 => {
                let to = (at + chance.below(120)).min(bytes.len());
                let part = bytes[at..to].to_vec();
                let at = chance.below(bytes.len());
                bytes.splice(at..at, part);
            }
            // One type in place of another.
            _ => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let names: [&str; 9] =
                    ["F32", "F16", "BF16", "F64", "I64", "U8", "F4", "BOOL", "C64"];
                let (old, new) = (*chance.one(&names[..3]), *chance.one(&names));
                bytes = text.replacen(old, new, 1 + chance.below(2)).into_bytes();
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A safetensors file, a little wrong.
fn damage_file(file: &[u8], chance: &mut Chance) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut bytes = file.to_vec();
    match chance.below(10) {
        // The header, with its right length.
        0..=4 => {
            let header = damage_text(std::str::from_utf8(&file[8..8 + length]).unwrap(), chance);
            bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &file[8 + length..]]
                .concat();
        }
        // Its length.
        5 => {
            let new = *chance.one(&[
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
        6 => bytes.truncate(chance.below(file.len())),
        7 => bytes.extend((0..1 + chance.below(64)).map(|_| chance.bits() as u8)),
        // The numbers.
        8 => (0..=chance.below(8)).for_each(|_| {
            bytes[8 + length + chance.below(file.len() - 8 - length)] ^= 1 << chance.below(8)
        }),
        _ => (0..=chance.below(8))
            .for_each(|_| bytes[8 + chance.below(length)] = chance.bits() as u8),
    }
    bytes
}

#[test]
fn damaged_weights() {
    let folder = Folder::new();
    let (cases, seed) = cases(40_000);
    let mut chance = Chance(seed);
    let arrays = [
        Array::from_fn([4, 3], |i| i as f32),
        Array::from_fn([5], |i| -(i as f32)),
        Array::zeros([0, 2]),
        Array::from_fn([], |_| 1.0),
    ];
    let names = ["wte.weight", "h.0.ln.bias", "empty", "scale"];
    let tensors: Vec<(&str, &Array)> = names.into_iter().zip(&arrays).collect();
    let config = Config::parse(configs::GPT2.as_bytes(), "config.json").unwrap();
    let sound = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| {
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
    let before = peak();
    for case in 0..cases {
        let file: &Vec<u8> = chance.one(&sound);
        let bytes = damage_file(file, &mut chance);
        // Files are slow; a few will do.
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
        // Another reader accepts it too: ours is the stricter one.
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
    no_more_than_a_gigabyte(before);
    // Of both there are enough for the test to say something.
    assert!(
        opened > cases / 20 && refused > cases / 4 && loaded > cases / 20,
        "{opened} {refused} {loaded}"
    );
}

#[test]
fn damaged_indices() {
    let folder = Folder::new();
    let (cases, seed) = cases(400);
    let mut chance = Chance(seed);
    let config = Config::parse(configs::GPT2.as_bytes(), "config.json").unwrap();
    let array = Array::zeros([2]);
    let names = ["a", "b", "c"].map(|name| (name, &array));
    save(folder.join("m"), &config, &names, &SaveOptions { shard_bytes: 0, ..Default::default() })
        .unwrap();
    let path = folder.join("m/model.safetensors.index.json");
    let sound = fs::read_to_string(&path).unwrap();
    let mut opened = 0;
    for case in 0..cases {
        fs::write(&path, damage_text(&sound, &mut chance)).unwrap();
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

/// Some JSON.
fn value(chance: &mut Chance, depth: usize) -> Value {
    match chance.below(if depth == 0 { 9 } else { 12 }) {
        0 => Value::Null,
        1 => json!(chance.below(2) == 0),
        2 => json!(chance.bits()),
        3 => json!(-(chance.below(1 << 30) as i64)),
        4 => json!(chance.below(1 << 26)),
        5 => json!(f64::from_bits(chance.bits())),
        6 => json!(chance.below(40)),
        7 => json!(*chance.one(&[
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
        8 => json!(1u64 << chance.below(64)),
        9 => (0..chance.below(5)).map(|_| value(chance, depth - 1)).collect(),
        10 => {
            json!({ "rope_type": value(chance, 0), "factor": value(chance, 0), "rope_theta": value(chance, 0) })
        }
        _ => (0..chance.below(5))
            .map(|i| (i.to_string(), value(chance, depth - 1)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn damage_config(
    sound: &Map<String, Value>,
    all: &[String],
    chance: &mut Chance,
) -> Map<String, Value> {
    let mut map = sound.clone();
    for _ in 0..=chance.below(3) {
        let key = chance.one(all).clone();
        match chance.below(8) {
            0 => drop(map.remove(&key)),
            1 if map.get(&key).is_some_and(Value::is_object) => {
                let inner: Vec<String> = map[&key].as_object().unwrap().keys().cloned().collect();
                if !inner.is_empty() {
                    map[&key][chance.one(&inner)] = value(chance, 1);
                }
            }
            _ => drop(map.insert(key, value(chance, 3))),
        }
    }
    map
}

#[test]
fn damaged_configurations() {
    let (cases, seed) = cases(30_000);
    let mut chance = Chance(seed);
    let sound = [configs::GPT2, configs::LLAMA, configs::BERT]
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
    let mut all: Vec<String> =
        sound.iter().flat_map(|map| map.keys().cloned()).chain(more.map(String::from)).collect();
    all.sort();
    all.dedup();
    let before = peak();
    let (mut accepted, mut refused) = (0, 0);
    for case in 0..cases {
        let text = match chance.below(4) {
            0 => damage_text(&Value::Object(chance.one(&sound).clone()).to_string(), &mut chance),
            _ => Value::Object(damage_config(chance.one(&sound), &all, &mut chance)).to_string(),
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
    no_more_than_a_gigabyte(before);
    assert!(accepted > cases / 20 && refused > cases / 20, "{accepted} {refused}");
}
