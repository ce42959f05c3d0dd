//! Stochastic gradient ascent on φ = log θ, with global renormalisation after each step.

use serde::{Deserialize, Serialize};

use super::mean_flows::{FlowGatherer, MeanFlows};
use super::rule::{ByRule, Rule};
use super::{Averaging, Optimizer, Options, Schedule, check_batches_per_update};
use crate::backend::{Backend, ParamRowsId};
use crate::error::Result;

/// Options of SGD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SgdSpec {
    /// Learning rate.
    pub rate: Schedule,
    /// Batches whose gradients are averaged for one update.
    pub batches_per_update: u64,
    /// Whether answers are those of averaged parameters.
    pub average: Averaging,
}

impl Default for SgdSpec {
    fn default() -> Self {
        Self { rate: Schedule::Constant { step: 1.0 }, batches_per_update: 1, average: Averaging::on() }
    }
}

impl SgdSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        self.rate.check("rate", f64::INFINITY)?;
        check_batches_per_update(self.batches_per_update)?;
        self.average.check()
    }

    /// Checks the options and allocates the gradient.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        self.rate.check_in_updates("rate")?;
        backend.circuit().require_weights_only()?;
        let gatherer = FlowGatherer::new(backend, 0.0, self.batches_per_update)?;
        let rule = Sgd { top_down: backend.new_rows()? };
        Ok(self.average.around(Box::new(ByRule::new(rule, self.rate, gatherer, backend.circuit()))))
    }
}

options_of_rule!(SgdSpec: "sgd", "SGD", rate, 0, 8);

struct Sgd {
    top_down: ParamRowsId,
}

impl Rule for Sgd {
    const NAME: &'static str = SgdSpec::NAME;
    const MOST_STEP: f64 = f64::INFINITY;

    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, rate: f64) -> Result<()> {
        let MeanFlows { flows, gain, .. } = mean;
        backend.top_down(self.top_down)?;
        backend.gradient(flows, gain, self.top_down)?;
        backend.ascend(flows, rate)?; // θ ← θ·exp(rate·(F − TD·θ))
        backend.renormalize()
    }
}
