//! Matrix products over checked views, with the right operand packed once and used often.
//!
//! Three products make up a sum: values·Wᵀ forwards, G·W backwards, and Gᵀ·values for the flows of W (`flow_sums`);
//! `max_product` is the first with the largest term in the place of the sum. In
//! the first two the left operand, activations, is taken as it lies, and W is packed. An [`Arithmetic`] says how:
//! operands that are not to be multiplied as they are are rounded when they are packed, and a left operand is then
//! copied, to be rounded too. Machines with bf16 tiles have them in a form of their own (`tile_product`). Every product
//! runs on one thread, in an order that depends on shapes alone: parallelism is over tiles of rows.

use std::ops::Range;

use super::precision::{Precision, Unit};
#[cfg(any(test, target_arch = "x86_64"))]
use super::tile_product::{self, Tiled};
use super::{Arithmetic, Isa, Tile, multiversion};

/// A read-only matrix in a slice: rows of contiguous numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `cols` contiguous numbers, `stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }

    /// The same rows one right after the other: copied, if they lie further apart.
    pub(super) fn close(self, copy: &'a mut Vec<f32>) -> Self {
        if self.stride == self.cols {
            return self;
        }
        copy.resize(self.rows * self.cols, 0.0);
        self.copy_rows_to(copy, self.cols);
        Self { data: copy, stride: self.cols, ..self }
    }

    /// Some of the rows.
    pub(super) fn part(self, rows: Range<usize>) -> Self {
        Self::new(&self.data[rows.start * self.stride..], rows.len(), self.cols, self.stride)
    }

    /// Copies all rows to places that are `stride` apart.
    pub(super) fn copy_rows_to(&self, to: &mut [f32], stride: usize) {
        let rows = to.chunks_mut(stride).zip(0..self.rows);
        match self.cols {
            // A length that the compiler knows becomes a few moves, where others become calls.
            32 => rows.for_each(|(to, row)| to[..32].copy_from_slice(&self.row(row)[..32])),
            cols => rows.for_each(|(to, row)| to[..cols].copy_from_slice(self.row(row))),
        }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }
}

/// A matrix to write to: rows of contiguous numbers, `stride` apart.
pub(in crate::backend::cpu) struct MatrixMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
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
    /// The numbers, rounded if they are to be.
    data: Vec<f32>,
    /// What rounding took away, where that is used.
    low: Vec<f32>,
    /// Instead of both, where bf16 tiles multiply.
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(super) tiled: Tiled,
    pub(super) depth: usize,
    pub(super) cols: usize,
    pub(super) width: usize,
    /// What it was packed for: nothing else can use it.
    arithmetic: Option<Arithmetic>,
}

impl Packed {
    /// Packs a matrix as it is.
    pub fn pack(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.prepare(arithmetic, source.rows, source.cols);
        if arithmetic.unit != Unit::Vectors {
            #[cfg(any(test, target_arch = "x86_64"))]
            self.tiled.right(arithmetic, source);
            return;
        }
        copy_panels(arithmetic.isa, source, &mut self.data, self.width, self.depth * self.width);
        arithmetic.round(&mut self.data, &mut self.low);
    }

    /// Packs the transpose of a matrix.
    pub fn pack_transposed(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.prepare(arithmetic, source.cols, source.rows);
        if arithmetic.unit != Unit::Vectors {
            #[cfg(any(test, target_arch = "x86_64"))]
            self.tiled.right_transposed(arithmetic, source);
            return;
        }
        let (depth, width) = (self.depth, self.width);
        let transpose = arithmetic.isa.tiles().transpose;
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
        arithmetic.round(&mut self.data, &mut self.low);
    }

    fn prepare(&mut self, arithmetic: Arithmetic, depth: usize, cols: usize) {
        (self.depth, self.cols, self.width) = (depth, cols, arithmetic.isa.tiles().width);
        self.arithmetic = Some(arithmetic);
        if arithmetic.unit == Unit::Vectors {
            // Old contents need not be cleared: packing writes all of it.
            self.data.resize(cols.div_ceil(self.width) * self.width * depth, 0.0);
        }
    }

