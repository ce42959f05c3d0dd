//! Counts that vary more than a Poisson distribution's: a Poisson distribution whose rate is itself drawn.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::counting::{is_count, log_gamma, sample_gamma, sample_poisson};
use super::poisson::{check_least, check_positive};
use super::{Distribution, add_moments};
use crate::circuit::Smoothing;
use crate::error::Result;
use crate::rng::Rng;

/// Mean μ and size r: the variance is μ + μ²/r, so a large r is nearly a Poisson distribution. Values are 0, 1, 2, …
/// without an end; anything else has probability 0. Statistics: Σf·x, Σf·x², Σf.
///
/// The M-step sets μ to the mean, which is the likeliest μ whatever r is, and r to what gives the variance of the
/// values. The likeliest r has no closed form and no sufficient statistics of fixed length, so r matches moments and
/// is not maximised: `docs/MATH.md`, "Counts".
#[derive(Clone, Debug, PartialEq)]
pub struct NegativeBinomial {
    /// μ never falls below this: a unit that has seen zeros only would make every other count impossible.
    min_mean: f64,
}

/// Bounds of r. Below, nearly all mass is at 0; above, nothing differs from a Poisson distribution.
const SIZES: (f64, f64) = (1e-3, 1e6);

impl NegativeBinomial {
    /// With a mean of at least `min_mean`.
    pub fn new(min_mean: f64) -> Result<Arc<Self>> {
        check_least("min_mean", min_mean)?;
        Ok(Arc::new(Self { min_mean }))
    }
}

/// r with μ + μ²/r = variance; the largest where values vary no more than a Poisson distribution's.
fn size_of(mean: f64, variance: f64) -> f64 {
    let excess = variance - mean;
    // Not a division first: an excess of zero, or less by rounding, is an infinite r.
    if excess * SIZES.1 > mean * mean { (mean * mean / excess).max(SIZES.0) } else { SIZES.1 }
}

impl Distribution for NegativeBinomial {
    fn name(&self) -> &'static str {
        "negative_binomial"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("min_mean".to_string(), self.min_mean.into())])
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
        check_positive("mean", params[0])?;
        check_positive("size", params[1])
    }

    // log p(x) = log Γ(x+r)/(Γ(r)·x!) + r·log(r/(r+μ)) + x·log(μ/(r+μ))
    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        if !is_count(value) {
            return f64::NEG_INFINITY;
        }
        let (mean, size) = (f64::from(params[0]), f64::from(params[1]));
        log_gamma(value + size) - log_gamma(size) - log_gamma(value + 1.0) - size * (mean / size).ln_1p()
            + value * (mean / (size + mean)).ln()
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        add_moments(stats, value, value * value, flow);
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        let (mean, variance) = self.mean_and_variance(params);
        add_moments(stats, mean, variance + mean * mean, flow);
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats[2]
    }

    fn maximize(&self, stats: &[f64], _: Smoothing, params: &mut [f32]) {
        let mean = stats[0] / stats[2];
        let size = size_of(mean, stats[1] / stats[2] - mean * mean);
        params.copy_from_slice(&[mean.max(self.min_mean) as f32, size as f32]);
    }

    /// A mean about 1; counts of data start from rows.
    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        let mean = (-perturbation * rng.uniform()).exp().max(self.min_mean);
        params.copy_from_slice(&[mean as f32, 1.0]);
    }

    /// Half a count above the value, so that a unit of zeros is not stuck there; as wide as asked, as far as it can be.
    fn start_at(&self, value: f64, width: f64, params: &mut [f32]) {
        let mean = (value.max(0.0) + 0.5).max(self.min_mean);
        params.copy_from_slice(&[mean as f32, size_of(mean, width * width) as f32]);
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        let (mean, size) = (f64::from(params[0]), f64::from(params[1]));
        sample_poisson(sample_gamma(size, rng) * mean / size, rng)
    }

    fn mean_and_variance(&self, params: &[f32]) -> (f64, f64) {
        let (mean, size) = (f64::from(params[0]), f64::from(params[1]));
        (mean, mean + mean * mean / size)
    }

    fn mode(&self, params: &[f32]) -> f64 {
        let (mean, size) = (f64::from(params[0]), f64::from(params[1]));
        if size <= 1.0 { 0.0 } else { (mean * (size - 1.0) / size).ceil().max(1.0) - 1.0 }
    }
}
