//! What a benchmark found, as one JSON object. `benches/README.md` explains it field by field.

use serde::Serialize;

use super::Reference;
use super::host::Host;
use crate::pipeline::observer::Phases;

/// One optimizer on one circuit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What was measured.
    #[serde(flatten)]
    pub subject: Subject,
    /// How fast it was.
    #[serde(flatten)]
    pub speed: Speed,
    /// Mean log-likelihood of the last batch before it was learned from, in nats per row.
    pub log_likelihood: Option<f64>,
    /// How far it got, of a stream.
    #[serde(flatten)]
    pub standing: Option<Standing>,
    /// On which machine.
    #[serde(flatten)]
    pub host: Host,
}

impl Line {
    /// Sets the speed against the best matrix product so far. The best may have been seen after this was measured.
    pub fn hold_against(&mut self, reference: &Reference) {
        self.speed.gemm_gflops = reference.gflops();
        self.speed.bound = self.speed.gflops / reference.gflops();
    }
}

/// What was measured, and with what.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Subject {
    /// `synthetic` or `stream`.
    pub bench: &'static str,
    /// Which pipeline, of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// Which structure.
    pub circuit: String,
    /// Its hidden states, of synthetic rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<usize>,
    /// Variables of a row.
    pub vars: usize,
    /// Categories of a variable, of synthetic rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cats: Option<u32>,
    /// Numbers that are learned.
    pub parameters: u64,
    /// Which optimizer.
    pub optimizer: String,
    /// Where it learned.
    pub device: String,
    /// What numbers are multiplied in.
    pub precision: String,
    /// Which instructions are allowed.
    pub isa: String,
    /// Worker threads.
    pub threads: usize,
    /// Rows in a batch.
    pub batch_rows: usize,
}

/// How fast something learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Batches learned from while time was taken.
    pub steps: u64,
    /// Rows a second: of the median step, or of the whole stream.
    pub rows_per_second: f64,
    /// Seconds of the median step, or of the mean one of a stream.
    pub step_seconds: f64,
    /// Seconds of the fastest step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds_min: Option<f64>,
    /// Where these seconds went: of that very step, or of the mean one of a stream.
    pub phases: Phases,
    /// What is left of these seconds when `wait` and the phases of the device are taken off: threads that wait for each
    /// other, and what is done between passes.
    pub other_seconds: f64,
    /// Seconds of the update at the end of an epoch, where an optimizer waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_seconds: Option<f64>,
    /// Billions of operations in the matrix products of one row.
    pub gflop_per_row: f64,
    /// Those a second.
    pub gflops: f64,
    /// The most that this machine was seen to do, in plain matrix products with as many threads.
    pub gemm_gflops: f64,
    /// The quotient of the two: which part of the time the matrix products alone would take.
    pub bound: f64,
}

impl Speed {
    /// The speed of steps that learn from `rows` rows in `step_seconds`, `flops_per_row` operations each.
    pub fn new(steps: u64, rows: f64, step_seconds: f64, flops_per_row: u64) -> Self {
        let rows_per_second = rows / step_seconds;
        let gflop_per_row = flops_per_row as f64 / 1e9;
        let gflops = gflop_per_row * rows_per_second;
        Self { steps, rows_per_second, step_seconds, gflop_per_row, gflops, ..Self::default() }
    }

    /// The same with where the seconds of a step went; what no phase accounts for is named too. A GPU reads its clocks
    /// a step late, so its phases may be longer than the step.
    pub fn with_phases(self, phases: Phases) -> Self {
        Self { phases, other_seconds: (self.step_seconds - phases.sum()).max(0.0), ..self }
    }
}

/// How far an optimizer got on a stream, beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Standing {
    /// Rows learned from: the same for all, so the likelihood after them is that at equal rows.
    pub rows: u64,
    /// Passes over the data that were finished.
    pub epochs: u64,
    /// Seconds of learning, without those of validation.
    pub seconds: f64,
    /// True if likelihoods are of held-out rows. If not they are prequential: of every row when it was first seen.
    pub held_out: bool,
    /// Mean log-likelihood after all rows, in nats per row; −∞, for which JSON has null, if a held-out row is
    /// impossible.
    pub equal_rows_ll: Option<f64>,
    /// The seconds that the fastest optimizer took for all rows.
    pub equal_seconds: f64,
    /// Mean log-likelihood at the last evaluation within these seconds; `None` if there was none.
    pub equal_seconds_ll: Option<f64>,
    /// Held-out rows of probability zero at the end.
    pub impossible_rows: u64,
}