    /// Panel `index` of the numbers, or of what rounding took away.
    pub(super) fn panel(&self, part: Part, index: usize) -> &[f32] {
        let data = match part {
            Part::High => &self.data,
            Part::Low => &self.low,
        };
        &data[index * self.depth * self.width..][..self.depth * self.width]
    }
}

/// Rounded numbers, or what rounding took away.
#[derive(Clone, Copy)]
pub(super) enum Part {
    High,
    Low,
}

/// The products that add up to one, by the part of the left operand and that of the right. Low parts times each other
/// are left out: they are as small as what the two parts do not hold.
pub(super) fn terms(arithmetic: Arithmetic) -> &'static [(Part, Part)] {
    const TERMS: [(Part, Part); 3] = [(Part::High, Part::High), (Part::High, Part::Low), (Part::Low, Part::High)];
    &TERMS[..arithmetic.precision.num_terms()]
}

multiversion! {
    /// Copies the columns of a matrix in panels of `width`, each `[rows × width]` and `distance` from the one before;
    /// the last is filled up with zeros.
    pub(super) fn copy_panels(source: Matrix<'_>, to: &mut [f32], width: usize, distance: usize) = copy_panels_body;
}

#[inline(always)]
fn copy_panels_body(source: Matrix<'_>, to: &mut [f32], width: usize, distance: usize) {
    // Widths that the compiler knows become a few moves, where others become calls.
    match width {
        16 => copy_whole_panels::<16>(source, to, distance),
        32 => copy_whole_panels::<32>(source, to, distance),
        _ => {
            for (row, panel) in (0..source.rows).flat_map(|row| (0..source.cols / width).map(move |p| (row, p))) {
                let from = &source.row(row)[panel * width..][..width];
                to[panel * distance + row * width..][..width].copy_from_slice(from);
            }
        }
    }
    let whole = source.cols / width;
    let rest = source.cols - whole * width;
    if rest > 0 {
        for row in 0..source.rows {
            let to = &mut to[whole * distance + row * width..][..width];
            to[..rest].copy_from_slice(&source.row(row)[whole * width..]);
            to[rest..].fill(0.0);
        }
    }
}

/// A few rows at a time: row by row, writes would go on in as many places as there are panels, which lie so that they
/// push each other out of the first cache; panel by panel, reads would.
#[inline(always)]
fn copy_whole_panels<const WIDTH: usize>(source: Matrix<'_>, to: &mut [f32], distance: usize) {
    for first in (0..source.rows).step_by(ROWS_AT_ONCE) {
        let rows = first..source.rows.min(first + ROWS_AT_ONCE);
        for panel in 0..source.cols / WIDTH {
            let to = &mut to[panel * distance..];
            for row in rows.clone() {
                to[row * WIDTH..][..WIDTH].copy_from_slice(&source.row(row)[panel * WIDTH..][..WIDTH]);
            }
        }
    }
}

const ROWS_AT_ONCE: usize = 4;

/// to[i, h] = from[h, i] for a matrix `from` of so many columns.
#[inline(always)]
pub(in crate::backend::cpu) fn transpose_row(isa: Isa, from: &[f32], cols: usize, to: &mut [f32]) {
    let rows = from.len() / cols;
    assert!(from.len() == to.len() && rows * cols == from.len(), "whole matrices of one size");
    if !rows.is_multiple_of(BLOCK) || !cols.is_multiple_of(BLOCK) {
        for (i, to) in to.chunks_exact_mut(rows).enumerate() {
            to.iter_mut().zip(from[i..].iter().step_by(cols)).for_each(|(to, from)| *to = *from);
        }
        return;
    }
    let transpose = isa.tiles().transpose;
    for h in (0..rows).step_by(BLOCK) {
        for i in (0..cols).step_by(BLOCK) {
            // SAFETY: blocks of eight fit rows and columns, and both matrices are whole; the instruction set is there
            // because `isa` is.
            unsafe { transpose(from[h * cols + i..].as_ptr(), cols, to[i * rows + h..].as_mut_ptr(), rows) };
        }
    }
}

/// Side of the square that is transposed at once.
pub(super) const BLOCK: usize = 8;

/// Steps of depth that are taken at once: results are then written once, or nearly so, and a panel of the right
/// operand stays in the second cache.
const DEPTH: usize = 1024;

/// A row this long is copied before use: rows a multiple of 4 KiB apart would push each other out of the cache.
const LONG_ROW: usize = 512;

/// Rows up to this long are multiplied as they lie however far apart they are.
const SHORT_ROW: usize = 32;

/// Rows that are copied at once, and stay in the second cache. A multiple of the heights of all tiles.
const COPIED_ROWS: usize = 48;

/// What is added to the distance of copied rows.
const PAD: usize = 16;

/// A left operand, copied. Scratch of one thread.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct LeftScratch {
    /// Rows of it with another distance, rounded if they are to be.
    rows: Vec<f32>,
    /// What rounding took away, laid out alike.
    low: Vec<f32>,
    #[cfg(any(test, target_arch = "x86_64"))]
    tiled: Tiled,
}

