//! A batch on the device: evaluation, the E-step, or a whole EM step, micro-batch by micro-batch.
//!
//! The report of a micro-batch is on its way back to the host while the device goes on with the pass backwards: only
//! the update has to wait until the host knows that no row has to be rescued. The rest of a step is never waited for;
//! the next batch is.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use cudarc::driver::{CudaEvent, PinnedHostSlice, result};

use super::CudaBackend;
use super::descriptors::{Pass, Ptr, Update};
use super::driver_error;
use super::feed::{Fed, Feed};
use super::graphs::{Key, Part};
use super::kernels::CudaPrecision;
use super::passes::{Engine, FlowPtr};
use super::program::{BlockClass, CHUNKS_PER_SPLIT};
use super::rescue::{LogSpace, Lost, Rescuer};
use super::slabs::{Workspace, WorkspaceSizes};
use super::sorted::Sorted;
use super::stream::{Device, Slab, record};
use super::updates::{Retained, update};
use crate::backend::micro_batch::{MicroBatch, MicroBatches, pieces};
use crate::backend::{BatchReport, EmStep, PhaseSeconds, RetainSource};
use crate::data::Batch;
use crate::error::Result;

/// Rows beyond which a larger micro-batch gains nothing.
const LARGEST_MICRO_BATCH: usize = 8192;

impl CudaBackend {
    /// log p of every row. In f32: what is reported of a model is never rounded, however it was trained.
    pub(super) fn evaluate(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        let most = self.prepare(batch.num_rows())?;
        let mut out = Vec::with_capacity(batch.num_rows());
        for rows in pieces(batch.num_rows(), most) {
            let fed = self.send(batch, &rows, false)?;
            let engine = self.engine();
            let pass = engine.pass(fed.cells, rows.len(), rows.len(), 0);
            engine.forward(pass, CudaPrecision::F32)?;
            engine.root(pass, fed.weights, None)?;
            let mut found = self.device.download(engine.workspace.log_likelihoods.ptr, rows.len())?;
            let lost = self.lost_rows(&rows, |_| 0.0)?;
            if !lost.is_empty() {
                let rescued = self.rescue(&lost, fed, None)?;
                lost.iter().zip(rescued).for_each(|(lost, log_p)| found[lost.row as usize] = log_p);
            }
            self.done(fed)?;
            out.extend(found);
        }
        Ok(out)
    }

    /// target += gain · flows of a batch.
    pub(super) fn add_batch_flows(&mut self, batch: &Batch, gain: f64, target: FlowPtr) -> Result<BatchReport> {
        let most = self.prepare(batch.num_rows())?;
        self.add_flows_of(batch, most, gain, target)
    }

    /// A whole EM step: flows of all micro-batches, and the update with those of the last.
    pub(super) fn fused_step(&mut self, batch: &Batch, step: &EmStep, target: FlowPtr) -> Result<BatchReport> {
        let most = self.prepare(batch.num_rows())?;
        self.step_on(batch, most, step, target)
    }

    /// Flows and update in one: θ' of weights straight from the partial sums, of tables from sums made with their
    /// flows.
    fn update_from(
        &self,
        pass: Pass,
        fed: Fed,
        sorted: &Sorted,
        micro: &MicroBatch<'_, FlowPtr>,
        step: &EmStep,
    ) -> Result<()> {
        let engine = self.engine();
        let EmStep { scale, offset, correction, smoothing, .. } = *step;
        let (masses, spare) = (self.row_ptr(step.masses)?, self.row_ptr(step.spare)?);
        if step.sources.needs_top_down() {
            engine.top_down_rows(pass, spare)?;
        }
        let change = |source| -> Update {
            let retained = match source {
                RetainSource::TopDown => Retained::Rows { rows: spare, scale, offset },
                RetainSource::Larger => Retained::Larger { rows: spare, scale, offset },
                RetainSource::Flows => Retained::Masses { scale, offset },
            };
            update(retained, correction, smoothing, Some(masses), micro.keep as f32)
        };
        let (of_sums, of_inputs) = (change(step.sources.sums), change(step.sources.inputs));
        let flows: Ptr<f32> = Ptr::new(micro.target.ptr.address());
        for span in &self.program.params.spans(BlockClass::Weights) {
            let weights = engine.workspace.params.ptr.offset(span.first);
            let (grid, partials) = ([span.units.div_ceil(8), span.count], engine.workspace.partials.ptr);
            self.kernels.weights_step(grid, pass, weights, partials, flows, CHUNKS_PER_SPLIT as i32, of_sums)?;
        }
        engine.table_flows(pass, fed, sorted, micro.target, micro.keep as f32, Some(self.tables.sums.ptr))?;
        engine.density_flows(pass, micro.target, micro.keep as f32)?;
        self.clocks.after(&self.device, Phase::Flows)?;
        let updater = self.updater();
        updater.update_tables(micro.target, of_inputs)?;
        updater.update_densities(micro.target, of_inputs)
    }

