//! Reads a topic window by window.
//!
//! Every partition has a queue of its own, which the client fills ahead up to a limit; not taking from it is the
//! back-pressure. A window is put together before it begins, so that its start can say where it ends. At a resume the
//! window of the checkpoint is put together again, message for message; if some of it is gone that is a gap.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use metrics::counter;

use super::Message;
use super::connection::{Connection, Polled, Queue};
use super::position::{Place, Window};
use super::source::{KafkaSource, chosen, has_partition};
use super::spec::{MergeOrder, OnGap};
use crate::error::{Error, Result};
use crate::order::Share;
use crate::source::{Arrived, LiveReader, ReadLimits};
use crate::telemetry;

/// Messages in a window of what has arrived, at most.
const ARRIVAL_MESSAGES: usize = 1000;

/// Messages of a partition before it is the next one's turn. Part of what a position means: never change it.
const TURN_MESSAGES: usize = 100;

/// A window is complete once its messages have so many bytes. Part of what a position means: never change it.
const WINDOW_BYTES: usize = 256 << 10;

/// How long to wait for a message before saying that there is none.
const QUIET: Duration = Duration::from_millis(50);

/// How often brokers are asked for partitions where one seems to be gone; usually as often as the client asks itself.
const REFRESH_IN_DOUBT: Duration = Duration::from_secs(1);

/// How long a partition may be unknown before it is gone: brokers that have just started do not know everything.
const DOUBT: Duration = Duration::from_secs(10);

/// How long a broker has to answer during a run.
const ANSWER: Duration = Duration::from_secs(1);

/// How often lag is shown.
const SHOW: Duration = Duration::from_secs(1);

/// Reads a topic from a place on.
pub(super) struct KafkaReader {
    source: Arc<KafkaSource>,
    /// Which partitions are its own.
    share: Share,
    connection: Connection,
    /// Before the window that is being put together. Its `window` is one that has to come again.
    place: Place,
    queues: BTreeMap<i32, Queue>,
    /// Messages that came before their partition had its queue, or that were taken and belong to a later window.
    early: BTreeMap<i32, VecDeque<Message>>,
    /// The window that is being put together.
    partition: Option<i32>,
    messages: Vec<Message>,
    /// Its messages' bytes.
    bytes: usize,
    /// What is ready to be delivered.
    ready: VecDeque<Arrived>,
    refreshed: Instant,
    shown: Instant,
    /// Since when partitions have been unknown to brokers that answer.
    in_doubt: Option<Instant>,
}

impl KafkaReader {
    pub fn open(source: Arc<KafkaSource>, share: Share, mut place: Place) -> Result<Self> {
        let (connection, found) =
            Connection::open(&source.spec, &source.access, source.num_partitions, &source.limits)?;
        let mut partitions = chosen(&source.spec, found)?;
        partitions.retain(|&partition| has_partition(share, partition));
        place.next.retain(|&partition, _| has_partition(share, partition));
        if let Some(gone) = place.next.keys().find(|partition| is_gone(&source, **partition, &partitions)) {
            return Err(vanished(&source.spec.topic, *gone));
        }
        if source.spec.group.is_some() {
            let committer = connection.committer();
            *source.committer.lock().unwrap_or_else(PoisonError::into_inner) = Some(committer);
        }
        if !source.spec.partitions.is_empty() {
            place.next.retain(|partition, _| partitions.contains(partition));
            place.window.take_if(|window| !partitions.contains(&window.partition));
        }
        let now = Instant::now();
        let mut reader = Self {
            source,
            share,
            connection,
            place,
            queues: BTreeMap::new(),
            early: BTreeMap::new(),
            partition: None,
            messages: Vec::new(),
            bytes: 0,
            ready: VecDeque::new(),
            refreshed: now,
            shown: now,
            in_doubt: None,
        };
        reader.begin_new(&partitions, reader.patience())?;
        // Before anything is read: a run that cannot go on should say so at once.
        for partition in reader.place.next.keys().copied().collect::<Vec<_>>() {
            let watermarks = reader.connection.watermarks(partition, reader.patience())?;
            reader.check_range(partition, watermarks)?;
        }
        reader.assign()?;
        Ok(reader)
    }

