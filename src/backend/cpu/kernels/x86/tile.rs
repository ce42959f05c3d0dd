//! The matrix tile of the vector instruction sets: the same loops with other registers.

/// Defines `$tile::<ROWS, TRANSPOSED>`, see [`Tile`](crate::backend::cpu::kernels::Tile): `ROWS` rows of two vectors of
/// `$vector` numbers each, four steps of depth at a time. Named are the features that it needs and the instructions it
/// is made of: `$multiply_add(a, b, c)` joins a term a·b to a result c so far, and `$add` two results.
macro_rules! matrix_tile {
    (
        $tile:ident, $features:literal, $vector:literal:
        $zero:path, $load:path, $store:path, $broadcast:path, $multiply_add:path, $add:path
    ) => {
        #[target_feature(enable = $features)]
        #[expect(clippy::too_many_arguments, reason = "a kernel's: pointers with their strides")]
        unsafe fn $tile<const ROWS: usize, const TRANSPOSED: bool>(
            depth: usize,
            mut left: *const f32,
            left_stride: usize,
            mut right: *const f32,
            right_stride: usize,
            out: *mut f32,
            out_stride: usize,
            accumulate: bool,
        ) {
            // SAFETY: the caller's: the instruction set is there, and so is all that the shapes reach.
            unsafe {
                let right_stride = if TRANSPOSED { right_stride } else { 2 * $vector };
                let mut low = [$zero(); ROWS];
                let mut high = [$zero(); ROWS];
                macro_rules! step {
                    ($ahead:expr) => {
                        let right_low = $load(right.add(right_stride * $ahead));
                        let right_high = $load(right.add(right_stride * $ahead + $vector));
                        for row in 0..ROWS {
                            let at = if TRANSPOSED { row + $ahead * left_stride } else { row * left_stride + $ahead };
                            let left = $broadcast(*left.add(at));
                            low[row] = $multiply_add(left, right_low, low[row]);
                            high[row] = $multiply_add(left, right_high, high[row]);
                        }
                    };
                }
                let ahead = |steps: usize| if TRANSPOSED { steps * left_stride } else { steps };
                for _ in 0..depth / 4 {
                    step!(0);
                    step!(1);
                    step!(2);
                    step!(3);
                    right = right.add(4 * right_stride);
                    left = left.add(ahead(4));
                }
                for _ in 0..depth % 4 {
                    step!(0);
                    right = right.add(right_stride);
                    left = left.add(ahead(1));
                }
                for row in 0..ROWS {
                    let out = out.add(row * out_stride);
                    if accumulate {
                        low[row] = $add(low[row], $load(out));
                        high[row] = $add(high[row], $load(out.add($vector)));
                    }
                    $store(out, low[row]);
                    $store(out.add($vector), high[row]);
                }
            }
        }
    };
}
pub(super) use matrix_tile;
