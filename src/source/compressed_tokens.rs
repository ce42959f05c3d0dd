//! Compressed token files, `.bin.zst`: little-endian token ids in zstd frames, one block per frame.
//!
//! A frame holds whole tokens and can be read by itself; [`CompressedWriter`] makes frames of a mebibyte with
//! checksums. Any zstd file of token ids can be read, but one made in one go is one block. A piece is one list of
//! consecutive tokens. A damaged frame costs that frame. Frames are found by `zstd_frames`.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Buf;
use zstd::bulk::Compressor;
use zstd::stream::raw::CParameter;

use super::store::{READER_BYTES, Shard, read_error, side_by_side};
use super::token_width::TokenWidth;
use super::zstd_frames::{self, Frame};
use super::{Block, BlockSource, BoxFuture, Fetched, Lists, Manifest, Piece, Positions, ReadLimits, Records};
use crate::error::{Error, Result};

/// Bytes of tokens in a frame that is written.
const FRAME_BYTES: usize = 1 << 20;
/// A frame longer than this, compressed or not, is not held as a whole but streamed.
const WHOLE_BYTES: u64 = 8 << 20;
/// Files opened at once.
const REQUESTS: usize = 8;

/// Token ids in zstd frames.
pub struct CompressedTokens {
    manifest: Manifest,
    blocks: Vec<Block>,
    shards: Vec<Shard>,
    /// Of each block: the shard's index, and where in it.
    frames: Vec<(usize, Frame)>,
    width: TokenWidth,
}

impl CompressedTokens {
    /// Finds the frames of all shards.
    pub async fn open(shards: Vec<Shard>, width: TokenWidth) -> Result<Self> {
        let scans = shards.clone().into_iter().map(|shard| async move {
            let frames = zstd_frames::scan(&shard).await?;
            Ok((shard.entry().await?, frames))
        });
        let scans = side_by_side(scans, REQUESTS).await?;
        let (mut entries, mut blocks, mut frames) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (entry, found)) in scans.into_iter().enumerate() {
            entries.push(entry);
            for frame in found {
                if let Some(bytes) = frame.content_bytes {
                    if !bytes.is_multiple_of(width.bytes() as u64) {
                        return Err(not_whole(shards[index].name(), &frame, bytes, width));
                    }
                    if bytes == 0 {
                        continue;
                    }
                }
                let length = frame.range.end - frame.range.start;
                blocks.push(Block {
                    bytes: frame.content_bytes.unwrap_or(frame.max_content_bytes),
                    fetch_bytes: if length > WHOLE_BYTES { READER_BYTES } else { length },
                });
                frames.push((index, frame));
            }
        }
        let manifest = Manifest::new("compressed_tokens", entries, width.name());
        manifest.require_files()?;
        if frames.is_empty() {
            return Err(Error::data(format!("{}: no token in any file", shards[0].name())));
        }
        Ok(Self { manifest, blocks, shards, frames, width })
    }

    /// How many tokens there are, if all frames tell.
    pub fn num_tokens(&self) -> Option<u64> {
        let bytes: Option<u64> = self.frames.iter().map(|(_, frame)| frame.content_bytes).sum();
        bytes.map(|bytes| bytes / self.width.bytes() as u64)
    }

    async fn fetch_block(&self, block: usize, limits: ReadLimits) -> Result<Fetched> {
        let (shard, frame) = &self.frames[block];
        let shard = &self.shards[*shard];
        let bytes: Box<dyn Read + Send> = if frame.range.end - frame.range.start > WHOLE_BYTES {
            Box::new(shard.reader(frame.range.clone())?)
        } else {
            Box::new(shard.range(frame.range.clone()).await?.reader())
        };
        let decoder = zstd::stream::read::Decoder::new(bytes).map_err(|error| Error::io_at(&**shard.name(), &error))?;
        let decoder = decoder.single_frame();
        let content: Box<dyn Read + Send> = if frame.max_content_bytes > WHOLE_BYTES {
            Box::new(decoder)
        } else {
            Box::new(Checked { decoder: Some(decoder), content: io::Cursor::default() })
        };
        Ok(Fetched {
            pieces: Box::new(Pieces {
                content: Some(content),
                file: shard.name().clone(),
                frame: frame.clone(),
                width: self.width,
                piece_bytes: (limits.piece_bytes / self.width.bytes()).max(1) * self.width.bytes(),
                num_bytes: 0,
            }),
        })
    }
}

