//! Flat token files in ranges of bytes: a `BlockSource` whose pieces are stretches of one stream of tokens.
//!
//! `tokens` reads rows by number out of files that are mapped, all of them as if they were one. Here a file is read by
//! itself and in order, from any place, and nothing is cut into rows: the batcher does that, across files, and no token
//! between two files is lost. Used where files arrive one after the other (`watch`).

use std::sync::Arc;

use super::store::Shard;
use super::token_width::TokenWidth;
use super::{Block, BlockSource, BoxFuture, Fetched, Lists, Manifest, Piece, Positions, ReadLimits, Records};
use crate::error::{Error, Result};

/// Bytes of a block; whole tokens of every width. Part of what a position in a watched folder means: never change it.
const BLOCK_BYTES: u64 = 1 << 20;

/// The tokens of some files.
pub struct TokenRanges {
    manifest: Manifest,
    blocks: Vec<Block>,
    shards: Vec<Shard>,
    /// Of each block: the shard's index, and its first byte there.
    starts: Vec<(usize, u64)>,
    width: TokenWidth,
}

impl TokenRanges {
    /// Files of tokens `width` wide, in this order.
    pub async fn open(shards: Vec<Shard>, width: TokenWidth) -> Result<Self> {
        let (mut entries, mut blocks, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for (index, shard) in shards.iter().enumerate() {
            let size = shard.size();
            if !size.is_multiple_of(width.bytes() as u64) {
                return Err(Error::format(format!(
                    "{}: {size} bytes are not whole {} tokens: is it of another width, or cut off?",
                    shard.name(),
                    width.name()
                )));
            }
            entries.push(shard.entry().await?);
            for start in (0..size).step_by(BLOCK_BYTES as usize) {
                let bytes = BLOCK_BYTES.min(size - start);
                blocks.push(Block { bytes, fetch_bytes: bytes });
                starts.push((index, start));
            }
        }
        let manifest = Manifest::new("token_ranges", entries, width.name());
        manifest.require_files()?;
        if blocks.is_empty() {
            return Err(Error::data(format!("{}: no token in any file", shards[0].name())));
        }
        Ok(Self { manifest, blocks, shards, starts, width })
    }

    async fn fetch_block(&self, block: usize, limits: ReadLimits) -> Result<Fetched> {
        let (index, start) = self.starts[block];
        let shard = &self.shards[index];
        let bytes = shard.range(start..start + self.blocks[block].bytes).await?;
        let piece_bytes = (limits.piece_bytes / self.width.bytes()).max(1) * self.width.bytes();
        let (width, file): (TokenWidth, Arc<str>) = (self.width, shard.name().clone());
        let pieces = (0..bytes.len()).step_by(piece_bytes).map(move |at| {
            let values = width.column_from_le_bytes(&bytes[at..bytes.len().min(at + piece_bytes)]);
            Ok(Piece {
                file: file.clone(),
                positions: Positions::Bytes(vec![start + at as u64]),
                records: Records::Lists(Lists { ends: vec![values.len()], values, missing: None }),
                bad: Vec::new(),
            })
        });
        Ok(Fetched { pieces: Box::new(pieces) })
    }
}

impl BlockSource for TokenRanges {
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
    use proptest::prelude::*;

    use super::super::testing::{pieces, run, shards};
    use super::*;
    use crate::error::ErrorKind;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_pieces_are_the_tokens_of_all_files_one_after_the_other(
            lengths in prop::collection::vec(0usize..400, 1..4),
            piece_bytes in 1usize..300,
        ) {
            let mut next = 0u16;
            let mut file = |length: &usize| -> Vec<u8> {
                let tokens = next..next + *length as u16;
                next = tokens.end;
                tokens.flat_map(u16::to_le_bytes).collect()
            };
            let files: Vec<(String, Vec<u8>)> =
                lengths.iter().enumerate().map(|(i, length)| (format!("{i}.bin"), file(length))).collect();
            let named = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone()));
            let named: Vec<(&str, Vec<u8>)> = named.collect();
            let total: usize = lengths.iter().sum();
            let found = run(async {
                let source = match TokenRanges::open(shards(&named).await, TokenWidth::U16).await {
                    Ok(source) => source,
                    Err(error) => return Err(error),
                };
                let mut found = Vec::new();
                for block in 0..source.blocks().len() {
                    let (pieces, end) = pieces(&source, block, piece_bytes).await;
                    end.unwrap();
                    for piece in pieces {
                        let Records::Lists(lists) = &piece.records else { panic!("tokens are lists") };
                        assert_eq!(lists.ends, [lists.values.len()]);
                        found.extend((0..lists.values.len()).map(|at| lists.values.category(at).unwrap()));
                    }
                }
                Ok(found)
            });
            match found {
                Ok(found) => prop_assert_eq!(found, (0..total as u32).collect::<Vec<_>>()),
                Err(error) => prop_assert!(total == 0 && error.kind() == ErrorKind::Data, "{}", error),
            }
        }
    }

    #[test]
    fn half_a_token_is_refused_by_name() {
        let error = run(async {
            TokenRanges::open(shards(&[("odd.bin", vec![0; 7])]).await, TokenWidth::U16).await.err().unwrap()
        });
        assert!(error.to_string().contains("odd.bin: 7 bytes are not whole u16 tokens"), "{error}");
    }
}
