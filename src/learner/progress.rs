//! How far a learner has come: counters, its place in the stream, and how well it foretold what it then learned from.
//!
//! The worker writes it once a command and anybody may read it at any time. It is part of every checkpoint, so that a
//! resumed run goes on counting where it stopped.

use serde::{Deserialize, Serialize};

use super::RecentRows;
use crate::data::Cursor;
use crate::optim::StepReport;

/// How much of the recent mean a batch leaves to the batches before it: the last hundred or so are what it shows.
const FADING: f64 = 0.99;

/// How far a learner has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Batches applied. Files call it `step`.
    #[serde(rename = "step")]
    pub batches: u64,
    /// Updates of the parameters; fewer than batches where several make one.
    pub updates: u64,
    /// Passes over the data that are over.
    pub epoch: u64,
    /// Rows learned from.
    pub rows: u64,
    /// The place just after the last batch applied. Moves with the parameters, never apart from them.
    pub cursor: Cursor,
    /// Log-likelihoods of batches before they were learned from.
    pub prequential: Prequential,
    /// The same over the last so many rows.
    #[serde(default)]
    pub recent_rows: RecentRows,
    /// The last batch's mean log-likelihood before it was learned from; `None` if none of its rows was possible.
    pub last: Option<f64>,
    /// Rows of probability zero: they teach nothing and are in no mean.
    pub impossible_rows: u64,
    /// Rows that were computed in log space.
    pub rescued_rows: u64,
    /// The step size of the last update that had one.
    pub last_step_size: Option<f64>,
    /// Seconds spent learning.
    pub compute_seconds: f64,
    /// Seconds spent on questions, snapshots and copies.
    pub query_seconds: f64,
    /// Seconds spent waiting for something to do: where this grows fastest, the data is the bottleneck.
    pub wait_seconds: f64,
}

/// Test, then train: the log-likelihood of every batch under the parameters *before* it was learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prequential {
    /// Weighted sum over the first epoch, or over all of a live stream. Later epochs of files meet rows again and would
    /// not be a test.
    pub log_likelihood: f64,
    /// Weight of those rows.
    pub weight: f64,
    /// The same sum over all epochs, fading: each batch leaves 0.99 of it.
    pub recent_log_likelihood: f64,
    /// Its weight, fading alike, so that their quotient has no bias towards its start at zero.
    pub recent_weight: f64,
}

impl Prequential {
    /// Mean over the first epoch, in nats per row; `None` before any row.
    pub fn mean(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.log_likelihood / self.weight)
    }

    /// Mean over the last hundred batches or so, in nats per row; `None` before any row.
    pub fn recent_mean(&self) -> Option<f64> {
        (self.recent_weight > 0.0).then(|| self.recent_log_likelihood / self.recent_weight)
    }
}

impl Progress {
    /// Counts a batch that was learned from, which ends at `end`.
    pub(super) fn learned(&mut self, report: &StepReport, end: Cursor) {
        let batch = &report.batch;
        self.batches += 1;
        self.rows += batch.num_rows as u64;
        self.impossible_rows += batch.impossible_rows as u64;
        self.rescued_rows += batch.rescued_rows as u64;
        if report.step_size.is_some() {
            self.updates += 1;
            self.last_step_size = report.step_size;
        }
        let possible = batch.possible_weight > 0.0;
        self.last = possible.then(|| batch.mean_log_likelihood());
        if possible {
            self.recent_rows.add(batch.num_rows as u64, batch.log_likelihood, batch.possible_weight);
            let sums = &mut self.prequential;
            sums.recent_log_likelihood = FADING * sums.recent_log_likelihood + batch.log_likelihood;
            sums.recent_weight = FADING * sums.recent_weight + batch.possible_weight;
            // A live stream meets no row twice, whatever it calls an epoch.
            if end.epoch == 0 || end.position.is_some() {
                sums.log_likelihood += batch.log_likelihood;
                sums.weight += batch.possible_weight;
            }
        }
        self.move_to(end);
    }

    /// Counts the end of an epoch.
    pub(super) fn ended_epoch(&mut self, moved: bool, next: Cursor) {
        self.updates += u64::from(moved);
        self.move_to(next);
    }

    fn move_to(&mut self, cursor: Cursor) {
        self.epoch = cursor.epoch;
        self.cursor = cursor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BatchReport;

    fn report(log_likelihood: f64, weight: f64) -> StepReport {
        let batch = BatchReport { num_rows: 4, weight, log_likelihood, possible_weight: weight, ..Default::default() };
        StepReport { batch, step_size: Some(0.4) }
    }

    #[test]
    fn the_cumulative_mean_is_of_the_first_epoch_and_the_recent_one_has_no_bias() {
        let mut progress = Progress::default();
        let at = |epoch, row| Cursor { epoch, row, ..Cursor::default() };
        assert_eq!((progress.prequential.mean(), progress.prequential.recent_mean()), (None, None));
        progress.learned(&report(-8.0, 4.0), at(0, 4));
        assert_eq!(progress.prequential.recent_mean(), Some(-2.0), "a single batch is its own mean");
        progress.learned(&report(-4.0, 4.0), at(0, 8));
        progress.ended_epoch(true, at(1, 0));
        progress.learned(&report(-400.0, 4.0), at(1, 4));
        assert_eq!(progress.prequential.mean(), Some(-1.5));
        assert_eq!((progress.batches, progress.updates, progress.rows, progress.epoch), (3, 4, 12, 1));
        let weights = [0.99f64.powi(2), 0.99, 1.0];
        let expected = -(weights[0] * 2.0 + weights[1] * 1.0 + weights[2] * 100.0) / weights.iter().sum::<f64>();
        assert!((progress.prequential.recent_mean().unwrap() - expected).abs() < 1e-12);
        assert_eq!(progress.last, Some(-100.0));
        assert_eq!((progress.recent_rows.rows(), progress.recent_rows.mean()), (12, Some(-412.0 / 12.0)));
    }

    /// Checkpoints of all versions, and scripts that read them, know these names.
    #[test]
    fn a_count_of_batches_is_a_step_in_files() {
        let progress = Progress { batches: 7, ..Progress::default() };
        let mut written = serde_json::to_value(&progress).unwrap();
        assert_eq!((&written["step"], written.get("batches")), (&serde_json::json!(7), None));
        assert_eq!(serde_json::from_value::<Progress>(written.clone()).unwrap(), progress);
        written.as_object_mut().unwrap().remove("recent_rows"); // what the first version did not keep
        assert_eq!(serde_json::from_value::<Progress>(written).unwrap(), progress);
    }

    #[test]
    fn a_batch_without_possible_rows_is_counted_and_is_in_no_mean() {
        let mut progress = Progress::default();
        let batch = BatchReport { num_rows: 2, weight: 2.0, impossible_rows: 2, ..BatchReport::default() };
        progress.learned(&StepReport { batch, step_size: None }, Cursor::default());
        assert_eq!((progress.batches, progress.updates, progress.rows, progress.impossible_rows), (1, 0, 2, 2));
        assert_eq!((progress.last, progress.prequential), (None, Prequential::default()));
        assert_eq!(progress.recent_rows, RecentRows::default());
    }
}