    /// Adds the rows that linear space could not hold, to the flows and to the report.
    fn add_lost(
        &mut self,
        batch: &Batch,
        micro: &MicroBatch<'_, FlowPtr>,
        fed: Fed,
        report: &mut BatchReport,
    ) -> Result<()> {
        let lost = self.lost_rows(&micro.rows, |row| micro.gain * f64::from(batch.weight(row)))?;
        let found = self.rescue(&lost, fed, Some(micro.target))?;
        for (lost, log_p) in lost.iter().zip(found) {
            report.rescued_rows += 1;
            report.add_row(f64::from(batch.weight(micro.rows.start + lost.row as usize)), log_p);
        }
        Ok(())
    }

    /// The rows of the last pass that linear space could not hold.
    fn lost_rows(&self, rows: &Range<usize>, root_flow: impl Fn(usize) -> f64) -> Result<Vec<Lost>> {
        let flags = self.device.download(self.engine().workspace.degenerate.ptr, rows.len())?;
        let lost = flags.into_iter().enumerate().filter(|(_, flag)| *flag != 0);
        Ok(lost.map(|(i, _)| Lost { row: i as u32, root_flow: root_flow(rows.start + i) }).collect())
    }

    fn rescue(&mut self, lost: &[Lost], fed: Fed, into: Option<FlowPtr>) -> Result<Vec<f64>> {
        self.prepare_log_space()?;
        let capacity = self.engine().workspace.sizes.capacity;
        self.rescuer().rescue(lost, fed.cells, capacity, into)
    }

    /// rows = TD: the flows of a single row in which everything is missing.
    pub(super) fn marginal_pass(&mut self, into: Ptr<f64>) -> Result<()> {
        self.prepare(1)?;
        let fed = self.send(&Batch::empty(), &(0..0), true)?;
        let engine = self.engine();
        let pass = engine.pass(fed.cells, 1, 0, 0);
        engine.forward(pass, CudaPrecision::F32)?;
        engine.root(pass, fed.weights, Some(0.0))?;
        engine.backward(pass, CudaPrecision::F32)?;
        engine.top_down_rows(pass, into)?;
        self.done(fed)
    }

    /// Makes every row sum to one.
    pub(super) fn renormalize_rows(&mut self) -> Result<()> {
        self.prepare_log_space()?;
        let masses: Slab<f64> = self.device.alloc("masses of inputs", self.program.params.num_rows)?;
        self.updater().input_masses(masses.ptr)?;
        self.rescuer().renormalize(masses.ptr)
    }

    /// Working memory for a batch. How many rows may be worked on at once.
    fn prepare(&mut self, num_rows: usize) -> Result<usize> {
        let wanted = num_rows.min(LARGEST_MICRO_BATCH) + 1; // and one for top-down probabilities
        if let Some(workspace) = &self.workspace
            && (workspace.sizes.capacity >= wanted || self.is_full)
        {
            return Ok(workspace.sizes.capacity - 1);
        }
        self.drop_workspace()?;
        let available = match self.options.memory_budget {
            Some(budget) => budget,
            None => self.device.memory()?.0 / 10 * 9,
        };
        let sizes = WorkspaceSizes::fitting(&self.program, wanted, available)?;
        // What does not fit now will not fit for a larger batch either: no need to try again at every one.
        self.is_full = sizes.capacity < wanted;
        self.workspace = Some(Workspace::new(&self.device, &self.program, sizes)?);
        self.feed = Some(Feed::new(&self.device, sizes.feed, sizes.capacity)?);
        Ok(sizes.capacity - 1)
    }