    /// How long brokers have to answer when the topic is opened.
    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.source.spec.timeout)
    }

    /// Partitions that nobody has seen start at their beginning.
    fn begin_new(&mut self, partitions: &[i32], patience: Duration) -> Result<bool> {
        let mut is_any = false;
        for partition in partitions {
            if !self.place.next.contains_key(partition) {
                let (low, _) = self.connection.watermarks(*partition, patience)?;
                self.place.next.insert(*partition, low);
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Fetches from where this reader is.
    fn assign(&mut self) -> Result<()> {
        self.early.clear();
        let from = self.place.next.keys().map(|partition| (*partition, self.expected(*partition))).collect();
        self.queues = self.connection.assign(&from)?;
        Ok(())
    }

    /// The least offset that may come next from a partition.
    fn expected(&self, partition: i32) -> i64 {
        let taken = self.messages.last().filter(|_| self.partition == Some(partition));
        let next = self.place.next.get(&partition).copied().unwrap_or(0);
        taken.map_or(next, |message| next.max(message.offset + 1))
    }

    /// What has arrived of a partition and was not taken.
    fn poll(&mut self, partition: i32, patience: Duration) -> Result<Option<Message>> {
        let expected = self.expected(partition);
        let early = self.early.get_mut(&partition);
        if let Some(message) = early.and_then(VecDeque::pop_front) {
            return Ok(Some(message).filter(|message| message.offset >= expected));
        }
        let Some(queue) = self.queues.get(&partition) else { return Ok(None) };
        match self.connection.poll(queue, patience)? {
            Polled::Message(message) if message.offset >= expected => {
                self.connection.is_answered();
                return Ok(Some(message));
            }
            Polled::Message(_) | Polled::Nothing => {} // a message from before a new assignment
            Polled::OutOfRange => {
                // A broker that does not answer now is asked again by the fetch that follows.
                if let Ok(watermarks) = self.connection.watermarks(partition, ANSWER) {
                    self.check_range(partition, watermarks)?;
                }
                self.assign()?;
            }
            Polled::Unknown => _ = self.in_doubt.get_or_insert_with(Instant::now),
        }
        Ok(None)
    }

    fn take(&mut self, partition: i32, message: Message) {
        self.partition = Some(partition);
        self.bytes += message.payload.as_ref().map_or(0, Vec::len);
        self.messages.push(message);
    }

    /// Puts a window together; false if nothing has come, or not enough.
    fn gather(&mut self) -> Result<bool> {
        if let Some(window) = self.place.window {
            return self.gather_again(window);
        }
        match self.source.spec.order {
            MergeOrder::Arrival => {
                for partition in self.place.turns().collect::<Vec<_>>() {
                    while self.messages.len() < ARRIVAL_MESSAGES && self.bytes < WINDOW_BYTES {
                        let Some(message) = self.poll(partition, Duration::ZERO)? else { break };
                        self.take(partition, message);
                    }
                    if !self.messages.is_empty() {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            MergeOrder::RoundRobin => {
                let Some(partition) = self.partition.or_else(|| self.place.turns().next()) else { return Ok(false) };
                while self.messages.len() < TURN_MESSAGES && self.bytes < WINDOW_BYTES {
                    let Some(message) = self.poll(partition, QUIET)? else { return Ok(false) };
                    self.take(partition, message);
                }
                Ok(true)
            }
        }
    }

    /// Puts a window together that was delivered before, in part or whole.
    fn gather_again(&mut self, window: Window) -> Result<bool> {
        while (self.messages.len() as u64) < window.messages {
            let Some(message) = self.poll(window.partition, QUIET)? else { return Ok(false) };
            if message.offset >= window.end {
                let gone = window.messages - self.messages.len() as u64;
                self.lose(window, window.end, gone, "the topic was compacted")?;
                self.assign()?;
                return Ok(false);
            }
            self.take(window.partition, message);
        }
        if self.messages.last().is_some_and(|last| last.offset + 1 != window.end) {
            self.lose(window, window.end, 0, "the topic has other messages than it had")?;
            self.assign()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Delivers the window that was put together.
    fn deliver(&mut self, limits: &ReadLimits) -> Result<()> {
        let Some(partition) = self.partition.take() else { return Ok(()) };
        let (messages, _) = (std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes));
        let end = messages.last().map_or(0, |message| message.offset + 1);
        let window = Window { partition, end, messages: messages.len() as u64 };
        let start = Place { window: Some(window), ..self.place.clone() };
        self.place = self.place.after(window);
        self.ready.push_back(Arrived::WindowStart(start.position()?));
        let file = format!("{}/{partition}", self.source.spec.topic).into();
        self.ready.extend(self.source.meaning.arrivals(&file, messages, limits));
        self.ready.push_back(Arrived::WindowEnd(self.place.position()?));
        Ok(())
    }

    /// Looks whether the broker has what comes next of a partition, and decides what a gap means.
    fn check_range(&mut self, partition: i32, (low, high): (i64, i64)) -> Result<()> {
        let next = self.expected(partition);
        let again = self.place.window.filter(|window| window.partition == partition);
        let reached = again.map_or(next, |window| window.end);
        if reached > high {
            return Err(Error::state(format!(
                "topic `{}`, partition {partition}: this run is at offset {reached}, and the partition ends at {high}: \
                 the topic was deleted and created again, or lost messages; start another run",
                self.source.spec.topic
            )));
        }
        if next >= low {
            return Ok(());
        }
        let reason = "the broker has deleted what comes next";
        match again {
            Some(window) => {
                let next = low.max(window.end);
                self.lose(window, next, (next - self.place.next[&partition]) as u64, reason)
            }
            None => {
                let gone = (low - next) as u64;
                self.tell_gap(partition, gone, reason)?;
                // What was taken before the gap stays: its window goes on after it.
                self.place.next.insert(partition, low);
                Ok(())
            }
        }
    }

    /// A window cannot come again: it is left, and reading goes on at `next`. Some of its rows were learned from, and
    /// nobody can tell which of the messages that are left they came from.
    fn lose(&mut self, window: Window, next: i64, gone: u64, reason: &str) -> Result<()> {
        self.tell_gap(window.partition, gone, reason)?;
        self.ready.push_back(Arrived::WindowStart(self.place.position()?));
        self.place = self.place.after(Window { end: next, ..window });
        self.ready.push_back(Arrived::WindowLost(self.place.position()?));
        (self.partition, self.bytes) = (None, 0);
        self.messages.clear();
        Ok(())
    }

    fn tell_gap(&mut self, partition: i32, gone: u64, reason: &str) -> Result<()> {
        let topic = &self.source.spec.topic;
        let place = format!("topic `{topic}`, partition {partition}");
        let next = self.expected(partition);
        let what = format!("{place}: {reason}: {gone} messages from offset {next} on are gone");
        match self.source.spec.on_gap {
            OnGap::Fail => Err(Error::state(format!(
                "{what}; keep messages for longer (retention.ms), or go on without them: source.kafka.on_gap = \"skip\""
            ))),
            OnGap::Skip => {
                counter!(telemetry::SOURCE_GONE, telemetry::TOPIC => topic.clone()).increment(gone);
                self.ready.push_back(Arrived::Note(format!("{what}; going on without them")));
                Ok(())
            }
        }
    }

    /// Looks for partitions that have appeared, or are gone.
    fn refresh(&mut self) -> Result<()> {
        let every = if self.in_doubt.is_some() { REFRESH_IN_DOUBT } else { self.source.access.refresh() };
        if self.refreshed.elapsed() < every || self.connection.is_down() {
            return Ok(());
        }
        self.refreshed = Instant::now();
        // An answer takes as long as brokers are far, or the machine is busy; messages arrive meanwhile. An outage has
        // its own words.
        let Ok(found) = self.connection.partitions(ANSWER) else { return Ok(()) };
        let found = found.unwrap_or_default();
        match self.place.next.keys().find(|partition| is_gone(&self.source, **partition, &found)) {
            Some(gone) => {
                let since = *self.in_doubt.get_or_insert_with(Instant::now);
                if since.elapsed() >= DOUBT.min(self.patience()) {
                    return Err(vanished(&self.source.spec.topic, *gone));
                }
            }
            None => {
                self.in_doubt = None;
                let own: Vec<i32> = found.iter().copied().filter(|&p| has_partition(self.share, p)).collect();
                // One that does not answer yet is asked again.
                if self.source.spec.partitions.is_empty() && self.begin_new(&own, ANSWER).is_ok_and(|any| any) {
                    let topic = &self.source.spec.topic;
                    let now = format!("topic `{topic}`: there are {} partitions now", found.len());
                    self.ready.push_back(Arrived::Note(now));
                    self.assign()?;
                }
            }
        }
        Ok(())
    }
}

/// Returns true if a partition that this run has read from is none any more.
fn is_gone(source: &KafkaSource, partition: i32, found: &[i32]) -> bool {
    let is_read = source.spec.partitions.is_empty() || source.spec.partitions.contains(&partition);
    is_read && !found.contains(&partition)
}

fn vanished(topic: &str, partition: i32) -> Error {
    Error::state(format!(
        "topic `{topic}`: partition {partition}, which this run has read from, is gone: the topic was deleted; \
         start another run"
    ))
}

impl LiveReader for KafkaReader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        if let Some(arrived) = self.ready.pop_front() {
            return Ok(Some(arrived));
        }
        for (partition, message) in self.connection.serve(Duration::ZERO)? {
            self.early.entry(partition).or_default().push_back(message);
        }
        self.refresh()?;
        self.ready.extend(self.connection.news().map(Arrived::Note));
        if self.shown.elapsed() >= SHOW {
            self.shown = Instant::now();
            self.connection.show_lag(&self.place.next, self.share);
        }
        if self.gather()? {
            self.deliver(limits)?;
        } else if self.ready.is_empty() {
            // Round-robin has waited for its partition already.
            if self.source.spec.order == MergeOrder::Arrival && self.place.window.is_none() {
                for (partition, message) in self.connection.serve(QUIET)? {
                    self.early.entry(partition).or_default().push_back(message);
                }
            }
            return Ok(Some(Arrived::Quiet));
        }
        Ok(self.ready.pop_front().or(Some(Arrived::Quiet)))
    }
}
