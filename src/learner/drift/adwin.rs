//! ADWIN2: an adaptive window over observations, cut where its two parts are unlikely to have the same mean.
//!
//! Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing" (2007). The window is an exponential
//! histogram: at most [`PER_SIZE`] buckets of each size 1, 2, 4, … observations, so that a window of n observations
//! takes O(log n) numbers, and its newest part is cut finely. Their test for variables in [0, 1] is, with the observed
//! variance σ², m = 1/(1/n₀ + 1/n₁) and L = ln(2 ln n / δ),
//!
//! ```text
//! |μ₀ − μ₁| > √(2σ²L/m) + (2/3)·L/m
//! ```
//!
//! Log-likelihoods have no range, so the second term, which is what a bounded tail costs, is in units of the deviation
//! instead: (2/3)·σ·L/m. That is the test of observations divided by σ, and right for tails that are no heavier than
//! exponential ones of that scale, which means of many rows have. Nothing changes if all likelihoods are shifted or
//! scaled. σ² is the variance within the two parts, not of the whole window: the fall itself is no noise. Where the
//! likelihood has risen it is that of the newer part alone: the way up after a fall leaves the window soon.
//!
//! A learner may need no more than one or two batches to get used to other rows, so one observation may be all that
//! there is to see: with the default δ it has to be about 15 deviations below the others, two of them 9, ten 3.
//!
//! Observations have weights (rows of a batch), and a mean of w rows has the variance σ²/w: counts n₀ and n₁ become
//! sums of weights, σ² the variance per unit of weight, and the second term is of an observation of the mean weight.
//!
//! Whatever was before a cut is forgotten. A model that learns makes cuts too, upwards; only a fall is an alarm, so
//! slow improvement shortens the window and says nothing. Part of [`DriftWatch`](super::DriftWatch).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Fall;

/// Buckets of one size, the M of the paper.
const PER_SIZE: usize = 5;

/// Observations before a fall, or after a rise, at the least: fewer do not tell how far they usually are from each
/// other.
const LEAST: u64 = 16;

/// Differences below this share of the likelihoods themselves are rounding.
const ROUNDING: f64 = 1e-9;

/// Observations in a window at the most. A longer one would find differences that are real and that nobody wants to
/// know of.
const MOST: u64 = 1 << 13;

/// An adaptive window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adwin {
    /// δ: about how likely a false alarm is at one observation.
    delta: f64,
    /// Oldest first; sizes never grow from one to the next.
    buckets: VecDeque<Bucket>,
    /// Buckets of one size.
    #[serde(skip, default = "per_size")]
    per_size: usize,
}

fn per_size() -> usize {
    PER_SIZE
}

/// Some observations that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Bucket {
    /// How many.
    size: u64,
    rows: u64,
    weight: f64,
    /// Weighted mean.
    mean: f64,
    /// Σ w·(x − mean)²
    spread: f64,
}

impl Bucket {
    /// Both together (Chan, Golub and LeVeque 1979).
    fn and(self, other: Self) -> Self {
        let weight = self.weight + other.weight;
        let away = other.mean - self.mean;
        Self {
            size: self.size + other.size,
            rows: self.rows + other.rows,
            weight,
            mean: self.mean + away * (other.weight / weight),
            spread: self.spread + other.spread + away * away * (self.weight * other.weight / weight),
        }
    }
}

/// Where a window falls into two.
struct Cut {
    /// Buckets before it.
    at: usize,
    before: Bucket,
    after: Bucket,
    /// How many times as large the difference is as chance would have it.
    strength: f64,
}

impl Adwin {
    /// An empty window.
    pub fn new(delta: f64) -> Self {
        Self { delta, buckets: VecDeque::new(), per_size: PER_SIZE }
    }

    /// The same window with another δ.
    pub fn set_delta(&mut self, delta: f64) {
        self.delta = delta;
    }

