//! Streams and what is learned from them, through the library.
//!
//! Laws of the stream: every row once an epoch, the same batches for any number of workers and from any cursor, bounded
//! memory, and one clear end for bad data.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

#[path = "../common/mod.rs"]
mod common;

mod bad_records;
mod debd;
mod decode;
mod drift;
mod laws;
mod live;
mod live_shards;
mod made;
mod memory;
mod shards;
mod train;
