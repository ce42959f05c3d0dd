//! Batches of several shards of a live source: every row once on any number of ranks, whatever arrives when; shards
//! without rows; runs on ranks that watch a folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anemone::backend::PlaceSpec;
use anemone::batcher::BatchSpec;
use anemone::cluster::{Ranks, Threads};
use anemone::data::{Cursor, Digest, Item};
use anemone::pipeline::feed::{Feed, Offer, Taken};
use anemone::pipeline::observer::{Event, Finished, Observer};
use anemone::pipeline::prepare::Inputs;
use anemone::pipeline::run::{TrainOptions, train};
use anemone::pipeline::spec::PipelineSpec;
use anemone::pipeline::stop::Stop;
use anemone::pipeline::stream::Stream;
use anemone::rng::Rng;
use anemone::source::Source;
use anemone::source::ahead::Ahead;
use proptest::prelude::*;

use crate::live::{MadeLive, numbered};
use crate::made::{Kind, MadeDecoder};
use crate::shards::{Global, assert_same_bits, batches_of, batches_until, last, options, run_on, sorted};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_row_of_a_live_source_comes_once_on_any_number_of_ranks_and_from_any_place(
        sizes in prop::collection::vec(0usize..25, 1..8),
        shards in 2usize..5,
        rows in 5usize..20,
        epoch_rows in prop::option::of(1u64..40),
        drop_last: bool,
        from in 0usize..20,
    ) {
        let total: usize = sizes.iter().sum();
        prop_assume!(total > 0);
        let decoder = MadeDecoder::shared(Kind::Number, true);
        let source = |arrival| MadeLive::source(numbered(&sizes), arrival);
        let batch = BatchSpec { rows, shards, epoch_rows, drop_last, ..BatchSpec::default() };
        let whole = batches_of(&source(5), &decoder, &batch, &options(1), &Cursor::default(), 1).unwrap();
        let all = whole.iter().flat_map(|global| global.rows.clone()).collect();
        prop_assert!(sorted(all).into_iter().eq(0..total as u32));
        for ranks in 2..=shards {
            let found = batches_of(&source(5), &decoder, &batch, &options(1), &Cursor::default(), ranks).unwrap();
            prop_assert_eq!(&found, &whole);
        }
        // An epoch is over with the batch that reaches its rows.
        let (mut in_epoch, mut epoch) = (0, 0);
        for (at, global) in whole.iter().enumerate() {
            let before = in_epoch;
            in_epoch += global.rows.len() as u64;
            prop_assert!(epoch_rows.is_none_or(|most| before < most || global.rows.is_empty()));
            if global.rows.is_empty() {
                prop_assert!(at + 1 == whole.len() || epoch_rows.is_some_and(|most| in_epoch >= most));
                (in_epoch, epoch) = (0, epoch + 1);
            }
            let counted = if epoch_rows.is_some() { in_epoch } else { global.end.epoch_rows };
            prop_assert_eq!((global.end.epoch, global.end.epoch_rows), (epoch, counted));
        }
        // Partitions are merged in another order where the stream is opened again.
        let from = from % (whole.len() - 1).max(1);
        let end: Cursor = serde_json::from_str(&serde_json::to_string(&whole[from].end).unwrap()).unwrap();
        let rest = batches_of(&source(6), &decoder, &batch, &options(1), &end, shards).unwrap();
        let all = whole[..=from].iter().chain(&rest).flat_map(|global| global.rows.clone()).collect();
        prop_assert!(sorted(all).into_iter().eq(0..total as u32));
    }

    /// Where nothing is merged, shards of a live source are as sure as files: the same batches whatever arrives when.
    #[test]
    fn with_one_partition_a_shard_batches_do_not_depend_on_arrival(
        size in 1usize..40, shards in 2usize..5, rows in 5usize..20, from in 0usize..20,
    ) {
        let sizes: Vec<usize> = (0..shards).map(|shard| size + 7 * shard).collect();
        let decoder = MadeDecoder::shared(Kind::Number, true);
        let batch = BatchSpec { rows, shards, ..BatchSpec::default() };
        let found = |arrival, start: &Cursor, ranks| {
            let source = MadeLive::source(numbered(&sizes), arrival);
            batches_of(&source, &decoder, &batch, &options(1), start, ranks).unwrap()
        };
        let rows_of = |globals: &[Global]| globals.iter().map(|global| global.rows.clone()).collect::<Vec<_>>();
        let whole = found(1, &Cursor::default(), 1);
        let from = from % (whole.len() - 1);
        prop_assert_eq!(rows_of(&found(2, &Cursor::default(), shards)), rows_of(&whole));
        prop_assert_eq!(rows_of(&found(3, &whole[from].end, 2)), rows_of(&whole[from + 1..]));
    }
}

