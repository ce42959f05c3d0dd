//! Matrix tiles of 6 × 16 in AVX2: twelve results, two vectors of the right operand, one broadcast and for the largest
//! term one product fill the registers.

use std::arch::x86_64::*;

use super::tile::matrix_tile;
use crate::backend::cpu::kernels::{Tile, Tiles};

matrix_tile!(tile, "avx2,fma", 8:
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps);
matrix_tile!(largest, "avx2,fma", 8:
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, multiply_max, _mm256_max_ps);

/// The larger of a·b and c; c where neither is larger or the product is not a number.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_max(a: __m256, b: __m256, c: __m256) -> __m256 {
    _mm256_max_ps(_mm256_mul_ps(a, b), c)
}

/// See [`Transpose`](crate::backend::cpu::kernels::Transpose).
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller's: the instruction set and both blocks are there.
    unsafe {
        let row = |i: usize| _mm256_loadu_ps(from.add(i * from_stride));
        // Pairs of rows interleaved, then pairs of pairs, then halves exchanged.
        let (a, b) = (_mm256_unpacklo_ps(row(0), row(1)), _mm256_unpackhi_ps(row(0), row(1)));
        let (c, d) = (_mm256_unpacklo_ps(row(2), row(3)), _mm256_unpackhi_ps(row(2), row(3)));
        let (e, f) = (_mm256_unpacklo_ps(row(4), row(5)), _mm256_unpackhi_ps(row(4), row(5)));
        let (g, h) = (_mm256_unpacklo_ps(row(6), row(7)), _mm256_unpackhi_ps(row(6), row(7)));
        let upper = [
            _mm256_shuffle_ps::<0x44>(a, c),
            _mm256_shuffle_ps::<0xEE>(a, c),
            _mm256_shuffle_ps::<0x44>(b, d),
            _mm256_shuffle_ps::<0xEE>(b, d),
        ];
        let lower = [
            _mm256_shuffle_ps::<0x44>(e, g),
            _mm256_shuffle_ps::<0xEE>(e, g),
            _mm256_shuffle_ps::<0x44>(f, h),
            _mm256_shuffle_ps::<0xEE>(f, h),
        ];
        for i in 0..4 {
            _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]));
            _mm256_storeu_ps(to.add((i + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]));
        }
    }
}

static STRIDED: [Tile; 6] =
    [tile::<1, false>, tile::<2, false>, tile::<3, false>, tile::<4, false>, tile::<5, false>, tile::<6, false>];
static TRANSPOSED: [Tile; 6] =
    [tile::<1, true>, tile::<2, true>, tile::<3, true>, tile::<4, true>, tile::<5, true>, tile::<6, true>];
static LARGEST: [Tile; 6] = [
    largest::<1, false>,
    largest::<2, false>,
    largest::<3, false>,
    largest::<4, false>,
    largest::<5, false>,
    largest::<6, false>,
];

/// See [`Tiles`].
pub(in crate::backend::cpu::kernels) static TILES: Tiles =
    Tiles { width: 16, strided: &STRIDED, transposed: &TRANSPOSED, largest: &LARGEST, transpose };
