//! What the tests of block sources share: shards in memory, and everything that a source delivers.

use std::path::PathBuf;
use std::sync::Arc;

use super::store::{MemoryStore, Shard, resolve_in};
use super::{BlockSource, Piece, ReadLimits, Records};
use crate::error::{Error, Result};

/// Runs a test that waits.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Files in memory.
pub(super) async fn shards(files: &[(&str, Vec<u8>)]) -> Vec<Shard> {
    let store = MemoryStore::new(files.iter().map(|(name, content)| (name.to_string(), content.clone())));
    resolve_in(Arc::new(store), &["**".into()]).await.unwrap()
}

/// The pieces of a block, and what ended it.
pub(super) async fn pieces(source: &dyn BlockSource, block: usize, piece_bytes: usize) -> (Vec<Piece>, Result<()>) {
    let fetched = match source.fetch(block, ReadLimits::of_memory(piece_bytes, 64 << 20)).await {
        Ok(fetched) => fetched,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let cut = move || {
        let (mut pieces, mut end) = (Vec::new(), Ok(()));
        for piece in fetched.pieces {
            assert!(end.is_ok(), "a piece after {end:?}");
            match piece {
                Ok(piece) => pieces.push(piece),
                Err(error) => end = Err(error),
            }
        }
        (pieces, end)
    };
    tokio::task::spawn_blocking(cut).await.unwrap()
}

/// A record as tests compare it: file, place, and the bytes or the reason why there are none.
pub(super) type Found = (String, u64, std::result::Result<Vec<u8>, String>);

/// All byte strings of a source in order.
pub(super) async fn blobs(source: &dyn BlockSource, piece_bytes: usize) -> Vec<Found> {
    let mut found = Vec::new();
    for block in 0..source.blocks().len() {
        let (pieces, end) = pieces(source, block, piece_bytes).await;
        end.unwrap();
        pieces.iter().for_each(|piece| found.extend(blobs_of(piece)));
    }
    found
}

/// The byte strings of a piece.
pub(super) fn blobs_of(piece: &Piece) -> Vec<Found> {
    let Records::Blobs(blobs) = &piece.records else { panic!("{piece:?}") };
    let content = |record: usize| match piece.bad.iter().find(|bad| bad.0 == record) {
        Some((_, reason)) => Err(reason.clone()),
        None => Ok(blobs.get(record).to_vec()),
    };
    (0..piece.num_records()).map(|r| (piece.file.to_string(), piece.positions.place(r).1, content(r))).collect()
}

/// The folder of real data, if it is here.
pub(super) fn data_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("ANEMONE_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    let is_there = folder.is_dir();
    if !is_there {
        eprintln!("skipped: no data in {}", folder.display());
    }
    is_there.then_some(folder)
}

/// What should have failed.
pub(super) fn failure<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error,
    }
}