#[test]
fn records_of_a_live_source_that_were_looked_at_come_once_in_the_shards_that_have_them() {
    let decoder = MadeDecoder::shared(Kind::Number, false);
    let batch = BatchSpec { rows: 6, shards: 3, ..BatchSpec::default() };
    let mut seen = 0;
    let Source::Live(source) = MadeLive::source(numbered(&[30, 20, 40, 10]), 2) else { panic!("it is live") };
    let ahead = Ahead::look(source, &options(1).read_limits(), 50, |piece| {
        seen += piece.num_records();
        Ok(())
    });
    assert!(seen >= 50);
    let source = Source::Live(Arc::new(ahead.unwrap()));
    for ranks in [3, 1] {
        let found = batches_of(&source, &decoder, &batch, &options(1), &Cursor::default(), ranks).unwrap();
        let all: Vec<u32> = found.iter().flat_map(|global| global.rows.clone()).collect();
        assert!(sorted(all).into_iter().eq(0..100), "{found:?}");
        // Partitions 0 and 3 are those of the first shard, and so on.
        let of_first = found.iter().flat_map(|global| &global.rows[..*global.counts.first().unwrap_or(&0)]);
        assert!(of_first.copied().all(|row| !(30..90).contains(&row)), "{found:?}");
    }
}

const SHORT_WAIT: Option<Duration> = Some(Duration::from_millis(150));

/// One process with all shards, which is asked for one thing after the other.
struct Whole {
    feed: Feed,
    there: Arc<Vec<AtomicUsize>>,
}

impl Whole {
    /// Three shards of three rows a batch, with so many rows each so far.
    fn open(there: [usize; 3], max_wait: Option<Duration>) -> Self {
        let there: Arc<Vec<AtomicUsize>> = Arc::new(there.map(AtomicUsize::new).into());
        let source = MadeLive::growing(numbered(&[300; 3]), &there);
        let decoder = MadeDecoder::shared(Kind::Number, false);
        let batch = BatchSpec { rows: 9, shards: 3, max_wait, ..BatchSpec::default() };
        let feed = Feed::open(&batch, &options(1), 1, Cursor::default(), 0..3, |options, place| {
            Stream::open(&source, &decoder, &batch, options, place)
        });
        Self { feed: feed.unwrap(), there }
    }

    /// Rows of each shard in the next batch, and what the one in the middle offered whenever it was asked.
    async fn next(&mut self) -> (Vec<usize>, Vec<Offer>) {
        let mut offered = Vec::new();
        loop {
            self.feed.pull().await.unwrap();
            let offers = self.feed.offers();
            offered.push(offers[1].clone());
            assert!(offered.len() < 100, "nothing is ever taken: {offers:?}");
            match self.feed.take(&offers).unwrap() {
                Taken::Nothing => {}
                Taken::Item(item) => match *item {
                    Item::Batch { batch, .. } => return (batch.part().unwrap().rows.clone(), offered),
                    Item::EpochEnd { .. } => panic!("it has no end"),
                },
                taken => panic!("{taken:?}"),
            }
        }
    }
}

#[test]
fn a_shard_without_rows_is_waited_for_once_and_again_when_it_has_filled_its_part() {
    const WAITED_FOR: Offer = Offer::Quiet { is_late: false };
    const LATE: Offer = Offer::Quiet { is_late: true };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut whole = Whole::open([300, 0, 300], SHORT_WAIT);
        let (rows, offered) = whole.next().await;
        assert_eq!((rows[1], offered.first(), offered.last()), (0, Some(&WAITED_FOR), Some(&LATE)), "{rows:?}");
        for _ in 0..3 {
            let (rows, offered) = whole.next().await;
            assert!(rows[1] == 0 && rows[0] + rows[2] > 0 && offered.iter().all(|offer| *offer == LATE), "{offered:?}");
        }
        // One row of three, which waits for others, and goes alone.
        let mut seen = 0;
        let release = |whole: &Whole, rows: usize| whole.there[1].fetch_add(rows, Ordering::SeqCst);
        release(&whole, 1);
        while seen == 0 {
            let (rows, offered) = whole.next().await;
            seen += rows[1];
            assert!(!offered.contains(&WAITED_FOR), "{offered:?}");
            tokio::time::sleep(Duration::from_millis(20)).await; // others have rows for longer than this takes
        }
        let (rows, offered) = whole.next().await;
        assert!(rows[1] == 0 && !offered.contains(&WAITED_FOR), "a slow shard holds up nobody: {offered:?}");
        // Its whole part.
        release(&whole, 3);
        while seen < 4 {
            seen += whole.next().await.0[1];
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (_, offered) = whole.next().await;
        assert_eq!((seen, offered.first(), offered.last()), (4, Some(&WAITED_FOR), Some(&LATE)));
    });
}

