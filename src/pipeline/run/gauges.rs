//! What a batch did, as metrics.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::Run;
use crate::learner::Learned;
use crate::telemetry;

impl Run<'_> {
    /// Records a batch of so many rows that took so long.
    pub(super) fn record_gauges(&self, report: &Learned, rows: u64, time: Duration) {
        let progress = self.learner.progress();
        counter!(telemetry::ROWS).increment(rows);
        counter!(telemetry::BATCHES).increment(1);
        counter!(telemetry::UPDATES).absolute(progress.updates);
        counter!(telemetry::IMPOSSIBLE_ROWS).absolute(progress.impossible_rows);
        histogram!(telemetry::STEP_SECONDS).record(time.as_secs_f64());
        gauge!(telemetry::CURSOR_WINDOW).set(progress.cursor.window as f64);
        gauge!(telemetry::CURSOR_ROW).set(progress.cursor.row as f64);
        gauge!(telemetry::QUEUE_BYTES).set(self.stream.bytes_in_flight() as f64);
        counter!(telemetry::BYTES_READ).absolute(self.stream.bytes_read());
        if let Some(step) = report.step_size {
            gauge!(telemetry::STEP_SIZE).set(step);
        }
        if report.batch.possible_weight > 0.0 {
            gauge!(telemetry::BATCH_LL).set(report.batch.mean_log_likelihood());
        }
        if let Some(mean) = progress.prequential.mean() {
            gauge!(telemetry::PREQUENTIAL_LL).set(mean);
        }
        if let Some(mean) = progress.recent_rows.mean() {
            gauge!(telemetry::WINDOW_LL).set(mean);
        }
        if let Some(mean) = progress.prequential.recent_mean() {
            gauge!(telemetry::FADING_LL).set(mean);
        }
        let waits = self.stream.waits();
        for (stage, time) in [
            ("cutter", waits.cutter),
            ("decode", waits.decoders),
            ("batcher", waits.batcher),
            ("learner", waits.learner),
        ] {
            gauge!(telemetry::STAGE_WAIT, "stage" => stage, "side" => "input").set(time.input);
            gauge!(telemetry::STAGE_WAIT, "stage" => stage, "side" => "output").set(time.output);
        }
    }
}
