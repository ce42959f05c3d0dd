//! A truth value: one parameter where a table of two categories has two.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Distribution;
use super::binomial::{check_chance, likeliest_chance, random_chance};
use crate::circuit::Smoothing;
use crate::rng::Rng;

/// The probability p of a 1; values are 0 and 1. Statistics: Σf·x, Σf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bernoulli;

impl Bernoulli {
    /// Has no options.
    pub fn new() -> Arc<Self> {
        Arc::new(Self)
    }
}

impl Distribution for Bernoulli {
    fn name(&self) -> &'static str {
        "bernoulli"
    }

    fn options(&self) -> Map<String, Value> {
        Map::new()
    }

    fn num_params(&self) -> usize {
        1
    }

    fn num_stats(&self) -> usize {
        2
    }

    fn num_cats(&self) -> Option<u32> {
        Some(2)
    }

    fn check_params(&self, params: &[f32]) -> Result<(), String> {
        check_chance(params[0])
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        let p = f64::from(params[0]);
        if value == 1.0 { p.ln() } else { (-p).ln_1p() }
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

    fn maximize(&self, stats: &[f64], smoothing: Smoothing, params: &mut [f32]) {
        params[0] = likeliest_chance(stats[0], stats[1], smoothing);
    }

    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        params[0] = random_chance(rng, perturbation);
    }

    /// A quarter away from certainty, so that a unit that starts at the wrong value can still leave it.
    fn start_at(&self, value: f64, _: f64, params: &mut [f32]) {
        params[0] = if value >= 0.5 { 0.75 } else { 0.25 };
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        f64::from(u8::from(rng.uniform() < f64::from(params[0])))
    }
}
