//! A tile of rows and its working memory: values, flows and scales of every buffer in the plan.
//!
//! How rows are cut into tiles depends on the batch alone, so the bits do not depend on the number of threads; where
//! the cut does not show in the bits either, there are tiles for all threads and no more than that ([`lanes`]). Tiles
//! are independent of each other; within a tile the steps of the plan run one after the other, on whatever thread.
//! Values and flows are read by other threads as soon as they are final (`turns`).

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::kernels::Arithmetic;
use super::kernels::flow_sums::{FlowSums, SHORT_DEPTH};
use super::scaled::{NO_LOSS, Scale};
use super::shared::SharedBuffer;
use super::stages::Stages;
use crate::backend::micro_batch::pieces;
use crate::data::Batch;
use crate::plan::{Buffer, Plan, View};

/// Stands for the category of a missing value.
pub(super) const MISSING: u32 = u32::MAX;

/// Values, flows and scales of some rows of a batch.
pub(super) struct Tile {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Whether one more row follows in which every variable is missing: its flows are the top-down probabilities, and
    /// it adds nothing to the flows of parameters.
    pub marginal: bool,
    /// The category of each row in each variable, `[vars × rows]`; [`MISSING`] where there is none.
    categories: Vec<u32>,
    /// Value buffers; a sum's becomes G = flow/value in the backward pass.
    pub values: SharedBuffer<f32>,
    /// Flow buffers.
    pub flows: SharedBuffer<f32>,
    /// What only the thread that works on this tile looks at.
    pub state: Mutex<TileState>,
}

/// The part of a tile that belongs to whoever works on it.
#[derive(Default)]
pub(super) struct TileState {
    /// `[num_scales × rows]`.
    pub scales: Vec<Scale>,
    /// log p of each row.
    pub log_likelihoods: Vec<f64>,
    /// Rows that linear space cannot hold: they wait for `log_space` and take no part in this tile's flows.
    pub degenerate: Vec<bool>,
    /// A matrix product on its way into a flow buffer, `[rows × widest panel]`.
    pub product: Vec<f32>,
    /// The flow of the transient sum that comes next, in the marginal row.
    pub marginal_flow: Vec<f32>,
    /// Flows of the weights that several nodes share, summed over this tile's rows, or in a round trip over its lane's
    /// so far.
    pub tied: Vec<TiedFlows>,
    /// For each large table, the flow of its units, summed over the same rows.
    pub occupancy: Vec<Vec<f64>>,
}

/// Gᵀ·values of one block over the rows of a lane.
#[derive(Default)]
pub(super) struct TiedFlows {
    /// Flows of the marginal row, added up over the nodes: top-down probabilities. Zero where the lane has no such row.
    pub top_down: Vec<f64>,
    pub sums: FlowSums,
}

/// Rows of several nodes that are multiplied at once: more would leave the second cache no room for the weights.
const TIED_DEPTH: usize = 128;

impl TiedFlows {
    fn prepare(&mut self, arithmetic: Arithmetic, (rows, cols): (usize, usize)) {
        self.top_down.clear();
        self.top_down.resize(rows, 0.0);
        self.sums.prepare(arithmetic, rows, cols, TIED_DEPTH);
    }
}

impl Tile {
    pub fn new() -> Self {
        Self {
            rows: 0..0,
            marginal: false,
            categories: Vec::new(),
            values: SharedBuffer::default(),
            flows: SharedBuffer::default(),
            state: Mutex::default(),
        }
    }

    /// Takes on some rows. Old contents of buffers are not cleared: every pass writes before it reads.
    pub fn prepare(&mut self, plan: &Plan, batch: &Batch, rows: Range<usize>, marginal: bool, with_flows: bool) {
        (self.rows, self.marginal) = (rows, marginal);
        let count = self.num_rows();
        self.categories.clear();
        for var in 0..batch.num_vars() {
            let column = batch.column(var);
            let rows = self.rows.clone();
            self.categories.extend(rows.map(|row| match batch.is_missing(row, var) {
                true => MISSING,
                false => column.category(row).unwrap_or(MISSING), // real-valued columns are read elsewhere
            }));
            self.categories.extend(marginal.then_some(MISSING));
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.scales.resize(plan.num_scales * count, Scale { exponent: 0, loss: NO_LOSS });
        state.log_likelihoods.resize(count, 0.0);
        state.degenerate.clear();
        state.degenerate.resize(count, false);
        if with_flows {
            self.flows.prepare(plan.flow_units * count);
            state.product.resize(plan.widest_panel * count, 0.0);
        }
    }

    /// Makes room for the values of its rows.
    pub fn prepare_values(&mut self, plan: &Plan) {
        self.values.prepare(plan.value_units * self.num_rows());
    }

    /// Starts the sums over its rows at zero.
    pub fn prepare_sums(&mut self, stages: &Stages, arithmetic: Arithmetic) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tied.resize_with(stages.tied_shapes.len(), TiedFlows::default);
        state.tied.iter_mut().zip(&stages.tied_shapes).for_each(|(flows, &shape)| flows.prepare(arithmetic, shape));
        state.occupancy.resize_with(stages.large_tables.len(), Vec::new);
        state.occupancy.iter_mut().for_each(Vec::clear);
    }

