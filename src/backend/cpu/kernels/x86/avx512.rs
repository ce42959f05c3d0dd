//! Matrix tiles of 12 × 32 in AVX-512: 24 sums, two vectors of the right operand and one broadcast of 32 registers.

use std::arch::x86_64::*;

use super::avx2::transpose;
use crate::backend::cpu::kernels::{Tile, Tiles};

/// Columns of a tile.
const WIDTH: usize = 32;

/// See [`Tile`].
#[inline(always)]
unsafe fn body<const ROWS: usize, const PACKED: bool>(
    depth: usize,
    mut left: *const f32,
    left_stride: usize,
    mut right: *const f32,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    // SAFETY: the caller's: the instruction set is there, and so is all that the shapes reach.
    unsafe {
        let mut low = [_mm512_setzero_ps(); ROWS];
        let mut high = [_mm512_setzero_ps(); ROWS];
        macro_rules! step {
            ($ahead:expr) => {
                let right_low = _mm512_loadu_ps(right.add(WIDTH * $ahead));
                let right_high = _mm512_loadu_ps(right.add(WIDTH * $ahead + 16));
                for row in 0..ROWS {
                    let at = if PACKED { row + $ahead * ROWS } else { row * left_stride + $ahead };
                    let left = _mm512_set1_ps(*left.add(at));
                    low[row] = _mm512_fmadd_ps(left, right_low, low[row]);
                    high[row] = _mm512_fmadd_ps(left, right_high, high[row]);
                }
            };
        }
        let ahead = |steps: usize| if PACKED { steps * ROWS } else { steps };
        for _ in 0..depth / 4 {
            step!(0);
            step!(1);
            step!(2);
            step!(3);
            right = right.add(4 * WIDTH);
            left = left.add(ahead(4));
        }
        for _ in 0..depth % 4 {
            step!(0);
            right = right.add(WIDTH);
            left = left.add(ahead(1));
        }
        for row in 0..ROWS {
            let out = out.add(row * out_stride);
            if accumulate {
                low[row] = _mm512_add_ps(low[row], _mm512_loadu_ps(out));
                high[row] = _mm512_add_ps(high[row], _mm512_loadu_ps(out.add(16)));
            }
            _mm512_storeu_ps(out, low[row]);
            _mm512_storeu_ps(out.add(16), high[row]);
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize, const PACKED: bool>(
    depth: usize,
    left: *const f32,
    left_stride: usize,
    right: *const f32,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    // SAFETY: the caller's.
    unsafe { body::<ROWS, PACKED>(depth, left, left_stride, right, out, out_stride, accumulate) }
}

static STRIDED: [Tile; 12] = [
    tile::<1, false>,
    tile::<2, false>,
    tile::<3, false>,
    tile::<4, false>,
    tile::<5, false>,
    tile::<6, false>,
    tile::<7, false>,
    tile::<8, false>,
    tile::<9, false>,
    tile::<10, false>,
    tile::<11, false>,
    tile::<12, false>,
];
static PACKED: [Tile; 12] = [
    tile::<1, true>,
    tile::<2, true>,
    tile::<3, true>,
    tile::<4, true>,
    tile::<5, true>,
    tile::<6, true>,
    tile::<7, true>,
    tile::<8, true>,
    tile::<9, true>,
    tile::<10, true>,
    tile::<11, true>,
    tile::<12, true>,
];

/// See [`Tiles`].
pub(in crate::backend::cpu::kernels) static TILES: Tiles =
    Tiles { width: WIDTH, strided: &STRIDED, packed: &PACKED, transpose };