/// What the terms of a result become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    /// Their sum.
    Sum,
    /// The largest of them, where none is negative.
    Largest,
}

impl Reduction {
    /// The kernels.
    fn tiles(self, isa: Isa) -> &'static [Tile] {
        let tiles = isa.tiles();
        match self {
            Self::Sum => tiles.strided,
            Self::Largest => tiles.largest,
        }
    }

    /// Two results of some terms each.
    #[inline(always)]
    fn join(self, x: f32, y: f32) -> f32 {
        match self {
            Self::Sum => x + y,
            Self::Largest => x.max(y),
        }
    }
}

/// out = left · right.
pub(in crate::backend::cpu) fn multiply(
    arithmetic: Arithmetic,
    out: MatrixMut<'_>,
    left: Matrix<'_>,
    right: &Packed,
    scratch: &mut LeftScratch,
) {
    product(Reduction::Sum, arithmetic, out, left, right, scratch);
}

/// out\[r, u\] = Σ or max over c of left\[r, c\]·right\[c, u\].
pub(super) fn product(
    reduction: Reduction,
    arithmetic: Arithmetic,
    out: MatrixMut<'_>,
    left: Matrix<'_>,
    right: &Packed,
    scratch: &mut LeftScratch,
) {
    assert!(left.cols == right.depth && out.rows == left.rows && out.cols == right.cols, "shapes of a matrix product");
    assert_eq!(Some(arithmetic), right.arithmetic, "a right operand that was packed for another arithmetic");
    if arithmetic.unit != Unit::Vectors {
        #[cfg(any(test, target_arch = "x86_64"))]
        {
            scratch.tiled.left(arithmetic, left);
            tile_product::multiply(arithmetic, out, false, &scratch.tiled, &right.tiled);
        }
        return;
    }
    let is_copied = (left.stride >= LONG_ROW && left.cols > SHORT_ROW) || arithmetic.precision != Precision::F32;
    let group = if is_copied { COPIED_ROWS } else { left.rows };
    for first_row in (0..left.rows).step_by(group) {
        let rows = first_row..left.rows.min(first_row + group);
        for first in (0..left.cols).step_by(DEPTH) {
            let steps = first..left.cols.min(first + DEPTH);
            let (from, stride) = if is_copied {
                let stride = steps.len() + PAD;
                scratch.rows.resize(rows.len() * stride, 0.0);
                for (row, to) in rows.clone().zip(scratch.rows.chunks_exact_mut(stride)) {
                    to[..steps.len()].copy_from_slice(&left.row(row)[steps.clone()]);
                }
                arithmetic.round(&mut scratch.rows, &mut scratch.low);
                ([&scratch.rows[..], &scratch.low], stride)
            } else {
                ([&left.data[rows.start * left.stride + first..], &[]], left.stride)
            };
            let to = &mut out.data[rows.start * out.stride..];
            let shape = (rows.len(), out.cols, out.stride);
            multiply_rows(reduction, arithmetic, to, shape, from, stride, right, steps);
        }
    }
}

