//! The mean flows an update is made from: of one batch or of several, with or without momentum.
//!
//! Flows are means *per sample* before they meet the momentum, so a short last batch weighs as much as any other.

use super::state::OptimizerState;
use crate::backend::{Backend, BatchReport, EmStep, FlowPrecision, FlowsId, ParamRowsId, RetainSources};
use crate::circuit::Smoothing;
use crate::data::Batch;
use crate::error::{Error, Result};

/// What an update is made from: the mean flows are `gain` times what `flows` holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanFlows {
    pub flows: FlowsId,
    /// Corrects momentum for its start at zero.
    pub gain: f64,
    /// Updates made before this one.
    pub updates: u64,
    /// Weight of the rows that came in last.
    pub weight: f64,
    /// Row masses of `flows`, where the last update left them, and a row buffer that an update may write to.
    masses: ParamRowsId,
    spare: ParamRowsId,
}

/// What an EM rule keeps of the old parameters: scale·(mass + offset) of each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retaining {
    pub sources: RetainSources,
    pub scale: f64,
    pub offset: f64,
    pub smoothing: Smoothing,
}

impl Retaining {
    /// The update from these mean flows.
    pub fn update(self, backend: &mut dyn Backend, mean: MeanFlows) -> Result<()> {
        self.em_step(mean, 0.0, 0.0).update_by_verbs(backend)
    }

    /// A step that also gathers the flows: flows = keep·flows + gain·Σ.
    fn em_step(self, mean: MeanFlows, keep: f64, gain: f64) -> EmStep {
        let Self { sources, scale, offset, smoothing } = self;
        let MeanFlows { flows, masses, spare, gain: correction, .. } = mean;
        EmStep { flows, keep, gain, masses, sources, scale, offset, correction, smoothing, spare }
    }
}

/// Gathers the flows of the next update.
#[derive(Debug)]
pub(super) struct FlowGatherer {
    /// Mean flows per sample, or with momentum their moving average Fm, not yet corrected for its start at zero.
    flows: FlowsId,
    /// Flows summed since the last update; only where several batches make one update, because their mean cannot be
    /// known before the last of them.
    pending: Option<FlowsId>,
    pending_weight: f64,
    pending_batches: u64,
    batches_per_update: u64,
    /// β: 0 is no momentum.
    momentum: f64,
    /// T: how many updates the moving average holds.
    updates: u64,
    /// Weight of the rows of the latest update. Read at once, and so not saved.
    weight: f64,
    /// Row masses of `flows`, where an EM rule is told from them; saved with `flows`, because they are not added up
    /// anew.
    masses: ParamRowsId,
    spare: ParamRowsId,
}

impl FlowGatherer {
    /// Bytes of its buffers: flows, sums of several batches, row masses and a spare for them.
    pub fn bytes(batches_per_update: u64, stats: u64, rows: u64) -> u64 {
        let pending = if batches_per_update > 1 { 8 * stats } else { 0 };
        4 * stats + pending + 16 * rows
    }

    /// Options are checked by the spec they are of.
    pub fn new(backend: &mut dyn Backend, momentum: f64, batches_per_update: u64) -> Result<Self> {
        let flows = backend.new_flows(FlowPrecision::Single)?;
        let pending = match batches_per_update {
            1 => None,
            _ => Some(backend.new_flows(FlowPrecision::Double)?),
        };
        let (masses, spare) = (backend.new_rows()?, backend.new_rows()?);
        Ok(Self {
            flows,
            pending,
            pending_weight: 0.0,
            pending_batches: 0,
            batches_per_update,
            momentum,
            updates: 0,
            weight: 0.0,
            masses,
            spare,
        })
    }

    /// Returns true if every batch makes an update of its own.
    pub fn is_one_batch(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes in a batch that makes an update of its own, and makes it. Returns false with the report if there was none
    /// to make: a batch may weigh nothing.
    pub fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch, rule: Retaining) -> Result<(BatchReport, bool)> {
        backend.circuit().check_batch(batch)?; // before anything is scaled: a refused batch leaves no trace
        let weight = batch.total_weight();
        if weight == 0.0 {
            return Ok((BatchReport { num_rows: batch.num_global_rows(), ..BatchReport::default() }, false));
        }
        let step = rule.em_step(self.read(), self.momentum, (1.0 - self.momentum) / weight);
        Ok((backend.em_step(batch, &step)?, true))
    }

