//! Reading of JSON files of limited size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::Error;

/// Largest size of a file, in bytes. An index of a million tensors is smaller.
const MAX_BYTES: u64 = 100_000_000;

/// Reads a regular file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    if !fs::metadata(path).map_err(Error::reading(path))?.is_file() {
        return Err(Error::reading(path)(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(Error::reading(path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::malformed(
            path,
            format!("expected at most {MAX_BYTES} bytes, got more"),
        ));
    }
    Ok(bytes)
}
