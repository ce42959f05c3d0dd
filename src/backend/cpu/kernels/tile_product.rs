//! Matrix products of bf16 tiles, as AMX has them: a driver over eight tile registers, whoever these are.
//!
//! A tile is 16 rows of 64 bytes. One instruction adds the product of a tile of the left operand, 16 × 32 bf16 numbers,
//! and a tile of the right one, 32 × 16, to a tile of 16 × 16 f32 numbers. Both operands are cut into such tiles
//! beforehand, `[side/16][depth/32][16][32]`, and filled up with zeros, so that edges need no thought except where
//! results are written. A right tile holds two steps of depth side by side, `[depth/2][columns][2]`.
//!
//! [`TileUnit`] is what the driver needs of a machine: `x86::amx` has the instructions, the tests below a model of
//! them, so that all but the instructions themselves is tested everywhere.

use super::multiversion;
use super::precision::{Arithmetic, Precision, Unit, split_bf16, to_bf16};
use super::product::{Matrix, MatrixMut};

/// Rows of a tile, and columns of a tile of results.
pub(super) const SIDE: usize = 16;

/// Steps of depth that a tile of an operand holds.
pub(super) const STEPS: usize = 32;

/// bf16 numbers of a tile.
const TILE: usize = SIDE * STEPS;

/// Bytes from one row of an operand's tile to the next.
const ROW_BYTES: usize = 64;

/// Eight tile registers of 16 rows of 64 bytes, numbered 0 to 7. They are free again when it is dropped.
pub(super) trait TileUnit {
    /// Takes the registers of this thread.
    ///
    /// # Safety
    /// The machine has them, and nobody else on this thread is using them.
    unsafe fn begin() -> Self;

    /// T = 0.
    ///
    /// # Safety
    /// None but that of `begin`.
    unsafe fn zero<const T: u8>(&mut self);

    /// T = 16 rows of 64 bytes, `stride` bytes apart.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load<const T: u8>(&mut self, from: *const u8, stride: usize);

    /// C\[i, j\] += Σ over k of A\[i, 2k\]·B\[k, 2j\] + A\[i, 2k+1\]·B\[k, 2j+1\]: f32 C, bf16 A and B.
    ///
    /// # Safety
    /// None but that of `begin`.
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self);

    /// Writes T as 16 rows of 64 bytes, `stride` bytes apart.
    ///
    /// # Safety
    /// There is room, and it is the caller's.
    unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize);
}

/// An operand in tiles.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiled {
    /// The numbers, rounded to bf16.
    high: Vec<u16>,
    /// What rounding took away, rounded to bf16; empty where the precision does not use it.
    low: Vec<u16>,
    /// Rows of a left operand, columns of a right one.
    side: usize,
    depth: usize,
}

/// How the numbers of a matrix become those of tiles.
#[derive(Clone, Copy)]
enum Order {
    /// A left operand as it is: a row of a tile has 32 numbers of a row.
    Left,
    /// A left operand that is the transpose of the matrix.
    LeftTransposed,
    /// A right operand as it is: a row of a tile has 16 numbers of a row, each beside the one below it.
    Right,
    /// A right operand that is the transpose of the matrix.
    RightTransposed,
}

impl Tiled {
    /// Cuts a left operand.
    pub fn left(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.cut(arithmetic, source, Order::Left);
    }

    /// Cuts the transpose of a matrix into a left operand.
    pub fn left_transposed(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.cut(arithmetic, source, Order::LeftTransposed);
    }

    /// Cuts a right operand.
    pub fn right(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.cut(arithmetic, source, Order::Right);
    }

    /// Cuts the transpose of a matrix into a right operand.
    pub fn right_transposed(&mut self, arithmetic: Arithmetic, source: Matrix<'_>) {
        self.cut(arithmetic, source, Order::RightTransposed);
    }

    fn cut(&mut self, arithmetic: Arithmetic, source: Matrix<'_>, order: Order) {
        (self.side, self.depth) = match order {
            Order::Left | Order::RightTransposed => (source.rows, source.cols),
            Order::Right | Order::LeftTransposed => (source.cols, source.rows),
        };
        let len = self.side.div_ceil(SIDE) * self.strip();
        // Old contents need not be cleared: cutting writes all of it.
        self.high.resize(len, 0);
        self.low.resize(if arithmetic.precision == Precision::Bf16x3 { len } else { 0 }, 0);
        cut_tiles(arithmetic.isa, source, order, self.depth, &mut self.high, &mut self.low);
    }

