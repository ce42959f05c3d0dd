//! Rows in scaled linear space.
//!
//! A stored row is a vector of non-negative `f32` times 2^e, with e chosen so that the largest entry lies in [2^−30,
//! 1]: most rows are there as they come and are left alone. Scaling by powers of two is exact, so scales cost no
//! accuracy. Entries below [`TINY`] are set to zero; that is nearly always harmless, but not always: a later product
//! may remove the large entries and leave only what was dropped. So each row carries a *loss*, an exponent that bounds
//! the absolute error of its entries. A sum that lifts all its outputs far above the loss forgets it; a row whose loss
//! reaches the root is computed again in log space (`log_space`).

/// Exponent of a row of zeros, and the smallest exponent there is.
pub(super) const ZERO: i64 = -(1 << 40);

/// Loss of a row that has lost nothing.
pub(super) const NO_LOSS: i64 = -(1 << 50);

/// Any loss above this is one.
pub(super) const SOME_LOSS: i64 = -(1 << 49);

/// Loss of a row that is not worth anything: infinite or not a number.
pub(super) const TOTAL_LOSS: i64 = 1 << 50;

/// Bits below the largest entry at which entries are dropped. Small enough that flow/value cannot overflow `f32`.
pub(super) const TINY_BITS: i64 = 100;

/// 2^−TINY_BITS.
const TINY: f32 = f32::from_bits(((127 - TINY_BITS) as u32) << 23);

/// How many bits an error must stay below a result to be called none: 2^−30 is 1e-9, well inside `f32` rounding.
pub(super) const SAFE_BITS: i64 = 30;

/// Exponent and loss of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scale {
    /// The row's entries are times 2^this.
    pub exponent: i64,
    /// Errors of the row's entries are below 2^this.
    pub loss: i64,
}

impl Scale {
    /// A row of which nothing is known but that its largest entry may be anything up to 1: a table row, or ones.
    pub const UNIT: Self = Self { exponent: 0, loss: NO_LOSS };

    /// The scale of a ⊙ b before rescaling: (a+δa)(b+δb) − ab = δa·b + δb·a + δa·δb, with rows bounded by 2^exponent.
    #[inline(always)]
    pub fn times(self, other: Self) -> Self {
        let exponent = self.exponent + other.exponent;
        let loss = (self.loss + other.exponent).max(other.loss + self.exponent).max(self.loss + other.loss);
        // Two rows that are not zero may have a product too small for any exponent we keep: that is a loss, not a zero.
        let vanished = exponent <= ZERO && self.exponent > ZERO && other.exponent > ZERO;
        let is_lossy = vanished || self.loss > SOME_LOSS || other.loss > SOME_LOSS;
        Self { exponent: exponent.max(ZERO), loss: if is_lossy { loss.clamp(ZERO, TOTAL_LOSS) } else { NO_LOSS } }
    }
}

/// The e with x·2^−e in [½, 1), for a normal x.
#[inline(always)]
fn exponent_of(bits: u32) -> i64 {
    i64::from(bits >> 23) - 126
}

/// 2^−shift, for shifts that f32 can express.
#[inline(always)]
pub(super) fn two_to_minus(shift: i64) -> f32 {
    debug_assert!((-127..=126).contains(&shift));
    f32::from_bits(((127 - shift) as u32) << 23)
}

/// The extremes of a row of non-negative numbers, as bits: integer comparisons order them and vectorise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes {
    /// Largest entry.
    pub max: u32,
    /// Smallest entry.
    pub min: u32,
}

#[inline(always)]
pub(super) fn extremes(row: &[f32]) -> Extremes {
    let (mut max, mut min) = (0, u32::MAX);
    for x in row {
        let bits = x.to_bits();
        max = max.max(bits);
        min = min.min(bits);
    }
    Extremes { max, min }
}

/// What a product of rows found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplied {
    /// Largest and smallest result.
    pub seen: Extremes,
    /// Whether a product of two positive numbers fell below the normal range.
    pub lost: bool,
}

