//! The last stage: restores the order and feeds the batcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use tokio::runtime::Handle;

use super::{Done, caught};
use crate::batcher::Batcher;
use crate::data::Item;
use crate::decode::BadRecord;
use crate::error::{Error, Result};
use crate::pipeline::waits::Waits;

/// Restores the order and feeds the batcher.
pub(super) struct BatcherStage {
    pub finished: Receiver<Done>,
    pub batcher: Batcher,
    pub items: Sender<Result<Item>>,
    pub bad: Arc<Mutex<Vec<BadRecord>>>,
    pub waits: Arc<Waits>,
    /// Keeps the time.
    pub runtime: Handle,
    /// How long rows of a live stream wait for a full batch.
    pub max_wait: Option<Duration>,
    /// Items so far.
    pub delivered: u64,
}

/// How waiting for the next step of the stream ended.
enum Received {
    Done(Done),
    /// The deadline came first.
    Late,
    BrokenOff,
}

impl BatcherStage {
    pub fn run(mut self) {
        if let Err(error) = self.deliver_all() {
            let _closed = self.items.send_blocking(Err(error)); // nobody listens any more: nobody to tell
        }
    }

    fn deliver_all(&mut self) -> Result<()> {
        // What came early. Bounded by the byte budget of pieces.
        let mut early: BTreeMap<u64, Done> = BTreeMap::new();
        // When the batch that is being built goes, full or not.
        let mut deadline: Option<Instant> = None;
        for number in 0.. {
            let begun = Instant::now();
            let done = loop {
                if let Some(done) = early.remove(&number) {
                    break done;
                }
                match self.receive(deadline) {
                    Received::Done(done) => drop(early.insert(done.number, done)),
                    Received::Late => {
                        deadline = None;
                        if let Some(item) = caught(|| Ok(self.batcher.flush()))?
                            && self.items.send_blocking(Ok(item?)).is_err()
                        {
                            return Ok(());
                        }
                    }
                    Received::BrokenOff => {
                        return Err(Error::internal("the stream broke off: a stage before this one has ended"));
                    }
                }
            };
            self.waits.batcher.add_input(begun.elapsed());
            let begun = Instant::now();
            let Some(input) = done.result? else { return Ok(()) }; // the stream is over
            let pushed = caught(|| self.batcher.push(input));
            drop(done.held); // the rows are the batcher's now
            let bad = self.batcher.take_bad();
            if !bad.is_empty() {
                self.bad.lock().unwrap_or_else(PoisonError::into_inner).extend(bad);
            }
            pushed?;
            self.waits.batcher.add_busy(begun.elapsed());
            let delivered = self.delivered;
            if !self.deliver_ready()? {
                return Ok(());
            }
            if delivered != self.delivered || !self.batcher.has_rows() {
                deadline = None; // another batch, whose first row has not waited yet
            }
            if self.batcher.has_rows() && deadline.is_none() {
                deadline = self.max_wait.and_then(|wait| Instant::now().checked_add(wait));
            }
        }
        Ok(())
    }

    /// What comes next, unless the deadline is first.
    fn receive(&self, deadline: Option<Instant>) -> Received {
        let received = match deadline {
            None => self.finished.recv_blocking(),
            Some(deadline) => {
                let waiting = async { tokio::time::timeout_at(deadline.into(), self.finished.recv()).await };
                match self.runtime.block_on(waiting) {
                    Ok(received) => received,
                    Err(_) => return Received::Late,
                }
            }
        };
        received.map_or(Received::BrokenOff, Received::Done)
    }

    /// Sends what is complete. Returns true if anybody still listens.
    fn deliver_ready(&mut self) -> Result<bool> {
        loop {
            let begun = Instant::now();
            let item = caught(|| self.batcher.pull())?;
            self.waits.batcher.add_busy(begun.elapsed());
            let Some(item) = item else { return Ok(!self.items.is_closed()) };
            let begun = Instant::now();
            if self.items.send_blocking(Ok(item)).is_err() {
                return Ok(false);
            }
            self.delivered += 1;
            self.waits.batcher.add_output(begun.elapsed());
        }
    }
}
