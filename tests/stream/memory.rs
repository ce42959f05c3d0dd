//! The byte budget holds, whatever the sizes of records.

use anemone::batcher::BatchSpec;
use anemone::data::{Cursor, Item};
use anemone::pipeline::stream::{Stream, StreamOptions};

use crate::made::{Kind, MadeBlocks, MadeDecoder};

#[test]
fn bytes_in_flight_stay_within_the_budget_when_nobody_takes_batches() {
    // 64 MiB of records between 100 and 10,000 bytes through a budget of 4 MiB.
    let record = |i: usize| vec![(i % 200) as u8; 100 + (i * 7919) % 9_901];
    let blocks: Vec<Vec<Vec<u8>>> = (0..128).map(|b| (0..100).map(|r| record(b * 100 + r)).collect()).collect();
    let total: usize = blocks.iter().flatten().map(Vec::len).sum();
    let largest = blocks.iter().map(|b| b.iter().map(Vec::len).sum::<usize>()).max().unwrap();
    let memory = 4 << 20;
    assert!(total as u64 > 15 * memory && (largest as u64) < memory / 2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for shuffle in [false, true] {
            let batch = BatchSpec { rows: 64, shuffle, window_bytes: memory / 4, ..BatchSpec::default() };
            let options = StreamOptions { memory, workers: Some(3), epochs: Some(1), ..StreamOptions::default() };
            let (source, decoder) =
                (MadeBlocks::source(blocks.clone(), 16), MadeDecoder::shared(Kind::Bytes(128), false));
            let mut stream = Stream::open(&source, &decoder, &batch, &options, Cursor::default()).unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(200)).await; // everything fills up
            let mut rows = 0;
            while let Some(item) = stream.next().await.unwrap() {
                if let Item::Batch { batch, .. } = item {
                    rows += batch.num_rows();
                }
            }
            assert_eq!(rows, total / 128);
            let (now, peak) = stream.bytes_in_flight();
            assert_eq!(now, 0);
            // Half the memory is for what is on its way. A block or a piece that is let in alone may overdraw a part by
            // itself, and tokens take twice the bytes that they were charged for, one piece a worker.
            let (fetched_alone, overdraft) = (largest as u64, 3 * 2 * 16 * 10_000);
            assert!(peak <= memory / 2 + fetched_alone + overdraft, "shuffle {shuffle}: {peak} of {memory}");
        }
    });
}
