//! A circuit in main memory: scaled linear space, matrix products, threads, the same bits for any number of them.
//!
//! A batch is cut into micro-batches that fit the memory budget, a micro-batch into tiles of rows. Tiles go through the
//! steps of `forward` and `backward` in `stages`, as `turns` hands them out; `weights`, `tables` and `statistics` add
//! up the flows of the parameters, and in a fused step update them at once; `log_space` does the rows that linear space
//! could not hold. `update` is the M-step on its own. docs/ARCHITECTURE.md walks through all of it.

mod average;
mod backward;
mod buffers;
mod engine;
mod evaluator;
mod fixed;
mod flow_memory;
mod forward;
mod gather;
mod given_flows;
mod kernel_cases;
mod kernels;
mod large_pages;
mod large_tables;
mod lazy;
mod log_space;
mod moving;
mod packed;
mod products;
mod questions;
mod reference;
mod renormalize;
mod scaled;
mod scratch;
mod shared;
mod stages;
mod statistics;
mod step;
mod tables;
mod tile;
mod top_down;
mod turns;
mod update;
mod weights;
mod wide;
mod workers;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rayon::prelude::*;

pub use self::evaluator::Evaluator;
pub(crate) use self::fixed::Fixed;
pub use self::flow_memory::bytes_per_row;
#[doc(hidden)]
pub use self::kernel_cases::{KernelCase, kernel_cases};
pub use self::kernels::{Isa, IsaCap, Precision};
pub(crate) use self::questions::{FlowTile, Mixing, ValueTile};
pub use self::reference::reference_gemm;
pub(crate) use self::top_down::top_down_of;

use self::buffers::{FlowBuffer, with_flows};
use self::given_flows::GivenFlows;
use self::moving::{Moving, Settled};
use self::packed::PackedBlocks;
use self::step::Which;
use self::tile::Tile;
use self::update::{Retained, Update};
use self::workers::Workers;
use super::{
    AdamStep, Backend, BatchReport, EmStep, EmUpdate, FlowPrecision, FlowsId, ParamRowsId, PhaseSeconds, Retain,
    Tensor, add_to_spans,
};
use crate::circuit::{Circuit, Flows, Params};
use crate::data::Batch;
use crate::error::{Error, Result};

/// Options of [`CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Worker threads; `None` takes all cores. The bits do not depend on it.
    pub threads: Option<usize>,
    /// Bytes that the values and flows of a micro-batch may take, besides the parameters.
    pub memory_budget: usize,
    /// The most that may be used of the processor. The bits depend on it.
    pub isa: IsaCap,
    /// How precisely training passes multiply matrices. The bits depend on it, those of `log_likelihoods` do not.
    pub precision: Precision,
}

impl CpuOptions {
    /// What of the processor is used on this machine.
    pub fn used_isa(&self) -> &'static str {
        Isa::detect(self.isa).name()
    }
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, memory_budget: 2 << 30, isa: IsaCap::Auto, precision: Precision::F32 }
    }
}

/// The next backend's id.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// A circuit in main memory.
///
/// ```
/// use std::sync::Arc;
/// use anemone::backend::{Backend, cpu::{CpuBackend, CpuOptions}};
/// use anemone::circuit::{Categorical, Params};
/// use anemone::data::Batch;
/// use anemone::structure::hmm;
///
/// let circuit = Arc::new(hmm(3, 4, Categorical::new(5)?)?);
/// let params = Params::random(&circuit, 1, 2.0)?;
/// let mut backend = CpuBackend::new(circuit, &params, &CpuOptions::default())?;
/// let batch = Batch::from_rows(&[0u8, 1, 2, 4, 4, 0], 3)?;
/// assert!(backend.log_likelihoods(&batch)?.iter().all(|ll| *ll < 0.0));
/// # Ok::<(), anemone::Error>(())
/// ```
pub struct CpuBackend {
    /// Tells this backend's handles from those of others.
    id: u32,
    /// All that does not change from batch to batch.
    fixed: Arc<Fixed>,
    workers: Arc<Workers>,
    /// Parameters and flows, of which rows may lag.
    moving: Moving,
    packed: PackedBlocks,
    rows: Vec<Vec<f64>>,
    /// Working memory, kept from batch to batch.
    tiles: Vec<Tile>,
    phases: PhaseSeconds,
}

