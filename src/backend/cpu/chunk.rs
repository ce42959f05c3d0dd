//! The working memory of a chunk of rows: values, flows and scales of every buffer in the plan.
//!
//! A chunk goes through the whole forward and backward pass on one thread. How rows are cut into chunks depends on
//! the batch alone, never on the number of threads, so the bits do not either.

use std::ops::Range;

use super::scaled::{NO_LOSS, Scale};
use crate::plan::{Buffer, Plan, Use, View};

/// Values, flows and scales of the rows `rows` of a batch.
pub(super) struct Chunk {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Value buffers; a sum's becomes G = flow/value in the backward pass.
    pub values: Vec<f32>,
    /// Flow buffers.
    pub flows: Vec<f32>,
    /// `[num_scales × rows]`.
    pub scales: Vec<Scale>,
    /// log p of each row.
    pub log_likelihoods: Vec<f64>,
    /// Rows that linear space cannot hold: they wait for `log_space` and take no part in this chunk's flows.
    pub degenerate: Vec<bool>,
    /// A matrix product on its way into a flow buffer, `[rows × widest panel]`.
    pub scratch: Vec<f32>,
}

impl Chunk {
    pub fn new() -> Self {
        Self {
            rows: 0..0,
            values: Vec::new(),
            flows: Vec::new(),
            scales: Vec::new(),
            log_likelihoods: Vec::new(),
            degenerate: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Makes room for some rows. Old contents are not cleared: every pass writes before it reads.
    pub fn prepare(&mut self, plan: &Plan, rows: Range<usize>, with_flows: bool) {
        let count = rows.len();
        self.rows = rows;
        self.values.resize(plan.value_units * count, 0.0);
        self.scales.resize(plan.num_scales * count, Scale { exponent: 0, loss: NO_LOSS });
        self.log_likelihoods.resize(count, 0.0);
        self.degenerate.clear();
        self.degenerate.resize(count, false);
        if with_flows {
            self.flows.resize(plan.flow_units * count, 0.0);
            self.scratch.resize(plan.widest_panel * count, 0.0);
        }
    }

    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Where a buffer lies in `values` or `flows`.
    pub fn span(&self, buffer: Buffer) -> Range<usize> {
        let rows = self.num_rows();
        buffer.at * rows..(buffer.at + buffer.units) * rows
    }

    /// Where a buffer's scales lie in `scales`.
    pub fn scale_span(&self, buffer: Buffer) -> Range<usize> {
        let rows = self.num_rows();
        buffer.scale * rows..(buffer.scale + 1) * rows
    }

    /// The numbers from the first of a view to the last; its rows are `view.buffer.units` apart.
    pub fn view<'a>(&self, data: &'a [f32], view: View) -> &'a [f32] {
        let span = self.span(view.buffer);
        &data[span.start + view.start..span.end]
    }

    /// Clears every trace of the degenerate rows, so that parameter flows may be summed over all rows.
    pub fn clear_degenerate(&mut self, plan: &Plan) {
        let rows = self.num_rows();
        for row in (0..rows).filter(|&row| self.degenerate[row]) {
            let clear = |data: &mut [f32], buffer: &Buffer| {
                let start = buffer.at * rows + row * buffer.units;
                data[start..start + buffer.units].fill(0.0);
            };
            for used in plan.uses.iter().flatten() {
                match used {
                    Use::Sum { gain, panel } => {
                        clear(&mut self.values, &gain.buffer);
                        clear(&mut self.values, &panel.buffer);
                    }
                    Use::Input { flow, .. } => clear(&mut self.flows, flow),
                }
            }
        }
    }
}

/// How many rows a chunk has when a micro-batch has `num_rows`: enough chunks to share, rows enough for a matrix
/// product. A function of the batch alone.
pub(super) fn chunk_rows(num_rows: usize) -> usize {
    num_rows.div_ceil(4).next_multiple_of(16).clamp(16, 128)
}
