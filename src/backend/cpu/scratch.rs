//! What a worker thread keeps to itself: scratch memory, the weights it packed last, and its clock.

use std::time::Instant;

use super::kernels::Arithmetic;
use super::kernels::flow_sums::{FlowScratch, FlowSums};
use super::kernels::product::{LeftScratch, Matrix, Packed};
use super::scaled::{Extremes, Scale};
use super::tables::{Columns, SortedRows};
use super::wide::WideRow;
use crate::backend::PhaseSeconds;
use crate::circuit::ParamId;

/// Scratch memory of a worker.
#[derive(Default)]
pub(super) struct Scratch {
    /// A row of a factor in the order of the product's units.
    pub mapped: Vec<f32>,
    /// A product of many factors.
    pub wide: WideRow,
    /// A left operand that cannot be used as it lies.
    pub left: LeftScratch,
    /// What was seen of each group of a sum.
    pub found: Vec<(Extremes, Scale)>,
    /// Weights that are used by one node only, packed for the tile at hand.
    pub packs: PackCache,
    /// Operands of flow products.
    pub flow: FlowScratch,
    /// Their sums.
    pub sums: FlowSums,
    /// The same, row by row.
    pub single: Vec<f32>,
    /// The same where there are many terms.
    pub double: Vec<f64>,
    /// Top-down probabilities of a block.
    pub top_down: Vec<f64>,
    /// Rows of a table's variable, sorted by category.
    pub sorted: SortedRows,
    /// Column sums and coefficients of a table.
    pub columns: Columns,
    /// Where this worker's time went.
    pub clock: Clock,
}

/// The weights that a worker packed last, one matrix for each direction: its next tile most likely needs the same.
#[derive(Default)]
pub(super) struct PackCache {
    forward: (Option<ParamId>, Packed),
    backward: (Option<ParamId>, Packed),
}

impl PackCache {
    /// Forgets everything: the parameters may have changed, or the arithmetic.
    pub fn clear(&mut self) {
        (self.forward.0, self.backward.0) = (None, None);
    }

    /// Wᵀ, packed.
    pub fn forward(&mut self, arithmetic: Arithmetic, param: ParamId, weights: Matrix<'_>) -> &Packed {
        if self.forward.0 != Some(param) {
            self.forward.1.pack_transposed(arithmetic, weights);
            self.forward.0 = Some(param);
        }
        &self.forward.1
    }

    /// W, packed.
    pub fn backward(&mut self, arithmetic: Arithmetic, param: ParamId, weights: Matrix<'_>) -> &Packed {
        if self.backward.0 != Some(param) {
            self.backward.1.pack(arithmetic, weights);
            self.backward.0 = Some(param);
        }
        &self.backward.1
    }
}

/// A phase of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Forward,
    Backward,
    Flows,
    Update,
}

/// Sums up time by phase.
#[derive(Default)]
pub(super) struct Clock {
    seconds: PhaseSeconds,
    last: Option<Instant>,
}

impl Clock {
    /// Work begins.
    pub fn start(&mut self) {
        self.last = Some(Instant::now());
    }

    /// What was done since the last call belongs to this phase.
    pub fn lap(&mut self, phase: Phase) {
        let now = Instant::now();
        let passed = self.last.map_or(0.0, |last| (now - last).as_secs_f64());
        match phase {
            Phase::Forward => self.seconds.forward += passed,
            Phase::Backward => self.seconds.backward += passed,
            Phase::Flows => self.seconds.flows += passed,
            Phase::Update => self.seconds.update += passed,
        }
        self.last = Some(now);
    }

    /// The sums since the last call.
    pub fn take(&mut self) -> PhaseSeconds {
        std::mem::take(&mut self.seconds)
    }
}