impl CpuBackend {
    /// Puts a circuit and its parameters to work.
    pub fn new(circuit: Arc<Circuit>, params: &Params, options: &CpuOptions) -> Result<Self> {
        params.check(&circuit)?;
        if options.threads == Some(0) {
            return Err(Error::option("threads = 0: must be at least 1, or left out to use all cores"));
        }
        let fixed = Fixed::new(circuit, options)?;
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            moving: Moving::new(&fixed, params),
            packed: PackedBlocks::new(&fixed),
            rows: Vec::new(),
            tiles: Vec::new(),
            phases: PhaseSeconds::default(),
            fixed: Arc::new(fixed),
            workers: Arc::new(Workers::new(options.threads)?),
        })
    }

    /// What does not change, for evaluators to share.
    pub(crate) fn fixed(&self) -> Arc<Fixed> {
        self.fixed.clone()
    }

    /// Rows worked on at once: as many as the memory budget holds.
    pub fn micro_batch_rows(&self) -> usize {
        self.fixed.micro_batch
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.fixed.isa
    }

    /// Does something on a thread of the pool. A step hands out work many times; from here that wakes nobody who is
    /// awake, and threads do not fall asleep in between.
    fn on_a_worker<T: Send>(&mut self, act: impl FnOnce(&mut Self) -> T + Send) -> T {
        let workers = self.workers.clone();
        workers.install(|| act(self))
    }

    /// What was done since `begun`, one after the other from outside a pass, belongs to the update.
    fn note_update(&mut self, begun: Instant) {
        self.phases.update += begun.elapsed().as_secs_f64();
    }

    /// How precisely training passes multiply matrices.
    pub fn precision(&self) -> Precision {
        self.fixed.training.precision
    }

    fn flows_at(&self, id: FlowsId) -> Result<usize> {
        id.index_in(self.id, self.moving.num_flows())
    }

    /// All numbers, with all rows of large tables up to date.
    fn settled(&mut self) -> Settled<'_> {
        self.moving.settled(&self.fixed, &self.workers)
    }

    fn rows_at(&self, id: ParamRowsId) -> Result<usize> {
        id.index_in(self.id, self.rows.len())
    }

    /// Where the single-precision buffers lie that gradient steps work on; all different.
    fn gradient_buffers<const N: usize>(&self, ids: [FlowsId; N]) -> Result<[usize; N]> {
        self.fixed.circuit.require_weights_only()?;
        let mut at = [0; N];
        for (i, id) in ids.into_iter().enumerate() {
            at[i] = self.flows_at(id)?;
            if self.moving.precision_of(at[i]) == FlowPrecision::Double {
                return Err(Error::unsupported("gradient steps need flow buffers of single precision"));
            }
            if at[..i].contains(&at[i]) {
                return Err(Error::state("a gradient step needs a buffer of its own for each of its moments"));
            }
        }
        Ok(at)
    }
}

impl Backend for CpuBackend {
    fn circuit(&self) -> &Arc<Circuit> {
        &self.fixed.circuit
    }

    fn phase_seconds(&self) -> PhaseSeconds {
        self.phases
    }

    fn params(&self) -> Result<Params> {
        Ok(Params::trusted(&self.fixed.circuit, self.moving.copy_of_theta(&self.fixed, &self.workers)))
    }

    fn set_params(&mut self, params: &Params) -> Result<()> {
        params.check(&self.fixed.circuit)?;
        let Settled { theta, average, .. } = self.settled();
        theta.copy_from_slice(params.values());
        *average = None;
        self.packed.forget();
        Ok(())
    }

