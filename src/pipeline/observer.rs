//! What a run tells whoever watches it.
//!
//! The training loop sends an [`Event`] whenever something happens; an [`Observer`] shows it. The same structs are the
//! lines of `metrics.jsonl`. All likelihoods are in nats per row, before the update that they led to. Those of batches
//! come out of the pass that learns from them, at its precision; those of held-out rows are of an evaluation, in f32.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::spec::OnDrift;
use super::table::TableReport;
use crate::backend::TrainingPrecision;
use crate::decode::RowShape;
use crate::learner::drift::DetectorKind;
use crate::source::Reading;

/// Watches a run.
pub trait Observer: Send {
    /// Takes note of what happened. Must not block for long: the run waits.
    fn event(&mut self, event: &Event);

    /// From now on this process speaks to the user: the rank that did so is gone.
    fn take_over(&mut self) {}
}

/// Shows nothing.
impl Observer for () {
    fn event(&mut self, _: &Event) {}
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A structure is being learned from rows.
    Structure {
        /// How much of it is done, from 0 to 1.
        share: f64,
    },
    /// Everything is open and built; the first batch is next.
    Started(Started),
    /// A batch was learned from.
    Step(StepLine),
    /// Held-out rows were looked at.
    Validated(Validated),
    /// A checkpoint was written.
    Checkpointed {
        /// Its folder.
        path: PathBuf,
    },
    /// A detector says that the stream has changed.
    Drift(Drift),
    /// All data was seen once more.
    EpochEnd(EpochEnd),
    /// Something a user should know, and that does not stop the run.
    Warning(String),
    /// Something that happened to the source and is as it should be: a file that was rotated, a connection that is
    /// back.
    Note(String),
    /// The run is over.
    Finished(Finished),
}

/// How a run starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// What the run is called.
    pub name: String,
    /// Its folder; `None` if it leaves nothing behind.
    pub out: Option<PathBuf>,
    /// The checkpoint it goes on from.
    pub resumed_from: Option<PathBuf>,
    /// Batches learned from before.
    pub step: u64,
    /// What is read, in a few words.
    pub source: String,
    /// Which columns of a table are learned, and which are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Reading>,
    /// What the columns of a table are understood as, where they mean something each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableReport>,
    /// Rows of an epoch, where that is known beforehand.
    pub rows: Option<u64>,
    /// How rows are understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<RowShape>,
    /// What inputs a variable has, in a few words.
    #[serde(default)]
    pub input: String,
    /// Variables of a row.
    pub num_vars: usize,
    /// Which model, in a few words.
    pub circuit: String,
    /// Numbers that are learned.
    pub parameters: u64,
    /// What they start from; `None` if the run goes on from a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// Which optimizer.
    pub optimizer: String,
    /// The first step that it takes; `None` for full-batch EM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<f64>,
    /// Whether held-out rows, answers and saved models are those of averaged parameters.
    #[serde(default)]
    pub is_averaged: bool,
    /// Where it learns: `cpu`, or the number and name of a GPU.
    #[serde(default)]
    pub device: String,
    /// Why there, if nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_note: Option<String>,
    /// How precisely batches are learned from; held-out rows are looked at in f32.
    #[serde(default)]
    pub precision: TrainingPrecision,
    /// Epochs to go through, over all resumptions.
    pub epochs: Option<u64>,
    /// Batches to learn from, over all resumptions.
    pub batches: Option<u64>,
}

/// What parameters start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The way.
    pub from: StartKind,
    /// Rows of the stream that are looked at for it.
    pub rows: u64,
}

/// A way to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartKind {
    /// Chance alone.
    Noise,
    /// Rows.
    Rows,
    /// Clusters of rows, one for every component of a mixture.
    Clusters,
    /// Chance, and rows for inputs that are densities.
    Densities,
    /// The circuit's file, or chance where it has no parameters.
    File,
}

