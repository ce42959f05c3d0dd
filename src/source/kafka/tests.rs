//! Against a broker inside this process, which speaks the protocol: no network, no Java.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

use super::position::Place;
use super::spec::{DEFAULT_TIMEOUT, KafkaSpec, MergeOrder, MessageFormat, OnGap, StartAt};
use super::{Access, KafkaSource};
use crate::data::{Position, Values};
use crate::error::{Error, ErrorKind, Result};
use crate::order::Share;
use crate::rng::Rng;
use crate::source::token_width::TokenWidth;
use crate::source::{Arrived, Columns, LiveReader, LiveSource, Piece, ReadLimits, RecordKind, Records};

const LIMITS: ReadLimits = ReadLimits { piece_bytes: 256 << 10, part_bytes: 32 << 20, record_bytes: 1 << 20 };

struct Broker {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: BaseProducer,
}

impl Broker {
    fn with_topic(topic: &str, partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(topic, partitions, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers()).set("linger.ms", "1");
        Self { producer: config.create().unwrap(), cluster }
    }

    fn send(&self, topic: &str, messages: impl IntoIterator<Item = (i32, Vec<u8>)>) {
        for (partition, payload) in messages {
            let record = BaseRecord::<(), [u8]>::to(topic).partition(partition).payload(&payload);
            self.producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        self.producer.flush(Duration::from_secs(20)).unwrap();
    }

    fn access(&self) -> Access {
        Access { brokers: self.cluster.bootstrap_servers(), options: Vec::new() }
    }

    fn open(&self, spec: &KafkaSpec, are_rows: bool) -> Result<Arc<KafkaSource>> {
        KafkaSource::open(spec, self.access(), &Columns::Auto, TokenWidth::U32, are_rows, LIMITS, &|_| ()).map(Arc::new)
    }
}

fn spec(topic: &str, value: MessageFormat) -> KafkaSpec {
    KafkaSpec {
        brokers: Vec::new(),
        topic: topic.into(),
        partitions: Vec::new(),
        start: StartAt::Earliest,
        value,
        order: MergeOrder::Arrival,
        on_gap: OnGap::Fail,
        group: None,
        timeout: DEFAULT_TIMEOUT,
        options: BTreeMap::new(),
    }
}

fn number(n: u32) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// The ids in a piece.
fn ids(piece: &Piece) -> Vec<u32> {
    let Records::Lists(lists) = &piece.records else { panic!("ids are lists") };
    (0..lists.values.len()).filter_map(|at| lists.values.category(at)).collect()
}

/// A row, and the cursor just after it: a position, and the rows of its window that were delivered.
type Delivered = (u32, Position, usize);

/// What a source delivers from a position on, until `wanted` rows have come: each with the cursor just after it, as a
/// checkpoint would have it (a position and the rows of its window that were delivered).
fn read(source: &Arc<KafkaSource>, from: Option<&Position>, wanted: usize) -> Result<(Vec<Delivered>, Vec<String>)> {
    read_from(source.clone().open(from)?, wanted)
}

/// The same of a reader.
fn read_from(mut reader: Box<dyn LiveReader>, wanted: usize) -> Result<(Vec<Delivered>, Vec<String>)> {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let (mut window, mut of_window) = (None, 0);
    let begun = Instant::now();
    while rows.len() < wanted {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} of {wanted} rows", rows.len());
        match reader.next(&LIMITS)?.expect("a topic does not end") {
            Arrived::WindowStart(at) => (window, of_window) = (Some(at), 0),
            Arrived::Piece(piece) => {
                for id in ids(&piece) {
                    of_window += 1;
                    rows.push((id, window.clone().expect("a piece is in a window"), of_window));
                }
            }
            Arrived::WindowEnd(next) => {
                // The cursor after the last row of a window is the beginning of what comes after it.
                if let Some((_, at, row)) = rows.last_mut().filter(|_| of_window > 0) {
                    (*at, *row) = (next, 0);
                }
                window = None;
            }
            Arrived::WindowLost(_) => window = None,
            Arrived::Damaged(error) => return Err(error),
            Arrived::Note(note) => notes.push(note),
            Arrived::Quiet => {}
        }
    }
    Ok((rows, notes))
}

