//! The product of matrices in which the largest term stands for the sum.
//!
//! out\[r, u\] = max_c left\[r, c\]·right\[c, u\], by the driver of [`multiply`](super::product::multiply) with other
//! tiles: one multiplication and one maximum for each term, which take as long as one fused operation where the
//! processor has other units for maxima. No term may be negative or NaN: the largest starts from zero.

use super::precision::Precision;
use super::product::{LeftScratch, Matrix, MatrixMut, Packed, Reduction, product};
use super::{Arithmetic, multiversion};

/// out = max-product of left and right, which are not negative. A term is the product that f32 has, and the largest is
/// the same number in whichever order they are compared: the same bits on every machine.
pub(in crate::backend::cpu) fn multiply_max(
    arithmetic: Arithmetic,
    out: MatrixMut<'_>,
    left: Matrix<'_>,
    right: &Packed,
    scratch: &mut LeftScratch,
) {
    assert_eq!(arithmetic.precision, Precision::F32, "the largest of rounded terms is another one");
    product(Reduction::Largest, arithmetic, out, left, right, scratch);
}

multiversion! {
    /// The c with the largest left\[c\]·right\[c\]; the first of several. No term may be negative.
    pub(in crate::backend::cpu) fn largest_term(left: &[f32], right: &[f32]) -> usize = largest_term_body;
}

#[inline(always)]
fn largest_term_body(left: &[f32], right: &[f32]) -> usize {
    const LANES: usize = 16;
    let (mut most, mut step_of) = ([-1f32; LANES], [0u32; LANES]);
    let (lefts, rights) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest = lefts.remainder().iter().zip(rights.remainder());
    for (step, (left, right)) in lefts.zip(rights).enumerate() {
        for lane in 0..LANES {
            let term = left[lane] * right[lane];
            let is_larger = term > most[lane];
            most[lane] = if is_larger { term } else { most[lane] };
            step_of[lane] = if is_larger { step as u32 } else { step_of[lane] };
        }
    }
    // No branches: which lane has the largest is different every time.
    let mut best = most.iter().fold(-1f32, |best, &term| if term > best { term } else { best });
    let mut chosen = u32::MAX;
    for lane in 0..LANES {
        let at = step_of[lane] * LANES as u32 + lane as u32;
        chosen = chosen.min(if most[lane] == best { at } else { u32::MAX });
    }
    let mut chosen = chosen as usize;
    for (at, (left, right)) in (left.len() / LANES * LANES..).zip(rest) {
        if left * right > best {
            (chosen, best) = (at, left * right);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::testing::random;
    use super::super::{Isa, IsaCap};
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_largest_term_is_found_to_the_bit_for_all_shapes_and_instruction_sets() {
        let mut rng = Rng::new(7);
        let (mut packed, mut scratch) = (Packed::default(), LeftScratch::default());
        for isa in IsaCap::NAMES.map(|(_, cap)| Isa::detect(cap)) {
            let arithmetic = Arithmetic::new(isa, Precision::F32);
            // More depth than is taken at once, rows that are copied, panels that are not full.
            for (m, k, n) in [(1, 1, 1), (7, 31, 33), (17, 33, 15), (13, 300, 40), (19, 520, 64), (5, 2500, 33)] {
                let [mut a, w] = [m * (k + 3), n * (k + 2)].map(|len| random(&mut rng, len));
                // Zeros, numbers below the normal range and products that fall there.
                a.iter_mut().step_by(3).for_each(|x| *x = 0.0);
                a.iter_mut().skip(1).step_by(7).for_each(|x| *x *= 1e-38);
                let row = rng.below(m) * (k + 3);
                a[row..row + k].fill(0.0);
                packed.pack_transposed(arithmetic, Matrix::new(&w, n, k, k + 2));
                let mut out = vec![-7.0; m * (n + 1)];
                let to = MatrixMut::new(&mut out, m, n, n + 1);
                multiply_max(arithmetic, to, Matrix::new(&a, m, k, k + 3), &packed, &mut scratch);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let terms = (0..k).map(|l| a[i * (k + 3) + l] * w[j * (k + 2) + l]);
                    let (got, want) = (out[i * (n + 1) + j], terms.fold(0.0, f32::max));
                    assert_eq!(got.to_bits(), want.to_bits(), "{}, {m}×{k}×{n}: {got} is not {want}", isa.name());
                }
                assert!(out.chunks(n + 1).all(|row| row[n] == -7.0), "the padding between rows is left alone");
            }
        }
    }

    #[test]
    fn the_first_of_the_largest_terms_is_chosen_on_every_instruction_set() {
        let mut rng = Rng::new(8);
        for isa in IsaCap::NAMES.map(|(_, cap)| Isa::detect(cap)) {
            for len in [1, 2, 15, 16, 17, 32, 33, 64, 100] {
                for shades in [1, 2, 5, 1000] {
                    // Few different numbers, so that several terms are the largest; zeros everywhere too.
                    let mut draw = || (0..len).map(|_| rng.below(shades) as f32 / 8.0).collect::<Vec<f32>>();
                    let (left, right) = (draw(), draw());
                    let mut want = 0;
                    for at in 0..len {
                        want = if left[at] * right[at] > left[want] * right[want] { at } else { want };
                    }
                    assert_eq!(largest_term(isa, &left, &right), want, "{}: {left:?}·{right:?}", isa.name());
                }
            }
        }
    }
}
