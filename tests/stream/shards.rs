//! Batches of several shards: every row once an epoch, the same for any number of ranks and from any cursor; runs on
//! ranks that are threads.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anemone::backend::PlaceSpec;
use anemone::batcher::BatchSpec;
use anemone::cluster::{Ranks, Threads, shards_of};
use anemone::data::{Batch, Cursor, Item};
use anemone::decode::Decoder;
use anemone::learner::{Checkpoint, latest};
use anemone::pipeline::feed::{Feed, Offer, Taken};
use anemone::pipeline::observer::{Event, Finished, Observer};
use anemone::pipeline::run::{TrainOptions, train};
use anemone::pipeline::spec::PipelineSpec;
use anemone::pipeline::stop::Stop;
use anemone::pipeline::stream::{Stream, StreamOptions};
use anemone::source::json_lines::JsonLines;
use anemone::source::{Columns, Source};
use anemone::{ErrorKind, Result};
use proptest::prelude::*;

use crate::common::shards::{texts, write_texts};
use crate::made::{Kind, MadeBlocks, MadeDecoder, MadeRows};

/// What a global batch was: its rows in shard order, those of each shard, and the place after it; no rows at the end
/// of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Global {
    pub rows: Vec<u32>,
    pub counts: Vec<usize>,
    pub end: Cursor,
}

fn rows_of(batch: &Batch) -> Vec<u32> {
    (0..batch.num_rows()).map(|row| batch.column(0).category(row).unwrap()).collect()
}

/// All global batches from a place on, put together by `ranks` of which each has its own shards.
pub fn batches_of(
    source: &Source,
    decoder: &Arc<dyn Decoder>,
    batch: &BatchSpec,
    options: &StreamOptions,
    start: &Cursor,
    ranks: usize,
) -> Result<Vec<Global>> {
    batches_until(usize::MAX, source, decoder, batch, options, start, ranks)
}

/// The same, until they have so many rows.
pub fn batches_until(
    enough: usize,
    source: &Source,
    decoder: &Arc<dyn Decoder>,
    batch: &BatchSpec,
    options: &StreamOptions,
    start: &Cursor,
    ranks: usize,
) -> Result<Vec<Global>> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let open = |own: Range<usize>| {
            Feed::open(batch, options, decoder.shape().num_vars, start.clone(), own, |options, place| {
                Stream::open(source, decoder, batch, options, place)
            })
        };
        let mut feeds: Vec<Feed> =
            (0..ranks).map(|rank| open(shards_of(rank, ranks, batch.shards))).collect::<Result<_>>()?;
        let mut all: Vec<Global> = Vec::new();
        while all.iter().map(|global| global.rows.len()).sum::<usize>() < enough {
            let mut offers: Vec<Offer> = Vec::new();
            for feed in &mut feeds {
                feed.pull().await?;
                offers.extend(feed.offers());
            }
            let mut global: Option<Global> = None;
            for feed in &mut feeds {
                let (rows, counts, end) = match feed.take(&offers)? {
                    Taken::End => return Ok(all),
                    Taken::LeftOut | Taken::Nothing => continue,
                    Taken::Item(item) => match *item {
                        Item::EpochEnd { next } => (Vec::new(), Vec::new(), next),
                        Item::Batch { batch, end } => {
                            let counts = batch.part().map_or_else(|| vec![batch.num_rows()], |part| part.rows.clone());
                            (rows_of(&batch), counts, end)
                        }
                    },
                };
                match &mut global {
                    None => global = Some(Global { rows, counts, end }),
                    Some(global) => {
                        assert_eq!((&global.counts, &global.end), (&counts, &end), "ranks disagree");
                        global.rows.extend(rows);
                    }
                }
            }
            all.extend(global);
        }
        Ok(all)
    })
}

pub fn options(epochs: u64) -> StreamOptions {
    StreamOptions { workers: Some(2), epochs: Some(epochs), ..StreamOptions::default() }
}

pub fn sorted(mut rows: Vec<u32>) -> Vec<u32> {
    rows.sort_unstable();
    rows
}

