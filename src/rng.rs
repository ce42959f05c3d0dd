//! The one source of randomness: a small seeded generator of our own.
//!
//! Structures, initial parameters and samples must be the same for the same seed in every release, so the stream may
//! not depend on another crate's internals. This is xoshiro256++ (Blackman and Vigna) seeded through SplitMix64.

/// A seeded generator. Two generators of one seed give the same stream in every release.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mixer = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut mixer)) }
    }

    /// An independent stream of the same seed: stream 3 is the same whether or not stream 2 was ever used.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut mixer = stream;
        Self::new(seed ^ split_mix(&mut mixer))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform on [0, 1) with 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform on `0..bound` without bias.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "below(0) has no value to give");
        let bound = bound as u64;
        // Lemire's multiply-shift; values in the short last interval are drawn again.
        let reject_under = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            if wide as u64 >= reject_under {
                return (wide >> 64) as usize;
            }
        }
    }

    /// Standard normal (Box–Muller, one value a call).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// An index drawn in proportion to `weights`, which are non-negative with a positive sum.
    pub fn weighted(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let total: f64 = weights.clone().sum();
        pick(self.uniform() * total, weights)
    }

    /// Fisher–Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The index at which the running sum of `weights` passes `left`, a point below their total.
pub(crate) fn pick(mut left: f64, weights: impl Iterator<Item = f64>) -> usize {
    let mut last_positive = 0;
    for (i, w) in weights.enumerate() {
        if w > 0.0 {
            last_positive = i;
            left -= w;
            if left < 0.0 {
                return i;
            }
        }
    }
    last_positive // rounding left a sliver at the end
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_is_uniform_and_uniform_has_its_moments() {
        let mut rng = Rng::new(1);
        let mut counts = [0usize; 7];
        let (mut mean, mut square) = (0.0, 0.0);
        for _ in 0..70_000 {
            counts[rng.below(7)] += 1;
            let x = rng.normal();
            mean += x / 70_000.0;
            square += x * x / 70_000.0;
        }
        // Six standard deviations of a binomial(70000, 1/7) are 556.
        assert!(counts.iter().all(|&c| c.abs_diff(10_000) < 556), "{counts:?}");
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.04, "{mean} {square}");
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |stream| Rng::stream(5, stream).next_u64();
        assert_ne!(draw(0), draw(1));
        assert_eq!(draw(1), draw(1));
    }

    #[test]
    fn weighted_never_picks_a_zero_weight() {
        let mut rng = Rng::new(3);
        let weights = [0.0, 0.2, 0.0, 0.8, 0.0];
        for _ in 0..1000 {
            assert!([1, 3].contains(&rng.weighted(weights.iter().copied())));
        }
    }
}
