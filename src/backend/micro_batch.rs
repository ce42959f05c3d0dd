//! A batch, micro-batch by micro-batch: what every backend does in the same order.
//!
//! A backend says how many rows fit its memory and runs one micro-batch; the loops over them are here, so that flows
//! are kept from the first and the update is made with the last on every device alike.

use std::ops::Range;

use super::{Backend, BatchReport, EmStep};
use crate::data::Batch;
use crate::error::Result;

/// What one micro-batch is to do.
pub(super) struct MicroBatch<'a, Target> {
    pub rows: Range<usize>,
    pub gain: f64,
    /// Where flows go, and how much of what is there they keep.
    pub target: Target,
    pub keep: f64,
    /// The update to make with the flows.
    pub step: Option<&'a EmStep>,
}

impl<Target> MicroBatch<'_, Target> {
    /// Binary digits of the largest flow that a row begins with.
    pub fn flow_bits(&self, batch: &Batch) -> i64 {
        let largest_weight = self.rows.clone().map(|row| batch.weight(row)).fold(0f32, f32::max);
        let largest_flow = (self.gain * f64::from(largest_weight)).max(1.0);
        largest_flow.log2().ceil() as i64
    }

    /// Returns true if flows of the row in which everything is missing are wanted too: they are TD.
    pub fn needs_top_down(&self) -> bool {
        self.step.is_some_and(|step| step.sources.needs_top_down())
    }
}

/// A backend that works on micro-batches.
pub(super) trait MicroBatches: Backend {
    /// How it names a place for flows.
    type Target: Copy;

    /// Adds the rows to the report and their flows to the target. Returns true if an update was asked for and made with
    /// them; where a row has to be computed in log space it is not, because that reads all parameters as they were.
    fn run_micro_batch(
        &mut self,
        batch: &Batch,
        micro: &MicroBatch<'_, Self::Target>,
        report: &mut BatchReport,
    ) -> Result<bool>;

    /// target += gain · flows of a batch, `most` rows at a time.
    fn add_flows_of(&mut self, batch: &Batch, most: usize, gain: f64, target: Self::Target) -> Result<BatchReport> {
        let mut report = BatchReport::of(batch);
        for rows in pieces(batch.num_rows(), most) {
            let micro = MicroBatch { rows, gain, target, keep: 1.0, step: None };
            self.run_micro_batch(batch, &micro, &mut report)?;
        }
        Ok(report)
    }

    /// A whole EM step on a batch that is not empty: flows of all micro-batches, and the update with those of the last.
    fn step_on(&mut self, batch: &Batch, most: usize, step: &EmStep, target: Self::Target) -> Result<BatchReport> {
        let mut report = BatchReport::of(batch);
        for rows in pieces(batch.num_rows(), most) {
            let keep = if rows.start == 0 { step.keep } else { 1.0 };
            let is_last = rows.end == batch.num_rows();
            let micro = MicroBatch { rows, gain: step.gain, target, keep, step: is_last.then_some(step) };
            let is_updated = self.run_micro_batch(batch, &micro, &mut report)?;
            if is_last && !is_updated {
                step.update_by_verbs(self)?;
            }
        }
        Ok(report)
    }
}

/// Ranges of `size` that make up `0..len`, the last one perhaps shorter.
pub(super) fn pieces(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size.max(1)).map(move |start| start..(start + size).min(len))
}
