//! The product of matrices in which the largest term stands for the sum.
//!
//! out\[r, u\] = max_c left\[r, c\]·right\[c, u\]. The right operand is packed as for
//! [`multiply`](super::product::multiply). A tile of the result stays in registers while all steps of depth pass: one
//! multiplication and one comparison for each term.

use super::product::{Matrix, MatrixMut, Packed, Part};
use super::{Arithmetic, multiversion};

/// Rows of a tile: with two vectors per row, they and the operands fit the registers of every instruction set.
const ROWS: usize = 6;

/// out = max-product of left and right, which are not negative.
pub(in crate::backend::cpu) fn multiply_max(
    arithmetic: Arithmetic,
    out: MatrixMut<'_>,
    left: Matrix<'_>,
    right: &Packed,
) {
    assert!(left.cols == right.depth && out.rows == left.rows && out.cols == right.cols, "shapes of a matrix product");
    max_rows(arithmetic.isa, out, left, right);
}

multiversion! {
    fn max_rows(out: MatrixMut<'_>, left: Matrix<'_>, right: &Packed) = max_rows_body;
}

#[inline(always)]
fn max_rows_body(out: MatrixMut<'_>, left: Matrix<'_>, right: &Packed) {
    match right.width {
        8 => max_panels::<8>(out, left, right),
        16 => max_panels::<16>(out, left, right),
        32 => max_panels::<32>(out, left, right),
        width => unreachable!("no instruction set has panels of {width} columns"),
    }
}

#[inline(always)]
fn max_panels<const WIDTH: usize>(out: MatrixMut<'_>, left: Matrix<'_>, right: &Packed) {
    let MatrixMut { data, rows: num_rows, cols: num_cols, stride, .. } = out;
    for (index, col) in (0..num_cols).step_by(WIDTH).enumerate() {
        let panel = right.panel(Part::High, index);
        let cols = WIDTH.min(num_cols - col);
        let mut row = 0;
        while row + ROWS <= num_rows {
            let rows: [&[f32]; ROWS] = std::array::from_fn(|i| left.row(row + i));
            let tile = max_tile::<ROWS, WIDTH>(rows, panel);
            for (i, best) in tile.iter().enumerate() {
                data[(row + i) * stride + col..][..cols].copy_from_slice(&best[..cols]);
            }
            row += ROWS;
        }
        for row in row..num_rows {
            let [best] = max_tile::<1, WIDTH>([left.row(row)], panel);
            data[row * stride + col..][..cols].copy_from_slice(&best[..cols]);
        }
    }
}

#[inline(always)]
fn max_tile<const HEIGHT: usize, const WIDTH: usize>(rows: [&[f32]; HEIGHT], panel: &[f32]) -> [[f32; WIDTH]; HEIGHT] {
    let mut best = [[0f32; WIDTH]; HEIGHT];
    let depth = rows[0].len();
    let rows = rows.map(|row| &row[..depth]);
    for (step, right) in panel.chunks_exact(WIDTH).enumerate() {
        for i in 0..HEIGHT {
            let left = rows[i][step];
            for j in 0..WIDTH {
                let term = left * right[j];
                best[i][j] = if term > best[i][j] { term } else { best[i][j] };
            }
        }
    }
    best
}