/// Reads a topic of `total` rows, stopped at some random cursors, each time from what a checkpoint would hold there.
fn stopped_and_resumed(source: &Arc<KafkaSource>, total: usize, stops: usize, rng: &mut Rng) -> Vec<u32> {
    let mut kept: Vec<u32> = Vec::new();
    let mut cursor: Option<(Position, usize)> = None;
    for stop in 0..=stops {
        let skip = cursor.as_ref().map_or(0, |(_, row)| *row);
        let wanted = if stop == stops { total - kept.len() } else { rng.below(total - kept.len() + 1) };
        // Read on after what is kept, as a run does between its last checkpoint and its end.
        let beyond = (wanted + rng.below(40)).min(total - kept.len());
        let (rows, _) = read(source, cursor.as_ref().map(|(at, _)| at), skip + beyond).unwrap();
        let rows = &rows[skip..];
        kept.extend(rows[..wanted].iter().map(|(id, ..)| *id));
        if wanted > 0 {
            let (_, at, row) = &rows[wanted - 1];
            let written = serde_json::to_string(at).unwrap();
            cursor = Some((serde_json::from_str(&written).unwrap(), *row));
        }
    }
    kept
}

#[test]
fn every_message_comes_once_in_both_orders_wherever_a_run_was_stopped() {
    let broker = Broker::with_topic("rows", 4);
    let sizes = [700, 1500, 300, 520];
    let mut numbers = 0u32..;
    for (partition, size) in sizes.into_iter().enumerate() {
        broker.send("rows", numbers.by_ref().take(size).map(|n| (partition as i32, number(n))));
    }
    let total: usize = sizes.iter().sum();
    let mut rng = Rng::new(21);
    let source = broker.open(&spec("rows", MessageFormat::Ids), false).unwrap();
    for _ in 0..3 {
        let mut rows = stopped_and_resumed(&source, total, 3, &mut rng);
        rows.sort_unstable();
        assert_eq!(rows, (0..total as u32).collect::<Vec<_>>());
    }
    // As far as the slowest partition goes: a turn is 100 messages.
    let in_turn = KafkaSpec { order: MergeOrder::RoundRobin, ..spec("rows", MessageFormat::Ids) };
    let source = broker.open(&in_turn, false).unwrap();
    let firsts = [0u32, 700, 2200, 2500];
    let expected: Vec<u32> =
        firsts
            .into_iter()
            .flat_map(|first| first..first + 100)
            .chain((1..3).flat_map(|turn| {
                firsts.map(|first| first + 100 * turn).into_iter().flat_map(|first| first..first + 100)
            }))
            .collect();
    for _ in 0..3 {
        assert_eq!(stopped_and_resumed(&source, expected.len(), 3, &mut rng), expected);
    }
}

#[test]
fn round_robin_waits_for_the_slowest_partition_and_large_messages_end_a_turn() {
    let broker = Broker::with_topic("slow", 2);
    let large = |n: u32| -> Vec<u8> { std::iter::repeat_n(n.to_le_bytes(), 20_000).flatten().collect() };
    broker.send("slow", (0..8).map(|n| (0, large(n))));
    broker.send("slow", (0..80).map(|n| (1, number(1000 + n))));
    let source =
        broker.open(&KafkaSpec { order: MergeOrder::RoundRobin, ..spec("slow", MessageFormat::Ids) }, false).unwrap();
    let mut reader = source.clone().open(None).unwrap();
    let begun = Instant::now();
    let (mut first, mut quiet) = (Vec::new(), 0);
    while quiet < 5 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        match reader.next(&LIMITS).unwrap().unwrap() {
            Arrived::Piece(piece) => first.extend(ids(&piece)),
            Arrived::Quiet if !first.is_empty() => quiet += 1,
            _ => {}
        }
    }
    // 80,000 bytes each: the fourth reaches 256 KiB. Then the second partition has too few for its turn.
    first.dedup();
    assert_eq!(first, [0, 1, 2, 3]);
    broker.send("slow", (80..100).map(|n| (1, number(1000 + n))));
    let mut second = Vec::new();
    while second.len() < 100 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        if let Arrived::Piece(piece) = reader.next(&LIMITS).unwrap().unwrap() {
            second.extend(ids(&piece));
        }
    }
    assert_eq!(second, (1000..1100).collect::<Vec<_>>());
}