/// A batch that was learned from: a line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// Batches learned from, this one included.
    pub step: u64,
    /// Updates of the parameters.
    pub updates: u64,
    /// The epoch it belongs to, from 0.
    pub epoch: u64,
    /// Rows learned from.
    pub rows: u64,
    /// Seconds of learning, over all resumptions.
    pub seconds: f64,
    /// Mean log-likelihood of this batch; `None` if none of its rows was possible.
    pub log_likelihood: Option<f64>,
    /// Mean log-likelihood of all rows when they were first seen: test, then train. Stays after the first epoch.
    pub prequential_ll: Option<f64>,
    /// The same over the last `drift.mean_rows` rows, of any epoch.
    #[serde(default)]
    pub window_ll: Option<f64>,
    /// The same, fading: over the last hundred batches or so.
    #[serde(default)]
    pub fading_ll: Option<f64>,
    /// What a detector found, on the line of the batch at which it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// The held-out log-likelihood, on a line that carries one: the mean over all rows, and `None` for −∞ if one is
    /// impossible.
    pub valid_ll: Option<f64>,
    /// Then, the mean over the held-out rows that are possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_possible_ll: Option<f64>,
    /// Held-out rows of probability zero, on a line that carries a look at them.
    #[serde(default)]
    pub valid_impossible_rows: Option<u64>,
    /// How many states of a variable are in use, on average, on a line that carries such a look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states_in_use: Option<f64>,
    /// −log₂ p of this batch per variable.
    pub bits_per_dim: Option<f64>,
    /// The step size, if the parameters moved.
    pub step_size: Option<f64>,
    /// Rows a second, lately.
    pub rows_per_second: f64,
    /// What the run waits for: `input`, `decode` or `compute`.
    pub bound: String,
    /// Rows of probability zero so far.
    pub impossible_rows: u64,
    /// Records left out so far because they could not be read.
    pub bad_records: u64,
}

/// A change of the stream that a detector found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Who found it.
    pub detector: DetectorKind,
    /// Batches learned from.
    pub step: u64,
    /// Rows learned from.
    pub rows: u64,
    /// About how many rows ago it was.
    pub rows_ago: u64,
    /// Rows before it that it is held against.
    pub window_rows: u64,
    /// Mean log-likelihood of those, when they were first seen,
    pub before_ll: f64,
    /// and of the rows since.
    pub after_ll: f64,
    /// How many there have been in this run, this one included.
    pub number: u64,
    /// What is done about it.
    pub action: OnDrift,
    /// Whether parameters started again from the new rows, where the step was raised.
    #[serde(default)]
    pub is_new_start: bool,
}

/// What held-out rows said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validated {
    /// Batches learned from before.
    pub step: u64,
    /// Epochs that are over.
    pub epoch: u64,
    /// Mean log-likelihood of all rows; `None` for −∞ if one of them is impossible.
    pub log_likelihood: Option<f64>,
    /// Mean log-likelihood of the rows that are possible.
    #[serde(default)]
    pub possible_ll: Option<f64>,
    /// −log₂ p per variable.
    pub bits_per_dim: Option<f64>,
    /// exp(−log p per variable).
    pub perplexity: Option<f64>,
    /// Rows looked at.
    pub rows: u64,
    /// Rows among them of probability zero.
    pub impossible_rows: u64,
    /// Whether it is the best so far.
    pub best: bool,
    /// Mean log-likelihood of the rows of the latest epoch that is over, each batch before its update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_ll: Option<f64>,
    /// Mean log-likelihood of the test rows, which are looked at only where the held-out rows say it is the best so
    /// far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_ll: Option<f64>,
    /// How many states of a variable are in use, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states_in_use: Option<f64>,
    /// How long it took.
    pub seconds: f64,
    /// Seconds of learning before it, over all resumptions; those of looking at held-out rows are left out.
    #[serde(default)]
    pub learned_seconds: f64,
}

/// The end of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochEnd {
    /// Epochs that are over.
    pub epoch: u64,
    /// Batches learned from.
    pub step: u64,
    /// Rows learned from.
    pub rows: u64,
    /// Mean log-likelihood over the epoch, each batch before its update.
    pub log_likelihood: Option<f64>,
    /// Whether the end of the epoch moved the parameters.
    pub updated: bool,
    /// Seconds of learning, over all resumptions.
    pub seconds: f64,
}

