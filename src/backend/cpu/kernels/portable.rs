//! Kernels in plain Rust: what runs where nothing better is known, and what the others are compared with.

use super::product::BLOCK;
use super::{Tile, Tiles};

/// Columns of a tile: four vectors of the smallest sets.
const WIDTH: usize = 16;

/// See [`Tile`].
#[expect(clippy::too_many_arguments, reason = "a kernel's: pointers with their strides")]
unsafe fn tile<const ROWS: usize, const TRANSPOSED: bool, const IS_SUM: bool>(
    depth: usize,
    left: *const f32,
    left_stride: usize,
    right: *const f32,
    right_stride: usize,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    let join = |x: f32, y: f32| match IS_SUM {
        true => x + y,
        false if x > y => x,
        false => y,
    };
    let mut results = [[0f32; WIDTH]; ROWS];
    for step in 0..depth {
        // SAFETY: the caller has `depth` steps of the right operand, each of `WIDTH` numbers.
        let right = unsafe { &*right.add(step * right_stride).cast::<[f32; WIDTH]>() };
        for (row, results) in results.iter_mut().enumerate() {
            let at = if TRANSPOSED { step * left_stride + row } else { row * left_stride + step };
            // SAFETY: the caller has `ROWS` rows and `depth` steps of the left operand, `left_stride` apart.
            let left = unsafe { *left.add(at) };
            results.iter_mut().zip(right).for_each(|(result, right)| *result = join(left * right, *result));
        }
    }
    for (row, results) in results.iter().enumerate() {
        // SAFETY: the caller's: `ROWS` rows of `WIDTH` numbers are there, and nobody else looks at them.
        let out = unsafe { &mut *out.add(row * out_stride).cast::<[f32; WIDTH]>() };
        for (out, &result) in out.iter_mut().zip(results) {
            *out = if accumulate { join(*out, result) } else { result };
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

static STRIDED: [Tile; 4] =
    [tile::<1, false, true>, tile::<2, false, true>, tile::<3, false, true>, tile::<4, false, true>];
static TRANSPOSED: [Tile; 4] =
    [tile::<1, true, true>, tile::<2, true, true>, tile::<3, true, true>, tile::<4, true, true>];
static LARGEST: [Tile; 4] =
    [tile::<1, false, false>, tile::<2, false, false>, tile::<3, false, false>, tile::<4, false, false>];

/// See [`Tiles`].
pub(super) static TILES: Tiles =
    Tiles { width: WIDTH, strided: &STRIDED, transposed: &TRANSPOSED, largest: &LARGEST, transpose };

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
