//! Buffered, decompressed input, and its division into rows.

use crate::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// Size of a read buffer. Compressed files use two.
const BUFFER: usize = 64 << 10;

/// Largest window of a zstd frame: 128 MiB, as `zstd -d` accepts.
const MAX_WINDOW_LOG: u32 = 27;

/// An open data file.
pub(super) struct Input {
    bytes: Box<dyn BufRead + Send>,
    path: PathBuf,
    /// The current line, counted from 1.
    line: u64,
    max_row_bytes: usize,
}

/// One row, which can have several lines.
#[derive(Default)]
pub(super) struct Row {
    /// The bytes, line ends included.
    pub(super) bytes: Vec<u8>,
    /// The first line.
    pub(super) line: u64,
}

impl Input {
    /// Detects gzip and zstd compression and skips a byte order mark.
    pub(super) fn new(
        bytes: impl Read + Send + 'static,
        path: &Path,
        max_row_bytes: usize,
    ) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.into(), source };
        let (start, bytes) = peek::<4>(Box::new(RetryInterrupted(bytes))).map_err(io_error)?;
        let bytes: Box<dyn Read + Send> = if start.starts_with(&[0x1f, 0x8b]) {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, bytes)))
        } else if start == [0x28, 0xb5, 0x2f, 0xfd] {
            let buffered = BufReader::with_capacity(BUFFER, bytes);
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(buffered).map_err(io_error)?;
            // A frame can ask for a window of any size; `zstd` writes at most 8 MiB by default.
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(io_error)?;
            Box::new(decoder)
        } else {
            bytes
        };
        let (start, mut bytes) = peek::<3>(bytes).map_err(io_error)?;
        if start == "\u{feff}".as_bytes() {
            bytes.read_exact(&mut [0; 3]).map_err(io_error)?;
        }
        Ok(Self {
            bytes: Box::new(BufReader::with_capacity(BUFFER, bytes)),
            path: path.into(),
            line: 0,
            max_row_bytes,
        })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub(super) fn max_row_bytes(&self) -> usize {
        self.max_row_bytes
    }

    /// Replaces the row by the next line that is not blank; `false` at the end.
    pub(super) fn next_line(&mut self, row: &mut Row) -> Result<bool> {
        loop {
            if !self.next_line_or_blank(row)? {
                return Ok(false);
            }
            if !row.bytes.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Replaces the row by the next line, blank or not; `false` at the end.
    pub(super) fn next_line_or_blank(&mut self, row: &mut Row) -> Result<bool> {
        row.bytes.clear();
        row.line = self.line + 1;
        self.append_line(row)
    }

    /// Appends a line to the row; `false` at the end of the file.
    pub(super) fn append_line(&mut self, row: &mut Row) -> Result<bool> {
        let limit = self.max_row_bytes.saturating_sub(row.bytes.len()).saturating_add(1);
        let read = (&mut self.bytes).take(limit as u64).read_until(b'\n', &mut row.bytes);
        let read = read.map_err(|source| self.io_error(source))?;
        if row.bytes.len() > self.max_row_bytes {
            return Err(self.too_long(row.line));
        }
        self.line += u64::from(read > 0);
        Ok(read > 0)
    }

    /// The row as text, without the last line end.
    pub(super) fn text<'r>(&self, row: &'r Row) -> Result<&'r str> {
        let bytes = row.bytes.strip_suffix(b"\n").unwrap_or(&row.bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            path: self.path(),
            line: row.line,
            offset: error.valid_up_to(),
        })
    }

    /// Replaces `into` by at most `bytes` of the next bytes.
    ///
    /// Memory grows with the bytes present, not with `bytes`.
    pub(super) fn up_to(&mut self, bytes: usize, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        (&mut self.bytes)
            .take(bytes as u64)
            .read_to_end(into)
            .map(|_| ())
            .map_err(|source| self.io_error(source))
    }

    /// The buffered next bytes; empty at the end.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        self.bytes.fill_buf().map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Consumes bytes returned by [`Self::fill`].
    pub(super) fn consume(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
    }

    /// The underlying stream, for a decoder.
    pub(super) fn into_bytes(self) -> Box<dyn BufRead + Send> {
        self.bytes
    }

    pub(super) fn too_long(&self, line: u64) -> Error {
        Error::TooLong { path: self.path(), line, limit: self.max_row_bytes }
    }

    fn io_error(&self, source: io::Error) -> Error {
        Error::Io { path: self.path(), source }
    }
}

/// Peeks at the first N bytes; returns them and the whole stream.
fn peek<const N: usize>(
    mut bytes: Box<dyn Read + Send>,
) -> io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut start = Vec::with_capacity(N);
    bytes.by_ref().take(N as u64).read_to_end(&mut start)?;
    Ok((start.clone(), Box::new(Cursor::new(start).chain(bytes))))
}

/// Retries reads that were interrupted by a signal.
struct RetryInterrupted<R>(R);

impl<R: Read> Read for RetryInterrupted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}
