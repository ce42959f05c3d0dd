//! What a run says of itself at its beginning and at its end.

use std::path::PathBuf;

use super::Run;
use crate::error::Result;
use crate::pipeline::observer::{Phases, Started};
use crate::pipeline::spec::PipelineSpec;
use crate::source::Source;

impl Run<'_> {
    /// What is known before the first batch.
    pub(super) fn started(&self, name: &str, resumed_from: Option<PathBuf>) -> Started {
        let circuit = self.learner.circuit();
        Started {
            name: name.to_string(),
            out: self.files.as_ref().map(|files| files.out.clone()),
            resumed_from,
            step: self.line.step,
            source: self.inputs.describe_source(),
            columns: self.inputs.reading.clone(),
            table: self.inputs.table.as_deref().cloned(),
            rows: self.inputs.num_rows(),
            shape: Some(self.inputs.decoder.shape().clone()),
            input: self.inputs.describe_input().to_string(),
            num_vars: circuit.num_vars(),
            circuit: self.spec.circuit.model.name().to_string(),
            parameters: circuit.layout().num_values() as u64,
            start: self.start,
            optimizer: self.spec.learn.optimizer.name().to_string(),
            first_step: self.first_step(),
            is_averaged: self.spec.learn.optimizer.average().is_on(),
            device: self.learner.place().name.clone(),
            device_note: self.learner.place().why.clone(),
            precision: self.learner.place().precision,
            epochs: self.spec.learn.epochs,
            batches: self.spec.learn.batches,
        }
    }

    /// The step of an update from a whole batch, before any other.
    fn first_step(&self) -> Option<f64> {
        let optimizer = self.inputs.optimizer().ok()?;
        let rows = self.inputs.pace(&optimizer).rows_per_update();
        let (_, schedule) = optimizer.schedule()?;
        Some(schedule.at(0, rows * self.learner.circuit().counts_per_row()))
    }

    /// Where the time of this stretch went, validation left out.
    pub(super) async fn phases(&self) -> Result<Phases> {
        let device = self.learner.phase_seconds().await?.since(&self.validating);
        let waits = self.stream.waits();
        Ok(Phases {
            read: waits.cutter.input + waits.cutter.busy,
            decode: waits.decoders.busy,
            wait: waits.learner.input,
            prepare: device.prepare,
            forward: device.forward,
            backward: device.backward,
            flows: device.flows,
            update: device.update,
        })
    }
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    End,
    Batches,
    Rows,
    Seconds,
    Drift,
    Signal,
}

impl Reason {
    /// In words.
    pub fn text(self, spec: &PipelineSpec, source: &Source) -> String {
        let learn = &spec.learn;
        let number = |number: Option<String>, one: &str, more: &str| {
            number.map_or("the data ended".into(), |n| format!("{n} {}", if n == "1" { one } else { more }))
        };
        match self {
            // It passes once, whatever was asked for.
            Self::End if matches!(source, Source::Live(_)) && learn.window_rows.is_none() => "the data ended".into(),
            Self::End => number(learn.epochs.map(|n| n.to_string()), "epoch", "epochs"),
            Self::Batches => number(learn.batches.map(|n| n.to_string()), "batch", "batches"),
            Self::Rows => number(learn.rows.map(|n| n.to_string()), "row", "rows"),
            Self::Seconds => number(learn.seconds.map(|n| n.to_string()), "second", "seconds"),
            Self::Drift => "the stream has changed (drift.on_drift = \"stop\")".into(),
            Self::Signal => "stopped by a signal".into(),
        }
    }
}
