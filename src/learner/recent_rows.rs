//! Mean log-likelihood of the last so many rows.
//!
//! Batches are put together in at most [`PARTS`] parts and a few, so that the window takes as little room for batches
//! of one row as for large ones; it moves in steps of a part or a batch, whichever is larger. Part of
//! [`Progress`](super::Progress), and so of every checkpoint.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A window moves by this share of itself.
const PARTS: u64 = 64;

/// Rows of the window where nothing else is said.
pub const DEFAULT_MEAN_ROWS: u64 = 10_000;

/// The last so many rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentRows {
    /// Rows that the mean is of, once there have been so many.
    length: u64,
    /// Oldest first.
    parts: VecDeque<Part>,
}

/// Some batches that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Part {
    rows: u64,
    log_likelihood: f64,
    weight: f64,
}

impl Default for RecentRows {
    fn default() -> Self {
        Self { length: DEFAULT_MEAN_ROWS, parts: VecDeque::new() }
    }
}

impl RecentRows {
    /// Mean in nats per row; `None` before any row.
    pub fn mean(&self) -> Option<f64> {
        let (sum, weight) =
            self.parts.iter().fold((0.0, 0.0), |(sum, weight), part| (sum + part.log_likelihood, weight + part.weight));
        (weight > 0.0).then(|| sum / weight)
    }

    /// Rows that the mean is of.
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Makes the window as long as this; what is too old is forgotten.
    pub(super) fn set_length(&mut self, rows: u64) {
        self.length = rows.max(1);
        self.forget();
    }

    /// Takes in a batch: the weighted sum over its possible rows, and their weight.
    pub(super) fn add(&mut self, rows: u64, log_likelihood: f64, weight: f64) {
        let part_rows = self.length / PARTS;
        match self.parts.back_mut() {
            Some(part) if part.rows + rows <= part_rows => {
                part.rows += rows;
                part.log_likelihood += log_likelihood;
                part.weight += weight;
            }
            _ => self.parts.push_back(Part { rows, log_likelihood, weight }),
        }
        self.forget();
    }

    /// Drops parts from the front as long as the rest is a whole window or more.
    fn forget(&mut self) {
        let mut rows = self.rows();
        while let Some(oldest) = self.parts.front()
            && rows - oldest.rows >= self.length
        {
            rows -= oldest.rows;
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_mean_is_of_the_last_rows_and_of_few_more(
            batches in prop::collection::vec((1u64..30, -9.0..0.0f64), 1..600), length in 1u64..3000
        ) {
            let mut window = RecentRows::default();
            window.set_length(length);
            for (end, (rows, mean)) in batches.iter().enumerate() {
                window.add(*rows, mean * *rows as f64, *rows as f64);
                let seen = &batches[..=end];
                let total: u64 = seen.iter().map(|(rows, _)| rows).sum();
                // A part that is begun and the batch that did not fit into it may be more than the window.
                prop_assert!(window.rows() >= total.min(length) && window.rows() < length + length / PARTS + 30);
                prop_assert!(window.parts.len() as u64 <= 2 * PARTS + 2);
                let (mut held, mut sum) = (0, 0.0);
                for (rows, mean) in seen.iter().rev() {
                    if held == window.rows() {
                        break;
                    }
                    held += rows;
                    sum += mean * *rows as f64;
                }
                prop_assert_eq!(held, window.rows(), "the last batches, whole");
                prop_assert!((window.mean().unwrap() - sum / held as f64).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn a_shorter_window_forgets_and_a_longer_one_waits() {
        let mut window = RecentRows::default();
        assert_eq!(window.mean(), None);
        (0..100u32).for_each(|batch| window.add(100, f64::from(batch) * 100.0, 100.0));
        assert_eq!((window.rows(), window.mean()), (10_000, Some(49.5)));
        window.set_length(1000);
        assert_eq!((window.rows(), window.mean()), (1000, Some(94.5)));
        window.set_length(2000);
        window.add(100, 9950.0, 100.0);
        assert_eq!(window.rows(), 1100);
    }
}
