//! Matrix products over checked views, with the right operand packed once and used often.
//!
//! Three products make up a sum: values·Wᵀ forwards, G·W backwards, and Gᵀ·values for the flows of W. In the first two
//! the left operand, activations, is taken as it lies, and W is packed. In the third both are packed, by plain copies.
//! Every product runs on one thread, in an order that depends on shapes alone: parallelism is over tiles of rows.

use std::ops::Range;

use super::{Isa, Tile, multiversion};

/// A read-only matrix in a slice: rows of contiguous numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `cols` contiguous numbers, `stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }

    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Copies all rows, one after the other.
    pub fn copy_rows_to(&self, to: &mut [f32]) {
        to.chunks_exact_mut(self.cols).zip(0..self.rows).for_each(|(to, row)| to.copy_from_slice(self.row(row)));
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }
}

/// A matrix to write to: rows of contiguous numbers, `stride` apart.
pub(in crate::backend::cpu) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `cols` contiguous numbers, `stride` apart.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }
}

/// What the unsafe blocks below rest on: the last number of the last row lies inside the slice.
fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(rows > 0 && cols > 0 && stride >= cols, "empty or overlapping rows: {rows} × {cols}, stride {stride}");
    assert!((rows - 1) * stride + cols <= len, "a {rows} × {cols} matrix, stride {stride}, in {len} numbers");
}

/// A right operand `[depth × cols]`, packed: panels of `width` columns, each `[depth × width]`, filled up with zeros.
#[derive(Clone, Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    data: Vec<f32>,
    depth: usize,
    cols: usize,
    width: usize,
}

impl Packed {
    fn prepare(&mut self, depth: usize, cols: usize, width: usize) {
        (self.depth, self.cols, self.width) = (depth, cols, width);
        // Old contents need not be cleared: packing writes all of it.
        self.data.resize(cols.div_ceil(width) * width * depth, 0.0);
    }

    /// Packs a matrix as it is.
    pub fn pack(&mut self, isa: Isa, source: Matrix<'_>) {
        self.prepare(source.rows, source.cols, isa.tiles().width);
        let (depth, width) = (self.depth, self.width);
        let whole = source.cols / width * width;
        copy_blocks(isa, source, 0..whole, &mut self.data, width);
        if whole < source.cols {
            // The last panel, filled up with zeros.
            let panel = &mut self.data[whole * depth..];
            for (row, to) in panel.chunks_exact_mut(width).enumerate() {
                to[..source.cols - whole].copy_from_slice(&source.row(row)[whole..]);
                to[source.cols - whole..].fill(0.0);
            }
        }
    }

    /// Packs the transpose of a matrix.
    pub fn pack_transposed(&mut self, isa: Isa, source: Matrix<'_>) {
        self.prepare(source.cols, source.rows, isa.tiles().width);
        let (depth, width) = (self.depth, self.width);
        let transpose = isa.tiles().transpose;
        for (panel, first) in self.data.chunks_exact_mut(depth * width).zip((0..source.rows).step_by(width)) {
            let rows = width.min(source.rows - first);
            let (whole_rows, whole_depth) = (rows / BLOCK * BLOCK, depth / BLOCK * BLOCK);
            for step in (0..whole_depth).step_by(BLOCK) {
                for row in (0..whole_rows).step_by(BLOCK) {
                    let from = &source.data[(first + row) * source.stride + step..];
                    let to = &mut panel[step * width + row..];
                    assert!((BLOCK - 1) * source.stride + BLOCK <= from.len(), "a block inside the source");
                    assert!((BLOCK - 1) * width + BLOCK <= to.len(), "a block inside the panel");
                    // SAFETY: the two lines above; the instruction set is there because `isa` is.
                    unsafe { transpose(from.as_ptr(), source.stride, to.as_mut_ptr(), width) };
                }
            }
            for (step, to) in panel.chunks_exact_mut(width).enumerate() {
                // What blocks of eight left over, and the zeros of a panel that is not full.
                let start = if step < whole_depth { whole_rows } else { 0 };
                for (row, to) in to.iter_mut().enumerate().skip(start) {
                    *to = if row < rows { source.data[(first + row) * source.stride + step] } else { 0.0 };
                }
            }
        }
    }

