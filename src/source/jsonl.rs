//! JSON lines: `.jsonl` in ranges of bytes, `.jsonl.zst` streamed.
//!
//! What a line means (a text, a list of numbers, columns of numbers) is found out from the first lines of the first
//! file (`json_shape`). A block of a plain file is a range of bytes, and a line belongs to the block in which its first
//! byte lies; so every line is in one block whatever the block size, and blocks can be read in any order. A compressed
//! file is one block that is decompressed as it is read. A line that does not fit is a bad record at its byte offset
//! (in a compressed file: of what it decompresses to).

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::columns::{Columns, Reading, RecordKind};
use super::json_records::JsonShape;
use super::lines::{LinePieces, Lines, MAX_LINE_BYTES, first_lines};
use super::store::{READER_BYTES, Shard};
use super::unpacked::{is_compressed, unpacked};
use super::{Block, BlockSource, BoxFuture, Fetched, Manifest, ReadLimits, zstd_frames};
use crate::error::{Error, Result};

/// A block of a plain file.
const BLOCK_BYTES: u64 = 4 << 20;
/// How much is fetched at first to find the end of a block's last line; then twice as much, and so on.
const TAIL_BYTES: u64 = 64 << 10;

/// Records in JSON lines.
pub struct JsonlSource {
    manifest: Manifest,
    blocks: Vec<Block>,
    shards: Vec<Shard>,
    /// Of each block: the shard's index, and its bytes there.
    ranges: Vec<(usize, Range<u64>)>,
    shape: Arc<JsonShape>,
    max_line_bytes: usize,
}

impl JsonlSource {
    /// Lines of all shards. What is wanted of them is found in the first.
    pub async fn open(shards: Vec<Shard>, columns: &Columns) -> Result<Self> {
        Self::open_with_block_bytes(shards, columns, BLOCK_BYTES).await
    }

