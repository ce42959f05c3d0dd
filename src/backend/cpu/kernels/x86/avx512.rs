//! Matrix tiles of 12 × 32 in AVX-512: 24 results, two vectors of the right operand and one broadcast of 32 registers.

use std::arch::x86_64::*;

use super::avx2::transpose;
use super::tile::matrix_tile;
use crate::backend::cpu::kernels::{Tile, Tiles};

matrix_tile!(tile, "avx512f", 16:
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
matrix_tile!(largest, "avx512f", 16:
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, multiply_max, _mm512_max_ps);

/// The larger of a·b and c; c where neither is larger or the product is not a number.
#[inline]
#[target_feature(enable = "avx512f")]
fn multiply_max(a: __m512, b: __m512, c: __m512) -> __m512 {
    _mm512_max_ps(_mm512_mul_ps(a, b), c)
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
static TRANSPOSED: [Tile; 12] = [
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
static LARGEST: [Tile; 12] = [
    largest::<1, false>,
    largest::<2, false>,
    largest::<3, false>,
    largest::<4, false>,
    largest::<5, false>,
    largest::<6, false>,
    largest::<7, false>,
    largest::<8, false>,
    largest::<9, false>,
    largest::<10, false>,
    largest::<11, false>,
    largest::<12, false>,
];

/// See [`Tiles`].
pub(in crate::backend::cpu::kernels) static TILES: Tiles =
    Tiles { width: 32, strided: &STRIDED, transposed: &TRANSPOSED, largest: &LARGEST, transpose };