/// Blocks of these sizes, or as many rows that can be read by number; decoded as one variable.
fn made(sizes: &[usize], is_indexed: bool) -> (Source, Arc<dyn Decoder>, usize) {
    let total = sizes.iter().sum();
    let (source, kind) = match is_indexed {
        true => (MadeRows::source(Some(total as u64)), Kind::AllPairs),
        false => (MadeBlocks::numbered(sizes, 3), Kind::Number),
    };
    (source, MadeDecoder::shared(kind, false), total)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_row_comes_once_an_epoch_on_any_number_of_ranks_and_from_any_place(
        sizes in prop::collection::vec(1usize..23, 1..12),
        shards in 1usize..7,
        rows in 7usize..30,
        shuffle: bool,
        is_indexed: bool,
        drop_last: bool,
        from in 0usize..20,
    ) {
        let (source, decoder, total) = made(&sizes, is_indexed);
        let batch = BatchSpec { rows, shards, shuffle, drop_last, window_bytes: 90, ..BatchSpec::default() };
        let found = batches_of(&source, &decoder, &batch, &options(2), &Cursor::default(), 1);
        if drop_last && (is_indexed || shards == 1) && total < rows {
            prop_assert_eq!(found.unwrap_err().kind(), ErrorKind::Data);
            return Ok(());
        }
        let Ok(whole) = found else {
            prop_assert!(drop_last, "only data without a whole batch is refused");
            return Ok(());
        };
        let epochs: Vec<Vec<u32>> = whole
            .split_inclusive(|global| global.rows.is_empty())
            .map(|epoch| epoch.iter().flat_map(|global| global.rows.clone()).collect())
            .collect();
        prop_assert_eq!(epochs.len(), 2);
        for epoch in epochs {
            match drop_last {
                false => prop_assert!(sorted(epoch).into_iter().eq(0..total as u32)),
                true => prop_assert!(epoch.len() % rows == 0 && epoch.len() <= total),
            }
        }
        for ranks in 2..=shards {
            let found = batches_of(&source, &decoder, &batch, &options(2), &Cursor::default(), ranks).unwrap();
            prop_assert_eq!(&found, &whole);
        }
        let from = from % whole.len();
        let rest = batches_of(&source, &decoder, &batch, &options(2), &whole[from].end, shards).unwrap();
        prop_assert_eq!(&rest, &whole[from + 1..]);
    }

    /// Where any row can be read by its number, shards change nothing about batches.
    #[test]
    fn of_rows_by_number_batches_are_those_of_one_shard(
        total in 1usize..200, shards in 2usize..7, rows in 7usize..30, shuffle: bool,
    ) {
        let (source, decoder, _) = made(&[total], true);
        let batch = |shards| BatchSpec { rows, shards, shuffle, ..BatchSpec::default() };
        let rows = |shards| -> Vec<Vec<u32>> {
            let found = batches_of(&source, &decoder, &batch(shards), &options(2), &Cursor::default(), shards);
            found.unwrap().into_iter().map(|global| global.rows).collect()
        };
        prop_assert_eq!(rows(shards), rows(1));
    }
}

#[test]
fn data_without_a_row_is_refused_however_many_shards() {
    let (_, decoder, _) = made(&[1], false);
    let source = MadeBlocks::numbered(&[0, 0], 3);
    for shards in [1, 3] {
        let batch = BatchSpec { rows: 8, shards, ..BatchSpec::default() };
        let error = batches_of(&source, &decoder, &batch, &options(3), &Cursor::default(), shards).unwrap_err();
        assert!(error.to_string().contains("not one whole row"), "{error}");
    }
}

#[test]
fn a_place_of_other_shards_is_refused() {
    let (source, decoder, _) = made(&[20, 20, 20], false);
    let batch = |shards| BatchSpec { rows: 8, shards, ..BatchSpec::default() };
    let first = batches_of(&source, &decoder, &batch(3), &options(1), &Cursor::default(), 1).unwrap().remove(0).end;
    for shards in [1, 2] {
        let error = batches_of(&source, &decoder, &batch(shards), &options(1), &first, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State);
        assert!(error.to_string().contains("3 shards"), "{error}");
    }
}

struct Nobody;

impl Observer for Nobody {
    fn event(&mut self, _: &Event) {}
}

/// Stops after so many batches.
struct Until(u64, Stop);

impl Observer for Until {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Step(line) if line.step == self.0) {
            self.1.request();
        }
    }
}

