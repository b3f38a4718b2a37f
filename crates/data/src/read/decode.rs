//! PNG and JPEG images of any size, as pixels of one size.
//!
//! With [`ReadOptions::image_size`], the largest part in the centre of an image that has the
//! proportions of that size is scaled to it (linear interpolation, averaged where it shrinks), and
//! converted to grey or RGB. An image becomes pixels by itself: nothing depends on another image.
//! Without the option, all images must have the size of the first, and none is changed.
//! Transparency and orientation tags are ignored.

use super::ReadOptions;
use crate::error::{Error, Result};
use crate::record::{Content, Label};
use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageFormat, RgbImage};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

/// A file of an image, and its pixels before they are scaled, take at most this many rows.
const MAX_ROWS: usize = 16;

/// Decodes images.
pub(super) struct ImageReader {
    size: Option<[usize; 3]>,
    /// The size of the first image: height, width and channels.
    first: Cell<Option<[usize; 3]>>,
    max_bytes: usize,
    /// Largest number of values of an image.
    max_elements: usize,
}

impl ImageReader {
    pub(super) fn new(options: &ReadOptions) -> Self {
        Self {
            size: options.image_size,
            first: Cell::new(None),
            max_bytes: options.max_row_bytes.saturating_mul(MAX_ROWS),
            max_elements: options.max_row_bytes,
        }
    }

    /// The image at a path relative to the file that lists it. The path is not shown.
    pub(super) fn listed(
        &self,
        image: &str,
        list: &Path,
        line: u64,
        label: Label,
    ) -> Result<Content> {
        let path = list.parent().unwrap_or(Path::new("")).join(image);
        self.read(&path, label, || format!("{}, line {line}", list.display()))
    }

    /// The image in a file.
    pub(super) fn read(
        &self,
        path: &Path,
        label: Label,
        place: impl Fn() -> String,
    ) -> Result<Content> {
        let bytes = self.bytes(path).map_err(|what| Error::Image { place: place(), what })?;
        self.decode(&bytes, label, place)
    }

    fn bytes(&self, path: &Path) -> std::result::Result<Vec<u8>, String> {
        let failed = |error: std::io::Error| format!("the image file cannot be read: {error}");
        // Opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err("expected the path of an image file, got something else".into());
        }
        let mut bytes = Vec::new();
        let limit = self.max_bytes as u64 + 1;
        File::open(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(failed)?;
        Ok(bytes)
    }

    /// The image that these bytes encode.
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        label: Label,
        place: impl Fn() -> String,
    ) -> Result<Content> {
        let refuse = |what: String| Error::Image { place: place(), what };
        if bytes.len() > self.max_bytes {
            let limit = self.max_bytes;
            return Err(refuse(format!("expected an image file of at most {limit} bytes")));
        }
        let max_decoded =
            if self.size.is_some() { self.max_bytes } else { self.max_elements } as u64;
        // The decoders are not trusted not to panic.
        let image = text::guarded(|| decoded(bytes, max_decoded))
            .unwrap_or(Err(Refusal::Damaged))
            .map_err(|refusal| match refusal {
                Refusal::Kind => refuse("expected a PNG or JPEG image, got another file".into()),
                Refusal::Damaged => refuse("the image is damaged".into()),
                Refusal::Large => refuse(format!(
                    "expected an image of at most {max_decoded} bytes, got a larger one{}",
                    if self.size.is_none() { "; set data.image_size to scale images" } else { "" }
                )),
            })?;
        self.content(image, label, place)
    }

    /// The content of an image, scaled if there is a size.
    pub(super) fn content(
        &self,
        image: DynamicImage,
        label: Label,
        place: impl Fn() -> String,
    ) -> Result<Content> {
        let channels = if image.color().has_color() { 3 } else { 1 };
        let own = [image.height() as usize, image.width() as usize, channels];
        let shape = match self.size {
            Some(size) => size,
            None => self.first.get().unwrap_or(own),
        };
        if self.size.is_none() {
            self.first.set(Some(shape));
            if own != shape {
                let [height, width, channels] = shape;
                let what = format!(
                    "expected an image of {height} × {width} pixels with {channels} channels, as \
                     the first has; got another size; set data.image_size = [{height}, {width}, \
                     {channels}] to scale all images to that size"
                );
                return Err(Error::Image { place: place(), what });
            }
        }
        let [height, width, channels] = shape;
        let pixels = fit(image, shape).iter().map(|byte| f32::from(*byte) / 255.0).collect();
        Ok(Content::Image { pixels, height, width, channels, label })
    }
}

