//! The last stage: restores the order and feeds the batcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_channel::{Receiver, Sender};

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
        for number in 0.. {
            let begun = Instant::now();
            let done = loop {
                if let Some(done) = early.remove(&number) {
                    break done;
                }
                match self.finished.recv_blocking() {
                    Ok(done) => drop(early.insert(done.number, done)),
                    Err(_) => return Err(Error::internal("the stream broke off: a stage before this one has ended")),
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
            if !self.deliver_ready()? {
                return Ok(());
            }
        }
        Ok(())
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
            self.waits.batcher.add_output(begun.elapsed());
        }
    }
}
