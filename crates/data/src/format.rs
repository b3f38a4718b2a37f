//! Data formats, and their detection from a file's name and first bytes.

use crate::error::{Error, Result};
use crate::read;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Number of bytes that detection reads.
const HEAD: usize = 64 << 10;

/// Extensions of compressed files.
const COMPRESSED: [&str; 3] = [".gz", ".zst", ".zstd"];

/// The format of a data file. Each is described in its reader in `read/`.
///
/// ```
/// assert_eq!("tsv".parse::<data::Format>()?, data::Format::Tsv);
/// # Ok::<(), data::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `MR||text` on each line, or CSV with the header `mr,ref`.
    E2e,
    /// A JSON array of sets of triples with their annotations.
    Dart,
    /// One example per line.
    Lines,
    /// One JSON object per line: instruction and output, prompt and completion, or messages.
    Instructions,
    /// Text and label in tab-separated columns, without quoting.
    Tsv,
    /// Text or path of an image and label, in columns separated by commas or other characters.
    Csv,
    /// Text or path of an image and label, in one JSON object per line.
    Jsonl,
    /// Images in the IDX format of MNIST, with a file of labels.
    Idx,
    /// A PNG in which each row of pixels is an image, with a file of labels.
    PngStrip,
    /// A table in the format Parquet: texts with labels, prompts with answers, or images.
    Parquet,
    /// A table in the IPC format of Arrow, as a file (Feather) or a stream.
    Arrow,
    /// A folder with a subfolder of PNG or JPEG images for each class.
    ImageFolder,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 12] = [
        Self::E2e,
        Self::Dart,
        Self::Lines,
        Self::Instructions,
        Self::Tsv,
        Self::Csv,
        Self::Jsonl,
        Self::Idx,
        Self::PngStrip,
        Self::Parquet,
        Self::Arrow,
        Self::ImageFolder,
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
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::ImageFolder => "image-folder",
        }
    }

    /// Detects the format of a file from its name and its first bytes.
    ///
    /// # Errors
    /// If no format or several formats match; the error lists them.
    pub fn detect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Self::detect_from_bytes(path, &read::head(path, HEAD)?);
        }
        if read::is_image_folder(path)? {
            return Ok(Self::ImageFolder);
        }
        let what = "expected a file, or a folder with a subfolder of PNG or JPEG images for each \
                    class; got a folder without images";
        Err(Error::Folder { path: path.into(), what: what.into() })
    }

    /// Detects the format from a file's name and its first bytes, decompressed.
    pub fn detect_from_bytes(path: &Path, head: &[u8]) -> Result<Self> {
        if head.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Ok(Self::PngStrip);
        }
        if read::is_parquet(head) {
            return Ok(Self::Parquet);
        }
        if read::is_arrow(head) {
            return Ok(Self::Arrow);
        }
        // Two zeros, then the element type: 8 is unsigned bytes. A file of labels passes here; its
        // reader reports the error.
        if head.starts_with(&[0, 0, 8]) {
            return Ok(Self::Idx);
        }
        let text = valid_text(head);
        if text.trim().is_empty() && text.len() == head.len() {
            return Err(Error::Empty { path: path.into() });
        }
        detect_text(&extension(path), text, head.len() >= HEAD)
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

/// The file's extension in lower case, without that of a compression.
fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = COMPRESSED.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    name.rsplit_once('.').map(|(_, extension)| extension.to_owned()).unwrap_or_default()
}

/// The valid UTF-8 at the start. The reader reports what follows, with its line.
fn valid_text(head: &[u8]) -> &str {
    let good = match str::from_utf8(head) {
        Ok(text) => return text,
        Err(error) => error.valid_up_to(),
    };
    str::from_utf8(&head[..good]).unwrap_or_default()
}

/// The format of a text file, or the candidates.
fn detect_text(extension: &str, text: &str, cut: bool) -> std::result::Result<Format, Vec<Format>> {
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
    if let Some((instructions, labelled)) = read::json_kinds(first) {
        return match (instructions, labelled) {
            (true, false) => Ok(Format::Instructions),
            (false, true) => Ok(Format::Jsonl),
            _ => Err(vec![Format::Instructions, Format::Jsonl]),
        };
    }
    match extension {
        "json" => Err(vec![Format::Dart, Format::Instructions, Format::Jsonl]),
        "jsonl" | "ndjson" => Err(vec![Format::Instructions, Format::Jsonl]),
        _ => detect_lines(extension, &lines),
    }
}

fn detect_lines(extension: &str, lines: &[&str]) -> std::result::Result<Format, Vec<Format>> {
    let first = lines.first().copied().unwrap_or_default();
    let separated = lines.iter().filter(|line| line.contains("||")).count();
    if separated == lines.len() {
        return Ok(Format::E2e);
    }
    if separated > 0 {
        return Err(vec![Format::E2e, Format::Lines]);
    }
    match read::header_separator(first) {
        Some(read::Separator::Tab) => return Ok(Format::Tsv),
        Some(_) => return Ok(Format::Csv),
        None => {}
    }
    let tabs = |line: &str| line.matches('\t').count();
    if lines.len() > 1 && tabs(first) > 0 && lines.iter().all(|line| tabs(line) == tabs(first)) {
        return Err(vec![Format::Tsv, Format::Lines]);
    }
    // Any text could be lines. They are accepted only with the extension of a text file.
    if matches!(extension, "txt" | "text" | "") {
        Ok(Format::Lines)
    } else {
        Err(vec![Format::Lines])
    }
}
