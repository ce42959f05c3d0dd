//! The mean curve of a contender.

use super::{Spread, ended, value};
use crate::compare::findings::{Contender, Point};

/// A point of a mean curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Epochs of rows seen.
    pub epoch: f64,
    /// Seconds of learning, the mean over runs.
    pub seconds: f64,
    /// `None` where some run has no value.
    pub valid: Option<Band>,
}

/// A mean over runs with the least and the greatest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

/// The mean over all runs that did not fail, at the epochs that all of them have.
pub fn mean_curve(contender: &Contender) -> Vec<CurvePoint> {
    let runs: Vec<&[Point]> = ended(contender).map(|run| run.points.as_slice()).collect();
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let of_all = |point: &Point| {
        let mut points = vec![*point];
        for other in others {
            points.push(*other.iter().find(|p| is_same(p.epoch, point.epoch))?);
        }
        let seconds = Spread::of(&points.iter().map(|p| p.seconds).collect::<Vec<_>>())?.mean;
        let valid: Option<Vec<f64>> = points.iter().map(value).collect();
        let band = |s: Spread| Band { mean: s.mean, min: s.min, max: s.max };
        Some(CurvePoint { epoch: point.epoch, seconds, valid: valid.and_then(|v| Spread::of(&v)).map(band) })
    };
    first.iter().filter(|point| point.epoch.is_finite()).filter_map(of_all).collect()
}

/// Epochs come from a division, so that two that are meant to be one may differ in their last bits.
fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}
