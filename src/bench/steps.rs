//! The time of whole optimizer steps.

use std::time::Instant;

use crate::backend::{Backend, PhaseSeconds};
use crate::data::Batch;
use crate::error::Result;
use crate::optim::Optimizer;

/// How long one step took, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// From the call to its return.
    pub seconds: f64,
    /// What the backend says that it did meanwhile.
    pub phases: PhaseSeconds,
}

/// The timed steps of one optimizer.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Every step, the fastest first.
    steps: Vec<StepTime>,
    /// The update at the end of the epoch, of an optimizer that waits for it.
    pub update_seconds: Option<f64>,
    /// Mean log-likelihood of the last batch before it was learned from; `None` if none of its rows was possible.
    pub log_likelihood: Option<f64>,
}

impl Timing {
    /// Learns from `warmup` batches, and then from `steps` that are timed; the pool is gone through again and again.
    /// Full-batch EM does not update in a step, so its steps are E-steps and one update after them is timed apart.
    pub fn measure(
        backend: &mut dyn Backend,
        optimizer: &mut dyn Optimizer,
        pool: &[Batch],
        warmup: usize,
        steps: usize,
    ) -> Result<Self> {
        let mut batches = pool.iter().cycle();
        for batch in batches.by_ref().take(warmup) {
            optimizer.learn(backend, batch)?;
        }
        let mut times = Vec::with_capacity(steps);
        let mut log_likelihood = None;
        for batch in batches.take(steps) {
            let (before, begun) = (backend.phase_seconds(), Instant::now());
            let report = optimizer.learn(backend, batch)?;
            let seconds = begun.elapsed().as_secs_f64();
            times.push(StepTime { seconds, phases: backend.phase_seconds().since(&before) });
            log_likelihood = Some(report.batch.mean_log_likelihood()).filter(|ll| ll.is_finite());
        }
        let begun = Instant::now();
        let updated = optimizer.end_epoch(backend)?;
        let update_seconds = updated.then(|| begun.elapsed().as_secs_f64());
        times.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Ok(Self { steps: times, update_seconds, log_likelihood })
    }

    /// How many steps were timed.
    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// The step in the middle; of two the slower one. A step and not a mean of two, so that its phases are its own.
    pub fn median(&self) -> StepTime {
        self.steps.get(self.steps.len() / 2).copied().unwrap_or_default()
    }

    /// The fastest step.
    pub fn fastest(&self) -> StepTime {
        self.steps.first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::{CpuBackend, CpuOptions};
    use crate::bench::rows::Rows;
    use crate::circuit::{Categorical, Params};
    use crate::optim::{AnemoneSpec, FullBatchEmSpec, OptimizerSpec};
    use crate::rng::Rng;
    use crate::structure::hmm;

    #[test]
    fn only_full_batch_em_has_an_update_of_its_own() {
        let circuit = Arc::new(hmm(5, 3, Categorical::new(7).unwrap()).unwrap());
        let params = Params::random(&circuit, 1, 2.0).unwrap();
        let rows = Rows::tokens(5, 7).unwrap();
        let pool: Vec<Batch> = (0..3).map(|i| rows.batch(20, &mut Rng::new(i)).unwrap()).collect();
        for (spec, updates) in [
            (OptimizerSpec::Anemone(AnemoneSpec::default()), false),
            (OptimizerSpec::FullBatchEm(FullBatchEmSpec::default()), true),
        ] {
            let mut backend = CpuBackend::new(circuit.clone(), &params, &CpuOptions::default()).unwrap();
            let mut optimizer = spec.build(&mut backend).unwrap();
            let timing = Timing::measure(&mut backend, &mut *optimizer, &pool, 1, 4).unwrap();
            assert_eq!((timing.num_steps(), timing.update_seconds.is_some()), (4, updates));
            let (median, fastest) = (timing.median().seconds, timing.fastest().seconds);
            assert!(0.0 < fastest && fastest <= median, "{fastest} {median}");
            assert!(timing.log_likelihood.unwrap() < 0.0);
        }
    }

    #[test]
    fn the_middle_of_an_even_number_is_the_slower_one() {
        let steps = [1.0, 2.0, 3.0, 4.0].map(|seconds| StepTime { seconds, ..StepTime::default() });
        let timing = Timing { steps: steps.to_vec(), update_seconds: None, log_likelihood: None };
        assert_eq!((timing.median().seconds, timing.fastest().seconds), (3.0, 1.0));
    }
}
