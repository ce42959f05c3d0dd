//! Counts of what happens independently, at a rate: the variance is the mean.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Distribution;
use super::counting::{is_count, log_gamma, sample_poisson};
use crate::circuit::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// The rate λ. Values are 0, 1, 2, … without an end; anything else has probability 0. Statistics: Σf·x, Σf.
#[derive(Clone, Debug, PartialEq)]
pub struct Poisson {
    /// λ never falls below this: a unit that has seen zeros only would make every other count impossible.
    min_rate: f64,
}

/// The least rate where nothing is said.
pub const LEAST_RATE: f64 = 1e-3;

impl Poisson {
    /// With a rate of at least `min_rate`.
    pub fn new(min_rate: f64) -> Result<Arc<Self>> {
        check_least("min_rate", min_rate)?;
        Ok(Arc::new(Self { min_rate }))
    }
}

/// Refuses a bound that is no positive `f32`.
pub(super) fn check_least(key: &str, least: f64) -> Result<()> {
    match (1e-30..=1e30).contains(&least) {
        true => Ok(()),
        false => Err(Error::option(format!("{key} = {least:?}: must be in [1e-30, 1e30]"))),
    }
}

/// Refuses what is not a positive number.
pub(super) fn check_positive(what: &str, value: f32) -> std::result::Result<(), String> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!("{what} {value} is not positive")) }
}

impl Distribution for Poisson {
    fn name(&self) -> &'static str {
        "poisson"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("min_rate".to_string(), self.min_rate.into())])
    }

    fn num_params(&self) -> usize {
        1
    }

    fn num_stats(&self) -> usize {
        2
    }

    fn num_cats(&self) -> Option<u32> {
        None
    }

    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String> {
        check_positive("rate", params[0])
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        if !is_count(value) {
            return f64::NEG_INFINITY;
        }
        let rate = f64::from(params[0]);
        value * rate.ln() - rate - log_gamma(value + 1.0)
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        stats[0] += flow * value;
        stats[1] += flow;
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        self.add_stats(f64::from(params[0]), flow, stats);
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats[1]
    }

    fn maximize(&self, stats: &[f64], _: Smoothing, params: &mut [f32]) {
        params[0] = (stats[0] / stats[1]).max(self.min_rate) as f32;
    }

    /// A rate about 1; counts of data start from rows.
    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        params[0] = (-perturbation * rng.uniform()).exp().max(self.min_rate) as f32;
    }

    /// The rate is the value: half a count above, so that a unit of zeros is not stuck there.
    fn start_at(&self, value: f64, _: f64, params: &mut [f32]) {
        params[0] = (value.max(0.0) + 0.5).max(self.min_rate) as f32;
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        sample_poisson(f64::from(params[0]), rng)
    }

    fn mean_and_variance(&self, params: &[f32]) -> (f64, f64) {
        (f64::from(params[0]), f64::from(params[0]))
    }

    fn mode(&self, params: &[f32]) -> f64 {
        (f64::from(params[0]).ceil() - 1.0).max(0.0)
    }
}
