//! Lines for whoever watches: `metrics.jsonl`.

use std::time::Instant;

use super::{Run, warn_unwritten};
use crate::learner::Learned;
use crate::pipeline::evaluate::Evaluation;
use crate::pipeline::observer::{StepLine, bits_per_dim};
use crate::pipeline::spec::MetricsSpec;
use crate::pipeline::waits::StageWaits;
use crate::telemetry::HEALTH;

/// What the lines of `metrics.jsonl` need to remember.
pub(super) struct Lines {
    /// When the last one was written.
    written: Option<Instant>,
    /// Rows learned from before it.
    rows: u64,
    waits: StageWaits,
    rate: Rate,
}

/// Rows a second over the latest stretch between two lines.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    rows_per_second: f64,
    bound: &'static str,
}

impl Lines {
    /// None so far, after `rows` rows.
    pub fn after(rows: u64) -> Self {
        Self { written: None, rows, waits: StageWaits::default(), rate: Rate::default() }
    }

    /// Returns true if it is time for another one after so many batches and rows.
    pub fn is_due(&self, spec: &MetricsSpec, batches: u64, rows: u64) -> bool {
        let seconds = self.written.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64());
        spec.is_due(batches, rows, rows - self.rows, seconds)
    }
}

impl Run<'_> {
    /// The line of a batch.
    pub(super) fn step_line(&mut self, report: &Learned) -> StepLine {
        let progress = self.learner.progress();
        let possible = report.batch.possible_weight > 0.0;
        let log_likelihood = possible.then(|| report.batch.mean_log_likelihood());
        let circuit = self.learner.circuit();
        let in_bits = log_likelihood.filter(|_| circuit.is_discrete());
        StepLine {
            step: progress.batches,
            updates: progress.updates,
            epoch: progress.epoch,
            rows: progress.rows,
            seconds: self.seconds(),
            log_likelihood,
            prequential_ll: progress.prequential.mean(),
            window_ll: progress.recent_rows.mean(),
            fading_ll: progress.prequential.recent_mean(),
            drift: None,
            valid_ll: None,
            valid_possible_ll: None,
            valid_impossible_rows: None,
            states_in_use: None,
            bits_per_dim: in_bits.map(|ll| bits_per_dim(ll, circuit.num_vars())),
            step_size: report.step_size.or(progress.last_step_size),
            rows_per_second: self.lines.rate.rows_per_second,
            bound: self.lines.rate.bound.into(),
            impossible_rows: progress.impossible_rows,
            bad_records: progress.cursor.bad_records,
        }
    }

    /// Adds the latest line to `metrics.jsonl`, with how fast and bound by what the stretch since the last one was, and
    /// with what held-out rows and states in use were found.
    pub(super) fn write_line(&mut self, look: Option<(&Evaluation, f64)>) {
        let valid = look.map(|(found, _)| found);
        let since = self.lines.written.unwrap_or(self.begun);
        let seconds = since.elapsed().as_secs_f64();
        let (rows, waits) = (self.learner.progress().rows, self.stream.waits());
        if rows > self.lines.rows {
            let rows_per_second = (rows - self.lines.rows) as f64 / seconds.max(1e-9);
            let bound = waits.bound(&self.lines.waits, seconds).as_str();
            self.lines = Lines { written: Some(Instant::now()), rows, waits, rate: Rate { rows_per_second, bound } };
        }
        self.line.rows_per_second = self.lines.rate.rows_per_second;
        self.line.bound = self.lines.rate.bound.into();
        let likelihood = self.line.log_likelihood.map_or("-inf".into(), |nats| format!("{nats:.3}"));
        let status = format!("{rows} rows learned, {likelihood} nats a row, {:.0} rows/s", self.line.rows_per_second);
        HEALTH.set_status(status);
        let Some(files) = &mut self.files else { return };
        let line = StepLine {
            valid_ll: valid.and_then(|found| found.mean_log_likelihood),
            valid_possible_ll: valid
                .filter(|found| found.impossible_rows > 0)
                .and_then(|it| it.possible_log_likelihood),
            valid_impossible_rows: valid.map(|found| found.impossible_rows),
            states_in_use: look.map(|(_, states_in_use)| states_in_use),
            epoch: self.learner.progress().epoch,
            ..self.line.clone()
        };
        if let Err(error) = files.metrics.add(&line) {
            warn_unwritten(self.observer, &error);
        }
    }
}
