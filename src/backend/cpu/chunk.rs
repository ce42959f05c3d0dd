//! A tile of rows and its working memory: values, flows and scales of every buffer in the plan.
//!
//! How rows are cut into tiles depends on the batch alone, never on the number of threads, so the bits do not either.
//! Tiles are independent of each other; within a tile the steps of the plan run one after the other, on whatever
//! thread. Values and flows are read by other threads as soon as they are final (`schedule`).

use std::ops::Range;
use std::sync::Mutex;

use super::kernels::product::MatrixMut;
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
    /// Flows of the weights that several nodes share, summed over this tile's rows.
    pub tied: Vec<TiedFlows>,
    /// For each large table, the flow of its units summed over this tile's rows.
    pub occupancy: Vec<Vec<f64>>,
}

/// Gᵀ·values of one block over the rows of a tile. In double precision beyond a few thousand rows: values of discrete
/// data repeat, so that the rounding of a long sum in single precision does not average out.
#[derive(Default)]
pub(super) struct TiedFlows {
    single: Vec<f32>,
    double: Vec<f64>,
    /// Products added to `single` since it was last emptied.
    pending: usize,
}

/// Matrix products, of at most a tile's rows each, that are added up in single precision.
pub(super) const FLUSH: usize = 16;

impl TiedFlows {
    fn prepare(&mut self, len: usize) {
        self.single.resize(len, 0.0);
        self.double.clear();
        self.double.resize(len, 0.0);
        self.pending = 0;
    }

    /// Adds a product, by calling `multiply(out, accumulate)`.
    pub fn add(&mut self, rows: usize, cols: usize, multiply: impl FnOnce(MatrixMut<'_>, bool)) {
        multiply(MatrixMut::new(&mut self.single, rows, cols, cols), self.pending > 0);
        self.pending += 1;
        if self.pending == FLUSH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.pending > 0 {
            self.double.iter_mut().zip(&self.single).for_each(|(d, &s)| *d += f64::from(s));
            self.pending = 0;
        }
    }

    /// The sum of all products.
    pub fn total(&mut self) -> &[f64] {
        self.flush();
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

    /// Makes room for some rows, and for their flows where `sums` says what is summed up. Old contents are not cleared:
    /// every pass writes before it reads.
    pub fn prepare(&mut self, plan: &Plan, batch: &Batch, rows: Range<usize>, marginal: bool, sums: Option<&Schedule>) {
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
        self.values.prepare(plan.value_units * count);
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.scales.resize(plan.num_scales * count, Scale { exponent: 0, loss: NO_LOSS });
        state.log_likelihoods.resize(count, 0.0);
        state.degenerate.clear();
        state.degenerate.resize(count, false);
        if let Some(Schedule { tied_sizes, large_tables, .. }) = sums {
            self.flows.prepare(plan.flow_units * count);
            state.product.resize(plan.widest_panel * count, 0.0);
            state.tied.resize_with(tied_sizes.len(), TiedFlows::default);
            state.tied.iter_mut().zip(tied_sizes).for_each(|(flows, &len)| flows.prepare(len));
            state.occupancy.resize_with(large_tables.len(), Vec::new);
            state.occupancy.iter_mut().for_each(Vec::clear);
        }
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

/// How many rows a tile has when a micro-batch has `num_rows`: at least four tiles to share where there are rows
/// enough, and no more rows than keep the operands of a matrix product in the second cache. A function of the batch alone.
pub(super) fn tile_rows(num_rows: usize) -> usize {
    let tiles = num_rows.div_ceil(MOST_TILE_ROWS).max(num_rows.min(LEAST_TILES));
    num_rows.div_ceil(tiles.max(1)).max(1)
}

/// A multiple of the heights of all matrix kernels.
const MOST_TILE_ROWS: usize = 132;
const LEAST_TILES: usize = 4;
