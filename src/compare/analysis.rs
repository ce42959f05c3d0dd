//! What the figures of a section say: best and last likelihoods, means over seeds, first crossings.
//!
//! Pure functions of what was found; `report` shows what they say. A value that is not a number does not count: it is
//! never a best, never reaches anything, and a mean that would need it does not exist. A run that failed is in no mean
//! and reaches nothing; a mean is always shown with its number of runs. Seeds differ by more than contenders often do,
//! so two contenders are compared on the seeds that both have.

mod curve;
mod reach;
mod regret;
mod verdict;

pub use curve::{Band, CurvePoint, mean_curve};
pub use reach::{Against, Reached, against, best_of_seed, full_batch_em, reach};
pub use regret::{Gap, Measure, Regret, RegretRow, regrets};
pub use verdict::{notes, verdict};

use super::findings::{Contender, Point, Run, Section};

/// Some numbers, one a seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation (n − 1 below the line); `None` of one number.
    pub sd: Option<f64>,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of no numbers there is none, and of numbers with one among them that is not finite neither.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        Some(Self {
            count,
            mean,
            sd: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

/// What became of a contender, over its seeds.
#[derive(Clone, Debug)]
pub struct Standing<'a> {
    /// Of whom.
    pub contender: &'a Contender,
    /// Runs that did not fail: all that the rest is of.
    pub ended: usize,
    /// Best held-out log-likelihood of each run.
    pub best: Option<Spread>,
    /// Where it was.
    pub best_epoch: Option<Spread>,
    /// Held-out log-likelihood at the end of each run.
    pub last: Option<Spread>,
    /// Test log-likelihood of each run.
    pub test: Option<Spread>,
    /// Rows learned a second.
    pub rows_per_second: Option<Spread>,
    /// Seconds of learning.
    pub seconds: Option<Spread>,
}

impl<'a> Standing<'a> {
    /// Looks at all runs of a contender that did not fail.
    pub fn of(contender: &'a Contender) -> Self {
        let runs: Vec<&Run> = ended(contender).collect();
        let best: Vec<&Point> = runs.iter().filter_map(|run| best(run)).collect();
        let of = |values: Vec<f64>| Spread::of(&values);
        let rate = |run: &&Run| run.rows as f64 / run.seconds;
        Self {
            contender,
            ended: runs.len(),
            best: of(best.iter().filter_map(|p| value(p)).collect()),
            best_epoch: of(best.iter().map(|p| p.epoch).collect()),
            last: of(runs.iter().filter_map(|run| last(run)).collect()),
            test: of(runs.iter().filter_map(|run| run.test.filter(|v| v.is_finite())).collect()),
            rows_per_second: of(runs.iter().map(rate).filter(|v| v.is_finite() && *v > 0.0).collect()),
            seconds: of(runs.iter().map(|run| run.seconds).filter(|v| v.is_finite() && *v > 0.0).collect()),
        }
    }
}

/// The runs that did not fail.
pub fn ended(contender: &Contender) -> impl Iterator<Item = &Run> {
    contender.runs.iter().filter(|run| run.failed.is_none())
}

/// The runs that a contender of this section has when all is done: one for each of its seeds, or, where those are not
/// told, as many as the largest number of any contender.
pub fn wanted(section: &Section, contender: &Contender) -> usize {
    match contender.seeds.len() {
        0 => section.contenders.iter().map(|contender| contender.runs.len()).max().unwrap_or(0),
        seeds => seeds,
    }
}

/// The held-out log-likelihood of a point, if it is a number.
pub fn value(point: &Point) -> Option<f64> {
    point.valid.filter(|valid| valid.is_finite())
}

/// Returns true if a point comes after some learning. The start is no best, and reaches nothing.
fn is_learned(point: &Point) -> bool {
    point.epoch > 0.0
}

/// The first of the best points of a run.
pub fn best(run: &Run) -> Option<&Point> {
    let better = |best: Option<&'_ Point>, point: &Point| match best.and_then(value) {
        Some(before) => value(point).is_some_and(|now| now > before),
        None => value(point).is_some(),
    };
    run.points
        .iter()
        .filter(|point| is_learned(point))
        .fold(None, |best, point| if better(best, point) { Some(point) } else { best })
}

/// The held-out log-likelihood at the end of a run. Not the last that is a number: a run that ends without one has
/// none.
pub fn last(run: &Run) -> Option<f64> {
    run.points.last().and_then(value)
}

/// The first point that is at least as high.
pub fn first_reaching(points: &[Point], threshold: f64) -> Option<&Point> {
    points.iter().find(|point| is_learned(point) && value(point).is_some_and(|valid| valid >= threshold))
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