/// acc ⊙= b.
#[inline(always)]
pub(super) fn multiply_into(acc: &mut [f32], b: &[f32]) -> Multiplied {
    let (mut max, mut min, mut lost) = (0, u32::MAX, 0);
    for (x, &y) in acc.iter_mut().zip(b) {
        let before = *x;
        *x *= y;
        let bits = x.to_bits();
        max = max.max(bits);
        min = min.min(bits);
        lost |= u32::from(bits < SMALLEST_NORMAL) & u32::from(before > 0.0) & u32::from(y > 0.0);
    }
    Multiplied { seen: Extremes { max, min }, lost: lost != 0 }
}

/// out = a ⊙ b.
#[inline(always)]
pub(super) fn multiply_rows(out: &mut [f32], a: &[f32], b: &[f32]) -> Multiplied {
    let (mut max, mut min) = (0, u32::MAX);
    for ((out, &x), &y) in out.iter_mut().zip(a).zip(b) {
        *out = x * y;
        max = max.max(out.to_bits());
        min = min.min(out.to_bits());
    }
    let mut lost = false;
    if min < SMALLEST_NORMAL {
        lost = out.iter().zip(a).zip(b).any(|((out, x), y)| out.to_bits() < SMALLEST_NORMAL && *x > 0.0 && *y > 0.0);
    }
    Multiplied { seen: Extremes { max, min }, lost }
}

/// What a product of several rows found, all as bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct MultipliedAll {
    /// Largest and smallest result.
    pub seen: Extremes,
    /// Where factors are watched, the largest number of any of them; else zero.
    pub largest_factor: u32,
    /// Where they are watched: the partial products, from two factors to all but one, each have a largest number, and
    /// this is the smallest of these. `u32::MAX` where there are two factors, or nobody watches.
    pub lowest_partial: u32,
}

/// out = the product of all factors, unit by unit, from the first to the last. To watch the factors takes half as long
/// again.
#[inline(always)]
pub(super) fn multiply_all<const N: usize, const IS_WATCHED: bool>(
    out: &mut [f32],
    factors: [&[f32]; N],
) -> MultipliedAll {
    assert!(factors.iter().all(|factor| factor.len() == out.len()), "factors have as many units as their product");
    let (mut min, mut largest_factor) = (u32::MAX, 0);
    // The largest number after each factor.
    let mut max = [0; N];
    for (i, out) in out.iter_mut().enumerate() {
        let mut product = 1.0;
        for (nth, (factor, max)) in factors.iter().zip(&mut max).enumerate() {
            // SAFETY: all are as long as `out`. With a check in the loop the compiler would do the last units of a row
            // one by one, which in a short row are all of them.
            let factor = unsafe { *factor.get_unchecked(i) };
            product = if nth == 0 { factor } else { product * factor };
            if IS_WATCHED {
                *max = product.to_bits().max(*max);
                largest_factor = largest_factor.max(factor.to_bits());
            }
        }
        *out = product;
        min = min.min(product.to_bits());
        if !IS_WATCHED {
            max[N - 1] = product.to_bits().max(max[N - 1]);
        }
    }
    let partial = if IS_WATCHED { &max[1..N - 1] } else { &[] };
    let lowest_partial = partial.iter().copied().min().unwrap_or(u32::MAX);
    MultipliedAll { seen: Extremes { max: max[N - 1], min }, largest_factor, lowest_partial }
}

/// Whether a row can stay as it is: no entry above 1, the largest not far below, none to be dropped.
#[inline(always)]
pub(super) fn is_comfortable(seen: Extremes) -> bool {
    seen.max <= ONE && seen.max >= COMFORTABLE && seen.min >= TINY.to_bits()
}

/// Brings a row to standard form, if it is not in it already.
#[inline(always)]
pub(super) fn standardize_row(row: &mut [f32], seen: Extremes, scale: Scale) -> Scale {
    if is_comfortable(seen) && scale.exponent > ZERO { scale } else { normalize_row(row, seen.max, scale) }
}

const ONE: u32 = 0x3f80_0000;

