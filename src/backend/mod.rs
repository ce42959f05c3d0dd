//! A circuit on a device, and the verbs that optimizers are written in.
//!
//! A [`Backend`] owns the parameters of one circuit and any number of buffers of two shapes: *flows*, one number per
//! sufficient statistic of every parameter block, and *rows*, one number per param row. Optimizers hold handles to
//! them and never see where they live, so they are the same on every device. Micro-batches, threads and the log-space
//! rescue of degenerate rows stay inside a backend. `cpu` is the one that always works, `cuda` needs a GPU.

pub mod cpu;
#[cfg(feature = "cuda")]
#[cfg_attr(docsrs, doc(cfg(feature = "cuda")))]
pub mod cuda;
mod device;
mod device_sums;
mod micro_batch;
mod place;
mod replicated;
mod said;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::cpu::Evaluator;
pub use self::device::{Device, Ordinals, TrainingPrecision};
pub use self::device_sums::{ClusterSums, DeviceSums, Offer, Patience};
pub use self::place::{Place, PlaceSpec};
pub use self::replicated::Replicated;
use crate::circuit::{Circuit, Flows, Params, Smoothing};
use crate::data::Batch;
use crate::error::{Error, Result};

/// Names a buffer with one number per sufficient statistic, of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowsId {
    pub(crate) backend: u32,
    pub(crate) index: u32,
}

impl FlowsId {
    /// Where the buffer lies among the `count` flow buffers of a backend, if it is one of them.
    fn index_in(self, backend: u32, count: usize) -> Result<usize> {
        own_index(self.backend == backend, self.index, count)
    }
}

/// Names a buffer with one number per param row, of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamRowsId {
    pub(crate) backend: u32,
    pub(crate) index: u32,
}

impl ParamRowsId {
    /// Where the buffer lies among the `count` row buffers of a backend, if it is one of them.
    fn index_in(self, backend: u32, count: usize) -> Result<usize> {
        own_index(self.backend == backend, self.index, count)
    }
}

fn own_index(is_ours: bool, index: u32, count: usize) -> Result<usize> {
    let index = index as usize;
    if is_ours && index < count { Ok(index) } else { Err(Error::state("a buffer handle belongs to another backend")) }
}

/// The contents of a buffer, for saving and putting back to the same bits.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

/// Flows below this part of a row's flow are not followed further where a row is computed in log space.
pub(crate) const NEGLIGIBLE_FLOW: f64 = 1e-30;

/// How exactly a flow buffer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPrecision {
    /// `f32`: flows of a batch, momentum.
    Single,
    /// `f64`: flows of an epoch, where small batches must not vanish in a large sum.
    Double,
}

/// What a pass over a batch found, under the parameters before any update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchReport {
    /// Rows seen.
    pub num_rows: usize,
    /// Their weights together.
    pub weight: f64,
    /// Weighted sum of the log-likelihoods of the rows that have one.
    pub log_likelihood: f64,
    /// Weight of those rows.
    pub possible_weight: f64,
    /// Rows of probability zero: their log-likelihood is −∞ and they add no flow.
    pub impossible_rows: usize,
    /// Rows that linear space could not hold and that were computed in log space.
    pub rescued_rows: usize,
}

impl BatchReport {
    /// Of a batch none of whose rows has been looked at.
    fn of(batch: &Batch) -> Self {
        Self { num_rows: batch.num_rows(), weight: batch.total_weight(), ..Self::default() }
    }

    /// Adds a row that was looked at.
    fn add_row(&mut self, weight: f64, log_likelihood: f64) {
        if log_likelihood == f64::NEG_INFINITY {
            self.impossible_rows += 1;
        } else {
            self.log_likelihood += weight * log_likelihood;
            self.possible_weight += weight;
        }
    }

    /// Mean log-likelihood of the rows that have one, in nats; NaN if none has.
    pub fn mean_log_likelihood(&self) -> f64 {
        self.log_likelihood / self.possible_weight
    }

    /// Adds what another batch found.
    pub fn add(&mut self, other: &Self) {
        self.num_rows += other.num_rows;
        self.weight += other.weight;
        self.log_likelihood += other.log_likelihood;
        self.possible_weight += other.possible_weight;
        self.impossible_rows += other.impossible_rows;
        self.rescued_rows += other.rescued_rows;
    }
}