/// How a run ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Why, in a few words: `3 epochs`, `stopped by a signal`.
    pub reason: String,
    /// Batches learned from.
    pub step: u64,
    /// Epochs that are over.
    pub epoch: u64,
    /// Rows learned from.
    pub rows: u64,
    /// Seconds of learning, over all resumptions.
    pub seconds: f64,
    /// Mean log-likelihood of all rows when they were first seen.
    pub prequential_ll: Option<f64>,
    /// The latest held-out log-likelihood; `None` also for −∞.
    pub valid_ll: Option<f64>,
    /// Held-out rows of probability zero at the latest look.
    #[serde(default)]
    pub valid_impossible_rows: Option<u64>,
    /// The best one.
    pub best_valid_ll: Option<f64>,
    /// −log p of the source of synthetic data itself on the held-out rows: nobody does better.
    pub source_ll: Option<f64>,
    /// Records left out because they could not be read, over all epochs.
    pub bad_records: u64,
    /// What the run waited for.
    pub bound: String,
    /// Where the time of this stretch went.
    pub phases: Phases,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// What each rank did in this stretch, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankWork>,
}

/// What a rank did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankWork {
    /// Rows of its own shards that it learned from.
    pub rows: u64,
    /// Bytes of records that its streams read.
    pub bytes_read: u64,
    /// Seconds in which it computed flows.
    pub compute_seconds: f64,
    /// Seconds in sums over ranks, waiting for slower ones included.
    pub sum_seconds: f64,
    /// Bytes of flows that it had from others.
    pub bytes_received: u64,
}

/// Where the time of learning went, in seconds; that of validation is left out.
///
/// Stages read and decode while the device works, so only `wait` and what follows it are parts of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Waiting for bytes and cutting them into pieces.
    pub read: f64,
    /// Decoding, all workers together.
    pub decode: f64,
    /// The device waited for a batch.
    pub wait: f64,
    /// Cutting batches into tiles, packing weights, sorting rows by category.
    #[serde(default)]
    pub prepare: f64,
    /// Values of all nodes.
    pub forward: f64,
    /// Flows of all nodes.
    pub backward: f64,
    /// Flows of the parameters.
    pub flows: f64,
    /// Momentum, top-down probabilities, and the M-step or the gradient step with its renormalisation.
    pub update: f64,
}

impl Phases {
    /// The parts of the whole together: all but what stages do beside the device.
    pub fn sum(&self) -> f64 {
        self.wait + self.prepare + self.forward + self.backward + self.flows + self.update
    }
}

impl Event {
    /// The event as one JSON object; its `event` says what it is.
    pub fn to_json(&self) -> Value {
        let (name, value) = match self {
            Self::Structure { share } => ("structure", json!({ "share": share })),
            Self::Started(started) => ("started", json!(started)),
            Self::Step(line) => ("step", json!(line)),
            Self::Validated(validated) => ("validated", json!(validated)),
            Self::Checkpointed { path } => ("checkpointed", json!({ "path": path })),
            Self::Drift(drift) => ("drift", json!(drift)),
            Self::EpochEnd(end) => ("epoch_end", json!(end)),
            Self::Warning(message) => ("warning", json!({ "message": message })),
            Self::Note(message) => ("note", json!({ "message": message })),
            Self::Finished(finished) => ("finished", json!(finished)),
        };
        let mut object = json!({ "event": name });
        if let (Value::Object(object), Value::Object(value)) = (&mut object, value) {
            object.extend(value);
        }
        object
    }
}

/// −log₂ p per variable, of a mean log-likelihood in nats per row.
pub fn bits_per_dim(log_likelihood: f64, num_vars: usize) -> f64 {
    -log_likelihood / (num_vars as f64 * std::f64::consts::LN_2)
}

/// exp(−log p per variable), of a mean log-likelihood in nats per row.
pub fn perplexity(log_likelihood: f64, num_vars: usize) -> f64 {
    (-log_likelihood / num_vars as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_object_that_says_what_it_is() {
        let line = StepLine { step: 3, bound: "compute".into(), ..StepLine::default() };
        let value = Event::Step(line.clone()).to_json();
        assert_eq!((&value["event"], &value["step"]), (&json!("step"), &json!(3)));
        assert_eq!(Event::Warning("careful".into()).to_json(), json!({"event": "warning", "message": "careful"}));
        // A line of metrics.jsonl is read again.
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<StepLine>(&text).unwrap(), line);
    }

    #[test]
    fn a_fair_coin_has_one_bit_and_perplexity_two() {
        let nats = -10.0 * std::f64::consts::LN_2;
        assert!((bits_per_dim(nats, 10) - 1.0).abs() < 1e-12);
        assert!((perplexity(nats, 10) - 2.0).abs() < 1e-12);
    }
}