    fn panel(&self, index: usize) -> &[f32] {
        &self.data[index * self.depth * self.width..][..self.depth * self.width]
    }
}

multiversion! {
    /// Copies some columns of a matrix, in blocks of `width` of them: one block after the other, each `[rows × width]`.
    fn copy_blocks(source: Matrix<'_>, cols: Range<usize>, to: &mut [f32], width: usize) = copy_blocks_body;
}

#[inline(always)]
fn copy_blocks_body(source: Matrix<'_>, cols: Range<usize>, to: &mut [f32], width: usize) {
    // Widths that the compiler knows become a few moves, where others become calls.
    match width {
        6 => copy_blocks_of::<6>(source, cols, to),
        12 => copy_blocks_of::<12>(source, cols, to),
        16 => copy_blocks_of::<16>(source, cols, to),
        32 => copy_blocks_of::<32>(source, cols, to),
        _ => {
            for (row, block) in (0..source.rows).flat_map(|row| (0..cols.len() / width).map(move |b| (row, b))) {
                let from = &source.row(row)[cols.start + block * width..][..width];
                to[(block * source.rows + row) * width..][..width].copy_from_slice(from);
            }
        }
    }
}

/// Row by row: reads go straight on, and writes go on in as many places as there are blocks.
#[inline(always)]
fn copy_blocks_of<const WIDTH: usize>(source: Matrix<'_>, cols: Range<usize>, to: &mut [f32]) {
    let size = source.rows * WIDTH;
    for row in 0..source.rows {
        let from = source.row(row)[cols.clone()].chunks_exact(WIDTH);
        for (from, to) in from.zip(to.chunks_exact_mut(size)) {
            to[row * WIDTH..][..WIDTH].copy_from_slice(from);
        }
    }
}

/// Side of the square that is transposed at once.
pub(super) const BLOCK: usize = 8;

/// Steps of depth that are taken at once: a panel of the right operand then stays in the first cache.
const DEPTH: usize = 256;

/// A row this long is copied before use: rows a multiple of 4 KiB apart would push each other out of the cache.
const LONG_ROW: usize = 512;

/// Rows of a left operand with their distance changed, `[rows × (DEPTH + PAD)]`.
const PAD: usize = 16;

/// out = left · right. `copy` is scratch.
#[expect(clippy::needless_pass_by_value, reason = "`out` is a borrow that ends here")]
pub(in crate::backend::cpu) fn multiply(
    isa: Isa,
    out: MatrixMut<'_>,
    left: Matrix<'_>,
    right: &Packed,
    copy: &mut Vec<f32>,
) {
    assert!(left.cols == right.depth && out.rows == left.rows && out.cols == right.cols, "shapes of a matrix product");
    let tiles = isa.tiles();
    assert_eq!(tiles.width, right.width, "a right operand that was packed for another instruction set");
    for first in (0..left.cols).step_by(DEPTH) {
        let depth = DEPTH.min(left.cols - first);
        let (from, stride) = if left.stride >= LONG_ROW {
            copy.resize(left.rows * (DEPTH + PAD), 0.0);
            for (row, to) in copy.chunks_exact_mut(DEPTH + PAD).enumerate() {
                to[..depth].copy_from_slice(&left.row(row)[first..first + depth]);
            }
            (&copy[..], DEPTH + PAD)
        } else {
            (&left.data[first..], left.stride)
        };
        for col in (0..out.cols).step_by(tiles.width) {
            let panel = &right.panel(col / tiles.width)[first * tiles.width..][..depth * tiles.width];
            let mut row = 0;
            while row < out.rows {
                let height = next_height(out.rows - row, tiles.height());
                let to = &mut out.data[row * out.stride + col..];
                let from = &from[row * stride..];
                assert!((height - 1) * stride + depth <= from.len(), "rows of the left operand");
                // SAFETY: the instruction set is there because `isa` is. `panel` holds `depth` steps, the line above
                // sees to the rows of the left operand, and `store` to those of the result.
                unsafe {
                    let tile = tiles.strided[height - 1];
                    store(
                        to,
                        out.stride,
                        height,
                        tiles.width.min(out.cols - col),
                        tiles.width,
                        |to, to_stride, add| {
                            tile(depth, from.as_ptr(), stride, panel.as_ptr(), to, to_stride, add);
                        },
                        first > 0,
                    );
                }
                row += height;
            }
        }
    }
}

/// How many rows the next tile takes: as many as it can, but the last two share what is left, so that none is thin.
fn next_height(left: usize, most: usize) -> usize {
    if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) }
}

