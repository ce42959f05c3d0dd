//! Live sources: every row once in what is kept, from any cursor; epochs by rows; batches that do not wait for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anemone::Result;
use anemone::batcher::{BadPolicy, BatchSpec, OnBad};
use anemone::data::{Cursor, Item, Position};
use anemone::order::Share;
use anemone::pipeline::stream::{Stream, StreamOptions};
use anemone::source::{
    Arrived, Blobs, LiveReader, LiveSource, Manifest, Piece, Positions, ReadLimits, Records, Source,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::made::{Kind, MadeDecoder, Seen, run};

/// Records in partitions, which are merged as they arrive: in another order for every `arrival`. Partition p is that of
/// shard p mod the number of shards.
pub struct MadeLive {
    manifest: Manifest,
    partitions: Vec<Vec<Vec<u8>>>,
    arrival: u64,
    /// After the last record nothing comes, instead of the end.
    is_endless: bool,
    /// How many records of each partition are there so far, where not all are.
    there: Option<Arc<Vec<AtomicUsize>>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Place {
    next: Vec<usize>,
    /// The partition of the window that begins here, and where it ends.
    turn: Option<(usize, usize)>,
}

impl MadeLive {
    pub fn source(partitions: Vec<Vec<Vec<u8>>>, arrival: u64) -> Source {
        let manifest = Manifest::new("made-live", vec![], "");
        Source::Live(Arc::new(Self { manifest, partitions, arrival, is_endless: false, there: None }))
    }

    /// One that does not end, with as many records of each partition as are there at a time.
    pub fn growing(partitions: Vec<Vec<Vec<u8>>>, there: &Arc<Vec<AtomicUsize>>) -> Source {
        let manifest = Manifest::new("made-live", vec![], "");
        let there = Some(there.clone());
        Source::Live(Arc::new(Self { manifest, partitions, arrival: 1, is_endless: true, there }))
    }

    /// How many records of a partition are there.
    fn size(&self, partition: usize) -> usize {
        let size = self.partitions[partition].len();
        self.there.as_ref().map_or(size, |there| there[partition].load(Ordering::SeqCst).min(size))
    }
}

impl LiveSource for MadeLive {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        true
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        self.open_share(Share::default(), from)
    }

    fn check_shards(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn open_share(self: Arc<Self>, share: Share, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        let start = Place { next: vec![0; self.partitions.len()], turn: None };
        let place = from.map_or(Ok(start), Position::read)?;
        Ok(Box::new(MadeReader { chance: self.arrival, source: self, share, place, window: None }))
    }
}

struct MadeReader {
    source: Arc<MadeLive>,
    share: Share,
    place: Place,
    /// What is left of the current window: a partition and its records.
    window: Option<(usize, std::ops::Range<usize>)>,
    chance: u64,
}

impl MadeReader {
    fn draw(&mut self, below: usize) -> usize {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) as usize % below
    }
}

impl LiveReader for MadeReader {
    fn next(&mut self, _: &ReadLimits) -> Result<Option<Arrived>> {
        if let Some((partition, left)) = &mut self.window {
            let partition = *partition;
            if left.start == left.end {
                self.place.next[partition] = left.end;
                (self.window, self.place.turn) = (None, None);
                return Ok(Some(Arrived::WindowEnd(Position::new(&self.place)?)));
            }
            // Two records a piece.
            let records = left.start..left.end.min(left.start + 2);
            left.start = records.end;
            let positions = Positions::Rows { first: records.start as u64 };
            let mut blobs = Blobs::default();
            self.source.partitions[partition][records].iter().for_each(|record| blobs.push(record));
            let file = format!("partition {partition}").into();
            return Ok(Some(Arrived::Piece(Piece { file, positions, records: Records::Blobs(blobs), bad: vec![] })));
        }
        if self.place.turn.is_none() {
            let sizes: Vec<usize> = (0..self.source.partitions.len()).map(|p| self.source.size(p)).collect();
            let own = (0..sizes.len()).filter(|&p| self.share.has(p as u64));
            let open: Vec<usize> = own.filter(|&p| self.place.next[p] < sizes[p]).collect();
            if open.is_empty() && self.source.is_endless {
                thread::sleep(Duration::from_millis(20));
                return Ok(Some(Arrived::Quiet));
            }
            if open.is_empty() {
                return Ok(None);
            }
            let partition = open[self.draw(open.len())];
            let first = self.place.next[partition];
            let count = 1 + self.draw(5).min(sizes[partition] - first - 1);
            self.place.turn = Some((partition, first + count));
        }
        let (partition, end) = self.place.turn.unwrap_or_default();
        self.window = Some((partition, self.place.next[partition]..end));
        Ok(Some(Arrived::WindowStart(Position::new(&self.place)?)))
    }
}

pub fn numbered(sizes: &[usize]) -> Vec<Vec<Vec<u8>>> {
    let mut numbers = 0u32..;
    sizes
        .iter()
        .map(|&size| numbers.by_ref().take(size).map(|number| number.to_le_bytes().to_vec()).collect())
        .collect()
}

fn options() -> StreamOptions {
    let bad = BadPolicy { on_bad: OnBad::Skip, max_bad: u64::MAX, max_bad_fraction: 1.0 };
    StreamOptions { workers: Some(2), bad, epochs: Some(1), ..StreamOptions::default() }
}

/// Rows up to the cursor of item `stop`, then those of a stream that begins there and merges in another order.
fn stopped_and_resumed(sizes: &[usize], batch: &BatchSpec, stop: usize) -> (Vec<u32>, Vec<Seen>) {
    let decoder = MadeDecoder::shared(Kind::Number, true);
    let (mut seen, error) = run(&MadeLive::source(numbered(sizes), 7), &decoder, batch, &options(), Cursor::default());
    assert_eq!(error, None);
    seen.truncate(1 + stop % (seen.len() - 1).max(1)); // not the end of the data: nothing comes after it
    let cursor = seen.last().unwrap().cursor().clone();
    // As a checkpoint has it.
    let cursor: Cursor = serde_json::from_str(&serde_json::to_string(&cursor).unwrap()).unwrap();
    let (after, error) = run(&MadeLive::source(numbered(sizes), 8), &decoder, batch, &options(), cursor);
    assert_eq!(error, None);
    seen.extend(after);
    (seen.iter().flat_map(|s| s.rows().concat()).collect(), seen)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_row_comes_once_whatever_the_order_of_arrival_and_wherever_it_was_stopped(
        sizes in prop::collection::vec(0usize..20, 1..5),
        rows in 1usize..7,
        stop: usize,
    ) {
        let total: usize = sizes.iter().sum();
        prop_assume!(total > 0);
        let batch = BatchSpec { rows, ..BatchSpec::default() };
        let (mut rows, _) = stopped_and_resumed(&sizes, &batch, stop);
        rows.sort_unstable();
        prop_assert!(rows.into_iter().eq(0..total as u32));
    }

    #[test]
    fn an_epoch_of_a_live_stream_is_a_number_of_rows(
        sizes in prop::collection::vec(1usize..30, 1..4),
        rows in 1usize..7,
        epoch_rows in 1u64..12,
        stop: usize,
    ) {
        let total: usize = sizes.iter().sum();
        let batch = BatchSpec { rows, epoch_rows: Some(epoch_rows), ..BatchSpec::default() };
        let (mut rows, seen) = stopped_and_resumed(&sizes, &batch, stop);
        rows.sort_unstable();
        prop_assert!(rows.into_iter().eq(0..total as u32));
        let mut in_epoch = 0;
        for (at, item) in seen.iter().enumerate() {
            match item {
                Seen::Batch(rows, _) => in_epoch += rows.len() as u64,
                Seen::EpochEnd(next) if at + 1 < seen.len() => {
                    prop_assert_eq!((in_epoch, next.epoch_rows), (epoch_rows, 0));
                    in_epoch = 0;
                }
                Seen::EpochEnd(_) => prop_assert!(in_epoch < epoch_rows || total == 0),
            }
        }
    }

    #[test]
    fn tokens_left_over_travel_in_the_cursor(
        records in prop::collection::vec(prop::collection::vec(0u8..250, 0..9), 1..20),
        window in 1usize..6,
        stop: usize,
    ) {
        let tokens: Vec<u32> = records.concat().into_iter().map(u32::from).collect();
        prop_assume!(tokens.len() >= window);
        let batch = BatchSpec { rows: 2, ..BatchSpec::default() };
        let decoder = MadeDecoder::shared(Kind::Bytes(window), false);
        let source = |arrival| MadeLive::source(vec![records.clone()], arrival);
        let (mut seen, _) = run(&source(1), &decoder, &batch, &options(), Cursor::default());
        seen.truncate(1 + stop % (seen.len() - 1).max(1));
        let (after, error) = run(&source(2), &decoder, &batch, &options(), seen.last().unwrap().cursor().clone());
        prop_assert_eq!(error, None);
        seen.extend(after);
        let rows: Vec<Vec<u32>> = seen.iter().flat_map(|s| s.rows().to_vec()).collect();
        prop_assert!(rows.iter().map(Vec::as_slice).eq(tokens.chunks_exact(window)));
    }
}

#[test]
fn a_batch_that_is_not_full_goes_after_its_wait_and_nothing_is_lost() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let manifest = Manifest::new("made-live", vec![], "");
    let live = MadeLive { manifest, partitions: numbered(&[7]), arrival: 3, is_endless: true, there: None };
    let source = Source::Live(Arc::new(live));
    let batch = BatchSpec { rows: 5, max_wait: Some(Duration::from_millis(60)), ..BatchSpec::default() };
    runtime.block_on(async {
        let decoder = MadeDecoder::shared(Kind::Number, false);
        let mut stream = Stream::open(&source, &decoder, &batch, &options(), Cursor::default()).unwrap();
        let begun = Instant::now();
        let mut sizes = Vec::new();
        let mut cursor = Cursor::default();
        while sizes.iter().sum::<usize>() < 7 {
            let Some(Item::Batch { batch, end }) = stream.next().await.unwrap() else { panic!("it does not end") };
            sizes.push(batch.num_rows());
            cursor = end;
        }
        assert_eq!(sizes, [5, 2]);
        assert!(begun.elapsed() >= Duration::from_millis(60), "the second batch waited");
        // Nothing comes twice either: a stream that begins after it is quiet.
        let mut after = Stream::open(&source, &decoder, &batch, &options(), cursor).unwrap();
        let more = tokio::time::timeout(Duration::from_millis(300), after.next()).await;
        assert!(more.is_err(), "{more:?}");
    });
}