#[test]
fn a_shard_that_is_waited_for_as_long_as_it_takes_is_in_every_batch() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut whole = Whole::open([300, 0, 300], None);
        for _ in 0..3 {
            let there = whole.there.clone();
            let release = async {
                tokio::time::sleep(Duration::from_millis(450)).await;
                there[1].fetch_add(3, Ordering::SeqCst);
            };
            let ((rows, offered), ()) = tokio::join!(whole.next(), release);
            assert_eq!((rows, offered.first()), (vec![3, 3, 3], Some(&Offer::Quiet { is_late: false })), "{offered:?}");
        }
    });
}

#[test]
fn where_no_shard_has_rows_none_is_late_and_whoever_stops_waiting_begins_where_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut whole = Whole::open([0, 0, 0], SHORT_WAIT);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(900) {
            // Somebody who looks at a clock all the time gets its answer all the same.
            let mut asked = 0;
            while tokio::time::timeout(Duration::from_millis(30), whole.feed.pull()).await.is_err() {
                asked += 1;
                assert!(asked < 100, "it never says that there is nothing");
            }
            assert!(asked > 0, "it waits for a moment");
            let offers = whole.feed.offers();
            assert!(offers.iter().all(|offer| *offer == Offer::Quiet { is_late: false }), "{offers:?}");
            assert!(matches!(whole.feed.take(&offers), Ok(Taken::Nothing)));
        }
        whole.there[1].store(3, Ordering::SeqCst);
        assert_eq!(whole.next().await.0, [0, 3, 0]);
    });
}

/// A folder of files with `rows` rows each, numbered through, whose every number is a row.
fn watched(dir: &Path, files: usize, rows: u32, batch: &str) -> PipelineSpec {
    for file in 0..files as u32 {
        let numbers = file * rows..(file + 1) * rows;
        let bytes: Vec<u8> = numbers.flat_map(|number| (number as u16).to_le_bytes()).collect();
        fs::write(dir.join(format!("part-{file:03}.bin")), bytes).unwrap();
    }
    let text = format!(
        "[source]\nfiles = '{}/*.bin'\nwatch = true\nsettle = 0.0\n[decode]\nkind = 'tokens'\nwindow = 1\n\
         [batch]\n{batch}",
        dir.display()
    );
    PipelineSpec::parse(&text, "test.toml").unwrap()
}

#[test]
fn a_watched_folder_in_shards_gives_every_row_once_and_the_same_batches_to_any_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let open = |batch: &str| runtime.block_on(Inputs::open(&watched(dir.path(), 10, 40, batch))).unwrap();
    let until = |inputs: &Inputs, enough: usize, start: &Cursor, ranks: usize| {
        let (spec, options) = (&inputs.spec.batch, options(1));
        batches_until(enough, &inputs.source, &inputs.decoder, spec, &options, start, ranks).unwrap()
    };
    let rows_of = |globals: &[Global]| globals.iter().flat_map(|global| global.rows.clone()).collect();
    let one = open("rows = 12\nmax_wait = 0.2");
    assert!(sorted(rows_of(&until(&one, 400, &Cursor::default(), 1))).into_iter().eq(0..400));
    let shards = open("rows = 12\nshards = 3\nmax_wait = 0.2");
    let found = until(&shards, 400, &Cursor::default(), 2);
    assert!(sorted(rows_of(&found)).into_iter().eq(0..400), "{found:?}");
    // As long as every shard has rows: a shard has a file at least, which is ten batches long.
    let patient = open("rows = 12\nshards = 3\nmax_wait = 'never'");
    let want = until(&patient, 96, &Cursor::default(), 1);
    assert!(want.len() == 8 && want.iter().all(|global| global.counts == [4; 3]), "{want:?}");
    for ranks in [2, 3] {
        assert_eq!(until(&patient, 96, &Cursor::default(), ranks), want);
        assert_eq!(until(&patient, 60, &want[2].end, ranks), want[3..]);
    }
    // A file's shard is that of its name, whatever else is there.
    let of_file = |global: &Global| -> Vec<u32> { global.rows.chunks(4).map(|rows| rows[0] / 40).collect() };
    let number = |file: u32| Digest::new().part(format!("part-{file:03}.bin")).number();
    assert!(of_file(&want[0]).into_iter().map(|file| number(file) % 3).eq(0..3));
}

