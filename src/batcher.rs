//! Decoded pieces become batches, in stream order.
//!
//! A state machine without I/O: [`Batcher::push`] takes what happened next in the stream, [`Batcher::pull`] gives the
//! items that are complete; call it until it has none before pushing more. Tokens are cut into rows across pieces; rows
//! are permuted inside their window if asked; every batch carries the cursor just after its last row. The same inputs
//! give the same batches, and a batcher started at a batch's cursor gives the same batches from there on. Fed by
//! `decode` through `pipeline`, drained by `learner`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::data::{Batch, Cursor, Item, Position, Table, Values};
use crate::decode::{BadRecord, Decoded, Output, RowShape, ValueKind};
use crate::error::{Error, Result};
use crate::order::{Permutation, rows_of_window};

/// `[batch]`: how rows are put into batches. As JSON it is part of what a checkpoint says a run is made of, so its
/// names stay; a pipeline calls the last one `shuffle_window`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// Rows in a batch.
    pub rows: usize,
    /// Logical shards that the rows of a batch belong to; a stream of each ([`Share`](crate::order::Share)).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: usize,
    /// Whether the rows of an epoch come in a computed random order.
    pub shuffle: bool,
    /// Decides that order.
    pub seed: u64,
    /// Whether the short last batch of an epoch is left out.
    pub drop_last: bool,
    /// About how many bytes of blocks are shuffled together, where rows cannot be read by number.
    pub window_bytes: u64,
    /// How many rows of a live stream are an epoch; a pipeline says it as `learn.window_rows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_rows: Option<u64>,
    /// How long the first row of a batch of a live stream waits for the last; `None` waits for ever. No part of what a
    /// run is made of: it decides when rows are learned from, not which.
    #[serde(skip)]
    pub max_wait: Option<Duration>,
}

fn one() -> usize {
    1
}

/// Not written where it is 1: checkpoints from before there were shards are of the same batches.
fn is_one(number: &usize) -> bool {
    *number == 1
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            rows: 512,
            shards: 1,
            shuffle: true,
            seed: 1,
            drop_last: false,
            window_bytes: 64 << 20,
            epoch_rows: None,
            max_wait: None,
        }
    }
}

/// What to do about records that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBad {
    /// Stop with an error that names the record.
    #[default]
    Fail,
    /// Leave it out and count it.
    Skip,
    /// Leave it out and write it into a ledger.
    Quarantine,
}

/// How many bad records are too many.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BadPolicy {
    /// What to do about one.
    pub on_bad: OnBad,
    /// The most that may be left out in an epoch, which meets the same ones again, or in a million records of a live
    /// stream.
    pub max_bad: u64,
    /// The largest share of an epoch's records that may be left out; looked at from the thousandth record on.
    pub max_bad_fraction: f64,
}

impl Default for BadPolicy {
    fn default() -> Self {
        Self { on_bad: OnBad::Fail, max_bad: 1000, max_bad_fraction: 0.01 }
    }
}

/// Records of a live stream after which its budget of bad records is whole again.
const LIVE_BUDGET_RECORDS: u64 = 1_000_000;

/// How a source's rows reach the batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Whole windows, read from their beginning also after a resume; their rows are to be permuted.
    Shuffled,
    /// Whole windows, in the order to be delivered.
    InOrder,
    /// Each row once, from a pipe: what was delivered before does not come again.
    Live,
}

/// What happened next in the stream.
#[derive(Clone, Debug)]
pub enum BatcherInput {
    /// A window of a live source begins at this position.
    WindowStart(Position),
    /// A piece of the current window.
    Decoded(Decoded),
    /// A stretch of the current window that cannot be read at all.
    Damaged(BadRecord),
    /// The current window is complete; what comes next in a live source is at this position.
    WindowEnd(Option<Position>),
    /// The current window, of which rows may have been delivered before, does not come again; what comes next is at
    /// this position.
    WindowLost(Position),
    /// The epoch is complete; its last window ended before.
    EpochEnd,
}