/// Seconds of work since a backend was made, by phase: those of all its threads together, divided by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseSeconds {
    /// Cutting a batch into tiles, packing weights that several nodes share, sorting rows by category.
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

impl PhaseSeconds {
    /// What came after `before`, an earlier look at the same clocks.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            prepare: self.prepare - before.prepare,
            forward: self.forward - before.forward,
            backward: self.backward - before.backward,
            flows: self.flows - before.flows,
            update: self.update - before.update,
        }
    }

    /// Adds another stretch.
    pub fn add(&mut self, other: &Self) {
        self.prepare += other.prepare;
        self.forward += other.forward;
        self.backward += other.backward;
        self.flows += other.flows;
        self.update += other.update;
    }
}

/// How much of the old parameters an EM update keeps: `retain[r] = scale·(rows[r] + offset)`, or the same with
/// `gain·flows[r]` of the update where that is larger than `rows[r]`.
#[derive(Clone, Copy, Debug)]
pub struct Retain {
    /// A mass per param row: top-down probabilities, row masses of flows, a running mass.
    pub rows: ParamRowsId,
    /// Row masses of the update's flows, where a row is to retain at least those.
    pub at_least: Option<ParamRowsId>,
    /// Usually (1−α)/α.
    pub scale: f64,
    /// Zero, except for PyJuice's absolute smoothing of mini-batch EM. Densities are not smoothed and get none of it.
    pub offset: f64,
}

/// `θ' = normalise(retain[row]·θ + gain·F)`, smoothed; every EM rule is this one. A row without mass keeps its θ.
#[derive(Clone, Copy, Debug)]
pub struct EmUpdate {
    /// What rows of sums retain; `None` is nothing.
    pub retain: Option<Retain>,
    /// What rows of inputs retain.
    pub retain_inputs: Option<Retain>,
    /// F.
    pub flows: FlowsId,
    /// Scales F: the bias correction of momentum, or 1.
    pub gain: f64,
    /// What keeps rows away from zero.
    pub smoothing: Smoothing,
}

/// Where the mass comes from that an EM step retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetainSource {
    /// The top-down probability of the row: anemone.
    TopDown,
    /// The mass of the row's flows, corrected for the start of momentum: mini-batch EM.
    Flows,
    /// The larger of the two: no row moves further than mini-batch EM would move it, and those that the batch says
    /// little about move as little as anemone moves them.
    Larger,
}

/// Where the mass comes from that an EM step retains, by what the row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainSources {
    /// Rows of sums.
    pub sums: RetainSource,
    /// Rows of inputs.
    pub inputs: RetainSource,
}

impl RetainSources {
    /// The same for sums and inputs.
    pub fn both(source: RetainSource) -> Self {
        Self { sums: source, inputs: source }
    }

    /// Returns true if top-down probabilities are needed.
    pub fn needs_top_down(self) -> bool {
        self.sums != RetainSource::Flows || self.inputs != RetainSource::Flows
    }
}

/// One whole EM step from one batch: flows ← keep·flows + gain·Σ, then θ' = normalise(retain·θ + correction·flows).
/// What the verbs `scale`, `add_flows`, `top_down` or `row_masses`, and `em_update` do one after the other, as one
/// verb, so that a backend may do all of it while a block is in its caches.
#[derive(Clone, Copy, Debug)]
pub struct EmStep {
    /// The momentum flows, in single precision.
    pub flows: FlowsId,
    /// β.
    pub keep: f64,
    /// (1−β)/weight of the batch.
    pub gain: f64,
    /// Row masses of `flows`, kept up with them: nobody has to add up a vocabulary. Belongs to `flows`, and is saved
    /// with them.
    pub masses: ParamRowsId,
    /// What is retained.
    pub sources: RetainSources,
    /// How much of it: scale·(mass + offset), as in [`Retain`].
    pub scale: f64,
    /// See [`Retain`].
    pub offset: f64,
    /// Scales the flows: the bias correction of momentum, or 1.
    pub correction: f64,
    /// What keeps rows away from zero.
    pub smoothing: Smoothing,
    /// A row buffer that the step may write to.
    pub spare: ParamRowsId,
}

impl EmStep {
    /// The step, verb by verb. What every backend falls back on, and what fused ones are compared with.
    pub fn by_verbs<B: Backend + ?Sized>(&self, backend: &mut B, batch: &Batch) -> Result<BatchReport> {
        backend.scale(self.flows, self.keep)?;
        let report = backend.add_flows(batch, self.gain, self.flows)?;
        self.update_by_verbs(backend)?;
        Ok(report)
    }

