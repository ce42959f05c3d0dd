//! A client of the brokers: what it is told, what they answer, and how it stands with them.
//!
//! The client reconnects by itself, with growing pauses, for as long as it lives. When it is opened its brokers must
//! answer within `timeout`, and mistakes get their errors: no broker, an unknown topic, wrong credentials. Later an
//! outage is no error: [`Connection::news`] tells of it once, and once when it is over. Nothing here prints what a
//! secret option is.
//!
//! Used by `reader`, and by the source to look at the first messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use metrics::{counter, gauge};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::spec::{KafkaSpec, is_secret};
use super::{Access, Message};
use crate::error::{Error, Result};
use crate::order::Share;
use crate::source::ReadLimits;
use crate::telemetry;

/// How long a new topic may take to be known to the brokers that are asked.
const UNKNOWN_TOPIC_GRACE: Duration = Duration::from_secs(5);

/// How long brokers are waited for before errors are looked at.
const PATIENCE: Duration = Duration::from_millis(500);

/// The group where none is said. A client that names its partitions must have one; nothing is committed for it.
const NO_GROUP: &str = "anemone";

/// What the client does unless the pipeline says otherwise.
const USUAL: [(&str, &str); 6] = [
    ("client.id", "anemone"),
    ("reconnect.backoff.ms", "100"),
    ("reconnect.backoff.max.ms", "10000"),
    ("topic.metadata.refresh.interval.ms", "30000"),
    // Not a second: then a queue that was full once would be empty long before it is filled again.
    ("fetch.queue.backoff.ms", "50"),
    ("queued.min.messages", "10000"),
];

/// A client for one topic.
pub(super) struct Connection {
    consumer: Arc<BaseConsumer<Watch>>,
    topic: Arc<str>,
    brokers: String,
    timeout: Duration,
    /// Whether people have been told that no broker answers.
    is_told: bool,
}

/// What one partition has received and nobody has taken.
pub(super) struct Queue(PartitionQueue<Watch>);

/// Commits offsets of a topic for its group.
pub(super) struct Committer {
    /// Of the reader, which may be gone.
    consumer: Weak<BaseConsumer<Watch>>,
    topic: Arc<str>,
}

/// What comes of asking for a message.
pub(super) enum Polled {
    Message(Message),
    Nothing,
    /// The offset that comes next is not there: deleted, or never written.
    OutOfRange,
    /// The broker does not know the partition, for now or for good.
    Unknown,
}

/// What the client says of itself, on the thread of whoever polls.
pub(super) struct Watch {
    topic: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the client complained of last.
    complaint: Option<String>,
    /// Why brokers refuse us, if they do.
    refusal: Option<String>,
    is_down: bool,
    /// Of each partition, the offset after its last message.
    ends: BTreeMap<i32, i64>,
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Watch {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {} // what matters comes as an error

    fn stats(&self, statistics: Statistics) {
        let mut state = self.state();
        let is_up = statistics.brokers.values().any(|broker| broker.state == "UP");
        if is_up {
            (state.is_down, state.refusal) = (false, None);
        }
        gauge!(telemetry::SOURCE_CONNECTED, telemetry::TOPIC => self.topic.to_string()).set(f64::from(u8::from(is_up)));
        let partitions = statistics.topics.get(&*self.topic).into_iter().flat_map(|topic| topic.partitions.values());
        let known = partitions.filter(|partition| partition.hi_offset >= 0);
        state.ends.extend(known.map(|partition| (partition.partition, partition.hi_offset)));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        counter!(telemetry::SOURCE_ERRORS, telemetry::TOPIC => self.topic.to_string()).increment(1);
        let mut state = self.state();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => {
                state.refusal = Some(reason.to_string());
            }
            Some(RDKafkaErrorCode::AllBrokersDown) => state.is_down = true,
            _ => {}
        }
        state.complaint = Some(reason.to_string());
    }
}

impl ConsumerContext for Watch {}

impl Connection {
    /// A client for a topic, once brokers have said which partitions it has; these too. With `partitions` of them known
    /// it holds no more than a fair share of the memory for each.
    pub fn open(spec: &KafkaSpec, access: &Access, partitions: usize, limits: &ReadLimits) -> Result<(Self, Vec<i32>)> {
        let topic: Arc<str> = spec.topic.as_str().into();
        let config = client_config(spec, access, partitions, limits)?;
        let watch = Watch { topic: topic.clone(), state: Mutex::default() };
        let consumer: BaseConsumer<Watch> = config.create_with_context(watch).map_err(|error| {
            let why = match error {
                KafkaError::ClientConfig(_, why, option, _) if !is_secret(&option) => why,
                KafkaError::ClientConfig(_, _, option, _) => format!("`{option}` is not accepted"),
                error => error.to_string(),
            };
            Error::option(format!("options: {why}{}", build_hint(&why)))
        })?;
        let connection = Self {
            consumer: Arc::new(consumer),
            topic,
            brokers: access.brokers.clone(),
            timeout: Duration::from_secs_f64(spec.timeout),
            is_told: false,
        };
        let partitions = connection.first_partitions()?;
        Ok((connection, partitions))
    }

