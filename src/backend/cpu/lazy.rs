//! Large tables, of which a batch touches few rows: the others are updated when they are next needed.
//!
//! A row of a table (one category, all units) that a batch does not touch moves all the same: its momentum decays, and
//! θ' = keep·θ + take·F + add with coefficients that are those of the whole table. So the coefficients of past updates
//! are kept, and a row is brought up to date by replaying the updates that it missed, one by one, in registers: the
//! very operations, in the very order, that a dense update would have made. Nothing depends on *when* a row is brought
//! up to date, not even the last bit, so a checkpoint may be taken at any time. A part of the table is brought up to
//! date at every update, so that nobody falls back further than the history reaches. An average of the parameters is
//! one more entry of the history: a row is averaged as it was then, when it gets there.

use std::collections::VecDeque;
use std::ops::Range;

use super::average::averaged;
use super::gather::kept;
use super::kernels::{Isa, multiversion, prefetch};
use super::shared::SharedSlice;
use super::tables::Moves;
use crate::backend::micro_batch::pieces;
use crate::circuit::ParamId;

/// Updates after which every row has been brought up to date once: the length of the history.
const SWEEP: usize = 32;

/// A table whose rows are updated when they are needed.
#[derive(Clone)]
pub(super) struct LazyTable {
    pub param: ParamId,
    /// For each category, how many entries of the history its row has seen.
    seen: Vec<u64>,
    /// Entries made.
    entries: u64,
    /// The last entries, the newest at the back.
    history: VecDeque<Past>,
    /// Updates among them; the others are averages.
    updates: usize,
    /// Where the sweep goes on.
    sweep: usize,
}

/// What has happened to the whole table.
#[derive(Clone, Debug)]
enum Past {
    /// F ← decay·F, then θ moves.
    Update { decay: f32, moves: Moves },
    /// θ̄ ← θ̄ + weight·(θ − θ̄).
    Average { weight: f32 },
}

/// A table's parameters, momentum flows and averaged parameters, `[cats × units]`. Without an average there is no entry
/// that reads one.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    pub theta: SharedSlice<'a, f32>,
    pub flows: SharedSlice<'a, f32>,
    pub average: Option<SharedSlice<'a, f32>>,
    pub units: usize,
}

/// Part of a row of the cells; `average` is empty where there is none.
struct Row<'a> {
    theta: &'a mut [f32],
    flows: &'a mut [f32],
    average: &'a mut [f32],
}

impl LazyTable {
    pub fn new(param: ParamId, cats: usize) -> Self {
        Self { param, seen: vec![0; cats], entries: 0, history: VecDeque::new(), updates: 0, sweep: 0 }
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
        // SAFETY: nobody else looks at these rows, which the caller has promised; of one row there is one `Row` at a
        // time, but for the next, which is another row.
        let row_of = |category: usize| unsafe {
            let row = category * cells.units..(category + 1) * cells.units;
            let average = cells.average.map_or(&mut [][..], |average| average.get_mut(row.clone()));
            Row { theta: cells.theta.get_mut(row.clone()), flows: cells.flows.get_mut(row), average }
        };
        let behind = |&category: &usize| (category, (self.entries - self.seen[category]) as usize);
        let behind: Vec<(usize, usize)> = categories.iter().map(behind).filter(|(_, missed)| *missed > 0).collect();
        for block in pieces(cells.units, TOGETHER) {
            for (i, &(category, missed)) in behind.iter().enumerate() {
                // Rows lie anywhere; the first block of units comes upon them, and later ones find them in a cache.
                if let Some(&(next, _)) = behind.get(i + 1).filter(|_| block.start == 0) {
                    let next = row_of(next);
                    prefetch(next.theta);
                    prefetch(next.flows);
                }
                let Row { theta, flows, average } = row_of(category);
                let average = average.get_mut(block.clone()).unwrap_or_default();
                let part = Row { theta: &mut theta[block.clone()], flows: &mut flows[block.clone()], average };
                replay_part(isa, part, &self.history, self.history.len() - missed, block.start);
            }
        }
    }

    /// Notes that rows are up to date.
    pub fn caught_up(&mut self, categories: &[usize]) {
        categories.iter().for_each(|&category| self.seen[category] = self.entries);
    }