    /// The step from flows that are known, verb by verb.
    pub(crate) fn with_by_verbs<B: Backend + ?Sized>(
        &self,
        backend: &mut B,
        spans: &[Range<usize>],
        numbers: &Tensor,
    ) -> Result<()> {
        backend.scale(self.flows, self.keep)?;
        backend.put_flows(self.flows, spans, numbers)?;
        self.update_by_verbs(backend)
    }

    /// The part after the flows are in.
    pub(crate) fn update_by_verbs<B: Backend + ?Sized>(&self, backend: &mut B) -> Result<()> {
        let Self { flows, smoothing, scale, offset, correction, sources, .. } = *self;
        backend.row_masses(flows, 1.0, self.masses)?;
        if sources.needs_top_down() {
            backend.top_down(self.spare)?;
        }
        let retain = |source| match source {
            RetainSource::TopDown => Retain { rows: self.spare, at_least: None, scale, offset },
            RetainSource::Larger => Retain { rows: self.spare, at_least: Some(self.masses), scale, offset },
            // scale·(correction·mass + offset)
            RetainSource::Flows => {
                let (scale, offset) = (scale * correction, offset / correction);
                Retain { rows: self.masses, at_least: None, scale, offset }
            }
        };
        let (retain, retain_inputs) = (Some(retain(sources.sums)), Some(retain(sources.inputs)));
        backend.em_update(&EmUpdate { retain, retain_inputs, flows, gain: correction, smoothing })
    }
}

/// One step of Adam on φ = log θ.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// This step's number, from 1: moments are corrected for having started at zero.
    pub step: u64,
}

/// Only this crate has backends: handles can be made by nobody else.
mod sealed {
    pub trait Sealed {}

    impl Sealed for super::cpu::CpuBackend {}
    impl Sealed for super::Replicated {}
    #[cfg(feature = "cuda")]
    impl Sealed for super::cuda::CudaBackend {}
    #[cfg(feature = "cuda")]
    impl Sealed for super::cuda::CudaGroup {}
}

/// A circuit on a device.
pub trait Backend: sealed::Sealed + Send {
    /// The circuit.
    fn circuit(&self) -> &Arc<Circuit>;

    /// Where the time went so far.
    fn phase_seconds(&self) -> PhaseSeconds;

    /// What people call the device: `cpu`, or the number and name of a GPU.
    fn device_name(&self) -> String {
        device_sums::CPU.into()
    }

    /// Sums over ranks that stay on devices, or why there are none.
    fn device_sums(&mut self) -> Result<&mut dyn DeviceSums> {
        Err(Error::unsupported("it has no GPU"))
    }

    /// Agrees with the other ranks, where there are any, on how flows are summed. Collective; what is not agreed on
    /// before the first sum is agreed on then. Returns what there is to tell the user.
    fn meet(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// A copy of the parameters.
    fn params(&self) -> Result<Params>;

    /// Replaces the parameters, and forgets their average. Rows need not sum to one: `log_likelihoods` are then of p̃;
    /// `renormalize` before learning.
    fn set_params(&mut self, params: &Params) -> Result<()>;

    /// θ̄ ← θ̄ + weight·(θ − θ̄) in mean parameters: probabilities of weights and tables, moments of densities. The
    /// first call, and a weight of 1, make θ̄ = θ.
    fn average(&mut self, weight: f64) -> Result<()>;

    /// A copy of θ̄; of θ where no average is kept.
    fn averaged_params(&self) -> Result<Params>;

    /// θ̄ on the host, to be asked from any thread while the backend goes on.
    fn evaluator(&self) -> Result<Evaluator> {
        Evaluator::on_host(self.circuit().clone(), self.averaged_params()?)
    }

    /// Replaces θ̄ and leaves θ as it is.
    fn set_average(&mut self, average: &Params) -> Result<()>;

    /// [`log_likelihoods`](Self::log_likelihoods) under θ̄; under θ where no average is kept.
    fn averaged_log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>>;

    /// log p(x) of every row, in nats; −∞ where it is impossible. Missing cells are marginalised exactly.
    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>>;

    /// into += gain · Σ over rows of weight·∂log p̃(x)/∂φ: the E-step. The mean is a gain of 1/weight.
    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport>;

    /// into = TD of every param row, summed over the nodes that share it: the flow of a row with everything missing.
    fn top_down(&mut self, into: ParamRowsId) -> Result<()>;

    /// into = gain · Σ over each row of the flows.
    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: ParamRowsId) -> Result<()>;