/// Some steps of depth of a product, for some rows: `shape` is the number of rows and columns of the result and the
/// distance of its rows, `from` the left operand and what rounding took away from it.
#[expect(clippy::too_many_arguments, reason = "a product's, cut")]
fn multiply_rows(
    reduction: Reduction,
    arithmetic: Arithmetic,
    out: &mut [f32],
    (rows, cols, out_stride): (usize, usize, usize),
    from: [&[f32]; 2],
    stride: usize,
    right: &Packed,
    steps: Range<usize>,
) {
    let (tiles, width) = (reduction.tiles(arithmetic.isa), arithmetic.isa.tiles().width);
    let (depth, most) = (steps.len(), tiles.len());
    if let [_] = terms(arithmetic)
        && cols.is_multiple_of(width)
    {
        assert!((rows - 1) * stride + depth <= from[0].len(), "rows of the left operand");
        assert!((rows - 1) * out_stride + cols <= out.len(), "rows of the result");
        for col in (0..cols).step_by(width) {
            let panel = &right.panel(Part::High, col / width)[steps.start * width..steps.end * width];
            let mut row = 0;
            while row < rows {
                let height = next_height(rows - row, most);
                // SAFETY: the instruction set is there because `isa` is. `panel` holds `depth` steps of whole columns,
                // and the lines above see to the rows of the left operand and of the result.
                unsafe {
                    let left = from[0].as_ptr().add(row * stride);
                    let to = out.as_mut_ptr().add(row * out_stride + col);
                    let add = steps.start > 0;
                    tiles[height - 1](depth, left, stride, panel.as_ptr(), width, to, out_stride, add);
                }
                row += height;
            }
        }
        return;
    }
    let terms = terms(arithmetic);
    for col in (0..cols).step_by(width) {
        let mut row = 0;
        while row < rows {
            let height = next_height(rows - row, most);
            let to = &mut out[row * out_stride + col..];
            for (i, &(left_part, right_part)) in terms.iter().enumerate() {
                let panel = right.panel(right_part, col / width);
                let panel = &panel[steps.start * width..steps.end * width];
                let from = &from[left_part as usize][row * stride..];
                assert!((height - 1) * stride + depth <= from.len(), "rows of the left operand");
                let run = |to: *mut f32, to_stride: usize, add: bool| {
                    // SAFETY: the instruction set is there because `isa` is. `panel` holds `depth` steps, the line
                    // above sees to the rows of the left operand, and `store` to those of the result.
                    unsafe {
                        tiles[height - 1](depth, from.as_ptr(), stride, panel.as_ptr(), width, to, to_stride, add);
                    }
                };
                let add = steps.start > 0 || i > 0;
                // SAFETY: tiles write what `store` promises them.
                unsafe { store(reduction, to, out_stride, height, width.min(cols - col), width, run, add) };
            }
            row += height;
        }
    }
}

/// How many rows the next tile takes: as many as it can, but the last two share what is left, so that none is thin.
pub(super) fn next_height(left: usize, most: usize) -> usize {
    if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) }
}

/// Runs a tile whose result is `height × cols` at `to`. Tiles write `width` columns; where the result has fewer, they
/// write to the side and the columns that exist are copied.
///
/// # Safety
/// `run` writes `height` rows of `width` numbers at the pointer and stride that it is given, and reads them if told to
/// add.
#[expect(clippy::too_many_arguments, reason = "a tile's result: pointers with their strides")]
unsafe fn store(
    reduction: Reduction,
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
        to.iter_mut().zip(from).for_each(|(to, from)| *to = if add { reduction.join(*to, *from) } else { *from });
    }
}

