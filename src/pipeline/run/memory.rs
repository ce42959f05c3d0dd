//! What a run keeps in its checkpoints besides what the learner does.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::backend::cpu::IsaCap;
use crate::backend::{Device, TrainingPrecision};
use crate::learner::Checkpoint;
use crate::pipeline::prepare::Machine;

/// What a run keeps in its checkpoints besides what the learner does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Seconds of all stretches of the run together.
    #[serde(default)]
    pub seconds: f64,
    /// Those among them that went into looking at held-out rows: no part of learning.
    #[serde(default)]
    pub validation_seconds: f64,
    /// The best held-out log-likelihood and its step.
    #[serde(default)]
    pub best: Option<Best>,
    /// Updates made before the last look at held-out rows, so that the same parameters are not looked at twice, and no
    /// look is left out because a run was stopped during it.
    #[serde(default)]
    pub validated: Option<u64>,
    /// The latest held-out log-likelihood; `None` also if a row was impossible.
    #[serde(default)]
    pub valid_ll: Option<f64>,
    /// Held-out rows of probability zero at the latest look.
    #[serde(default)]
    pub valid_impossible_rows: Option<u64>,
    /// Mean log-likelihood of the rows of the latest epoch that is over, each batch before its update.
    #[serde(default)]
    pub train_ll: Option<f64>,
    /// Digest of the rows that they were measured on.
    #[serde(default)]
    pub held_out: Option<String>,
    /// The device's memory decides where batches are cut, and with it the last bits of what is learned.
    #[serde(default)]
    pub memory_budget: Option<usize>,
    /// So does the instruction set,
    #[serde(default)]
    pub isa: Option<IsaCap>,
    /// and, with more than the last bits, the precision of training.
    #[serde(default)]
    pub precision: Option<TrainingPrecision>,
    /// Where the run was, for people. It may go on anywhere.
    #[serde(default)]
    pub device: Option<String>,
    /// The resolved pipeline.
    #[serde(default)]
    pub pipeline: String,
    /// Log-likelihoods of the epoch so far.
    #[serde(default)]
    pub epoch: EpochSums,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Best {
    pub step: u64,
    pub log_likelihood: f64,
    /// Mean log-likelihood of the test rows at that step, where there are any.
    #[serde(default)]
    pub test_ll: Option<f64>,
}

impl Memory {
    pub fn read(checkpoint: &Checkpoint) -> Self {
        serde_json::from_value(Value::Object(checkpoint.meta.extra.clone())).unwrap_or_default()
    }

    /// What the run used, but for its device and threads: those do not matter. A precision that the device took by
    /// itself is none that was chosen: a run that goes on elsewhere takes what is usual there.
    pub fn machine(&self) -> Machine {
        let was_gpu = self.device.as_ref().is_some_and(|device| device.starts_with("cuda"));
        let usual = TrainingPrecision::default_of(if was_gpu { Device::Cuda(0) } else { Device::Cpu });
        let precision = self.precision.filter(|precision| *precision != usual);
        let Self { memory_budget, isa, .. } = *self;
        Machine { memory_budget, isa, precision, ..Machine::default() }
    }

    pub fn write(&self) -> Map<String, Value> {
        match json!(self) {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// Log-likelihoods of the epoch so far, each batch before its update.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct EpochSums {
    pub log_likelihood: f64,
    pub weight: f64,
}