    /// The M-step of every EM optimizer.
    fn em_update(&mut self, update: &EmUpdate) -> Result<()>;

    /// A whole EM step from one batch.
    fn em_step(&mut self, batch: &Batch, step: &EmStep) -> Result<BatchReport>;

    /// The EM step of a batch whose flows are known: numbers that lie one after the other, of some stretches of a flow
    /// buffer, of this batch's whole weight. Nothing else of the batch is needed.
    fn em_step_with(&mut self, step: &EmStep, spans: &[Range<usize>], numbers: &Tensor) -> Result<()> {
        step.with_by_verbs(self, spans, numbers)
    }

    /// flows = gain·flows − TD·θ: the gradient of the mean log-likelihood on φ at a normalised circuit.
    /// Refused for circuits with densities, whose parameters are not weights.
    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: ParamRowsId) -> Result<()>;

    /// Moves θ by one Adam step and leaves it unnormalised.
    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()>;

    /// θ ← θ·exp(rate·gradient), left unnormalised.
    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()>;

    /// Makes every row sum to one: without ties the distribution stays the same, with ties it is projected.
    fn renormalize(&mut self) -> Result<()>;

    /// A new flow buffer of zeros.
    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId>;

    /// A new row buffer of zeros.
    fn new_rows(&mut self) -> Result<ParamRowsId>;

    /// flows *= factor; a factor of 0 clears whatever was there.
    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()>;

    /// into += gain · flows.
    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()>;

    /// into = keep·into + gain·rows.
    fn blend_rows(&mut self, into: ParamRowsId, keep: f64, rows: ParamRowsId, gain: f64) -> Result<()>;

    /// The flows, for reading by block and row.
    fn flows(&self, flows: FlowsId) -> Result<Flows>;

    /// One number per param row, in the order of the layout.
    fn rows(&self, rows: ParamRowsId) -> Result<Vec<f64>>;

    /// The buffer's bits.
    fn save_flows(&self, flows: FlowsId) -> Result<Tensor>;

    /// Puts saved bits back.
    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()>;

    /// The numbers of some stretches of a buffer, one after the other; zeros are left there. What lies outside of them
    /// is zero already.
    fn take_flows(&mut self, flows: FlowsId, spans: &[Range<usize>]) -> Result<Tensor> {
        let taken = match self.save_flows(flows)? {
            Tensor::F32(all) => Tensor::F32(spans.iter().flat_map(|span| &all[span.clone()]).copied().collect()),
            Tensor::F64(all) => Tensor::F64(spans.iter().flat_map(|span| &all[span.clone()]).copied().collect()),
        };
        self.scale(flows, 0.0)?;
        Ok(taken)
    }

    /// Adds numbers to some stretches of a buffer of the same precision.
    fn put_flows(&mut self, flows: FlowsId, spans: &[Range<usize>], numbers: &Tensor) -> Result<()> {
        let mut all = self.save_flows(flows)?;
        add_packed(&mut all, spans, numbers)?;
        self.load_flows(flows, &all)
    }

    /// The buffer's bits.
    fn save_rows(&self, rows: ParamRowsId) -> Result<Tensor>;

    /// Puts saved bits back.
    fn load_rows(&mut self, rows: ParamRowsId, saved: &Tensor) -> Result<()>;
}

/// Adds numbers that lie one after the other to stretches of a buffer.
fn add_packed(all: &mut Tensor, spans: &[Range<usize>], numbers: &Tensor) -> Result<()> {
    match (all, numbers) {
        (Tensor::F32(all), Tensor::F32(numbers)) => add_to_spans(all, spans, numbers),
        (Tensor::F64(all), Tensor::F64(numbers)) => add_to_spans(all, spans, numbers),
        _ => return Err(Error::state("flows of another precision than their buffer")),
    }
    Ok(())
}

pub(crate) fn add_to_spans<T: Copy + std::ops::AddAssign>(all: &mut [T], spans: &[Range<usize>], numbers: &[T]) {
    let positions = spans.iter().flat_map(Range::clone);
    positions.zip(numbers).for_each(|(at, &number)| all[at] += number);
}