impl BlockSource for CompressedTokens {
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

fn not_whole(file: &str, frame: &Frame, bytes: u64, width: TokenWidth) -> Error {
    Error::format(format!(
        "{file}: zstd frame at byte {}: {bytes} bytes are not whole {} tokens; is the width right?",
        frame.range.start,
        width.name()
    ))
}

/// The pieces of a frame.
struct Pieces {
    /// `None` once the frame has ended.
    content: Option<Box<dyn Read + Send>>,
    file: Arc<str>,
    frame: Frame,
    width: TokenWidth,
    /// A multiple of the width.
    piece_bytes: usize,
    /// Decompressed so far.
    num_bytes: u64,
}

impl Iterator for Pieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let mut content = self.content.take()?;
        let mut bytes = Vec::new();
        if let Err(error) = content.by_ref().take(self.piece_bytes as u64).read_to_end(&mut bytes) {
            let place = format!("{}: zstd frame at byte {}", self.file, self.frame.range.start);
            return Some(Err(read_error(&place, &error)));
        }
        self.num_bytes += bytes.len() as u64;
        if !bytes.len().is_multiple_of(self.width.bytes()) {
            return Some(Err(not_whole(&self.file, &self.frame, self.num_bytes, self.width)));
        }
        if bytes.is_empty() {
            return None;
        }
        self.content = Some(content);
        let values = self.width.column_from_le_bytes(&bytes);
        Some(Ok(Piece {
            file: self.file.clone(),
            positions: Positions::Bytes(vec![self.frame.range.start]),
            records: Records::Lists(Lists { ends: vec![values.len()], values, missing: None }),
            bad: Vec::new(),
        }))
    }
}

/// A frame whose checksum is compared before its first byte is delivered: no token of a damaged frame is learned from.
/// A frame too large for that is delivered as it comes, and its end says that it was damaged.
struct Checked<R: io::BufRead> {
    /// `None` once the frame has been read.
    decoder: Option<zstd::stream::read::Decoder<'static, R>>,
    content: io::Cursor<Vec<u8>>,
}

impl<R: io::BufRead> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(mut decoder) = self.decoder.take() {
            decoder.read_to_end(self.content.get_mut())?;
        }
        self.content.read(into)
    }
}

/// Writes token ids in independent zstd frames with checksums.
pub struct CompressedWriter<W: Write> {
    into: W,
    width: TokenWidth,
    compressor: Compressor<'static>,
    /// Tokens of the frame that is being filled.
    frame: Vec<u8>,
}

