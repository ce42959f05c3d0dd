//! The messages of an Arrow IPC stream, cut apart and checked before a byte of them is decoded.
//!
//! A message is a length, metadata that describes arrays, and a body that holds their buffers. Every length in it is
//! compared with what is there and with the limits of the run: of the metadata, of the body, of each buffer in the
//! body, what each compressed buffer says that it decompresses to, and the number of rows. The `arrow` crate trusts all
//! of them, and an allocation that fails ends the process. Bytes are taken in as they come, never by what a length
//! promises. Used by `arrow_stream`.

use std::collections::HashMap;
use std::io::{self, Read};

use arrow::buffer::Buffer;
use arrow::ipc::{self, MessageHeader, root_as_message};

use super::limits::ReadLimits;

/// What every message begins with since version 0.15 of the format.
pub(super) const CONTINUATION_MARKER: [u8; 4] = [0xff; 4];

/// Marker and length of the metadata.
const PREFIX_BYTES: usize = 8;

/// Says that a buffer of a compressed body is not compressed.
const NOT_COMPRESSED: i64 = -1;

/// Taken from the allocator before the first byte of a message has come.
const FIRST_BYTES: u64 = 64 << 10;

/// Why there is no next message.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The stream ends inside a message.
    CutOff,
    /// Reading failed.
    Failed(io::Error),
    /// The message contradicts itself, or is too large.
    Refused(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// A message whose lengths have been checked.
#[derive(Debug)]
pub(super) struct Message {
    bytes: Buffer,
    metadata_bytes: usize,
}

impl Message {
    /// What it describes.
    pub fn metadata(&self) -> Result<ipc::Message<'_>, Trouble> {
        parse(&self.bytes[PREFIX_BYTES..PREFIX_BYTES + self.metadata_bytes])
    }

    /// The buffers of its arrays.
    pub fn body(&self) -> Buffer {
        self.bytes.slice(PREFIX_BYTES + self.metadata_bytes)
    }
}

/// Messages one after the other.
pub(super) struct Messages {
    input: Box<dyn Read + Send>,
    /// Bytes of every dictionary by its number: they stay until another takes their place.
    dictionaries: HashMap<i64, u64>,
}

impl Messages {
    /// The messages of a stream.
    pub fn new(input: Box<dyn Read + Send>) -> Self {
        Self { input, dictionaries: HashMap::new() }
    }

    /// The next message; `None` at the end marker, or where the stream ends between two messages.
    pub fn next(&mut self, limits: &ReadLimits) -> Result<Option<Message>, Trouble> {
        let mut bytes = Vec::new();
        if !self.read(PREFIX_BYTES as u64, &mut bytes)? {
            return if bytes.is_empty() { Ok(None) } else { Err(Trouble::CutOff) };
        }
        let (marker, length) = bytes.split_at(CONTINUATION_MARKER.len());
        if marker != CONTINUATION_MARKER {
            return Err(Trouble::Refused("no message begins where one should: the stream is damaged".into()));
        }
        let length = i32::from_le_bytes(length.try_into().expect("the second half of eight bytes"));
        if length == 0 {
            return Ok(None);
        }
        let length = u64::try_from(length).map_err(|_| damaged("metadata of negative length"))?;
        limits.check_part("the metadata of a message", length)?;
        if !self.read(length, &mut bytes)? {
            return Err(Trouble::CutOff);
        }
        let metadata = parse(&bytes[PREFIX_BYTES..])?;
        let body = u64::try_from(metadata.bodyLength()).map_err(|_| damaged("a body of negative length"))?;
        limits.check_part("a message", body.saturating_add(self.kept()))?;
        if !self.read(body, &mut bytes)? {
            return Err(Trouble::CutOff);
        }
        let (before, body) = bytes.split_at(PREFIX_BYTES + length as usize);
        let metadata = parse(&before[PREFIX_BYTES..])?; // again: what it borrows has grown
        match metadata.header_type() {
            MessageHeader::RecordBatch => {
                let batch = metadata.header_as_record_batch().ok_or_else(|| damaged("a batch without arrays"))?;
                check_arrays(batch, before.len(), body, self.kept(), limits)?;
            }
            MessageHeader::DictionaryBatch => {
                let dictionary = metadata.header_as_dictionary_batch();
                let dictionary = dictionary.ok_or_else(|| damaged("a dictionary without an array"))?;
                let values = dictionary.data().ok_or_else(|| damaged("a dictionary without an array"))?;
                let taken = check_arrays(values, before.len(), body, self.kept(), limits)?;
                let kept = self.dictionaries.entry(dictionary.id()).or_default();
                *kept = if dictionary.isDelta() { kept.saturating_add(taken) } else { taken };
            }
            _ => {}
        }
        Ok(Some(Message { metadata_bytes: length as usize, bytes: Buffer::from_vec(bytes) }))
    }

