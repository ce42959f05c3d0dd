//! Flows and update of tables: the flows of a category's occurrences, added up one category at a time.
//!
//! Occurrences are sorted by category, so that every row of a table has one owner and a large vocabulary costs only the
//! words that occur. A missing value flows to all categories, in proportion to θ.

use std::ops::Range;

use super::forward::Pass;
use super::gather::{Gather, MoveRule, Target, flow_row, kept};
use super::kernels::{Isa, multiversion, prefetch, rows_ahead};
use super::scratch::{Phase, Scratch};
use super::tile::{MISSING, Tile};
use crate::circuit::{BlockLayout, ParamId};
use crate::plan::Use;

/// Names a row of a flow buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowAt {
    usage: u32,
    tile: u16,
    row: u16,
}

/// The occurrences of a table's categories: counting sort, in the order of uses, tiles and rows.
#[derive(Debug, Default)]
pub(super) struct SortedRows {
    /// Where each category's occurrences start, and their end; `cats + 1` numbers.
    starts: Vec<u32>,
    rows: Vec<RowAt>,
    missing: Vec<RowAt>,
}

/// The occurrences of a category.
#[derive(Clone, Copy)]
pub(super) struct Occurrences<'a> {
    /// They, and what is added up after them: most words of a vocabulary occur once or twice, so that rows to be asked
    /// for ahead of time are mostly those of other words.
    rows: &'a [RowAt],
    count: usize,
}

impl Occurrences<'_> {
    pub fn is_empty(self) -> bool {
        self.count == 0
    }
}

impl SortedRows {
    /// The occurrences of a table's categories.
    pub fn of_table(pass: Pass<'_>, tiles: &[Tile], param: ParamId) -> Self {
        let mut sorted = Self::default();
        sorted.sort(pass, tiles, param);
        sorted
    }

    pub fn sort(&mut self, pass: Pass<'_>, tiles: &[Tile], param: ParamId) {
        let cats = pass.circuit.layout().block(param).stats_per_row;
        self.starts.clear();
        self.starts.resize(cats + 1, 0);
        self.missing.clear();
        let uses = &pass.plan.uses[param.index()];
        for used in uses {
            let Use::Input { var, .. } = *used else { continue };
            for tile in tiles {
                for &category in &tile.categories(var)[..tile.rows.len()] {
                    if category != MISSING {
                        self.starts[category as usize + 1] += 1;
                    }
                }
            }
        }
        for cat in 0..cats {
            self.starts[cat + 1] += self.starts[cat];
        }
        self.rows.clear();
        self.rows.resize(self.starts[cats] as usize, RowAt::default());
        for (usage, used) in uses.iter().enumerate() {
            let Use::Input { var, .. } = *used else { continue };
            for (c, tile) in tiles.iter().enumerate() {
                for (row, &category) in tile.categories(var)[..tile.rows.len()].iter().enumerate() {
                    let at = RowAt { usage: usage as u32, tile: c as u16, row: row as u16 };
                    if category == MISSING {
                        self.missing.push(at);
                    } else {
                        let place = &mut self.starts[category as usize];
                        self.rows[*place as usize] = at;
                        *place += 1;
                    }
                }
            }
        }
        // Every start has moved on to its category's end, which is the next one's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    pub fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    pub fn num_cats(&self) -> usize {
        self.starts.len() - 1
    }

    /// The occurrences of a category, and behind them those of all later ones.
    pub fn of(&self, category: usize) -> Occurrences<'_> {
        let (start, end) = (self.starts[category] as usize, self.starts[category + 1] as usize);
        Occurrences { rows: &self.rows[start..], count: end - start }
    }

    /// Returns true if a category occurs.
    pub fn has(&self, category: usize) -> bool {
        self.starts[category] < self.starts[category + 1]
    }

    /// The occurrences of missing values.
    fn of_missing(&self) -> Occurrences<'_> {
        Occurrences { rows: &self.missing, count: self.missing.len() }
    }

    /// Cuts all categories into ranges of about as many occurrences each.
    pub fn ranges(&self, occurrences: usize) -> Vec<Range<usize>> {
        let cats = self.num_cats();
        let mut ranges = Vec::new();
        let mut first = 0;
        while first < cats {
            let quota = self.starts[first] as usize + occurrences;
            let end = self.starts[first + 1..].partition_point(|&start| (start as usize) < quota);
            let end = (first + end + 1).min(cats);
            ranges.push(first..end);
            first = end;
        }
        ranges
    }
}