    /// Goes on with the value buffers and the sums of a tile that is done with them: memory that is still in a cache.
    pub fn take_over(&mut self, before: &mut Self) {
        self.values = std::mem::take(&mut before.values);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let before = before.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tied = std::mem::take(&mut before.tied);
        state.occupancy = std::mem::take(&mut before.occupancy);
    }

    /// Rows, with the marginal one.
    pub fn num_rows(&self) -> usize {
        self.rows.len() + usize::from(self.marginal)
    }

    /// The categories of a variable, one a row.
    pub fn categories(&self, var: usize) -> &[u32] {
        &self.categories[var * self.num_rows()..][..self.num_rows()]
    }

    /// The value of a real-valued variable; `None` where it is missing.
    pub fn real(&self, batch: &Batch, row: usize, var: usize) -> Option<f64> {
        let missing = row >= self.rows.len() || batch.is_missing(self.rows.start + row, var);
        (!missing).then(|| batch.column(var).real(self.rows.start + row))
    }

    /// Where a buffer lies in `values` or `flows`.
    pub fn span(&self, buffer: Buffer) -> Range<usize> {
        let rows = self.num_rows();
        buffer.at * rows..(buffer.at + buffer.units) * rows
    }

    /// From the first number of a view to the last of its buffer; rows are `view.buffer.units` apart.
    pub fn view(&self, view: View) -> Range<usize> {
        let span = self.span(view.buffer);
        span.start + view.start..span.end
    }

    /// One row of a buffer.
    pub fn row(&self, buffer: Buffer, row: usize) -> Range<usize> {
        let start = buffer.at * self.num_rows() + row * buffer.units;
        start..start + buffer.units
    }

    /// Where a buffer's scales lie in `scales`.
    pub fn scale_span(&self, buffer: Buffer) -> Range<usize> {
        let rows = self.num_rows();
        buffer.id * rows..(buffer.id + 1) * rows
    }
}

/// How the rows of a micro-batch are cut: into lanes, and each lane into tiles. A function of circuit and batch alone,
/// and of how many tiles the threads want only where that is said, because there the cut does not show in the results.
///
/// At least four lanes to share where there are rows enough, and no more rows than keep the operands of a matrix
/// product in the second cache. Where a tile goes forwards and back at once (`Stages::is_released_at_end`), it has no
/// more rows than the last cache holds the values of, if those are enough for a matrix product; the tiles of a lane
/// follow each other in the same memory.
pub(super) fn lanes(
    num_rows: usize,
    plan: &Plan,
    is_round_trip: bool,
    wanted: Option<usize>,
) -> Vec<Vec<Range<usize>>> {
    if let Some(wanted) = wanted
        && num_rows >= LEAST_LANES * SHORT_DEPTH
    {
        // Weights are packed for every tile: the fewer the better, if there are enough for all who work. Multiples of
        // what is multiplied at once, so that sums over rows do not depend on it.
        let wide = 2 * SHORT_DEPTH;
        let rows = if num_rows.div_ceil(wide) >= wanted { wide } else { SHORT_DEPTH };
        return pieces(num_rows, rows).map(|tile| vec![tile]).collect();
    }
    let most = if is_round_trip { MOST_LANES } else { usize::MAX };
    let count = num_rows.div_ceil(MOST_TILE_ROWS).clamp(num_rows.clamp(1, LEAST_LANES), most);
    let rows = resident_rows(plan);
    let cut = |lane: Range<usize>| {
        let len = lane.len();
        let tiles = if is_round_trip { len.div_ceil(rows).max(1) } else { 1 };
        let cut = pieces(len, len.div_ceil(tiles).max(1));
        cut.map(move |tile| lane.start + tile.start..lane.start + tile.end).collect()
    };
    pieces(num_rows, num_rows.div_ceil(count).max(1)).map(cut).collect()
}

/// As many rows as the last cache holds the values of, if those are enough for a matrix product.
pub(super) fn resident_rows(plan: &Plan) -> usize {
    let resident = RESIDENT_BYTES / (4 * plan.value_units.max(1));
    if resident >= LEAST_RESIDENT_ROWS { resident.min(MOST_TILE_ROWS) } else { MOST_TILE_ROWS }
}

/// A multiple of the heights of all matrix kernels.
pub(super) const MOST_TILE_ROWS: usize = 132;
const LEAST_LANES: usize = 4;
/// Every lane has sums of its own of the weights that are shared.
const MOST_LANES: usize = 16;

/// Values of a tile that are to stay in the last cache, which two or more threads share.
const RESIDENT_BYTES: usize = 9 << 20;
const LEAST_RESIDENT_ROWS: usize = 48;