/// The largest tile of any instruction set.
const MOST_ROWS: usize = 12;
const MOST_COLS: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::testing::{arithmetics, assert_close, random};
    use super::super::{Isa, IsaCap};
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn products_equal_the_definition_for_all_shapes_precisions_and_instruction_sets() {
        let mut rng = Rng::new(7);
        let shapes = [
            (1, 1, 1),
            (2, 3, 17),
            (6, 16, 8),
            (7, 31, 33),
            (16, 32, 16),
            (17, 33, 15),
            (32, 64, 32),
            (33, 65, 49),
            (13, 300, 40),
            (19, 520, 64),
            (129, 64, 64),
        ];
        for arithmetic in arithmetics() {
            // What one product leaves in its scratch must not reach the next.
            let (mut packed, mut scratch) = (Packed::default(), LeftScratch::default());
            for (m, k, n) in shapes {
                let (a, w) = (random(&mut rng, m * (k + 3)), random(&mut rng, n * (k + 2)));
                let left = Matrix::new(&a, m, k, k + 3);
                packed.pack_transposed(arithmetic, Matrix::new(&w, n, k, k + 2));
                let mut out = vec![-7.0; m * (n + 1)];
                multiply(arithmetic, MatrixMut::new(&mut out, m, n, n + 1), left, &packed, &mut scratch);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let operands = (0..k).map(|l| (a[i * (k + 3) + l], w[j * (k + 2) + l]));
                    assert_close(arithmetic, out[i * (n + 1) + j], operands);
                }
                assert!(out.chunks(n + 1).all(|row| row[n] == -7.0), "the padding between rows is left alone");

                packed.pack(arithmetic, Matrix::new(&w, n, k, k + 2));
                let g = random(&mut rng, m * n);
                let mut out = vec![-7.0; m * k];
                let gains = Matrix::new(&g, m, n, n);
                multiply(arithmetic, MatrixMut::new(&mut out, m, k, k), gains, &packed, &mut scratch);
                for (i, j) in (0..m).flat_map(|i| (0..k).map(move |j| (i, j))) {
                    let operands = (0..n).map(|l| (g[i * n + l], w[l * (k + 2) + j]));
                    assert_close(arithmetic, out[i * k + j], operands);
                }
            }
        }
    }

    #[test]
    fn a_row_is_transposed_as_a_matrix() {
        let mut rng = Rng::new(10);
        for isa in IsaCap::NAMES.map(|(_, cap)| Isa::detect(cap)) {
            for (rows, cols) in [(8, 16), (32, 32), (3, 5), (8, 9), (1, 7), (7, 1)] {
                let from = random(&mut rng, rows * cols);
                let mut to = vec![0.0; rows * cols];
                transpose_row(isa, &from, cols, &mut to);
                for (h, i) in (0..rows).flat_map(|h| (0..cols).map(move |i| (h, i))) {
                    assert_eq!(to[i * rows + h], from[h * cols + i], "{rows}×{cols}");
                }
            }
        }
    }

    #[test]
    fn a_row_of_a_product_does_not_depend_on_the_rows_beside_it() {
        let mut rng = Rng::new(9);
        for arithmetic in arithmetics() {
            let (a, w) = (random(&mut rng, 40 * 70), random(&mut rng, 70 * 70));
            let mut packed = Packed::default();
            packed.pack(arithmetic, Matrix::new(&w, 70, 70, 70));
            let product = |rows: usize| {
                let mut out = vec![0.0; rows * 70];
                let left = Matrix::new(&a, rows, 70, 70);
                let to = MatrixMut::new(&mut out, rows, 70, 70);
                multiply(arithmetic, to, left, &packed, &mut LeftScratch::default());
                out
            };
            let all = product(40);
            for rows in 1..40 {
                assert_eq!(product(rows), all[..rows * 70], "{arithmetic:?} with {rows} rows");
            }
        }
    }

    #[test]
    #[should_panic(expected = "another arithmetic")]
    fn weights_that_were_packed_for_one_precision_are_refused_by_another() {
        let [exact, rounded] = [Precision::F32, Precision::Bf16].map(|p| Arithmetic::new(Isa::detect(IsaCap::Auto), p));
        let mut packed = Packed::default();
        packed.pack(rounded, Matrix::new(&[0.3], 1, 1, 1));
        let (mut out, left) = ([0.0], Matrix::new(&[0.7], 1, 1, 1));
        multiply(exact, MatrixMut::new(&mut out, 1, 1, 1), left, &packed, &mut LeftScratch::default());
    }

    #[test]
    #[should_panic(expected = "matrix")]
    fn a_matrix_that_leaves_its_slice_is_caught() {
        Matrix::new(&[0.0; 10], 3, 4, 4);
    }
}
