//! Flows of weights: Gᵀ·values, added up over rows.
//!
//! A product over all rows with a small result: both operands are packed by plain copies, or taken as they lie where rows are
//! short. Sums stay in single precision for as many rows as their owner likes, who then flushes them.

use super::precision::{Precision, Unit};
#[cfg(any(test, target_arch = "x86_64"))]
use super::product::MatrixMut;
use super::product::{Matrix, Packed, SHORT_ROW, copy_blocks, next_height, terms};
#[cfg(any(test, target_arch = "x86_64"))]
use super::tile_product::{self, Tiled};
use super::{Arithmetic, Tile, Tiles};

/// Both operands of Gᵀ·values, packed. Scratch of one thread.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct FlowScratch {
    /// Gᵀ: blocks of a tile's height, each `[rows × height]`, rounded if they are to be.
    gains: Vec<f32>,
    /// What rounding took away, laid out alike.
    low: Vec<f32>,
    #[cfg(any(test, target_arch = "x86_64"))]
    tiled: Tiled,
    /// Values.
    values: Packed,
}

/// Sums of gainsᵀ·values, `[rows × cols]`, kept in panels of a tile's width, each `[rows × width]`: what a tile adds to lies
/// together, where rows of a large matrix would be so far apart that they push each other out of the caches.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct FlowSums {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    width: usize,
    /// Rows of the operands since the sums were last empty.
    pending: usize,
}

impl FlowSums {
    /// Empty sums of a shape.
    pub fn prepare(&mut self, arithmetic: Arithmetic, rows: usize, cols: usize) {
        // A tile unit has a layout of its own, and wants its result row by row.
        let width = if arithmetic.unit == Unit::Vectors { arithmetic.isa.tiles().width } else { cols };
        (self.rows, self.cols, self.width, self.pending) = (rows, cols, width, 0);
        // Old contents need not be cleared: the first product sets all of it.
        self.data.resize(cols.div_ceil(width) * width * rows, 0.0);
    }

    /// Rows of the operands since the sums were last empty.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Adds gainsᵀ·values; `gains` is `[n × rows]` and `values` `[n × cols]`.
    pub fn add(&mut self, arithmetic: Arithmetic, gains: Matrix<'_>, values: Matrix<'_>, scratch: &mut FlowScratch) {
        let Self { rows, cols, width, .. } = *self;
        assert!(gains.rows == values.rows && rows == gains.cols && cols == values.cols, "shapes of a flow product");
        let accumulate = self.pending > 0;
        self.pending += gains.rows;
        if arithmetic.unit != Unit::Vectors {
            #[cfg(any(test, target_arch = "x86_64"))]
            {
                scratch.values.pack(arithmetic, values);
                scratch.tiled.left_transposed(arithmetic, gains);
                let out = MatrixMut::new(&mut self.data, rows, cols, cols);
                tile_product::multiply(arithmetic, out, accumulate, &scratch.tiled, &scratch.values.tiled);
            }
            return;
        }
        let tiles = arithmetic.isa.tiles();
        assert_eq!(tiles.width, width, "sums that were prepared for another arithmetic");
        if arithmetic.precision == Precision::F32 && rows.max(cols) <= SHORT_ROW && cols.is_multiple_of(width) {
            return self.add_short(tiles, gains.close(&mut scratch.gains), values.close(&mut scratch.low), accumulate);
        }
        scratch.values.pack(arithmetic, values);
        let depth = gains.rows;
        scratch.gains.resize(rows * depth, 0.0);
        let most = tiles.height();
        let whole = whole_heights(rows, most);
        copy_blocks(arithmetic.isa, gains, 0..whole, &mut scratch.gains, most);
        let mut row = whole;
        while row < rows {
            let height = next_height(rows - row, most);
            copy_blocks(arithmetic.isa, gains, row..row + height, &mut scratch.gains[row * depth..], height);
            row += height;
        }
        arithmetic.round(&mut scratch.gains, &mut scratch.low);
        let gains = [&scratch.gains[..], &scratch.low];
        let terms = terms(arithmetic);
        for (index, sums) in self.data.chunks_exact_mut(rows * width).enumerate() {
            let mut row = 0;
            while row < rows {
                let height = next_height(rows - row, most);
                let to = &mut sums[row * width..][..height * width];
                let tile: Tile = tiles.transposed[height - 1];
                for (i, &(left_part, right_part)) in terms.iter().enumerate() {
                    let panel = scratch.values.panel(right_part, index);
                    let from = &gains[left_part as usize][row * depth..][..height * depth];
                    // SAFETY: the instruction set is there because `isa` is; `panel`, `from` and `to` hold what the
                    // shapes reach, by their lengths.
                    unsafe {
                        let add = accumulate || i > 0;
                        tile(depth, from.as_ptr(), height, panel.as_ptr(), width, to.as_mut_ptr(), width, add);
                    }
                }
                row += height;
            }
        }
    }

