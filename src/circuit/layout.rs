//! Where each parameter block's numbers lie in flat buffers.
//!
//! A backend keeps all parameters in one buffer, all flows in another and one number per param row in a third. A sum
//! block is `[units × cols]`, a row contiguous. An input block is `[slots × units]`, unit index fastest, so that the
//! table row of one category is a contiguous vector over units: a gather in the forward pass, a segmented sum in
//! the backward pass.

use std::ops::Range;

use super::{ParamBlock, ParamId, ParamKind};

/// Offsets of every block in the three kinds of flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    blocks: Vec<BlockLayout>,
}

/// Where one block lies, and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Its parameters.
    pub values: Range<usize>,
    /// Its flows: as many as parameters for sums and categoricals, the sufficient statistics of other inputs.
    pub stats: Range<usize>,
    /// One number for each of its param rows.
    pub rows: Range<usize>,
    /// Parameters of one row.
    pub values_per_row: usize,
    /// Statistics of one row.
    pub stats_per_row: usize,
    /// True if a row is strided (`[slots × units]`, inputs) rather than contiguous (`[units × cols]`, sums).
    pub unit_fastest: bool,
}

impl Layout {
    pub(crate) fn new(params: &[ParamBlock]) -> Self {
        let (mut values, mut stats, mut rows) = (0, 0, 0);
        let take = |at: &mut usize, count: usize| {
            *at += count;
            *at - count..*at
        };
        let blocks = params.iter().map(|block| {
            let (values_per_row, stats_per_row, unit_fastest) = match &block.kind {
                ParamKind::Sum { cols } => (*cols, *cols, false),
                ParamKind::Input(distribution) => (distribution.num_params(), distribution.num_stats(), true),
            };
            BlockLayout {
                values: take(&mut values, block.units * values_per_row),
                stats: take(&mut stats, block.units * stats_per_row),
                rows: take(&mut rows, block.units),
                values_per_row,
                stats_per_row,
                unit_fastest,
            }
        });
        Self { blocks: blocks.collect() }
    }

    /// Where `param` lies.
    pub fn block(&self, param: ParamId) -> &BlockLayout {
        &self.blocks[param.index()]
    }

    /// All blocks, in the order of their ids.
    pub fn blocks(&self) -> &[BlockLayout] {
        &self.blocks
    }

    /// Length of a parameter buffer.
    pub fn num_values(&self) -> usize {
        self.blocks.last().map_or(0, |b| b.values.end)
    }

    /// Length of a flow buffer.
    pub fn num_stats(&self) -> usize {
        self.blocks.last().map_or(0, |b| b.stats.end)
    }

    /// Length of a buffer with one number per param row.
    pub fn num_rows(&self) -> usize {
        self.blocks.last().map_or(0, |b| b.rows.end)
    }
}

impl BlockLayout {
    /// How many param rows.
    pub fn units(&self) -> usize {
        self.rows.len()
    }

    /// Positions of the parameters of row `unit` in a parameter buffer. Panics if there is no such row.
    pub fn value_positions(&self, unit: usize) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        self.positions(self.values.start, self.values_per_row, unit)
    }

    /// Positions of the statistics of row `unit` in a flow buffer. Panics if there is no such row.
    pub fn stat_positions(&self, unit: usize) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        self.positions(self.stats.start, self.stats_per_row, unit)
    }

    fn positions(
        &self,
        start: usize,
        per_row: usize,
        unit: usize,
    ) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        assert!(unit < self.units(), "row {unit} of a block that has {}", self.units());
        let (first, step) = if self.unit_fastest { (unit, self.units()) } else { (unit * per_row, 1) };
        (0..per_row).map(move |i| start + first + i * step)
    }
}
