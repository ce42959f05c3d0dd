//! Categories on a line: a logistic distribution cut into bins, two parameters however many categories.
//!
//! Good for pixel intensities and other ordered integers, where a table would spend one parameter on every value.

use std::f64::consts::PI;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Distribution, add_moments, check_least_std, mean_and_std};
use crate::circuit::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Location and scale (μ, s) over `cats` equal bins of `low..high`; the outer bins are open.
/// Statistics: Σf·x, Σf·x², Σf of the bin centres. The M-step matches moments, as PyJuice's does: the standard
/// deviation of a logistic distribution is s·π/√3.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscreteLogistic {
    cats: u32,
    low: f64,
    high: f64,
    min_std: f64,
}

/// Standard deviation of the logistic distribution of scale 1.
const UNIT_STD: f64 = PI / 1.732_050_807_568_877_2;

/// A bin further out than this keeps a probability: logarithms are floored here, as in PyJuice.
const MIN_LOG_PROB: f64 = -1000.0;

impl DiscreteLogistic {
    /// Over `cats` bins of `range`, with a standard deviation of at least `min_std`.
    pub fn new(cats: u32, range: (f64, f64), min_std: f64) -> Result<Arc<Self>> {
        let (low, high) = range;
        if cats < 2 {
            return Err(Error::option(format!("cats = {cats}: a discrete logistic needs at least two bins")));
        }
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(Error::option(format!("range {low}..{high}: must be finite and not empty")));
        }
        check_least_std("min_std", min_std)?;
        Ok(Arc::new(Self { cats, low, high, min_std }))
    }

    fn width(&self) -> f64 {
        (self.high - self.low) / f64::from(self.cats)
    }

    fn centre(&self, category: f64) -> f64 {
        self.low + (category + 0.5) * self.width()
    }
}

impl Distribution for DiscreteLogistic {
    fn name(&self) -> &'static str {
        "discrete_logistic"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([
            ("cats".to_string(), self.cats.into()),
            ("low".to_string(), self.low.into()),
            ("high".to_string(), self.high.into()),
            ("min_std".to_string(), self.min_std.into()),
        ])
    }

    fn num_params(&self) -> usize {
        2
    }

    fn num_stats(&self) -> usize {
        3
    }

    fn num_cats(&self) -> Option<u32> {
        Some(self.cats)
    }

    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String> {
        if !params[0].is_finite() {
            return Err(format!("location {} is not a number", params[0]));
        }
        if !(params[1].is_finite() && params[1] > 0.0) {
            return Err(format!("scale {} is not positive", params[1]));
        }
        Ok(())
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        let (location, scale) = (f64::from(params[0]), f64::from(params[1]));
        let z = |edge: f64| (self.low + edge * self.width() - location) / scale;
        let first = value == 0.0;
        let last = value == f64::from(self.cats - 1);
        let log_prob = match (first, last) {
            (true, _) => log_sigmoid(z(1.0)),
            (_, true) => log_sigmoid(-z(value)),
            // σ(b) − σ(a) = σ(b)·σ(−a)·(1 − e^(a−b)), a − b = −width/scale: no cancellation anywhere.
            _ => {
                let (a, b) = (z(value), z(value + 1.0));
                log_sigmoid(b) + log_sigmoid(-a) + (-(-self.width() / scale).exp_m1()).ln()
            }
        };
        log_prob.max(MIN_LOG_PROB)
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        let x = self.centre(value);
        add_moments(stats, x, x * x, flow);
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        let (mean, std) = (f64::from(params[0]), f64::from(params[1]) * UNIT_STD);
        add_moments(stats, mean, mean * mean + std * std, flow);
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats[2]
    }

    fn maximize(&self, stats: &[f64], _: Smoothing, params: &mut [f32]) {
        let (mean, std) = mean_and_std(stats, self.min_std);
        params.copy_from_slice(&[mean as f32, (std / UNIT_STD) as f32]);
    }

    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        let std = (self.high - self.low) / 4.0;
        let location = (self.low + self.high) / 2.0 + std * rng.normal();
        let scale = (std * (-0.04 * perturbation * rng.uniform()).exp()).max(self.min_std) / UNIT_STD;
        params.copy_from_slice(&[location as f32, scale as f32]);
    }

    /// Values and widths are counted in categories.
    fn start_at(&self, value: f64, width: f64, params: &mut [f32]) {
        let std = (width * self.width()).max(self.min_std);
        params.copy_from_slice(&[self.centre(value) as f32, (std / UNIT_STD) as f32]);
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        let u = rng.uniform().clamp(1e-300, 1.0 - 1e-16);
        let x = f64::from(params[0]) + f64::from(params[1]) * (u / (1.0 - u)).ln();
        ((x - self.low) / self.width()).floor().clamp(0.0, f64::from(self.cats - 1))
    }
}

/// log(1 / (1 + e^−z)) without overflow.
fn log_sigmoid(z: f64) -> f64 {
    if z >= 0.0 { -(-z).exp().ln_1p() } else { z - z.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_sum_to_one_even_far_from_the_location() {
        let logistic = DiscreteLogistic::new(16, (-1.0, 1.0), 0.01).unwrap();
        for params in [[0.1f32, 0.2], [5.0, 0.01], [-0.9, 3.0]] {
            let total: f64 = (0..16).map(|v| logistic.log_prob(&params, f64::from(v)).exp()).sum();
            assert!((total - 1.0).abs() < 1e-12, "{params:?}: {total}");
        }
    }
}
