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

use super::buffers::tiles;
use super::gather::kept;
use super::kernels::{Isa, multiversion, prefetch};
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

    /// Brings rows up to date.
    ///
    /// # Safety
    /// Nobody else looks at these rows of the cells.
    pub unsafe fn replay(&self, isa: Isa, cells: Cells<'_>, categories: &[usize]) {
        // SAFETY: the caller's.
        let row_of = |category: usize| unsafe {
            let row = category * cells.units..(category + 1) * cells.units;
            (cells.theta.get_mut(row.clone()), cells.flows.get_mut(row))
        };
        let behind = |&category: &usize| (category, (self.updates - self.seen[category]) as usize);
        let behind: Vec<(usize, usize)> = categories.iter().map(behind).filter(|(_, missed)| *missed > 0).collect();
        for block in tiles(cells.units, TOGETHER) {
            for (i, &(category, missed)) in behind.iter().enumerate() {
                // Rows lie anywhere; the first block of units comes upon them, and later ones find them in a cache.
                if let Some(&(next, _)) = behind.get(i + 1).filter(|_| block.start == 0) {
                    let (theta, flows) = row_of(next);
                    prefetch(theta);
                    prefetch(flows);
                }
                let (theta, flows) = row_of(category);
                let from = self.history.len() - missed;
                replay_part(
                    isa,
                    &mut theta[block.clone()],
                    &mut flows[block.clone()],
                    &self.history,
                    from,
                    block.start,
                );
            }
        }
    }

    /// Notes that rows are up to date.
    pub fn caught_up(&mut self, categories: &[usize]) {
        categories.iter().for_each(|&category| self.seen[category] = self.updates);
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
    /// Replays part of a row: the units from `first` on.
    fn replay_part(theta: &mut [f32], flows: &mut [f32], history: &VecDeque<Past>, from: usize, first: usize) = replay_body;
}

/// Units that are replayed together, in registers: enough chains of dependent operations to keep the processor busy. All rows
/// are brought up to date for these units before the next: their share of the history then stays in the first cache.
const TOGETHER: usize = 64;

#[inline(always)]
fn replay_body(theta: &mut [f32], flows: &mut [f32], history: &VecDeque<Past>, from: usize, first: usize) {
    // Most words of a vocabulary have not been seen for long, and their momentum is gone: then only θ moves.
    let is_still = flows.iter().all(|&f| f == 0.0);
    match theta.len() {
        TOGETHER if is_still => replay_block::<TOGETHER, false>(theta, flows, history, from, first),
        HALF if is_still => replay_block::<HALF, false>(theta, flows, history, from, first),
        TOGETHER | HALF => {
            let halves = theta.chunks_exact_mut(HALF).zip(flows.chunks_exact_mut(HALF)).zip((first..).step_by(HALF));
            for ((theta, flows), first) in halves {
                replay_block::<HALF, true>(theta, flows, history, from, first);
            }
        }
        _ => {
            for past in history.range(from..) {
                let Moves { keep, take, add } = &past.moves;
                for (i, (p, f)) in (first..).zip(theta.iter_mut().zip(flows.iter_mut())) {
                    (*p, *f) = replayed(*p, *f, past.decay, keep[i], take[i], add[i]);
                }
            }
        }
    }
}

/// With momentum there are twice as many numbers to keep.
const HALF: usize = TOGETHER / 2;

/// Replays `N` units in registers. Without momentum, take·F is a zero that need not be computed to be added.
#[inline(always)]
fn replay_block<const N: usize, const MOMENTUM: bool>(
    theta: &mut [f32],
    flows: &mut [f32],
    history: &VecDeque<Past>,
    from: usize,
    first: usize,
) {
    let (mut p, mut f) = ([0f32; N], [0f32; N]);
    p.copy_from_slice(theta);
    f.copy_from_slice(flows);
    let block = first..first + N;
    for past in history.range(from..) {
        let (keep, take) = (&past.moves.keep[block.clone()], &past.moves.take[block.clone()]);
        let add = &past.moves.add[block.clone()];
        for i in 0..N {
            if MOMENTUM {
                (p[i], f[i]) = replayed(p[i], f[i], past.decay, keep[i], take[i], add[i]);
            } else {
                p[i] = keep[i] * p[i] + add[i];
            }
        }
    }
    theta.copy_from_slice(&p);
    if MOMENTUM {
        flows.copy_from_slice(&f);
    }
}

/// One update of one number that no row of the batch touched.
#[inline(always)]
fn replayed(theta: f32, flow: f32, decay: f32, keep: f32, take: f32, add: f32) -> (f32, f32) {
    let flow = kept(decay, flow);
    (keep * theta + (take * flow + add), flow)
}
