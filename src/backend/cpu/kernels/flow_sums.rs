//! Flows of weights: Gᵀ·values, added up over rows.
//!
//! A product over all rows with a small result, so that what it costs beside its multiplications is to bring operands
//! together and to load and store the result. Rows are therefore collected until they are many, in blocks and panels as
//! tiles want them, and multiplied at once; short rows are multiplied where they lie. Sums are in single precision for
//! some thousand rows and then join others in double precision: values of discrete data repeat, so that the rounding of
//! a long sum does not average out. Which rows are multiplied together depends on how many came before, not on how they
//! were handed over.

use std::ops::Range;

use super::precision::Precision;
#[cfg(any(test, target_arch = "x86_64"))]
use super::precision::Unit;
#[cfg(any(test, target_arch = "x86_64"))]
use super::product::MatrixMut;
use super::product::{Matrix, copy_panels, next_height, terms};
#[cfg(any(test, target_arch = "x86_64"))]
use super::tile_product::{self, Tiled};
use super::{Arithmetic, Tile, Tiles, multiversion};

/// What products need beside their operands. Scratch of one thread.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct FlowScratch {
    /// What rounding took away from gains and values; or copies of short rows that lie too far apart.
    gains: Vec<f32>,
    values: Vec<f32>,
    #[cfg(any(test, target_arch = "x86_64"))]
    left: Tiled,
    #[cfg(any(test, target_arch = "x86_64"))]
    right: Tiled,
}

/// Sums of gainsᵀ·values, `[rows × cols]`.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct FlowSums {
    rows: usize,
    cols: usize,
    /// Columns of a panel.
    width: usize,
    /// Since the last flush, in panels, each `[rows × width]`: what a tile adds to lies together, where rows of a large
    /// matrix would be so far apart that they push each other out of the caches.
    single: Vec<f32>,
    /// Before that, laid out alike; empty where there was no flush.
    double: Vec<f64>,
    /// Rows of the operands in `single`.
    pending: usize,
    /// Rows of the operands that are collected and not multiplied yet.
    waiting: usize,
    /// Gains that wait, in blocks of a tile's height, each `[depth × height]`.
    gains: Vec<f32>,
    /// Values that wait, in panels, each `[depth × width]`.
    values: Vec<f32>,
    /// Rows that are multiplied at once.
    depth: usize,
}

/// Rows that are added up in single precision.
const FLUSH_ROWS: usize = 4096;

/// Rows up to this long are multiplied as they lie.
const SHORT_ROW: usize = 32;

/// So many of them at once.
pub(in crate::backend::cpu) const SHORT_DEPTH: usize = 64;

/// Room behind each block of gains, which copies of whole vectors may write to.
const PAD: usize = 16;

impl FlowSums {
    /// Empty sums of a shape, for products of `depth` rows at once.
    pub fn prepare(&mut self, arithmetic: Arithmetic, rows: usize, cols: usize, depth: usize) {
        // A tile unit has a layout of its own, and wants its result row by row.
        let width = if arithmetic.is_by_vectors() { arithmetic.isa.tiles().width } else { cols };
        (self.rows, self.cols, self.width, self.depth) = (rows, cols, width, depth);
        (self.pending, self.waiting) = (0, 0);
        self.double.clear();
        // Old contents need not be cleared: the first product sets all of it.
        self.single.resize(cols.div_ceil(width) * width * rows, 0.0);
    }

    /// Adds gainsᵀ·values; `gains` is `[n × rows]` and `values` `[n × cols]`.
    pub fn add(&mut self, arithmetic: Arithmetic, gains: Matrix<'_>, values: Matrix<'_>, scratch: &mut FlowScratch) {
        let Self { rows, cols, width, .. } = *self;
        assert!(gains.rows == values.rows && rows == gains.cols && cols == values.cols, "shapes of a flow product");
        let mut first = 0;
        let is_short = rows.max(cols) <= SHORT_ROW && cols.is_multiple_of(width);
        let is_whole = arithmetic.precision == Precision::F32 && arithmetic.is_by_vectors();
        if is_short && is_whole && self.waiting == 0 && gains.rows >= SHORT_DEPTH {
            let (gains, values) = (gains.close(&mut scratch.gains), values.close(&mut scratch.values));
            while first + SHORT_DEPTH <= gains.rows {
                let part = first..first + SHORT_DEPTH;
                self.multiply_short(arithmetic, gains.part(part.clone()), values.part(part));
                first += SHORT_DEPTH;
            }
        }
        while first < gains.rows {
            let end = gains.rows.min(first + self.depth - self.waiting);
            self.collect(arithmetic, gains.part(first..end), values.part(first..end));
            first = end;
            if self.waiting == self.depth {
                self.multiply_waiting(arithmetic, scratch);
            }
        }
    }

    /// Multiplies what still waits: nothing more will come.
    pub fn finish(&mut self, arithmetic: Arithmetic, scratch: &mut FlowScratch) {
        if self.waiting > 0 {
            self.multiply_waiting(arithmetic, scratch);
        }
    }

