//! One micro-batch through the circuit: forwards, backwards with flows and updates on the way, then what is shared.

use std::ops::Range;
use std::sync::PoisonError;

use super::forward::Pass;
use super::gather::{Gather, flow_row};
use super::kernels::multiversion;
use super::scratch::{Phase, Scratch};
use super::stages::{ParamTask, Stages};
use super::tile::{Tile, TileState};
use super::turns::{Direction, Turn, Turns};
use super::workers::Workers;
use super::{backward, forward, statistics, tables, weights};
use crate::circuit::{ParamId, ParamKind};
use crate::plan::Buffer;

/// About how many occurrences of categories one task gathers.
const OCCURRENCES: usize = 4096;

/// A pass, the order of work, and who works.
#[derive(Clone, Copy)]
pub(super) struct Engine<'a> {
    pub pass: Pass<'a>,
    pub stages: &'a Stages,
    pub workers: &'a Workers,
}

impl<'a> Engine<'a> {
    /// Runs a pass on all workers.
    fn run(&self, direction: Direction, num_tiles: usize, act: impl Fn(&Turn, &mut Scratch) + Sync) {
        let turns = Turns::new(self.stages, direction, num_tiles, self.workers.count());
        self.workers.broadcast(|worker, scratch| {
            scratch.packs.clear();
            turns.work(worker, |turn| {
                scratch.clock.start();
                act(turn, scratch);
            });
        });
    }

    /// Values of all nodes and the log-likelihoods of all rows.
    pub fn forward(&self, tiles: &[Tile]) {
        self.run(Direction::Forward, tiles.len(), |turn, scratch| {
            let Turn::Stage { tile, stage, last, .. } = *turn else { return };
            let tile = &tiles[tile];
            let state = &mut *lock(tile);
            for step in &self.pass.plan.steps[self.stages.steps[stage].clone()] {
                forward::forward(self.pass, tile, state, scratch, step);
            }
            if last {
                forward::finish(self.pass, tile, state);
            }
            scratch.clock.lap(Phase::Forward);
        });
    }

    /// Flows of all nodes and of the blocks that one node uses; in a fused step also their update.
    pub fn backward(&self, gather: Gather<'_>, root_flow: impl Fn(usize) -> f32 + Sync) {
        let tiles = gather.tiles;
        self.run(Direction::Backward, tiles.len(), |turn, scratch| match turn {
            Turn::Stage { tile, stage, first, last } => {
                let tile = &tiles[*tile];
                let state = &mut *lock(tile);
                if *first {
                    backward::start(self.pass, tile, state, &root_flow);
                }
                self.stage_backward(tile, state, scratch, *stage);
                scratch.clock.lap(Phase::Backward);
                if *last {
                    self.finish_sums(state, scratch);
                    scratch.clock.lap(Phase::Flows);
                }
            }
            Turn::Params { task, .. } => match &self.pass.circuit.params()[task.param.index()].kind {
                ParamKind::Sum { .. } => weights::run(gather, task, scratch),
                ParamKind::Input(_) => tables::run(gather, task.param, scratch),
            },
        });
    }

    /// Values and flows of all nodes, tile by tile: each goes forwards and back before the next of its lane begins. For
    /// circuits that release nothing on the way.
    pub fn round_trip(&self, lanes: Vec<&mut [Tile]>, root_flow: impl Fn(usize) -> f32 + Sync) {
        self.workers.for_each(lanes, |lane, scratch| {
            for i in 0..lane.len() {
                if let [.., before, next] = &mut lane[..=i] {
                    next.take_over(before);
                }
                lane[i].prepare_values(self.pass.plan);
                let tile = &lane[i];
                let state = &mut *lock(tile);
                for step in &self.pass.plan.steps {
                    forward::forward(self.pass, tile, state, scratch, step);
                }
                forward::finish(self.pass, tile, state);
                scratch.clock.lap(Phase::Forward);
                backward::start(self.pass, tile, state, &root_flow);
                for stage in (0..self.stages.steps.len()).rev() {
                    self.stage_backward(tile, state, scratch, stage);
                }
                scratch.clock.lap(Phase::Backward);
            }
            if let Some(last) = lane.last() {
                // What still waits is multiplied here, where all lanes are at work.
                let state = &mut *lock(last);
                self.finish_sums(state, scratch);
                scratch.clock.lap(Phase::Flows);
            }
        });
    }

