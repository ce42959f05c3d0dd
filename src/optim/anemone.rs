//! Anemone: θ' ∝ (1−α)·TD(n)·θ + α·F(n,c), with momentum flows (Liu, Shao and Van den Broeck).
//!
//! It retains of each row as much as the *model* uses it, TD(n), where mini-batch EM retains as much as the *batch*
//! used it. A node that the batch says nothing about therefore stays where it is. By default it retains the larger of
//! the two: a node that the batch uses far more than the model expects is not carried away by it either. See
//! docs/MATH.md, "Anemone".

use serde::{Deserialize, Serialize};

use super::mean_flows::{FlowGatherer, MeanFlows, Retaining};
use super::rule::{ByRule, Rule};
use super::{Averaging, Optimizer, Options, Schedule, check_batches_per_update, check_momentum, check_smoothing};
use crate::backend::{Backend, RetainSource, RetainSources};
use crate::circuit::Smoothing;
use crate::error::Result;

/// Options of anemone. The defaults are those that need no tuning (docs/EXPERIMENTS.md); [`AnemoneSpec::paper`] are the
/// paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnemoneSpec {
    /// α = η/(1+η), in (0, 1].
    pub step: Schedule,
    /// β of the momentum flows; 0 is none.
    pub momentum: f64,
    /// Batches whose flows are averaged for one update.
    pub batches_per_update: u64,
    /// What keeps rows away from zero.
    pub smoothing: Smoothing,
    /// What rows of sums retain of the old parameters.
    pub retain: RetainSource,
    /// What rows of inputs retain of them.
    pub retain_inputs: RetainSource,
    /// Whether answers are those of averaged parameters.
    pub average: Averaging,
}

impl Default for AnemoneSpec {
    fn default() -> Self {
        Self {
            step: Schedule::falling_counts(0.14, 0.4, 0.5, 50, 0.035),
            momentum: 0.0,
            batches_per_update: 1,
            smoothing: Smoothing::default(),
            retain: RetainSource::Larger,
            retain_inputs: RetainSource::Larger,
            average: Averaging::on(),
        }
    }
}

impl AnemoneSpec {
    /// The paper's options: α 0.4, β 0.9, top-down probabilities retained, and answers of the latest parameters.
    pub fn paper() -> Self {
        Self {
            step: Schedule::constant(0.4),
            momentum: 0.9,
            retain: RetainSource::TopDown,
            retain_inputs: RetainSource::TopDown,
            average: Averaging::Off,
            ..Self::default()
        }
    }

    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        self.step.check("step", 1.0)?;
        check_smoothing(self.smoothing)?;
        check_momentum(self.momentum)?;
        check_batches_per_update(self.batches_per_update)?;
        self.average.check()
    }

    /// Checks the options and allocates momentum flows.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        self.step.check_in_updates("step")?;
        let gatherer = FlowGatherer::new(backend, self.momentum, self.batches_per_update)?;
        let sources = RetainSources { sums: self.retain, inputs: self.retain_inputs };
        let rule = Anemone { sources, smoothing: self.smoothing };
        Ok(self.average.around(Box::new(ByRule::new(rule, self.step, gatherer, backend.circuit()))))
    }
}

options_of_rule!(AnemoneSpec: "anemone", "anemone", step, 0, 0);

struct Anemone {
    sources: RetainSources,
    smoothing: Smoothing,
}

impl Rule for Anemone {
    const NAME: &'static str = AnemoneSpec::NAME;

    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, alpha: f64) -> Result<()> {
        self.at(alpha).update(backend, mean)
    }

    fn retaining(&self, alpha: f64) -> Option<Retaining> {
        Some(self.at(alpha))
    }
}

impl Anemone {
    /// What a step of size α retains.
    fn at(&self, alpha: f64) -> Retaining {
        Retaining {
            sources: self.sources,
            scale: (1.0 - alpha) / alpha,
            offset: 0.0,
            smoothing: self.smoothing.scaled(1.0 / alpha), // PyJuice adds ε to α·F + (1−α)·TD·θ; this is 1/α of that
        }
    }
}