    /// bf16 numbers in the tiles of 16 rows or columns.
    fn strip(&self) -> usize {
        self.depth.div_ceil(STEPS) * TILE
    }
}

multiversion! {
    fn cut_tiles(source: Matrix<'_>, order: Order, depth: usize, high: &mut [u16], low: &mut [u16]) = cut_tiles_body;
}

#[inline(always)]
fn cut_tiles_body(source: Matrix<'_>, order: Order, depth: usize, high: &mut [u16], low: &mut [u16]) {
    let steps = depth.div_ceil(STEPS);
    for (index, high) in high.chunks_exact_mut(TILE).enumerate() {
        let (first, step) = (index / steps * SIDE, index % steps * STEPS);
        let mut numbers = [0f32; TILE];
        match order {
            Order::Left | Order::RightTransposed => take_rows(source, first, step, &mut numbers),
            Order::Right | Order::LeftTransposed => take_pairs(source, step, first, &mut numbers),
        }
        // Pairs of numbers stay together when they move: a transposed tile is one of 16 × 16 pairs, transposed.
        let transposed = matches!(order, Order::LeftTransposed | Order::RightTransposed);
        if low.is_empty() {
            high.iter_mut().zip(&numbers).for_each(|(high, &x)| *high = to_bf16(x));
        } else {
            let low = &mut low[index * TILE..][..TILE];
            for ((high, low), &x) in high.iter_mut().zip(low.iter_mut()).zip(&numbers) {
                (*high, *low) = split_bf16(x);
            }
            if transposed {
                transpose_pairs(low);
            }
        }
        if transposed {
            transpose_pairs(high);
        }
    }
}

/// numbers\[i, j\] = source\[row + i, col + j\], 16 × 32; what lies outside stays as it is.
#[inline(always)]
fn take_rows(source: Matrix<'_>, row: usize, col: usize, numbers: &mut [f32; TILE]) {
    let count = STEPS.min(source.cols - col);
    for (i, to) in numbers.chunks_exact_mut(STEPS).take(source.rows - row).enumerate() {
        let from = &source.row(row + i)[col..col + count];
        to[..count].copy_from_slice(from);
    }
}

/// numbers\[i, 2j + e\] = source\[row + 2i + e, col + j\], 16 × (16 × 2); what lies outside stays as it is.
#[inline(always)]
fn take_pairs(source: Matrix<'_>, row: usize, col: usize, numbers: &mut [f32; TILE]) {
    let count = SIDE.min(source.cols - col);
    for step in 0..STEPS.min(source.rows - row) {
        let from = &source.row(row + step)[col..col + count];
        let to = &mut numbers[step / 2 * STEPS..][..STEPS];
        to.iter_mut().skip(step % 2).step_by(2).zip(from).for_each(|(to, from)| *to = *from);
    }
}

#[inline(always)]
fn transpose_pairs(tile: &mut [u16]) {
    for i in 0..SIDE {
        for j in i + 1..SIDE {
            for e in 0..2 {
                tile.swap(i * STEPS + 2 * j + e, j * STEPS + 2 * i + e);
            }
        }
    }
}

/// out = left · right, or out += it, on whichever unit the arithmetic has.
pub(super) fn multiply(arithmetic: Arithmetic, out: MatrixMut<'_>, accumulate: bool, left: &Tiled, right: &Tiled) {
    match arithmetic.unit {
        Unit::Vectors => unreachable!("f32 tiles have another driver"),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this unit is chosen for an `isa` that has it, and its registers are used nowhere but here.
        Unit::Amx => unsafe { drive::<super::x86::amx::Amx>(arithmetic.precision, out, accumulate, left, right) },
        #[cfg(test)]
        // SAFETY: a model is always there.
        Unit::Model => unsafe { drive::<tests::Model>(arithmetic.precision, out, accumulate, left, right) },
    }
}

/// out = left · right, or out += it, 2 × 2 tiles of results at a time.
///
/// # Safety
/// The machine has the unit, and nobody else on this thread is using it.
unsafe fn drive<U: TileUnit>(
    precision: Precision,
    mut out: MatrixMut<'_>,
    accumulate: bool,
    left: &Tiled,
    right: &Tiled,
) {
    assert!(out.rows == left.side && out.cols == right.side && left.depth == right.depth, "shapes of a matrix product");
    let terms = [(&left.high, &right.high), (&left.high, &right.low), (&left.low, &right.high)];
    let terms = &terms[..precision.num_terms()];
    // SAFETY: `begin` asks for the unit and for nobody else to use it, which is what the caller promises here.
    let mut unit = unsafe { U::begin() };
    for col in (0..out.cols).step_by(2 * SIDE) {
        for row in (0..out.rows).step_by(2 * SIDE) {
            let operands = terms.iter().map(|(left_tiles, right_tiles)| {
                let from = row / SIDE * left.strip();
                (&left_tiles[from..], &right_tiles[col / SIDE * right.strip()..])
            });
            let (tall, wide) = (out.rows - row > SIDE, out.cols - col > SIDE);
            let strip = left.strip();
            // SAFETY: the unit is there.
            unsafe {
                match (tall, wide) {
                    (true, true) => block::<U, true, true>(&mut unit, operands, strip, &mut out, row, col, accumulate),
                    (true, false) => {
                        block::<U, true, false>(&mut unit, operands, strip, &mut out, row, col, accumulate)
                    }
                    (false, true) => {
                        block::<U, false, true>(&mut unit, operands, strip, &mut out, row, col, accumulate)
                    }
                    (false, false) => {
                        block::<U, false, false>(&mut unit, operands, strip, &mut out, row, col, accumulate);
                    }
                }
            }
        }
    }
}

/// One or two tiles of rows by one or two of columns of the result. `operands` begin with their strips, one after the
/// other.
///
/// # Safety
/// The unit is there.
#[inline(always)]
unsafe fn block<'a, U: TileUnit, const TALL: bool, const WIDE: bool>(
    unit: &mut U,
    operands: impl Iterator<Item = (&'a [u16], &'a [u16])>,
    strip: usize,
    out: &mut MatrixMut<'_>,
    row: usize,
    col: usize,
    accumulate: bool,
) {
    let (height, width) = (SIDE << usize::from(TALL), SIDE << usize::from(WIDE));
    let (rows, cols) = (height.min(out.rows - row), width.min(out.cols - col));
    let stride = out.stride;
    let to = &mut out.data[row * stride + col..];
    assert!((rows - 1) * stride + cols <= to.len(), "rows of the result");
    // Tiles are written whole: where the result has less room, they go to the side first.
    let mut aside = [0f32; 4 * SIDE * SIDE];
    let is_whole = (rows, cols) == (height, width);
    let (at, distance) = if is_whole { (to.as_mut_ptr(), stride) } else { (aside.as_mut_ptr(), width) };
    let bytes = size_of::<f32>() * distance;
    // SAFETY: `at` has `height` rows of `width` numbers, `distance` apart: in the result by the assertion, or at the
    // side, whose 1024 numbers are the largest block. Both operands have the strips that are read, by the assertion
    // below.
    unsafe {
        let [at_0, at_1, at_2, at_3] =
            [0, SIDE, SIDE * distance, SIDE * distance + SIDE].map(|offset| at.wrapping_add(offset).cast::<u8>());
        if accumulate && is_whole {
            unit.load::<0>(at_0, bytes);
            if WIDE {
                unit.load::<1>(at_1, bytes);
            }
            if TALL {
                unit.load::<2>(at_2, bytes);
            }
            if TALL && WIDE {
                unit.load::<3>(at_3, bytes);
            }
        } else {
            unit.zero::<0>();
            unit.zero::<1>();
            unit.zero::<2>();
            unit.zero::<3>();
        }
        for (left, right) in operands {
            assert!(left.len() >= strip << usize::from(TALL) && right.len() >= strip << usize::from(WIDE), "strips");
            for step in (0..strip).step_by(TILE) {
                let tile = |operand: &[u16], at: usize| operand.as_ptr().add(at + step).cast::<u8>();
                unit.load::<4>(tile(left, 0), ROW_BYTES);
                unit.load::<6>(tile(right, 0), ROW_BYTES);
                unit.dot::<0, 4, 6>();
                if WIDE {
                    unit.load::<7>(tile(right, strip), ROW_BYTES);
                    unit.dot::<1, 4, 7>();
                }
                if TALL {
                    unit.load::<5>(tile(left, strip), ROW_BYTES);
                    unit.dot::<2, 5, 6>();
                }
                if TALL && WIDE {
                    unit.dot::<3, 5, 7>();
                }
            }
        }
        unit.store::<0>(at_0, bytes);
        if WIDE {
            unit.store::<1>(at_1, bytes);
        }
        if TALL {
            unit.store::<2>(at_2, bytes);
        }
        if TALL && WIDE {
            unit.store::<3>(at_3, bytes);
        }
    }
    if !is_whole {
        for (to, from) in to.chunks_mut(stride).zip(aside.chunks_exact(width)).take(rows) {
            let terms = to[..cols].iter_mut().zip(from);
            terms.for_each(|(to, from)| *to = if accumulate { *to + from } else { *from });
        }
    }
}

