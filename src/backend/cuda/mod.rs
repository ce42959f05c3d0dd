//! A circuit on a GPU: parameters, flows and values stay there, batches stream in.
//!
//! The arithmetic is that of `backend/cpu`: scaled linear space, the same tests for what is degenerate, the same
//! M-step; the kernels are in `kernels/`, and `kernels/README.md` is the contract between them and this folder.
//! `program` turns a plan into descriptors and launches, `slabs` and `feed` hold the memory, `passes`, `updates` and
//! `rescue` launch, `step` puts them together for a batch. `group` makes several devices one, `linked` sums over those
//! of other ranks, both with `nccl`. Building needs no CUDA and running without a driver is an error, not a panic
//! (`probe`).
//!
//! Never yet run on a GPU: the PTX that ships is executed in tests by the emulated driver in `kernels/emulator`.

mod buffers;
mod descriptors;
mod feed;
mod graphs;
mod group;
mod kernels;
mod linked;
mod nccl;
mod passes;
mod probe;
mod program;
mod rescue;
mod slabs;
mod sorted;
mod step;
mod stream;
mod updates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{DriverError, sys};

pub use self::group::CudaGroup;
pub use self::kernels::CudaPrecision;
pub use self::probe::{check_device, device_count};

use self::buffers::FlowBuffer;
use self::descriptors::{Ptr, Update};
use self::feed::Feed;
use self::graphs::Graphs;
use self::kernels::{Grid, Kernels, Precisions};
use self::linked::Linked;
use self::passes::FlowPtr;
use self::program::Program;
use self::rescue::LogSpace;
use self::slabs::{Tables, Workspace, WorkspaceSizes};
use self::step::Clocks;
use self::stream::{Device, Slab};
use self::updates::{Retained, Updater, update};
use super::{
    AdamStep, Backend, BatchReport, DeviceSums, EmStep, EmUpdate, FlowPrecision, FlowsId, ParamRowsId, PhaseSeconds,
    Retain, Tensor,
};
use crate::circuit::{Circuit, Flows, Params};
use crate::data::Batch;
use crate::error::{Error, Result};

/// Options of [`CudaBackend`].
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which device, from 0.
    pub device: usize,
    /// Bytes that the values and flows of a micro-batch may take, besides the parameters; `None` takes nine tenths of
    /// what is free.
    pub memory_budget: Option<usize>,
    /// How precisely training passes multiply matrices. What `log_likelihoods` reports never depends on it.
    pub precision: CudaPrecision,
}

/// Handles count up from here, those of the CPU backend from 0: no backend takes the other's for its own.
static NEXT_ID: AtomicU32 = AtomicU32::new(1 << 31);

/// A circuit on a GPU.
pub struct CudaBackend {
    /// Tells this backend's handles from those of others.
    id: u32,
    circuit: Arc<Circuit>,
    program: Program,
    options: CudaOptions,
    /// Its place among the GPUs of other ranks.
    // Before the streams that it is used in.
    linked: Option<Linked>,
    // Before the memory that their launches name.
    graphs: Graphs,
    feed: Option<Feed>,
    workspace: Option<Workspace>,
    /// Whether the working memory is as large as memory or the budget allows.
    is_full: bool,
    log_space: Option<LogSpace>,
    clocks: Clocks,
    tables: Tables,
    theta: Slab<f32>,
    /// θ̄, once there has been an average.
    average: Option<Slab<f32>>,
    flows: Vec<FlowBuffer>,
    rows: Vec<Slab<f64>>,
    kernels: Kernels,
    device: Device,
}

