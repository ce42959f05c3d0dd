//! A distribution over categories `0..cats`, one probability each.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Distribution;
use crate::circuit::Smoothing;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Probabilities of the categories. Statistics: the flow of each category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Categorical {
    cats: u32,
}

impl Categorical {
    /// Over `cats` categories, at least one.
    pub fn new(cats: u32) -> Result<Arc<Self>> {
        if cats == 0 {
            return Err(Error::option("a categorical distribution needs at least one category"));
        }
        Ok(Arc::new(Self { cats }))
    }
}

impl Distribution for Categorical {
    fn name(&self) -> &'static str {
        "categorical"
    }

    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("cats".to_string(), self.cats.into())])
    }

    fn num_params(&self) -> usize {
        self.cats as usize
    }

    fn num_stats(&self) -> usize {
        self.cats as usize
    }

    fn num_cats(&self) -> Option<u32> {
        Some(self.cats)
    }

    fn is_table(&self) -> bool {
        true
    }

    fn check_params(&self, params: &[f32]) -> std::result::Result<(), String> {
        match params.iter().find(|p| !(p.is_finite() && **p >= 0.0)) {
            Some(p) => Err(format!("{p} is not a probability")),
            None => Ok(()),
        }
    }

    fn log_prob(&self, params: &[f32], value: f64) -> f64 {
        f64::from(params[value as usize]).ln()
    }

    fn add_stats(&self, value: f64, flow: f64, stats: &mut [f64]) {
        stats[value as usize] += flow;
    }

    fn add_expected_stats(&self, params: &[f32], flow: f64, stats: &mut [f64]) {
        for (stat, &p) in stats.iter_mut().zip(params) {
            *stat += flow * f64::from(p);
        }
    }

    fn mass(&self, stats: &[f64]) -> f64 {
        stats.iter().sum()
    }

    fn maximize(&self, stats: &[f64], smoothing: Smoothing, params: &mut [f32]) {
        let (add, scale) = smoothing.coefficients(self.mass(stats), stats.len());
        for (p, stat) in params.iter_mut().zip(stats) {
            *p = ((stat + add) * scale) as f32;
        }
    }

    fn initialize(&self, rng: &mut Rng, perturbation: f64, params: &mut [f32]) {
        params.iter_mut().for_each(|p| *p = (-perturbation * rng.uniform()).exp() as f32);
        let total: f64 = params.iter().map(|&p| f64::from(p)).sum();
        params.iter_mut().for_each(|p| *p = (f64::from(*p) / total) as f32);
    }

    fn sample(&self, params: &[f32], rng: &mut Rng) -> f64 {
        rng.weighted(params.iter().map(|&p| f64::from(p))) as f64
    }
}