/// Turns inputs into items.
#[derive(Debug)]
pub struct Batcher {
    spec: BatchSpec,
    policy: BadPolicy,
    arrival: Arrival,
    shape: RowShape,
    /// The most bytes of rows that may be held: to be shuffled together, and in a batch.
    max_window_bytes: u64,
    /// Just after the last row that went into `building`. Its `carry`, `records` and `bad_records` are those at the
    /// beginning of the window: what a resumed run needs, since it reads the window again.
    place: Cursor,
    /// Tokens that do not make a row yet.
    tokens: Values,
    /// Rows of the window that a resumed run has delivered before.
    skip: u64,
    /// Records of the current window so far, and bad ones among them.
    window_records: u64,
    window_bad: u64,
    /// Rows that wait for the end of their window.
    collected: Option<Table>,
    /// Rows that can be delivered.
    segment: Option<Segment>,
    /// The next batch.
    building: Option<Table>,
    /// What `pull` still owes after the current segment.
    pending: Pending,
    /// Whether this epoch had a batch, so that data without any does not spin without end.
    epoch_has_batches: bool,
    /// Whether it may have none all the same: other shards have the rows.
    may_be_empty: bool,
    /// Records left out since `take_bad` was called last.
    bad: Vec<BadRecord>,
}

#[derive(Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    WindowEnd(Option<Position>),
    EpochEnd,
}

/// Rows in the order in which they are delivered.
#[derive(Debug)]
struct Segment {
    table: Table,
    order: Option<Permutation>,
    next: usize,
}

impl Batcher {
    /// A batcher that continues at `start`.
    pub fn new(
        spec: &BatchSpec,
        policy: BadPolicy,
        shape: RowShape,
        arrival: Arrival,
        max_window_bytes: u64,
        start: Cursor,
    ) -> Result<Self> {
        if spec.rows == 0 {
            return Err(Error::option("batch.rows = 0: must be at least 1"));
        }
        let mut start = start;
        if arrival == Arrival::Live && start.row > 0 {
            // The message was begun before and does not come again, nor do the tokens that it began with.
            start.carry.clear();
        }
        let tokens = narrow(&start.carry, shape.values);
        let skip = if arrival == Arrival::Live { 0 } else { start.row };
        // A cursor beyond the beginning of an epoch is that of a batch.
        let epoch_has_batches = start.window > 0 || start.row > 0;
        Ok(Self {
            spec: spec.clone(),
            policy,
            arrival,
            shape,
            max_window_bytes,
            place: start,
            tokens,
            skip,
            window_records: 0,
            window_bad: 0,
            collected: None,
            segment: None,
            building: None,
            pending: Pending::Nothing,
            epoch_has_batches,
            may_be_empty: false,
            bad: Vec::new(),
        })
    }

    /// The same for one shard of several, which may have no row of an epoch.
    pub fn of_one_shard(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// Takes in what happened next. Everything must have been pulled before.
    pub fn push(&mut self, input: BatcherInput) -> Result<()> {
        debug_assert!(self.segment.is_none() && self.pending == Pending::Nothing, "pull before you push");
        match input {
            BatcherInput::Decoded(decoded) => {
                self.window_records += decoded.records;
                decoded.bad.into_iter().try_for_each(|bad| self.leave_out(bad))?;
                let rows = match decoded.output {
                    Output::Rows(table) => table,
                    Output::Tokens(tokens) => self.cut(&tokens)?,
                };
                self.take_rows(rows)
            }
            BatcherInput::Damaged(bad) => {
                self.window_records += bad.records;
                self.leave_out(bad)
            }
            BatcherInput::WindowStart(position) => {
                self.place.position = Some(position);
                Ok(())
            }
            BatcherInput::WindowEnd(next) => {
                if let Some(table) = self.collected.take() {
                    let num_rows = table.num_rows() as u64;
                    let order = rows_of_window(num_rows, self.spec.seed, self.place.epoch, self.place.window);
                    let next = self.skip.min(num_rows);
                    self.skip -= next;
                    self.segment = Some(Segment { table, order: Some(order), next: next as usize });
                }
                self.pending = Pending::WindowEnd(next);
                Ok(())
            }
            BatcherInput::WindowLost(next) => {
                self.skip = 0;
                if self.place.row > 0 {
                    self.tokens = narrow(&[], self.shape.values); // rows have begun with them already
                }
                self.pending = Pending::WindowEnd(Some(next));
                Ok(())
            }
            BatcherInput::EpochEnd => {
                self.pending = Pending::EpochEnd;
                Ok(())
            }
        }
    }

    /// The next item, if it is complete.
    pub fn pull(&mut self) -> Result<Option<Item>> {
        if self.spec.epoch_rows.is_some_and(|rows| self.place.epoch_rows >= rows) && !self.has_rows() {
            // An epoch of a live stream is over in the midst of a window: only its count begins again.
            self.place.epoch += 1;
            self.place.epoch_rows = 0;
            return Ok(Some(Item::EpochEnd { next: self.place.clone() }));
        }
        if let Some(batch) = self.fill()? {
            return Ok(Some(batch));
        }
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => Ok(None),
            Pending::WindowEnd(next) => {
                self.end_window(next)?;
                Ok(None)
            }
            Pending::EpochEnd => {
                if let Some(batch) = self.last_batch()? {
                    self.pending = Pending::EpochEnd; // comes after it
                    return Ok(Some(batch));
                }
                self.end_epoch().map(Some)
            }
        }
    }

