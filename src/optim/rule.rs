//! What every optimizer that updates during an epoch shares: gather mean flows, apply a rule, count.

use super::mean_flows::{FlowGatherer, MeanFlows, Retaining};
use super::raised::{MOST_EM, raised};
use super::state::OptimizerState;
use super::{Optimizer, Schedule, StepReport};
use crate::backend::{Backend, FlowsId, ParamRowsId};
use crate::circuit::Circuit;
use crate::data::Batch;
use crate::error::Result;

/// What an optimizer does with the mean flows of an update; all else is [`ByRule`].
pub(super) trait Rule: Send {
    /// The optimizer's name.
    const NAME: &'static str;

    /// The largest step that is taken when it is raised.
    const MOST_STEP: f64 = MOST_EM;

    /// Moves the parameters by a step of size `step`. Rules without momentum may overwrite these flows.
    fn update(&mut self, backend: &mut dyn Backend, mean: MeanFlows, step: f64) -> Result<()>;

    /// For an EM rule that is told by what it retains: the same, as data, so that a backend can fuse it with the
    /// E-step.
    fn retaining(&self, _step: f64) -> Option<Retaining> {
        None
    }

    /// Buffers that the next update depends on, by name.
    fn buffers(&self) -> Vec<(&'static str, Buffer)> {
        Vec::new()
    }
}

/// A handle of either shape.
pub(super) enum Buffer {
    Flows(FlowsId),
    Rows(ParamRowsId),
}

/// A rule applied once per update.
pub(super) struct ByRule<R> {
    pub rule: R,
    pub step: Schedule,
    pub gatherer: FlowGatherer,
    /// How often a row uses each state of the circuit's inputs.
    counts_per_row: f64,
    /// Whether it started again with a larger step, because the rows had changed.
    is_raised: bool,
    /// The update with which the schedule began: not the first, if the rows have changed since.
    begun: u64,
}

/// Its name in a saved state. A state without it is of a rule that was never raised.
const RAISED: &str = "raised";

/// The name of `begun` in a saved state. A state without it is of a schedule that began with the first update.
const BEGUN: &str = "schedule_begun";

impl<R> ByRule<R> {
    pub fn new(rule: R, step: Schedule, gatherer: FlowGatherer, circuit: &Circuit) -> Self {
        Self { rule, step, gatherer, counts_per_row: circuit.counts_per_row(), is_raised: false, begun: 0 }
    }
}

impl<R: Rule> ByRule<R> {
    fn update(&mut self, backend: &mut dyn Backend) -> Result<f64> {
        let mean = self.gatherer.read();
        let step = self.step_of(mean.weight);
        self.rule.update(backend, mean, step)?;
        self.gatherer.updated();
        Ok(step)
    }

    /// The next step, from rows of this weight.
    fn step_of(&self, weight: f64) -> f64 {
        let updates = self.gatherer.read().updates;
        let changed = if self.begun > 0 { self.step.after_change() } else { None };
        let schedule = changed.unwrap_or(self.step);
        let usual = schedule.at(updates.saturating_sub(self.begun), weight * self.counts_per_row);
        if self.is_raised { raised(usual, updates, R::MOST_STEP) } else { usual }
    }

    fn replace(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        for (name, buffer) in self.rule.buffers() {
            match buffer {
                Buffer::Flows(flows) => backend.load_flows(flows, state.buffer(name)?)?,
                Buffer::Rows(rows) => backend.load_rows(rows, state.buffer(name)?)?,
            }
        }
        self.gatherer.load(backend, state)?;
        self.is_raised = state.counters.contains_key(RAISED);
        self.begun = state.counters.get(BEGUN).copied().unwrap_or(0);
        Ok(())
    }
}

impl<R: Rule> Optimizer for ByRule<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<StepReport> {
        let step = self.step_of(batch.total_weight());
        if self.gatherer.is_one_batch()
            && let Some(rule) = self.rule.retaining(step)
        {
            let (batch, due) = self.gatherer.learn(backend, batch, rule)?;
            if due {
                self.gatherer.updated();
            }
            return Ok(StepReport { batch, step_size: due.then_some(step) });
        }
        let (batch, due) = self.gatherer.add(backend, batch)?;
        let step_size = if due { Some(self.update(backend)?) } else { None };
        Ok(StepReport { batch, step_size })
    }

    fn end_epoch(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let due = self.gatherer.close(backend)?;
        if due {
            self.update(backend)?;
        }
        Ok(due)
    }

    fn restart(&mut self, backend: &mut dyn Backend) -> Result<()> {
        for (_, buffer) in self.rule.buffers() {
            match buffer {
                Buffer::Flows(flows) => backend.scale(flows, 0.0)?,
                Buffer::Rows(rows) => backend.blend_rows(rows, 0.0, rows, 0.0)?,
            }
        }
        (self.is_raised, self.begun) = (false, 0);
        self.gatherer.restart(backend)
    }

    fn raise_step(&mut self, backend: &mut dyn Backend) -> Result<()> {
        self.restart(backend)?;
        self.is_raised = true;
        Ok(())
    }

    fn restart_schedule(&mut self) {
        if self.step.after_change().is_some() {
            self.begun = self.gatherer.read().updates;
        }
    }

    fn save(&self, backend: &dyn Backend) -> Result<OptimizerState> {
        let mut state = OptimizerState::new(R::NAME);
        self.gatherer.save(backend, &mut state)?;
        if self.is_raised {
            state.counters.insert(RAISED.into(), 1);
        }
        if self.begun > 0 {
            state.counters.insert(BEGUN.into(), self.begun);
        }
        for (name, buffer) in self.rule.buffers() {
            let saved = match buffer {
                Buffer::Flows(flows) => backend.save_flows(flows)?,
                Buffer::Rows(rows) => backend.save_rows(rows)?,
            };
            state.buffers.insert(name.into(), saved);
        }
        Ok(state)
    }

    fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        state.expect(R::NAME)?;
        let before = self.save(backend)?;
        let loaded = self.replace(backend, state);
        if loaded.is_err() {
            self.replace(backend, &before)?; // a state that does not fit changes nothing
        }
        loaded
    }
}