impl CudaBackend {
    /// Puts a circuit and its parameters on a device. Fails where there is none that can be used.
    pub fn new(circuit: Arc<Circuit>, params: &Params, options: &CudaOptions) -> Result<Self> {
        params.check(&circuit)?;
        let device = Device::open(options.device)?;
        let program = Program::new(&circuit)?;
        let kernels = Kernels::load(&device.context, &device.compute)?;
        let tables = Tables::new(&device, &program)?;
        let theta = device.table("the parameters", &program.params.theta_to_device(params.values()))?;
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            options: options.clone(),
            linked: None,
            graphs: Graphs::default(),
            feed: None,
            workspace: None,
            is_full: false,
            log_space: None,
            clocks: Clocks::new(&device)?,
            flows: Vec::new(),
            rows: Vec::new(),
            circuit,
            program,
            tables,
            theta,
            average: None,
            kernels,
            device,
        })
    }

    /// The device: its number and what its driver calls it.
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    /// How precisely training passes multiply matrices.
    pub fn precision(&self) -> CudaPrecision {
        self.options.precision
    }

    /// Rows worked on at once, once there has been a batch.
    pub fn micro_batch_rows(&self) -> Option<usize> {
        self.workspace.as_ref().map(|workspace| workspace.sizes.capacity.saturating_sub(1))
    }

    /// Bytes that a micro-batch of so many rows takes: the budget that it needs.
    pub fn micro_batch_bytes(&self, rows: usize) -> usize {
        WorkspaceSizes::new(&self.program, rows + 1).bytes()
    }

    fn flows_at(&self, id: FlowsId) -> Result<usize> {
        id.index_in(self.id, self.flows.len())
    }

    fn rows_at(&self, id: ParamRowsId) -> Result<usize> {
        id.index_in(self.id, self.rows.len())
    }

    fn flow_ptr(&self, id: FlowsId) -> Result<FlowPtr> {
        Ok(self.flows[self.flows_at(id)?].ptr())
    }

    fn row_ptr(&self, id: ParamRowsId) -> Result<Ptr<f64>> {
        Ok(self.rows[self.rows_at(id)?].ptr)
    }

    fn updater(&self) -> Updater<'_> {
        Updater { kernels: &self.kernels, program: &self.program, tables: &self.tables, theta: self.theta.ptr }
    }

    /// The single-precision buffers that gradient steps work on; all different.
    fn gradient_buffers<const N: usize>(&self, ids: [FlowsId; N]) -> Result<[Ptr<f32>; N]> {
        self.circuit.require_weights_only()?;
        let mut found = [Ptr::NULL; N];
        for (i, id) in ids.iter().enumerate() {
            match &self.flows[self.flows_at(*id)?] {
                FlowBuffer::Double(_) => {
                    return Err(Error::unsupported("gradient steps need flow buffers of single precision"));
                }
                FlowBuffer::Single(slab) => found[i] = slab.ptr,
            }
            if ids[..i].contains(id) {
                return Err(Error::state("a gradient step needs a buffer of its own for each of its moments"));
            }
        }
        Ok(found)
    }

    /// Tries to allocate, and tries again without the working memory: that is made anew, smaller, at the next pass.
    fn allocate<T>(&mut self, make: impl Fn(&Self) -> Result<T>) -> Result<T> {
        match make(self) {
            Err(_) if self.workspace.is_some() => {
                self.drop_workspace()?;
                make(self)
            }
            made => made,
        }
    }

    /// The memory of θ̄, the one there is or a new one, to be put back when all of it has been written: what failed
    /// half way is no average.
    fn take_average(&mut self) -> Result<Slab<f32>> {
        match self.average.take() {
            Some(average) => Ok(average),
            None => self.allocate(|b| b.device.alloc("averaged parameters", b.program.params.theta_len)),
        }
    }

    fn drop_workspace(&mut self) -> Result<()> {
        self.graphs.clear();
        (self.feed, self.workspace, self.log_space) = (None, None, None);
        self.device.synchronize()
    }
}

/// What the driver says, with what was being done.
fn driver_error(what: &str, error: DriverError) -> Error {
    let text = |text: std::result::Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_string(), |text| text.to_string_lossy().into_owned())
    };
    let advice = match error.0 {
        sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => ": the driver is older than 12.4 (550)",
        sys::CUresult::CUDA_ERROR_NO_DEVICE => ": the driver finds no device",
        _ => "",
    };
    Error::device(format!("{what}{advice}: {} ({})", text(error.error_string()), text(error.error_name())))
}

impl Backend for CudaBackend {
    fn circuit(&self) -> &Arc<Circuit> {
        &self.circuit
    }

