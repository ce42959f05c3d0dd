//! The door to `gemm`: matrix products over checked views.

use gemm::Parallelism;

/// A read-only matrix in a slice, with any strides.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `cols` contiguous numbers, `stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// The same numbers with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// A matrix to write to: rows of contiguous numbers, `stride` apart.
pub(super) struct MatrixMut<'a> {
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

/// What the unsafe block below rests on: the last element of the last row lies inside the slice.
fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(rows > 0 && cols > 0 && stride >= cols, "empty or overlapping rows: {rows} × {cols}, stride {stride}");
    assert!((rows - 1) * stride + cols <= len, "a {rows} × {cols} matrix, stride {stride}, in {len} numbers");
}

/// out = left · right, or out += left · right. One thread: parallelism is over chunks of rows, and the order of
/// additions may not depend on the number of threads.
#[expect(clippy::needless_pass_by_value, reason = "`out` is a borrow that ends here")]
pub(super) fn multiply(out: MatrixMut<'_>, accumulate: bool, left: Matrix<'_>, right: Matrix<'_>) {
    assert!(left.cols == right.rows && out.rows == left.rows && out.cols == right.cols, "shapes of a matrix product");
    // SAFETY: `check` has seen to it that all three matrices lie inside their slices, the shapes agree, and `out`
    // is borrowed mutably, so nothing overlaps it.
    unsafe {
        gemm::gemm(
            out.rows,
            out.cols,
            left.cols,
            out.data.as_mut_ptr(),
            1,
            out.stride as isize,
            accumulate,
            left.data.as_ptr(),
            left.col_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.col_stride as isize,
            right.row_stride as isize,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn products_with_strides_and_transposes_equal_the_definition() {
        let mut rng = Rng::new(7);
        let mut random = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.uniform() as f32).collect() };
        let (m, k, n) = (5, 7, 3);
        let (a, b) = (random(m * 9), random(n * k));
        let mut out = vec![1.0; m * 4];
        let right = Matrix::new(&b, n, k, k).transposed();
        multiply(MatrixMut::new(&mut out, m, n, 4), true, Matrix::new(&a, m, k, 9), right);
        for i in 0..m {
            for j in 0..n {
                let want: f32 = 1.0 + (0..k).map(|l| a[i * 9 + l] * b[j * k + l]).sum::<f32>();
                assert!((out[i * 4 + j] - want).abs() < 1e-5);
            }
        }
        assert_eq!(out[3], 1.0, "the padding between rows is left alone");
    }

    #[test]
    #[should_panic(expected = "matrix")]
    fn a_matrix_that_leaves_its_slice_is_caught() {
        Matrix::new(&[0.0; 10], 3, 4, 4);
    }
}