/// Runs a pipeline on so many ranks that are threads; the first is asked to stop after `stop_at` batches.
pub fn run_on(pipeline: &str, out: &Path, ranks: usize, stop_at: Option<u64>) -> Vec<Result<Finished>> {
    let spec = PipelineSpec::parse(pipeline, "test.toml").unwrap();
    let one = |rank: Option<Threads>| {
        let is_first = rank.is_none() || anemone::cluster::Cluster::rank(rank.as_ref().unwrap()) == 0;
        let ranks = rank.map(|rank| Ranks::new(Box::new(rank), spec.batch.shards)).transpose()?;
        let options = TrainOptions {
            name: "test".into(),
            out: out.to_path_buf(),
            resume: out.is_dir(),
            force_resume: false,
            place: PlaceSpec { threads: Some(1), ranks, ..PlaceSpec::default() },
            every_look: false,
        };
        let stop = Stop::new();
        let mut until = Until(stop_at.filter(|_| is_first).unwrap_or(u64::MAX), stop.clone());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        match stop_at {
            None => runtime.block_on(train(&spec, &options, &stop, &mut Nobody)),
            Some(_) => runtime.block_on(train(&spec, &options, &stop, &mut until)),
        }
    };
    if ranks == 0 {
        return vec![one(None)];
    }
    let resume = out.is_dir();
    assert!(resume || !out.exists());
    thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            Threads::ranks(ranks).into_iter().map(|rank| scope.spawn(move || one(Some(rank)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn last(out: &Path) -> Checkpoint {
    latest(&out.join("checkpoints")).unwrap().found.unwrap().1
}

pub fn assert_same_bits(a: &Checkpoint, b: &Checkpoint, what: &str) {
    assert!(!a.params.values().is_empty() && a.params.values().iter().all(|x| x.is_finite()));
    assert!(a.params == b.params, "{what}: parameters differ");
    assert!(a.optimizer == b.optimizer, "{what}: optimizer states differ");
    assert_eq!(a.meta.progress.cursor, b.meta.progress.cursor, "{what}");
    assert_eq!(a.meta.progress.prequential, b.meta.progress.prequential, "{what}");
    assert_eq!(a.meta.extra["best"], b.meta.extra["best"], "{what}");
}

/// A small HMM on text in Parquet, a tree on a table, and full-batch EM.
fn pipelines(dir: &Path) -> Vec<(&'static str, String)> {
    for part in 0..3 {
        write_texts(&dir.join(format!("text-{part}.parquet")), &texts(30, part), 5);
    }
    write_texts(&dir.join("valid.parquet"), &texts(30, 9), 5);
    let text = format!(
        "[source]\nfiles = '{0}/text-*.parquet'\ncolumn = 'text'\n[decode]\nkind = 'text'\nwindow = 8\n\
         [circuit]\nmodel = 'hmm'\nlatents = 3\n[batch]\nrows = 24\nshards = 4\nshuffle_window = '2KiB'\n\
         [learn]\nepochs = 2\n[validate]\nfiles = '{0}/valid.parquet'\nevery_batches = 7\n",
        dir.display()
    );
    let table = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 6\ncats = 5\nlatents = 3\nrows = 500\n\
                 [circuit]\nmodel = 'hclt'\nlatents = 4\n[batch]\nrows = 32\nshards = 4\n[learn]\nepochs = 2\n\
                 [validate]\nrows = 60\n";
    let em = format!("{}optimizer = 'full_batch_em'\n", table.replace("[validate]\nrows = 60\n", ""));
    vec![("text", text), ("table", table.into()), ("em", em)]
}

#[test]
fn runs_on_any_number_of_ranks_are_one_run_also_where_they_are_stopped_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    for (name, pipeline) in pipelines(dir.path()) {
        let out = |ranks: usize| dir.path().join(format!("{name}-{ranks}"));
        run_on(&pipeline, &out(0), 0, None).remove(0).unwrap();
        let want = last(&out(0));
        assert!(want.meta.progress.batches > 13, "{name}");
        assert_eq!(want.meta.progress.cursor.shards.len(), 4);
        for ranks in if name == "text" { [2, 3, 4] } else { [1, 2, 4] } {
            for finished in run_on(&pipeline, &out(ranks), ranks, None) {
                finished.unwrap();
            }
            assert_same_bits(&last(&out(ranks)), &want, &format!("{name} on {ranks} ranks"));
        }
        // Stopped in the midst of an epoch, and resumed by others.
        let out = dir.path().join(format!("{name}-stopped"));
        for (ranks, stop_at) in [(3, Some(5)), (1, Some(9)), (0, Some(13)), (4, None)] {
            for finished in run_on(&pipeline, &out, ranks, stop_at) {
                finished.unwrap();
            }
            assert_eq!(last(&out).meta.progress.batches, stop_at.unwrap_or(want.meta.progress.batches), "{name}");
        }
        assert_same_bits(&last(&out), &want, &format!("{name}, stopped and resumed"));
    }
}

/// Is lost after so many batches.
struct Dies(u64);

impl Observer for Dies {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Step(line) if line.step == self.0) {
            std::panic::resume_unwind(Box::new("this rank is lost"));
        }
    }
}

#[test]
fn a_rank_that_is_lost_changes_nothing_that_is_learned() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pipeline) = pipelines(dir.path()).remove(1);
    run_on(&pipeline, &dir.path().join("alone"), 0, None).remove(0).unwrap();
    let want = last(&dir.path().join("alone"));
    let spec = PipelineSpec::parse(&pipeline, "test.toml").unwrap();
    for lost in 0..3 {
        let out = dir.path().join(format!("without-{lost}"));
        let one = |rank: usize, threads: Threads| {
            let ranks = Some(Ranks::new(Box::new(threads), spec.batch.shards).unwrap());
            let options = TrainOptions {
                name: "test".into(),
                out: out.clone(),
                resume: false,
                force_resume: false,
                place: PlaceSpec { threads: Some(1), ranks, ..PlaceSpec::default() },
                every_look: false,
            };
            let mut observer = Dies(if rank == lost { 11 + 5 * lost as u64 } else { u64::MAX });
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(train(&spec, &options, &Stop::new(), &mut observer))
        };
        let ended: Vec<_> = thread::scope(|scope| {
            let one = &one;
            let ranks = Threads::ranks(3).into_iter().enumerate();
            let ranks: Vec<_> = ranks.map(|(rank, threads)| scope.spawn(move || one(rank, threads))).collect();
            ranks.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        assert_eq!(ended.iter().filter(|ended| matches!(ended, Ok(Ok(_)))).count(), 2, "{ended:?}");
        assert_same_bits(&last(&out), &want, &format!("without rank {lost}"));
    }
}

#[test]
fn ranks_share_the_reading_and_the_first_tells_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pipeline) = pipelines(dir.path()).remove(0);
    let finished = run_on(&pipeline, &dir.path().join("run"), 4, None);
    let ranks = &finished[0].as_ref().unwrap().ranks;
    let rows: u64 = ranks.iter().map(|rank| rank.rows).sum();
    assert_eq!((ranks.len(), rows), (4, finished[0].as_ref().unwrap().rows));
    let bytes: u64 = ranks.iter().map(|rank| rank.bytes_read).sum();
    assert!(ranks.iter().all(|rank| rank.bytes_read > bytes / 8 && rank.bytes_read < bytes / 2), "{ranks:?}");
}

