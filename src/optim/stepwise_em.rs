//! Stepwise EM (Cappé and Moulines 2009): S = (1−α)·s·θ + α·F, s' = ΣS, θ' = S/s'.
//!
//! It retains of each row as much as the data has used it so far, the running mass s, where anemone asks the model
//! itself (TD). Monarch circuits are trained this way in their paper.

use serde::{Deserialize, Serialize};

use super::mean_flows::{FlowGatherer, MeanFlows};
use super::rule::{Buffer, ByRule, Rule};
use super::{Averaging, Optimizer, Options, Schedule, check_batches_per_update, check_smoothing};
use crate::backend::{Backend, EmUpdate, ParamRowsId, Retain};
use crate::circuit::Smoothing;
use crate::error::Result;

/// Options of stepwise EM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepwiseEmSpec {
    /// α, in (0, 1]. The first update takes the batch whole, whatever its α: there is no mass yet to retain.
    pub step: Schedule,
    /// Batches whose flows are averaged for one update.
    pub batches_per_update: u64,
    /// What keeps rows away from zero.
    pub smoothing: Smoothing,
    /// Whether answers are those of averaged parameters.
    pub average: Averaging,
}

impl Default for StepwiseEmSpec {
    fn default() -> Self {
        Self {
            step: Schedule::power(1.0, 0.7, 1.0, 0.0),
            batches_per_update: 1,
            smoothing: Smoothing::default(),
            average: Averaging::on(),
        }
    }
}

impl StepwiseEmSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        self.step.check("step", 1.0)?;
        check_smoothing(self.smoothing)?;
        check_batches_per_update(self.batches_per_update)?;
        self.average.check()
    }

    /// Checks the options and allocates flows and running masses.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        self.step.check_in_updates("step")?;
        let gatherer = FlowGatherer::new(backend, 0.0, self.batches_per_update)?;
        let rule =
            StepwiseEm { smoothing: self.smoothing, running_masses: backend.new_rows()?, masses: backend.new_rows()? };
        Ok(self.average.around(Box::new(ByRule::new(rule, self.step, gatherer, backend.circuit()))))
    }
}

options_of_rule!(StepwiseEmSpec: "stepwise_em", "stepwise EM", step, 0, 16);

struct StepwiseEm {
    smoothing: Smoothing,
    /// s: the average mass of each row so far.
    running_masses: ParamRowsId,
    masses: ParamRowsId,
}

impl Rule for StepwiseEm {
    const NAME: &'static str = StepwiseEmSpec::NAME;

    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, alpha: f64) -> Result<()> {
        let MeanFlows { flows, gain, .. } = mean;
        let retain =
            Some(Retain { rows: self.running_masses, at_least: None, scale: (1.0 - alpha) / alpha, offset: 0.0 });
        backend.em_update(&EmUpdate {
            retain,
            retain_inputs: retain,
            flows,
            gain,
            smoothing: self.smoothing.scaled(1.0 / alpha),
        })?;
        backend.row_masses(flows, gain, self.masses)?;
        backend.blend_rows(self.running_masses, 1.0 - alpha, self.masses, alpha) // s ← (1−α)·s + α·ΣF
    }

    fn buffers(&self) -> Vec<(&'static str, Buffer)> {
        vec![("running_masses", Buffer::Rows(self.running_masses))]
    }
}