    /// Lays rows behind those that wait already.
    fn collect(&mut self, arithmetic: Arithmetic, gains: Matrix<'_>, values: Matrix<'_>) {
        let Self { rows, cols, width, depth, waiting, .. } = *self;
        self.values.resize(cols.div_ceil(width) * depth * width, 0.0);
        copy_panels(arithmetic.isa, values, &mut self.values[waiting * width..], width, depth * width);
        if arithmetic.is_by_vectors() {
            let most = arithmetic.isa.tiles().height();
            let distance = block_distance(most, depth);
            self.gains.resize(rows.div_ceil(most) * distance, 0.0);
            for (block, (row, height)) in self.gains.chunks_exact_mut(distance).zip(heights(rows, most)) {
                copy_block(arithmetic.isa, gains, row, &mut block[waiting * height..], height);
            }
        } else {
            self.gains.resize(rows * depth, 0.0);
            gains.copy_rows_to(&mut self.gains[waiting * rows..], rows);
        }
        self.waiting += gains.rows;
    }

    fn multiply_waiting(&mut self, arithmetic: Arithmetic, scratch: &mut FlowScratch) {
        let Self { rows, width, depth, waiting, .. } = *self;
        let accumulate = self.pending > 0;
        #[cfg(any(test, target_arch = "x86_64"))]
        if arithmetic.unit != Unit::Vectors {
            // One panel as wide as the matrix: rows of values as they were.
            scratch.right.right(arithmetic, Matrix::new(&self.values, waiting, self.cols, self.cols));
            scratch.left.left_transposed(arithmetic, Matrix::new(&self.gains, waiting, rows, rows));
            let out = MatrixMut::new(&mut self.single, rows, self.cols, self.cols);
            tile_product::multiply(arithmetic, out, accumulate, &scratch.left, &scratch.right);
            self.note_multiplied(arithmetic, waiting);
            self.waiting = 0;
            return;
        }
        let tiles = arithmetic.isa.tiles();
        assert_eq!(tiles.width, width, "sums that were prepared for another arithmetic");
        arithmetic.round(&mut self.gains, &mut scratch.gains);
        arithmetic.round(&mut self.values, &mut scratch.values);
        let gains = [&self.gains[..], &scratch.gains];
        let values = [&self.values[..], &scratch.values];
        let distance = block_distance(tiles.height(), depth);
        for (index, sums) in self.single.chunks_exact_mut(rows * width).enumerate() {
            for (block, (row, height)) in heights(rows, tiles.height()).enumerate() {
                let to = &mut sums[row * width..][..height * width];
                let tile: Tile = tiles.transposed[height - 1];
                for (i, &(left_part, right_part)) in terms(arithmetic).iter().enumerate() {
                    let panel = &values[right_part as usize][index * depth * width..][..waiting * width];
                    let from = &gains[left_part as usize][block * distance..][..waiting * height];
                    // SAFETY: the instruction set is there because `isa` is; `panel`, `from` and `to` hold what the
                    // shapes reach, by their lengths.
                    unsafe {
                        let add = accumulate || i > 0;
                        tile(waiting, from.as_ptr(), height, panel.as_ptr(), width, to.as_mut_ptr(), width, add);
                    }
                }
            }
        }
        self.note_multiplied(arithmetic, waiting);
        self.waiting = 0;
    }

    /// The same from operands as they lie: a tile's share of them stays in the first cache if rows are short and close
    /// together, and rearranging them would cost as much as it saves.
    fn multiply_short(&mut self, arithmetic: Arithmetic, gains: Matrix<'_>, values: Matrix<'_>) {
        let Self { rows, width, .. } = *self;
        let tiles: &Tiles = arithmetic.isa.tiles();
        assert_eq!(tiles.width, width, "sums that were prepared for another arithmetic");
        let (depth, most, accumulate) = (gains.rows, tiles.height(), self.pending > 0);
        for (sums, col) in self.single.chunks_exact_mut(rows * width).zip((0..).step_by(width)) {
            let right = &values.data[col..];
            assert!((depth - 1) * values.stride + width <= right.len(), "columns of the values");
            for (row, height) in heights(rows, most) {
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
            }
        }
        self.note_multiplied(arithmetic, depth);
    }

    /// Some rows have joined the sums in single precision, which may be too many by now.
    fn note_multiplied(&mut self, arithmetic: Arithmetic, rows: usize) {
        self.pending += rows;
        if self.pending >= FLUSH_ROWS {
            self.double.resize(self.single.len(), 0.0);
            flush(arithmetic.isa, &self.single, &mut self.double);
            self.pending = 0;
        }
    }

    /// Writes some rows of the sums, one after the other. Called when they are finished.
    pub fn write(&self, rows: Range<usize>, into: &mut [f32]) {
        debug_assert_eq!(self.waiting, 0, "sums that are not finished");
        if !self.double.is_empty() {
            let mut total = vec![0.0; into.len()];
            self.add_to(rows, &mut total);
            into.iter_mut().zip(total).for_each(|(x, sum)| *x = sum as f32);
        } else if self.pending > 0 {
            each_piece(&self.single, self.shape(), rows, |at, piece| copy_piece(piece, &mut into[at..]));
        } else {
            into.fill(0.0); // nothing was added
        }
    }

