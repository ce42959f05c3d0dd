//! What a backend knows of its circuit once and for all: the program, the order of work, the arithmetic.
//!
//! Nothing here changes after `new`, so it is shared: the backend that learns holds it, and so does every `Evaluator`,
//! on any thread. What moves (parameters, flows, working memory) is in [`CpuBackend`](super::CpuBackend). The threads
//! are not here either: an evaluator that outlives its backend does not keep them.

use std::sync::Arc;

use super::forward::Pass;
use super::kernels::{Arithmetic, Isa, IsaCap, Precision};
use super::lazy::LazyTable;
use super::packed::PackedWeights;
use super::shared::ReadOnly;
use super::stages::Stages;
use super::{CpuOptions, flow_memory};
use crate::circuit::Circuit;
use crate::data::Batch;
use crate::error::Result;
use crate::plan::Plan;

/// Rows beyond which a larger micro-batch gains nothing: some sixty tiles.
const LARGEST_MICRO_BATCH: usize = 8192;

/// A circuit, made ready for this machine.
pub(crate) struct Fixed {
    pub(super) circuit: Arc<Circuit>,
    pub(super) plan: Plan,
    pub(super) stages: Stages,
    pub(super) isa: Isa,
    /// How training passes multiply matrices.
    pub(super) training: Arithmetic,
    /// Rows worked on at once.
    pub(super) micro_batch: usize,
}

impl Fixed {
    pub(super) fn new(circuit: Arc<Circuit>, options: &CpuOptions) -> Result<Self> {
        let mut cap = options.isa.or_environment()?;
        if options.precision == Precision::F32 {
            cap = cap.min(IsaCap::Avx512); // tiles are of no use to f32, and so the system is not asked for them
        }
        let isa = Isa::detect(cap);
        let training = Arithmetic::new(isa, options.precision);
        let (plan, stages) = flow_memory::plan(&circuit);
        let micro_batch = (options.memory_budget / plan.bytes_per_row()).clamp(1, LARGEST_MICRO_BATCH);
        Ok(Self { circuit, plan, stages, isa, training, micro_batch })
    }

    /// How evaluation multiplies matrices: what is reported of a model is never rounded, however it was trained.
    pub(super) fn evaluation(&self) -> Arithmetic {
        Arithmetic::new(self.isa, Precision::F32)
    }

    /// What a pass over a batch reads, with these parameters and weights packed from them for this arithmetic.
    pub(super) fn pass<'a>(
        &'a self,
        arithmetic: Arithmetic,
        theta: ReadOnly<'a, f32>,
        packed: &'a [Option<PackedWeights>],
        batch: &'a Batch,
        flow_bits: i64,
    ) -> Pass<'a> {
        Pass {
            circuit: &self.circuit,
            plan: &self.plan,
            isa: self.isa,
            arithmetic,
            theta,
            packed,
            batch,
            flow_bits,
            best: None,
        }
    }

    /// Large tables, of which every row is up to date.
    pub(super) fn lazy_tables(&self) -> Vec<LazyTable> {
        let cats = |param| self.circuit.layout().block(param).values_per_row;
        self.stages.large_tables.iter().map(|&param| LazyTable::new(param, cats(param))).collect()
    }
}
