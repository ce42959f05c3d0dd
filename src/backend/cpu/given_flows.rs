//! An EM step from flows that are known already: the sum over the ranks of a cluster.
//!
//! What a fused step does after its flows are in, without a batch: momentum, masses and update of a block while it is
//! in a cache, and of large tables only the rows that have flows; all others get their entry in the history (`lazy`)
//! and need no flows from anybody. The masses of a large table grow by the sum of the given rows.

use std::ops::Range;

use rayon::prelude::*;

use super::CpuBackend;
use super::buffers::FlowBuffer;
use super::fixed::Fixed;
use super::gather::MoveRule;
use super::kernels::{Isa, multiversion, prefetch};
use super::large_tables::{Lagging, catch_up, cells, decay, drop_negligible};
use super::lazy::LazyTable;
use super::moving::Unsettled;
use super::scratch::Phase;
use super::shared::SharedSlice;
use super::tables::{Moves, add_and_move, update_given};
use super::weights::add_given_and_move;
use super::workers::Workers;
use super::{statistics, update};
use crate::backend::EmStep;
use crate::circuit::{BlockLayout, Layout, ParamKind};
use crate::error::{Error, Result};

/// Flows of some stretches of a buffer, by block.
pub(super) struct GivenFlows<'a> {
    blocks: Vec<BlockFlows<'a>>,
}

/// Those of a block: stretches of it, from its first statistic on, and their numbers one after the other.
struct BlockFlows<'a> {
    spans: Vec<Range<usize>>,
    numbers: &'a [f32],
    len: usize,
}

impl<'a> GivenFlows<'a> {
    /// Spans are in order and within the layout.
    pub fn new(layout: &Layout, spans: &[Range<usize>], numbers: &'a [f32]) -> Result<Self> {
        let is_sorted = spans.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let fits = spans.iter().all(|span| span.start <= span.end && span.end <= layout.num_stats());
        if !is_sorted || !fits || spans.iter().map(Range::len).sum::<usize>() != numbers.len() {
            return Err(Error::internal("given flows do not fit their buffer"));
        }
        let (mut rest, mut next) = (numbers, 0);
        let of_block = |block: &BlockLayout| {
            let stats = &block.stats;
            let mut own = Vec::new();
            // A span may reach over several blocks.
            while let Some(span) = spans.get(next).filter(|span| span.start < stats.end) {
                let (start, end) = (span.start.max(stats.start), span.end.min(stats.end));
                if start < end {
                    own.push(start - stats.start..end - stats.start);
                }
                if span.end > stats.end {
                    break;
                }
                next += 1;
            }
            let numbers = rest.split_off(..own.iter().map(Range::len).sum()).expect("as many as the spans are long");
            BlockFlows { spans: own, numbers, len: stats.len() }
        };
        Ok(Self { blocks: layout.blocks().iter().map(of_block).collect() })
    }
}

impl BlockFlows<'_> {
    /// All flows of the block, with zeros where none are given.
    fn whole(&self) -> std::borrow::Cow<'_, [f32]> {
        if self.numbers.len() == self.len {
            return self.numbers.into();
        }
        let mut whole = vec![0.0; self.len];
        let mut rest = self.numbers;
        for span in &self.spans {
            whole[span.clone()].copy_from_slice(rest.split_off(..span.len()).expect("as many as the spans are long"));
        }
        whole.into()
    }

    /// The categories of a table that flows are given of, and each one's flows.
    fn categories(&self, units: usize) -> Result<(Vec<usize>, std::slice::ChunksExact<'_, f32>)> {
        if self.spans.iter().any(|span| span.start % units != 0 || span.end % units != 0) {
            return Err(Error::internal("flows of a large table are given by whole categories"));
        }
        let categories = self.spans.iter().flat_map(|span| span.start / units..span.end / units).collect();
        Ok((categories, self.numbers.chunks_exact(units)))
    }
}

impl CpuBackend {
    /// flows ← keep·flows + given, then θ' by the step. `masses` and `top_down` are row buffers.
    pub(super) fn step_with(
        &mut self,
        step: &EmStep,
        target: usize,
        [masses, top_down]: [usize; 2],
        given: &GivenFlows<'_>,
    ) -> Result<()> {
        let Self { fixed, workers, moving, packed, rows, .. } = self;
        let (fixed, workers) = (&**fixed, &**workers);
        moving.let_lag_in(target, fixed, workers);
        let Unsettled { theta, mut average, flows, tables, .. } = moving.unsettled();
        let FlowBuffer::Single(flows) = &mut flows[target] else {
            return Err(Error::internal("a step from given flows has momentum in single precision"));
        };
        let [masses, top_down] = rows.get_disjoint_mut([masses, top_down]).expect("two buffers of this backend");
        let rule = MoveRule::of(step);
        let keep = step.keep as f32;
        let layouts = fixed.circuit.layout().blocks();
        for table in tables.iter_mut() {
            let layout = &layouts[table.param.index()];
            let average = average.as_deref_mut().map(SharedSlice::new);
            let lagging = Lagging { theta: SharedSlice::new(theta), flows: SharedSlice::new(flows), average };
            let rows = TableRows { masses: &mut masses[layout.rows.clone()], top_down: &top_down[layout.rows.clone()] };
            let update = TableUpdate { fixed, workers, lagging, rule, keep };
            update.run(table, layout, rows, &given.blocks[table.param.index()])?;
        }
        let blocks = update::blocks(&fixed.circuit, theta);
        let mut rest = (&mut flows[..], &mut masses[..]);
        let blocks = blocks.into_iter().zip(&given.blocks).enumerate().map(|(at, ((layout, kind, theta), given))| {
            let flows = rest.0.split_off_mut(..layout.stats.len()).expect("blocks make up the buffer");
            let masses = rest.1.split_off_mut(..layout.rows.len()).expect("blocks make up the buffer");
            let is_large = tables.iter().any(|table| table.param.index() == at);
            (!is_large).then_some((layout, kind, theta, flows, masses, given))
        });
        let blocks: Vec<_> = blocks.flatten().collect();
        let isa = fixed.isa;
        blocks.into_par_iter().for_each(|(layout, kind, theta, flows, masses, given)| {
            let (given, top_down) = (given.whole(), &top_down[layout.rows.clone()]);
            match kind {
                ParamKind::Sum { cols } => {
                    let rows = theta.par_chunks_mut(cols * ROWS).zip(flows.par_chunks_mut(cols * ROWS));
                    let rows = rows.zip(given.par_chunks(cols * ROWS)).zip(masses.par_chunks_mut(ROWS));
                    rows.zip(top_down.par_chunks(ROWS)).for_each(|((((theta, flows), given), masses), top_down)| {
                        let mut move_row = |row: usize, theta: f64, flows: f64| {
                            masses[row] = flows;
                            rule.of_weights(theta, flows, top_down[row], *cols)
                        };
                        add_given_and_move(isa, theta, flows, given, keep, *cols, &mut move_row);
                    });
                }
                ParamKind::Input(distribution) if distribution.is_table() => {
                    update_given(isa, rule, layout, theta, flows, &given, keep, masses, top_down);
                }
                ParamKind::Input(distribution) => {
                    let cells = given.iter().map(|&stat| f64::from(stat)).enumerate();
                    statistics::add(flows, keep, cells);
                    statistics::update(rule, layout, &**distribution, theta, flows, masses, top_down);
                }
            }
        });
        packed.forget();
        Ok(())
    }
}

