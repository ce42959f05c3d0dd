//! Large tables, of which a batch touches few rows: the others are updated when they are next needed.
//!
//! A row of a table (one category, all units) that a batch does not touch moves all the same: its momentum decays, and
//! θ' = keep·θ + take·F + add with coefficients that are those of the whole table. So the coefficients of past updates
//! are kept, and a row is brought up to date by replaying the updates that it missed, one by one, in registers: the very
//! operations, in the very order, that a dense update would have made. Nothing depends on *when* a row is brought up to
//! date, not even the last bit, so a checkpoint may be taken at any time. A part of the table is brought up to date at
//! every update, so that nobody falls back further than the history reaches.

use std::collections::VecDeque;
use std::ops::Range;

use super::gather::kept;
use super::kernels::{Isa, multiversion};
use super::shared::SharedSlice;
use super::tables::Moves;
use crate::circuit::ParamId;

/// Updates after which every row has been brought up to date once: the length of the history.
const SWEEP: usize = 32;

/// A table whose rows are updated when they are needed.
#[derive(Clone)]
pub(super) struct LazyTable {
    pub param: ParamId,
    /// For each category, how many updates its row has seen.
    seen: Vec<u64>,
    /// Updates made.
    updates: u64,
    /// The last updates, the newest at the back.
    history: VecDeque<Past>,
    /// Where the sweep goes on.
    sweep: usize,
}

/// One update of the past.
#[derive(Clone, Debug)]
struct Past {
    /// F ← decay·F.
    decay: f32,
    moves: Moves,
}

/// A table's parameters and momentum flows, `[cats × units]`.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    pub theta: SharedSlice<'a, f32>,
    pub flows: SharedSlice<'a, f32>,
    pub units: usize,
}

impl LazyTable {
    pub fn new(param: ParamId, cats: usize) -> Self {
        Self { param, seen: vec![0; cats], updates: 0, history: VecDeque::new(), sweep: 0 }
    }

    pub fn num_cats(&self) -> usize {
        self.seen.len()
    }

    /// Whether some row lags.
    pub fn is_behind(&self) -> bool {
        !self.history.is_empty()
    }

    /// The categories that the next sweep brings up to date.
    pub fn next_sweep(&self) -> Range<usize> {
        let size = self.seen.len().div_ceil(SWEEP);
        self.sweep..(self.sweep + size).min(self.seen.len())
    }

    /// Brings a row up to date.
    ///
    /// # Safety
    /// Nobody else looks at this row of the cells.
    pub unsafe fn replay(&self, isa: Isa, cells: Cells<'_>, category: usize) {
        let missed = (self.updates - self.seen[category]) as usize;
        if missed == 0 {
            return;
        }
        let range = category * cells.units..(category + 1) * cells.units;
        // SAFETY: the caller's.
        let (theta, flows) = unsafe { (cells.theta.get_mut(range.clone()), cells.flows.get_mut(range)) };
        replay_row(isa, theta, flows, &self.history, self.history.len() - missed);
    }

    /// Notes that rows are up to date.
    pub fn caught_up(&mut self, categories: impl Iterator<Item = usize>) {
        categories.for_each(|category| self.seen[category] = self.updates);
    }

    /// Notes an update that touched rows have seen and others have not. The sweep has been made before.
    pub fn updated(&mut self, decay: f32, moves: Moves, touched: impl Iterator<Item = usize>) {
        let swept = self.next_sweep();
        self.sweep = if swept.end == self.seen.len() { 0 } else { swept.end };
        self.updates += 1;
        self.history.push_back(Past { decay, moves });
        touched.for_each(|category| self.seen[category] = self.updates);
        if self.history.len() > SWEEP + 1 {
            self.history.pop_front();
        }
    }

    /// Forgets the past: all rows are up to date.
    pub fn reset(&mut self) {
        self.seen.fill(self.updates);
        self.history.clear();
    }
}

multiversion! {
    fn replay_row(theta: &mut [f32], flows: &mut [f32], history: &VecDeque<Past>, from: usize) = replay_body;
}

/// Units that are replayed together, in registers: enough chains of dependent operations to keep the processor busy.
const TOGETHER: usize = 32;

#[inline(always)]
fn replay_body(theta: &mut [f32], flows: &mut [f32], history: &VecDeque<Past>, from: usize) {
    let units = theta.len();
    let whole = units / TOGETHER * TOGETHER;
    for at in (0..whole).step_by(TOGETHER) {
        let block = at..at + TOGETHER;
        let (theta, flows) = (&mut theta[block.clone()], &mut flows[block.clone()]);
        // Most words of a vocabulary have not been seen for long, and their momentum is gone: then only θ moves.
        if flows.iter().all(|&f| f == 0.0) {
            replay_block::<false>(theta, flows, history, from, block);
        } else {
            replay_block::<true>(theta, flows, history, from, block);
        }
    }
    for past in history.range(from..) {
        let Moves { keep, take, add } = &past.moves;
        for i in whole..units {
            (theta[i], flows[i]) = replayed(theta[i], flows[i], past.decay, keep[i], take[i], add[i]);
        }
    }
}

/// Replays `TOGETHER` units. Without momentum, take·F is a zero that need not be computed to be added.
#[inline(always)]
fn replay_block<const MOMENTUM: bool>(
    theta: &mut [f32],
    flows: &mut [f32],
    history: &VecDeque<Past>,
    from: usize,
    block: Range<usize>,
) {
    let (mut p, mut f) = ([0f32; TOGETHER], [0f32; TOGETHER]);
    p.copy_from_slice(theta);
    f.copy_from_slice(flows);
    for past in history.range(from..) {
        let (keep, take) = (&past.moves.keep[block.clone()], &past.moves.take[block.clone()]);
        let add = &past.moves.add[block.clone()];
        for i in 0..TOGETHER {
            if MOMENTUM {
                (p[i], f[i]) = replayed(p[i], f[i], past.decay, keep[i], take[i], add[i]);
            } else {
                p[i] = keep[i] * p[i] + add[i];
            }
        }
    }
    theta.copy_from_slice(&p);
    flows.copy_from_slice(&f);
}

/// One update of one number that no row of the batch touched.
#[inline(always)]
fn replayed(theta: f32, flow: f32, decay: f32, keep: f32, take: f32, add: f32) -> (f32, f32) {
    let flow = kept(decay, flow);
    (keep * theta + (take * flow + add), flow)
}