    /// Waits for brokers that know the topic.
    fn first_partitions(&self) -> Result<Vec<i32>> {
        let begun = Instant::now();
        loop {
            let found = self.partitions(PATIENCE.min(self.timeout));
            self.serve(Duration::ZERO)?;
            if let Some(why) = &self.consumer.context().state().refusal {
                return Err(Error::option(format!("brokers {} refuse the credentials: {why}", self.brokers)));
            }
            match found {
                Ok(Some(partitions)) => return Ok(partitions),
                Ok(None) if begun.elapsed() >= UNKNOWN_TOPIC_GRACE.min(self.timeout) => {
                    return Err(Error::missing_path(format!(
                        "topic `{}` is not there: brokers {} do not know it; create it, or correct source.kafka.topic",
                        self.topic, self.brokers
                    )));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) if begun.elapsed() >= self.timeout => return Err(self.no_answer(&error)),
                Err(_) => {}
            }
        }
    }

    /// The partitions that the topic has; `None` if there is no such topic.
    pub fn partitions(&self, patience: Duration) -> KafkaResult<Option<Vec<i32>>> {
        let metadata = self.consumer.fetch_metadata(Some(&self.topic), patience)?;
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == &*self.topic) else { return Ok(None) };
        match topic.error().map(RDKafkaErrorCode::from) {
            None if topic.partitions().is_empty() => Ok(None),
            None => {
                let mut partitions: Vec<i32> = topic.partitions().iter().map(|partition| partition.id()).collect();
                partitions.sort_unstable();
                Ok(Some(partitions))
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Ok(None),
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        }
    }

    /// The first offset that a partition has, and the one after its last.
    pub fn watermarks(&self, partition: i32, patience: Duration) -> Result<(i64, i64)> {
        let begun = Instant::now();
        loop {
            match self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE) {
                Ok(watermarks) => return Ok(watermarks),
                Err(error) if begun.elapsed() >= patience => {
                    return Err(self.no_answer(&error).at(format!("topic `{}`, partition {partition}", self.topic)));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            self.serve(Duration::ZERO)?;
        }
    }

    /// Of some partitions, the first offset of a time, in milliseconds since 1970; `None` if all messages are older.
    pub fn offsets_at(&self, partitions: &[i32], millis: i64) -> Result<BTreeMap<i32, Option<i64>>> {
        let times = partitions.iter().map(|partition| (*partition, millis)).collect();
        let found =
            self.consumer.offsets_for_times(self.list(&times)?, self.timeout).map_err(|e| self.no_answer(&e))?;
        let offset = |offset| match offset {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        Ok(found.elements().iter().map(|element| (element.partition(), offset(element.offset()))).collect())
    }

    /// Fetches from these offsets on, and forgets what was fetched before.
    pub fn assign(&self, offsets: &BTreeMap<i32, i64>) -> Result<BTreeMap<i32, Queue>> {
        self.consumer.assign(&self.list(offsets)?).map_err(|error| self.failed(&error))?;
        let queue = |partition: &i32| match self.consumer.split_partition_queue(&self.topic, *partition) {
            Some(queue) => Ok((*partition, Queue(queue))),
            None => Err(Error::internal(format!("topic `{}`: no queue for partition {partition}", self.topic))),
        };
        offsets.keys().map(queue).collect()
    }

    /// Lets the client say what it has to say, and returns messages that came before their partition had its own queue.
    pub fn serve(&self, patience: Duration) -> Result<Vec<(i32, Message)>> {
        let (mut messages, mut patience) = (Vec::new(), patience);
        while let Some(polled) = self.consumer.poll(std::mem::take(&mut patience)) {
            match polled {
                Ok(message) => messages.push((message.partition(), owned(&message))),
                Err(error @ KafkaError::MessageConsumptionFatal(_)) => return Err(self.failed(&error)),
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                    return Err(self.failed(&error));
                }
                Err(_) => {} // an outage, which `Watch` has heard of
            }
        }
        Ok(messages)
    }

    /// What has arrived of a partition.
    pub fn poll(&self, queue: &Queue, patience: Duration) -> Result<Polled> {
        match queue.0.poll(patience) {
            None => Ok(Polled::Nothing),
            Some(Ok(message)) => Ok(Polled::Message(owned(&message))),
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => Ok(Polled::OutOfRange),
                Some(
                    RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::UnknownPartition,
                ) => Ok(Polled::Unknown),
                _ => Err(self.failed(&error)),
            },
        }
    }

    /// What commits offsets for as long as this connection is there.
    pub fn committer(&self) -> Committer {
        Committer { consumer: Arc::downgrade(&self.consumer), topic: self.topic.clone() }
    }

    /// What people should be told: that no broker answers, and that one does again.
    pub fn news(&mut self) -> Option<String> {
        let state = self.consumer.context().state();
        if state.is_down == self.is_told {
            return None;
        }
        self.is_told = state.is_down;
        Some(match (state.is_down, &state.complaint) {
            (true, Some(why)) => format!("{}: no broker answers ({why}); trying again until one does", self.place()),
            (true, None) => format!("{}: no broker answers; trying again until one does", self.place()),
            (false, _) => format!("{}: a broker answers again", self.place()),
        })
    }