    fn phase_seconds(&self) -> PhaseSeconds {
        self.clocks.phases
    }

    fn device_name(&self) -> String {
        self.device.name()
    }

    fn device_sums(&mut self) -> Result<&mut dyn DeviceSums> {
        Ok(self)
    }

    fn params(&self) -> Result<Params> {
        let layout = &self.program.params;
        let values = layout.theta_to_host(&self.device.download(self.theta.ptr, layout.theta_len)?);
        Ok(Params::trusted(&self.circuit, values))
    }

    fn set_params(&mut self, params: &Params) -> Result<()> {
        params.check(&self.circuit)?;
        self.average = None;
        self.device.upload(&self.program.params.theta_to_device(params.values()), self.theta.ptr)
    }

    fn average(&mut self, weight: f64) -> Result<()> {
        if let Some(average) = self.average.as_ref().filter(|_| weight < 1.0) {
            return self.updater().average(average.ptr, weight);
        }
        let average = self.take_average()?;
        self.device.copy_within(self.theta.ptr, average.ptr, self.program.params.theta_len)?;
        self.average = Some(average);
        Ok(())
    }

    fn averaged_params(&self) -> Result<Params> {
        let layout = &self.program.params;
        let theta = self.average.as_ref().unwrap_or(&self.theta);
        let values = layout.theta_to_host(&self.device.download(theta.ptr, layout.theta_len)?);
        Ok(Params::trusted(&self.circuit, values))
    }

    fn set_average(&mut self, average: &Params) -> Result<()> {
        average.check(&self.circuit)?;
        let values = self.program.params.theta_to_device(average.values());
        let average = self.take_average()?;
        self.device.upload(&values, average.ptr)?;
        self.average = Some(average);
        Ok(())
    }

