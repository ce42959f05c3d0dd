//! A topic, opened: which partitions it has, where they begin, and what its messages mean.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Message;
use super::connection::{Committer, Connection, Polled};
use super::messages::Meaning;
use super::position::Place;
use super::reader::KafkaReader;
use super::spec::{KafkaSpec, StartAt};
use crate::data::Position;
use crate::error::{Error, Result};
use crate::order::Share;
use crate::source::token_width::TokenWidth;
use crate::source::{Columns, LiveReader, LiveSource, Manifest, ReadLimits, Reading, RecordKind};

/// Messages that are looked at to decide what they mean.
const FIRST_MESSAGES: usize = 64;

/// How long more messages are waited for once there is one.
const AFTER_THE_FIRST: Duration = Duration::from_millis(200);

/// How often brokers are asked which partitions there are, and the option that says otherwise.
const REFRESH_OPTION: &str = "topic.metadata.refresh.interval.ms";
const USUAL_REFRESH: Duration = Duration::from_secs(30);

/// How to reach brokers, with every `${NAME}` replaced. Holds secrets: it has no `Debug` and is never written.
pub struct Access {
    /// Addresses, separated by commas.
    pub brokers: String,
    /// Options of librdkafka.
    pub options: Vec<(String, String)>,
}

impl Access {
    /// How often brokers are asked which partitions there are. The client may be told never to ask; then never.
    pub(super) fn refresh(&self) -> Duration {
        let said = self.options.iter().rev().find(|(option, _)| option == REFRESH_OPTION);
        match said.map(|(_, millis)| millis.parse()) {
            Some(Ok(millis)) => Duration::from_millis(millis),
            Some(Err(_)) => Duration::MAX, // -1, the one number that it takes and we do not
            None => USUAL_REFRESH,
        }
    }
}

/// Messages of a topic.
pub struct KafkaSource {
    pub(super) spec: KafkaSpec,
    pub(super) access: Access,
    pub(super) limits: ReadLimits,
    pub(super) meaning: Meaning,
    /// How many partitions there were when it was opened: the memory is shared among them.
    pub(super) num_partitions: usize,
    manifest: Manifest,
    /// Where a run without a checkpoint begins.
    start: Place,
    /// Of the reader, if a group is to know how far it is.
    pub(super) committer: Mutex<Option<Committer>>,
}

impl KafkaSource {
    /// Finds the topic and its partitions, and waits for a first message where only messages can say what they mean;
    /// `tell` is told so. `are_rows`: a message of ids is a row. Blocks.
    pub fn open(
        spec: &KafkaSpec,
        access: Access,
        columns: &Columns,
        width: TokenWidth,
        are_rows: bool,
        limits: ReadLimits,
        tell: &dyn Fn(&str),
    ) -> Result<Self> {
        let (connection, found) = Connection::open(spec, &access, 1, &limits)?;
        let partitions = chosen(spec, found)?;
        let mut watermarks = BTreeMap::new();
        for &partition in &partitions {
            watermarks.insert(partition, connection.watermarks(partition, Duration::from_secs_f64(spec.timeout))?);
        }
        let times = match spec.start {
            StartAt::Time(millis, _) => connection.offsets_at(&partitions, millis)?,
            _ => BTreeMap::new(),
        };
        let next: BTreeMap<i32, i64> = watermarks
            .iter()
            .map(|(&partition, &(low, high))| match spec.start {
                StartAt::Earliest => (partition, low),
                StartAt::Latest => (partition, high),
                StartAt::Time(..) => (partition, times.get(&partition).copied().flatten().unwrap_or(high)),
            })
            .collect();
        let first = match Meaning::needs_messages(spec.value, are_rows) {
            true => first_messages(&connection, &spec.topic, &next, &watermarks, tell)?,
            false => Vec::new(),
        };
        let meaning = Meaning::find(spec.value, &first, columns, width, are_rows, &limits)
            .map_err(|error| error.at(format_args!("topic `{}`", spec.topic)))?;
        // Neither brokers nor partitions: a mirror is the same topic, and one may read more of it.
        let manifest = Manifest::new("kafka", Vec::new(), &format!("{} {}", spec.topic, meaning.identity()));
        Ok(Self {
            spec: spec.clone(),
            access,
            limits,
            meaning,
            num_partitions: partitions.len(),
            manifest,
            start: Place { next, ..Place::default() },
            committer: Mutex::default(),
        })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.meaning.kind()
    }