/// Occurrences that are added up in single precision before they join a sum in double precision.
const SINGLE_TERMS: usize = 256;

/// Categories whose columns are added up in single precision.
const SINGLE_CATS: usize = 64;

/// Sums over the columns of a table, and how its units move.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// Flow of one category.
    pub segment: Vec<f32>,
    segment_double: Vec<f64>,
    /// Sums of θ and of the flows over the categories since the last flush, and in all.
    single: [Vec<f32>; 2],
    double: [Vec<f64>; 2],
    /// θ' = keep·θ + take·F + add, by unit.
    pub moves: Moves,
}

/// Coefficients of an update of all units of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    pub keep: Vec<f32>,
    pub take: Vec<f32>,
    pub add: Vec<f32>,
}

impl Columns {
    fn prepare(&mut self, units: usize) {
        let Self { segment, single, double, .. } = self;
        segment.resize(units, 0.0);
        for sums in single {
            sums.clear();
            sums.resize(units, 0.0);
        }
        for sums in double {
            sums.clear();
            sums.resize(units, 0.0);
        }
    }

    fn flush(&mut self) {
        for (double, single) in self.double.iter_mut().zip(&mut self.single) {
            double.iter_mut().zip(single).for_each(|(d, s)| *d += f64::from(std::mem::take(s)));
        }
    }
}

multiversion! {
    /// segment = Σ of the flows of some occurrences.
    fn add_segment(
        gather: Gather<'_>, param: ParamId, occurrences: Occurrences<'_>, segment: &mut [f32], double: &mut Vec<f64>,
    ) = segment_sum;
    /// flows = keep·flows + segment + θ·missing; either of the last two may be empty.
    fn add_category(theta: &[f32], flows: &mut [f32], segment: &[f32], missing: &[f32], keep: f32) = category_sum;
    /// Adds θ and flows of a category to the sums over the columns of the table.
    fn add_columns(sums: &mut [Vec<f32>; 2], theta: &[f32], flows: &[f32]) = column_sum;
    /// θ' = keep·θ + take·F + add.
    pub(super) fn move_category(theta: &mut [f32], flows: &[f32], moves: &Moves) = category_move;
    /// flows = keep·flows + segment, and θ' = keep·θ + take·F + add.
    pub(super) fn add_and_move(theta: &mut [f32], flows: &mut [f32], segment: &[f32], keep: f32, moves: &Moves)
        = category_add_and_move;
}

#[inline(always)]
fn segment_sum(
    gather: Gather<'_>,
    param: ParamId,
    occurrences: Occurrences<'_>,
    segment: &mut [f32],
    double: &mut Vec<f64>,
) {
    let uses = &gather.pass.plan.uses[param.index()];
    let ahead = rows_ahead(segment.len());
    let Occurrences { rows, count } = occurrences;
    let flows_of = |at: &RowAt| match uses[at.usage as usize] {
        // SAFETY: every tile is done with the nodes that use the table, so their flows are final; they stay until this
        // is done.
        Use::Input { flow, .. } => unsafe { flow_row(&gather.tiles[at.tile as usize], flow, at.row as usize) },
        Use::Sum { .. } => unreachable!("a table is used by inputs"),
    };
    double.clear();
    for (i, at) in rows[..count].iter().enumerate() {
        if let Some(ahead) = rows.get(i + ahead) {
            prefetch(flows_of(ahead));
        }
        let row = flows_of(at);
        if i % SINGLE_TERMS > 0 {
            segment.iter_mut().zip(row).for_each(|(s, f)| *s += f);
            continue;
        }
        if i > 0 {
            double.resize(segment.len(), 0.0);
            double.iter_mut().zip(segment.iter()).for_each(|(d, &s)| *d += f64::from(s));
        }
        // A sum with zero, which changes nothing, instead of a copy: that would be a call.
        segment.iter_mut().zip(row).for_each(|(s, f)| *s = f + 0.0);
    }
    if !double.is_empty() {
        segment.iter_mut().zip(double.iter()).for_each(|(s, d)| *s = (f64::from(*s) + d) as f32);
    }
}