#[test]
fn what_the_broker_deleted_is_an_error_with_a_number_or_is_left_out_with_a_note() {
    let broker = Broker::with_topic("gone", 1);
    broker.send("gone", (0..10).map(|n| (0, number(n))));
    let source = broker.open(&spec("gone", MessageFormat::Ids), false).unwrap();
    let (rows, _) = read(&source, None, 10).unwrap();
    let (_, middle, row) = rows[3].clone();
    assert!(row > 0, "in the midst of a window");
    let between = rows[9].1.clone();
    // This broker keeps 5 MiB of a partition.
    let filler = |n: u32| -> Vec<u8> { std::iter::repeat_n(n.to_le_bytes(), 25_000).flatten().collect() };
    broker.send("gone", (0..80).map(|n| (0, filler(n))));
    for at in [&middle, &between] {
        let error = read(&source, Some(at), 1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("topic `gone`, partition 0") && text.contains("messages from offset"), "{text}");
        assert!(text.contains("are gone") && text.contains("on_gap = \"skip\""), "{text}");
    }
    let skip = KafkaSpec { on_gap: OnGap::Skip, ..spec("gone", MessageFormat::Ids) };
    let source = broker.open(&skip, false).unwrap();
    for at in [&middle, &between] {
        let (rows, notes) = read(&source, Some(at), 1).unwrap();
        assert!(rows[0].0 > 0 && notes.iter().any(|note| note.contains("going on without them")), "{notes:?}");
        let mut reader = source.clone().open(Some(at)).unwrap();
        let events: Vec<Arrived> = (0..4).map(|_| reader.next(&LIMITS).unwrap().unwrap()).collect();
        let lost = events.iter().any(|event| matches!(event, Arrived::WindowLost(_)));
        assert_eq!(lost, at == &middle, "{events:?}");
    }
}