/// Asks for a stop once a run has so many rows and nothing more comes.
struct Idle {
    rows: u64,
    stop: Stop,
}

impl Observer for Idle {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Step(line) if line.rows >= self.rows) {
            let stop = self.stop.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(700));
                stop.request();
            });
        }
    }
}

#[test]
fn ranks_that_wait_for_files_hear_of_a_signal_to_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let batch = "rows = 12\nshards = 3\nmax_wait = 0.1\n[circuit]\nmodel = 'hmm'\nlatents = 2\n";
    let spec = watched(dir.path(), 6, 20, batch);
    for is_first in [true, false] {
        let one = |rank: usize, threads: Threads| {
            let ranks = Some(Ranks::new(Box::new(threads), spec.batch.shards).unwrap());
            let place = PlaceSpec { threads: Some(1), ranks, ..PlaceSpec::default() };
            let (out, resume) = (out.join(is_first.to_string()), false);
            let options =
                TrainOptions { name: "test".into(), out, resume, force_resume: false, place, every_look: false };
            let stop = Stop::new();
            let rows = if (rank == 0) == is_first { 120 } else { u64::MAX };
            let mut idle = Idle { rows, stop: stop.clone() };
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(train(&spec, &options, &stop, &mut idle))
        };
        let begun = Instant::now();
        let ended: Vec<Finished> = thread::scope(|scope| {
            let one = &one;
            let ranks = Threads::ranks(2).into_iter().enumerate();
            let ranks: Vec<_> = ranks.map(|(rank, threads)| scope.spawn(move || one(rank, threads))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        });
        assert!(ended.iter().all(|rank| rank.rows == 120 && rank.reason == ended[0].reason), "{ended:?}");
        assert!(ended[0].reason.contains("signal"), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_watched_folder_is_one_run_on_any_number_of_ranks_also_where_it_is_stopped_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(8);
    for file in 0..10 {
        let tokens: Vec<u8> = (0..160).flat_map(|at| (((at * at) % 40 + rng.below(9)) as u16).to_le_bytes()).collect();
        fs::write(dir.path().join(format!("part-{file:03}.bin")), tokens).unwrap();
    }
    let text = format!(
        "[source]\nfiles = '{}/*.bin'\nwatch = true\nsettle = 0.0\n[decode]\nkind = 'tokens'\nwindow = 4\n\
         vocab = 50\n[batch]\nrows = 12\nshards = 3\nmax_wait = 'never'\n[circuit]\nmodel = 'hmm'\nlatents = 3\n\
         [learn]\nbatches = 9\n",
        dir.path().display()
    );
    for (name, learn) in [("anemone", ""), ("em", "optimizer = 'full_batch_em'\nwindow_rows = 30\n")] {
        let pipeline = format!("{text}{learn}");
        let out = |ranks: usize| dir.path().join(format!("{name}-{ranks}"));
        run_on(&pipeline, &out(0), 0, None).remove(0).unwrap();
        let want = last(&out(0));
        assert_eq!((want.meta.progress.batches, want.meta.progress.rows), (9, 108), "{name}");
        assert_eq!(want.meta.progress.epoch, if name == "em" { 2 } else { 0 }, "an epoch is three batches");
        for ranks in [2, 3] {
            run_on(&pipeline, &out(ranks), ranks, None).into_iter().for_each(|finished| drop(finished.unwrap()));
            assert_same_bits(&last(&out(ranks)), &want, &format!("{name} on {ranks} ranks"));
        }
        let out = dir.path().join(format!("{name}-stopped"));
        for (ranks, stop_at) in [(3, Some(2)), (1, Some(5)), (0, Some(7)), (2, None)] {
            run_on(&pipeline, &out, ranks, stop_at).into_iter().for_each(|finished| drop(finished.unwrap()));
        }
        assert_same_bits(&last(&out), &want, &format!("{name}, stopped and resumed"));
    }
}
