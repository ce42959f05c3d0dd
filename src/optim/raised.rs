//! A step that is raised for a while, because the rows have changed.
//!
//! A step that is right for rows as they were is too small for other ones: it is made for taking out noise, not for
//! moving far. After [`Optimizer::raise_step`](super::Optimizer::raise_step) the schedule starts again, and t updates
//! later
//!
//! ```text
//! step = min(most, usual·(1 + (FACTOR − 1)/(1 + t/UPDATES)²))
//! ```
//!
//! which is never less than usual. A factor, not a size: the usual step knows how much a batch says about each state,
//! and a batch that says little must not take everything with it (docs/EXPERIMENTS.md, "Drift"). The t of a rule that
//! has started again is its number of updates, so one bit is all there is to save.

/// How many times as large the step is at first.
const FACTOR: f64 = 3.0;

/// Updates after which a quarter of the rise is left.
const UPDATES: f64 = 20.0;

/// The largest step of an EM rule, if it was not larger before: a little of what was known stays.
pub(super) const MOST_EM: f64 = 0.9;

/// The step that is usually `usual`, so many updates after it was raised.
pub(super) fn raised(usual: f64, updates: u64, most: f64) -> f64 {
    let left = (1.0 + updates as f64 / UPDATES).powi(-2);
    (usual * (1.0 + (FACTOR - 1.0) * left)).min(most).max(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_step_comes_down_to_the_usual_one_and_never_below() {
        for usual in [0.001, 0.1, 0.4, 0.95, 1.0] {
            let steps: Vec<f64> = (0..5000).map(|t| raised(usual, t, MOST_EM)).collect();
            assert!(steps.is_sorted_by(|a, b| a >= b) && steps.iter().all(|&step| step >= usual && step <= 1.0));
            assert!(steps[0] == (FACTOR * usual).min(MOST_EM).max(usual) && steps[4999] < usual * 1.001, "{usual}");
        }
        assert_eq!(raised(3.0, 0, f64::INFINITY), 3.0 * FACTOR);
    }
}
