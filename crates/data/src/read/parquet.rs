//! `parquet`: a file of columns with its own compression (Snappy, gzip, LZ4 or zstd).
//!
//! A few rows are decoded at a time, and of a file only the columns that are read.

use super::ReadOptions;
use super::columnar::Batches;
use crate::error::{Error, Result};
use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Rows that are decoded together.
const BATCH_ROWS: usize = 64;
/// Largest size of a page and of the footer, in rows of the largest size.
const MAX_ROWS: usize = 16;

/// Whether these are the first bytes of a file.
pub(crate) fn is_parquet(head: &[u8]) -> bool {
    head.starts_with(b"PAR1")
}

pub(super) struct Parquet {
    stage: Option<Stage>,
    names: Vec<String>,
    path: PathBuf,
}

/// A file before and after its columns are selected.
enum Stage {
    Open(Box<ParquetRecordBatchReaderBuilder<CheckedFile>>),
    Reading(Box<ParquetRecordBatchReader>),
}

impl Parquet {
    pub(super) fn new(file: File, path: &Path, options: &ReadOptions) -> Result<Self> {
        let file = CheckedFile::new(file, options).map_err(|error| damaged(path, &error))?;
        let builder = text::guarded(|| ParquetRecordBatchReaderBuilder::try_new(file))
            .ok_or_else(|| panicked(path))?
            .map_err(|error| damaged(path, &error))?
            .with_batch_size(BATCH_ROWS);
        let names = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
        Ok(Self { stage: Some(Stage::Open(Box::new(builder))), names, path: path.into() })
    }
}

impl Batches for Parquet {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn select(&mut self, columns: &[usize]) -> Result<()> {
        if let Some(Stage::Open(builder)) = self.stage.take() {
            let reader = text::guarded(|| {
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
                builder.with_projection(mask).build()
            });
            let reader = reader.ok_or_else(|| panicked(&self.path))?;
            let reader = reader.map_err(|error| damaged(&self.path, &error))?;
            self.stage = Some(Stage::Reading(Box::new(reader)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(Stage::Reading(mut reader)) = self.stage.take() else { return Ok(None) };
        let batch = text::guarded(|| reader.next()).ok_or_else(|| panicked(&self.path))?;
        self.stage = Some(Stage::Reading(reader));
        batch.transpose().map_err(|error| Error::Columnar {
            path: self.path.clone(),
            what: super::columnar::described(&error),
        })
    }
}

fn damaged(path: &Path, error: &ParquetError) -> Error {
    let what = match error {
        ParquetError::NYI(what) => format!("not supported: {what}"),
        ParquetError::EOF(_) => "the file is truncated or damaged".into(),
        ParquetError::External(_) => "the file cannot be read".into(),
        _ => "not a valid Parquet file".into(),
    };
    Error::Columnar { path: path.into(), what }
}

fn panicked(path: &Path) -> Error {
    Error::Columnar { path: path.into(), what: "the file is damaged".into() }
}

/// A file that refuses to read more than it has, or pages that are too large.
struct CheckedFile {
    file: File,
    length: u64,
    max_bytes: u64,
}

impl CheckedFile {
    fn new(file: File, options: &ReadOptions) -> std::result::Result<Self, ParquetError> {
        let length = file.metadata()?.len();
        let max_bytes = options.max_row_bytes.saturating_mul(MAX_ROWS) as u64;
        Ok(Self { file, length, max_bytes })
    }

    fn at(&self, start: u64) -> std::result::Result<File, ParquetError> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }
}

impl Length for CheckedFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for CheckedFile {
    type T = BufReader<File>;

    /// Reads the header of a page, whose size when decompressed must be within the limit.
    fn get_read(&self, start: u64) -> std::result::Result<Self::T, ParquetError> {
        let mut header = [0; 16];
        let read = self.at(start)?.read(&mut header)?;
        if page_size(&header[..read]).is_some_and(|size| size > self.max_bytes) {
            return Err(ParquetError::NYI(format!("a page of more than {} bytes", self.max_bytes)));
        }
        Ok(BufReader::new(self.at(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> std::result::Result<Bytes, ParquetError> {
        let length = length as u64;
        if start.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF("a range beyond the end of the file".into()));
        }
        if length > self.max_bytes {
            return Err(ParquetError::NYI(format!("a part of more than {} bytes", self.max_bytes)));
        }
        let mut bytes = Vec::new();
        self.at(start)?.take(length).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < length {
            return Err(ParquetError::EOF("the file was truncated".into()));
        }
        Ok(bytes.into())
    }
}

/// The decompressed size in the header of a page.
///
/// The header is a structure in the compact protocol of Thrift. Its first two fields are 32-bit
/// integers, the kind of the page and this size: each is a byte 0x15 and a zigzag number of 7 bits
/// per byte.
fn page_size(header: &[u8]) -> Option<u64> {
    let mut bytes = header.iter().copied();
    let mut number = || {
        (bytes.next()? == 0x15).then_some(())?;
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = bytes.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value >> 1);
            }
        }
        None
    };
    number()?;
    number()
}