    /// The same from operands as they lie: a tile's share of them stays in the first cache if rows are short and close
    /// together, and rearranging them would cost as much as it saves.
    fn add_short(&mut self, tiles: &Tiles, gains: Matrix<'_>, values: Matrix<'_>, accumulate: bool) {
        let Self { rows, width, .. } = *self;
        let (depth, most) = (gains.rows, tiles.height());
        for (sums, col) in self.data.chunks_exact_mut(rows * width).zip((0..).step_by(width)) {
            let right = &values.data[col..];
            assert!((depth - 1) * values.stride + width <= right.len(), "columns of the values");
            let mut row = 0;
            while row < rows {
                let height = next_height(rows - row, most);
                let to = &mut sums[row * width..][..height * width];
                let left = &gains.data[row..];
                assert!((depth - 1) * gains.stride + height <= left.len(), "columns of the gains");
                let tile: Tile = tiles.transposed[height - 1];
                // SAFETY: the instruction set is there because `isa` is; the lines above see to both operands, and `to`
                // holds what the tile writes by its length.
                unsafe {
                    let (left, right) = (left.as_ptr(), right.as_ptr());
                    tile(depth, left, gains.stride, right, values.stride, to.as_mut_ptr(), width, accumulate);
                }
                row += height;
            }
        }
    }

    /// Adds the sums to others, kept row by row, and empties them.
    pub fn flush(&mut self, into: &mut [f64]) {
        self.each_row(|at, part| {
            into[at..at + part.len()].iter_mut().zip(part).for_each(|(total, &sum)| *total += f64::from(sum));
        });
        self.pending = 0;
    }

    /// Writes the sums row by row.
    pub fn write(&self, into: &mut [f32]) {
        self.each_row(|at, part| into[at..at + part.len()].copy_from_slice(part));
    }

    /// For each piece of a row, where it lies in the whole and the piece. Sums that are empty have none.
    fn each_row(&self, mut act: impl FnMut(usize, &[f32])) {
        let Self { rows, cols, width, .. } = *self;
        if self.pending == 0 {
            return;
        }
        for (panel, first) in self.data.chunks_exact(rows * width).zip((0..cols).step_by(width)) {
            for (row, part) in panel.chunks_exact(width).enumerate() {
                act(row * cols + first, &part[..width.min(cols - first)]);
            }
        }
    }
}

/// How many rows go into tiles of full height before the last, thinner ones.
fn whole_heights(rows: usize, most: usize) -> usize {
    let full = rows / most;
    if rows.is_multiple_of(most) { rows } else { full.saturating_sub(1) * most }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{arithmetics, assert_close, random};
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn flow_products_equal_the_definition_and_add_up() {
        let mut rng = Rng::new(8);
        for arithmetic in arithmetics() {
            let mut scratch = FlowScratch::default();
            for (rows, n, c, gap) in
                [(1, 1, 1, 1), (5, 7, 3, 1), (128, 64, 48, 0), (37, 29, 33, 2), (70, 17, 32, 3), (41, 32, 16, 0)]
            {
                let (g, v) = (random(&mut rng, rows * (n + gap)), random(&mut rng, rows * (c + gap)));
                let (gains, values) = (Matrix::new(&g, rows, n, n + gap), Matrix::new(&v, rows, c, c + gap));
                let (mut sums, mut out, mut flushed) = (FlowSums::default(), vec![9.0; n * c], vec![1.0; n * c]);
                sums.prepare(arithmetic, n, c);
                sums.add(arithmetic, gains, values, &mut scratch);
                sums.add(arithmetic, gains, values, &mut scratch);
                assert_eq!(sums.pending(), 2 * rows);
                sums.write(&mut out);
                sums.flush(&mut flushed);
                assert!(out.iter().zip(&flushed).all(|(&sum, &total)| total == 1.0 + f64::from(sum)));
                assert_eq!(sums.pending(), 0);
                for (i, j) in (0..n).flat_map(|i| (0..c).map(move |j| (i, j))) {
                    let operands = (0..rows).map(|r| (g[r * (n + gap) + i], v[r * (c + gap) + j]));
                    assert_close(arithmetic, out[i * c + j], operands.clone().chain(operands));
                }
            }
        }
    }
}