    fn stage_backward(&self, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, stage: usize) {
        for step in self.pass.plan.steps[self.stages.steps[stage].clone()].iter().rev() {
            backward::backward(self.pass, tile, state, scratch, step, &self.stages.tied);
        }
        for &(table, buffer) in &self.stages.completed[stage] {
            add_occupancy(self.pass.isa, tile, state, table, buffer);
        }
    }

    /// Flows, and in a fused step the update, of the blocks that several nodes share, but for large tables.
    pub fn shared_blocks(&self, gather: Gather<'_>) {
        for &param in &self.stages.shared {
            let block = &self.pass.circuit.params()[param.index()];
            match &block.kind {
                ParamKind::Sum { cols } => {
                    let index = self.stages.tied[param.index()].expect("weights that several nodes share");
                    let rows_per_task = (32_768 / cols).max(1);
                    let tasks = crate::backend::micro_batch::pieces(block.units, rows_per_task).collect();
                    self.workers.for_each(tasks, |rows: Range<usize>, scratch| {
                        self.tied_total(gather.tiles, index, rows.clone(), *cols, scratch);
                        scratch.clock.lap(Phase::Flows);
                        let Scratch { single, top_down, .. } = scratch;
                        weights::apply(gather, &ParamTask { param, rows }, single, top_down);
                        scratch.clock.lap(Phase::Update);
                    });
                }
                ParamKind::Input(distribution) if distribution.is_table() => {
                    self.workers.for_each(vec![param], |param, scratch| tables::run(gather, param, scratch));
                }
                ParamKind::Input(_) => {
                    self.workers.for_each(vec![param], |param, scratch| statistics::run(gather, param, scratch));
                }
            }
        }
    }

    /// Multiplies what still waits for the sums of a tile.
    fn finish_sums(&self, state: &mut TileState, scratch: &mut Scratch) {
        for flows in &mut state.tied {
            flows.sums.finish(self.pass.arithmetic, &mut scratch.flow);
        }
    }

    /// Some rows of Gᵀ·values of a block, over all lanes in their order, into `scratch.single`.
    fn tied_total(&self, tiles: &[Tile], index: usize, rows: Range<usize>, cols: usize, scratch: &mut Scratch) {
        let total = &mut scratch.double;
        total.clear();
        total.resize(rows.len() * cols, 0.0);
        for tile in tiles {
            // Only the last tile of a lane has the lane's sums.
            if let Some(flows) = lock(tile).tied.get(index) {
                flows.sums.add_to(rows.clone(), total);
            }
        }
        scratch.single.clear();
        scratch.single.extend(total.iter().map(|&sum| sum as f32));
    }

    /// Flows of a large table, when it is not updated at once.
    pub fn large_table(&self, gather: Gather<'_>, param: ParamId, sorted: &tables::SortedRows) {
        let missing =
            self.workers.with_scratch(0, |scratch| tables::missing_flow(gather, param, sorted, &mut scratch.columns));
        // Where every row decays, few occurrences are work enough for a task.
        let occurrences = if gather.keep == 1.0 { OCCURRENCES } else { OCCURRENCES / 8 };
        self.workers.for_each(sorted.ranges(occurrences), |cats, scratch| {
            tables::add_range(gather, param, sorted, cats, &missing, scratch);
            scratch.clock.lap(Phase::Flows);
        });
    }
}

/// The state of a tile that this thread was given.
pub(super) fn lock(tile: &Tile) -> std::sync::MutexGuard<'_, TileState> {
    tile.state.lock().unwrap_or_else(PoisonError::into_inner)
}

multiversion! {
    fn add_occupancy(tile: &Tile, state: &mut TileState, table: usize, buffer: Buffer) = occupancy_sum;
}

/// Adds the flow of a large table's units over the rows of a tile, while it is in the cache.
#[inline(always)]
fn occupancy_sum(tile: &Tile, state: &mut TileState, table: usize, buffer: Buffer) {
    let TileState { product, occupancy, .. } = state;
    if product.len() < buffer.units {
        product.resize(buffer.units, 0.0); // a panel may be narrower than a table
    }
    let sums = &mut product[..buffer.units]; // free until the next sum
    sums.fill(0.0);
    for row in 0..tile.rows.len() {
        // SAFETY: all contributions to the buffer are in, and the tile is this thread's.
        let row = unsafe { flow_row(tile, buffer, row) };
        sums.iter_mut().zip(row).for_each(|(sum, flow)| *sum += flow);
    }
    let into = &mut occupancy[table];
    into.resize(buffer.units, 0.0);
    into.iter_mut().zip(sums.iter()).for_each(|(total, &sum)| *total += f64::from(sum));
}
