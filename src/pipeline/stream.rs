//! The running stages: a source, decoders and a batcher, side by side.
//!
//! ```text
//! fetcher ─to read─▶ cutter ──work──▶ decoders (several) ──done──▶ batcher ──items──▶ Stream::next
//!  awaits bytes      cuts pieces       any order                    restores order
//! ```
//!
//! Channels are bounded and a full one is the back-pressure; bytes are bounded too. A quarter of the memory is a budget
//! for what was fetched, a quarter for what is between cutter and batcher; each has one taker, who takes in stream
//! order, so the piece that is needed next always has its bytes already: nothing can wait in a circle. Half is what the
//! batcher may hold at most; it refuses to hold more.
//!
//! Every step of the stream has a number, given by the cutter; the batcher goes by these numbers, so items and errors
//! come out in the same order for any number of decoders. Dropping the [`Stream`] stops everything: each stage ends
//! when the channel after it is closed. A file each: `fetcher`, `cutter`, `decoders`, `batches`.

mod batches;
mod cutter;
mod decoders;
mod fetcher;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use async_channel::{Receiver, bounded};
use serde::Serialize;
use tokio::runtime::Handle;

use self::batches::BatcherStage;
use self::cutter::Cutter;
use self::decoders::DecoderStage;
use self::fetcher::Fetcher;
use super::budget::{ByteBudget, Held};
use super::spec::as_size;
use super::waits::{StageWaits, Waits};
use crate::batcher::{Arrival, BadPolicy, BatchSpec, Batcher, BatcherInput};
use crate::caught::quietly;
use crate::data::{Batch, Cursor, Item};
use crate::decode::{BadRecord, Decoder};
use crate::error::{Error, Result};
use crate::order::Share;
use crate::source::{IndexedSource, Piece, ReadLimits, Source};

/// `[pipeline]`: how the stages run. Nothing of it changes what is learned, except which bad records are left out, and
/// that records which are too large for the memory are bad.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamOptions {
    /// Bytes that the whole pipeline may hold; while held-out rows are looked at, they have half as much besides.
    #[serde(serialize_with = "as_size")]
    pub memory: u64,
    /// Decoders that work at once; `None` is one per core, at most 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Blocks that are fetched ahead.
    pub prefetch: usize,
    /// What to do about records that cannot be read.
    #[serde(flatten)]
    pub bad: BadPolicy,
    /// Ends the stream after this many epochs, counted from the very beginning; `None` goes on for ever. Said by
    /// whoever opens the stream, not by a pipeline.
    #[serde(skip)]
    pub epochs: Option<u64>,
    /// What sizes records and pages may have; `None` follows from `memory`. Not said by a pipeline either.
    #[serde(skip)]
    pub limits: Option<ReadLimits>,
    /// Which shard of the batches this is the stream of. Not said by a pipeline either.
    #[serde(skip)]
    pub share: Share,
}

impl StreamOptions {
    /// What sizes records and pages may have.
    pub fn read_limits(&self) -> ReadLimits {
        self.limits.unwrap_or_else(|| ReadLimits::of_memory(PIECE_BYTES as usize, self.memory))
    }

    pub(super) fn num_workers(&self) -> usize {
        let usual = || thread::available_parallelism().map_or(2, usize::from).min(8);
        self.workers.unwrap_or_else(usual).max(1)
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            workers: None,
            prefetch: 2,
            bad: BadPolicy::default(),
            epochs: None,
            limits: None,
            share: Share::default(),
        }
    }
}

/// The smallest memory that stages can work in.
pub const LEAST_MEMORY: u64 = 1 << 20;

/// About how large a piece is. The same for any memory: where a piece is damaged, all of it is lost.
const PIECE_BYTES: u64 = 256 << 10;

/// Positions in a window of a source whose rows can be read by number. Part of what a cursor means: never change it.
const WINDOW_ROWS: u64 = 1024;

/// Batches that wait for whoever calls [`Stream::next`].
const READY_ITEMS: usize = 2;

