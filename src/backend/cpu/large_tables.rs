//! Large tables in a fused step: touched rows before the pass, their update after it, and everybody on demand.

use super::engine::{Engine, lock};
use super::fixed::Fixed;
use super::gather::{Fused, Gather, LEAST_MOMENTUM};
use super::kernels::prefetch;
use super::lazy::{Cells, LazyTable};
use super::scratch::Phase;
use super::shared::SharedSlice;
use super::tables::{Moves, SortedRows, add_and_move, segment};
use super::workers::Workers;
use crate::circuit::Circuit;

/// Occurrences of categories that one task updates.
const OCCURRENCES: usize = 1024;

/// Categories that one task brings up to date: few, because those of the sweep have missed many updates and lie
/// together.
const CATEGORIES: usize = 64;

/// What rows of large tables lag in: parameters, momentum flows, and averaged parameters where there are any.
#[derive(Clone, Copy)]
pub(super) struct Lagging<'a> {
    pub theta: SharedSlice<'a, f32>,
    pub flows: SharedSlice<'a, f32>,
    pub average: Option<SharedSlice<'a, f32>>,
}

pub(super) fn cells<'a>(circuit: &Circuit, lagging: Lagging<'a>, table: &LazyTable) -> Cells<'a> {
    let layout = circuit.layout().block(table.param);
    Cells {
        theta: lagging.theta.part(layout.values.clone()),
        flows: lagging.flows.part(layout.stats.clone()),
        average: lagging.average.map(|average| average.part(layout.values.clone())),
        units: layout.units(),
    }
}

/// Brings the rows up to date that a batch touches, and those of the sweep.
pub(super) fn catch_up(
    fixed: &Fixed,
    workers: &Workers,
    lagging: Lagging<'_>,
    table: &mut LazyTable,
    is_touched: impl Fn(usize) -> bool,
) {
    if !table.is_behind() {
        return;
    }
    let sweep = table.next_sweep();
    let is_wanted = |category: &usize| is_touched(*category) || sweep.contains(category);
    let wanted: Vec<usize> = (0..table.num_cats()).filter(is_wanted).collect();
    replay(fixed, workers, lagging, table, &wanted);
    table.caught_up(&wanted);
}

/// Brings all rows of all tables up to date.
pub(super) fn settle(fixed: &Fixed, workers: &Workers, lagging: Lagging<'_>, tables: &mut [LazyTable]) {
    for table in tables.iter_mut().filter(|table| table.is_behind()) {
        replay(fixed, workers, lagging, table, &(0..table.num_cats()).collect::<Vec<_>>());
        table.reset();
    }
}

fn replay(fixed: &Fixed, workers: &Workers, lagging: Lagging<'_>, table: &LazyTable, categories: &[usize]) {
    let cells = cells(&fixed.circuit, lagging, table);
    workers.for_each(categories.chunks(CATEGORIES).collect(), |categories, scratch| {
        // SAFETY: a category belongs to one task, and no pass is under way.
        unsafe { table.replay(fixed.isa, cells, categories) };
        scratch.clock.lap(Phase::Update);
    });
}

/// What momentum keeps of the masses of a table's flows.
pub(super) fn decay(masses: &mut [f64], keep: f64) {
    masses.iter_mut().for_each(|mass| *mass = if keep == 0.0 { 0.0 } else { keep * *mass });
}

/// What is dropped of the flows as it decays is dropped of their mass: else a unit that has none left would be updated
/// with nothing.
pub(super) fn drop_negligible(masses: &mut [f64], cats: usize) {
    let dropped = cats as f64 * f64::from(LEAST_MOMENTUM);
    masses.iter_mut().filter(|mass| **mass < dropped).for_each(|mass| *mass = 0.0);
}

/// Updates the rows that a batch has touched, and notes the update for all others.
///
/// The mass of a unit's flows is not added up over the vocabulary: what a batch adds to it is the unit's own flow.
pub(super) fn update_large_table<'a>(
    engine: Engine<'a>,
    gather: Gather<'a>,
    fused: Fused<'a>,
    lagging: Lagging<'a>,
    table: &mut LazyTable,
    touched: &SortedRows,
) {
    let isa = engine.pass.isa;
    let layout = engine.pass.circuit.layout().block(table.param);
    let (units, cats) = (layout.units(), table.num_cats());
    let index = engine.stages.large_tables.iter().position(|&param| param == table.param);
    let index = index.expect("a large table of this circuit");
    // SAFETY: the masses of this table's rows belong to whoever updates it, and that is here.
    let masses = unsafe { fused.masses.get_mut(layout.rows.clone()) };
    let keep = f64::from(gather.keep);
    decay(masses, keep);
    for tile in gather.tiles {
        // Only the last tile of a lane has the lane's sums.
        let state = lock(tile);
        masses.iter_mut().zip(state.occupancy.get(index).into_iter().flatten()).for_each(|(mass, flow)| *mass += flow);
    }
    drop_negligible(masses, cats);
    let mut top_down = Vec::new();
    gather.top_down(table.param, &mut top_down);
    let mut moves = Moves::default();
    // Rows of θ sum to one; what rounding adds to that does not grow, because every update retains less than all of it.
    moves.set(units, |unit| fused.rule.of_table(1.0, masses[unit], top_down[unit], cats));

    let cells = cells(engine.pass.circuit, lagging, table);
    engine.workers.for_each(touched.ranges(OCCURRENCES), |range, scratch| {
        let mut categories = range.filter(|&category| !touched.of(category).is_empty()).peekable();
        while let Some(category) = categories.next() {
            if let Some(&next) = categories.peek() {
                let row = next * units..(next + 1) * units;
                // SAFETY: the next category is this task's too.
                let (theta, flows) = unsafe { (cells.theta.get(row.clone()), cells.flows.get(row)) };
                prefetch(theta);
                prefetch(flows);
            }
            let segment = segment(gather, table.param, touched.of(category), &mut scratch.columns);
            let row = category * units..(category + 1) * units;
            // SAFETY: a category belongs to one task, and no pass is under way.
            let (theta, flows) = unsafe { (cells.theta.get_mut(row.clone()), cells.flows.get_mut(row)) };
            add_and_move(isa, theta, flows, segment, gather.keep, &moves);
        }
        scratch.clock.lap(Phase::Update);
    });
    let touched = (0..cats).filter(|&category| !touched.of(category).is_empty());
    table.updated(gather.keep, moves, touched);
}