    /// The same with blocks of another size.
    pub async fn open_with_block_bytes(shards: Vec<Shard>, columns: &Columns, block_bytes: u64) -> Result<Self> {
        let block_bytes = block_bytes.max(1);
        let (mut entries, mut blocks, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        for (index, shard) in shards.iter().enumerate() {
            let (name, size) = (shard.name(), shard.size());
            if name.ends_with(".gz") {
                return Err(Error::unsupported(format!(
                    "{name}: gzip is not read: unpack it, or compress it with zstd"
                )));
            }
            entries.push(shard.entry().await?);
            if size == 0 {
                continue;
            }
            if is_compressed(shard) {
                let first = shard.range(0..size.min(zstd_frames::MAX_HEADER_BYTES)).await?;
                // A first frame that is smaller than the file is not the only one.
                let known = zstd_frames::content_bytes(&first).filter(|&bytes| bytes >= size);
                let bytes = known.unwrap_or(size.saturating_mul(4));
                blocks.push(Block { bytes, fetch_bytes: READER_BYTES.min(size) });
                ranges.push((index, 0..size));
                continue;
            }
            for start in (0..size).step_by(usize::try_from(block_bytes).unwrap_or(usize::MAX)) {
                let range = start..size.min(start.saturating_add(block_bytes));
                let bytes = range.end - range.start;
                blocks.push(Block { bytes, fetch_bytes: bytes });
                ranges.push((index, range));
            }
        }
        if entries.is_empty() {
            Manifest::default().require_files()?;
        }
        let Some(first) = ranges.first().map(|(index, _)| &shards[*index]) else {
            return Err(Error::data(format!("{}: no line in any file", shards[0].name())));
        };
        let shape = find_shape(first, columns).await?;
        let manifest = Manifest::new("jsonl", entries, &shape.identity());
        Ok(Self { manifest, blocks, shards, ranges, shape: Arc::new(shape), max_line_bytes: MAX_LINE_BYTES })
    }

    /// What the records are. How long lists are is not known before they are read.
    pub fn kind(&self) -> RecordKind {
        match self.shape.kind() {
            RecordKind::Lists { reals, .. } if !self.shape.has_fixed_width() => {
                RecordKind::Lists { width: None, reals }
            }
            kind => kind,
        }
    }

    /// Which keys are read, and which are not; `None` where lines are lists.
    pub fn reading(&self) -> Option<Reading> {
        Some(self.shape.reading()).filter(|reading| !reading.read.is_empty())
    }

    async fn fetch_block(&self, block: usize, limits: ReadLimits) -> Result<Fetched> {
        let (shard, range) = &self.ranges[block];
        let shard = &self.shards[*shard];
        let max_line_bytes = self.max_line_bytes.min(usize::try_from(limits.record_bytes).unwrap_or(usize::MAX));
        let (start, input): (u64, Box<dyn Read + Send>) = if is_compressed(shard) {
            (0, unpacked(shard)?)
        } else {
            let (start, lines) = fetch_lines(shard, range.clone(), max_line_bytes).await?;
            (start, Box::new(lines.reader()))
        };
        let lines = Lines::new(input, start, max_line_bytes);
        let pieces = LinePieces::new(lines, shard.name().clone(), self.shape.clone(), limits.piece_bytes);
        Ok(Fetched { pieces: Box::new(pieces) })
    }
}

/// What the lines of a file mean. A file that is damaged has few first lines: what that means is decided when it is
/// read (`on_bad`).
async fn find_shape(shard: &Shard, columns: &Columns) -> Result<JsonShape> {
    let input = unpacked(shard)?;
    // It waits for bytes: not on a thread that drives others.
    let look = tokio::task::spawn_blocking(move || first_lines(input));
    let lines = look.await.map_err(|e| Error::internal(format!("looking at the first lines: {e}")))?;
    let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
    JsonShape::find(&lines, columns).map_err(|error| error.at(shard.name()))
}

/// The lines that begin in a range, to the end of the last of them, and where the first begins.
async fn fetch_lines(shard: &Shard, range: Range<u64>, max_line_bytes: usize) -> Result<(u64, Bytes)> {
    // With the byte before: if it ends a line, one begins with the range.
    let from = range.start.saturating_sub(1);
    let bytes = shard.range(from..range.end).await?;
    let first = if range.start == 0 {
        Some(0)
    } else {
        bytes.iter().position(|&byte| byte == b'\n').map(|end| end + 1).filter(|&first| first < bytes.len())
    };
    let Some(first) = first else { return Ok((range.end, Bytes::new())) }; // all of a line that began before
    let bytes = bytes.slice(first..);
    let start = from + first as u64;
    let mut at = range.end;
    if bytes.ends_with(b"\n") || at == shard.size() {
        return Ok((start, bytes));
    }
    // The last line continues in the next block, or through several.
    let last = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = Vec::from(bytes);
    let mut step = TAIL_BYTES;
    while at < shard.size() && lines.len() - last <= max_line_bytes {
        let end = shard.size().min(at + step);
        let more = shard.range(at..end).await?;
        if let Some(newline) = more.iter().position(|&byte| byte == b'\n') {
            lines.extend_from_slice(&more[..=newline]);
            break;
        }
        lines.extend_from_slice(&more);
        at = end;
        step = (2 * step).min(READER_BYTES);
    }
    Ok((start, lines.into()))
}

impl BlockSource for JsonlSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn fetch(&self, block: usize, limits: ReadLimits) -> BoxFuture<'_, Result<Fetched>> {
        Box::pin(self.fetch_block(block, limits))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::testing::{Found, blobs, blobs_of, failure, pieces, run, shards};
    use super::*;
    use crate::error::ErrorKind;
    use crate::source::{Piece, Records};

    fn text() -> Columns {
        Columns::One("text".into())
    }

    /// In frames of a few bytes, as parallel compressors make them.
    fn zstd_file(content: &[u8], frame_bytes: usize) -> Vec<u8> {
        content.chunks(frame_bytes).flat_map(|some| zstd::stream::encode_all(some, 1).unwrap()).collect()
    }

    async fn read(name: &str, content: &[u8], block_bytes: u64, piece_bytes: usize) -> Vec<Found> {
        let files = shards(&[(name, content.to_vec())]).await;
        let source = JsonlSource::open_with_block_bytes(files, &text(), block_bytes).await.unwrap();
        blobs(&source, piece_bytes).await
    }

