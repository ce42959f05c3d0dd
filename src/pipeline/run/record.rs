//! What a run keeps in its checkpoints besides what the learner does: `extra` in `checkpoint.json`.
//!
//! A field that is missing was not kept by the version that wrote the checkpoint, and has the meaning of its default. A
//! field that cannot be read is an error: the bits of what is learned depend on some of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::drift::DriftRecord;
use crate::backend::cpu::IsaCap;
use crate::backend::{Device, PlaceSpec, TrainingPrecision};
use crate::error::{Error, Result};

/// What a run keeps in its checkpoints besides what the learner does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunRecord {
    /// Seconds of all stretches of the run together.
    pub seconds: f64,
    /// Those among them that went into looking at held-out rows: no part of learning.
    pub validation_seconds: f64,
    /// The best held-out log-likelihood and its step.
    pub best: Option<Best>,
    /// Updates made before the last look at held-out rows, so that the same parameters are not looked at twice, and no
    /// look is left out because a run was stopped during it.
    pub validated: Option<u64>,
    /// The latest held-out log-likelihood; `None` also if a row was impossible.
    pub valid_ll: Option<f64>,
    /// Held-out rows of probability zero at the latest look.
    pub valid_impossible_rows: Option<u64>,
    /// Mean log-likelihood of the rows of the latest epoch that is over, each batch before its update.
    pub train_ll: Option<f64>,
    /// Digest of the rows that they were measured on.
    pub held_out: Option<String>,
    /// The device's memory decides where batches are cut, and with it the last bits of what is learned.
    pub memory_budget: Option<usize>,
    /// So does the instruction set,
    pub isa: Option<IsaCap>,
    /// and, with more than the last bits, the precision of training.
    pub precision: Option<TrainingPrecision>,
    /// Where the run was, for people. It may go on anywhere.
    pub device: Option<String>,
    /// The resolved pipeline.
    pub pipeline: String,
    /// Log-likelihoods of the epoch so far.
    pub epoch: EpochSums,
    /// What detectors of drift have seen, and what they found.
    pub drift: DriftRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Best {
    pub step: u64,
    pub log_likelihood: f64,
    /// Mean log-likelihood of the test rows at that step, where there are any.
    #[serde(default)]
    pub test_ll: Option<f64>,
}

impl RunRecord {
    /// What a checkpoint has kept. A record that cannot be read is refused with the fields that are wrong.
    pub fn read(extra: &Map<String, Value>) -> Result<Self> {
        let read = |fields: Map<String, Value>| serde_json::from_value::<Self>(Value::Object(fields));
        read(extra.clone()).map_err(|whole| {
            let alone = |(key, value): (&String, &Value)| {
                let error = read(Map::from_iter([(key.clone(), value.clone())])).err()?;
                Some(format!("extra.{key} = {value}: {error}"))
            };
            let wrong: Vec<String> = extra.iter().filter_map(alone).collect();
            let wrong = if wrong.is_empty() { format!("extra: {whole}") } else { wrong.join("; ") };
            Error::state(format!(
                "checkpoint.json: {wrong}: the record of the run cannot be read, and what is learned depends on it"
            ))
        })
    }

    /// What the run used, but for its device and threads: those do not matter. A precision that the device took by
    /// itself is none that was chosen: a run that goes on elsewhere takes what is usual there.
    pub fn place(&self) -> PlaceSpec {
        let was_gpu = self.device.as_ref().is_some_and(|device| device.starts_with("cuda"));
        let usual = TrainingPrecision::default_of(if was_gpu { Device::Cuda(0) } else { Device::Cpu });
        let precision = self.precision.filter(|precision| *precision != usual);
        let Self { memory_budget, isa, .. } = *self;
        PlaceSpec { memory_budget, isa, precision, ..PlaceSpec::default() }
    }

    pub fn write(&self) -> Map<String, Value> {
        match json!(self) {
            Value::Object(map) => map,
            _ => unreachable!("a struct is written as an object"),
        }
    }
}

/// Log-likelihoods of the epoch so far, each batch before its update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct EpochSums {
    pub log_likelihood: f64,
    pub weight: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn extra(fields: &Value) -> Map<String, Value> {
        fields.as_object().unwrap().clone()
    }

    #[test]
    fn a_record_that_was_written_is_read_again() {
        let record = RunRecord {
            seconds: 1.5,
            best: Some(Best { step: 3, log_likelihood: -2.0, test_ll: None }),
            validated: Some(3),
            memory_budget: Some(1 << 20),
            isa: Some(IsaCap::default()),
            precision: Some(TrainingPrecision::Bf16),
            pipeline: "[source]".into(),
            epoch: EpochSums { log_likelihood: -7.0, weight: 2.0 },
            ..RunRecord::default()
        };
        assert_eq!(RunRecord::read(&record.write()), Ok(record));
    }

    #[test]
    fn what_an_older_version_did_not_keep_is_at_its_default() {
        assert_eq!(RunRecord::read(&Map::new()), Ok(RunRecord::default()));
        let older = extra(&json!({"seconds": 2.5, "best": {"step": 7, "log_likelihood": -1.0}, "valid_ll": null}));
        let best = Some(Best { step: 7, log_likelihood: -1.0, test_ll: None });
        assert_eq!(RunRecord::read(&older), Ok(RunRecord { seconds: 2.5, best, ..RunRecord::default() }));
    }

    #[test]
    fn a_field_that_cannot_be_read_is_an_error_that_names_it() {
        let whole = RunRecord::default().write();
        for (key, value) in [
            ("isa", json!("neon9")),
            ("isa", json!(3)),
            ("precision", json!("f33")),
            ("memory_budget", json!("2GiB")),
            ("memory_budget", json!(-1)),
            ("best", json!(7)),
            ("best", json!({"step": "three", "log_likelihood": -1.0})),
            ("epoch", json!(0)),
            ("pipeline", json!({"source": {}})),
            ("seconds", json!("1.5")),
            ("drift", json!({"watch": 3})),
        ] {
            let mut changed = whole.clone();
            changed.insert(key.into(), value);
            let error = RunRecord::read(&changed).expect_err(key);
            assert_eq!(error.kind(), ErrorKind::State);
            assert!(error.to_string().starts_with(&format!("checkpoint.json: extra.{key} = ")), "{error}");
            assert_eq!(error.to_string().matches("extra.").count(), 1, "{error}");
        }
    }
}
