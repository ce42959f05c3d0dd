//! Page–Hinkley: how far observations have fallen below their usual level, added up.
//!
//! Page (1954), Hinkley (1971), for falls alone. With z = (usual − x)/σ, how many deviations an observation is below
//! the usual,
//!
//! ```text
//! excess ← max(0, excess + z − tolerance),   an alarm where excess > threshold
//! ```
//!
//! which is their sum minus its minimum so far. The usual level and deviation are moving means, so that a model that
//! learns is compared with what it was lately; nothing changes if all likelihoods are shifted or scaled. A single
//! observation counts for a quarter of the threshold at the most: one batch of nonsense is no drift. Part of
//! [`DriftWatch`](super::DriftWatch).

use serde::{Deserialize, Serialize};

use super::Fall;

/// Observations before one can be unusual.
const FIRST: u64 = 20;

/// What an observation counts for among those before it, once there are enough of them.
const SHARE: f64 = 0.01;

/// Observations that an alarm takes at the least.
const LEAST: f64 = 4.0;

/// A sum of falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageHinkley {
    /// λ: deviations that it takes.
    threshold: f64,
    /// Deviations that an observation may be below the usual for nothing.
    tolerance: f64,
    /// Observations since the start or the last alarm.
    observations: u64,
    rows: u64,
    /// Moving mean of the observations, and of their squared distance from it times their weight.
    usual: f64,
    variance: f64,
    excess: f64,
    /// What the sum is of: observations since it was zero.
    fallen: Fallen,
}

/// Observations since the sum was zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Fallen {
    rows: u64,
    weight: f64,
    sum: f64,
}

impl PageHinkley {
    /// Nothing seen.
    pub fn new(threshold: f64, tolerance: f64) -> Self {
        Self {
            threshold,
            tolerance,
            observations: 0,
            rows: 0,
            usual: 0.0,
            variance: 0.0,
            excess: 0.0,
            fallen: Fallen::default(),
        }
    }

    /// The same sum with other options.
    pub fn set_options(&mut self, threshold: f64, tolerance: f64) {
        (self.threshold, self.tolerance) = (threshold, tolerance);
    }

    /// Takes in the mean of some rows; both numbers are finite and the weight is positive. Returns the fall that it
    /// made certain, if any.
    pub fn add(&mut self, mean: f64, weight: f64, rows: u64) -> Option<Fall> {
        self.observations += 1;
        self.rows += rows;
        if self.observations == 1 {
            self.usual = mean;
            return None;
        }
        let deviation = (self.variance / weight).sqrt(); // of a mean of this weight
        let mut below = self.usual - mean;
        if self.observations > FIRST && deviation > 0.0 {
            let most = self.threshold / LEAST + self.tolerance;
            below = below.clamp(-most * deviation, most * deviation);
            self.excess += below / deviation - self.tolerance;
            let Fallen { rows: before, weight: heavy, sum } = self.fallen;
            self.fallen = Fallen { rows: before + rows, weight: heavy + weight, sum: sum + weight * mean };
            if self.excess > self.threshold {
                let Fallen { rows, weight, sum } = self.fallen;
                let fall = Fall { before: self.usual, after: sum / weight, rows, window: self.rows - rows };
                self.reset();
                return Some(fall);
            }
            if self.excess <= 0.0 {
                (self.excess, self.fallen) = (0.0, Fallen::default());
            }
        }
        let share = (1.0 / self.observations as f64).max(SHARE);
        self.variance = (1.0 - share) * (self.variance + share * below * below * weight);
        self.usual -= share * below;
        None
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        *self = Self::new(self.threshold, self.tolerance);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    /// Noise of deviation one.
    fn noise(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.uniform()).sum::<f64>() - 6.0
    }

    fn streams() -> impl Strategy<Value = Vec<(f64, f64)>> {
        let parts = prop::collection::vec((-9.0..9.0f64, 1usize..80), 1..5);
        (parts, any::<u64>()).prop_map(|(parts, seed)| {
            let mut rng = Rng::new(seed);
            let levels = parts.into_iter().flat_map(|(level, n)| std::iter::repeat_n(level, n));
            levels.map(|level| (level + noise(&mut rng), (1.0 + 9.0 * rng.uniform()).round())).collect()
        })
    }

    proptest! {
        #[test]
        fn likelihoods_shifted_or_scaled_give_the_same_alarms(
            stream in streams(), shift in -1e3..1e3f64, scale in 1e-3..1e3f64
        ) {
            let (mut here, mut there) = (PageHinkley::new(12.0, 0.5), PageHinkley::new(12.0, 0.5));
            for (x, weight) in stream {
                let (a, b) = (here.add(x, weight, 1), there.add(shift + scale * x, 3.0 * weight, 1));
                prop_assert_eq!(a.map(|fall| fall.rows), b.map(|fall| fall.rows));
            }
        }

        #[test]
        fn what_was_saved_on_the_way_gives_the_same_alarms(stream in streams(), at in 0usize..320) {
            let (mut through, mut resumed) = (PageHinkley::new(12.0, 0.5), PageHinkley::new(12.0, 0.5));
            for (number, (x, weight)) in stream.into_iter().enumerate() {
                if number == at {
                    resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
                }
                prop_assert_eq!(through.add(x, weight, 1), resumed.add(x, weight, 1));
            }
            prop_assert_eq!(through, resumed);
        }

        #[test]
        fn the_excess_is_the_sum_of_page_and_hinkley_minus_its_minimum(seed in any::<u64>()) {
            let mut rng = Rng::new(seed);
            let mut detector = PageHinkley::new(1e9, 0.5);
            let (mut sum, mut least) = (0.0, 0.0f64);
            for number in 0..200 {
                let (x, usual, variance) = (noise(&mut rng), detector.usual, detector.variance);
                detector.add(x, 1.0, 1);
                if number >= FIRST {
                    sum += (usual - x) / variance.sqrt() - 0.5;
                    least = least.min(sum);
                }
                prop_assert!((detector.excess - (sum - least)).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn improvement_and_a_single_wild_batch_say_nothing_and_a_fall_is_found_once() {
        for seed in 0..20 {
            let (mut detector, mut rng) = (PageHinkley::new(20.0, 0.5), Rng::new(seed));
            for t in 0..3000 {
                let level = -40.0 * (1.0 + f64::from(t) / 50.0).powf(-0.7) - if t == 2000 { 1e6 } else { 0.0 };
                assert_eq!(detector.add(level + noise(&mut rng), 64.0, 64), None, "seed {seed}, observation {t}");
            }
            let level = -40.0 * 61f64.powf(-0.7) - 2.0;
            let alarms: Vec<_> = (0..300).filter_map(|_| detector.add(level + noise(&mut rng), 64.0, 64)).collect();
            assert!(alarms.len() == 1 && alarms[0].rows < 40 * 64, "seed {seed}: {alarms:?}");
        }
    }
}
