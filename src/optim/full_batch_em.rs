//! Full-batch EM: gather flows for a whole epoch, then θ' = F/ΣF.

use serde::{Deserialize, Serialize};

use super::state::OptimizerState;
use super::{Averaging, Optimizer, Options, Schedule, StepReport, check_smoothing};
use crate::backend::{Backend, EmUpdate, FlowPrecision, FlowsId};
use crate::circuit::Smoothing;
use crate::data::Batch;
use crate::error::Result;

/// Options of full-batch EM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FullBatchEmSpec {
    /// What keeps rows away from zero. The absolute rule counts ε in samples.
    pub smoothing: Smoothing,
    /// Whether answers are those of averaged parameters. Off: no noise is left in θ that a mean would take out.
    pub average: Averaging,
}

impl Default for FullBatchEmSpec {
    fn default() -> Self {
        Self { smoothing: Smoothing::default(), average: Averaging::Off }
    }
}

impl FullBatchEmSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        check_smoothing(self.smoothing)?;
        self.average.check()
    }

    /// Checks the options and allocates the epoch's flows.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        let flows = backend.new_flows(FlowPrecision::Double)?;
        Ok(self.average.around(Box::new(FullBatchEm { smoothing: self.smoothing, flows, weight: 0.0, updates: 0 })))
    }
}

impl Options for FullBatchEmSpec {
    const NAME: &'static str = "full_batch_em";
    const TITLE: &'static str = "full-batch EM";

    fn schedule_mut(&mut self) -> Option<(&'static str, &mut Schedule)> {
        None
    }

    fn batches_per_update(&self) -> Option<u64> {
        None
    }

    fn average(&self) -> Averaging {
        self.average
    }

    fn buffer_bytes(&self, stats: u64, _rows: u64) -> u64 {
        8 * stats
    }
}

struct FullBatchEm {
    smoothing: Smoothing,
    /// Flows summed over the epoch so far, in double precision: the millionth batch counts like the first.
    flows: FlowsId,
    weight: f64,
    updates: u64,
}

const NAME: &str = FullBatchEmSpec::NAME;

impl Optimizer for FullBatchEm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<StepReport> {
        let batch = backend.add_flows(batch, 1.0, self.flows)?;
        self.weight += batch.weight;
        Ok(StepReport { batch, step_size: None })
    }

    fn end_epoch(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        if self.weight == 0.0 {
            return Ok(false);
        }
        let (flows, smoothing) = (self.flows, self.smoothing);
        backend.em_update(&EmUpdate { retain: None, retain_inputs: None, flows, gain: 1.0, smoothing })?;
        backend.scale(self.flows, 0.0)?;
        self.weight = 0.0;
        self.updates += 1;
        Ok(true)
    }

    fn restart(&mut self, backend: &mut dyn Backend) -> Result<()> {
        backend.scale(self.flows, 0.0)?;
        (self.weight, self.updates) = (0.0, 0);
        Ok(())
    }

    fn save(&self, backend: &dyn Backend) -> Result<OptimizerState> {
        let mut state = OptimizerState::new(NAME);
        state.counters.insert("updates".into(), self.updates);
        state.numbers.insert("weight".into(), self.weight);
        state.buffers.insert("epoch_flows".into(), backend.save_flows(self.flows)?);
        Ok(state)
    }

    fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        state.expect(NAME)?;
        let (updates, weight) = (state.counter("updates")?, state.number("weight")?);
        backend.load_flows(self.flows, state.buffer("epoch_flows")?)?;
        (self.updates, self.weight) = (updates, weight);
        Ok(())
    }
}
