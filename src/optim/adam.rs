//! Adam on φ = log θ (Kingma and Ba 2015), with global renormalisation after each step.
//!
//! The gradient of the mean log-likelihood at a normalised circuit is F − TD·θ. Renormalising afterwards changes
//! nothing that the circuit says, unless parameters are tied: then it is a projection (docs/MATH.md, "Global
//! renormalisation").

use serde::{Deserialize, Serialize};

use super::window::{FlowWindow, Window};
use super::windowed::{Buffer, Rule, Windowed};
use super::{Averaging, Optimizer, Schedule, check_option};
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
    /// Checks the options and allocates gradient and moments.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.rate.check(f64::INFINITY)?;
        check_option((0.0..1.0).contains(&self.beta1), "beta1", self.beta1, "in [0, 1)")?;
        check_option((0.0..1.0).contains(&self.beta2), "beta2", self.beta2, "in [0, 1)")?;
        check_option(self.epsilon > 0.0 && self.epsilon.is_finite(), "epsilon", self.epsilon, "a positive number")?;
        backend.circuit().require_weights_only()?;
        let window = FlowWindow::new(backend, 0.0, self.batches_per_update)?;
        let rule = Adam {
            spec: self.clone(),
            top_down: backend.new_rows()?,
            first: backend.new_flows(FlowPrecision::Single)?,
            second: backend.new_flows(FlowPrecision::Single)?,
        };
        self.average.around(Box::new(Windowed::new(rule, self.rate, window, backend.circuit())))
    }
}

struct Adam {
    spec: AdamSpec,
    top_down: ParamRowsId,
    /// Moving average of the gradient.
    first: FlowsId,
    /// Moving average of its square.
    second: FlowsId,
}

impl Rule for Adam {
    const NAME: &'static str = "adam";

    fn update(&mut self, backend: &mut dyn Backend, window: Window, rate: f64) -> Result<()> {
        backend.top_down(self.top_down)?;
        backend.gradient(window.flows, window.gain, self.top_down)?;
        let AdamSpec { beta1, beta2, epsilon, .. } = self.spec;
        let step = AdamStep { rate, beta1, beta2, epsilon, step: window.updates + 1 };
        backend.adam_update(window.flows, self.first, self.second, &step)?;
        backend.renormalize()
    }

    fn buffers(&self) -> Vec<(&'static str, Buffer)> {
        vec![("first_moment", Buffer::Flows(self.first)), ("second_moment", Buffer::Flows(self.second))]
    }
}