#[inline(always)]
fn category_sum(theta: &[f32], flows: &mut [f32], segment: &[f32], missing: &[f32], keep: f32) {
    if segment.is_empty() {
        flows.iter_mut().for_each(|f| *f = kept(keep, *f));
    } else {
        flows.iter_mut().zip(segment).for_each(|(f, s)| *f = kept(keep, *f) + s);
    }
    if !missing.is_empty() {
        flows.iter_mut().zip(theta).zip(missing).for_each(|((f, p), m)| *f += p * m);
    }
}

#[inline(always)]
fn column_sum([theta_sums, flow_sums]: &mut [Vec<f32>; 2], theta: &[f32], flows: &[f32]) {
    let sums = theta_sums.iter_mut().zip(flow_sums);
    for ((p, f), (theta_sum, flow_sum)) in theta.iter().zip(flows).zip(sums) {
        *theta_sum += p;
        *flow_sum += f;
    }
}

#[inline(always)]
fn category_move(theta: &mut [f32], flows: &[f32], moves: &Moves) {
    let moves = moves.keep.iter().zip(&moves.take).zip(&moves.add);
    for ((p, f), ((keep, take), add)) in theta.iter_mut().zip(flows).zip(moves) {
        *p = keep * *p + (take * f + add);
    }
}

#[inline(always)]
fn category_add_and_move(theta: &mut [f32], flows: &mut [f32], segment: &[f32], keep: f32, moves: &Moves) {
    let moves = moves.keep.iter().zip(&moves.take).zip(&moves.add);
    for (((p, f), s), ((retain, take), add)) in theta.iter_mut().zip(flows).zip(segment).zip(moves) {
        *f = kept(keep, *f) + s;
        *p = retain * *p + (take * *f + add);
    }
}

/// All of a table: its flows and, in a fused step, its update.
pub(super) fn run(gather: Gather<'_>, param: ParamId, scratch: &mut Scratch) {
    let mut sorted = std::mem::take(&mut scratch.sorted);
    sorted.sort(gather.pass, gather.tiles, param);
    let missing = missing_flow(gather, param, &sorted, &mut scratch.columns);
    add_range(gather, param, &sorted, 0..sorted.num_cats(), &missing, scratch);
    scratch.sorted = sorted;
    scratch.clock.lap(Phase::Flows);
    if gather.fused.is_some() {
        update(gather, param, scratch);
        scratch.clock.lap(Phase::Update);
    }
}

/// The sum of the flows of a category's occurrences.
pub(super) fn segment<'s>(
    gather: Gather<'_>,
    param: ParamId,
    occurrences: Occurrences<'_>,
    columns: &'s mut Columns,
) -> &'s [f32] {
    columns.segment.resize(gather.pass.circuit.params()[param.index()].units, 0.0);
    add_segment(gather.pass.isa, gather, param, occurrences, &mut columns.segment, &mut columns.segment_double);
    &columns.segment
}

/// The flow of all missing values, by unit; empty if there are none.
pub(super) fn missing_flow(gather: Gather<'_>, param: ParamId, sorted: &SortedRows, columns: &mut Columns) -> Vec<f32> {
    if sorted.has_missing() { segment(gather, param, sorted.of_missing(), columns).to_vec() } else { Vec::new() }
}

