//! Stochastic gradient ascent on φ = log θ, with global renormalisation after each step.

use serde::{Deserialize, Serialize};

use super::window::{FlowWindow, Window};
use super::windowed::{Rule, Windowed};
use super::{Averaging, Optimizer, Schedule};
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
    /// Checks the options and allocates the gradient.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.rate.check(f64::INFINITY)?;
        backend.circuit().require_weights_only()?;
        let window = FlowWindow::new(backend, 0.0, self.batches_per_update)?;
        let rule = Sgd { top_down: backend.new_rows()? };
        self.average.around(Box::new(Windowed::new(rule, self.rate, window, backend.circuit())))
    }
}

struct Sgd {
    top_down: ParamRowsId,
}

impl Rule for Sgd {
    const NAME: &'static str = "sgd";

    fn update(&mut self, backend: &mut dyn Backend, window: Window, rate: f64) -> Result<()> {
        let Window { flows, gain, .. } = window;
        backend.top_down(self.top_down)?;
        backend.gradient(flows, gain, self.top_down)?;
        backend.ascend(flows, rate)?; // θ ← θ·exp(rate·(F − TD·θ))
        backend.renormalize()
    }
}