    /// Takes in a batch. Returns true with the report if an update is due.
    pub fn add(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<(BatchReport, bool)> {
        backend.circuit().check_batch(batch)?; // before anything is scaled: a refused batch leaves no trace
        let weight = batch.total_weight();
        let Some(pending) = self.pending else {
            if weight == 0.0 {
                return Ok((BatchReport { num_rows: batch.num_global_rows(), ..BatchReport::default() }, false));
            }
            backend.scale(self.flows, self.momentum)?; // Fm ← β·Fm
            let report = backend.add_flows(batch, (1.0 - self.momentum) / weight, self.flows)?; // + (1−β)·F
            self.weight = weight;
            return Ok((report, true));
        };
        if self.pending_batches == 0 {
            backend.scale(pending, 0.0)?;
        }
        let report = backend.add_flows(batch, 1.0, pending)?;
        self.pending_weight += weight;
        self.pending_batches += 1;
        let complete = self.pending_batches >= self.batches_per_update && self.close(backend)?;
        Ok((report, complete))
    }

    /// Uses up an incomplete group of batches. Returns true if there was one, and an update is due.
    pub fn close(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let Some(pending) = self.pending.filter(|_| self.pending_weight > 0.0) else {
            return Ok(false);
        };
        backend.scale(self.flows, self.momentum)?;
        backend.add_scaled(pending, (1.0 - self.momentum) / self.pending_weight, self.flows)?;
        (self.weight, self.pending_weight, self.pending_batches) = (self.pending_weight, 0.0, 0);
        Ok(true)
    }

    /// What an update is made from.
    pub fn read(&self) -> MeanFlows {
        let gain = 1.0 / (1.0 - self.momentum.powf(self.updates as f64 + 1.0)); // 1/(1−β^(T+1))
        let Self { flows, updates, weight, masses, spare, .. } = *self;
        MeanFlows { flows, gain, updates, weight, masses, spare }
    }

    /// Notes that the update is made.
    pub fn updated(&mut self) {
        self.updates += 1;
    }

    /// Forgets all flows, and with them the momentum and the place in a schedule.
    pub fn restart(&mut self, backend: &mut dyn Backend) -> Result<()> {
        for flows in [Some(self.flows), self.pending].into_iter().flatten() {
            backend.scale(flows, 0.0)?;
        }
        backend.blend_rows(self.masses, 0.0, self.masses, 0.0)?;
        (self.pending_weight, self.pending_batches, self.updates, self.weight) = (0.0, 0, 0, 0.0);
        Ok(())
    }

    pub fn save(&self, backend: &dyn Backend, state: &mut OptimizerState) -> Result<()> {
        state.counters.insert("updates".into(), self.updates);
        state.counters.insert("pending_batches".into(), self.pending_batches);
        state.numbers.insert("pending_weight".into(), self.pending_weight);
        if self.momentum > 0.0 {
            state.buffers.insert("momentum_flows".into(), backend.save_flows(self.flows)?);
            state.buffers.insert("momentum_masses".into(), backend.save_rows(self.masses)?);
        }
        if let Some(pending) = self.pending.filter(|_| self.pending_batches > 0) {
            state.buffers.insert("pending_flows".into(), backend.save_flows(pending)?);
        }
        Ok(())
    }

    pub fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        let (updates, batches) = (state.counter("updates")?, state.counter("pending_batches")?);
        let weight = state.number("pending_weight")?;
        if self.momentum > 0.0 {
            backend.load_flows(self.flows, state.buffer("momentum_flows")?)?;
            backend.load_rows(self.masses, state.buffer("momentum_masses")?)?;
        }
        if batches > 0 {
            let saved = state.buffer("pending_flows")?;
            let Some(pending) = self.pending else {
                return Err(Error::state(
                    "the saved state has batches waiting for an update; load it with the same batches_per_update",
                ));
            };
            backend.load_flows(pending, saved)?;
        }
        (self.updates, self.pending_batches, self.pending_weight) = (updates, batches, weight);
        Ok(())
    }
}
