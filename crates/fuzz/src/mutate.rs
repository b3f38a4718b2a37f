//! Damage to bytes that knows nothing of their format.

use crate::chance::Chance;

/// What a mutation may draw on.
#[derive(Clone, Copy, Debug)]
pub struct Material<'a> {
    /// Words of the format.
    pub words: &'a [&'a str],
    /// Another input, to be spliced in.
    pub other: &'a [u8],
    /// No result is longer.
    pub longest: usize,
}

/// What stands in for a number in a text.
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

/// What stands in for a number in a binary file.
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

/// Pieces that are not UTF-8, or that are and surprise.
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

/// Changes the bytes in one to eight ways.
pub fn mutate(chance: &mut Chance, bytes: &mut Vec<u8>, material: Material<'_>) {
    // Mostly little, so that much of what was right stays so.
    for _ in 0..chance.one(&[1, 1, 1, 1, 2, 2, 4, 8]).copied().unwrap_or(1) {
        change(chance, bytes, material);
        bytes.truncate(material.longest);
    }
}

fn change(chance: &mut Chance, bytes: &mut Vec<u8>, material: Material<'_>) {
    let length = bytes.len();
    let at = chance.below(length + 1);
    match chance.below(20) {
        0 => edit(bytes, at, |byte| byte ^ (1 << chance.below(8))),
        1 => {
            let new = chance.one(&BYTES).copied().unwrap_or_default();
            edit(bytes, at, |_| new);
        }
        2 => insert(
            bytes,
            at,
            &vec![chance.one(&BYTES).copied().unwrap_or_default(); 1 + chance.below(32)],
        ),
        3 => {
            let random: Vec<u8> = (0..1 + chance.below(16)).map(|_| chance.bits() as u8).collect();
            insert(bytes, at, &random);
        }
        4 => drop(bytes.drain(chance.range(length, 32))),
        5 => drop(bytes.drain(chance.range(length, length))),
        6 => {
            let part = bytes[chance.range(length, 256)].to_vec();
            let times = 1 << chance.below(5);
            insert(bytes, at, &part.repeat(times));
        }
        7 => {
            let part: Vec<u8> = bytes.drain(chance.range(length, 64)).collect();
            let at = chance.below(bytes.len() + 1);
            insert(bytes, at, &part);
        }
        8 => bytes.truncate(at),
        9 => {
            let from = chance.below(material.other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&material.other[from..]);
        }
        10 => {
            let part = &material.other[chance.range(material.other.len(), 128)];
            insert(bytes, at, part);
        }
        11 => insert(bytes, at, word(chance, material)),
        12 => {
            let range =
                run_of(bytes, at, |byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
            bytes.splice(range, word(chance, material).iter().copied());
        }
        13 | 14 => number(chance, bytes, at),
        15 => integer(chance, bytes, at),
        16 => insert(bytes, at, chance.one(&PIECES).copied().unwrap_or_default()),
        17 => nest(chance, bytes, at),
        18 => {
            // One item of a list less, or once more.
            let range = run_of(bytes, at, |byte| !b",\n{}[]".contains(&byte));
            let item = bytes[range.start..(range.end + 1).min(length)].to_vec();
            if chance.once_in(2) {
                bytes.drain(range.start..range.start + item.len());
            } else {
                insert(bytes, range.start, &item);
            }
        }
        _ => {
            let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            let (one, other) = (chance.below(lines.len()), chance.below(lines.len()));
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

fn word<'a>(chance: &mut Chance, material: Material<'a>) -> &'a [u8] {
    chance.one(material.words).map_or(b"null", |word| word.as_bytes())
}

/// The run of such bytes around a place.
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

/// Another number in place of the next one in the text.
fn number(chance: &mut Chance, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = (at..bytes.len()).find(|&place| bytes[place].is_ascii_digit()) else {
        return;
    };
    let range =
        start
            ..run_of(bytes, start, |byte| byte.is_ascii_digit() || b".eE+-_".contains(&byte))
                .end
                .max(start);
    let old = str::from_utf8(&bytes[range.clone()]).ok().and_then(|text| text.parse::<u64>().ok());
    let new = match (old, chance.below(4)) {
        (Some(old), 0) => old.wrapping_add(1).to_string(),
        (Some(old), 1) => old.wrapping_sub(1).to_string(),
        _ => chance.one(&NUMBERS).copied().unwrap_or_default().to_string(),
    };
    bytes.splice(range, new.bytes());
}

/// Another integer in place of some bytes, of either order.
fn integer(chance: &mut Chance, bytes: &mut [u8], at: usize) {
    let width = chance.one(&[2, 4, 8]).copied().unwrap_or(4);
    // Headers are at the beginning.
    let at = if chance.once_in(2) { chance.below(4) * width } else { at };
    let value =
        chance.one(&INTEGERS).copied().unwrap_or_default().wrapping_add(chance.below(2) as u64);
    let (little, big) = (value.to_le_bytes(), value.to_be_bytes());
    let new = if chance.once_in(2) { &little[..width] } else { &big[8 - width..] };
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(new);
    }
}

/// Many brackets, with or without those that close them.
fn nest(chance: &mut Chance, bytes: &mut Vec<u8>, at: usize) {
    let (open, close) = chance.one(&NESTS).copied().unwrap_or_default();
    let depth = chance.one(&[1, 2, 20, 126, 127, 128, 129, 600, 3000]).copied().unwrap_or(1);
    let inner = if chance.once_in(2) { "1" } else { "" };
    let closing = if chance.once_in(2) { close.repeat(depth) } else { String::new() };
    insert(bytes, at, format!("{}{inner}{closing}", open.repeat(depth)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_input_and_none_is_too_long() {
        let material =
            Material { words: &["word"], other: b"{\"another\": [1, 2, 3]}\n", longest: 400 };
        let make = |seed| {
            let mut chance = Chance::new("test", seed);
            let mut bytes = b"{\"one\": 1,\n \"two\": [2, \"x\"]}".to_vec();
            for _ in 0..20 {
                mutate(&mut chance, &mut bytes, material);
                assert!(bytes.len() <= 400);
            }
            bytes
        };
        let all: Vec<Vec<u8>> = (0..500).map(make).collect();
        assert_eq!(all[7], make(7));
        assert!(all.iter().collect::<std::collections::HashSet<_>>().len() > 400);
        let mut empty = Vec::new();
        let mut chance = Chance::new("empty", 0);
        (0..2000).for_each(|_| {
            mutate(&mut chance, &mut empty, Material { words: &[], other: &[], longest: 9 })
        });
    }
}