/// Adds the flows of some categories, and sums up their columns for an update.
pub(super) fn add_range(
    gather: Gather<'_>,
    param: ParamId,
    sorted: &SortedRows,
    cats: Range<usize>,
    missing: &[f32],
    scratch: &mut Scratch,
) {
    let isa = gather.pass.isa;
    let layout = gather.pass.circuit.layout().block(param);
    let units = layout.units();
    let columns = &mut scratch.columns;
    columns.prepare(units);
    for cat in cats {
        let cells = |start: usize| start + cat * units..start + (cat + 1) * units;
        // SAFETY: these categories belong to this task, and every tile is done with the table.
        let theta = unsafe { gather.pass.theta.get(cells(layout.values.start)) };
        let occurrences = sorted.of(cat);
        let columns = &mut scratch.columns;
        if !occurrences.is_empty() {
            add_segment(isa, gather, param, occurrences, &mut columns.segment, &mut columns.segment_double);
        }
        let segment = if occurrences.is_empty() { &[][..] } else { &columns.segment[..] };
        match gather.target {
            Target::Single(target) => {
                if occurrences.is_empty() && missing.is_empty() && gather.keep == 1.0 && gather.fused.is_none() {
                    continue;
                }
                // SAFETY: the flows of these categories belong to this task, as the categories do.
                let flows = unsafe { target.get_mut(cells(layout.stats.start)) };
                add_category(isa, theta, flows, segment, missing, gather.keep);
                if gather.fused.is_some() {
                    add_columns(isa, &mut columns.single, theta, flows);
                    if cat % SINGLE_CATS == SINGLE_CATS - 1 {
                        columns.flush();
                    }
                }
            }
            Target::Double(target) => {
                // SAFETY: the flows of these categories belong to this task, as the categories do.
                let flows = unsafe { target.get_mut(cells(layout.stats.start)) };
                flows.iter_mut().zip(segment).for_each(|(f, &s)| *f += f64::from(s));
                let terms = theta.iter().zip(missing);
                flows.iter_mut().zip(terms).for_each(|(f, (&p, &m))| *f += f64::from(p) * f64::from(m));
            }
        }
    }
    scratch.columns.flush();
}

/// Moves all categories of a table whose columns have just been summed up.
fn update(gather: Gather<'_>, param: ParamId, scratch: &mut Scratch) {
    let (Some(fused), Target::Single(target)) = (gather.fused, gather.target) else { return };
    let layout = gather.pass.circuit.layout().block(param);
    let units = layout.units();
    gather.top_down(param, &mut scratch.top_down);
    // SAFETY: the masses of the table's rows belong to this task.
    let masses = unsafe { fused.masses.get_mut(layout.rows.clone()) };
    let [theta_sums, flow_sums] = &scratch.columns.double;
    masses.copy_from_slice(flow_sums);
    let moves = &mut scratch.columns.moves;
    moves.set(units, |unit| {
        fused.rule.of_table(theta_sums[unit], flow_sums[unit], scratch.top_down[unit], layout.values_per_row)
    });
    for cat in 0..layout.values_per_row {
        let cells = |start: usize| start + cat * units..start + (cat + 1) * units;
        // SAFETY: the table belongs to this task, and every tile is done with it.
        let (theta, flows) =
            unsafe { (gather.theta.get_mut(cells(layout.values.start)), target.get(cells(layout.stats.start))) };
        move_category(gather.pass.isa, theta, flows, moves);
    }
}

/// flows = keep·flows + given of a whole table, its masses and its update.
#[allow(clippy::too_many_arguments)] // the parts of one block, and how it moves
pub(super) fn update_given(
    isa: Isa,
    rule: MoveRule,
    layout: &BlockLayout,
    theta: &mut [f32],
    flows: &mut [f32],
    given: &[f32],
    keep: f32,
    masses: &mut [f64],
    top_down: &[f64],
) {
    let (units, cats) = (layout.units(), layout.values_per_row);
    let mut columns = Columns::default();
    columns.prepare(units);
    let rows = theta.chunks_exact(units).zip(flows.chunks_exact_mut(units)).zip(given.chunks_exact(units));
    for (cat, ((theta, flows), given)) in rows.enumerate() {
        add_category(isa, theta, flows, given, &[], keep);
        add_columns(isa, &mut columns.single, theta, flows);
        if cat % SINGLE_CATS == SINGLE_CATS - 1 {
            columns.flush();
        }
    }
    columns.flush();
    let [theta_sums, flow_sums] = &columns.double;
    masses.copy_from_slice(flow_sums);
    columns.moves.set(units, |unit| rule.of_table(theta_sums[unit], flow_sums[unit], top_down[unit], cats));
    for (theta, flows) in theta.chunks_exact_mut(units).zip(flows.chunks_exact(units)) {
        move_category(isa, theta, flows, &columns.moves);
    }
}

impl Moves {
    /// Sets the coefficients of every unit; a unit without mass stays where it is.
    pub fn set(&mut self, units: usize, of: impl Fn(usize) -> Option<super::update::Coefficients>) {
        self.keep.clear();
        self.take.clear();
        self.add.clear();
        for unit in 0..units {
            let [keep, take, add] = of(unit).and_then(|c| c.single()).unwrap_or([1.0, 0.0, 0.0]);
            self.keep.push(keep);
            self.take.push(take);
            self.add.push(add);
        }
    }
}