/// Items in stream order, made ready ahead of whoever asks for them.
#[derive(Debug)]
pub struct Stream {
    is_live: bool,
    items: Receiver<Result<Item>>,
    /// Items that were looked at before they are asked for.
    ahead: VecDeque<Result<Item>>,
    waits: Arc<Waits>,
    bad: Arc<Mutex<Vec<BadRecord>>>,
    notes: Arc<Mutex<Vec<String>>>,
    budgets: Budgets,
}

impl Stream {
    /// Starts the stages at `start`. Must be called inside a tokio runtime, which fetches the bytes.
    pub fn open(
        source: &Source,
        decoder: &Arc<dyn Decoder>,
        batch: &BatchSpec,
        options: &StreamOptions,
        start: Cursor,
    ) -> Result<Self> {
        if options.memory < LEAST_MEMORY {
            return Err(Error::option(format!(
                "pipeline.memory = {} bytes: must be at least {LEAST_MEMORY}",
                options.memory
            )));
        }
        let runtime = Handle::try_current()
            .map_err(|_| Error::unsupported("a stream must be opened inside a tokio runtime, which reads for it"))?;
        let budgets =
            Budgets { fetched: ByteBudget::new(options.memory / 4), pieces: ByteBudget::new(options.memory / 4) };
        let share = options.share;
        if let Source::Live(source) = source {
            source.check_shards(share.shards)?;
        }
        let arrival = match source {
            Source::Blocks(_) if batch.shuffle => Arrival::Shuffled,
            Source::Blocks(_) | Source::Indexed(_) => Arrival::InOrder,
            // What was delivered of a window comes again, and is left out.
            Source::Live(source) if source.can_go_back() => Arrival::InOrder,
            Source::Live(_) => Arrival::Live,
        };
        let row_bytes = (decoder.shape().num_vars as u64).saturating_mul(4);
        // Of a batch the rows of this shard. Whether one is too short, and whether an epoch of so many rows is over, is
        // seen where they are put together.
        let own = BatchSpec { rows: share.of_rows(batch.rows).len(), ..batch.clone() };
        let own = if share.shards > 1 { BatchSpec { drop_last: false, epoch_rows: None, ..own } } else { own };
        let mut batcher =
            Batcher::new(&own, options.bad, decoder.shape().clone(), arrival, options.memory / 2, start.clone())?;
        if share.shards > 1 {
            batcher = batcher.of_one_shard();
        }

        let limits = options.read_limits();
        let (to_read, reading) = bounded(options.prefetch.max(1));
        let workers = options.num_workers();
        let (work, to_do) = bounded(workers * 2);
        let (done, finished) = bounded(workers * 2);
        let (send_items, items) = bounded(READY_ITEMS);
        let waits = Arc::new(Waits::default());
        let bad = Arc::new(Mutex::new(Vec::new()));

        let fetcher = Fetcher {
            source: source.clone(),
            batch: batch.clone(),
            share,
            epochs: options.epochs,
            expansion: decoder.expansion().max(1),
            piece_rows: (PIECE_BYTES / row_bytes.max(1)).clamp(1, WINDOW_ROWS),
            fetched: budgets.fetched.clone(),
            limits,
            to_read,
        };
        runtime.spawn(fetcher.run(start));

        let notes = Arc::new(Mutex::new(Vec::new()));
        let cutter = Cutter {
            runtime: runtime.clone(),
            reading,
            work,
            done: done.clone(),
            pieces: budgets.pieces.clone(),
            waits: waits.clone(),
            next: 0,
            row_bytes,
            limits,
            notes: notes.clone(),
        };
        spawn("anemone-cutter", move || cutter.run())?;
        for _ in 0..workers {
            let stage = DecoderStage {
                to_do: to_do.clone(),
                done: done.clone(),
                decoder: decoder.clone(),
                waits: waits.clone(),
            };
            spawn("anemone-decoder", move || stage.run())?;
        }
        drop((to_do, done)); // the stages have their own: a channel closes when its last user ends
        let stage = BatcherStage {
            finished,
            batcher,
            items: send_items,
            bad: bad.clone(),
            waits: waits.clone(),
            runtime,
            max_wait: batch.max_wait.filter(|_| matches!(source, Source::Live(_))),
            delivered: 0,
        };
        spawn("anemone-batcher", move || stage.run())?;
        let is_live = matches!(source, Source::Live(_));
        Ok(Self { is_live, items, ahead: VecDeque::new(), waits, bad, notes, budgets })
    }

