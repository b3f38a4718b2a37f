//! `image-folder`: a folder with a subfolder of PNG and JPEG files for each class.
//!
//! The name of a subfolder is the label of its images. Images are read in the order of the names of
//! subfolders and files. Hidden files and files with another extension are ignored; the number of
//! records is that of the files, whatever is in them.

use super::decode::ImageReader;
use super::{LabelRule, ReadOptions, Rows};
use crate::error::{Error, Result};
use crate::record::{Label, Record};
use std::fs;
use std::path::{Path, PathBuf};

/// Extensions of image files.
const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

pub(super) struct ImageFolder {
    /// Subfolders that have not been read, the next one last.
    classes: Vec<PathBuf>,
    /// Files of the current subfolder that have not been read, the next one last.
    files: Vec<PathBuf>,
    label: String,
    label_rule: LabelRule,
    images: ImageReader,
    read: u64,
}

impl ImageFolder {
    pub(super) fn new(path: &Path, options: &ReadOptions) -> Result<Self> {
        let mut classes = entries(path)?;
        if let Some(file) = classes.iter().find(|entry| is_image(entry) && entry.is_file()) {
            let what = format!(
                "expected a subfolder of images for each class, got the image {} beside them",
                file.file_name().unwrap_or_default().to_string_lossy()
            );
            return Err(Error::Folder { path: path.into(), what });
        }
        classes.retain(|entry| entry.is_dir());
        classes.reverse();
        let (images, label_rule) = (ImageReader::new(options), options.label_rule);
        let (files, label) = (Vec::new(), String::new());
        Ok(Self { classes, files, label, label_rule, images, read: 0 })
    }

    /// Starts the next subfolder; `false` after the last.
    fn next_class(&mut self) -> Result<bool> {
        let Some(class) = self.classes.pop() else { return Ok(false) };
        let name = class.file_name().and_then(|name| name.to_str());
        let refuse = |what: &str| Error::Folder { path: class.clone(), what: what.into() };
        self.label = name.ok_or_else(|| refuse("expected a name in UTF-8"))?.into();
        self.files = entries(&class)?;
        if self.files.iter().any(|entry| entry.is_dir()) {
            return Err(refuse("expected the image files of one class, got a folder among them"));
        }
        self.files.retain(|entry| is_image(entry));
        self.files.reverse();
        Ok(true)
    }
}

impl Rows for ImageFolder {
    fn next(&mut self) -> Result<Option<Record>> {
        let file = loop {
            match self.files.pop() {
                Some(file) => break file,
                None if !self.next_class()? => return Ok(None),
                None => {}
            }
        };
        self.read += 1;
        let label = match self.label_rule {
            LabelRule::Ignored => Label::None,
            _ => Label::Name(self.label.clone()),
        };
        let content = self.images.read(&file, label, || file.display().to_string())?;
        Ok(Some(Record { content, group: None, line: self.read }))
    }
}

/// Whether a folder has a subfolder with an image in it.
pub(crate) fn is_image_folder(path: &Path) -> Result<bool> {
    for class in entries(path)?.iter().filter(|entry| entry.is_dir()) {
        if entries(class)?.iter().any(|entry| is_image(entry)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// The entries of a folder that are not hidden, by name.
fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(io_error)? {
        let entry = entry.map_err(io_error)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            entries.push(entry.path());
        }
    }
    entries.sort();
    Ok(entries)
}