/// 2^−30.
const COMFORTABLE: u32 = (127 - 30) << 23;

const SMALLEST_NORMAL: u32 = 0x0080_0000;

/// 2^−100: a sum of terms this small may have lost digits to terms below the normal range.
pub(super) const DOUBTFUL: f32 = TINY;

/// Loss of entries that fell out of the normal range of a row at this exponent.
#[inline(always)]
pub(super) fn underflow_loss(exponent: i64) -> i64 {
    exponent - 126
}

/// Multiplies a row by 2^−shift and drops what falls below TINY. Whether something did.
#[inline(always)]
fn shift_row(row: &mut [f32], shift: i64) -> bool {
    let factor = two_to_minus(shift);
    let mut lost = 0;
    for x in row.iter_mut() {
        let scaled = *x * factor;
        let keep = scaled >= TINY;
        lost |= u32::from(!keep) & u32::from(*x > 0.0);
        *x = if keep { scaled } else { 0.0 };
    }
    lost != 0
}

/// Brings a row, whose largest entry is `max`, to standard form.
#[inline(always)]
pub(super) fn normalize_row(row: &mut [f32], max: u32, scale: Scale) -> Scale {
    let exponent = scale.exponent + exponent_of(max);
    align_row(row, max, scale, exponent)
}

/// Brings a row to a given exponent, not below its own: its largest entry ends up at most 1.
#[inline(always)]
pub(super) fn align_row(row: &mut [f32], max: u32, scale: Scale, exponent: i64) -> Scale {
    let Scale { exponent: before, loss } = scale;
    if max >= f32::INFINITY.to_bits() {
        row.fill(0.0);
        return Scale { exponent: ZERO, loss: TOTAL_LOSS };
    }
    if max == 0 || before <= ZERO {
        row.fill(0.0);
        return Scale { exponent: ZERO, loss };
    }
    let own = before + exponent_of(max);
    if max < SMALLEST_NORMAL || exponent - own > TINY_BITS || exponent - before > 126 {
        // The row has lost its digits already, or everything in it would be dropped.
        row.fill(0.0);
        return Scale { exponent: ZERO, loss: loss.max(own) };
    }
    let lost = shift_row(row, exponent - before);
    Scale { exponent, loss: if lost { loss.max(exponent - TINY_BITS) } else { loss } }
}

/// Whether a row has lost more than it must: in standard form nothing is dropped but what is TINY_BITS below the
/// largest entry.
#[inline(always)]
pub(super) fn is_needlessly_lossy(scale: Scale) -> bool {
    scale.loss > SOME_LOSS && scale.loss > scale.exponent - TINY_BITS
}

/// The exponent that a row would have in standard form; `ZERO` for a row of zeros.
#[inline(always)]
pub(super) fn standard_exponent(max: u32, exponent: i64) -> i64 {
    if max == 0 || exponent <= ZERO { ZERO } else { exponent + exponent_of(max) }
}

/// Whether every entry of a row is so far above its loss that the loss can be forgotten. `min` is the smallest
/// entry before the row was brought to `scale`, at exponent `before`.
#[inline(always)]
pub(super) fn is_above_loss(min: u32, before: i64, scale: Scale) -> bool {
    min >= SMALLEST_NORMAL
        && before + exponent_of(min) > scale.loss + SAFE_BITS
        && before + exponent_of(min) > scale.exponent - TINY_BITS
}

