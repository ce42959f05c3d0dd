//! What becomes of records that cannot be read.

use anemone::ErrorKind;
use anemone::batcher::{BadPolicy, BatchSpec, OnBad};
use anemone::data::Cursor;
use anemone::pipeline::stream::{Stream, StreamOptions};

use crate::made::{Kind, MadeBlocks, MadeDecoder, Seen, run};

fn options(on_bad: OnBad, max_bad: u64) -> StreamOptions {
    let bad = BadPolicy { on_bad, max_bad, max_bad_fraction: 1.0 };
    StreamOptions { bad, epochs: Some(1), workers: Some(2), ..StreamOptions::default() }
}

fn batch() -> BatchSpec {
    BatchSpec { rows: 4, shuffle: false, ..BatchSpec::default() }
}

/// Ten blocks of six records; the third record of each ends with 255.
fn damaged() -> anemone::source::Source {
    let block = |b: u8| (0..6u8).map(|r| vec![b, r, 0, if r == 2 { 255 } else { 0 }]).collect();
    MadeBlocks::source((0..10).map(block).collect(), 2)
}

#[test]
fn fail_names_the_record_after_all_good_batches_before_it() {
    let (seen, error) = run(
        &damaged(),
        &MadeDecoder::shared(Kind::Number, true),
        &batch(),
        &options(OnBad::Fail, 0),
        Cursor::default(),
    );
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.to_string().starts_with("made-0: row 2: ends with 255"), "{error}");
    assert_eq!(seen, []); // the fourth good record comes after it
}

#[test]
fn skip_leaves_out_the_bad_and_counts_them_where_a_resume_finds_them() {
    let options = options(OnBad::Skip, 10);
    let (seen, error) =
        run(&damaged(), &MadeDecoder::shared(Kind::Number, true), &batch(), &options, Cursor::default());
    assert_eq!(error, None);
    assert_eq!(seen.iter().map(|s| s.rows().len()).sum::<usize>(), 50);
    let end = seen.last().unwrap().cursor();
    assert_eq!((end.records, end.bad_records), (60, 10));
    let start = seen[7].cursor().clone();
    let (rest, error) = run(&damaged(), &MadeDecoder::shared(Kind::Number, true), &batch(), &options, start);
    assert_eq!((&rest[..], error), (&seen[8..], None));
}

#[test]
fn more_bad_records_than_allowed_end_the_run() {
    for (max_bad, fraction) in [(9, 1.0), (1000, 0.15)] {
        let mut options = options(OnBad::Skip, max_bad);
        options.bad.max_bad_fraction = fraction;
        let many = MadeBlocks::source(
            (0..200u8).map(|b| (0..6).map(|r| vec![b, r, 0, if r == 2 { 255 } else { 0 }]).collect()).collect(),
            2,
        );
        let (_, error) = run(&many, &MadeDecoder::shared(Kind::Number, false), &batch(), &options, Cursor::default());
        assert!(error.unwrap().to_string().contains("pipeline.max_bad"));
    }
}

#[test]
fn the_ledger_hears_of_every_bad_record() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bad = runtime.block_on(async {
        let (source, decoder) = (damaged(), MadeDecoder::shared(Kind::Number, true));
        let mut stream =
            Stream::open(&source, &decoder, &batch(), &options(OnBad::Quarantine, 10), Cursor::default()).unwrap();
        while stream.next().await.unwrap().is_some() {}
        stream.take_bad()
    });
    let places: Vec<String> = bad.iter().map(ToString::to_string).collect();
    assert_eq!(places.len(), 10);
    assert!(places.iter().enumerate().all(|(b, place)| *place == format!("made-{b}: row 2: ends with 255")));
}

#[test]
fn data_without_a_row_is_an_error_and_not_an_endless_loop() {
    for (source, kind) in [
        (MadeBlocks::source(vec![], 1), Kind::Number),
        (MadeBlocks::numbered(&[0, 0], 1), Kind::Number),
        (MadeBlocks::numbered(&[2], 1), Kind::Bytes(9)),
    ] {
        let options = StreamOptions { epochs: None, ..options(OnBad::Fail, 0) };
        let (seen, error) = run(&source, &MadeDecoder::shared(kind, false), &batch(), &options, Cursor::default());
        assert_eq!(seen, Vec::<Seen>::new());
        assert!(error.unwrap().to_string().contains("not one whole row"));
    }
}

#[test]
fn a_budget_of_bad_records_counts_anew_every_epoch() {
    let mut options = options(OnBad::Skip, 10);
    options.epochs = Some(3);
    let (seen, error) =
        run(&damaged(), &MadeDecoder::shared(Kind::Number, false), &batch(), &options, Cursor::default());
    assert_eq!(error, None);
    assert_eq!(seen.last().unwrap().cursor().bad_records, 30);
}

#[test]
fn dropping_every_batch_is_an_error_and_not_an_endless_loop() {
    let batch = BatchSpec { rows: 1000, drop_last: true, ..batch() };
    let options = StreamOptions { epochs: None, ..options(OnBad::Skip, 100) };
    let (seen, error) = run(&damaged(), &MadeDecoder::shared(Kind::Number, false), &batch, &options, Cursor::default());
    assert_eq!(seen, Vec::<Seen>::new());
    assert!(error.unwrap().to_string().contains("batch.drop_last"));
}

#[test]
fn a_batch_that_does_not_fit_into_memory_is_refused() {
    let batch = BatchSpec { rows: 1 << 40, ..batch() };
    let options = StreamOptions { memory: 1 << 20, ..options(OnBad::Skip, 100) };
    let source = MadeBlocks::numbered(&[50_000; 5], 1000);
    let (_, error) = run(&source, &MadeDecoder::shared(Kind::Number, false), &batch, &options, Cursor::default());
    assert!(error.unwrap().to_string().contains("batch.rows"));
}