    fn prepare_log_space(&mut self) -> Result<()> {
        if self.log_space.is_none() {
            self.log_space = Some(LogSpace::new(&self.device, &self.program)?);
        }
        Ok(())
    }

    fn send(&mut self, batch: &Batch, rows: &Range<usize>, marginal: bool) -> Result<Fed> {
        let feed = self.feed.as_mut().expect("`prepare` comes before every pass");
        feed.send(&self.device, &self.program.columns, batch, rows.clone(), marginal)
    }

    fn send_sorted(&mut self, batch: &Batch, rows: &Range<usize>, fed: Fed) -> Result<Sorted> {
        let sorted = Sorted::new(&self.program, &self.engine().workspace.sizes, batch, rows);
        let feed = self.feed.as_mut().expect("`prepare` comes before every pass");
        feed.send_sorted(&self.device, fed, &sorted)?;
        Ok(sorted)
    }

    fn done(&self, fed: Fed) -> Result<()> {
        self.feed.as_ref().expect("`prepare` comes before every pass").done(&self.device, fed)
    }

    fn engine(&self) -> Engine<'_> {
        Engine {
            device: &self.device,
            kernels: &self.kernels,
            program: &self.program,
            tables: &self.tables,
            theta: self.theta.ptr,
            workspace: self.workspace.as_ref().expect("`prepare` comes before every pass"),
        }
    }

    fn rescuer(&self) -> Rescuer<'_> {
        Rescuer {
            device: &self.device,
            kernels: &self.kernels,
            program: &self.program,
            tables: &self.tables,
            theta: self.theta.ptr,
            space: self.log_space.as_ref().expect("`prepare_log_space` comes before log space"),
        }
    }
}

impl MicroBatches for CudaBackend {
    type Target = FlowPtr;

    fn run_micro_batch(
        &mut self,
        batch: &Batch,
        micro: &MicroBatch<'_, FlowPtr>,
        report: &mut BatchReport,
    ) -> Result<bool> {
        let rows = &micro.rows;
        let marginal = micro.needs_top_down();
        let fed = self.send(batch, rows, marginal)?;
        let flow_bits = micro.flow_bits(batch);
        let (num_rows, data_rows) = (rows.len() + usize::from(marginal), rows.len());
        let key =
            |part| Key { part, slot: fed.slot, rows: num_rows, data_rows, flow_bits, gain_bits: micro.gain.to_bits() };

        let mut graphs = std::mem::take(&mut self.graphs);
        let engine = self.engine();
        let pass = engine.pass(fed.cells, num_rows, data_rows, flow_bits);
        let (precision, compute) = (self.options.precision, &self.device.compute);
        let found = self.clocks.report.ptr;
        self.clocks.start(&self.device)?;
        graphs.run(key(Part::Forward), compute, || {
            engine.forward(pass, precision)?;
            engine.root(pass, fed.weights, Some(micro.gain))?;
            let log_likelihoods = engine.workspace.log_likelihoods.ptr;
            self.kernels.batch_report([1], pass, fed.weights, log_likelihoods, found)
        })?;
        self.clocks.after(&self.device, Phase::Forward)?;
        self.clocks.ask(&self.device)?;
        graphs.run(key(Part::Backward), compute, || engine.backward(pass, precision))?;
        self.clocks.after(&self.device, Phase::Backward)?;
        graphs.run(key(Part::Flows), compute, || engine.partial_flows(pass, precision))?;
        self.graphs = graphs;

        // The device is busy: time to sort.
        let sorted = self.send_sorted(batch, rows, fed)?;
        let [log_likelihood, possible_weight, impossible, degenerate] = self.clocks.answer()?;
        report.log_likelihood += log_likelihood;
        report.possible_weight += possible_weight;
        report.impossible_rows += impossible as usize;
        let step = micro.step.filter(|_| degenerate == 0.0);
        match step {
            Some(step) => self.update_from(pass, fed, &sorted, micro, step)?,
            None => {
                let engine = self.engine();
                engine.weights_flows(pass, micro.target, micro.keep as f32)?;
                engine.table_flows(pass, fed, &sorted, micro.target, micro.keep as f32, None)?;
                engine.density_flows(pass, micro.target, micro.keep as f32)?;
                self.clocks.after(&self.device, Phase::Flows)?;
            }
        }
        if degenerate > 0.0 {
            self.add_lost(batch, micro, fed, report)?;
        }
        self.clocks.after(&self.device, Phase::Update)?;
        self.done(fed)?;
        Ok(step.is_some())
    }
}

