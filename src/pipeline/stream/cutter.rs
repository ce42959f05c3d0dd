//! The second stage: cuts blocks into pieces and numbers everything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_channel::{Receiver, Sender};
use tokio::runtime::Handle;

use super::fetcher::ToRead;
use super::{Done, Job, Stopped, Work, caught};
use crate::batcher::BatcherInput;
use crate::decode::BadRecord;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::budget::ByteBudget;
use crate::pipeline::waits::Waits;
use crate::source::{Arrived, Fetched, LiveReader, ReadLimits};

/// Cuts blocks into pieces and numbers everything.
pub(super) struct Cutter {
    pub runtime: Handle,
    pub reading: Receiver<ToRead>,
    pub work: Sender<Work>,
    pub done: Sender<Done>,
    pub pieces: ByteBudget,
    pub waits: Arc<Waits>,
    pub next: u64,
    /// About what a decoded row takes: what a gather is charged before it is made.
    pub row_bytes: u64,
    pub limits: ReadLimits,
    /// What a live source has to tell.
    pub notes: Arc<Mutex<Vec<String>>>,
}

impl Cutter {
    pub fn run(mut self) {
        let _stopped = self.cut_all();
    }

    fn cut_all(&mut self) -> std::result::Result<(), Stopped> {
        loop {
            let begun = Instant::now();
            let Ok(next) = self.reading.recv_blocking() else { return Ok(()) };
            match next {
                ToRead::Block { index, fetch, held } => {
                    let fetched = self.runtime.block_on(fetch);
                    self.waits.cutter.add_input(begun.elapsed());
                    let fetched = fetched.unwrap_or_else(|e| Err(Error::internal(format!("block {index}: {e}"))));
                    self.cut_block(fetched)?;
                    drop(held); // the block's bytes are gone with its iterator
                }
                ToRead::Gather { source, rows } => {
                    self.waits.cutter.add_input(begun.elapsed());
                    let bytes = rows.len() as u64 * self.row_bytes;
                    self.send_work(Job::Gather(source, rows), bytes)?;
                }
                ToRead::Live { source, share, from } => {
                    self.cut_live(|| source.open_share(share, from.as_ref()))?;
                }
                ToRead::WindowEnd => self.send_input(Ok(Some(BatcherInput::WindowEnd(None))))?,
                ToRead::EpochEnd => self.send_input(Ok(Some(BatcherInput::EpochEnd)))?,
                ToRead::End => self.send_input(Ok(None))?,
            }
        }
    }

    fn cut_block(&mut self, fetched: Result<Fetched>) -> std::result::Result<(), Stopped> {
        let mut pieces = match fetched {
            Ok(fetched) => fetched.pieces,
            Err(error) => return self.send_damage(error),
        };
        loop {
            let begun = Instant::now();
            let piece = caught(|| pieces.next().transpose());
            self.waits.cutter.add_busy(begun.elapsed());
            match piece {
                Ok(Some(piece)) => {
                    let bytes = piece.num_bytes() as u64;
                    self.send_work(Job::Decode(piece), bytes)?;
                }
                Ok(None) => return Ok(()),
                Err(error) => return self.send_damage(error),
            }
        }
    }

    fn cut_live(&mut self, open: impl FnOnce() -> Result<Box<dyn LiveReader>>) -> std::result::Result<(), Stopped> {
        let mut reader = match caught(open) {
            Ok(reader) => reader,
            Err(error) => return self.break_off(error),
        };
        loop {
            let begun = Instant::now();
            let arrived = caught(|| reader.next(&self.limits));
            self.waits.cutter.add_input(begun.elapsed());
            match arrived {
                Ok(Some(Arrived::Piece(piece))) => {
                    let bytes = piece.num_bytes() as u64;
                    self.send_work(Job::Decode(piece), bytes)?;
                }
                Ok(Some(Arrived::WindowStart(at))) => self.send_input(Ok(Some(BatcherInput::WindowStart(at))))?,
                Ok(Some(Arrived::WindowEnd(next))) => self.send_input(Ok(Some(BatcherInput::WindowEnd(Some(next)))))?,
                Ok(Some(Arrived::Damaged(error))) => self.send_damage(error)?,
                Ok(Some(Arrived::WindowLost(next))) => self.send_input(Ok(Some(BatcherInput::WindowLost(next))))?,
                Ok(Some(Arrived::Note(note))) => {
                    self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
                }
                Ok(Some(Arrived::Quiet)) if self.done.is_closed() => return Err(Stopped),
                Ok(Some(Arrived::Quiet)) => {}
                Ok(None) => return Ok(()),
                Err(error) => return self.break_off(error),
            }
        }
    }

    /// A live stream that broke off cannot be read further.
    fn break_off(&mut self, error: Error) -> std::result::Result<(), Stopped> {
        self.send_input(Err(error))?;
        Err(Stopped)
    }

    /// Unreadable data is the policy's business; a failed read is not: the data may be good.
    fn send_damage(&mut self, error: Error) -> std::result::Result<(), Stopped> {
        if !matches!(error.kind(), ErrorKind::Data | ErrorKind::Format) {
            return self.send_input(Err(error));
        }
        self.send_input(Ok(Some(BatcherInput::Damaged(BadRecord::damage(error.to_string())))))
    }

    fn send_work(&mut self, job: Job, bytes: u64) -> std::result::Result<(), Stopped> {
        let begun = Instant::now();
        self.waits.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        let held = self.runtime.block_on(self.pieces.take(bytes)).ok_or(Stopped)?;
        let number = self.number();
        self.work.send_blocking(Work { number, job, held })?;
        self.waits.cutter.add_output(begun.elapsed());
        Ok(())
    }

    fn send_input(&mut self, result: Result<Option<BatcherInput>>) -> std::result::Result<(), Stopped> {
        let number = self.number();
        Ok(self.done.send_blocking(Done { number, result, held: None })?)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}