impl<W: Write> CompressedWriter<W> {
    /// A writer of tokens of this width.
    pub fn new(into: W, width: TokenWidth) -> Result<Self> {
        let mut compressor = Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).map_err(|error| failed(&error))?;
        for parameter in [CParameter::ChecksumFlag(true), CParameter::ContentSizeFlag(true)] {
            compressor.set_parameter(parameter).map_err(|error| failed(&error))?;
        }
        Ok(Self { into, width, compressor, frame: Vec::with_capacity(FRAME_BYTES) })
    }

    /// Adds tokens.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        for &token in tokens {
            match self.width {
                TokenWidth::U32 => self.frame.extend_from_slice(&token.to_le_bytes()),
                TokenWidth::U16 => {
                    let narrow = u16::try_from(token)
                        .map_err(|_| Error::data(format!("token {token} does not fit u16: write u32 tokens")))?;
                    self.frame.extend_from_slice(&narrow.to_le_bytes());
                }
            }
            if self.frame.len() >= FRAME_BYTES {
                self.write_frame()?;
            }
        }
        Ok(())
    }

    /// Writes what is left and flushes. A file without this misses its last tokens.
    pub fn finish(mut self) -> Result<W> {
        self.write_frame()?;
        self.into.flush().map_err(|error| failed(&error))?;
        Ok(self.into)
    }

    fn write_frame(&mut self) -> Result<()> {
        if !self.frame.is_empty() {
            let compressed = self.compressor.compress(&self.frame).map_err(|error| failed(&error))?;
            self.into.write_all(&compressed).map_err(|error| failed(&error))?;
            self.frame.clear();
        }
        Ok(())
    }
}

