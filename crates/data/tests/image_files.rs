//! Images in files: folders with a subfolder for each class, and lists of paths.
#![allow(clippy::unwrap_used)]

use data::{Content, Error, Format, Label, ReadOptions, Record};
use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage};
use std::fs;
use std::io::Cursor;
use std::path::Path;

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A red image with this height and width.
fn red(height: u32, width: u32, format: ImageFormat) -> Vec<u8> {
    encoded(RgbImage::from_pixel(width, height, Rgb([255, 0, 0])), format)
}

fn grey(height: u32, width: u32, value: u8) -> Vec<u8> {
    encoded(GrayImage::from_pixel(width, height, Luma([value])), ImageFormat::Png)
}

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn sized(size: [usize; 3]) -> ReadOptions {
    ReadOptions { image_size: Some(size), ..ReadOptions::default() }
}

fn read(path: &Path, options: &ReadOptions) -> Result<Vec<Record>, Error> {
    Format::detect(path)?.read(path, options)?.collect()
}

/// Pixels, shape and label of an image.
fn image(record: &Record) -> (&[f32], [usize; 3], &str) {
    match &record.content {
        Content::Image { pixels, height, width, channels, label: Label::Name(label) } => {
            (pixels, [*height, *width, *channels], label)
        }
        _ => panic!("no image with a name"),
    }
}

fn labels(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| image(record).2).collect()
}

#[test]
fn subfolders_are_classes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "dog/b.JPG", &red(8, 8, ImageFormat::Jpeg));
    put(root, "dog/a.png", &red(8, 8, ImageFormat::Png));
    put(root, "cat/x.jpeg", &red(8, 8, ImageFormat::Jpeg));
    put(root, "cat/.hidden.png", b"x");
    put(root, "cat/notes.txt", b"x");
    put(root, "empty/notes.txt", b"x");
    put(root, "README.md", b"x");
    let records = read(root, &ReadOptions::default()).unwrap();
    assert_eq!(labels(&records), ["cat", "dog", "dog"]);
    assert_eq!(records.iter().map(|record| record.line).collect::<Vec<_>>(), [1, 2, 3]);
    let (pixels, shape, _) = image(&records[1]);
    assert_eq!((pixels.len(), shape), (8 * 8 * 3, [8, 8, 3]));
    assert_eq!(pixels[..6], [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
}

/// Only a configured size changes an image, and an image is changed by itself.
#[test]
fn images_of_other_sizes_are_refused_or_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "a/1.png", &red(8, 8, ImageFormat::Png));
    put(root, "a/2.png", &red(9, 30, ImageFormat::Png));
    put(root, "b/3.png", &grey(5, 5, 51));
    let message = read(root, &ReadOptions::default()).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "2.png: expected an image of 8 × 8 pixels with 3 channels, as the first has; got \
             another size; set data.image_size = [8, 8, 3] to scale all images to that size"
        ),
        "{message}"
    );
    let records = read(root, &sized([4, 6, 3])).unwrap();
    assert!(records.iter().all(|record| image(record).1 == [4, 6, 3]));
    assert!(image(&records[1]).0.chunks(3).all(|pixel| pixel == [1.0, 0.0, 0.0]));
    assert!(image(&records[2]).0.iter().all(|value| *value == 0.2));
    let grey_records = read(root, &sized([2, 2, 1])).unwrap();
    assert!(grey_records.iter().all(|record| image(record).1 == [2, 2, 1]));
    // The other images do not change one.
    fs::remove_file(root.join("a/1.png")).unwrap();
    let fewer = read(root, &sized([4, 6, 3])).unwrap();
    assert!(fewer.iter().zip(&records[1..]).all(|(a, b)| a.content == b.content));
}

