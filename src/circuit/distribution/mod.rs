//! Input distributions: what a leaf of a circuit can be.
//!
//! To add one, write a file beside this and add it to [`from_json`]: nothing else in the crate knows which there
//! are. A distribution states its sufficient statistics, its M-step, its expected statistics under itself (what a
//! missing value and the top-down term of anemone add), and its sampling; optimizers and backends need no more.
//! Categorical tables have a fast path in the backends, announced by [`Distribution::is_table`].

mod bernoulli;
mod binomial;
mod categorical;
mod counting;
mod discrete_logistic;
mod gaussian;
mod negative_binomial;
mod poisson;

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use bernoulli::Bernoulli;
pub use binomial::Binomial;
pub use categorical::Categorical;
pub use discrete_logistic::DiscreteLogistic;
pub use gaussian::Gaussian;
pub use negative_binomial::NegativeBinomial;
pub use poisson::{LEAST_RATE, Poisson};

use super::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// A family of univariate distributions. One unit's parameters and statistics are short slices.
pub trait Distribution: Debug + Send + Sync {
    /// The name in a circuit file.
    fn name(&self) -> &'static str;

    /// The options in a circuit file, enough for [`from_json`] to make it again.
    fn options(&self) -> Map<String, Value>;

    /// Parameters of one unit.
    fn num_params(&self) -> usize;

    /// Sufficient statistics of one unit.
    fn num_stats(&self) -> usize;

    /// `Some(n)` if values are categories `0..n`, `None` if they are real numbers.
    fn num_cats(&self) -> Option<u32>;

    /// Returns true if the parameters *are* the probabilities of the categories and the statistics their flows.
    fn is_table(&self) -> bool {
        false
    }

    /// Why these are no parameters of a unit, if they are not.
    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String>;

    /// log p(value) of one unit.
    fn log_prob(&self, params: &[f32], value: f64) -> f64;

    /// Adds `flow` times the sufficient statistics of `value`.
    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]);

    /// Adds `flow` times the statistics that the unit itself expects.
    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]);

    /// The flow that statistics stand for.
    fn mass(&self, stats: &[f64]) -> f64;

    /// The M-step: the parameters under which `stats`, of positive mass, are most likely, or that match their moments.
    fn maximize(&self, stats: &[f64], smoothing: Smoothing, params: &mut [f32]);

    /// Random parameters to start from; a larger `perturbation` spreads units further apart.
    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]);

    /// Moves a unit to where data is: around `value`, as wide as `width`, both in the units of the data. A table has no
    /// place to be moved to, and keeps what [`initialize`](Self::initialize) gave it.
    fn start_at(&self, _value: f64, _width: f64, _params: &mut [f32]) {}

    /// Draws a value.
    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64;

    /// Mean and variance of a unit's values, in the units of the data: a category counts as its number. As given it
    /// lists categories, or where there are none counts 0, 1, 2, …; a family over real numbers has its own.
    fn mean_and_variance(&self, params: &[f32]) -> (f64, f64) {
        let (mut mass, mut mean, mut square) = (0.0, 0.0, 0.0);
        for_each_value(self, params, |value, probability| {
            mass += probability;
            mean += probability * value;
            square += probability * value * value;
        });
        mean /= mass;
        (mean, (square / mass - mean * mean).max(0.0))
    }

    /// The value at which a unit's probability, or density, is largest; the smallest of several. As given it lists
    /// values as [`mean_and_variance`](Self::mean_and_variance) does.
    fn mode(&self, params: &[f32]) -> f64 {
        let mut best = (0.0, f64::NEG_INFINITY);
        for_each_value(self, params, |value, probability| {
            if probability > best.1 {
                best = (value, probability);
            }
        });
        best.0
    }
}

/// Shows the categories of a unit with their probabilities, or as many counts as hold all its mass but 1e-12.
fn for_each_value(distribution: &(impl Distribution + ?Sized), params: &[f32], mut see: impl FnMut(f64, f64)) {
    /// Counts that are looked at, at the most.
    const MOST_COUNTS: u32 = 1 << 20;
    let mut left = 1.0;
    for value in 0..distribution.num_cats().unwrap_or(MOST_COUNTS) {
        let probability = distribution.log_prob(params, f64::from(value)).exp();
        see(f64::from(value), probability);
        left -= probability;
        if distribution.num_cats().is_none() && left < 1e-12 {
            break;
        }
    }
}

/// The distribution that a circuit file names.
pub fn from_json(name: &str, options: &Map<String, Value>) -> Result<Arc<dyn Distribution>> {
    match name {
        "categorical" => Ok(Categorical::new(option_u32(options, "cats")?)?),
        "bernoulli" => Ok(Bernoulli::new()),
        "binomial" => Ok(Binomial::new(option_u32(options, "trials")?)?),
        "poisson" => Ok(Poisson::new(option_f64(options, "min_rate", LEAST_RATE)?)?),
        "negative_binomial" => Ok(NegativeBinomial::new(option_f64(options, "min_mean", LEAST_RATE)?)?),
        "gaussian" => Ok(Gaussian::new(option_f64(options, "min_sigma", 0.01)?, option_f64(options, "origin", 0.0)?)?),
        "discrete_logistic" => Ok(DiscreteLogistic::new(
            option_u32(options, "cats")?,
            (option_f64(options, "low", -1.0)?, option_f64(options, "high", 1.0)?),
            option_f64(options, "min_std", 0.01)?,
        )?),
        _ => Err(Error::format(format!(
            "distribution `{name}` is unknown; there are categorical, gaussian, discrete_logistic, bernoulli, \
             binomial, poisson and negative_binomial"
        ))),
    }
}

fn option_f64(options: &Map<String, Value>, key: &str, default: f64) -> Result<f64> {
    match options.get(key) {
        None => Ok(default),
        Some(value) => value.as_f64().ok_or_else(|| Error::format(format!("`{key}` must be a number"))),
    }
}

fn option_u32(options: &Map<String, Value>, key: &str) -> Result<u32> {
    let number = options.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| Error::format(format!("`{key}` must be given as a whole number")))
}

/// The least and the largest bound on a standard deviation. Parameters are f32: what is zero or infinite there is no
/// distribution, and what is subnormal has lost its digits.
pub(crate) const STD_BOUNDS: (f64, f64) = (1e-37, 1e37);

/// Refuses a bound on a standard deviation that f32 does not hold.
fn check_least_std(key: &str, least: f64) -> Result<()> {
    let (smallest, largest) = STD_BOUNDS;
    match (smallest..=largest).contains(&least) {
        true => Ok(()),
        false => {
            Err(Error::option(format!("{key} = {least:?}: must be in [{smallest:e}, {largest:e}], which f32 can hold")))
        }
    }
}

/// The M-step that all location–scale families share: statistics (Σf·x, Σf·x², Σf) give mean and standard deviation.
fn mean_and_std(stats: &[f64], min_std: f64) -> (f64, f64) {
    let mean = stats[0] / stats[2];
    let variance = stats[1] / stats[2] - mean * mean;
    // Not `max` on the variance alone: rounding can leave it negative, and NaN must not pass.
    let std = if variance > min_std * min_std { variance.sqrt() } else { min_std };
    (mean, std)
}

/// Adds `flow` times the moments (x, x², 1).
fn add_moments(stats: &mut [f64], first: f64, second: f64, flow: f64) {
    stats[0] += flow * first;
    stats[1] += flow * second;
    stats[2] += flow;
}
