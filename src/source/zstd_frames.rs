//! Where the frames of a zstd file begin and end, without decompressing.
//!
//! Frames can be decompressed by themselves, so they are the blocks of a compressed file. Frame and block headers say
//! how far to the next one; only they are looked at. The layout is that of RFC 8878, section 3. Used by
//! `compressed_tokens` and `jsonl`.

use std::ops::Range;

use bytes::Bytes;

use super::store::Shard;
use crate::error::{Error, Result};

/// Bytes fetched at once. Headers are at most 128 KiB apart, so a smaller window would mean a request for each.
const WINDOW_BYTES: u64 = 256 << 10;
/// A block decompresses to no more than this.
const MAX_BLOCK_BYTES: u32 = 128 << 10;
/// The longest frame header: magic, descriptor, window, dictionary, content size.
pub(super) const MAX_HEADER_BYTES: u64 = 4 + 1 + 1 + 4 + 8;

const MAGIC: u32 = 0xFD2F_B528;
/// Sixteen magic numbers of frames that hold something else.
const SKIPPABLE: Range<u32> = 0x184D_2A50..0x184D_2A60;

/// A frame that can be decompressed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its bytes in the file.
    pub range: Range<u64>,
    /// What it decompresses to, if its header says so.
    pub content_bytes: Option<u64>,
    /// What it decompresses to at most: it has this many blocks.
    pub max_content_bytes: u64,
}

/// The frames of a file, in order; those that are to be skipped are.
pub async fn scan(shard: &Shard) -> Result<Vec<Frame>> {
    let mut window = Window { shard, start: 0, bytes: Bytes::new() };
    let mut frames = Vec::new();
    let mut at = 0;
    while at < shard.size() {
        let magic = u32_at(window.get(at, 4).await?);
        if SKIPPABLE.contains(&magic) {
            at += 8 + u64::from(u32_at(window.get(at + 4, 4).await?));
        } else {
            let frame = frame(&mut window, at).await?;
            at = frame.range.end;
            frames.push(frame);
        }
        if at > shard.size() {
            return Err(window.cut_off(shard.size()));
        }
    }
    Ok(frames)
}

/// What a frame decompresses to, if its first bytes say so.
pub fn content_bytes(first: &[u8]) -> Option<u64> {
    Header::parse(first).ok()?.content_bytes
}

async fn frame(window: &mut Window<'_>, start: u64) -> Result<Frame> {
    let length = MAX_HEADER_BYTES.min(window.shard.size() - start);
    let header = match Header::parse(window.get(start, length).await?) {
        Ok(header) => header,
        Err(HeaderError::CutOff) => return Err(window.cut_off(start)),
        Err(HeaderError::Wrong(why)) => return Err(window.wrong(start, why)),
    };
    let mut at = start + header.length;
    let mut max_content_bytes = 0u64;
    loop {
        let bytes = window.get(at, 3).await?;
        let block = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        let (is_last, kind, size) = (block & 1 == 1, block >> 1 & 3, block >> 3);
        if kind == 3 || size > MAX_BLOCK_BYTES {
            return Err(window.wrong(at, "not the header of a zstd block"));
        }
        // A run length block holds one byte however long the run is.
        at += 3 + if kind == 1 { 1 } else { u64::from(size) };
        max_content_bytes += u64::from(if kind == 2 { MAX_BLOCK_BYTES } else { size });
        if is_last {
            break;
        }
    }
    at += if header.has_checksum { 4 } else { 0 };
    if at > window.shard.size() {
        return Err(window.cut_off(start));
    }
    if header.content_bytes.is_some_and(|bytes| bytes > max_content_bytes) {
        return Err(window.wrong(start, "a frame whose header promises more than its blocks hold"));
    }
    Ok(Frame { range: start..at, content_bytes: header.content_bytes, max_content_bytes })
}

struct Header {
    length: u64,
    has_checksum: bool,
    content_bytes: Option<u64>,
}