    /// Notes an update that touched rows have seen and others have not. The sweep has been made before.
    pub fn updated(&mut self, decay: f32, moves: Moves, touched: impl Iterator<Item = usize>) {
        let swept = self.next_sweep();
        self.sweep = if swept.end == self.seen.len() { 0 } else { swept.end };
        self.push(Past::Update { decay, moves });
        self.updates += 1;
        touched.for_each(|category| self.seen[category] = self.entries);
        while self.updates > SWEEP + 1
            && let Some(past) = self.history.pop_front()
        {
            self.updates -= usize::from(matches!(past, Past::Update { .. }));
        }
    }

    /// Notes an average, which no row has seen.
    pub fn averaged(&mut self, weight: f32) {
        self.push(Past::Average { weight });
    }

    fn push(&mut self, past: Past) {
        self.entries += 1;
        self.history.push_back(past);
    }

    /// Forgets the past: all rows are up to date.
    pub fn reset(&mut self) {
        self.seen.fill(self.entries);
        self.history.clear();
        self.updates = 0;
    }
}

multiversion! {
    /// Replays part of a row: the units from `first` on.
    fn replay_part(row: Row<'_>, history: &VecDeque<Past>, from: usize, first: usize) = replay_body;
}

/// Units that are replayed together, in registers: enough chains of dependent operations to keep the processor busy.
/// All rows are brought up to date for these units before the next: their share of the history then stays in the first
/// cache.
const TOGETHER: usize = 64;

#[inline(always)]
fn replay_body(row: Row<'_>, history: &VecDeque<Past>, from: usize, first: usize) {
    // Most words of a vocabulary have not been seen for long, and their momentum is gone: then only θ moves.
    let is_still = row.flows.iter().all(|&f| f == 0.0);
    let Row { theta, flows, mut average } = row;
    match theta.len() {
        TOGETHER if is_still => replay_block::<TOGETHER, false>(Row { theta, flows, average }, history, from, first),
        HALF if is_still => replay_block::<HALF, false>(Row { theta, flows, average }, history, from, first),
        TOGETHER | HALF => {
            let halves = theta.chunks_exact_mut(HALF).zip(flows.chunks_exact_mut(HALF)).zip((first..).step_by(HALF));
            for ((theta, flows), first) in halves {
                let average = average.split_off_mut(..HALF).unwrap_or_default();
                replay_block::<HALF, true>(Row { theta, flows, average }, history, from, first);
            }
        }
        _ => {
            for past in history.range(from..) {
                match past {
                    Past::Update { decay, moves: Moves { keep, take, add } } => {
                        for (i, (p, f)) in (first..).zip(theta.iter_mut().zip(flows.iter_mut())) {
                            (*p, *f) = replayed(*p, *f, *decay, keep[i], take[i], add[i]);
                        }
                    }
                    Past::Average { weight } => average_part(average, theta, *weight),
                }
            }
        }
    }
}

/// θ̄ of part of a row.
#[inline(always)]
fn average_part(average: &mut [f32], theta: &[f32], weight: f32) {
    average.iter_mut().zip(theta).for_each(|(average, &theta)| *average = averaged(*average, theta, weight));
}

/// With momentum there are twice as many numbers to keep.
const HALF: usize = TOGETHER / 2;

/// Replays `N` units in registers. Without momentum, take·F is a zero that need not be computed to be added.
#[inline(always)]
fn replay_block<const N: usize, const MOMENTUM: bool>(
    Row { theta, flows, average }: Row<'_>,
    history: &VecDeque<Past>,
    from: usize,
    first: usize,
) {
    let (mut p, mut f) = ([0f32; N], [0f32; N]);
    p.copy_from_slice(theta);
    f.copy_from_slice(flows);
    let block = first..first + N;
    for past in history.range(from..) {
        let (decay, moves) = match past {
            Past::Update { decay, moves } => (*decay, moves),
            Past::Average { weight } => {
                average_part(average, &p, *weight); // few and far between: θ̄ stays in memory
                continue;
            }
        };
        let (keep, take) = (&moves.keep[block.clone()], &moves.take[block.clone()]);
        let add = &moves.add[block.clone()];
        for i in 0..N {
            if MOMENTUM {
                (p[i], f[i]) = replayed(p[i], f[i], decay, keep[i], take[i], add[i]);
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