    /// Which columns are read, where messages have columns.
    pub fn reading(&self) -> Option<Reading> {
        self.meaning.reading()
    }
}

impl LiveSource for KafkaSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        true
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        self.open_share(Share::default(), from)
    }

    fn check_shards(&self, shards: usize) -> Result<()> {
        let partitions: Vec<i32> = self.start.next.keys().copied().collect();
        let has_one = |shard| partitions.iter().any(|&partition| has_partition(Share { shard, shards }, partition));
        let Some(without) = (0..shards).find(|&shard| !has_one(shard)) else { return Ok(()) };
        let (count, topic) = (partitions.len(), &self.spec.topic);
        let s = if count == 1 { "" } else { "s" };
        Err(Error::option(format!(
            "batch.shards = {shards}: topic `{topic}` has {count} partition{s} to read, and partition p is that of \
             shard p mod {shards}: shard {without} would have none; lower batch.shards, or read more partitions"
        ))
        .with_key("batch.shards"))
    }

    fn open_share(self: Arc<Self>, share: Share, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        let place = from.map_or_else(|| Ok(self.start.clone()), Position::read)?;
        Ok(Box::new(KafkaReader::open(self, share, place)?))
    }

    fn kept(&self, position: &Position) {
        let committer = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(committer), Ok(place)) = (&*committer, position.read::<Place>()) {
            committer.commit(&place.next);
        }
    }
}

/// Returns true if a partition is that of a share. Part of what a position means: never change it.
pub(super) fn has_partition(share: Share, partition: i32) -> bool {
    u64::try_from(partition).is_ok_and(|partition| share.has(partition))
}

/// The partitions that are read, of those that there are.
pub(super) fn chosen(spec: &KafkaSpec, found: Vec<i32>) -> Result<Vec<i32>> {
    if spec.partitions.is_empty() {
        return Ok(found);
    }
    match spec.partitions.iter().find(|wanted| !found.contains(wanted)) {
        Some(missing) => Err(Error::option(format!(
            "partitions: topic `{}` has no partition {missing}; there are {}, from 0 on",
            spec.topic,
            found.len()
        ))),
        None => Ok(spec.partitions.clone()),
    }
}

/// Some messages to look at: the first of the run, or older ones where none of these is there yet, or the first to
/// come.
fn first_messages(
    connection: &Connection,
    topic: &str,
    next: &BTreeMap<i32, i64>,
    watermarks: &BTreeMap<i32, (i64, i64)>,
    tell: &dyn Fn(&str),
) -> Result<Vec<Message>> {
    let from = |offset: &dyn Fn(i32, i64, i64) -> i64| -> BTreeMap<i32, i64> {
        let offsets = watermarks.iter().map(|(&p, &(low, high))| (p, offset(p, low, high), high));
        offsets.filter(|(_, offset, high)| offset < high).map(|(p, offset, _)| (p, offset)).collect()
    };
    let there = from(&|partition, low, _| next[&partition].max(low));
    let older = from(&|_, low, high| (high - FIRST_MESSAGES as i64).max(low));
    let candidates = [there, older].into_iter().find(|offsets| !offsets.is_empty());
    if candidates.is_none() {
        tell(&format!("topic `{topic}` has no message yet: waiting for the first, which says what messages hold"));
    }
    let queues = connection.assign(&candidates.unwrap_or_else(|| next.clone()))?;
    let (mut messages, mut until): (Vec<Message>, Option<Instant>) = (Vec::new(), None);
    loop {
        messages.extend(connection.serve(Duration::from_millis(20))?.into_iter().map(|(_, message)| message));
        for queue in queues.values() {
            while messages.len() < FIRST_MESSAGES
                && let Polled::Message(message) = connection.poll(queue, Duration::ZERO)?
            {
                messages.push(message);
            }
        }
        if messages.iter().any(|message| message.payload.is_some()) {
            let until = *until.get_or_insert_with(|| Instant::now() + AFTER_THE_FIRST);
            if messages.len() >= FIRST_MESSAGES || Instant::now() >= until {
                return Ok(messages);
            }
        }
    }
}

impl std::fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSource").field("topic", &self.spec.topic).finish_non_exhaustive()
    }
}