    /// Bytes of all dictionaries.
    fn kept(&self) -> u64 {
        self.dictionaries.values().fold(0, |all, &bytes| all.saturating_add(bytes))
    }

    /// Adds so many bytes; false if the stream ends before.
    fn read(&mut self, count: u64, into: &mut Vec<u8>) -> Result<bool, Trouble> {
        into.reserve_exact(count.min(FIRST_BYTES) as usize);
        let read = self.input.by_ref().take(count).read_to_end(into).map_err(Trouble::Failed)?;
        Ok(read as u64 == count)
    }
}

fn parse(metadata: &[u8]) -> Result<ipc::Message<'_>, Trouble> {
    root_as_message(metadata).map_err(|error| damaged(&format!("metadata that cannot be read ({error})")))
}

fn damaged(what: &str) -> Trouble {
    Trouble::Refused(format!("{what}: the stream is damaged"))
}

/// Compares all lengths of some arrays with their body and the limits. Returns how many bytes they take, the body
/// included.
fn check_arrays(
    batch: ipc::RecordBatch<'_>,
    before: usize,
    body: &[u8],
    kept: u64,
    limits: &ReadLimits,
) -> Result<u64, Trouble> {
    let is_compressed = batch.compression().is_some();
    let mut arrays = 0u64;
    for buffer in batch.buffers().iter().flatten() {
        let start = usize::try_from(buffer.offset()).ok();
        let end =
            start.zip(usize::try_from(buffer.length()).ok()).and_then(|(start, length)| start.checked_add(length));
        let bytes = start.zip(end).and_then(|(start, end)| body.get(start..end));
        let bytes = bytes.ok_or_else(|| damaged("a buffer outside its message"))?;
        let taken = if is_compressed { decompressed(bytes)? } else { bytes.len() as u64 };
        arrays = arrays.saturating_add(taken);
    }
    let own = if is_compressed { arrays.saturating_add(body.len() as u64) } else { arrays.max(body.len() as u64) };
    limits.check_part("a message", own.saturating_add(kept))?;
    let has_negative = |node: &ipc::FieldNode| node.length() < 0 || node.null_count() < 0;
    if batch.length() < 0 || batch.nodes().iter().flatten().any(has_negative) {
        return Err(damaged("arrays of negative length"));
    }
    // A column takes at least a bit per row, so a lying row count costs no more than what was read.
    let most = (before as u64).saturating_add(own).saturating_mul(8);
    if batch.length() as u64 > most {
        return Err(damaged(&format!("{} rows in {own} bytes", batch.length())));
    }
    Ok(own)
}

/// What a buffer of a compressed body decompresses to, by its own word.
fn decompressed(buffer: &[u8]) -> Result<u64, Trouble> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let Some((&length, rest)) = buffer.split_first_chunk() else {
        return Err(damaged("a compressed buffer without its length"));
    };
    match i64::from_le_bytes(length) {
        NOT_COMPRESSED => Ok(rest.len() as u64),
        length => u64::try_from(length).map_err(|_| damaged("a compressed buffer of negative length")),
    }
}
