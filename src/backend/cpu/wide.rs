//! A row on its way through many factors, in double precision.
//!
//! The same as a stored row (`scaled`), numbers times a power of two with a loss, but with room for two thousand bits
//! between the largest and the smallest number where single precision has a hundred.

use super::scaled::{NO_LOSS, Scale, TINY_BITS, TOTAL_LOSS, ZERO};

/// Largest numbers are kept near 2^this: far from overflow even after a factor as large as `f32` has them, and as far
/// as can be from underflow.
const TOP: i64 = 880;

/// Below 2^this the row is lifted before the next factor: a factor of single precision takes no more than 149 bits.
const LOW: i64 = 700;

/// The smallest normal number is 2^this.
const BOTTOM: i64 = -1022;

/// A running product.
#[derive(Default)]
pub(super) struct WideRow {
    /// Times 2^(exponent − TOP).
    numbers: Vec<f64>,
    scale: Scale,
    max: f64,
}

impl WideRow {
    /// A row of ones.
    pub fn start(&mut self, units: usize) {
        self.max = two_to(TOP - 1); // in [½, 1) of the top: no need to move it
        self.numbers.clear();
        self.numbers.resize(units, self.max);
        self.scale = Scale { exponent: 1, ..Scale::UNIT };
    }

    /// Multiplies by a factor, of numbers at a scale.
    #[inline(always)]
    pub fn multiply(&mut self, values: &[f32], scale: Scale) {
        let shift = if self.max > 0.0 && self.max.is_finite() { exponent_of(self.max) - TOP } else { 0 };
        if !(LOW - TOP..=0).contains(&shift) {
            self.shift(shift);
        }
        self.scale = self.scale.times(scale);
        let (mut max, mut lost) = (0f64, 0);
        for (x, &value) in self.numbers.iter_mut().zip(values) {
            let before = *x;
            *x *= f64::from(value);
            max = if *x > max { *x } else { max };
            lost |= u32::from(*x < f64::MIN_POSITIVE) & u32::from(before > 0.0) & u32::from(value > 0.0);
        }
        self.max = max;
        self.note_loss(lost != 0);
    }

    /// Takes `shift` bits from the numbers and gives them to the exponent. In two halves: where a zero has taken the
    /// leader away, whoever follows may be further behind than one power of two can lift.
    fn shift(&mut self, shift: i64) {
        let (half, rest) = (two_to(-(shift / 2)), two_to(-(shift - shift / 2)));
        let mut lost = 0;
        for x in &mut self.numbers {
            let before = *x;
            *x = before * half * rest;
            lost |= u32::from(*x < f64::MIN_POSITIVE) & u32::from(before > 0.0);
        }
        self.scale.exponent += shift;
        self.note_loss(lost != 0);
    }

    /// Something has fallen below the normal range.
    fn note_loss(&mut self, is_lost: bool) {
        if is_lost {
            self.scale.loss = self.scale.loss.max(self.scale.exponent + BOTTOM - TOP);
        }
    }

    /// Writes the row in standard form.
    #[inline(always)]
    pub fn finish(&self, out: &mut [f32]) -> Scale {
        let Scale { exponent, loss } = self.scale;
        if !self.numbers.iter().all(|x| x.is_finite()) {
            out.fill(0.0);
            return Scale { exponent: ZERO, loss: TOTAL_LOSS };
        }
        if self.max < f64::MIN_POSITIVE || exponent <= ZERO {
            out.fill(0.0);
            return Scale { exponent: ZERO, loss };
        }
        let top = exponent_of(self.max);
        let exponent = exponent + top - TOP;
        let tiny = two_to((top - TINY_BITS).max(BOTTOM));
        let factor = two_to(-top);
        let mut lost = 0;
        for (out, &x) in out.iter_mut().zip(&self.numbers) {
            lost |= u32::from(x < tiny) & u32::from(x > 0.0);
            *out = if x < tiny { 0.0 } else { (x * factor) as f32 };
        }
        let dropped = if lost != 0 { exponent - TINY_BITS } else { NO_LOSS };
        Scale { exponent, loss: loss.max(dropped) }
    }
}

/// The e with x·2^−e in [½, 1), for a normal x.
fn exponent_of(x: f64) -> i64 {
    (x.to_bits() >> 52 & 0x7ff) as i64 - 1022
}

