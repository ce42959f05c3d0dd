//! Mini-batch EM (Peharz et al. 2020): θ' = (1−α)·θ + α·F/ΣF.
//!
//! Every row moves by the same fraction α, however little the batch says about it; that is what anemone mends.

use serde::{Deserialize, Serialize};

use super::mean_flows::{FlowGatherer, MeanFlows, Retaining};
use super::rule::{ByRule, Rule};
use super::{Averaging, Optimizer, Options, Schedule, check_batches_per_update, check_momentum, check_smoothing};
use crate::backend::{Backend, RetainSource, RetainSources};
use crate::circuit::Smoothing;
use crate::error::Result;

/// Options of mini-batch EM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MiniBatchEmSpec {
    /// α, in (0, 1].
    pub step: Schedule,
    /// β of the momentum flows; 0 is none.
    pub momentum: f64,
    /// Batches whose flows are averaged for one update.
    pub batches_per_update: u64,
    /// What keeps rows away from zero. The absolute rule counts ε in flows per sample.
    pub smoothing: Smoothing,
    /// What rows of sums retain of the old parameters.
    pub retain: RetainSource,
    /// What rows of inputs retain of them.
    pub retain_inputs: RetainSource,
    /// Whether answers are those of averaged parameters.
    pub average: Averaging,
}

impl Default for MiniBatchEmSpec {
    fn default() -> Self {
        Self {
            step: Schedule::Constant { step: 0.1 },
            momentum: 0.0,
            batches_per_update: 1,
            smoothing: Smoothing::default(),
            retain: RetainSource::Flows,
            retain_inputs: RetainSource::Flows,
            average: Averaging::on(),
        }
    }
}

impl MiniBatchEmSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        self.step.check("step", 1.0)?;
        check_smoothing(self.smoothing)?;
        check_momentum(self.momentum)?;
        check_batches_per_update(self.batches_per_update)?;
        self.average.check()
    }

    /// Checks the options and allocates flows.
    pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
        self.check()?;
        self.step.check_in_updates("step")?;
        let gatherer = FlowGatherer::new(backend, self.momentum, self.batches_per_update)?;
        let sources = RetainSources { sums: self.retain, inputs: self.retain_inputs };
        let rule = MiniBatchEm { sources, smoothing: self.smoothing };
        Ok(self.average.around(Box::new(ByRule::new(rule, self.step, gatherer, backend.circuit()))))
    }
}

options_of_rule!(MiniBatchEmSpec: "mini_batch_em", "mini-batch EM", step, 0, 0);

struct MiniBatchEm {
    sources: RetainSources,
    smoothing: Smoothing,
}

impl Rule for MiniBatchEm {
    const NAME: &'static str = MiniBatchEmSpec::NAME;

    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, alpha: f64) -> Result<()> {
        self.at(alpha).update(backend, mean)
    }

    fn retaining(&self, alpha: f64) -> Option<Retaining> {
        Some(self.at(alpha))
    }
}

impl MiniBatchEm {
    /// What a step of size α retains.
    fn at(&self, alpha: f64) -> Retaining {
        // With ε: (1−α)·θ + α·(F + ε/c)/(ΣF + ε) is normalise((1−α)/α·(ΣF + ε)·θ + F + ε/c).
        let offset = match self.smoothing {
            Smoothing::Absolute(epsilon) => epsilon,
            Smoothing::Relative(_) => 0.0,
        };
        let scale = (1.0 - alpha) / alpha;
        Retaining { sources: self.sources, scale, offset, smoothing: self.smoothing }
    }
}
