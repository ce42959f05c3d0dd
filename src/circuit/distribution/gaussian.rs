//! A normal distribution over real numbers.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Distribution, add_moments, check_least_std, mean_and_std};
use crate::circuit::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Mean and standard deviation (μ, σ). Statistics: Σf·(x−o), Σf·(x−o)², Σf about a fixed origin o.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaussian {
    /// σ never falls below this: a unit that owns a single value would otherwise collapse on it.
    min_sigma: f64,
    /// Moments are taken about it. Far from zero with a small spread (timestamps, temperatures in kelvin), moments
    /// about 0 lose the variance in rounding; a typical value of the column keeps it.
    origin: f64,
}

impl Gaussian {
    /// With σ at least `min_sigma` and moments about `origin`.
    pub fn new(min_sigma: f64, origin: f64) -> Result<Arc<Self>> {
        check_least_std("min_sigma", min_sigma)?;
        if !origin.is_finite() {
            return Err(Error::option(format!("origin = {origin}: must be a number")));
        }
        Ok(Arc::new(Self { min_sigma, origin }))
    }
}

impl Distribution for Gaussian {
    fn name(&self) -> &'static str {
        "gaussian"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("min_sigma".to_string(), self.min_sigma.into()), ("origin".to_string(), self.origin.into())])
    }

    fn num_params(&self) -> usize {
        2
    }

    fn num_stats(&self) -> usize {
        3
    }

    fn num_cats(&self) -> Option<u32> {
        None
    }

    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String> {
        if !params[0].is_finite() {
            return Err(format!("mean {} is not a number", params[0]));
        }
        if !(params[1].is_finite() && params[1] > 0.0) {
            return Err(format!("standard deviation {} is not positive", params[1]));
        }
        Ok(())
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        let (mean, std) = (f64::from(params[0]), f64::from(params[1]));
        let z = (value - mean) / std;
        -0.5 * (z * z + std::f64::consts::TAU.ln()) - std.ln()
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        let x = value - self.origin;
        add_moments(stats, x, x * x, flow);
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        let (mean, std) = (f64::from(params[0]) - self.origin, f64::from(params[1]));
        add_moments(stats, mean, mean * mean + std * std, flow);
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats[2]
    }

    fn maximize(&self, stats: &[f64], _: Smoothing, params: &mut [f32]) {
        let (mean, std) = mean_and_std(stats, self.min_sigma);
        params.copy_from_slice(&[(mean + self.origin) as f32, std as f32]);
    }

    /// μ ~ N(origin, 1), σ a little below 1: right for standardised columns. Others start from rows
    /// ([`start_at`](Distribution::start_at)).
    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        let mean = self.origin + rng.normal();
        let std = (-0.04 * perturbation * rng.uniform()).exp().max(self.min_sigma);
        params.copy_from_slice(&[mean as f32, std as f32]);
    }

    fn start_at(&self, value: f64, width: f64, params: &mut [f32]) {
        params.copy_from_slice(&[value as f32, width.max(self.min_sigma) as f32]);
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        f64::from(params[0]) + f64::from(params[1]) * rng.normal()
    }

    fn mean_and_variance(&self, params: &[f32]) -> (f64, f64) {
        (f64::from(params[0]), f64::from(params[1]).powi(2))
    }

    fn mode(&self, params: &[f32]) -> f64 {
        f64::from(params[0])
    }
}
