//! How fast this machine multiplies matrices: what the speed of everything else is held against.
//!
//! Every thread multiplies matrices of its own, all at the same time, as the backend's tiles do, with the backend's own
//! kernel on operands that are packed already: the best plain product that we know of here (benches/README.md has it
//! beside those of two crates). The best of many short rounds counts, because a machine that is shared is slow now and
//! then and never too fast.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::kernels::product::{LeftScratch, Matrix, MatrixMut, Packed, multiply};
use super::kernels::{Arithmetic, Isa, IsaCap, Precision};

/// Rows, inner dimension and columns of a product `[rows × inner]·[inner × cols]`.
type Shape = (usize, usize, usize);

/// Shapes that sums have: square ones that fit a cache, and a tile of rows times the weights of a large sum.
const SHAPES: [Shape; 3] = [(256, 256, 256), (512, 512, 512), (128, 512, 512)];

/// Rounds of each shape.
const ROUNDS: usize = 40;

/// A thread multiplies until it has done at least this many operations in a round: a few milliseconds, long enough that
/// threads may start a little apart, short enough to fall between two interruptions.
const ROUND_FLOPS: f64 = 1e8;

/// The most billions of floating-point operations a second that `threads` threads reach together in `f32` matrix
/// products. Takes some tenths of a second; zero threads count as one.
pub fn reference_gemm(threads: usize) -> f64 {
    SHAPES.iter().map(|&shape| best_rate(threads.max(1), shape)).fold(0.0, f64::max) / 1e9
}

/// Operations a second in the best round.
fn best_rate(threads: usize, shape: Shape) -> f64 {
    let (rows, inner, cols) = shape;
    let flops = (2 * rows * inner * cols) as f64;
    let products = (ROUND_FLOPS / flops).ceil() as usize;
    let together = Barrier::new(threads);
    let rounds: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(shape, products, &together))).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let seconds = |round: usize| {
        let begun = rounds.iter().map(|thread| thread[round].0).min();
        let ended = rounds.iter().map(|thread| thread[round].1).max();
        begun.zip(ended).map_or(f64::INFINITY, |(begun, ended)| (ended - begun).as_secs_f64())
    };
    (0..ROUNDS).map(|round| (threads * products) as f64 * flops / seconds(round)).fold(0.0, f64::max)
}

/// One thread's rounds: when each began and ended.
fn work(shape: Shape, products: usize, together: &Barrier) -> Vec<(Instant, Instant)> {
    let (rows, inner, cols) = shape;
    // Ones: a product of normal numbers stays one, and subnormal ones would be slow.
    let (left, right) = (vec![1.0; rows * inner], vec![1.0; inner * cols]);
    let mut out = vec![0.0; rows * cols];
    let arithmetic = Arithmetic::new(Isa::detect(IsaCap::Avx512), Precision::F32); // all that f32 has a use for
    let (mut packed, mut scratch) = (Packed::default(), LeftScratch::default());
    packed.pack(arithmetic, Matrix::new(&right, inner, cols, cols));
    let round = |_| {
        together.wait();
        let begun = Instant::now();
        for _ in 0..products {
            let left = Matrix::new(&left, rows, inner, inner);
            multiply(arithmetic, MatrixMut::new(&mut out, rows, cols, cols), left, &packed, &mut scratch);
        }
        std::hint::black_box(&mut out);
        (begun, Instant::now())
    };
    (0..ROUNDS).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_speed() {
        for threads in [0, 1, 2] {
            let rate = reference_gemm(threads);
            assert!(rate.is_finite() && rate > 0.01, "{threads} threads: {rate} GFLOP/s");
        }
    }
}