enum HeaderError {
    CutOff,
    Wrong(&'static str),
}

impl Header {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, HeaderError> {
        let (magic, rest) = bytes.split_at_checked(4).ok_or(HeaderError::CutOff)?;
        if u32_at(magic) != MAGIC {
            return Err(HeaderError::Wrong("no zstd frame begins here"));
        }
        let &descriptor = rest.first().ok_or(HeaderError::CutOff)?;
        if descriptor & 0x08 != 0 {
            return Err(HeaderError::Wrong("a zstd frame with a reserved bit set"));
        }
        let is_single_segment = descriptor & 0x20 != 0;
        let window = if is_single_segment { 0 } else { 1 };
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = match descriptor >> 6 {
            0 if !is_single_segment => 0,
            flag => 1 << flag,
        };
        let length = 4 + 1 + window + dictionary + size;
        let field = bytes.get(length - size..length).ok_or(HeaderError::CutOff)?;
        let mut content = [0; 8];
        content[..size].copy_from_slice(field);
        // Two bytes count from 256: smaller sizes have one.
        let content = u64::from_le_bytes(content) + if size == 2 { 256 } else { 0 };
        Ok(Self {
            length: length as u64,
            has_checksum: descriptor & 0x04 != 0,
            content_bytes: (size > 0).then_some(content),
        })
    }
}

/// A stretch of the file that moves forward.
struct Window<'a> {
    shard: &'a Shard,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    async fn get(&mut self, at: u64, length: u64) -> Result<&[u8]> {
        let size = self.shard.size();
        if at.checked_add(length).is_none_or(|end| end > size) {
            return Err(self.cut_off(at.min(size)));
        }
        if at < self.start || at + length > self.start + self.bytes.len() as u64 {
            self.bytes = self.shard.range(at..size.min(at + WINDOW_BYTES)).await?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + length as usize])
    }

    fn wrong(&self, at: u64, why: &str) -> Error {
        Error::format(format!("{}: byte {at}: {why}; is the file damaged?", self.shard.name()))
    }

    fn cut_off(&self, at: u64) -> Error {
        Error::format(format!(
            "{}: byte {at}: the file ends inside a zstd frame; was its writer interrupted?",
            self.shard.name()
        ))
    }
}

fn u32_at(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::super::store::{MemoryStore, resolve_in};
    use super::*;

    async fn shard(bytes: &[u8]) -> Shard {
        let store = MemoryStore::new([("a.zst".into(), bytes.to_vec())]);
        resolve_in(Arc::new(store), &["a.zst".into()]).await.unwrap().remove(0)
    }

    /// Hardly compressible bytes.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u32;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..length).map(step).collect()
    }

    #[tokio::test]
    async fn frames_of_every_kind_are_found_and_decompress_by_themselves() {
        let mut contents: Vec<Vec<u8>> = [0, 1, 255, 256, 65_791, 65_792, 300_000].map(noise).into();
        contents.push(vec![7; 1_000_000]); // run length blocks
        contents.push(b"a b c d ".repeat(60_000));
        let mut file = Vec::new();
        let mut expected = Vec::new();
        for (i, content) in contents.iter().enumerate() {
            file.extend_from_slice(&0x184D_2A57u32.to_le_bytes());
            file.extend_from_slice(&3u32.to_le_bytes());
            file.extend_from_slice(b"abc");
            let start = file.len() as u64;
            let known = i % 3 != 1;
            let mut encoder = zstd::stream::write::Encoder::new(&mut file, 1).unwrap();
            encoder.include_checksum(i % 2 == 0).unwrap();
            encoder.include_contentsize(known).unwrap();
            encoder.set_pledged_src_size(known.then_some(content.len() as u64)).unwrap();
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
            expected.push((start..file.len() as u64, known.then_some(content.len() as u64)));
        }
        let frames = scan(&shard(&file).await).await.unwrap();
        assert_eq!(frames.iter().map(|f| (f.range.clone(), f.content_bytes)).collect::<Vec<_>>(), expected);
        for (frame, content) in frames.iter().zip(&contents) {
            assert!(frame.max_content_bytes >= content.len() as u64);
            let bytes = &file[frame.range.start as usize..frame.range.end as usize];
            assert_eq!(&zstd::stream::decode_all(bytes).unwrap(), content);
            assert_eq!(content_bytes(bytes), frame.content_bytes);
        }
    }

    #[tokio::test]
    async fn a_file_cut_anywhere_or_with_a_wrong_header_names_the_byte() {
        let first = zstd::bulk::compress(&noise(300_000), 1).unwrap();
        let mut file = first.clone();
        file.extend_from_slice(&zstd::bulk::compress(b"hello", 1).unwrap());
        assert_eq!(scan(&shard(&file).await).await.unwrap().len(), 2);
        for length in (0..file.len()).filter(|length| *length < 30 || length % 10_007 == 0 || length + 30 > file.len())
        {
            let found = scan(&shard(&file[..length]).await).await;
            if length == 0 || length == first.len() {
                assert!(found.is_ok());
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(error.contains("a.zst: byte ") && error.contains("ends inside a zstd frame"), "{length}: {error}");
        }
        file[first.len()] ^= 1;
        let error = scan(&shard(&file).await).await.unwrap_err().to_string();
        assert!(error.contains(&format!("byte {}: no zstd frame begins here", first.len())), "{error}");
        let garbage = shard(b"{\"text\": \"not compressed\"}").await;
        assert!(scan(&garbage).await.unwrap_err().to_string().contains("byte 0"));
    }
}
