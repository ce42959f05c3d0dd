//! How many of a fixed number of trials succeed; with one trial, a truth value.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Distribution;
use super::counting::log_choose;
use crate::circuit::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// The probability p of a success, in `trials` trials; values are 0 to `trials`. Statistics: Σf·x, Σf.
#[derive(Clone, Debug, PartialEq)]
pub struct Binomial {
    trials: u32,
}

/// p stays this far from 0 and 1: a value that was never seen is unlikely, not impossible.
pub(super) const LEAST_CHANCE: f64 = 1e-6;

impl Binomial {
    /// Of this many trials.
    pub fn new(trials: u32) -> Result<Arc<Self>> {
        /// More would be drawn one by one for a long time: such a count has nearly a normal density.
        const MOST_TRIALS: u32 = 1 << 20;
        match trials {
            1..=MOST_TRIALS => Ok(Arc::new(Self { trials })),
            _ => Err(Error::option(format!("trials = {trials}: must be in [1, {MOST_TRIALS}]"))),
        }
    }
}

impl Distribution for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("trials".to_string(), self.trials.into())])
    }

    fn num_params(&self) -> usize {
        1
    }

    fn num_stats(&self) -> usize {
        2
    }

    fn num_cats(&self) -> Option<u32> {
        Some(self.trials + 1)
    }

    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String> {
        check_chance(params[0])
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        let (p, n) = (f64::from(params[0]), f64::from(self.trials));
        log_choose(n, value) + value * p.ln() + (n - value) * (-p).ln_1p()
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        stats[0] += flow * value;
        stats[1] += flow;
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        self.add_stats(f64::from(self.trials) * f64::from(params[0]), flow, stats);
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats[1]
    }

    fn maximize(&self, stats: &[f64], smoothing: Smoothing, params: &mut [f32]) {
        params[0] = likeliest_chance(stats[0] / f64::from(self.trials), stats[1], smoothing);
    }

    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        params[0] = random_chance(rng, perturbation);
    }

    /// A binomial has no width of its own: the value decides, half a success away from the ends.
    fn start_at(&self, value: f64, _: f64, params: &mut [f32]) {
        let n = f64::from(self.trials);
        params[0] = ((value.clamp(0.0, n) + 0.5) / (n + 1.0)) as f32;
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        (0..self.trials).filter(|_| rng.uniform() < f64::from(params[0])).count() as f64
    }
}

/// Refuses what is not strictly between 0 and 1.
pub(super) fn check_chance(p: f32) -> std::result::Result<(), String> {
    if p > 0.0 && p < 1.0 { Ok(()) } else { Err(format!("probability {p} is not between 0 and 1")) }
}

/// p ∝ successes, smoothed as a table of two categories is.
pub(super) fn likeliest_chance(successes: f64, mass: f64, smoothing: Smoothing) -> f32 {
    let (add, scale) = smoothing.coefficients(mass, 2);
    ((successes + add) * scale).clamp(LEAST_CHANCE, 1.0 - LEAST_CHANCE) as f32
}

/// As a table of two categories starts.
pub(super) fn random_chance(rng: &mut Rng, perturbation: f64) -> f32 {
    let [a, b] = [(); 2].map(|()| (-perturbation * rng.uniform()).exp());
    (a / (a + b)).clamp(LEAST_CHANCE, 1.0 - LEAST_CHANCE) as f32
}