/// A part of a micro-batch that has a clock of its own.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Forward = 1,
    Backward,
    Flows,
    Update,
}

/// What comes back from a micro-batch: its report, and when the device was done with each phase.
pub(super) struct Clocks {
    pub phases: PhaseSeconds,
    report: Slab<f64>,
    /// The report on the host. Not write-combined: it is read.
    host: RefCell<PinnedHostSlice<f64>>,
    reported: CudaEvent,
    /// Start and end of the phases, of this micro-batch and of the one before, whose times can be read.
    events: [[CudaEvent; 5]; 2],
    /// Which is this one's; and whether the other has been recorded.
    current: Cell<usize>,
    has_previous: bool,
}

impl Clocks {
    pub fn new(device: &Device) -> Result<Self> {
        // SAFETY: written by the copy that `ask` makes, read after `answer` has waited for it.
        let host = unsafe { device.context.alloc_pinned_with_flags::<f64>(4, 0) };
        let events = || -> Result<[CudaEvent; 5]> {
            Ok([
                device.event(true)?,
                device.event(true)?,
                device.event(true)?,
                device.event(true)?,
                device.event(true)?,
            ])
        };
        Ok(Self {
            phases: PhaseSeconds::default(),
            report: device.zeros("a report", 4)?,
            host: RefCell::new(host.map_err(|e| driver_error("pinned memory for reports", e))?),
            reported: device.event(false)?,
            events: [events()?, events()?],
            current: Cell::new(0),
            has_previous: false,
        })
    }

    fn start(&self, device: &Device) -> Result<()> {
        self.current.set(1 - self.current.get());
        record(&self.events[self.current.get()][0], &device.compute)
    }

    fn after(&self, device: &Device, phase: Phase) -> Result<()> {
        record(&self.events[self.current.get()][phase as usize], &device.compute)
    }

    /// Sends for the report.
    fn ask(&self, device: &Device) -> Result<()> {
        let mut host = self.host.borrow_mut();
        let host = host.as_mut_slice().map_err(|e| driver_error("a report could not be read", e))?;
        // SAFETY: both have four numbers; the host's are not touched before `answer`, and live as long as this.
        let copied = unsafe { result::memcpy_dtoh_async(host, self.report.ptr.address(), device.compute.cu_stream()) };
        copied.map_err(|e| driver_error("copy from the device", e))?;
        record(&self.reported, &device.compute)
    }

    /// Waits for the report. By then the micro-batch before this one is over, and its times are known.
    fn answer(&mut self) -> Result<[f64; 4]> {
        self.reported.synchronize().map_err(|e| driver_error("the device failed", e))?;
        let host = self.host.borrow();
        let host = host.as_slice().map_err(|e| driver_error("a report could not be read", e))?;
        let report = [host[0], host[1], host[2], host[3]];
        let previous = &self.events[1 - self.current.get()];
        if std::mem::replace(&mut self.has_previous, true) {
            // A micro-batch that failed half way has no time: that is no reason to fail now.
            let seconds = |phase: Phase| {
                let (from, to) = (&previous[phase as usize - 1], &previous[phase as usize]);
                from.elapsed_ms(to).map_or(0.0, |time| f64::from(time) / 1e3)
            };
            self.phases.forward += seconds(Phase::Forward);
            self.phases.backward += seconds(Phase::Backward);
            self.phases.flows += seconds(Phase::Flows);
            self.phases.update += seconds(Phase::Update);
        }
        Ok(report)
    }
}