/// Whether a unit computes what it should: a product of 32 × 64 by 64 × 32 that no two tiles and no two steps share.
///
/// # Safety
/// As [`TileUnit::begin`].
pub(super) unsafe fn self_test<U: TileUnit>() -> bool {
    const SIDES: usize = 2 * SIDE;
    const DEPTH: usize = 2 * STEPS;
    // Whole numbers below 128 are bf16 numbers, and sums of their products exact in f32 in any order.
    let number = |i: usize, a: usize, b: usize| ((i * a + i / 7 * b) % 127) as f32;
    let a: Vec<f32> = (0..SIDES * DEPTH).map(|i| number(i, 37, 11)).collect();
    let b: Vec<f32> = (0..DEPTH * SIDES).map(|i| number(i, 53, 29)).collect();
    let (mut left, mut right) = (Tiled::default(), Tiled::default());
    let arithmetic = Arithmetic { isa: super::Isa::SCALAR, precision: Precision::Bf16, unit: Unit::Vectors };
    left.left(arithmetic, Matrix::new(&a, SIDES, DEPTH, DEPTH));
    right.right(arithmetic, Matrix::new(&b, DEPTH, SIDES, SIDES));
    let mut out = [1f32; SIDES * SIDES];
    // SAFETY: `drive` asks for what `begin` does, and the caller promises that.
    unsafe { drive::<U>(Precision::Bf16, MatrixMut::new(&mut out, SIDES, SIDES, SIDES), true, &left, &right) };
    let want = |i: usize, j: usize| (0..DEPTH).map(|k| a[i * DEPTH + k] * b[k * SIDES + j]).sum::<f32>();
    (0..SIDES * SIDES).all(|at| out[at] == 1.0 + want(at / SIDES, at % SIDES))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::precision::from_bf16;
    use super::*;

    /// Eight tiles of bytes, and what the instructions do to them.
    pub struct Model {
        tiles: [[[u8; ROW_BYTES]; SIDE]; 8],
    }

    impl Model {
        fn f32(&self, tile: u8, row: usize, col: usize) -> f32 {
            let bytes = self.tiles[tile as usize][row][4 * col..][..4].try_into().unwrap();
            f32::from_ne_bytes(bytes)
        }

        /// Subnormal numbers count as zero.
        fn bf16(&self, tile: u8, row: usize, col: usize) -> f32 {
            let bytes = self.tiles[tile as usize][row][2 * col..][..2].try_into().unwrap();
            flushed(from_bf16(u16::from_ne_bytes(bytes)))
        }
    }

    fn flushed(x: f32) -> f32 {
        if x.is_subnormal() { 0.0 } else { x }
    }

    impl TileUnit for Model {
        unsafe fn begin() -> Self {
            Self { tiles: [[[0xff; ROW_BYTES]; SIDE]; 8] } // NaN, wherever nobody has written
        }

        unsafe fn zero<const T: u8>(&mut self) {
            self.tiles[T as usize] = [[0; ROW_BYTES]; SIDE];
        }

        unsafe fn load<const T: u8>(&mut self, from: *const u8, stride: usize) {
            for (i, row) in self.tiles[T as usize].iter_mut().enumerate() {
                // SAFETY: the caller has `SIDE` rows of `ROW_BYTES`, `stride` apart.
                *row = unsafe { from.add(i * stride).cast::<[u8; ROW_BYTES]>().read() };
            }
        }

        /// As the manual has it: even and odd steps are summed apart, by fused operations that know no subnormal
        /// numbers.
        unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
            for i in 0..SIDE {
                for j in 0..SIDE {
                    let mut sums = [0f32; 2];
                    for k in 0..SIDE {
                        for (e, sum) in sums.iter_mut().enumerate() {
                            *sum = flushed(self.bf16(A, i, 2 * k + e).mul_add(self.bf16(B, k, 2 * j + e), *sum));
                        }
                    }
                    let sum = flushed(flushed(self.f32(C, i, j)) + flushed(sums[0] + sums[1]));
                    self.tiles[C as usize][i][4 * j..][..4].copy_from_slice(&sum.to_ne_bytes());
                }
            }
        }

        unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
            for (i, row) in self.tiles[T as usize].iter().enumerate() {
                // SAFETY: the caller has room for `SIDE` rows of `ROW_BYTES`, `stride` apart.
                unsafe { to.add(i * stride).cast::<[u8; ROW_BYTES]>().write(*row) };
            }
        }
    }

    /// A unit with one thing wrong with it.
    struct Faulty<const FAULT: u8>(Model);

    impl<const FAULT: u8> TileUnit for Faulty<FAULT> {
        unsafe fn begin() -> Self {
            // SAFETY: a model is always there.
            Self(unsafe { Model::begin() })
        }

        unsafe fn zero<const T: u8>(&mut self) {
            // SAFETY: a model is always there, and its tiles are its own.
            unsafe { self.0.zero::<T>() }
        }

        unsafe fn load<const T: u8>(&mut self, from: *const u8, stride: usize) {
            match FAULT {
                // SAFETY: the caller has the first row, and a stride of zero reads that one each time.
                0 => unsafe { self.0.load::<T>(from, 0) },
                // SAFETY: the caller has `SIDE` rows at this stride.
                _ => unsafe { self.0.load::<T>(from, stride) },
            }
            if FAULT == 1 {
                self.0.tiles[T as usize][15] = [0; ROW_BYTES];
            }
        }

        unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
            // SAFETY: a model is always there.
            unsafe {
                match FAULT {
                    2 => {}
                    3 => self.0.dot::<C, B, A>(),
                    4 => self.0.zero::<C>(),
                    _ => self.0.dot::<C, A, B>(),
                }
            }
        }

        unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
            // SAFETY: the caller has room for `SIDE` rows at this stride.
            unsafe { self.0.store::<T>(to, stride) }
        }
    }

    #[test]
    fn the_self_test_believes_the_model_and_no_faulty_unit() {
        // SAFETY: models are always there.
        unsafe {
            assert!(self_test::<Model>());
            assert!(self_test::<Faulty<99>>());
            assert!(!self_test::<Faulty<0>>(), "strides are ignored");
            assert!(!self_test::<Faulty<1>>(), "the last row is lost");
            assert!(!self_test::<Faulty<2>>(), "nothing is computed");
            assert!(!self_test::<Faulty<3>>(), "operands are exchanged");
            assert!(!self_test::<Faulty<4>>(), "sums are forgotten");
        }
    }

    #[test]
    fn a_right_tile_has_two_steps_of_depth_side_by_side() {
        let numbers: Vec<f32> = (0..4 * 3).map(|i| i as f32).collect();
        let mut tiled = Tiled::default();
        let arithmetic = Arithmetic::model(super::super::Isa::SCALAR, Precision::Bf16);
        tiled.right(arithmetic, Matrix::new(&numbers, 4, 3, 3));
        let at = |tiled: &Tiled, row: usize, col: usize| from_bf16(tiled.high[row * STEPS + col]);
        let first: Vec<f32> = (0..8).map(|col| at(&tiled, 0, col)).collect();
        assert_eq!(first, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 0.0, 0.0], "row 0 beside row 1");
        assert_eq!(at(&tiled, 1, 1), 9.0);
        // The same operand from its transpose.
        let transposed: Vec<f32> = (0..3 * 4).map(|i| (i % 4 * 3 + i / 4) as f32).collect();
        let mut other = Tiled::default();
        other.right_transposed(arithmetic, Matrix::new(&transposed, 3, 4, 4));
        assert_eq!(other.high, tiled.high);
        // And a left operand has a row's own numbers.
        other.left(arithmetic, Matrix::new(&numbers, 4, 3, 3));
        assert_eq!((at(&other, 0, 1), at(&other, 1, 0), at(&other, 0, 3)), (1.0, 3.0, 0.0));
        let mut again = Tiled::default();
        again.left_transposed(arithmetic, Matrix::new(&transposed, 3, 4, 4));
        assert_eq!(again.high, other.high);
    }
}