    /// A message has come: somebody answers.
    pub fn is_answered(&self) {
        self.consumer.context().state().is_down = false;
    }

    /// Returns true if no broker answers.
    pub fn is_down(&self) -> bool {
        self.consumer.context().state().is_down
    }

    /// Shows how many messages are still to come.
    pub fn show_lag(&self, next: &BTreeMap<i32, i64>, share: Share) {
        let state = self.consumer.context().state();
        let lag = |(partition, next): (&i32, &i64)| state.ends.get(partition).map(|end| (end - next).max(0) as f64);
        let lag: f64 = next.iter().filter_map(lag).sum();
        let topic = self.topic.to_string();
        match share.shards {
            1 => gauge!(telemetry::SOURCE_LAG, telemetry::TOPIC => topic).set(lag),
            _ => {
                let shard = share.shard.to_string();
                gauge!(telemetry::SOURCE_LAG, telemetry::TOPIC => topic, telemetry::SHARD => shard).set(lag);
            }
        }
    }

    fn place(&self) -> String {
        format!("topic `{}`", self.topic)
    }

    fn list(&self, offsets: &BTreeMap<i32, i64>) -> Result<TopicPartitionList> {
        list_of(&self.topic, offsets).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &KafkaError) -> Error {
        let why = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
        io_error(format!("{}: {why}", self.place())).with_source(error.clone())
    }

    fn no_answer(&self, error: &KafkaError) -> Error {
        let state = self.consumer.context().state();
        let why = state.complaint.clone().unwrap_or_else(|| error.to_string());
        let seconds = self.timeout.as_secs_f64();
        io_error(format!("brokers {}: no answer within {seconds} seconds: {why}", self.brokers))
    }
}

impl Committer {
    /// Tells the group how far this run is, for tools that show lag. Nobody waits for it, and nothing depends on it.
    pub fn commit(&self, offsets: &BTreeMap<i32, i64>) {
        let Some(consumer) = self.consumer.upgrade() else { return };
        let sent = list_of(&self.topic, offsets).and_then(|list| consumer.commit(&list, CommitMode::Async));
        if sent.is_err() {
            counter!(telemetry::SOURCE_ERRORS, telemetry::TOPIC => self.topic.to_string()).increment(1);
        }
    }
}

fn list_of(topic: &str, offsets: &BTreeMap<i32, i64>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (&partition, &offset) in offsets {
        list.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    }
    Ok(list)
}

fn io_error(text: String) -> Error {
    Error::new(crate::error::ErrorKind::Io, text)
}

fn owned(message: &BorrowedMessage<'_>) -> Message {
    Message { offset: message.offset(), payload: message.payload().map(<[u8]>::to_vec) }
}

fn client_config(spec: &KafkaSpec, access: &Access, partitions: usize, limits: &ReadLimits) -> Result<ClientConfig> {
    // An eighth of the run's memory for what was fetched ahead; a queue for each partition.
    let queue_bytes = (limits.part_bytes / 4 / partitions.max(1) as u64).clamp(64 << 10, 16 << 20);
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Emerg);
    for (option, value) in USUAL {
        config.set(option, value);
    }
    config.set("queued.max.messages.kbytes", (queue_bytes >> 10).to_string());
    config.set("fetch.message.max.bytes", queue_bytes.min(1 << 20).to_string());
    for (option, value) in &access.options {
        config.set(option, value);
        check_option(option, value)?;
    }
    config.set("bootstrap.servers", &access.brokers);
    config.set("group.id", spec.group.as_deref().unwrap_or(NO_GROUP));
    config.set("enable.auto.commit", "false");
    config.set("enable.auto.offset.store", "false");
    config.set("auto.offset.reset", "error");
    config.set("enable.partition.eof", "false");
    config.set("statistics.interval.ms", "1000");
    config.set("max.poll.interval.ms", "86400000"); // back-pressure is not polling, for as long as it takes
    Ok(config)
}

/// Refuses an option that librdkafka does not have, or a value that it does not take. Secrets are not repeated.
fn check_option(option: &str, value: &str) -> Result<()> {
    let mut alone = ClientConfig::new();
    alone.set(option, value);
    let why = match alone.create_native_config() {
        Ok(_) => return Ok(()),
        Err(KafkaError::ClientConfig(_, why, ..)) if !is_secret(option) => why,
        Err(KafkaError::ClientConfig(..)) => "the value is not one of this option".to_string(),
        Err(error) => error.to_string(),
    };
    let hint = match build_hint(&why) {
        "" => "; CONFIGURATION.md of librdkafka lists what there is",
        hint => hint,
    };
    Err(Error::option(format!("options: `{option}`: {why}{hint}")))
}

/// What to do about something that the library was built without.
fn build_hint(why: &str) -> &'static str {
    if why.contains("build time") { "; TLS and SCRAM need the feature \"kafka-tls\"" } else { "" }
}
