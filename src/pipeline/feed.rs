//! Global batches, put together from the streams of shards.
//!
//! Every shard of a batch is a stream of its own with its own cursor ([`Share`]); a process opens those of its own
//! shards only. A global batch is the rows that each shard has next, in the order of shards. A shard whose epoch is
//! over gives none until all are over; then the epoch is. What comes next follows from what every shard has to offer
//! ([`Offer`]), whoever has it, so global batches are the same for any number of ranks.
//!
//! A shard of a live source may have nothing for hours. It says so ([`Offer::Quiet`]), and where others have rows it is
//! waited for no longer than `batch.max_wait`: then it is *late*, and batches go without it until its rows are there. A
//! late one that has filled its part of a batch is waited for again. So all is decided by what is offered here too, and
//! clocks decide only what a shard offers: while none is late, batches are the same in every run. Nobody waits for more
//! than a moment (`PACE`) without offering what there is, so ranks hear of each other's rows, and of signals.
//!
//! An epoch that is a number of rows of a live source is over after the batch that reaches it: only here it is known
//! how many rows all shards had.
//!
//! With one shard this is a [`Stream`] and nothing else. Fed by `stream`, drained by `run`.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::{sleep_until, timeout_at};

use super::stream::{LEAST_MEMORY, Stream, StreamOptions};
use super::waits::{StageTime, StageWaits};
use crate::batcher::{BatchSpec, no_row};
use crate::data::{Batch, Cursor, Item, ShardRows};
use crate::decode::BadRecord;
use crate::error::{Error, Result};
use crate::order::Share;

/// How long shards of a live source are waited for before those that have nothing say so.
const PACE: Duration = Duration::from_millis(200);

/// The streams of a process's own shards, and how far all shards have come.
#[derive(Debug)]
pub struct Feed {
    own: Range<usize>,
    streams: Vec<ShardStream>,
    num_vars: usize,
    batch_rows: usize,
    drop_last: bool,
    /// Just after the last rows of each shard, own or not, that went into a batch.
    places: Vec<Cursor>,
    epoch: u64,
    /// Whether this epoch had a batch, so that data without any does not spin without end.
    epoch_has_batches: bool,
    /// Of several shards of a live source.
    live: Option<Live>,
}

/// What is known of the shards of a live source besides.
#[derive(Debug)]
struct Live {
    /// How long others wait for a shard once there are rows; `None` is for ever.
    max_wait: Option<Duration>,
    /// How many rows are an epoch, if that is said, and how many this one had.
    epoch_rows: Option<u64>,
    rows: u64,
    /// Since when there have been rows, here or elsewhere, that wait for other shards.
    waiting: Option<Instant>,
    /// Until when own shards are waited for now. Kept here: whoever stops waiting begins again.
    until: Option<Instant>,
    /// Whether something was taken last. Then there may be more, and late shards are not waited for at all.
    is_moving: bool,
}

#[derive(Debug)]
struct ShardStream {
    stream: Stream,
    /// What it delivered last and nobody has taken.
    next: Option<Next>,
    /// Rows that it has in a whole batch.
    rows: usize,
    /// It was waited for in vain, and has not filled its part of a batch since.
    is_late: bool,
}

#[derive(Debug)]
enum Next {
    Rows(Batch, Cursor),
    EpochEnd(Cursor),
    End,
}

/// What a shard has next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Offer {
    /// Rows of the next batch.
    Rows {
        /// How many.
        rows: usize,
        /// The sum of their weights.
        weight: f64,
        /// The place just after them.
        end: Cursor,
    },
    /// Nothing in this epoch.
    EpochEnd {
        /// Where its next epoch begins.
        next: Cursor,
    },
    /// Nothing yet, of a live source.
    Quiet {
        /// The others wait for it no longer.
        is_late: bool,
    },
    /// Nothing at all.
    End,
}