#[test]
fn a_rank_that_cannot_read_its_data_ends_all_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pipeline) = pipelines(dir.path()).remove(0);
    let path = dir.path().join("text-1.parquet");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 4;
    bytes[middle..middle + 64].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    let all = run_on(&pipeline, &dir.path().join("run"), 3, None);
    let texts: Vec<String> = all.into_iter().map(|finished| finished.unwrap_err().to_string()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert!(texts[0].starts_with("rank ") && texts[0].contains("text-1.parquet"), "{}", texts[0]);
}

#[test]
fn shards_that_cannot_be_are_refused_with_what_to_do() {
    let refused = |text: &str| PipelineSpec::parse(text, "p.toml").unwrap_err().to_string();
    let error = refused("[source]\nfiles = 'a.npy'\n[batch]\nrows = 4\nshards = 8\n");
    assert_eq!(error, "p.toml:5: batch.shards = 8: must be at most batch.rows = 4: one row for each");
    let error = refused("[source]\nfiles = '-'\n[batch]\nshards = 2\n");
    assert!(error.contains("batch.shards = 2: must be 1 for standard input: it comes as one stream"), "{error}");
    let error = refused("[source]\nfiles = 'a.jsonl'\nfollow = true\n[batch]\nshards = 2\n");
    assert!(error.contains("batch.shards = 2: must be 1 for a followed file: it comes as one stream"), "{error}");
    let waits = |shards: usize| {
        let text = format!("[source]\nfiles = '*.parquet'\nwatch = true\n[batch]\nshards = {shards}\n");
        PipelineSpec::parse(&text, "p.toml").unwrap().batch.max_wait.unwrap()
    };
    assert_eq!(waits(1), Duration::MAX);
    assert_eq!(waits(2), Duration::from_secs(5), "a shard without files must not hold up the others");
    // A source that knows of no shards, in a program of one's own.
    let pipe = JsonLines::new("a pipe", Box::new(&b"[1]\n"[..]), &Columns::Auto, &options(1).read_limits()).unwrap();
    let (_, decoder, _) = made(&[1], true);
    let batch = BatchSpec { rows: 4, shards: 2, ..BatchSpec::default() };
    let pipe = Source::Live(Arc::new(pipe));
    let error = batches_of(&pipe, &decoder, &batch, &options(1), &Cursor::default(), 1).unwrap_err();
    assert!(error.to_string().contains("comes as one stream, which cannot be shared out"), "{error}");
}
