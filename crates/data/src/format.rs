//! The formats by name, and how to tell them from a file's name and its first bytes.

use crate::error::{Error, Result};
use crate::read;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// As many bytes of a file are looked at.
const HEAD: usize = 64 << 10;

/// How a data file is written. What each looks like stands in the files of the folder `read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `MR||text` on each line, or CSV with the header `mr,ref`.
    E2e,
    /// A JSON array of sets of triples with their annotations.
    Dart,
    /// An example on each line.
    Lines,
    /// An object on each line: instruction and output, prompt and completion, or messages.
    Instructions,
    /// Text and label between tabs; nothing is quoted.
    Tsv,
    /// Text and label between commas.
    Csv,
    /// Text and label in an object on each line.
    Jsonl,
    /// Grey images as MNIST has them, with a file of labels.
    Idx,
    /// A PNG of which each row of pixels is an image, with a file of labels.
    PngStrip,
}

impl Format {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::E2e,
        Self::Dart,
        Self::Lines,
        Self::Instructions,
        Self::Tsv,
        Self::Csv,
        Self::Jsonl,
        Self::Idx,
        Self::PngStrip,
    ];

    /// The name, as `--format` takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::E2e => "e2e",
            Self::Dart => "dart",
            Self::Lines => "lines",
            Self::Instructions => "instructions",
            Self::Tsv => "tsv",
            Self::Csv => "csv",
            Self::Jsonl => "jsonl",
            Self::Idx => "idx",
            Self::PngStrip => "png-strip",
        }
    }

    /// The format of a file, from its name and its first bytes. What could be several is refused,
    /// with the candidates.
    pub fn detect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::detect_from_bytes(path, &read::head(path, HEAD)?)
    }

    /// The same from bytes that were read already and are not compressed any more.
    pub fn detect_from_bytes(path: &Path, head: &[u8]) -> Result<Self> {
        if head.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Ok(Self::PngStrip);
        }
        // Two zeros, then the type of the numbers: 8 is unsigned bytes. A file of labels is let
        // through: its reader says what is wrong.
        if head.starts_with(&[0, 0, 8]) {
            return Ok(Self::Idx);
        }
        let text = start_of_text(head);
        if text.trim().is_empty() && text.len() == head.len() {
            return Err(Error::Empty { path: path.into() });
        }
        of_text(&extension(path), text, head.len() >= HEAD)
            .map_err(|candidates| Error::Ambiguous { path: path.into(), candidates })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| Error::UnknownFormat { got: name.into() })
    }
}

/// The end of the file's name, in small letters, without what says that it is compressed.
fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').map(|(_, extension)| extension.to_owned()).unwrap_or_default()
}

/// As far as it is UTF-8. What comes after is for the reader to refuse, with its line.
fn start_of_text(head: &[u8]) -> &str {
    let good = match str::from_utf8(head) {
        Ok(text) => return text,
        Err(error) => error.valid_up_to(),
    };
    str::from_utf8(&head[..good]).unwrap_or_default()
}

/// The format, or the candidates.
fn of_text(extension: &str, text: &str, cut: bool) -> std::result::Result<Format, Vec<Format>> {
    if text.trim().is_empty() || text.contains('\0') {
        return Err(Vec::new());
    }
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if cut && lines.len() > 1 {
        lines.pop();
    }
    let first = lines.first().copied().unwrap_or_default();
    if read::is_e2e_header(first) {
        return Ok(Format::E2e);
    }
    match extension {
        "csv" => return Ok(Format::Csv),
        "tsv" => return Ok(Format::Tsv),
        _ => {}
    }
    if text.trim_start().starts_with('[') && text.contains("\"tripleset\"") {
        return Ok(Format::Dart);
    }
    if let Some((instructions, labelled)) = read::json_shapes(first) {
        return match (instructions, labelled) {
            (true, false) => Ok(Format::Instructions),
            (false, true) => Ok(Format::Jsonl),
            _ => Err(vec![Format::Instructions, Format::Jsonl]),
        };
    }
    match extension {
        "json" => Err(vec![Format::Dart, Format::Instructions, Format::Jsonl]),
        "jsonl" | "ndjson" => Err(vec![Format::Instructions, Format::Jsonl]),
        _ => of_lines(extension, &lines),
    }
}

fn of_lines(extension: &str, lines: &[&str]) -> std::result::Result<Format, Vec<Format>> {
    let first = lines.first().copied().unwrap_or_default();
    let barred = lines.iter().filter(|line| line.contains("||")).count();
    if barred == lines.len() {
        return Ok(Format::E2e);
    }
    if barred > 0 {
        return Err(vec![Format::E2e, Format::Lines]);
    }
    if read::is_header(first.split('\t')) {
        return Ok(Format::Tsv);
    }
    if read::is_header(first.split(',').map(|cell| cell.trim_matches('"'))) {
        return Ok(Format::Csv);
    }
    let tabs = |line: &str| line.matches('\t').count();
    if lines.len() > 1 && tabs(first) > 0 && lines.iter().all(|line| tabs(line) == tabs(first)) {
        return Err(vec![Format::Tsv, Format::Lines]);
    }
    // Any text could be lines. Only a name that says no more than "text" is taken at its word.
    if matches!(extension, "txt" | "text" | "") {
        Ok(Format::Lines)
    } else {
        Err(vec![Format::Lines])
    }
}