fn failed(error: &io::Error) -> Error {
    Error::io("writing compressed tokens", error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{failure, pieces, run, shards};
    use super::*;
    use crate::data::Values;
    use crate::error::ErrorKind;

    fn compressed(tokens: &[u32], width: TokenWidth) -> Vec<u8> {
        let mut writer = CompressedWriter::new(Vec::new(), width).unwrap();
        tokens.chunks(1000).for_each(|some| writer.push(some).unwrap());
        writer.finish().unwrap()
    }

    async fn open(file: Vec<u8>, width: TokenWidth) -> Result<CompressedTokens> {
        CompressedTokens::open(shards(&[("a.bin.zst", file)]).await, width).await
    }

    async fn tokens(source: &CompressedTokens, block: usize, piece_bytes: usize) -> Result<Vec<u32>> {
        let (pieces, end) = pieces(source, block, piece_bytes).await;
        let mut tokens = Vec::new();
        for piece in pieces {
            assert_eq!(piece.num_records(), 1);
            let Records::Lists(Lists { values, .. }) = piece.records else { panic!() };
            assert!(values.num_bytes() <= piece_bytes.max(4));
            tokens.extend((0..values.len()).map(|at| values.category(at).unwrap()));
        }
        end.map(|()| tokens)
    }

    /// Tokens that hardly compress.
    fn noise(n: u32) -> Vec<u32> {
        let mixed = |i: u32| (u64::from(i) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        (0..n).map(|i| mixed(i).wrapping_mul(0xBF58_476D_1CE4_E5B9) as u32 >> 16).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_was_written_is_read_in_pieces_of_any_size(
            written in prop::collection::vec(any::<u16>().prop_map(u32::from), 1..3000),
            scale in prop::sample::select(vec![1, 65_537]),
            piece_bytes in 1usize..9000,
        ) {
            let written: Vec<u32> = written.iter().map(|token| token * scale).collect();
            let width = if scale == 1 { TokenWidth::U16 } else { TokenWidth::U32 };
            run(async {
                let source = open(compressed(&written, width), width).await.unwrap();
                assert_eq!(source.num_tokens(), Some(written.len() as u64));
                assert_eq!(tokens(&source, 0, piece_bytes).await.unwrap(), written);
            });
        }
    }

    #[tokio::test]
    async fn frames_hold_a_mebibyte_and_follow_each_other_across_files() {
        let written = noise(600_000);
        let (first, second) = written.split_at(590_000);
        let files =
            [("a.bin.zst", compressed(first, TokenWidth::U16)), ("b.bin.zst", compressed(second, TokenWidth::U16))];
        let source = CompressedTokens::open(shards(&files).await, TokenWidth::U16).await.unwrap();
        let sizes: Vec<u64> = source.blocks().iter().map(|block| block.bytes).collect();
        assert_eq!(sizes, [1 << 20, 2 * 590_000 - (1 << 20), 20_000]);
        let mut read = Vec::new();
        for block in 0..3 {
            read.extend(tokens(&source, block, 100_000).await.unwrap());
        }
        assert_eq!(read, written);
    }

    #[tokio::test]
    async fn a_flipped_bit_is_always_found_and_costs_one_frame() {
        let mut file = compressed(&noise(50), TokenWidth::U16);
        let start = file.len();
        file.extend(compressed(&[1, 2, 3, 1, 2, 3, 500, 600, 700], TokenWidth::U16));
        let mut found_on_reading = 0;
        for at in start..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            let source = match open(damaged, TokenWidth::U16).await {
                Ok(source) => source,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Format, "{error}");
                    assert!(error.to_string().starts_with("a.bin.zst: "), "{error}");
                    continue;
                }
            };
            assert_eq!(tokens(&source, 0, 64).await.unwrap(), noise(50));
            let (delivered, end) = pieces(&source, 1, 4).await;
            let Err(error) = end else {
                assert_eq!(at, start + 4, "only one bit of the header is unused");
                continue;
            };
            assert!(delivered.is_empty());
            assert_eq!(error.kind(), ErrorKind::Format);
            assert!(error.to_string().starts_with(&format!("a.bin.zst: zstd frame at byte {start}: ")), "{error}");
            found_on_reading += 1;
        }
        assert!(found_on_reading > 10);
    }

    #[tokio::test]
    async fn a_file_cut_off_anywhere_does_not_open() {
        let file = compressed(&noise(100), TokenWidth::U16);
        for length in 0..file.len() {
            let error = failure(open(file[..length].to_vec(), TokenWidth::U16).await);
            let expected = if length == 0 { ErrorKind::Data } else { ErrorKind::Format };
            assert_eq!(error.kind(), expected, "{error}");
        }
    }

    #[tokio::test]
    async fn a_frame_must_hold_whole_tokens() {
        let known = zstd::bulk::compress(&[1, 2, 3, 4, 5, 6], 1).unwrap();
        let error = failure(open(known.clone(), TokenWidth::U32).await);
        assert_eq!(
            error.to_string(),
            "a.bin.zst: zstd frame at byte 0: 6 bytes are not whole u32 tokens; is the width right?"
        );
        assert!(open(known, TokenWidth::U16).await.is_ok());
        let mut unknown = Vec::new();
        zstd::stream::copy_encode(&[1u8, 2, 3, 4, 5][..], &mut unknown, 1).unwrap();
        let source = open(unknown, TokenWidth::U16).await.unwrap();
        assert_eq!(source.num_tokens(), None);
        let (pieces, end) = pieces(&source, 0, 4).await;
        assert_eq!(
            pieces[0].records,
            Records::Lists(Lists { values: Values::U16(vec![0x0201, 0x0403]), ends: vec![2], missing: None })
        );
        assert!(end.unwrap_err().to_string().contains("5 bytes are not whole u16 tokens"));
    }

    #[tokio::test]
    async fn a_large_frame_is_streamed() {
        let bytes: Vec<u8> = noise(5 << 20).iter().flat_map(|&token| (token as u16).to_le_bytes()).collect();
        let mut file = zstd::bulk::compress(&[9, 9], 1).unwrap();
        file.extend(zstd::bulk::compress(&bytes, 1).unwrap());
        assert!(file.len() as u64 > WHOLE_BYTES);
        let source = open(file, TokenWidth::U16).await.unwrap();
        assert_eq!(source.blocks()[1], Block { bytes: 10 << 20, fetch_bytes: READER_BYTES });
        assert!(tokens(&source, 1, 1 << 20).await.unwrap() == noise(5 << 20));
    }

    #[test]
    fn a_token_that_does_not_fit_is_refused() {
        let mut writer = CompressedWriter::new(Vec::new(), TokenWidth::U16).unwrap();
        let error = writer.push(&[1, 70_000]).unwrap_err();
        assert_eq!(error.to_string(), "token 70000 does not fit u16: write u32 tokens");
    }
}