    /// Returns true if rows wait for more of their batch.
    pub fn has_rows(&self) -> bool {
        self.building.as_ref().is_some_and(|table| table.num_rows() > 0)
    }

    /// The batch that is being built, though it is not full. Everything must have been pulled before.
    pub fn flush(&mut self) -> Option<Result<Item>> {
        self.building.take_if(|table| table.num_rows() == 0);
        self.deliver().transpose()
    }

    /// The records left out since this was called last.
    pub fn take_bad(&mut self) -> Vec<BadRecord> {
        std::mem::take(&mut self.bad)
    }

    /// Moves rows of the segment into the batch being built; a batch once it is full.
    fn fill(&mut self) -> Result<Option<Item>> {
        let Some(segment) = &mut self.segment else { return Ok(None) };
        let building = match &mut self.building {
            Some(table) => table,
            empty => empty.insert(Table::new(self.shape.num_vars, Values::U8(Vec::new()))?),
        };
        let left = segment.table.num_rows() - segment.next;
        let epoch_left = self.spec.epoch_rows.map_or(u64::MAX, |rows| rows.saturating_sub(self.place.epoch_rows));
        let count = left.min(self.spec.rows - building.num_rows());
        let count = count.min(usize::try_from(epoch_left).unwrap_or(usize::MAX));
        let rows = segment.next..segment.next + count;
        match &segment.order {
            Some(order) => building.append_rows(&segment.table, rows.map(|row| order.at(row as u64) as usize))?,
            None => building.append_rows(&segment.table, rows)?,
        }
        segment.next += count;
        self.place.row += count as u64;
        if self.spec.epoch_rows.is_some() {
            self.place.epoch_rows += count as u64;
        }
        if count == left {
            self.segment = None;
        }
        if building.num_bytes() as u64 > self.max_window_bytes {
            return Err(Error::option(format!(
                "a batch of {} rows takes more than {} MiB: lower batch.rows, or raise pipeline.memory",
                self.spec.rows,
                self.max_window_bytes >> 20
            )));
        }
        if building.num_rows() < self.spec.rows && (count as u64) < epoch_left {
            return Ok(None);
        }
        self.deliver()
    }

    fn deliver(&mut self) -> Result<Option<Item>> {
        let Some(table) = self.building.take() else { return Ok(None) };
        let batch: Batch = table.into_batch_of(|var| self.shape.columns.get(var)?.num_cats())?;
        self.epoch_has_batches = true;
        Ok(Some(Item::Batch { batch, end: self.place.clone() }))
    }

    /// The short batch at the end of an epoch, unless it is dropped or empty.
    fn last_batch(&mut self) -> Result<Option<Item>> {
        if self.spec.drop_last {
            self.building = None;
        }
        self.building.take_if(|table| table.num_rows() == 0);
        self.deliver()
    }

    /// All rows that a resumed run has delivered before must have come again.
    fn check_skipped(&self) -> Result<()> {
        if self.skip == 0 {
            return Ok(());
        }
        Err(Error::state(format!(
            "window {} of epoch {} has fewer rows than were delivered before: the data has changed",
            self.place.window, self.place.epoch
        )))
    }