/// How many rows go into tiles of full height before the last, thinner ones.
fn whole_heights(rows: usize, most: usize) -> usize {
    let full = rows / most;
    if rows % most == 0 { rows } else { full.saturating_sub(1) * most }
}

/// Runs a tile whose result is `height × cols` at `to`. Tiles write `width` columns; where the result has fewer, they
/// write to the side and the columns that exist are copied.
///
/// # Safety
/// `run` writes `height` rows of `width` numbers at the pointer and stride that it is given, and reads them if told to add.
unsafe fn store(
    to: &mut [f32],
    stride: usize,
    height: usize,
    cols: usize,
    width: usize,
    run: impl FnOnce(*mut f32, usize, bool),
    add: bool,
) {
    assert!((height - 1) * stride + cols <= to.len(), "rows of the result");
    if cols == width {
        run(to.as_mut_ptr(), stride, add);
        return;
    }
    let mut aside = [0f32; MOST_ROWS * MOST_COLS];
    assert!(height * width <= aside.len(), "no tile is larger");
    run(aside.as_mut_ptr(), width, false);
    for row in 0..height {
        let from = &aside[row * width..][..cols];
        let to = &mut to[row * stride..][..cols];
        to.iter_mut().zip(from).for_each(|(to, from)| *to = if add { *to + from } else { *from });
    }
}

/// The largest tile of any instruction set.
const MOST_ROWS: usize = 12;
const MOST_COLS: usize = 32;

/// Both operands of Gᵀ·values, packed. Scratch of one thread.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct FlowScratch {
    /// Gᵀ: blocks of a tile's height, each `[rows × height]`.
    gains: Vec<f32>,
    /// Values.
    values: Packed,
}

