//! Flows of parameters, and in a fused step their update: what is done to a block once its tiles are done.
//!
//! Every number has one owner: a task owns some rows of a weight matrix, or a table, and adds up all uses and all tiles
//! in their order. No atomics, no races, and the same bits for any number of threads.

use super::engine::lock;
use super::forward::Pass;
use super::shared::SharedSlice;
use super::tile::Tile;
use super::update::Coefficients;
use crate::backend::{EmStep, RetainSource, RetainSources};
use crate::circuit::{ParamId, Smoothing};
use crate::plan::{Buffer, Use};

/// A flow buffer that tasks write to.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Single(SharedSlice<'a, f32>),
    Double(SharedSlice<'a, f64>),
}

/// What tasks share.
#[derive(Clone, Copy)]
pub(super) struct Gather<'a> {
    pub pass: Pass<'a>,
    pub tiles: &'a [Tile],
    /// The parameters, for the tasks that update them.
    pub theta: SharedSlice<'a, f32>,
    /// For weights that are shared, which accumulator of a tile is theirs; by block.
    pub tied: &'a [Option<usize>],
    /// Where flows go: target = keep·target + flows.
    pub target: Target<'a>,
    /// Single precision only; a target of double precision keeps all it has.
    pub keep: f32,
    /// The update that follows at once, if any.
    pub fused: Option<Fused<'a>>,
}

/// An update right after the flows of a block: θ' = normalise(retain·θ + gain·F).
#[derive(Clone, Copy)]
pub(super) struct Fused<'a> {
    /// Row masses of the flows, kept up with them.
    pub masses: SharedSlice<'a, f64>,
    pub rule: MoveRule,
}

/// How the rows of an update move: what an [`EmStep`] says of it.
#[derive(Clone, Copy)]
pub(super) struct MoveRule {
    sources: RetainSources,
    pub scale: f64,
    offset: f64,
    pub gain: f64,
    pub smoothing: Smoothing,
}

impl MoveRule {
    pub fn of(step: &EmStep) -> Self {
        let EmStep { sources, scale, offset, correction: gain, smoothing, .. } = *step;
        Self { sources, scale, offset, gain, smoothing }
    }

    /// How a row of weights moves whose parameters sum to `theta` and whose flows to `flows`.
    pub fn of_weights(&self, theta: f64, flows: f64, top_down: f64, len: usize) -> Option<Coefficients> {
        self.coefficients(self.retained(self.sources.sums, flows, top_down), theta, flows, len)
    }

    /// The same of a row of a table.
    pub fn of_table(&self, theta: f64, flows: f64, top_down: f64, len: usize) -> Option<Coefficients> {
        self.coefficients(self.retained_of_input(flows, top_down), theta, flows, len)
    }

    /// The mass that a row of an input retains, before `scale` and `offset`.
    pub fn retained_of_input(&self, flows: f64, top_down: f64) -> f64 {
        self.retained(self.sources.inputs, flows, top_down)
    }

    fn retained(&self, source: RetainSource, flows: f64, top_down: f64) -> f64 {
        match source {
            RetainSource::TopDown => top_down,
            RetainSource::Flows => flows * self.gain,
            RetainSource::Larger => top_down.max(flows * self.gain),
        }
    }

    fn coefficients(&self, retained: f64, theta: f64, flows: f64, len: usize) -> Option<Coefficients> {
        let retain = self.scale * (retained + self.offset);
        Coefficients::new(retain * theta + self.gain * flows, len, retain, self.gain, self.smoothing)
    }
}

impl<'a> Gather<'a> {
    /// The top-down probability of every unit of a block, summed over its uses: the flows of the marginal row.
    ///
    /// Called when the flows of all uses are complete.
    pub fn top_down(&self, param: ParamId, into: &mut Vec<f64>) {
        into.clear();
        into.resize(self.pass.circuit.params()[param.index()].units, 0.0);
        let Some(tile) = self.tiles.iter().find(|tile| tile.marginal) else { return };
        if let Some(index) = self.tied[param.index()] {
            into.copy_from_slice(&lock(tile).tied[index].top_down);
            return;
        }
        for used in &self.pass.plan.uses[param.index()] {
            let (buffer, start) = match used {
                Use::Sum { flow, .. } => {
                    flow.map(|view| (view.buffer, view.start)).expect("shared weights at the most go without")
                }
                Use::Input { flow, .. } => (*flow, 0),
            };
            // SAFETY: the flows of all uses are complete (see above), and rule 4 of `turns` keeps their memory from
            // other buffers until the tasks that read them are done.
            let row = unsafe { flow_row(tile, buffer, tile.rows.len()) };
            into.iter_mut().zip(&row[start..]).for_each(|(sum, &flow)| *sum += f64::from(flow));
        }
    }
}

/// What momentum keeps of a flow. A `keep` of 0 clears whatever was there, infinite or not a number, and 1 changes
/// nothing; in between what has become negligible is dropped, because numbers below the normal range are slow to
/// compute with and would never get to zero.
#[inline(always)]
pub(super) fn kept(keep: f32, flow: f32) -> f32 {
    if keep == 1.0 {
        flow
    } else if keep == 0.0 {
        0.0
    } else {
        let decayed = keep * flow;
        if decayed < LEAST_MOMENTUM { 0.0 } else { decayed }
    }
}

/// Momentum below this is dropped as it decays.
pub(super) const LEAST_MOMENTUM: f32 = 1e-30;

/// One row of a flow buffer.
///
/// # Safety
/// All contributions to the buffer are in, and its memory is not yet another's (`flow_memory`): a task of its stage is
/// not done, or the step that reads it.
pub(super) unsafe fn flow_row(tile: &Tile, buffer: Buffer, row: usize) -> &[f32] {
    // SAFETY: nobody writes to a buffer that is complete and still its own, which the caller has promised it is.
    unsafe { tile.flows.get(tile.row(buffer, row)) }
}