    #[test]
    fn a_line_longer_than_a_record_may_be_is_bad_and_the_others_are_read() {
        run(async {
            let line = |length: usize| format!("{{\"text\": \"{}\"}}\n", "a".repeat(length));
            let file = [line(10), line(1000), line(20)].concat().into_bytes();
            let source = JsonlSource::open(shards(&[("a.jsonl", file)]).await, &text()).await.unwrap();
            let limits = ReadLimits { piece_bytes: 1 << 20, part_bytes: 1 << 20, record_bytes: 500 };
            let pieces: Vec<Piece> = source.fetch(0, limits).await.unwrap().pieces.map(Result::unwrap).collect();
            assert_eq!((pieces.len(), pieces[0].num_records(), pieces[0].bad.len()), (1, 3, 1));
            let (record, reason) = &pieces[0].bad[0];
            assert!(*record == 1 && reason.starts_with("a line of more than 500 bytes is too long"), "{reason}");
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_line_comes_once_and_in_order_whatever_the_block_size(
            lines in prop::collection::vec(prop::option::weighted(0.8, "[a-zé\\\\\"]{0,40}"), 1..40),
            ends in prop::sample::select(vec!["\n", "\r\n", "\n\n", "\n \t\n"]),
            ends_with_newline in any::<bool>(),
            block_bytes in 1u64..200,
            piece_bytes in 0usize..100,
        ) {
            let (mut content, mut expected) = (String::new(), Vec::new());
            for line in &lines {
                let offset = content.len() as u64;
                match line {
                    Some(text) => content.push_str(&serde_json::json!({ "id": 1, "text": text }).to_string()),
                    None => content.push_str("{\"id\": 2}"),
                }
                content.push_str(ends);
                expected.push((offset, line.clone().map(String::into_bytes).ok_or("no column `text`".to_string())));
            }
            if !ends_with_newline {
                content.truncate(content.trim_ascii_end().len());
            }
            let named = |name: &str| -> Vec<Found> {
                expected.iter().map(|(offset, text)| (name.to_string(), *offset, text.clone())).collect()
            };
            run(async {
                let plain = read("a.jsonl", content.as_bytes(), block_bytes, piece_bytes).await;
                assert_eq!(plain, named("a.jsonl"));
                let file = zstd_file(content.as_bytes(), block_bytes as usize);
                assert_eq!(read("a.jsonl.zst", &file, block_bytes, piece_bytes).await, named("a.jsonl.zst"));
            });
        }
    }

    #[tokio::test]
    async fn a_line_without_the_text_says_why() {
        let lines: Vec<(&[u8], std::result::Result<&str, &str>)> = vec![
            (b"\xEF\xBB\xBF{\"text\": \"a\\u00e9\\n\"}", Ok("aé\n")),
            (b"{\"x\": {\"text\": \"inner\"}, \"text\": \"outer\", \"y\": [1]}", Ok("outer")),
            (b"{\"text\": \"one\", \"te\\u0078t\": \"two\"}", Ok("two")),
            (b"{\"text\": \"\"}", Ok("")),
            (b"{\"txt\": \"a\"}", Err("no column `text`")),
            (b"{\"text\": null}", Err("column `text` is null, not a text")),
            (b"{\"text\": 1.5}", Err("column `text` is a number, not a text")),
            (b"{\"text\": [\"a\"]}", Err("column `text` is a list, not a text")),
            (b"{\"text\": {\"a\": 1}}", Err("column `text` is an object, not a text")),
            (b"[1]", Err("not a JSON object: ")),
            (b"{\"text\": \"a\"", Err("not a JSON object: EOF")),
            (b"{\"text\": \"a\"} {", Err("not a JSON object: trailing")),
            (b"{\"text\": \"\xFF\"}", Err("not a JSON object: invalid unicode")),
            (b"\x00\x01", Err("not a JSON object: ")),
        ];
        let content = lines.iter().map(|line| line.0).collect::<Vec<_>>().join(&b'\n');
        let found = read("a.jsonl", &content, 4 << 20, 1 << 20).await;
        assert_eq!(found.len(), lines.len());
        for ((_, _, found), (line, expected)) in found.iter().zip(&lines) {
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected.as_bytes()),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                _ => panic!("{found:?} {}", String::from_utf8_lossy(line)),
            }
        }
        let deep = format!("{}{}", "{\"text\":".repeat(100_000), "}".repeat(100_000));
        assert!(read("a.jsonl", deep.as_bytes(), 4 << 20, 100).await[0].2.is_err());
    }

