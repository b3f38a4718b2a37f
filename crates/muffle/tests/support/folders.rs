//! Folders of runs, for tests that work on a copy.

#![allow(clippy::unwrap_used)]

use std::path::Path;

/// Copies a folder with its content.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let there = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &there);
        } else {
            std::fs::copy(&path, &there).unwrap();
        }
    }
}