/// out = gainsᵀ · values, or out += it. `out` is `[gains.cols × values.cols]`.
#[expect(clippy::needless_pass_by_value, reason = "`out` is a borrow that ends here")]
pub(in crate::backend::cpu) fn multiply_transposed(
    isa: Isa,
    out: MatrixMut<'_>,
    accumulate: bool,
    gains: Matrix<'_>,
    values: Matrix<'_>,
    scratch: &mut FlowScratch,
) {
    assert!(gains.rows == values.rows && out.rows == gains.cols && out.cols == values.cols, "shapes of a flow product");
    let tiles = isa.tiles();
    scratch.values.pack(isa, values);
    let depth = gains.rows;
    scratch.gains.resize(out.rows * depth, 0.0);
    let most = tiles.height();
    let whole = whole_heights(out.rows, most);
    copy_blocks(isa, gains, 0..whole, &mut scratch.gains, most);
    let mut row = whole;
    while row < out.rows {
        let height = next_height(out.rows - row, most);
        copy_blocks(isa, gains, row..row + height, &mut scratch.gains[row * depth..], height);
        row += height;
    }
    for col in (0..out.cols).step_by(tiles.width) {
        let panel = scratch.values.panel(col / tiles.width);
        let mut row = 0;
        while row < out.rows {
            let height = next_height(out.rows - row, tiles.height());
            let from = &scratch.gains[row * depth..][..height * depth];
            let to = &mut out.data[row * out.stride + col..];
            let tile: Tile = tiles.packed[height - 1];
            // SAFETY: the instruction set is there because `isa` is; `panel` and `from` hold `depth` steps, by their
            // lengths, and `store` sees to the result.
            unsafe {
                store(
                    to,
                    out.stride,
                    height,
                    tiles.width.min(out.cols - col),
                    tiles.width,
                    |to, to_stride, add| {
                        tile(depth, from.as_ptr(), height, panel.as_ptr(), to, to_stride, add);
                    },
                    accumulate,
                );
            }
            row += height;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::IsaCap;
    use super::*;
    use crate::rng::Rng;

    /// Every instruction set that this machine has.
    fn sets() -> Vec<Isa> {
        let mut sets: Vec<Isa> = IsaCap::NAMES.iter().map(|(_, cap)| Isa::detect(*cap)).collect();
        sets.dedup();
        sets
    }

    fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.uniform() as f32).collect()
    }

    fn assert_close(got: f32, want: f64, what: &str) {
        assert!((f64::from(got) - want).abs() <= 2e-6 * want.abs(), "{what}: {got} is not {want}");
    }

    #[test]
    fn products_equal_the_definition_for_all_shapes_and_instruction_sets() {
        let mut rng = Rng::new(7);
        let shapes = [(1, 1, 1), (2, 3, 17), (6, 16, 8), (7, 31, 33), (13, 300, 40), (19, 520, 64), (129, 64, 64)];
        for isa in sets() {
            for (m, k, n) in shapes {
                let (a, w) = (random(&mut rng, m * (k + 3)), random(&mut rng, n * (k + 2)));
                let left = Matrix::new(&a, m, k, k + 3);
                let mut packed = Packed::default();
                packed.pack_transposed(isa, Matrix::new(&w, n, k, k + 2));
                let mut out = vec![-7.0; m * (n + 1)];
                multiply(isa, MatrixMut::new(&mut out, m, n, n + 1), left, &packed, &mut Vec::new());
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let want = (0..k).map(|l| f64::from(a[i * (k + 3) + l]) * f64::from(w[j * (k + 2) + l])).sum();
                    assert_close(out[i * (n + 1) + j], want, isa.name());
                }
                assert!(out.chunks(n + 1).all(|row| row[n] == -7.0), "the padding between rows is left alone");

                packed.pack(isa, Matrix::new(&w, n, k, k + 2));
                let g = random(&mut rng, m * n);
                let mut out = vec![-7.0; m * k];
                multiply(isa, MatrixMut::new(&mut out, m, k, k), Matrix::new(&g, m, n, n), &packed, &mut Vec::new());
                for (i, j) in (0..m).flat_map(|i| (0..k).map(move |j| (i, j))) {
                    let want = (0..n).map(|l| f64::from(g[i * n + l]) * f64::from(w[l * (k + 2) + j])).sum();
                    assert_close(out[i * k + j], want, isa.name());
                }
            }
        }
    }

    #[test]
    fn flow_products_equal_the_definition_and_add_up() {
        let mut rng = Rng::new(8);
        for isa in sets() {
            for (rows, n, c) in [(1, 1, 1), (5, 7, 3), (128, 64, 48), (37, 29, 33)] {
                let (g, v) = (random(&mut rng, rows * (n + 1)), random(&mut rng, rows * (c + 2)));
                let (gains, values) = (Matrix::new(&g, rows, n, n + 1), Matrix::new(&v, rows, c, c + 2));
                let mut out = vec![9.0; n * c];
                let mut scratch = FlowScratch::default();
                multiply_transposed(isa, MatrixMut::new(&mut out, n, c, c), false, gains, values, &mut scratch);
                multiply_transposed(isa, MatrixMut::new(&mut out, n, c, c), true, gains, values, &mut scratch);
                for (i, j) in (0..n).flat_map(|i| (0..c).map(move |j| (i, j))) {
                    let want: f64 =
                        (0..rows).map(|r| f64::from(g[r * (n + 1) + i]) * f64::from(v[r * (c + 2) + j])).sum();
                    assert_close(out[i * c + j], 2.0 * want, isa.name());
                }
            }
        }
    }

    #[test]
    fn a_row_of_a_product_does_not_depend_on_the_rows_beside_it() {
        let mut rng = Rng::new(9);
        for isa in sets() {
            let (a, w) = (random(&mut rng, 40 * 70), random(&mut rng, 70 * 70));
            let mut packed = Packed::default();
            packed.pack(isa, Matrix::new(&w, 70, 70, 70));
            let product = |rows: usize| {
                let mut out = vec![0.0; rows * 70];
                let left = Matrix::new(&a, rows, 70, 70);
                multiply(isa, MatrixMut::new(&mut out, rows, 70, 70), left, &packed, &mut Vec::new());
                out
            };
            let all = product(40);
            for rows in 1..40 {
                assert_eq!(product(rows), all[..rows * 70], "{} with {rows} rows", isa.name());
            }
        }
    }

    #[test]
    #[should_panic(expected = "matrix")]
    fn a_matrix_that_leaves_its_slice_is_caught() {
        Matrix::new(&[0.0; 10], 3, 4, 4);
    }
}