    fn average(&mut self, weight: f64) -> Result<()> {
        let begun = Instant::now();
        self.add_to_average(weight);
        self.note_update(begun);
        Ok(())
    }

    fn averaged_params(&self) -> Result<Params> {
        match self.moving.copy_of_average(&self.fixed, &self.workers) {
            Some(average) => Ok(Params::trusted(&self.fixed.circuit, average)),
            None => self.params(),
        }
    }

    fn evaluator(&self) -> Result<Evaluator> {
        Ok(Evaluator::new(self.fixed(), self.averaged_params()?))
    }

    fn set_average(&mut self, average: &Params) -> Result<()> {
        average.check(&self.fixed.circuit)?;
        *self.settled().average = Some(large_pages::copied(average.values()));
        Ok(())
    }

    fn averaged_log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.fixed.circuit.check_batch(batch)?;
        Ok(self.on_a_worker(|backend| backend.evaluate(batch, Which::Average)))
    }

    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.fixed.circuit.check_batch(batch)?;
        Ok(self.on_a_worker(|backend| backend.evaluate(batch, Which::Theta)))
    }

    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport> {
        self.fixed.circuit.check_batch(batch)?;
        let into = self.flows_at(into)?;
        self.on_a_worker(|backend| backend.add_batch_flows(batch, gain, into))
    }

    fn em_step(&mut self, batch: &Batch, step: &EmStep) -> Result<BatchReport> {
        self.fixed.circuit.check_batch(batch)?;
        let flows = self.flows_at(step.flows)?;
        let masses = self.rows_at(step.masses)?;
        self.rows_at(step.spare)?;
        if step.masses == step.spare {
            return Err(Error::state("an EM step needs a spare row buffer besides the masses"));
        }
        match self.moving.precision_of(flows) {
            FlowPrecision::Single => self.on_a_worker(|backend| backend.fused_step(batch, step, flows, masses)),
            FlowPrecision::Double => step.by_verbs(self, batch),
        }
    }

    fn em_step_with(&mut self, step: &EmStep, spans: &[Range<usize>], numbers: &Tensor) -> Result<()> {
        let begun = Instant::now();
        let flows = self.flows_at(step.flows)?;
        let masses = self.rows_at(step.masses)?;
        let spare = self.rows_at(step.spare)?;
        if masses == spare {
            return Err(Error::state("an EM step needs a spare row buffer besides the masses"));
        }
        match (self.moving.precision_of(flows), numbers) {
            (FlowPrecision::Single, Tensor::F32(numbers)) => {
                let given = GivenFlows::new(self.fixed.circuit.layout(), spans, numbers)?;
                if step.sources.needs_top_down() {
                    top_down::top_down(&self.fixed.circuit, self.moving.weights(), &mut self.rows[spare]);
                } else {
                    self.rows[spare].fill(0.0);
                }
                self.on_a_worker(|backend| backend.step_with(step, flows, [masses, spare], &given))?;
                self.note_update(begun);
                Ok(())
            }
            _ => step.with_by_verbs(self, spans, numbers),
        }
    }

    fn top_down(&mut self, into: ParamRowsId) -> Result<()> {
        let begun = Instant::now();
        let into = self.rows_at(into)?;
        top_down::top_down(&self.fixed.circuit, self.moving.weights(), &mut self.rows[into]);
        self.note_update(begun);
        Ok(())
    }

    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: ParamRowsId) -> Result<()> {
        let begun = Instant::now();
        let (flows, into) = (self.flows_at(flows)?, self.rows_at(into)?);
        let Settled { flows: buffers, .. } = self.moving.settled(&self.fixed, &self.workers);
        let out = &mut self.rows[into];
        self.workers.install(|| {
            with_flows!(&buffers[flows], flows => update::row_masses(&self.fixed.circuit, flows, gain, out));
        });
        self.note_update(begun);
        Ok(())
    }

    fn em_update(&mut self, update: &EmUpdate) -> Result<()> {
        let begun = Instant::now();
        let flows = self.flows_at(update.flows)?;
        for retain in [update.retain, update.retain_inputs].into_iter().flatten() {
            self.rows_at(retain.rows)?;
            retain.at_least.map(|rows| self.rows_at(rows)).transpose()?;
        }
        self.packed.forget();
        let Settled { theta, flows: buffers, .. } = self.moving.settled(&self.fixed, &self.workers);
        let flows = &buffers[flows];
        let rows = |id: ParamRowsId| &self.rows[id.index as usize][..]; // all handles are ours, as was just seen
        let retained = |retain: Retain| {
            let Retain { rows: id, at_least, scale, offset } = retain;
            Retained { rows: rows(id), at_least: at_least.map(rows), scale, offset }
        };
        let (retain, retain_inputs) = (update.retain.map(retained), update.retain_inputs.map(retained));
        let EmUpdate { gain, smoothing, .. } = *update;
        self.workers.install(|| {
            with_flows!(flows, flows => {
                let update = Update { retain, retain_inputs, flows, gain, smoothing };
                update::em_update(&self.fixed.circuit, theta, &update);
            });
        });
        self.note_update(begun);
        Ok(())
    }

    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: ParamRowsId) -> Result<()> {
        let begun = Instant::now();
        self.fixed.circuit.require_weights_only()?;
        let (flows, rows) = (self.flows_at(flows)?, self.rows_at(top_down)?);
        let Settled { theta, flows: buffers, .. } = self.moving.settled(&self.fixed, &self.workers);
        let (circuit, rows) = (&self.fixed.circuit, &self.rows[rows]);
        self.workers.install(|| update::gradient(circuit, theta, &mut buffers[flows], gain, rows));
        self.note_update(begun);
        Ok(())
    }

    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()> {
        let begun = Instant::now();
        let at = self.gradient_buffers([gradient, first, second])?;
        self.packed.forget();
        let Settled { theta, flows, .. } = self.moving.settled(&self.fixed, &self.workers);
        if let Ok([FlowBuffer::Single(gradient), FlowBuffer::Single(first), FlowBuffer::Single(second)]) =
            flows.get_disjoint_mut(at)
        {
            self.workers.install(|| update::adam(theta, gradient, first, second, step));
        }
        self.note_update(begun);
        Ok(())
    }

    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()> {
        let begun = Instant::now();
        let [gradient] = self.gradient_buffers([gradient])?;
        self.packed.forget();
        let Settled { theta, flows, .. } = self.moving.settled(&self.fixed, &self.workers);
        if let FlowBuffer::Single(gradient) = &flows[gradient] {
            self.workers.install(|| update::ascend(theta, gradient, rate));
        }
        self.note_update(begun);
        Ok(())
    }

    fn renormalize(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.packed.forget();
        let Settled { theta, .. } = self.moving.settled(&self.fixed, &self.workers);
        self.workers.install(|| renormalize::renormalize(&self.fixed.circuit, theta));
        self.note_update(begun);
        Ok(())
    }

    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId> {
        let index = self.moving.add_flows(FlowBuffer::new(precision, self.fixed.circuit.layout().num_stats()));
        Ok(FlowsId { backend: self.id, index: index as u32 })
    }

    fn new_rows(&mut self) -> Result<ParamRowsId> {
        self.rows.push(vec![0.0; self.fixed.circuit.layout().num_rows()]);
        Ok(ParamRowsId { backend: self.id, index: (self.rows.len() - 1) as u32 })
    }

    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()> {
        let begun = Instant::now();
        let flows = self.flows_at(flows)?;
        match &mut self.moving.settled(&self.fixed, &self.workers).flows[flows] {
            FlowBuffer::Single(values) if factor == 0.0 => values.fill(0.0),
            FlowBuffer::Double(values) if factor == 0.0 => values.fill(0.0),
            FlowBuffer::Single(values) => {
                self.workers.install(|| values.par_iter_mut().for_each(|x| *x *= factor as f32))
            }
            FlowBuffer::Double(values) => self.workers.install(|| values.par_iter_mut().for_each(|x| *x *= factor)),
        }
        self.note_update(begun);
        Ok(())
    }

    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()> {
        if flows == into {
            return self.scale(flows, 1.0 + gain);
        }
        let begun = Instant::now();
        let (flows, into) = (self.flows_at(flows)?, self.flows_at(into)?);
        let Settled { flows: buffers, .. } = self.settled();
        let [source, target] = buffers.get_disjoint_mut([flows, into]).expect("two buffers of this backend");
        with_flows!(source, source => {
            target.slice().add(0, source.iter().map(|s| gain * update::Count::to_f64(*s)));
        });
        self.note_update(begun);
        Ok(())
    }

    fn blend_rows(&mut self, into: ParamRowsId, keep: f64, rows: ParamRowsId, gain: f64) -> Result<()> {
        let begun = Instant::now();
        let (into, rows) = (self.rows_at(into)?, self.rows_at(rows)?);
        for i in 0..self.rows[into].len() {
            self.rows[into][i] = keep * self.rows[into][i] + gain * self.rows[rows][i];
        }
        self.note_update(begun);
        Ok(())
    }

    fn flows(&self, flows: FlowsId) -> Result<Flows> {
        let copy = self.moving.copy_of_flows(self.flows_at(flows)?, &self.fixed, &self.workers);
        Ok(Flows::new(self.fixed.circuit.layout().clone(), copy.to_f64()))
    }

    fn rows(&self, rows: ParamRowsId) -> Result<Vec<f64>> {
        Ok(self.rows[self.rows_at(rows)?].clone())
    }

    fn save_flows(&self, flows: FlowsId) -> Result<Tensor> {
        Ok(self.moving.copy_of_flows(self.flows_at(flows)?, &self.fixed, &self.workers).save())
    }

    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()> {
        let flows = self.flows_at(flows)?;
        self.settled().flows[flows].load(saved)
    }

    fn take_flows(&mut self, flows: FlowsId, spans: &[Range<usize>]) -> Result<Tensor> {
        let flows = self.flows_at(flows)?;
        Ok(match self.moving.flows_of(flows, &self.fixed, &self.workers) {
            FlowBuffer::Single(all) => Tensor::F32(taken(all, spans)),
            FlowBuffer::Double(all) => Tensor::F64(taken(all, spans)),
        })
    }

    fn put_flows(&mut self, flows: FlowsId, spans: &[Range<usize>], numbers: &Tensor) -> Result<()> {
        let flows = self.flows_at(flows)?;
        match (self.moving.flows_of(flows, &self.fixed, &self.workers), numbers) {
            (FlowBuffer::Single(all), Tensor::F32(numbers)) => add_to_spans(all, spans, numbers),
            (FlowBuffer::Double(all), Tensor::F64(numbers)) => add_to_spans(all, spans, numbers),
            _ => return Err(Error::state("flows of another precision than their buffer")),
        }
        Ok(())
    }

    fn save_rows(&self, rows: ParamRowsId) -> Result<Tensor> {
        Ok(Tensor::F64(self.rows(rows)?))
    }

    fn load_rows(&mut self, rows: ParamRowsId, saved: &Tensor) -> Result<()> {
        let rows = self.rows_at(rows)?;
        match saved {
            Tensor::F64(values) if values.len() == self.rows[rows].len() => self.rows[rows].copy_from_slice(values),
            _ => return Err(Error::state("a saved row buffer has another size than this one")),
        }
        Ok(())
    }
}

/// The numbers of some stretches, which are left as zeros.
fn taken<T: Copy + Default>(all: &mut [T], spans: &[Range<usize>]) -> Vec<T> {
    let mut numbers = Vec::with_capacity(spans.iter().map(Range::len).sum());
    for span in spans {
        numbers.extend_from_slice(&all[span.clone()]);
        all[span.clone()].fill(T::default());
    }
    numbers
}