    fn end_window(&mut self, next: Option<Position>) -> Result<()> {
        self.check_skipped()?;
        let place = &mut self.place;
        place.window += 1;
        place.row = 0;
        place.position = next;
        place.carry = (0..self.tokens.len()).filter_map(|i| self.tokens.category(i)).collect();
        place.records += std::mem::take(&mut self.window_records);
        place.bad_records += std::mem::take(&mut self.window_bad);
        let (records, bad) = (place.records - place.records_before_epoch, place.bad_records - place.bad_before_epoch);
        if records >= 1000 && bad as f64 > self.policy.max_bad_fraction * records as f64 {
            return Err(Error::data(format!(
                "{bad} of {records} records of this epoch could not be read, more than pipeline.max_bad_fraction = {}",
                self.policy.max_bad_fraction
            )));
        }
        if place.position.is_some() && records >= LIVE_BUDGET_RECORDS {
            // A stream of weeks may have more bad records in all than an epoch may have.
            (place.records_before_epoch, place.bad_before_epoch) = (place.records, place.bad_records);
        }
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<Item> {
        self.check_skipped()?;
        if !self.epoch_has_batches && !self.may_be_empty {
            return Err(no_row());
        }
        self.epoch_has_batches = false;
        self.tokens = narrow(&[], self.shape.values); // the remainder of an epoch is dropped
        let place = &mut self.place;
        let records = place.records + std::mem::take(&mut self.window_records);
        let bad_records = place.bad_records + std::mem::take(&mut self.window_bad);
        *place = Cursor {
            epoch: place.epoch + 1,
            records,
            bad_records,
            records_before_epoch: records,
            bad_before_epoch: bad_records,
            position: place.position.take(), // of a live stream: nothing of it comes again
            ..Cursor::default()
        };
        Ok(Item::EpochEnd { next: place.clone() })
    }

    /// Whole rows out of the token stream; what is left waits for the next piece.
    fn cut(&mut self, tokens: &Values) -> Result<Table> {
        self.tokens.append(tokens)?;
        let num_vars = self.shape.num_vars;
        let whole = self.tokens.len() / num_vars * num_vars;
        let rest = self.tokens.slice(whole..self.tokens.len());
        let mut rows = std::mem::replace(&mut self.tokens, rest);
        rows.truncate(whole);
        Table::new(num_vars, rows)
    }

    fn take_rows(&mut self, mut rows: Table) -> Result<()> {
        if rows.num_vars() != self.shape.num_vars {
            let (found, expected) = (rows.num_vars(), self.shape.num_vars);
            return Err(Error::data(format!("rows of {found} variables where {expected} are expected")));
        }
        if self.arrival == Arrival::Shuffled {
            match &mut self.collected {
                None => self.collected = Some(rows),
                Some(table) => table.append(&rows)?,
            }
            let bytes = self.collected.as_ref().map_or(0, Table::num_bytes) as u64;
            if bytes > self.max_window_bytes {
                return Err(Error::option(format!(
                    "the rows to be shuffled together take more than {} MiB: raise pipeline.memory, lower \
                     batch.shuffle_window, or set batch.shuffle = false",
                    self.max_window_bytes >> 20
                )));
            }
            return Ok(());
        }
        let seen_before = self.skip.min(rows.num_rows() as u64);
        self.skip -= seen_before;
        if rows.num_rows() as u64 == seen_before {
            return Ok(());
        }
        if seen_before > 0 {
            rows.drop_front(seen_before as usize);
        }
        self.segment = Some(Segment { table: rows, order: None, next: 0 });
        Ok(())
    }

    /// Counts a bad record, or fails.
    fn leave_out(&mut self, bad: BadRecord) -> Result<()> {
        if self.policy.on_bad == OnBad::Fail {
            return Err(bad_record(
                &bad,
                format!("{bad} (set pipeline.on_bad = \"skip\" or \"quarantine\" to go on without such records)"),
            ));
        }
        self.window_bad += bad.records;
        let total = self.place.bad_records - self.place.bad_before_epoch + self.window_bad;
        let reason = format!(
            "{total} records of this epoch could not be read, more than pipeline.max_bad = {}; the last: {bad}",
            self.policy.max_bad
        );
        let error = bad_record(&bad, reason);
        self.bad.push(bad);
        if total > self.policy.max_bad { Err(error) } else { Ok(()) }
    }
}

/// An epoch without a batch.
pub(crate) fn no_row() -> Error {
    Error::data(
        "the data has not one whole row: is it empty, shorter than decode.window, or, with batch.drop_last, than one \
         batch?",
    )
}

/// An error about a record, with its file and row as data.
fn bad_record(bad: &BadRecord, message: String) -> Error {
    let error = Error::data(message);
    match (bad.file.is_empty(), bad.unit.as_str()) {
        (true, _) => error,
        (false, "row") => error.with_path(&bad.file).with_row(bad.position),
        (false, _) => error.with_path(&bad.file),
    }
}

/// Tokens in the type that a decoder of this vocabulary delivers.
fn narrow(tokens: &[u32], values: ValueKind) -> Values {
    match values {
        ValueKind::Categories(cats) if cats <= 1 << 16 => Values::U16(tokens.iter().map(|&t| t as u16).collect()),
        _ => Values::U32(tokens.to_vec()),
    }
}
