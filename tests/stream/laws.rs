//! Every row once per epoch; the same batches for any number of workers, and from any cursor.

use std::sync::Arc;

use anemone::batcher::{BadPolicy, BatchSpec, OnBad};
use anemone::data::Cursor;
use anemone::decode::Decoder;
use anemone::pipeline::stream::StreamOptions;
use anemone::source::Source;
use proptest::prelude::*;

use crate::made::{Kind, MadeBlocks, MadeDecoder, MadeRows, Seen, run};

fn options(workers: usize, epochs: u64) -> StreamOptions {
    let bad = BadPolicy { on_bad: OnBad::Skip, max_bad: u64::MAX, max_bad_fraction: 1.0 };
    StreamOptions { workers: Some(workers), bad, epochs: Some(epochs), ..StreamOptions::default() }
}

/// Returns true if the made decoder takes row `row` of a source whose rows have numbers.
fn is_good(row: &u32) -> bool {
    row % 5 != 3
}

fn all(source: &Source, decoder: &Arc<dyn Decoder>, batch: &BatchSpec, options: &StreamOptions) -> Vec<Seen> {
    let (seen, error) = run(source, decoder, batch, options, Cursor::default());
    assert_eq!(error, None);
    assert!(!seen.is_empty());
    seen
}

/// The rows of each epoch.
fn epochs(seen: &[Seen]) -> Vec<Vec<Vec<u32>>> {
    seen.split_inclusive(|s| matches!(s, Seen::EpochEnd(_)))
        .map(|epoch| epoch.iter().flat_map(|s| s.rows().to_vec()).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_row_is_visited_once_per_epoch(
        sizes in prop::collection::vec(0usize..23, 1..12),
        piece_records in 1usize..9,
        rows in 1usize..17,
        shuffle: bool,
        window_bytes in 1u64..200,
        seed in 0u64..1000,
    ) {
        let total: usize = sizes.iter().sum();
        prop_assume!(total > 0);
        let batch = BatchSpec { rows, shuffle, seed, window_bytes, ..BatchSpec::default() };
        let source = MadeBlocks::numbered(&sizes, piece_records);
        let seen = all(&source, &MadeDecoder::shared(Kind::Number, false), &batch, &options(2, 2));
        let epochs = epochs(&seen);
        prop_assert_eq!(epochs.len(), 2);
        for mut epoch in epochs {
            if shuffle {
                epoch.sort_unstable();
            }
            prop_assert!(epoch.into_iter().flatten().eq(0..total as u32));
        }
        // Only the last batch of an epoch is short.
        let sizes: Vec<usize> = seen.iter().map(|s| s.rows().len()).collect();
        for pair in sizes.windows(2) {
            prop_assert!(pair[0] == rows || pair[0] == 0 || pair[1] == 0);
        }
    }

    #[test]
    fn rows_by_number_are_visited_once_per_epoch(num_rows in 1u64..3000, rows in 1usize..40, shuffle: bool) {
        let batch = BatchSpec { rows, shuffle, ..BatchSpec::default() };
        let (source, decoder) = (MadeRows::source(Some(num_rows)), MadeDecoder::shared(Kind::Pairs, false));
        let seen = all(&source, &decoder, &batch, &options(2, 2));
        for mut epoch in epochs(&seen) {
            epoch.sort_unstable();
            prop_assert!(epoch.into_iter().eq((0..num_rows as u32).filter(is_good).map(|row| vec![row, row + 1])));
        }
    }

    /// Documents are one stream of tokens, cut into rows across documents, pieces and blocks; the remainder is dropped.
    #[test]
    fn text_is_one_stream_of_tokens(
        blocks in prop::collection::vec(prop::collection::vec(prop::collection::vec(0u8..250, 0..30), 0..6), 1..8),
        window in 1usize..12,
        piece_records in 1usize..5,
        shuffle: bool,
    ) {
        let tokens: Vec<u32> = blocks.concat().concat().into_iter().map(u32::from).collect();
        prop_assume!(tokens.len() >= window);
        let batch = BatchSpec { rows: 4, shuffle, window_bytes: 90, ..BatchSpec::default() };
        let source = MadeBlocks::source(blocks, piece_records);
        let seen = all(&source, &MadeDecoder::shared(Kind::Bytes(window), false), &batch, &options(3, 2));
        for epoch in epochs(&seen) {
            prop_assert_eq!(epoch.len(), tokens.len() / window);
            if !shuffle {
                prop_assert!(epoch.iter().map(Vec::as_slice).eq(tokens.chunks_exact(window)));
            }
        }
    }

    #[test]
    fn a_stream_goes_on_from_every_cursor_as_if_it_had_never_stopped(
        sizes in prop::collection::vec(0usize..14, 1..7),
        rows in 1usize..9,
        shuffle: bool,
        drop_last: bool,
        text: bool,
    ) {
        let total: usize = sizes.iter().sum();
        // Something must be left of an epoch whose short last batch is dropped.
        let fewest = if drop_last { rows } else { 1 };
        prop_assume!(if text { total * 4 / 5 } else { total } >= fewest);
        let batch = BatchSpec { rows, shuffle, drop_last, window_bytes: 60, seed: 3, ..BatchSpec::default() };
        let (kind, options) = (if text { Kind::Bytes(5) } else { Kind::Number }, options(2, 2));
        let source = MadeBlocks::numbered(&sizes, 3);
        let whole = all(&source, &MadeDecoder::shared(kind, false), &batch, &options);
        for stop in 0..whole.len() {
            let cursor = whole[stop].cursor().clone();
            let (rest, error) = run(&source, &MadeDecoder::shared(kind, false), &batch, &options, cursor);
            prop_assert_eq!(error, None);
            prop_assert_eq!(&rest[..], &whole[stop + 1..], "from item {}", stop);
        }
    }

    #[test]
    fn rows_by_number_go_on_from_every_cursor(num_rows in 1u64..5000, rows in 200usize..1500, shuffle: bool) {
        let batch = BatchSpec { rows, shuffle, ..BatchSpec::default() };
        let (source, options) = (MadeRows::source(Some(num_rows)), options(2, 2));
        let whole = all(&source, &MadeDecoder::shared(Kind::Pairs, false), &batch, &options);
        for stop in 0..whole.len() {
            let start = whole[stop].cursor().clone();
            let (rest, _) = run(&source, &MadeDecoder::shared(Kind::Pairs, false), &batch, &options, start);
            prop_assert_eq!(&rest[..], &whole[stop + 1..], "from item {}", stop);
        }
    }
}

#[test]
fn the_batches_are_the_same_for_any_number_of_workers() {
    let sizes: Vec<usize> = (0..40).map(|i| (i * 7) % 23 + 1).collect();
    for (kind, shuffle) in
        [(Kind::Number, true), (Kind::Number, false), (Kind::Bytes(11), true), (Kind::Bytes(11), false)]
    {
        let batch = BatchSpec { rows: 16, shuffle, window_bytes: 300, ..BatchSpec::default() };
        let with = |workers| {
            all(&MadeBlocks::numbered(&sizes, 5), &MadeDecoder::shared(kind, true), &batch, &options(workers, 2))
        };
        let one = with(1);
        for workers in 2..=4 {
            assert_eq!(with(workers), one, "{workers} workers, {kind:?}, shuffle {shuffle}");
        }
    }
}

#[test]
fn the_batches_are_the_same_for_any_memory_and_prefetch() {
    let sizes: Vec<usize> = (0..60).map(|i| (i * 7) % 23 + 1).collect();
    let batch = BatchSpec { rows: 16, window_bytes: 900, ..BatchSpec::default() };
    let with = |memory, prefetch| {
        let options = StreamOptions { memory, prefetch, ..options(2, 2) };
        all(&MadeBlocks::numbered(&sizes, 5), &MadeDecoder::shared(Kind::Bytes(7), true), &batch, &options)
    };
    let usual = with(256 << 20, 2);
    assert_eq!(with(1 << 20, 1), usual);
    assert_eq!(with(8 << 20, 9), usual);
}

#[test]
fn shuffled_epochs_differ_and_mix_blocks() {
    let batch = BatchSpec { rows: 50, shuffle: true, window_bytes: 1 << 20, ..BatchSpec::default() };
    let source = MadeBlocks::numbered(&[100; 8], 10);
    let epochs = epochs(&all(&source, &MadeDecoder::shared(Kind::Number, false), &batch, &options(2, 2)));
    assert_ne!(epochs[0], epochs[1]);
    let changes = epochs[0].windows(2).filter(|pair| pair[0][0] / 100 != pair[1][0] / 100).count();
    // With all eight blocks in one window, neighbours are of different blocks 7 times in 8; 6 standard deviations are
    // 56.
    assert!(changes > 644, "{changes} of 799");
}

#[test]
fn rows_of_a_single_block_and_rows_by_number_come_in_another_order_each_epoch() {
    let batch = BatchSpec { rows: 16, ..BatchSpec::default() };
    for (source, kind) in [(MadeBlocks::numbered(&[60], 10), Kind::Number), (MadeRows::source(Some(60)), Kind::Pairs)] {
        let epochs = epochs(&all(&source, &MadeDecoder::shared(kind, false), &batch, &options(2, 2)));
        assert!(!epochs[0].is_sorted());
        assert_ne!(epochs[0], epochs[1]);
    }
}

#[test]
fn an_endless_source_never_ends_and_can_be_left_at_any_time() {
    let batch = BatchSpec { rows: 8, ..BatchSpec::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (source, decoder) = (MadeRows::source(None), MadeDecoder::shared(Kind::Pairs, false));
        let options = options(2, u64::MAX);
        let mut stream =
            anemone::pipeline::stream::Stream::open(&source, &decoder, &batch, &options, Cursor::default()).unwrap();
        for _ in 0..1000 {
            assert!(stream.next().await.unwrap().is_some());
        }
    });
}
