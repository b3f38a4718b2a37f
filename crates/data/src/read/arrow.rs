//! `arrow`: record batches in the IPC format of Arrow, as a file (Feather) or as a stream.
//!
//! A file is a stream between its magic bytes and a footer, and is read as one: schema,
//! dictionaries and batches in their order, with LZ4 or zstd compression or none. The lengths of a
//! message are checked before it is read, because the decoder trusts them.

use super::ReadOptions;
use super::columnar::{Batches, described};
use super::input::Input;
use crate::error::{Error, Result};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::ArrowError;
use std::path::PathBuf;

/// The magic bytes of a file, with their padding.
const MAGIC: &[u8] = b"ARROW1\0\0";
/// The first bytes of a stream: the start of a message.
const CONTINUATION: &[u8] = &[0xff; 4];

/// Whether these are the first bytes of a file or stream.
pub(crate) fn is_arrow(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || head.starts_with(CONTINUATION)
}

/// Words of padding that may follow the magic bytes.
const MAX_PADDING: usize = 16;
/// Largest size of a message, in rows of the largest size.
const MAX_ROWS: usize = 16;

pub(super) struct Arrow {
    input: Input,
    path: PathBuf,
    decoder: StreamDecoder,
    names: Vec<String>,
    /// The columns that are read.
    columns: Vec<usize>,
    max_bytes: usize,
    /// The length of the header of the next message; `None` at the end.
    next: Option<usize>,
    /// Bytes of the next message that the decoder does not have.
    ahead: Vec<u8>,
}

impl Arrow {
    pub(super) fn new(mut input: Input, options: &ReadOptions) -> Result<Self> {
        let mut start = Vec::new();
        input.up_to(4, &mut start)?;
        let mut arrow = Self {
            path: input.path(),
            input,
            decoder: StreamDecoder::new(),
            names: Vec::new(),
            columns: Vec::new(),
            max_bytes: options.max_row_bytes.saturating_mul(MAX_ROWS),
            next: None,
            ahead: Vec::new(),
        };
        if MAGIC.starts_with(&start) && !start.is_empty() {
            start.extend(arrow.part(4)?);
            if start != MAGIC {
                return Err(arrow.refuse("the file is truncated or damaged"));
            }
            // Some writers align the first message to 64 bytes.
            start = arrow.part(4)?;
            for _ in 0..MAX_PADDING {
                if start == [0; 4] {
                    start = arrow.part(4)?;
                }
            }
        }
        arrow.next = arrow.prefix(start)?;
        let batch = arrow.decode_next()?;
        match arrow.decoder.schema() {
            Some(schema) if batch.is_none() => {
                arrow.names = schema.fields().iter().map(|field| field.name().clone()).collect();
                Ok(arrow)
            }
            _ => Err(arrow.refuse("expected a schema at the start")),
        }
    }

    fn refuse(&self, what: &str) -> Error {
        Error::Columnar { path: self.path.clone(), what: what.into() }
    }

    /// Reads and decodes one message. Returns its batch, if it is one.
    fn decode_next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(length) = self.next else { return Ok(None) };
        let (header, body) = self.message(length)?;
        let mut message = std::mem::take(&mut self.ahead);
        message.extend(header);
        message.extend(body);
        // A message without a body is decoded when the decoder has the start of the next one.
        let start = self.part(4)?;
        self.next = self.prefix(start)?;
        message.append(&mut self.ahead);
        let mut buffer = Buffer::from_vec(message);
        let decoder = &mut self.decoder;
        text::guarded(|| {
            let mut batch = None;
            while !buffer.is_empty() {
                batch = decoder.decode(&mut buffer)?.or(batch);
            }
            Ok(batch)
        })
        .unwrap_or_else(|| Err(ArrowError::IpcError(String::new())))
        .map_err(|error| self.refuse(&described(&error)))
    }

    /// Reads the length of the message that starts with these four bytes; `None` at the end.
    fn prefix(&mut self, mut prefix: Vec<u8>) -> Result<Option<usize>> {
        if prefix.is_empty() {
            return Ok(None);
        }
        // Streams before version 0.15 have no such marker.
        if prefix == CONTINUATION {
            prefix.extend(self.part(4)?);
        }
        let length = prefix.last_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        match length.filter(|_| prefix.len().is_multiple_of(4)) {
            Some(length) => {
                self.ahead = prefix;
                Ok(Some(length).filter(|length| *length > 0))
            }
            None => Err(self.refuse("the file is truncated")),
        }
    }

    /// The header and the body of a message.
    fn message(&mut self, length: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        self.check_length(length)?;
        let header = self.part(length)?;
        if header.len() < length {
            return Err(self.refuse("the file is truncated"));
        }
        let (body_length, compressed) = self.body(&header)?;
        self.check_length(body_length)?;
        let body = self.part(body_length)?;
        if body.len() < body_length {
            return Err(self.refuse("the file is truncated"));
        }
        let mut decompressed = 0_usize;
        for (offset, length) in compressed {
            decompressed = decompressed.saturating_add(self.decompressed(&body, offset, length)?);
        }
        self.check_length(decompressed)?;
        Ok((header, body))
    }

    fn part(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut part = Vec::new();
        self.input.up_to(bytes, &mut part)?;
        Ok(part)
    }

    fn check_length(&self, length: usize) -> Result<()> {
        if length <= self.max_bytes {
            return Ok(());
        }
        Err(self.refuse(&format!(
            "expected record batches of at most {} bytes, got a larger one; write the file with \
             fewer rows in a batch",
            self.max_bytes
        )))
    }

    /// The length of the body of a message, and the ranges in it that are compressed.
    fn body(&self, header: &[u8]) -> Result<(usize, Vec<(usize, usize)>)> {
        let damaged = || self.refuse("the header of a message is damaged");
        let message = arrow_ipc::root_as_message(header).map_err(|_| damaged())?;
        let body = usize::try_from(message.bodyLength()).map_err(|_| damaged())?;
        let batch = message
            .header_as_record_batch()
            .or_else(|| message.header_as_dictionary_batch().and_then(|batch| batch.data()));
        let buffers = batch.filter(|batch| batch.compression().is_some());
        let buffers = buffers.and_then(|batch| batch.buffers());
        let range = |offset: i64, length: i64| {
            usize::try_from(offset).ok().zip(usize::try_from(length).ok()).ok_or_else(damaged)
        };
        let ranges = buffers.iter().flatten();
        let ranges = ranges.map(|buffer| range(buffer.offset(), buffer.length()));
        Ok((body, ranges.collect::<Result<Vec<_>>>()?))
    }

    /// The length that a compressed buffer says it has.
    fn decompressed(&self, body: &[u8], offset: usize, length: usize) -> Result<usize> {
        if length == 0 {
            return Ok(0);
        }
        let prefix = offset.checked_add(8).and_then(|end| body.get(offset..end));
        let prefix = prefix.and_then(|bytes| bytes.first_chunk());
        match prefix.map(|bytes| i64::from_le_bytes(*bytes)) {
            // Not compressed.
            Some(-1) => Ok(0),
            Some(length) if length >= 0 => Ok(usize::try_from(length).unwrap_or(usize::MAX)),
            _ => Err(self.refuse("a compressed value is damaged")),
        }
    }
}

impl Batches for Arrow {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn select(&mut self, columns: &[usize]) -> Result<()> {
        self.columns = columns.to_vec();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.next.is_some() {
            if let Some(batch) = self.decode_next()? {
                let batch = batch.project(&self.columns);
                return batch.map(Some).map_err(|error| self.refuse(&described(&error)));
            }
        }
        Ok(None)
    }
}