#[test]
fn a_run_that_is_further_than_its_topic_or_has_lost_a_partition_is_refused() {
    let broker = Broker::with_topic("short", 2);
    broker.send("short", (0..10).map(|n| (0, number(n))));
    let source = broker.open(&spec("short", MessageFormat::Ids), false).unwrap();
    for (next, wanted) in [
        (BTreeMap::from([(0, 50), (1, 0)]), "is at offset 50, and the partition ends at 10: the topic was deleted"),
        (BTreeMap::from([(0, 5), (1, 0), (2, 8)]), "partition 2, which this run has read from, is gone"),
    ] {
        let at = Place { next, ..Place::default() }.position().unwrap();
        let error = read(&source, Some(&at), 1).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    // One that the position does not know has appeared since, and is read from its beginning.
    broker.send("short", (100..103).map(|n| (1, number(n))));
    let at = Place { next: BTreeMap::from([(0, 8)]), ..Place::default() }.position().unwrap();
    let mut rows: Vec<u32> = read(&source, Some(&at), 5).unwrap().0.iter().map(|(id, ..)| *id).collect();
    rows.sort_unstable();
    assert_eq!(rows, [8, 9, 100, 101, 102]);
}

/// What a share of a topic delivers from a position on, until `wanted` rows have come.
fn read_share(source: &Arc<KafkaSource>, share: Share, from: Option<&Position>, wanted: usize) -> Vec<Delivered> {
    let reader = source.clone().open_share(share, from).unwrap();
    read_from(reader, wanted).unwrap().0
}

#[test]
fn partitions_are_dealt_out_to_shards_and_each_reads_its_own_once_wherever_it_was_stopped() {
    let broker = Broker::with_topic("shared", 5);
    let sizes = [300, 450, 120, 700, 260];
    let mut numbers = 0u32..;
    let rows: Vec<Vec<u32>> = sizes.iter().map(|&size| numbers.by_ref().take(size).collect()).collect();
    for (partition, rows) in rows.iter().enumerate() {
        broker.send("shared", rows.iter().map(|&n| (partition as i32, number(n))));
    }
    let source = broker.open(&spec("shared", MessageFormat::Ids), false).unwrap();
    let mut rng = Rng::new(4);
    for shard in 0..2 {
        let share = Share { shard, shards: 2 };
        let own: Vec<u32> = rows.iter().skip(shard).step_by(2).flatten().copied().collect();
        let all = read_share(&source, share, None, own.len());
        let mut found: Vec<u32> = all.iter().map(|(id, ..)| *id).collect();
        found.sort_unstable();
        assert_eq!(found, own);
        // Stopped at some row, and gone on with from there.
        for _ in 0..3 {
            let stop = rng.below(own.len());
            let (_, at, row) = &all[stop];
            let rest = read_share(&source, share, Some(at), own.len() - stop - 1 + row);
            let mut kept: Vec<u32> = all[..=stop].iter().chain(&rest[*row..]).map(|(id, ..)| *id).collect();
            kept.sort_unstable();
            assert_eq!(kept, own, "stopped after row {stop}");
        }
        let place: Place = all.last().unwrap().1.read().unwrap();
        assert!(place.next.keys().all(|partition| *partition as usize % 2 == shard), "{place:?}");
    }
    // One that a share has not seen yet has appeared since, and is that of its number.
    let at = Place { next: BTreeMap::from([(0, 300)]), ..Place::default() }.position().unwrap();
    let new = read_share(&source, Share { shard: 0, shards: 2 }, Some(&at), 120 + 260);
    assert!(new.iter().all(|(id, ..)| rows[2].contains(id) || rows[4].contains(id)));
    // In turns, among its own.
    let in_turn = KafkaSpec { order: MergeOrder::RoundRobin, ..spec("shared", MessageFormat::Ids) };
    let source = broker.open(&in_turn, false).unwrap();
    let found = read_share(&source, Share { shard: 1, shards: 2 }, None, 300);
    let found: Vec<u32> = found.into_iter().map(|(id, ..)| id).collect();
    assert_eq!(found, [&rows[1][..100], &rows[3][..100], &rows[1][100..200]].concat());
}

#[test]
fn more_shards_than_partitions_are_refused_with_both_numbers() {
    let broker = Broker::with_topic("few", 3);
    broker.send("few", (0..9).map(|n| ((n % 3) as i32, number(n))));
    let source = broker.open(&spec("few", MessageFormat::Ids), false).unwrap();
    (1..=3).for_each(|shards| source.check_shards(shards).unwrap());
    let error = source.check_shards(4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    let text = error.to_string();
    assert!(text.starts_with("batch.shards = 4: topic `few` has 3 partitions") && text.contains("shard 3"), "{text}");
    // Those that are chosen may all be one shard's.
    let even = KafkaSpec { partitions: vec![0, 2], ..spec("few", MessageFormat::Ids) };
    let error = broker.open(&even, false).unwrap().check_shards(2).unwrap_err();
    assert!(error.to_string().contains("has 2 partitions to read") && error.to_string().contains("shard 1"), "{error}");
}

#[test]
fn a_topic_that_vanishes_during_a_run_ends_it_once_that_is_no_mere_doubt() {
    use rdkafka::types::RDKafkaRespErr::{RD_KAFKA_RESP_ERR_NO_ERROR, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART};
    let broker = Broker::with_topic("vanishing", 2);
    broker.send("vanishing", (0..10).map(|n| ((n % 2) as i32, number(n))));
    let spec = KafkaSpec { timeout: 3.0, ..spec("vanishing", MessageFormat::Ids) };
    let often = vec![("topic.metadata.refresh.interval.ms".to_string(), "100".to_string())];
    let access = Access { options: often, ..broker.access() };
    let source = KafkaSource::open(&spec, access, &Columns::Auto, TokenWidth::U32, false, LIMITS, &|_| ()).unwrap();
    let mut reader = Arc::new(source).open(None).unwrap();
    let mut rows = 0;
    let mut read_for = |seconds: f64| -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed().as_secs_f64() < seconds {
            if let Arrived::Piece(piece) = reader.next(&LIMITS)?.unwrap() {
                rows += piece.num_records();
            }
        }
        Ok(rows)
    };
    // Brokers that do not know it for a moment are believed no more than a moment.
    assert_eq!(read_for(2.0).unwrap(), 10);
    broker.cluster.topic_error("vanishing", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    read_for(1.5).unwrap();
    broker.cluster.topic_error("vanishing", RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    read_for(4.0).unwrap();
    broker.cluster.topic_error("vanishing", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    let error = read_for(30.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(
        error.to_string().contains("topic `vanishing`: partition 0, which this run has read from, is gone"),
        "{error}"
    );
}

#[test]
fn a_run_may_begin_at_the_end_and_read_some_partitions_only() {
    let broker = Broker::with_topic("end", 3);
    broker.send("end", (0..9).map(|n| ((n % 3) as i32, number(n))));
    let late = KafkaSpec { start: StartAt::Latest, partitions: vec![0, 2], ..spec("end", MessageFormat::Ids) };
    let source = broker.open(&late, true).unwrap();
    assert_eq!(source.kind(), RecordKind::Lists { width: Some(1), reals: false }, "older messages were looked at");
    broker.send("end", (10..19).map(|n| ((n % 3) as i32, number(n))));
    let mut rows: Vec<u32> = read(&source, None, 6).unwrap().0.iter().map(|(id, ..)| *id).collect();
    rows.sort_unstable();
    assert_eq!(rows, [11, 12, 14, 15, 17, 18]);
    let error = broker.open(&KafkaSpec { partitions: vec![3], ..late }, true).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("topic `end` has no partition 3; there are 3, from 0 on"), "{error}");
}

#[test]
fn an_outage_is_told_once_and_so_is_its_end() {
    let broker = Broker::with_topic("out", 1);
    broker.send("out", (0..5).map(|n| (0, number(n))));
    let source = broker.open(&spec("out", MessageFormat::Ids), false).unwrap();
    let mut reader = source.clone().open(None).unwrap();
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    let mut stage = 0;
    while notes.len() < 2 || rows.len() < 8 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{notes:?} {rows:?}");
        match reader.next(&LIMITS).unwrap().unwrap() {
            Arrived::Piece(piece) => rows.extend(ids(&piece)),
            Arrived::Note(note) => notes.push(note),
            _ => {}
        }
        match stage {
            0 if rows.len() == 5 => {
                broker.cluster.broker_down(-1).unwrap();
                stage = 1;
            }
            1 if notes.len() == 1 => {
                std::thread::sleep(Duration::from_millis(500));
                broker.cluster.broker_up(-1).unwrap();
                broker.send("out", (5..8).map(|n| (0, number(n))));
                stage = 2;
            }
            _ => {}
        }
    }
    assert_eq!(rows, (0..8).collect::<Vec<_>>());
    assert!(notes[0].contains("no broker answers") && notes[1].contains("a broker answers again"), "{notes:?}");
}

#[test]
fn mistakes_are_clear_errors_within_the_timeout() {
    let broker = Broker::with_topic("there", 1);
    let quick = KafkaSpec { timeout: 1.5, ..spec("there", MessageFormat::Text) };
    let begun = Instant::now();
    let open = |spec: &KafkaSpec, access: Access| -> Error {
        KafkaSource::open(spec, access, &Columns::Auto, TokenWidth::U16, false, LIMITS, &|_| ())
            .map(|_| ())
            .unwrap_err()
    };
    let nobody = Access { brokers: "127.0.0.1:1".into(), options: Vec::new() };
    let error = open(&quick, nobody);
    assert!(
        error.kind() == ErrorKind::Io && error.to_string().contains("127.0.0.1:1: no answer within 1.5"),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
    for (option, value, wanted) in [
        ("no.such.option", "1", "`no.such.option`: No such configuration property"),
        ("session.timeout.ms", "hunter2", "`session.timeout.ms`: Invalid value"),
        ("security.protocol", "ssl", "kafka-tls"),
    ] {
        if value == "ssl" && cfg!(feature = "kafka-tls") {
            continue;
        }
        let options = vec![(option.to_string(), value.to_string())];
        let error = open(&quick, Access { options, ..broker.access() });
        assert!(error.kind() == ErrorKind::Option && error.to_string().contains(wanted), "{error}");
    }
    let error = open(&KafkaSpec { topic: "not-there".into(), ..quick }, broker.access());
    assert!(error.kind() == ErrorKind::Path && error.to_string().contains("topic `not-there` is not there"), "{error}");
}

/// The pieces of all messages of a topic, and the damage.
fn pieces(
    broker: &Broker,
    spec: &KafkaSpec,
    are_rows: bool,
    records: usize,
) -> (Arc<KafkaSource>, Vec<Piece>, Vec<Error>) {
    let source = broker.open(spec, are_rows).unwrap();
    let mut reader = source.clone().open(None).unwrap();
    let (mut pieces, mut damage): (Vec<Piece>, Vec<Error>) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while pieces.iter().map(Piece::num_records).sum::<usize>() + damage.len() < records {
        assert!(begun.elapsed() < Duration::from_secs(30), "{pieces:?} {damage:?}");
        match reader.next(&LIMITS).unwrap().unwrap() {
            Arrived::Piece(piece) => pieces.push(piece),
            Arrived::Damaged(error) => damage.push(error),
            _ => {}
        }
    }
    (source, pieces, damage)
}

#[test]
fn messages_are_json_texts_or_ids_and_what_is_not_is_bad_at_its_offset() {
    let broker = Broker::with_topic("json", 1);
    let lines = [r#"{"a": 1, "b": 2}"#, "no json", r#"{"a": 300, "b": null}"#, r#"{"a": 1, "b": 2, "c": 3}"#, "[1]"];
    broker.send("json", lines.iter().map(|line| (0, line.as_bytes().to_vec())));
    let (source, found, _) = pieces(&broker, &spec("json", MessageFormat::Json), true, 5);
    assert_eq!(source.kind(), RecordKind::Lists { width: Some(3), reals: false });
    let names: Vec<String> = source.reading().unwrap().read.into_iter().map(|column| column.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let bad: Vec<(&'static str, u64)> =
        found.iter().flat_map(|piece| piece.bad.iter().map(|(at, _)| piece.positions.place(*at))).collect();
    assert_eq!(bad, [("offset", 1), ("offset", 4)]);
    assert_eq!(&*found[0].file, "json/0");

    let broker = Broker::with_topic("texts", 1);
    broker.send("texts", [(0, b"coral".to_vec()), (0, vec![0xff, 0xfe]), (0, Vec::new()), (0, b"anemone".to_vec())]);
    let (source, found, _) = pieces(&broker, &spec("texts", MessageFormat::Text), false, 4);
    assert_eq!(source.kind(), RecordKind::Text);
    let Records::Blobs(blobs) = &found[0].records else { panic!("texts are blobs") };
    assert_eq!((blobs.get(0), blobs.get(3)), (&b"coral"[..], &b"anemone"[..]));
    assert_eq!(found[0].bad, [(1, "is not UTF-8".to_string())]);

    let broker = Broker::with_topic("ids", 1);
    broker.send("ids", [(0, number(70_000)), (0, vec![1, 2, 3]), (0, [number(1), number(2)].concat())]);
    let (_, found, _) = pieces(&broker, &spec("ids", MessageFormat::Ids), true, 3);
    let Records::Lists(lists) = &found[0].records else { panic!("ids are lists") };
    assert_eq!(lists.values, Values::U32(vec![70_000]));
    let reasons: Vec<&str> = found[0].bad.iter().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(reasons, ["3 bytes are not whole ids of 4 bytes", "2 ids where a row has 1"]);
}

#[cfg(feature = "parquet")]
#[test]
fn a_message_may_be_an_arrow_stream_and_one_of_another_schema_is_damage() {
    use arrow::array::{ArrayRef, RecordBatch, UInt8Array};
    use arrow::ipc::writer::StreamWriter;

    let stream = |columns: &[(&str, &[u8])]| -> Vec<u8> {
        let columns =
            columns.iter().map(|(name, values)| (*name, Arc::new(UInt8Array::from(values.to_vec())) as ArrayRef));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    let good = stream(&[("a", &[1, 2]), ("b", &[3, 4])]);
    let broker = Broker::with_topic("arrow", 1);
    let others = [stream(&[("a", &[1]), ("c", &[3])]), good[..good.len() - 60].to_vec(), b"no stream".to_vec()];
    broker.send("arrow", [good.clone()].into_iter().chain(others).chain([good]).map(|message| (0, message)));
    let (source, found, damage) = pieces(&broker, &spec("arrow", MessageFormat::Arrow), true, 8 + 3);
    assert_eq!(source.kind(), RecordKind::Lists { width: Some(2), reals: false });
    let places: Vec<u64> = found.iter().flat_map(|p| (0..p.num_records()).map(|at| p.positions.place(at).1)).collect();
    assert_eq!(places, [0, 0, 0, 0, 4, 4, 4, 4]);
    for (error, wanted) in damage.iter().zip(["offset 1: the schema is another", "offset 2:", "offset 3:"]) {
        assert!(error.to_string().contains(wanted), "{error}");
    }
}
