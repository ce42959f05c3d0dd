//! Adam on φ = log θ (Kingma and Ba 2015), with global renormalisation after each step.
//!
//! The gradient of the mean log-likelihood at a normalised circuit is F − TD·θ. Renormalising afterwards changes
//! nothing that the circuit says, unless parameters are tied: then it is a projection (docs/MATH.md, "Global
//! renormalisation").

use serde::{Deserialize, Serialize};

use super::mean_flows::{FlowGatherer, MeanFlows};
use super::rule::{Buffer, ByRule, Rule};
use super::{Averaging, Optimizer, Options, Schedule, check_batches_per_update, check_option};
use crate::backend::{AdamStep, Backend, FlowPrecision, FlowsId, ParamRowsId};
use crate::error::Result;

/// Options of Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamSpec {
    /// Learning rate.
    pub rate: Schedule,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Batches whose gradients are averaged for one update.
    pub batches_per_update: u64,
    /// Whether answers are those of averaged parameters.
    pub average: Averaging,
}

impl Default for AdamSpec {
    fn default() -> Self {
        let rate = Schedule::Constant { step: 0.01 };
        Self { rate, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, batches_per_update: 1, average: Averaging::on() }
    }
}

impl AdamSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        self.rate.check("rate", f64::INFINITY)?;
        check_option((0.0..1.0).contains(&self.beta1), "beta1", self.beta1, "in [0, 1)")?;
        check_option((0.0..1.0).contains(&self.beta2), "beta2", self.beta2, "in [0, 1)")?;
        check_option(self.epsilon > 0.0 && self.epsilon.is_finite(), "epsilon", self.epsilon, "a positive number")?;
        check_batches_per_update(self.batches_per_update)?;
        self.average.check()
    }

    /// Checks the options and allocates gradient and moments.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        self.rate.check_in_updates("rate")?;
        backend.circuit().require_weights_only()?;
        let gatherer = FlowGatherer::new(backend, 0.0, self.batches_per_update)?;
        let rule = Adam {
            spec: self.clone(),
            top_down: backend.new_rows()?,
            first: backend.new_flows(FlowPrecision::Single)?,
            second: backend.new_flows(FlowPrecision::Single)?,
        };
        Ok(self.average.around(Box::new(ByRule::new(rule, self.rate, gatherer, backend.circuit()))))
    }
}

options_of_rule!(AdamSpec: "adam", "Adam", rate, 8, 8);

struct Adam {
    spec: AdamSpec,
    top_down: ParamRowsId,
    /// Moving average of the gradient.
    first: FlowsId,
    /// Moving average of its square.
    second: FlowsId,
}

impl Rule for Adam {
    const NAME: &'static str = AdamSpec::NAME;
    const MOST_STEP: f64 = f64::INFINITY;

    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, rate: f64) -> Result<()> {
        backend.top_down(self.top_down)?;
        backend.gradient(mean.flows, mean.gain, self.top_down)?;
        let AdamSpec { beta1, beta2, epsilon, .. } = self.spec;
        let step = AdamStep { rate, beta1, beta2, epsilon, step: mean.updates + 1 };
        backend.adam_update(mean.flows, self.first, self.second, &step)?;
        backend.renormalize()
    }

    fn buffers(&self) -> Vec<(&'static str, Buffer)> {
        vec![("first_moment", Buffer::Flows(self.first)), ("second_moment", Buffer::Flows(self.second))]
    }
}