    /// Adds some rows of the sums to others, kept row by row. Called when they are finished.
    pub fn add_to(&self, rows: Range<usize>, into: &mut [f64]) {
        debug_assert_eq!(self.waiting, 0, "sums that are not finished");
        if !self.double.is_empty() {
            each_piece(&self.double, self.shape(), rows.clone(), |at, piece| {
                into[at..].iter_mut().zip(piece).for_each(|(total, sum)| *total += sum);
            });
        }
        if self.pending > 0 {
            each_piece(&self.single, self.shape(), rows, |at, piece| {
                into[at..].iter_mut().zip(piece).for_each(|(total, &sum)| *total += f64::from(sum));
            });
        }
    }

    fn shape(&self) -> (usize, usize, usize) {
        (self.rows, self.cols, self.width)
    }
}

/// Where tiles begin that cover so many rows, and their heights.
fn heights(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut row = 0;
    std::iter::from_fn(move || {
        let height = (row < rows).then(|| next_height(rows - row, most))?;
        row += height;
        Some((row - height, height))
    })
}

/// From one block of gains to the next.
fn block_distance(most: usize, depth: usize) -> usize {
    most * depth + PAD
}

multiversion! {
    /// Copies `height` columns of a matrix from `first` on, `[rows × height]`. What lies behind them, [`PAD`] numbers
    /// at the most, may be written over.
    fn copy_block(source: Matrix<'_>, first: usize, to: &mut [f32], height: usize) = copy_block_body;
}

#[inline(always)]
fn copy_block_body(source: Matrix<'_>, first: usize, to: &mut [f32], height: usize) {
    match height {
        4 => copy_columns::<4, 4>(source, first, to),
        5 => copy_columns::<5, 8>(source, first, to),
        6 => copy_columns::<6, 8>(source, first, to),
        8 => copy_columns::<8, 8>(source, first, to),
        12 => copy_columns::<12, 16>(source, first, to),
        _ => {
            for row in 0..source.rows {
                to[row * height..][..height].copy_from_slice(&source.row(row)[first..][..height]);
            }
        }
    }
}

/// Whole vectors are copied, `SPAN` numbers, and the next row writes over what was too much. At the right edge of the
/// matrix there is nothing beyond.
#[inline(always)]
fn copy_columns<const HEIGHT: usize, const SPAN: usize>(source: Matrix<'_>, first: usize, to: &mut [f32]) {
    if first + SPAN <= source.cols {
        for row in 0..source.rows {
            to[row * HEIGHT..][..SPAN].copy_from_slice(&source.row(row)[first..][..SPAN]);
        }
    } else {
        for row in 0..source.rows {
            to[row * HEIGHT..][..HEIGHT].copy_from_slice(&source.row(row)[first..][..HEIGHT]);
        }
    }
}

/// For each piece of some rows of a matrix in panels, where it lies among those rows and the piece.
fn each_piece<T>(
    data: &[T],
    (rows, cols, width): (usize, usize, usize),
    wanted: Range<usize>,
    mut act: impl FnMut(usize, &[T]),
) {
    for (panel, first) in data.chunks_exact(rows * width).zip((0..cols).step_by(width)) {
        let pieces = panel[wanted.start * width..wanted.end * width].chunks_exact(width);
        for (row, piece) in pieces.enumerate() {
            act(row * cols + first, &piece[..width.min(cols - first)]);
        }
    }
}

/// Copies a piece of a row to the front of a slice.
#[inline(always)]
fn copy_piece(piece: &[f32], to: &mut [f32]) {
    // Lengths that the compiler knows become a few moves, where others become calls.
    match piece.len() {
        16 => to[..16].copy_from_slice(&piece[..16]),
        32 => to[..32].copy_from_slice(&piece[..32]),
        len => to[..len].copy_from_slice(piece),
    }
}

multiversion! {
    /// double += single.
    fn flush(single: &[f32], double: &mut [f64]) = flush_body;
}

#[inline(always)]
fn flush_body(single: &[f32], double: &mut [f64]) {
    double.iter_mut().zip(single).for_each(|(total, &sum)| *total += f64::from(sum));
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
                let (mut sums, mut out, mut total) = (FlowSums::default(), vec![9.0; n * c], vec![1.0; n * c]);
                sums.prepare(arithmetic, n, c, 48);
                sums.add(arithmetic, gains, values, &mut scratch);
                sums.add(arithmetic, gains, values, &mut scratch);
                sums.finish(arithmetic, &mut scratch);
                sums.write(0..n, &mut out);
                sums.add_to(0..n, &mut total);
                assert!(out.iter().zip(&total).all(|(&sum, &total)| total == 1.0 + f64::from(sum)));
                for (i, j) in (0..n).flat_map(|i| (0..c).map(move |j| (i, j))) {
                    let operands = (0..rows).map(|r| (g[r * (n + gap) + i], v[r * (c + gap) + j]));
                    assert_close(arithmetic, out[i * c + j], operands.clone().chain(operands));
                }
            }
        }
    }
}
