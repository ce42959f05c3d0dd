//! A tile of rows and its working memory: values, flows and scales of every buffer in the plan.
//!
//! How rows are cut into tiles depends on the batch alone, never on the number of threads, so the bits do not either.
//! Tiles are independent of each other; within a tile the steps of the plan run one after the other, on whatever
//! thread. Values and flows are read by other threads as soon as they are final (`schedule`).

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::buffers::tiles as tiles_of;
use super::kernels::Arithmetic;
use super::kernels::flow_sums::{FlowScratch, FlowSums};
use super::kernels::product::Matrix;
use super::scaled::{NO_LOSS, Scale};
use super::schedule::Schedule;
use super::shared::SharedBuffer;
use crate::data::Batch;
use crate::plan::{Buffer, Plan, View};

/// Stands for the category of a missing value.
pub(super) const MISSING: u32 = u32::MAX;

/// Values, flows and scales of some rows of a batch.
pub(super) struct Chunk {
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
    /// Flows of the weights that several nodes share, summed over this tile's rows, or in a round trip over its lane's so far.
    pub tied: Vec<TiedFlows>,
    /// For each large table, the flow of its units, summed over the same rows.
    pub occupancy: Vec<Vec<f64>>,
}

/// Gᵀ·values of one block over the rows of a lane. In double precision beyond a few thousand rows: values of discrete
/// data repeat, so that the rounding of a long sum in single precision does not average out.
#[derive(Default)]
pub(super) struct TiedFlows {
    /// Rows and columns of the block.
    shape: (usize, usize),
    /// Flows of the marginal row, added up over the nodes: top-down probabilities. Zero where the lane has no such row.
    pub top_down: Vec<f64>,
    single: FlowSums,
    double: Vec<f64>,
    /// G and values of few rows at a time, `[waiting × rows]` and `[waiting × cols]`: a product of a few rows would
    /// spend its time on loading and storing the sum.
    waiting: usize,
    gains: Vec<f32>,
    values: Vec<f32>,
}

/// Rows that are added up in single precision.
pub(super) const FLUSH_ROWS: usize = 2048;

/// Rows that are multiplied at once, at the least.
const ENOUGH_ROWS: usize = 64;

/// Rows that wait at the most.
const MOST_WAITING: usize = 128;

impl TiedFlows {
    fn prepare(&mut self, arithmetic: Arithmetic, shape: (usize, usize)) {
        self.shape = shape;
        self.top_down.clear();
        self.top_down.resize(shape.0, 0.0);
        self.single.prepare(arithmetic, shape.0, shape.1);
        self.double.clear();
        self.double.resize(shape.0 * shape.1, 0.0);
        self.waiting = 0;
    }

    /// Adds gainsᵀ·values.
    pub fn add(&mut self, arithmetic: Arithmetic, gains: Matrix<'_>, values: Matrix<'_>, scratch: &mut FlowScratch) {
        let rows = gains.num_rows();
        if rows >= ENOUGH_ROWS {
            self.single.add(arithmetic, gains, values, scratch);
        } else {
            if self.waiting + rows > MOST_WAITING {
                self.multiply_waiting(arithmetic, scratch);
            }
            let (gain_cols, value_cols) = self.shape;
            self.gains.resize(MOST_WAITING * gain_cols, 0.0);
            self.values.resize(MOST_WAITING * value_cols, 0.0);
            gains.copy_rows_to(&mut self.gains[self.waiting * gain_cols..]);
            values.copy_rows_to(&mut self.values[self.waiting * value_cols..]);
            self.waiting += rows;
        }
        if self.single.pending() >= FLUSH_ROWS {
            self.single.flush(&mut self.double);
        }
    }

    fn multiply_waiting(&mut self, arithmetic: Arithmetic, scratch: &mut FlowScratch) {
        if self.waiting > 0 {
            let (gain_cols, value_cols) = self.shape;
            let gains = Matrix::new(&self.gains, self.waiting, gain_cols, gain_cols);
            let values = Matrix::new(&self.values, self.waiting, value_cols, value_cols);
            self.single.add(arithmetic, gains, values, scratch);
            self.waiting = 0;
        }
    }

    /// Adds what still waits: nothing more will come.
    pub fn finish(&mut self, arithmetic: Arithmetic, scratch: &mut FlowScratch) {
        self.multiply_waiting(arithmetic, scratch);
        self.single.flush(&mut self.double);
    }

    /// The sum of all products, once it is finished.
    pub fn total(&self) -> &[f64] {
        &self.double
    }
}

impl Chunk {
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
    pub fn prepare_sums(&mut self, schedule: &Schedule, arithmetic: Arithmetic) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tied.resize_with(schedule.tied_shapes.len(), TiedFlows::default);
        state.tied.iter_mut().zip(&schedule.tied_shapes).for_each(|(flows, &shape)| flows.prepare(arithmetic, shape));
        state.occupancy.resize_with(schedule.large_tables.len(), Vec::new);
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
        buffer.scale * rows..(buffer.scale + 1) * rows
    }
}

/// How the rows of a micro-batch are cut: into lanes, and each lane into tiles. A function of circuit and batch alone.
///
/// At least four lanes to share where there are rows enough, and no more rows than keep the operands of a matrix product
/// in the second cache. Where a tile goes forwards and back at once (`Schedule::is_released_at_end`), it has no more rows
/// than the last cache holds the values of, if those are enough for a matrix product; the tiles of a lane follow each
/// other in the same memory.
pub(super) fn lanes(num_rows: usize, plan: &Plan, is_round_trip: bool) -> Vec<Vec<Range<usize>>> {
    let most = if is_round_trip { MOST_LANES } else { usize::MAX };
    let count = num_rows.div_ceil(MOST_TILE_ROWS).clamp(num_rows.clamp(1, LEAST_LANES), most);
    let resident = RESIDENT_BYTES / (4 * plan.value_units.max(1));
    let rows = if resident >= LEAST_RESIDENT_ROWS { resident.min(MOST_TILE_ROWS) } else { MOST_TILE_ROWS };
    let cut = |lane: Range<usize>| {
        let len = lane.len();
        let tiles = if is_round_trip { len.div_ceil(rows).max(1) } else { 1 };
        let cut = tiles_of(len, len.div_ceil(tiles).max(1));
        cut.map(move |tile| lane.start + tile.start..lane.start + tile.end).collect()
    };
    tiles_of(num_rows, num_rows.div_ceil(count).max(1)).map(cut).collect()
}

/// A multiple of the heights of all matrix kernels.
const MOST_TILE_ROWS: usize = 132;
const LEAST_LANES: usize = 4;
/// Every lane has sums of its own of the weights that are shared.
const MOST_LANES: usize = 16;

/// Values of a tile that are to stay in the last cache, which two or more threads share.
const RESIDENT_BYTES: usize = 9 << 20;
const LEAST_RESIDENT_ROWS: usize = 48;