/// What all offers together are.
#[derive(Debug)]
pub enum Taken {
    /// A batch, or the end of an epoch.
    Item(Box<Item>),
    /// A short batch that is left out.
    LeftOut,
    /// Nothing yet: some shards of a live source are waited for.
    Nothing,
    /// The end.
    End,
}

impl Feed {
    /// Puts together what the streams of the shards `own` deliver; `open` opens each from its place on, under options
    /// that are its part of the given ones.
    pub fn open(
        batch: &BatchSpec,
        options: &StreamOptions,
        num_vars: usize,
        start: Cursor,
        own: Range<usize>,
        mut open: impl FnMut(&StreamOptions, Cursor) -> Result<Stream>,
    ) -> Result<Self> {
        let shards = batch.shards;
        if shards > batch.rows {
            let why = format!("batch.shards = {shards}: must be at most batch.rows = {}: one row for each", batch.rows);
            return Err(Error::option(why).with_key("batch.shards"));
        }
        let places = match start.shards.len() {
            0 if start == Cursor::default() || shards == 1 => vec![start.clone(); shards],
            found if found == shards && shards > 1 => start.shards,
            found => {
                return Err(Error::state(format!(
                    "the checkpoint's place in the data is that of {} of a batch, and batch.shards = {shards}",
                    if found < 2 { "one shard".into() } else { format!("{found} shards") }
                )));
            }
        };
        let has_begun = |place: &Cursor| place.window > 0 || place.row > 0;
        let (epoch, rows, epoch_has_batches) = (start.epoch, start.epoch_rows, places.iter().any(has_begun));
        let mut streams = Vec::with_capacity(own.len());
        for shard in own.clone() {
            let share = Share { shard, shards };
            let stream = open(&part_of(options, share, own.len()), places[shard].clone())?;
            streams.push(ShardStream { stream, next: None, rows: share.of_rows(batch.rows).len(), is_late: false });
        }
        let is_live = shards > 1 && streams.iter().any(|shard| shard.stream.is_live());
        let (max_wait, epoch_rows) = (batch.max_wait, batch.epoch_rows);
        let live = Live { max_wait, epoch_rows, rows, waiting: None, until: None, is_moving: true };
        let live = is_live.then_some(live);
        // Of a live source a batch is short because a shard was late, not because the data is over.
        let (batch_rows, drop_last) = (batch.rows, batch.drop_last && !is_live);
        Ok(Self { own, streams, num_vars, batch_rows, drop_last, places, epoch, epoch_has_batches, live })
    }

