//! Averaged parameters: θ̄ ← θ̄ + w·(θ − θ̄), beside θ and in its layout.
//!
//! Weights and tables are averaged as they are; densities by the statistics they expect, so that θ̄ of a normal
//! distribution has the mean of the means and the mean of the second moments (docs/MATH.md, "Averaged parameters").
//! Large tables are averaged row by row when a row is next brought up to date (`lazy`); all else at once.

use rayon::prelude::*;

use super::CpuBackend;
use super::large_pages;
use super::moving::{Settled, Unsettled};
use super::update::{ELEMENTS, blocks};
use crate::circuit::{BlockLayout, Distribution, ParamKind, Smoothing};

impl CpuBackend {
    /// θ̄ ← θ̄ + weight·(θ − θ̄).
    pub(super) fn add_to_average(&mut self, weight: f64) {
        let Self { fixed, workers, moving, .. } = self;
        let Unsettled { theta, average: Some(average), tables, momentum, .. } = moving.unsettled() else {
            return begin(moving.settled(fixed, workers));
        };
        if weight >= 1.0 {
            return begin(moving.settled(fixed, workers));
        }
        // A large table that lags is not gone through: the average becomes one more entry of what its rows have missed.
        let lagging = match momentum {
            Some(_) => tables,
            None => &mut [],
        };
        lagging.iter_mut().for_each(|table| table.averaged(weight as f32));
        workers.install(|| {
            blocks(&fixed.circuit, average).into_par_iter().enumerate().for_each(|(at, (layout, kind, average))| {
                if !lagging.iter().any(|table| table.param.index() == at) {
                    average_block(layout, kind, &theta[layout.values.clone()], average, weight);
                }
            });
        });
    }
}

/// θ̄ ← θ.
fn begin(Settled { theta, average, .. }: Settled<'_>) {
    match average {
        Some(average) => average.copy_from_slice(theta),
        None => *average = Some(large_pages::copied(theta)),
    }
}

/// One parameter block.
fn average_block(layout: &BlockLayout, kind: &ParamKind, theta: &[f32], average: &mut [f32], weight: f64) {
    match kind {
        ParamKind::Input(distribution) if !distribution.is_table() => {
            average_density(layout, &**distribution, theta, average, weight);
        }
        _ => {
            let numbers = average.par_iter_mut().zip(theta).with_min_len(ELEMENTS);
            numbers.for_each(|(average, &theta)| *average = averaged(*average, theta, weight as f32));
        }
    }
}

/// θ̄ + w·(θ − θ̄) of one number.
#[inline(always)]
pub(super) fn averaged(average: f32, theta: f32, weight: f32) -> f32 {
    average + weight * (theta - average)
}

/// Units of a density: the statistics that both expect, mixed, give the unit that expects the mixture.
fn average_density(
    layout: &BlockLayout,
    distribution: &dyn Distribution,
    theta: &[f32],
    average: &mut [f32],
    weight: f64,
) {
    let units = layout.units();
    let mut stats = vec![0.0; layout.stats_per_row];
    let mut params = vec![0.0; layout.values_per_row];
    for unit in 0..units {
        stats.fill(0.0);
        for (values, share) in [(&*average, 1.0 - weight), (theta, weight)] {
            params.iter_mut().enumerate().for_each(|(slot, p)| *p = values[slot * units + unit]);
            distribution.add_expected_stats(&params, share, &mut stats);
        }
        if stats.iter().all(|s| s.is_finite()) {
            distribution.maximize(&stats, Smoothing::NONE, &mut params);
            params.iter().enumerate().for_each(|(slot, &p)| average[slot * units + unit] = p);
        }
    }
}