    fn averaged_log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        let Some(average) = self.average.take() else { return self.log_likelihoods(batch) };
        // Evaluation asks for the address of θ at every launch and is never captured, so the two can change places for
        // as long as it takes. The graphs of training passes hold the address of θ, which has its place back before the
        // next.
        let theta = std::mem::replace(&mut self.theta, average);
        let found = self.log_likelihoods(batch);
        self.average = Some(std::mem::replace(&mut self.theta, theta));
        found
    }

    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.circuit.check_batch(batch)?;
        self.evaluate(batch)
    }

    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport> {
        self.circuit.check_batch(batch)?;
        let into = self.flow_ptr(into)?;
        self.add_batch_flows(batch, gain, into)
    }

    fn em_step(&mut self, batch: &Batch, step: &EmStep) -> Result<BatchReport> {
        self.circuit.check_batch(batch)?;
        let flows = self.flow_ptr(step.flows)?;
        self.rows_at(step.masses)?;
        self.rows_at(step.spare)?;
        if step.masses == step.spare {
            return Err(Error::state("an EM step needs a spare row buffer besides the masses"));
        }
        match flows.precision {
            FlowPrecision::Single => self.fused_step(batch, step, flows),
            FlowPrecision::Double => step.by_verbs(self, batch),
        }
    }

    fn top_down(&mut self, into: ParamRowsId) -> Result<()> {
        let into = self.row_ptr(into)?;
        self.marginal_pass(into)
    }

    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: ParamRowsId) -> Result<()> {
        self.updater().row_masses(self.flow_ptr(flows)?, gain, self.row_ptr(into)?)
    }

    fn em_update(&mut self, em: &EmUpdate) -> Result<()> {
        let change = |retain: Option<Retain>| -> Result<Update> {
            let retained = match retain {
                None => Retained::Nothing,
                Some(Retain { rows, at_least, scale, offset }) => match at_least {
                    None => Retained::Rows { rows: self.row_ptr(rows)?, scale, offset },
                    // The masses of the update's own flows: kernels add them up anyway.
                    Some(_) => Retained::Larger { rows: self.row_ptr(rows)?, scale, offset },
                },
            };
            Ok(update(retained, em.gain, em.smoothing, None, 1.0))
        };
        let flows = self.flow_ptr(em.flows)?;
        self.updater().em_update(flows, change(em.retain)?, change(em.retain_inputs)?)
    }

    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: ParamRowsId) -> Result<()> {
        self.circuit.require_weights_only()?;
        self.updater().gradient(self.flow_ptr(flows)?, gain, self.row_ptr(top_down)?)
    }

    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()> {
        let [gradient, first, second] = self.gradient_buffers([gradient, first, second])?;
        let correct = |beta: f64| (1.0 / (1.0 - beta.powf(step.step as f64))) as f32;
        let n = self.program.params.theta_len;
        self.kernels.adam(
            Grid::over(n),
            self.theta.ptr,
            gradient,
            first,
            second,
            n as i64,
            step.rate as f32,
            step.beta1 as f32,
            step.beta2 as f32,
            correct(step.beta1),
            correct(step.beta2),
            step.epsilon as f32,
        )
    }

    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()> {
        let [gradient] = self.gradient_buffers([gradient])?;
        let n = self.program.params.theta_len;
        self.kernels.ascend(Grid::over(n), self.theta.ptr, gradient, n as i64, rate as f32)
    }

    fn renormalize(&mut self) -> Result<()> {
        self.renormalize_rows()
    }

    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId> {
        let flows = self.allocate(|b| FlowBuffer::new(&b.device, precision, &b.program.params))?;
        self.flows.push(flows);
        Ok(FlowsId { backend: self.id, index: (self.flows.len() - 1) as u32 })
    }

    fn new_rows(&mut self) -> Result<ParamRowsId> {
        let rows = self.allocate(|b| b.device.zeros("a row buffer", b.program.params.num_rows))?;
        self.rows.push(rows);
        Ok(ParamRowsId { backend: self.id, index: (self.rows.len() - 1) as u32 })
    }

    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()> {
        let (flows, n) = (self.flow_ptr(flows)?, self.program.params.stats_len);
        self.kernels.scale(flows.precision, Grid::over(n), flows.ptr, factor, n as i64)
    }

    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()> {
        if flows == into {
            return self.scale(flows, 1.0 + gain);
        }
        let (from, into, n) = (self.flow_ptr(flows)?, self.flow_ptr(into)?, self.program.params.stats_len);
        let precisions = Precisions::of(from.precision, into.precision);
        self.kernels.add_scaled(precisions, Grid::over(n), from.ptr, gain, into.ptr, n as i64)
    }

    fn blend_rows(&mut self, into: ParamRowsId, keep: f64, rows: ParamRowsId, gain: f64) -> Result<()> {
        let (into, rows, n) = (self.row_ptr(into)?, self.row_ptr(rows)?, self.program.params.num_rows);
        self.kernels.blend_rows(Grid::over(n), into, keep, rows, gain, n as i64)
    }

    fn flows(&self, flows: FlowsId) -> Result<Flows> {
        let values = match self.save_flows(flows)? {
            Tensor::F32(values) => values.into_iter().map(f64::from).collect(),
            Tensor::F64(values) => values,
        };
        Ok(Flows::new(self.circuit.layout().clone(), values))
    }

    fn rows(&self, rows: ParamRowsId) -> Result<Vec<f64>> {
        self.device.download(self.row_ptr(rows)?, self.program.params.num_rows)
    }

    fn save_flows(&self, flows: FlowsId) -> Result<Tensor> {
        self.flows[self.flows_at(flows)?].save(&self.device, &self.program.params)
    }

    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()> {
        let flows = self.flows_at(flows)?;
        self.flows[flows].load(&self.device, &self.program.params, self.circuit.layout().num_stats(), saved)
    }

    fn save_rows(&self, rows: ParamRowsId) -> Result<Tensor> {
        Ok(Tensor::F64(self.rows(rows)?))
    }

    fn load_rows(&mut self, rows: ParamRowsId, saved: &Tensor) -> Result<()> {
        let rows = self.row_ptr(rows)?;
        match saved {
            Tensor::F64(values) if values.len() == self.program.params.num_rows => self.device.upload(values, rows),
            _ => Err(Error::state("a saved row buffer has another size than this one")),
        }
    }
}