/// A bound on log2(F/v·2^shift) for a flow below 1 and the smallest positive v.
#[inline(always)]
pub(super) fn gain_bits(smallest: u32, shift: i64) -> i64 {
    shift - exponent_of(smallest) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(row: &[f32], scale: Scale) -> Vec<f64> {
        row.iter().map(|&x| f64::from(x) * 2f64.powi(scale.exponent as i32)).collect()
    }

    #[test]
    fn normalising_is_exact_and_reports_what_it_drops() {
        let mut row = [3e-5f32, 7e-20, 0.0];
        let before: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        let max = extremes(&row).max;
        let scale = normalize_row(&mut row, max, Scale::UNIT);
        assert!(row[0] >= 0.5 && row[0] < 1.0);
        assert_eq!(total(&row, scale), before, "powers of two are exact");
        assert_eq!(scale.loss, NO_LOSS);

        let mut row = [0.75f32, 1e-35];
        let max = extremes(&row).max;
        let scale = normalize_row(&mut row, max, Scale::UNIT);
        assert_eq!(row, [0.75, 0.0]);
        assert_eq!(scale, Scale { exponent: 0, loss: -100 });
    }

    #[test]
    fn a_product_that_underflows_says_so_and_a_true_zero_does_not() {
        assert!(multiply_into(&mut [1.0, 1e-25], &[1.0, 1e-25]).lost);
        assert!(!multiply_into(&mut [1.0, 0.0], &[1.0, 1e-25]).lost);
        assert!(multiply_rows(&mut [0.0; 2], &[1.0, 1e-25], &[1.0, 1e-25]).lost);
        assert!(!multiply_rows(&mut [0.0; 2], &[1.0, 0.0], &[1.0, 1e-25]).lost);
    }

    #[test]
    fn many_factors_are_multiplied_in_their_order() {
        for len in [0, 1, 7, 16, 31, 64, 67] {
            let number = |row: usize, i: usize| ((7919 * i + 10_473 * row + 17) % 1000) as f32 / 333.0;
            let rows: [Vec<f32>; 4] = std::array::from_fn(|row| (0..len).map(|i| number(row, i)).collect());
            let expected: Vec<f32> = (0..len).map(|i| rows.iter().map(|row| row[i]).product()).collect();
            let mut out = vec![f32::NAN; len];
            let found = multiply_all::<4, true>(&mut out, rows.each_ref().map(|row| &row[..]));
            assert_eq!(out, expected);
            let largest = |values: &[f32]| values.iter().copied().fold(0.0, f32::max).to_bits();
            let smallest = expected.iter().map(|x| x.to_bits()).min().unwrap_or(u32::MAX);
            assert_eq!((found.seen.max, found.seen.min), (largest(&expected), smallest), "{len} units");
            assert_eq!(found.largest_factor, largest(&rows.concat()), "{len} units");
            let partial = |count: usize| -> Vec<f32> {
                (0..len).map(|i| rows[..count].iter().map(|row| row[i]).product()).collect()
            };
            let lowest = largest(&partial(2)).min(largest(&partial(3)));
            assert_eq!(found.lowest_partial, lowest, "{len} units");
            let (watched, product) = (found.seen, out.clone());
            let unwatched = multiply_all::<4, false>(&mut out, rows.each_ref().map(|row| &row[..]));
            assert_eq!((unwatched.seen.max, unwatched.seen.min, &out), (watched.max, watched.min, &product));
            let two = multiply_all::<2, true>(&mut out, [&rows[0], &rows[1]]);
            assert_eq!((two.lowest_partial, out), (u32::MAX, partial(2)), "{len} units");
        }
    }

    #[test]
    fn losses_multiply_with_the_other_factor() {
        let a = Scale { exponent: -3, loss: -90 };
        let b = Scale { exponent: 10, loss: NO_LOSS };
        assert_eq!(a.times(b), Scale { exponent: 7, loss: -80 });
        assert!(b.times(b).loss <= SOME_LOSS, "no loss stays none");
        let zero = Scale { exponent: ZERO, loss: NO_LOSS };
        assert_eq!(a.times(zero).exponent, ZERO);
        let far = Scale { exponent: ZERO, loss: ZERO };
        let many = (0..10_000).fold(far, |product, _| product.times(far));
        assert!(many.loss > SOME_LOSS, "however small, what was lost is not forgotten");
        let total = Scale { exponent: ZERO, loss: TOTAL_LOSS };
        assert_eq!((0..10_000).fold(total, |product, _| product.times(total)).loss, TOTAL_LOSS);
        let dropped = |loss| Scale { exponent: ZERO, loss };
        assert_eq!(dropped(-60).times(dropped(-50)).loss, -110, "two rows that were dropped may still have a product");
    }
}