#[test]
fn invalid_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let refusal = || read(root, &ReadOptions::default()).unwrap_err().to_string();
    let without = "expected a file, or a folder with a subfolder of PNG or JPEG images for each \
                   class; got a folder without images";
    assert!(refusal().ends_with(without), "{}", refusal());
    put(root, "loose.png", &grey(1, 1, 0));
    assert!(refusal().ends_with(without), "{}", refusal());
    put(root, "a/1.png", &grey(1, 1, 0));
    assert!(
        refusal().ends_with(
            "expected a subfolder of images for each class, got the image loose.png beside them"
        ),
        "{}",
        refusal()
    );
    fs::remove_file(root.join("loose.png")).unwrap();
    put(root, "a/deeper/2.png", &grey(1, 1, 0));
    assert!(
        refusal().ends_with("a: expected the image files of one class, got a folder among them")
    );
    fs::remove_dir_all(root.join("a/deeper")).unwrap();
    put(root, "a/2.png", b"not an image");
    assert!(refusal().ends_with("2.png: expected a PNG or JPEG image, got another file"));
    let mut damaged = red(8, 8, ImageFormat::Png);
    damaged.truncate(60);
    put(root, "a/2.png", &damaged);
    assert!(refusal().ends_with("2.png: the image is damaged"), "{}", refusal());
    let group = ReadOptions { group: Some("x".into()), ..ReadOptions::default() };
    assert_eq!(
        read(root, &group).unwrap_err().to_string(),
        "data.group does not apply to the format image-folder; remove it"
    );
    assert!(Format::Lines.read(root, &ReadOptions::default()).is_err());
}

#[test]
fn listed_images_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "photos/1.png", &grey(2, 3, 51));
    put(root, "photos/2.png", &grey(2, 3, 255));
    put(root, "list.csv", b"file_name,label,who\nphotos/1.png,cat,ann\n photos/2.png ,dog,bob\n");
    put(root, "list.jsonl", b"{\"image\": \"photos/1.png\", \"label\": \"cat\", \"who\": 1}\n");
    let grouped = ReadOptions { group: Some("who".into()), ..ReadOptions::default() };
    let records = read(&root.join("list.csv"), &grouped).unwrap();
    assert_eq!(labels(&records), ["cat", "dog"]);
    assert_eq!(image(&records[0]).0, [0.2; 6]);
    assert!(records[1].group.as_deref() == Some("bob"));
    let records = read(&root.join("list.jsonl"), &grouped).unwrap();
    assert_eq!((labels(&records), image(&records[0]).1), (vec!["cat"], [2, 3, 1]));
    // A column that is named takes precedence over a text.
    put(root, "both.csv", b"text,photo,label\nx,photos/1.png,cat\n");
    let named = ReadOptions { image: Some("photo".into()), ..ReadOptions::default() };
    assert_eq!(labels(&read(&root.join("both.csv"), &named).unwrap()), ["cat"]);
    put(root, "bad.csv", b"image,label\nphotos/1.png,cat\nsecret.png,dog\nphotos,dog\n");
    let message = read(&root.join("bad.csv"), &grouped_none()).unwrap_err().to_string();
    assert!(message.contains("bad.csv, line 3: the image file cannot be read:"), "{message}");
    assert!(!message.contains("secret"), "{message}");
    put(root, "bad.csv", b"image,label\nphotos,dog\n");
    let message = read(&root.join("bad.csv"), &grouped_none()).unwrap_err().to_string();
    assert!(message.ends_with("expected the path of an image file, got something else"));
}

fn grouped_none() -> ReadOptions {
    ReadOptions::default()
}

#[test]
fn invalid_sizes_are_refused() {
    for size in [[0, 1, 1], [1, 0, 3], [1, 1, 2], [4096, 1, 1]] {
        let message = match Format::ImageFolder.read("x", &sized(size)) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{size:?}"),
        };
        assert_eq!(
            message,
            format!(
                "data.image_size: expected height and width from 1 to 2048 and 1 or 3 channels, \
                 got {size:?}"
            )
        );
    }
}

/// A small file can stand for many pixels.
#[test]
fn memory_of_an_image_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a/1.png", &grey(4000, 4000, 0));
    let options = ReadOptions { max_row_bytes: 1 << 20, ..ReadOptions::default() };
    let message = read(folder.path(), &options).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "expected an image of at most 1048576 bytes, got a larger one; set data.image_size to \
             scale images"
        ),
        "{message}"
    );
    let scaled = ReadOptions { image_size: Some([8, 8, 1]), ..options.clone() };
    let mut records = None;
    let seen =
        allocation_counter::measure(|| records = Some(read(folder.path(), &scaled).unwrap().len()));
    assert_eq!(records, Some(1));
    assert!(seen.bytes_max < 64 << 20, "{}", seen.bytes_max);
    let small = ReadOptions { max_row_bytes: 1 << 10, ..scaled };
    assert!(read(folder.path(), &small).is_err());
}