/// 2^exponent, for exponents of normal numbers.
fn two_to(exponent: i64) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// log2 of each number.
    fn logs(row: &[f32], scale: Scale) -> Vec<f64> {
        row.iter().map(|&x| f64::from(x).log2() + scale.exponent as f64).collect()
    }

    #[test]
    fn who_lags_by_hundreds_of_bits_may_still_win() {
        // Unit 0 leads by 600 bits after the first half, and unit 1 by 300 at the end.
        let mut wide = WideRow::default();
        wide.start(2);
        (0..60).for_each(|_| wide.multiply(&[1.0, 2f32.powi(-10)], Scale::UNIT));
        (0..60).for_each(|_| wide.multiply(&[2f32.powi(-15), 1.0], Scale { exponent: -3, loss: NO_LOSS }));
        let mut out = [0.0; 2];
        let scale = wide.finish(&mut out);
        assert_eq!((out, scale.exponent), ([0.0, 0.5], -600 - 180 + 1));
        assert_eq!(scale.loss, scale.exponent - TINY_BITS, "what is dropped at the end, and nothing before");
    }

    #[test]
    fn zeros_infinities_and_what_even_this_cannot_hold_are_told_apart() {
        let finish = |factors: &[[f32; 2]]| {
            let mut wide = WideRow::default();
            wide.start(2);
            factors.iter().for_each(|values| wide.multiply(values, Scale::UNIT));
            let mut out = [9.0; 2];
            (wide.finish(&mut out), out)
        };
        assert_eq!(finish(&[[0.0, 1.0], [1.0, 0.0]]), (Scale { exponent: ZERO, loss: NO_LOSS }, [0.0; 2]));
        assert_eq!(finish(&[[f32::INFINITY, 1.0]]).0.loss, TOTAL_LOSS);
        assert_eq!(finish(&[[f32::NAN, 1.0]]).0.loss, TOTAL_LOSS);
        let far = [[1.0, 2f32.powi(-100)]; 30];
        let (scale, out) = finish(&far);
        assert_eq!(out, [0.5, 0.0]);
        assert!((-2000..-1900).contains(&scale.loss), "3000 bits below, and known to be so small: {scale:?}");
        // The leader dies: who follows, up to 1,900 bits behind, is all there is.
        for (behind, after) in [(6, 3), (11, 0), (12, 1), (15, 40), (18, 0), (18, 2)] {
            let factors = [&far[..behind], &[[0.0, 1.0]], &[[1.0, 1.0]; 40][..after]].concat();
            let (scale, out) = finish(&factors);
            assert_eq!((out, scale.exponent), ([0.0, 0.5], 1 - 100 * behind as i64), "{behind} {after}");
            assert_eq!(scale.loss, NO_LOSS);
        }
        let larger = [&far[..18], &[[1.0, 2f32.powi(-80)], [2f32.powi(120), 1.0], [1.0, 1.0], [0.0, 1.0]]].concat();
        assert!(finish(&larger).0.loss > ZERO, "a factor above one pushes what lags out of range");
        let (scale, _) = finish(&[&far[..], &[[0.0, 1.0]]].concat());
        assert!(scale.exponent == ZERO && scale.loss > ZERO, "only what was lost is left: not a true zero");
    }

    proptest! {
        #[test]
        fn a_product_is_the_sum_of_logarithms(
            factors in prop::collection::vec((prop::collection::vec(-120f64..0.0, 5), -9i64..9), 1..80),
            zeros in prop::collection::vec((0usize..80, 0usize..5), 0..4),
        ) {
            let mut wide = WideRow::default();
            wide.start(5);
            let mut exact = [0f64; 5];
            for (i, (logs, exponent)) in factors.iter().enumerate() {
                let mut values: Vec<f32> = logs.iter().map(|log| log.exp2() as f32).collect();
                zeros.iter().filter(|(at, _)| *at == i).for_each(|(_, unit)| values[*unit] = 0.0);
                wide.multiply(&values, Scale { exponent: *exponent, loss: NO_LOSS });
                exact.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x).log2() + *exponent as f64);
            }
            let mut out = [0f32; 5];
            let scale = wide.finish(&mut out);
            let top = exact.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            // Random factors stay within two thousand bits; a zero may take away the leader and leave what lagged
            // further.
            let is_exact = scale.loss <= scale.exponent - TINY_BITS;
            prop_assert!(is_exact || (!zeros.is_empty() && scale.loss > ZERO));
            for (got, exact) in logs(&out, scale).into_iter().zip(exact) {
                let is_near = got == exact || (got - exact).abs() < 1e-6;
                let is_dropped = got == f64::NEG_INFINITY && exact < top - 99.0;
                prop_assert!(!is_exact || is_near || is_dropped, "{got} is not {exact}");
            }
        }
    }
}
