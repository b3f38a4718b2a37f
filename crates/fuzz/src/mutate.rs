//! Format-independent mutations of bytes.

use crate::random::Random;

/// Material for mutations.
#[derive(Clone, Copy, Debug)]
pub struct Material<'a> {
    /// Words of the format.
    pub words: &'a [&'a str],
    /// Another input, for splicing.
    pub other: &'a [u8],
    /// Largest length of the result.
    pub max_length: usize,
}

/// Replacements of a number in a text.
const NUMBERS: [&str; 40] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "16",
    "-1",
    "-0",
    "0.5",
    "1.0",
    "127",
    "255",
    "256",
    "1024",
    "65535",
    "65536",
    "16777216",
    "2147483647",
    "2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e3",
    "1e15",
    "1e308",
    "1e999",
    "-1e999",
    "5e-324",
    "1e-999",
    "NaN",
    "inf",
    "1_000",
];

/// Replacements of an integer in a binary file.
const INTEGERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    9,
    127,
    255,
    256,
    4096,
    65_535,
    100_000_000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    u64::MAX / 2,
    u64::MAX,
];

const BYTES: [u8; 20] = [
    0, 1, 9, 10, 13, 32, b'"', b'\'', b',', b':', b'\\', b'[', b']', b'{', b'}', b'|', b'/', 0x7f,
    0x80, 0xff,
];

/// Invalid UTF-8, and unusual valid UTF-8.
const PIECES: [&[u8]; 14] = [
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\x80",
    "\u{feff}".as_bytes(),
    "\u{2028}".as_bytes(),
    "\u{1f600}".as_bytes(),
    "İ".as_bytes(),
    "ẞ".as_bytes(),
    "\u{301}".as_bytes(),
    b"\\u0000",
    b"\\ud800",
];

const NESTS: [(&str, &str); 6] =
    [("[", "]"), ("{\"a\":", "}"), ("[[", "]]"), ("\"", "\""), ("[a.", "]"), ("(", ")")];

/// Applies one to eight mutations.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, material: Material<'_>) {
    // Mostly few, so that most of the input stays valid.
    for _ in 0..random.one(&[1, 1, 1, 1, 2, 2, 4, 8]).copied().unwrap_or(1) {
        change(random, bytes, material);
        bytes.truncate(material.max_length);
    }
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, material: Material<'_>) {
    let length = bytes.len();
    let at = random.below(length + 1);
    match random.below(20) {
        0 => edit(bytes, at, |byte| byte ^ (1 << random.below(8))),
        1 => {
            let new = random.one(&BYTES).copied().unwrap_or_default();
            edit(bytes, at, |_| new);
        }
        2 => insert(
            bytes,
            at,
            &vec![random.one(&BYTES).copied().unwrap_or_default(); 1 + random.below(32)],
        ),
        3 => {
            let random: Vec<u8> = (0..1 + random.below(16)).map(|_| random.bits() as u8).collect();
            insert(bytes, at, &random);
        }
        4 => drop(bytes.drain(random.range(length, 32))),
        5 => drop(bytes.drain(random.range(length, length))),
        6 => {
            let part = bytes[random.range(length, 256)].to_vec();
            let times = 1 << random.below(5);
            insert(bytes, at, &part.repeat(times));
        }
        7 => {
            let part: Vec<u8> = bytes.drain(random.range(length, 64)).collect();
            let at = random.below(bytes.len() + 1);
            insert(bytes, at, &part);
        }
        8 => bytes.truncate(at),
        9 => {
            let from = random.below(material.other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&material.other[from..]);
        }
        10 => {
            let part = &material.other[random.range(material.other.len(), 128)];
            insert(bytes, at, part);
        }
        11 => insert(bytes, at, word(random, material)),
        12 => {
            let range =
                run_of(bytes, at, |byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
            bytes.splice(range, word(random, material).iter().copied());
        }
        13 | 14 => number(random, bytes, at),
        15 => integer(random, bytes, at),
        16 => insert(bytes, at, random.one(&PIECES).copied().unwrap_or_default()),
        17 => nest(random, bytes, at),
        18 => {
            // Removes or duplicates an item of a list.
            let range = run_of(bytes, at, |byte| !b",\n{}[]".contains(&byte));
            let item = bytes[range.start..(range.end + 1).min(length)].to_vec();
            if random.once_in(2) {
                bytes.drain(range.start..range.start + item.len());
            } else {
                insert(bytes, range.start, &item);
            }
        }
        _ => {
            let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            let (one, other) = (random.below(lines.len()), random.below(lines.len()));
            let mut order: Vec<usize> = (0..lines.len()).collect();
            if !order.is_empty() {
                order.swap(one, other);
            }
            *bytes = order.into_iter().flat_map(|line| lines[line].to_vec()).collect();
        }
    }
}

