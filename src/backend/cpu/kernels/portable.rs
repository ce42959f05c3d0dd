//! Kernels in plain Rust: what runs where nothing better is known, and what the others are compared with.

use super::product::BLOCK;
use super::{Tile, Tiles};

/// Columns of a tile: four vectors of the smallest sets.
const WIDTH: usize = 16;

/// See [`Tile`].
#[expect(clippy::too_many_arguments, reason = "a kernel's: pointers with their strides")]
unsafe fn tile<const ROWS: usize, const TRANSPOSED: bool>(
    depth: usize,
    left: *const f32,
    left_stride: usize,
    right: *const f32,
    right_stride: usize,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    let mut sums = [[0f32; WIDTH]; ROWS];
    for step in 0..depth {
        // SAFETY: the caller has `depth` steps of the right operand, each of `WIDTH` numbers.
        let right = unsafe { &*right.add(step * right_stride).cast::<[f32; WIDTH]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            let at = if TRANSPOSED { step * left_stride + row } else { row * left_stride + step };
            // SAFETY: the caller has `ROWS` rows and `depth` steps of the left operand, `left_stride` apart.
            let left = unsafe { *left.add(at) };
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * right);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's: `ROWS` rows of `WIDTH` numbers are there, and nobody else looks at them.
        let out = unsafe { &mut *out.add(row * out_stride).cast::<[f32; WIDTH]>() };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if accumulate { *out + sum } else { *sum };
        }
    }
}

/// See [`Transpose`](super::Transpose).
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    for row in 0..BLOCK {
        for col in 0..BLOCK {
            // SAFETY: the caller's: both blocks are there.
            unsafe { *to.add(col * to_stride + row) = *from.add(row * from_stride + col) };
        }
    }
}

static STRIDED: [Tile; 4] = [tile::<1, false>, tile::<2, false>, tile::<3, false>, tile::<4, false>];
static TRANSPOSED: [Tile; 4] = [tile::<1, true>, tile::<2, true>, tile::<3, true>, tile::<4, true>];

/// See [`Tiles`].
pub(super) static TILES: Tiles = Tiles { width: WIDTH, strided: &STRIDED, transposed: &TRANSPOSED, transpose };

/// Functions compiled once: this architecture has no other instruction sets here. See the module above.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! multiversion {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;
    )*) => {$(
        $(#[$meta])*
        #[expect(clippy::too_many_arguments, reason = "the body's own, and the instruction set")]
        $vis fn $name(_isa: $crate::backend::cpu::Isa, $($arg: $type),*) $(-> $result)? {
            $body($($arg),*)
        }
    )*};
}
#[cfg(not(target_arch = "x86_64"))]
pub(in crate::backend::cpu) use multiversion;
