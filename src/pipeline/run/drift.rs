//! Watches for changes of the stream, and does what `[drift]` says when there is one.
//!
//! The detectors see what the learner reports of every batch, and nothing else, and their state is written into the
//! same checkpoint as parameters and cursor: a run that was killed and resumed has the same alarms at the same rows,
//! and what an alarm does to parameters and optimizer is in what is saved of them. A run that drift has stopped goes on
//! when it is resumed.
//!
//! A larger step does not bring everything back: states of a tree that have become rows of the old data hardly move
//! (docs/EXPERIMENTS.md, "Drift"). So before the step is raised, what was learned is held against what a new run would
//! start from, given half of the batch that raised the alarm and asked for the other half. Where that start is the
//! better model, what was learned is worth less than nothing, and the run starts again from it.

use metrics::{counter, gauge};
use serde::{Deserialize, Serialize};

use super::Run;
use super::together::share_start;
use crate::circuit::Params;
use crate::data::Batch;
use crate::detached::detached;
use crate::error::Result;
use crate::learner::drift::DriftWatch;
use crate::learner::{Learned, View};
use crate::pipeline::model::initial_params;
use crate::pipeline::observer::{Drift, Event};
use crate::pipeline::spec::{DriftSection, OnDrift};
use crate::telemetry;

/// What a checkpoint keeps of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DriftRecord {
    watch: DriftWatch,
    /// How often a detector has fired in this run.
    found: u64,
    /// Steps of the checkpoints that drift asked for, as far as they are kept.
    pub kept: Vec<u64>,
    /// Whether it ends this stretch of the run.
    #[serde(skip)]
    is_over: bool,
}

impl DriftRecord {
    /// Detectors as the pipeline has them; what they have seen stays.
    pub fn set_options(&mut self, spec: Option<&DriftSection>) -> Result<()> {
        match spec {
            Some(spec) => self.watch.set_options(&spec.watch).map_err(|e| e.at("drift")),
            None => {
                self.watch = DriftWatch::default();
                Ok(())
            }
        }
    }

    /// Returns true if drift ends the run.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns true if the checkpoint of a step is one that drift asked for.
    pub fn wants_checkpoint(&self, step: u64) -> bool {
        self.kept.last() == Some(&step)
    }
}

impl Run<'_> {
    /// The batch, where an alarm may want to start from it: of several shards the rows of the first, which the first
    /// rank has.
    pub(super) fn for_drift(&self, batch: &Batch) -> Option<Batch> {
        self.spec.drift.filter(|drift| drift.on_drift == OnDrift::RaiseStep)?;
        match batch.part() {
            None => Some(batch.clone()),
            Some(part) if self.team.is_first() => Some(batch.slice(part.range(0))),
            Some(_) => None,
        }
    }

    /// Shows what a batch of so many rows brought to the detectors. If one fires it is told, and what `on_drift` says
    /// is done; a checkpoint is written after the batch, with all others.
    pub(super) async fn watch_for_drift(&mut self, report: &Learned, rows: u64, batch: Option<Batch>) -> Result<()> {
        let Some(DriftSection { on_drift, keep, .. }) = self.spec.drift else { return Ok(()) };
        let (mean, weight) = (report.batch.mean_log_likelihood(), report.batch.possible_weight);
        let record = &mut self.record.drift;
        let Some(alarm) = record.watch.add(mean, weight, rows) else { return Ok(()) };
        record.found += 1;
        let mut drift = Drift {
            detector: alarm.detector,
            step: self.line.step,
            rows: self.line.rows,
            rows_ago: alarm.fall.rows,
            window_rows: alarm.fall.window,
            before_ll: alarm.fall.before,
            after_ll: alarm.fall.after,
            number: record.found,
            action: on_drift,
            is_new_start: false,
        };
        match on_drift {
            OnDrift::Report => {}
            OnDrift::Stop => record.is_over = true,
            OnDrift::Checkpoint => {
                record.kept.push(drift.step);
                let old = record.kept.len().saturating_sub(keep);
                record.kept.drain(..old);
            }
            OnDrift::RaiseStep => {
                // Larger steps make noise, which is not to be taken for another change.
                record.watch.reset();
                let better = match batch {
                    Some(batch) => self.better_start(batch, mean).await,
                    None => Ok(None),
                };
                if let Some(start) = share_start(&self.team, self.learner.circuit(), better).await? {
                    self.learner.swap(start).await?;
                    drift.is_new_start = true;
                }
                self.learner.raise_step().await?;
            }
        }
        counter!(telemetry::DRIFTS).increment(1);
        gauge!(telemetry::DRIFT_ROW).set(drift.rows as f64);
        self.line.drift = Some(drift);
        self.observer.event(&Event::Drift(drift));
        Ok(())
    }

    /// The parameters that a new run would start from, if these are the better model of rows of which the mean
    /// log-likelihood was `before`.
    async fn better_start(&self, batch: Batch, before: f64) -> Result<Option<Params>> {
        let half = batch.num_rows() / 2;
        if half == 0 {
            return Ok(None);
        }
        let (spec, circuit) = (self.spec.circuit.clone(), self.learner.circuit().clone());
        let start = move || {
            let given = initial_params(&spec, &circuit, Some(&batch.slice(0..half)))?;
            let asked = View::of(circuit.clone(), given)?.log_likelihoods(&batch.slice(half..batch.num_rows()))?;
            let mean = asked.iter().sum::<f64>() / asked.len() as f64;
            if mean > before { initial_params(&spec, &circuit, Some(&batch)).map(Some) } else { Ok(None) }
        };
        detached("start", start).await
    }
}