    /// Rows in the window.
    pub fn rows(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.rows).sum()
    }

    /// Takes in the mean of some rows; both numbers are finite and the weight is positive. Returns the fall that it
    /// made certain, if any.
    pub fn add(&mut self, mean: f64, weight: f64, rows: u64) -> Option<Fall> {
        self.buckets.push_back(Bucket { size: 1, rows, weight, mean, spread: 0.0 });
        self.compress();
        while self.buckets.iter().map(|bucket| bucket.size).sum::<u64>() > MOST {
            self.buckets.pop_front();
        }
        let mut fall = None;
        while let Some(Cut { at, before, after, .. }) = self.strongest_cut() {
            if after.mean < before.mean {
                // The last one is nearest to what is the case now.
                fall = Some(Fall { before: before.mean, after: after.mean, rows: after.rows, window: before.rows });
            }
            self.buckets.drain(..at);
        }
        fall
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.buckets.clear();
    }

    /// Joins the two oldest of more than a few buckets of a size, which may make too many of the next one.
    fn compress(&mut self) {
        let mut end = self.buckets.len();
        while end > 0 {
            let size = self.buckets[end - 1].size;
            let first = self.buckets.iter().take(end).position(|bucket| bucket.size == size).unwrap_or(0);
            if end - first <= self.per_size {
                return; // larger ones are as they were
            }
            let joined = self.buckets[first].and(self.buckets[first + 1]);
            self.buckets[first] = joined;
            self.buckets.remove(first + 1);
            end = first + 1;
        }
    }

    /// The cut between two buckets that chance explains worst, if it does not explain it.
    fn strongest_cut(&self) -> Option<Cut> {
        let all = self.buckets.iter().copied().reduce(Bucket::and)?;
        if all.size <= LEAST {
            return None;
        }
        let usual_weight = all.weight / all.size as f64;
        let certainty = (2.0 * (all.size as f64).ln() / self.delta).ln(); // L
        // Sums from the newest on, not differences from `all`, which would lose digits.
        let mut afters: Vec<Bucket> = Vec::with_capacity(self.buckets.len());
        for bucket in self.buckets.iter().rev() {
            afters.push(afters.last().map_or(*bucket, |after| bucket.and(*after)));
        }
        afters.reverse();
        let mut before = *self.buckets.front()?;
        let mut strongest: Option<Cut> = None;
        for (at, &after) in afters.iter().enumerate().skip(1) {
            let away = (before.mean - after.mean).abs();
            let has_fallen = after.mean < before.mean;
            let least = if has_fallen { before.size } else { after.size };
            if least >= LEAST && away > ROUNDING * (before.mean.abs() + after.mean.abs()) {
                // Of one unit of weight. What comes before a rise is often the way up after a fall, and no measure.
                let variance = match has_fallen {
                    true => (before.spread + after.spread) / (all.size - 2) as f64,
                    false => after.spread / (after.size - 1) as f64,
                };
                let deviation = variance.sqrt();
                let harmonic = 1.0 / (1.0 / before.weight + 1.0 / after.weight); // m
                let chance = deviation
                    * ((2.0 * certainty / harmonic).sqrt() + 2.0 / 3.0 * certainty * usual_weight.sqrt() / harmonic);
                let strength = away / chance;
                if strength > strongest.as_ref().map_or(1.0, |cut| cut.strength) {
                    strongest = Some(Cut { at, before, after, strength });
                }
            }
            before = before.and(self.buckets[at]);
        }
        strongest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    /// The window as its observations, every cut tried, each from its definition.
    #[derive(Default)]
    struct Plain(Vec<(f64, f64)>);

    impl Plain {
        fn mean(part: &[(f64, f64)]) -> f64 {
            part.iter().map(|(x, w)| x * w).sum::<f64>() / part.iter().map(|(_, w)| w).sum::<f64>()
        }

        /// The strongest cut and its strength.
        fn cut(&self, delta: f64) -> Option<(usize, f64)> {
            let (n, all) = (self.0.len() as f64, &self.0);
            let usual = all.iter().map(|(_, w)| w).sum::<f64>() / n;
            let l = (2.0 * n.ln() / delta).ln();
            let strength = |at: usize| {
                let (before, after) = all.split_at(at);
                let weight = |part: &[(f64, f64)]| part.iter().map(|(_, w)| w).sum::<f64>();
                let spread = |part: &[(f64, f64)]| {
                    let mean = Self::mean(part);
                    part.iter().map(|(x, w)| w * (x - mean).powi(2)).sum::<f64>()
                };
                let has_fallen = Self::mean(after) < Self::mean(before);
                let variance = match has_fallen {
                    true => (spread(before) + spread(after)) / (n - 2.0),
                    false => spread(after) / (after.len() as f64 - 1.0),
                };
                if (if has_fallen { before.len() } else { after.len() }) < LEAST as usize {
                    return 0.0;
                }
                let m = 1.0 / (1.0 / weight(before) + 1.0 / weight(after));
                let epsilon = (2.0 * variance * l / m).sqrt() + 2.0 / 3.0 * variance.sqrt() * usual.sqrt() * l / m;
                (Self::mean(before) - Self::mean(after)).abs() / epsilon
            };
            let cuts = (1..all.len()).map(|at| (at, strength(at)));
            cuts.filter(|(_, strength)| *strength > 1.0).reduce(|a, b| if b.1 > a.1 { b } else { a })
        }

        fn add(&mut self, x: f64, weight: f64, delta: f64) -> bool {
            self.0.push((x, weight));
            let mut has_fallen = false;
            while let Some((at, _)) = self.cut(delta) {
                has_fallen |= Self::mean(&self.0[at..]) < Self::mean(&self.0[..at]);
                self.0.drain(..at);
            }
            has_fallen
        }
    }

    /// Levels of a stream with noise around them: (level, observations) each.
    fn streams() -> impl Strategy<Value = Vec<(f64, f64)>> {
        let parts = prop::collection::vec((-6.0..6.0f64, 1usize..60), 1..5);
        (parts, any::<u64>(), any::<bool>()).prop_map(|(parts, seed, is_weighted)| {
            let mut rng = Rng::new(seed);
            let levels = parts.into_iter().flat_map(|(level, n)| std::iter::repeat_n(level, n));
            levels
                .map(|level| {
                    let weight = if is_weighted { (1.0 + 9.0 * rng.uniform()).round() } else { 4.0 };
                    (level + (rng.uniform() - 0.5) / f64::sqrt(weight), weight)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn with_a_bucket_per_observation_it_is_the_window_with_every_cut_tried(stream in streams()) {
            let mut adwin = Adwin { per_size: usize::MAX, ..Adwin::new(0.01) };
            let mut plain = Plain::default();
            for (x, weight) in stream {
                let fall = adwin.add(x, weight, weight as u64);
                prop_assert_eq!(fall.is_some(), plain.add(x, weight, 0.01));
                prop_assert_eq!(adwin.buckets.len(), plain.0.len());
            }
        }

        #[test]
        fn a_histogram_finds_no_cut_that_is_none_and_its_buckets_are_what_they_hold(stream in streams()) {
            let mut adwin = Adwin::new(0.01);
            let mut kept: Vec<(f64, f64)> = Vec::new();
            for (x, weight) in stream {
                let mut plain = Plain(kept.clone());
                plain.0.push((x, weight));
                let fall = adwin.add(x, weight, weight as u64);
                let held = adwin.buckets.iter().map(|bucket| bucket.size as usize).sum::<usize>();
                prop_assert!(fall.is_none() || plain.cut(0.01).is_some());
                prop_assert!(held == plain.0.len() || plain.cut(0.01).is_some(), "nothing is dropped without a cut");
                kept = plain.0.split_off(plain.0.len() - held);
                let mut at = 0;
                for bucket in &adwin.buckets {
                    let part = &kept[at..at + bucket.size as usize];
                    at += bucket.size as usize;
                    let mean = Plain::mean(part);
                    let spread: f64 = part.iter().map(|(x, w)| w * (x - mean).powi(2)).sum();
                    prop_assert!((bucket.mean - mean).abs() < 1e-9 && (bucket.spread - spread).abs() < 1e-9);
                }
                let sizes: Vec<u64> = adwin.buckets.iter().map(|bucket| bucket.size).collect();
                prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes.iter().all(|size| size.is_power_of_two()));
                prop_assert!(sizes.chunk_by(|a, b| a == b).all(|same| same.len() <= PER_SIZE));
            }
        }

        #[test]
        fn likelihoods_shifted_or_scaled_give_the_same_alarms(
            stream in streams(), shift in -1e3..1e3f64, scale in 1e-3..1e3f64
        ) {
            let (mut here, mut there) = (Adwin::new(0.01), Adwin::new(0.01));
            for (x, weight) in stream {
                let (a, b) = (here.add(x, weight, 1), there.add(shift + scale * x, 3.0 * weight, 1));
                prop_assert_eq!(a.map(|fall| fall.rows), b.map(|fall| fall.rows));
            }
        }

        #[test]
        fn what_was_saved_on_the_way_gives_the_same_alarms(stream in streams(), at in 0usize..240) {
            let (mut through, mut resumed) = (Adwin::new(0.01), Adwin::new(0.01));
            for (number, (x, weight)) in stream.into_iter().enumerate() {
                if number == at {
                    resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
                }
                prop_assert_eq!(through.add(x, weight, 1), resumed.add(x, weight, 1));
            }
            prop_assert_eq!(through, resumed);
        }
    }

    #[test]
    fn a_second_fall_soon_after_the_first_is_found_though_the_way_up_is_far() {
        for seed in 0..20 {
            let (mut adwin, mut rng) = (Adwin::new(1e-5), Rng::new(seed));
            for fall in 0..5 {
                let found: Vec<u32> = (0..60u32)
                    .filter(|t| {
                        let level = -100.0 * (-f64::from(*t)).exp();
                        adwin.add(level + rng.uniform(), 64.0, 64).is_some()
                    })
                    .collect();
                assert_eq!(found, if fall == 0 { vec![] } else { vec![0] }, "seed {seed}, fall {fall}");
            }
        }
    }

    #[test]
    fn a_long_window_takes_few_buckets_and_has_an_end() {
        let mut adwin = Adwin::new(1e-5);
        let mut rng = Rng::new(1);
        for _ in 0..30_000 {
            adwin.add(rng.uniform(), 1.0, 1);
            assert!(adwin.buckets.len() <= 80 && adwin.rows() <= MOST, "{}", adwin.buckets.len());
        }
        assert!(adwin.rows() > MOST / 2);
    }

    #[test]
    fn improvement_says_nothing_and_a_fall_of_two_deviations_is_found_once() {
        for seed in 0..20 {
            let (mut adwin, mut rng) = (Adwin::new(1e-5), Rng::new(seed));
            let mut noise = || (0..12).map(|_| rng.uniform()).sum::<f64>() - 6.0;
            for t in 0..3000 {
                let level = -40.0 * (1.0 + f64::from(t) / 50.0).powf(-0.7);
                assert_eq!(adwin.add(level + noise(), 64.0, 64), None, "seed {seed}, observation {t}");
            }
            let level = -40.0 * 61f64.powf(-0.7) - 2.0;
            let found: Vec<usize> = (0..300).filter(|_| adwin.add(level + noise(), 64.0, 64).is_some()).collect();
            assert!(found.len() == 1 && found[0] < 40, "seed {seed}: {found:?}");
        }
    }
}