    #[tokio::test]
    async fn a_line_may_span_many_blocks_but_not_all_memory() {
        let long = "x".repeat(300_000);
        let line = |text: &str| format!("{{\"text\":\"{text}\"}}\n");
        let content = [line("a"), line(&long), line("b")].concat();
        for (name, file) in
            [("a.jsonl", content.clone().into_bytes()), ("a.jsonl.zst", zstd_file(content.as_bytes(), 1 << 20))]
        {
            assert_eq!(read(name, &file, 1000, 100).await[1].2, Ok(long.clone().into_bytes()));
            for limit in [100_000, 299_999, 400_000] {
                let files = shards(&[(name, file.clone())]).await;
                let mut source = JsonlSource::open_with_block_bytes(files, &text(), 1000).await.unwrap();
                source.max_line_bytes = limit;
                let found = blobs(&source, 100).await;
                let places: Vec<u64> = found.iter().map(|record| record.1).collect();
                assert_eq!(places, [0, 13, 13 + 300_012]);
                assert_eq!((&found[0].2, &found[2].2), (&Ok(b"a".to_vec()), &Ok(b"b".to_vec())));
                match &found[1].2 {
                    Ok(text) => assert!(limit == 400_000 && text.len() == 300_000),
                    Err(reason) => assert!(limit < 400_000 && reason.contains("too long"), "{reason}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn a_compressed_file_that_was_cut_off_delivers_what_it_has_and_says_so() {
        let content: String = (0..20_000).map(|i| format!("{{\"text\":\"{i}\"}}\n")).collect();
        let mut file = Vec::new();
        let mut encoder = zstd::stream::write::Encoder::new(&mut file, 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(content.as_bytes()).unwrap();
        encoder.finish().unwrap();
        let mut flipped = file.clone();
        *flipped.last_mut().unwrap() ^= 1; // of the checksum
        for (damaged, at_least) in [(file[..file.len() / 2].to_vec(), 1000), (flipped, 10_000)] {
            let files = shards(&[("a.jsonl.zst", damaged)]).await;
            let source = JsonlSource::open(files, &text()).await.unwrap();
            let (pieces, end) = pieces(&source, 0, 1000).await;
            let found: Vec<Found> = pieces.iter().flat_map(blobs_of).collect();
            assert!(found.len() > at_least, "{}", found.len());
            for (i, record) in found.iter().enumerate() {
                assert_eq!(record.2, Ok(i.to_string().into_bytes()));
            }
            let error = end.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Format);
            assert!(error.to_string().starts_with("a.jsonl.zst: after byte "), "{error}");
        }
    }

    #[tokio::test]
    async fn rows_of_columns_and_lists_come_from_any_block_and_from_compressed_files() {
        let objects: String = (0..500).map(|i| format!("{{\"b\":{},\"a\":{i},\"c\":\"x\"}}\n", i % 2)).collect();
        let lists: String = (0..500).map(|i| format!("[{i},{}]\n", i % 2)).collect();
        let named = Columns::Many(vec!["a".into(), "b".into()]);
        for (content, columns) in [(objects, named), (lists, Columns::Auto)] {
            let files =
                [("a.jsonl", content.clone().into_bytes()), ("a.jsonl.zst", zstd_file(content.as_bytes(), 999))];
            for (name, file) in files {
                for block_bytes in [100, 1 << 20] {
                    let files = shards(&[(name, file.clone())]).await;
                    let source = JsonlSource::open_with_block_bytes(files, &columns, block_bytes).await.unwrap();
                    let width = if columns == Columns::Auto { None } else { Some(2) };
                    assert_eq!(source.kind(), RecordKind::Lists { width, reals: false });
                    let mut found = Vec::new();
                    for block in 0..source.blocks().len() {
                        let (pieces, end) = pieces(&source, block, 300).await;
                        end.unwrap();
                        for piece in pieces {
                            let Records::Lists(lists) = &piece.records else { panic!("{piece:?}") };
                            found.extend((0..lists.values.len()).map(|at| lists.values.category(at).unwrap()));
                        }
                    }
                    assert_eq!(found, (0..500).flat_map(|i| [i, i % 2]).collect::<Vec<u32>>(), "{name} {block_bytes}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_lines_is_refused() {
        let open = async |name: &str, content: &[u8]| {
            JsonlSource::open(shards(&[(name, content.to_vec())]).await, &text()).await.map(drop)
        };
        assert_eq!(failure(open("a.jsonl.gz", b"x").await).kind(), ErrorKind::Unsupported);
        assert!(failure(open("a.jsonl", b"").await).to_string().contains("no line in any file"));
        assert_eq!(failure(JsonlSource::open(Vec::new(), &text()).await).kind(), ErrorKind::Data);
    }
}