    /// Returns true if it is that of a live source: nobody knows when its next item comes.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// The next item; `None` after the last. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Option<Item>> {
        match self.ahead.pop_front() {
            Some(item) => item.map(Some),
            None => self.receive().await,
        }
    }

    /// The first rows that [`next`](Self::next) is still to deliver, `rows` of them if this epoch has so many. They are
    /// held until then, and so is an error.
    pub async fn look_ahead(&mut self, rows: u64) -> Result<Option<Batch>> {
        let mut seen: Option<Batch> = None;
        let mut at = 0;
        while let left = rows - seen.as_ref().map_or(0, Batch::num_rows) as u64
            && left > 0
        {
            if at == self.ahead.len() {
                match self.receive().await.transpose() {
                    Some(item) => self.ahead.push_back(item),
                    None => break,
                }
            }
            let batch = match &self.ahead[at] {
                Ok(Item::Batch { batch, .. }) => batch,
                Ok(_) => break,
                Err(error) => return Err(error.clone()),
            };
            let batch = batch.slice(0..batch.num_rows().min(usize::try_from(left).unwrap_or(usize::MAX)));
            match &mut seen {
                Some(seen) => seen.append(&batch)?,
                None => seen = Some(batch),
            }
            at += 1;
        }
        Ok(seen)
    }

    async fn receive(&mut self) -> Result<Option<Item>> {
        let begun = Instant::now();
        let item = self.items.recv().await;
        self.waits.learner.add_input(begun.elapsed());
        item.ok().transpose()
    }

    /// Where the stages have spent their time so far.
    pub fn waits(&self) -> StageWaits {
        self.waits.read()
    }

    /// Records left out since this was called last.
    pub fn take_bad(&self) -> Vec<BadRecord> {
        std::mem::take(&mut self.bad.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a live source had to tell since this was called last.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of records that the source has delivered so far.
    pub fn bytes_read(&self) -> u64 {
        self.waits.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes held by what was fetched and by pieces on their way: now, and at most so far.
    pub fn bytes_in_flight(&self) -> (u64, u64) {
        let budgets = &self.budgets;
        (budgets.fetched.used() + budgets.pieces.used(), budgets.fetched.peak() + budgets.pieces.peak())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.items.close();
        self.budgets.fetched.close();
        self.budgets.pieces.close();
    }
}

#[derive(Debug)]
struct Budgets {
    /// Taken by the fetcher, given back when a block has been cut up.
    fetched: ByteBudget,
    /// Taken by the cutter, given back when the batcher has taken the rows.
    pieces: ByteBudget,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    // Detached: a thread that reads from standard input cannot be woken, and must not keep the program from ending.
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|e| Error::io("cannot start a thread", &e))
}

/// A numbered step of the stream, on its way to the batcher.
struct Done {
    number: u64,
    /// What happened; `None` is the end of the stream.
    result: Result<Option<BatcherInput>>,
    /// Given back when the batcher has taken the rows.
    held: Option<Held>,
}

/// A numbered piece of work for a decoder.
struct Work {
    number: u64,
    job: Job,
    held: Held,
}

enum Job {
    Decode(Piece),
    Gather(Arc<dyn IndexedSource>, Vec<u64>),
}

/// The stage after this one has ended: so does this one.
struct Stopped;

impl<T> From<async_channel::SendError<T>> for Stopped {
    fn from(_: async_channel::SendError<T>) -> Self {
        Self
    }
}

/// A panic in a stage is our mistake; the run ends with an error that says so instead of waiting for ever.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    quietly(work).unwrap_or_else(|text| Err(Error::internal(format!("a stage panicked: {text}"))))
}