fn edit(bytes: &mut [u8], at: usize, with: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = with(*byte);
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    let at = at.min(bytes.len());
    bytes.splice(at..at, part.iter().copied());
}

fn word<'a>(random: &mut Random, material: Material<'a>) -> &'a [u8] {
    random.one(material.words).map_or(b"null", |word| word.as_bytes())
}

/// The run of matching bytes around a position.
fn run_of(bytes: &[u8], at: usize, member: impl Fn(u8) -> bool) -> std::ops::Range<usize> {
    let start = bytes[..at.min(bytes.len())]
        .iter()
        .rposition(|&byte| !member(byte))
        .map_or(0, |before| before + 1);
    let end = bytes[start..]
        .iter()
        .position(|&byte| !member(byte))
        .map_or(bytes.len(), |after| start + after);
    start..end
}

/// Replaces the next number in the text.
fn number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = (at..bytes.len()).find(|&place| bytes[place].is_ascii_digit()) else {
        return;
    };
    let range =
        start
            ..run_of(bytes, start, |byte| byte.is_ascii_digit() || b".eE+-_".contains(&byte))
                .end
                .max(start);
    let old = str::from_utf8(&bytes[range.clone()]).ok().and_then(|text| text.parse::<u64>().ok());
    let new = match (old, random.below(4)) {
        (Some(old), 0) => old.wrapping_add(1).to_string(),
        (Some(old), 1) => old.wrapping_sub(1).to_string(),
        _ => random.one(&NUMBERS).copied().unwrap_or_default().to_string(),
    };
    bytes.splice(range, new.bytes());
}

/// Replaces some bytes by an integer of either byte order.
fn integer(random: &mut Random, bytes: &mut [u8], at: usize) {
    let width = random.one(&[2, 4, 8]).copied().unwrap_or(4);
    // Preferably at the beginning, where headers are.
    let at = if random.once_in(2) { random.below(4) * width } else { at };
    let value =
        random.one(&INTEGERS).copied().unwrap_or_default().wrapping_add(random.below(2) as u64);
    let (little, big) = (value.to_le_bytes(), value.to_be_bytes());
    let new = if random.once_in(2) { &little[..width] } else { &big[8 - width..] };
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(new);
    }
}

/// Inserts many brackets, closed or not.
fn nest(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let (open, close) = random.one(&NESTS).copied().unwrap_or_default();
    let depth = random.one(&[1, 2, 20, 126, 127, 128, 129, 600, 3000]).copied().unwrap_or(1);
    let inner = if random.once_in(2) { "1" } else { "" };
    let closing = if random.once_in(2) { close.repeat(depth) } else { String::new() };
    insert(bytes, at, format!("{}{inner}{closing}", open.repeat(depth)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_deterministic_and_bounded() {
        let material =
            Material { words: &["word"], other: b"{\"another\": [1, 2, 3]}\n", max_length: 400 };
        let make = |seed| {
            let mut random = Random::new("test", seed);
            let mut bytes = b"{\"one\": 1,\n \"two\": [2, \"x\"]}".to_vec();
            for _ in 0..20 {
                mutate(&mut random, &mut bytes, material);
                assert!(bytes.len() <= 400);
            }
            bytes
        };
        let all: Vec<Vec<u8>> = (0..500).map(make).collect();
        assert_eq!(all[7], make(7));
        assert!(all.iter().collect::<std::collections::HashSet<_>>().len() > 400);
        let mut empty = Vec::new();
        let mut random = Random::new("empty", 0);
        (0..2000).for_each(|_| {
            mutate(&mut random, &mut empty, Material { words: &[], other: &[], max_length: 9 })
        });
    }
}