/// An image of bytes, row by row and channels last; `None` unless it is grey or RGB.
pub(super) fn from_bytes(
    bytes: &[u8],
    [height, width, channels]: [usize; 3],
) -> Option<DynamicImage> {
    let (height, width) = (u32::try_from(height).ok()?, u32::try_from(width).ok()?);
    match channels {
        1 => GrayImage::from_raw(width, height, bytes.to_vec()).map(DynamicImage::ImageLuma8),
        3 => RgbImage::from_raw(width, height, bytes.to_vec()).map(DynamicImage::ImageRgb8),
        _ => None,
    }
}

/// Why bytes are not an image.
enum Refusal {
    Kind,
    Damaged,
    Large,
}

fn decoded(bytes: &[u8], max_bytes: u64) -> std::result::Result<DynamicImage, Refusal> {
    let mut reader = image::ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|_| Refusal::Kind)?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg)) {
        return Err(Refusal::Kind);
    }
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(max_bytes.saturating_mul(2));
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|_| Refusal::Damaged)?;
    if decoder.total_bytes() > max_bytes {
        return Err(Refusal::Large);
    }
    DynamicImage::from_decoder(decoder).map_err(|_| Refusal::Damaged)
}

/// Bytes of the centre of an image, scaled to a height, a width and 1 or 3 channels.
fn fit(image: DynamicImage, [height, width, channels]: [usize; 3]) -> Vec<u8> {
    let image = match channels {
        1 => DynamicImage::ImageLuma8(image.into_luma8()),
        _ => DynamicImage::ImageRgb8(image.into_rgb8()),
    };
    // The options are checked: the sizes fit into 32 bits.
    let (height, width) = (height as u32, width as u32);
    if (image.height(), image.width()) == (height, width) {
        return image.into_bytes();
    }
    // The largest part with these proportions.
    let scaled = |side: u32, numerator: u32, denominator: u32| {
        (u64::from(side) * u64::from(numerator) / u64::from(denominator.max(1))).max(1)
    };
    let part = |own: u32, other: u64| u64::from(own).min(other) as u32;
    let rows = part(image.height(), scaled(image.width(), height, width));
    let columns = part(image.width(), scaled(image.height(), width, height));
    let (top, left) = ((image.height() - rows) / 2, (image.width() - columns) / 2);
    image
        .crop_imm(left, top, columns, rows)
        .resize_exact(width, height, FilterType::Triangle)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(height: usize, width: usize, channels: usize) -> DynamicImage {
        let bytes: Vec<u8> = (0..height * width)
            .flat_map(|at| std::iter::repeat_n((at % width * 10) as u8, channels))
            .collect();
        from_bytes(&bytes, [height, width, channels]).unwrap()
    }

    /// The centre of the longer side is kept, and columns are averaged.
    #[test]
    fn images_are_cropped_and_scaled() {
        assert_eq!(fit(ramp(2, 6, 1), [2, 2, 1]), [20, 30, 20, 30]);
        assert_eq!(fit(ramp(6, 2, 1), [2, 2, 1]), [0, 10, 0, 10]);
        let halves = fit(ramp(4, 4, 1), [2, 2, 1]);
        assert!(halves[0] < halves[1] && halves[..2] == halves[2..], "{halves:?}");
        // Extreme proportions take no more memory than the image.
        assert_eq!(fit(ramp(1, 100, 1), [32, 32, 3]).len(), 32 * 32 * 3);
    }

    #[test]
    fn grey_and_colour_are_converted() {
        assert_eq!(fit(ramp(1, 2, 1), [1, 2, 3]), [0, 0, 0, 10, 10, 10]);
        assert_eq!(fit(ramp(1, 2, 3), [1, 2, 1]), [0, 10]);
    }
}