    /// The next item of a process that has all shards; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Item>> {
        loop {
            self.pull().await?;
            match self.take(&self.offers())? {
                Taken::Item(item) => return Ok(Some(*item)),
                Taken::LeftOut | Taken::Nothing => {}
                Taken::End => return Ok(None),
            }
        }
    }

    /// Waits until every own shard has something to offer; of a live source no longer than a moment. To stop waiting
    /// loses nothing.
    pub async fn pull(&mut self) -> Result<()> {
        let Some(live) = &mut self.live else {
            for shard in &mut self.streams {
                shard.pull().await?;
            }
            return Ok(());
        };
        let now = Instant::now();
        let pace = *live.until.get_or_insert(now + PACE);
        let is_over = live.waiting.zip(live.max_wait).and_then(|(since, wait)| since.checked_add(wait));
        let until = is_over.map_or(pace, |is_over| is_over.min(pace));
        if !live.is_moving && self.streams.iter().all(|shard| shard.next.is_some()) {
            // Shards of another rank are waited for: here, not in a call that spins.
            sleep_until(until.into()).await;
            return Ok(());
        }
        for shard in &mut self.streams {
            let until = if shard.is_late && live.is_moving { now } else { until };
            if let Ok(pulled) = timeout_at(until.into(), shard.pull()).await {
                pulled?;
            }
        }
        if is_over.is_some_and(|is_over| is_over <= Instant::now()) {
            self.streams.iter_mut().filter(|shard| shard.next.is_none()).for_each(|shard| shard.is_late = true);
        }
        Ok(())
    }

    /// What own shards have next, in order. Everything must have been pulled before.
    pub fn offers(&self) -> Vec<Offer> {
        let offer = |shard: &ShardStream| match &shard.next {
            Some(Next::Rows(batch, end)) => {
                Offer::Rows { rows: batch.num_rows(), weight: batch.total_weight(), end: end.clone() }
            }
            Some(Next::EpochEnd(next)) => Offer::EpochEnd { next: next.clone() },
            Some(Next::End) => Offer::End,
            None => Offer::Quiet { is_late: shard.is_late },
        };
        self.streams.iter().map(offer).collect()
    }

    /// Rows that own shards offer, to be looked at before they are taken.
    pub fn offered_rows(&self) -> impl Iterator<Item = &Batch> {
        self.streams.iter().filter_map(|shard| match &shard.next {
            Some(Next::Rows(batch, _)) => Some(batch),
            _ => None,
        })
    }

    /// Takes what all shards offer, in order: the same on every rank, but for the rows, which are those of its own.
    pub fn take(&mut self, offers: &[Offer]) -> Result<Taken> {
        let num_shards = self.places.len();
        if offers.len() != num_shards {
            return Err(Error::internal(format!("{} shards of {num_shards} offer something", offers.len())));
        }
        if num_shards == 1 {
            return Ok(match self.streams[0].next.take() {
                Some(Next::Rows(batch, end)) => Taken::Item(Box::new(Item::Batch { batch, end })),
                Some(Next::EpochEnd(next)) => Taken::Item(Box::new(Item::EpochEnd { next })),
                Some(Next::End) | None => Taken::End,
            });
        }
        if offers.iter().all(|offer| *offer == Offer::End) {
            return Ok(Taken::End);
        }
        if let Some(taken) = self.take_of_live(offers) {
            return Ok(taken);
        }
        let nexts = offers.iter().map(|offer| match offer {
            Offer::EpochEnd { next } => Some(next.clone()),
            _ => None,
        });
        if let Some(nexts) = nexts.collect::<Option<Vec<Cursor>>>() {
            return self.take_epoch_end(nexts);
        }
        self.take_rows(offers)
    }

    /// What goes before any batch of a live source: the end of an epoch that has its rows, or nothing yet.
    fn take_of_live(&mut self, offers: &[Offer]) -> Option<Taken> {
        let live = self.live.as_mut()?;
        live.until = None;
        if live.epoch_rows.is_some_and(|most| live.rows >= most) {
            (live.rows, live.is_moving) = (0, true);
            self.epoch += 1;
            return Some(Taken::Item(Box::new(Item::EpochEnd { next: self.place() })));
        }
        let has_rows = offers.iter().any(|offer| matches!(offer, Offer::Rows { .. }));
        let is_waiting = offers.contains(&Offer::Quiet { is_late: false });
        let is_any_quiet = is_waiting || offers.contains(&Offer::Quiet { is_late: true });
        live.is_moving = !is_waiting && (has_rows || !is_any_quiet);
        live.waiting = match has_rows && is_waiting {
            true => live.waiting.or_else(|| Some(Instant::now())),
            false => None,
        };
        (!live.is_moving).then_some(Taken::Nothing)
    }

    /// Just after the last batch.
    fn place(&self) -> Cursor {
        let place = Cursor::of_shards(self.epoch, self.places.clone());
        Cursor { epoch_rows: self.live.as_ref().map_or(0, |live| live.rows), ..place }
    }

    fn take_epoch_end(&mut self, nexts: Vec<Cursor>) -> Result<Taken> {
        if !std::mem::take(&mut self.epoch_has_batches) {
            return Err(no_row());
        }
        self.streams.iter_mut().for_each(|shard| shard.next = None);
        self.epoch += 1;
        self.places = nexts;
        if let Some(live) = &mut self.live {
            live.rows = 0;
        }
        Ok(Taken::Item(Box::new(Item::EpochEnd { next: self.place() })))
    }

    fn take_rows(&mut self, offers: &[Offer]) -> Result<Taken> {
        let (mut rows, mut weight) = (vec![0; self.places.len()], 0.0);
        let mut places = self.places.clone();
        for (shard, offer) in offers.iter().enumerate() {
            if let Offer::Rows { rows: own, weight: own_weight, end } = offer {
                rows[shard] = *own;
                weight += own_weight;
                places[shard].clone_from(end);
            }
        }
        let mut batch: Option<Batch> = None;
        for shard in &mut self.streams {
            if let Some(Next::Rows(more, _)) = shard.next.take_if(|next| matches!(next, Next::Rows(..))) {
                shard.is_late &= more.num_rows() < shard.rows;
                match &mut batch {
                    Some(batch) => batch.append(&more)?,
                    None => batch = Some(more),
                }
            }
        }
        if self.drop_last && rows.iter().sum::<usize>() < self.batch_rows {
            return Ok(Taken::LeftOut); // nobody learns from them, so the places stay
        }
        self.places = places;
        self.epoch_has_batches = true;
        if let Some(live) = &mut self.live {
            live.rows += rows.iter().sum::<usize>() as u64;
        }
        let batch = batch.unwrap_or_else(|| Batch::without_rows(self.num_vars));
        let batch = batch.as_part(ShardRows { rows, held: self.own.clone(), weight })?;
        Ok(Taken::Item(Box::new(Item::Batch { batch, end: self.place() })))
    }

    /// Where the stages of all own shards have spent their time so far.
    pub fn waits(&self) -> StageWaits {
        let add = |a: StageTime, b: StageTime| StageTime {
            input: a.input + b.input,
            busy: a.busy + b.busy,
            output: a.output + b.output,
        };
        self.streams.iter().map(|shard| shard.stream.waits()).fold(StageWaits::default(), |all, one| StageWaits {
            cutter: add(all.cutter, one.cutter),
            decoders: add(all.decoders, one.decoders),
            batcher: add(all.batcher, one.batcher),
            learner: add(all.learner, one.learner),
        })
    }

    /// Records left out since this was called last.
    pub fn take_bad(&self) -> Vec<BadRecord> {
        self.streams.iter().flat_map(|shard| shard.stream.take_bad()).collect()
    }

    /// What live sources had to tell since this was called last.
    pub fn take_notes(&self) -> Vec<String> {
        self.streams.iter().flat_map(|shard| shard.stream.take_notes()).collect()
    }

    /// Bytes of records that the source has delivered to own shards so far.
    pub fn bytes_read(&self) -> u64 {
        self.streams.iter().map(|shard| shard.stream.bytes_read()).sum()
    }

    /// Bytes held by what was fetched and by pieces on their way.
    pub fn bytes_in_flight(&self) -> u64 {
        self.streams.iter().map(|shard| shard.stream.bytes_in_flight().0).sum()
    }
}

impl ShardStream {
    /// Waits for what it delivers next, unless that is there already.
    async fn pull(&mut self) -> Result<()> {
        if self.next.is_none() {
            self.next = Some(match self.stream.next().await? {
                Some(Item::Batch { batch, end }) => Next::Rows(batch, end),
                Some(Item::EpochEnd { next }) => Next::EpochEnd(next),
                None => Next::End,
            });
        }
        Ok(())
    }
}

/// What one of `parts` streams side by side may use. What a record may be does not depend on them.
pub(super) fn part_of(options: &StreamOptions, share: Share, parts: usize) -> StreamOptions {
    if share.shards == 1 {
        return options.clone();
    }
    StreamOptions {
        memory: (options.memory / parts as u64).max(LEAST_MEMORY),
        workers: Some((options.num_workers() / parts).max(1)),
        limits: Some(options.read_limits()),
        share,
        ..options.clone()
    }
}
