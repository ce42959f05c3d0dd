//! Peak memory does not grow with the length of the stream. A test binary of its own: it looks at its whole process.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

#[path = "common/shards.rs"]
mod shards;

use std::fs;
use std::sync::Arc;

use anemone::batcher::BatchSpec;
use anemone::data::{Cursor, Item};
use anemone::decode::Decoder;
use anemone::decode::tokens::TokenDecoder;
use anemone::pipeline::stream::{Stream, StreamOptions};
use anemone::rng::Rng;
use anemone::source::{Columns, Source, parquet::ParquetSource, store};
use arrow::array::{ListBuilder, UInt16Builder};

/// The most memory this process ever had, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn peak_memory_is_flat_over_a_stream_fifty_times_its_budget() {
    // glibc keeps a heap per thread, and these fill up one by one: a few per cent that are not ours. With a single
    // heap, in a process of its own, what is measured is what the stages hold.
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let name = "peak_memory_is_flat_over_a_stream_fifty_times_its_budget";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([name, "--exact", "--nocapture"]).env("MALLOC_ARENA_MAX", "1");
        assert!(again.status().unwrap().success());
        return;
    }
    let memory: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    // One file of the size of the budget, records between 40 and 4,000 tokens, under 80 names.
    let mut rng = Rng::new(3);
    let mut lists = ListBuilder::new(UInt16Builder::new());
    let mut tokens = 0u64;
    while tokens * 2 < memory {
        let length = if rng.below(4) == 0 { 4000 } else { 40 };
        (0..length).for_each(|_| lists.values().append_value(rng.below(50_000) as u16));
        lists.append(true);
        tokens += length;
    }
    let first = dir.path().join("tokens-000.parquet");
    shards::write_parquet(&first, "input_ids", Arc::new(lists.finish()), 64);
    (1..80).for_each(|i| fs::hard_link(&first, dir.path().join(format!("tokens-{i:03}.parquet"))).unwrap());

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let pattern = dir.path().join("tokens-*.parquet").display().to_string();
        let shards = store::resolve(&[pattern]).await.unwrap();
        let source = ParquetSource::open(shards, &Columns::One("input_ids".into())).await.unwrap();
        let decoder: Arc<dyn Decoder> = Arc::new(TokenDecoder::new(50_257, 128).unwrap());
        let options = StreamOptions { memory, workers: Some(2), epochs: Some(1), ..StreamOptions::default() };
        let source = Source::Blocks(Arc::new(source));
        let batch = BatchSpec { window_bytes: memory / 4, ..BatchSpec::default() };
        let mut stream = Stream::open(&source, &decoder, &batch, &options, Cursor::default()).unwrap();
        let (mut bytes, mut early) = (0u64, None);
        while let Some(item) = stream.next().await.unwrap() {
            if let Item::Batch { batch, .. } = item {
                bytes += (batch.num_rows() * batch.num_vars() * 2) as u64;
            }
            if bytes > 10 * memory {
                early.get_or_insert_with(peak_memory);
            }
        }
        let (early, late) = (early.unwrap(), peak_memory());
        println!("{} budgets read; peak {early} bytes after 10, {late} at the end", bytes / memory);
        assert!(bytes > 60 * memory, "{bytes} bytes are not fifty budgets more");
        assert!(late as f64 <= 1.1 * early as f64, "{late} bytes at the end, {early} after ten budgets");
    });
}