/// Rows of a weight matrix that one task updates.
const ROWS: usize = 64;

/// Row buffers of a large table.
struct TableRows<'a> {
    masses: &'a mut [f64],
    top_down: &'a [f64],
}

/// What an update of a large table needs.
struct TableUpdate<'a> {
    fixed: &'a Fixed,
    workers: &'a Workers,
    lagging: Lagging<'a>,
    rule: MoveRule,
    keep: f32,
}

/// Categories that one task updates.
const CATEGORIES: usize = 64;

impl TableUpdate<'_> {
    fn run(
        &self,
        table: &mut LazyTable,
        layout: &BlockLayout,
        rows: TableRows<'_>,
        given: &BlockFlows<'_>,
    ) -> Result<()> {
        let Self { fixed, workers, lagging, rule, keep } = *self;
        let (units, cats) = (layout.units(), table.num_cats());
        let (categories, numbers) = given.categories(units)?;
        let mut is_touched = vec![false; cats];
        categories.iter().for_each(|&category| is_touched[category] = true);
        catch_up(fixed, workers, lagging, table, |category| is_touched[category]);
        let TableRows { masses, top_down } = rows;
        decay(masses, f64::from(keep));
        add_columns(fixed.isa, given.numbers, masses);
        drop_negligible(masses, cats);
        let mut moves = Moves::default();
        // Rows of θ sum to one; what rounding adds to that does not grow, because every update retains less than all.
        moves.set(units, |unit| rule.of_table(1.0, masses[unit], top_down[unit], cats));
        let cells = cells(&fixed.circuit, lagging, table);
        let numbers: Vec<&[f32]> = numbers.collect();
        let tasks = categories.chunks(CATEGORIES).zip(numbers.chunks(CATEGORIES)).collect();
        workers.for_each(tasks, |(categories, numbers), scratch| {
            for (i, (&category, &numbers)) in categories.iter().zip(numbers).enumerate() {
                let row_of = |category: usize| category * units..(category + 1) * units;
                if let Some(&next) = categories.get(i + 1) {
                    // SAFETY: the next category is this task's too.
                    let (theta, flows) = unsafe { (cells.theta.get(row_of(next)), cells.flows.get(row_of(next))) };
                    prefetch(theta);
                    prefetch(flows);
                }
                // SAFETY: a category belongs to one task, and no pass is under way.
                let (theta, flows) =
                    unsafe { (cells.theta.get_mut(row_of(category)), cells.flows.get_mut(row_of(category))) };
                add_and_move(fixed.isa, theta, flows, numbers, keep, &moves);
            }
            scratch.clock.lap(Phase::Update);
        });
        table.updated(keep, moves, categories.into_iter());
        Ok(())
    }
}

/// Rows whose columns are added up by one task, in single precision for [`SINGLE_ROWS`] at a time.
const COLUMN_ROWS: usize = 1024;
const SINGLE_ROWS: usize = 64;

/// sums += the column sums of rows `[n × units]`: pieces in parallel, added up in their order.
fn add_columns(isa: Isa, rows: &[f32], sums: &mut [f64]) {
    let units = sums.len();
    let piece = |rows: &[f32]| {
        let mut sums = vec![0.0; units];
        rows.chunks(SINGLE_ROWS * units).for_each(|rows| column_sums(isa, rows, &mut sums));
        sums
    };
    let pieces: Vec<Vec<f64>> = rows.par_chunks(COLUMN_ROWS * units).map(piece).collect();
    for piece in pieces {
        sums.iter_mut().zip(piece).for_each(|(sum, piece)| *sum += piece);
    }
}

multiversion! {
    /// sums += the column sums of a few rows.
    fn column_sums(rows: &[f32], sums: &mut [f64]) = column_sums_body;
}

#[inline(always)]
fn column_sums_body(rows: &[f32], sums: &mut [f64]) {
    let units = sums.len();
    let mut single = vec![0f32; units];
    for row in rows.chunks_exact(units) {
        single.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums.iter_mut().zip(&single).for_each(|(sum, &x)| *sum += f64::from(x));
}
