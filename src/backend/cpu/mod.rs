//! A circuit in main memory: scaled linear space, matrix products, threads, the same bits for any number of them.
//!
//! A batch is cut into micro-batches that fit the memory budget, a micro-batch into chunks of rows. Chunks run in
//! parallel through `forward` and `backward`; then `param_flows` adds up the flows of every parameter over all chunks;
//! then `rescue` does the rows that linear space could not hold. `update` is the M-step.

mod backward;
mod buffers;
mod chunk;
mod forward;
mod matrix;
mod param_flows;
mod renormalize;
mod rescue;
mod scaled;
mod top_down;
mod update;

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use self::backward::backward;
use self::buffers::{FlowBuffer, tiles, with_flows};
use self::chunk::{Chunk, chunk_rows};
use self::forward::{Pass, forward};
use self::param_flows::add_param_flows;
use self::rescue::Row;
use self::update::Update;
use super::{AdamStep, Backend, BatchReport, EmUpdate, FlowPrecision, FlowsId, RowsId, Tensor};
use crate::circuit::{Circuit, Flows, Params};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::plan::Plan;

/// Options of [`CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Worker threads; `None` takes all cores. The bits do not depend on it.
    pub threads: Option<usize>,
    /// Bytes that the values and flows of a micro-batch may take, besides the parameters.
    pub memory_budget: usize,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, memory_budget: 1 << 30 }
    }
}

/// A circuit in main memory.
///
/// ```
/// use std::sync::Arc;
/// use anemone::backend::{Backend, cpu::{CpuBackend, CpuOptions}};
/// use anemone::circuit::{Categorical, Params};
/// use anemone::data::Batch;
/// use anemone::structure::{Tying, hmm};
///
/// let circuit = Arc::new(hmm(3, 4, Categorical::new(5)?, Tying::Homogeneous)?);
/// let params = Params::random(&circuit, 1, 2.0)?;
/// let mut backend = CpuBackend::new(circuit, &params, &CpuOptions::default())?;
/// let batch = Batch::from_rows(&[0u8, 1, 2, 4, 4, 0], 3)?;
/// assert!(backend.log_likelihoods(&batch)?.iter().all(|ll| *ll < 0.0));
/// # Ok::<(), anemone::Error>(())
/// ```
pub struct CpuBackend {
    circuit: Arc<Circuit>,
    plan: Plan,
    /// The parameters, in the circuit's layout.
    theta: Vec<f32>,
    flows: Vec<FlowBuffer>,
    rows: Vec<Vec<f64>>,
    pool: ThreadPool,
    /// Rows worked on at once.
    micro_batch: usize,
    /// Working memory, kept from batch to batch.
    chunks: Vec<Chunk>,
}

impl CpuBackend {
    /// Puts a circuit and its parameters to work.
    pub fn new(circuit: Arc<Circuit>, params: &Params, options: &CpuOptions) -> Result<Self> {
        params.check(&circuit)?;
        if options.threads == Some(0) {
            return Err(Error::option("threads = 0: must be at least 1, or left out to use all cores"));
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .thread_name(|i| format!("anemone-cpu-{i}"))
            .build()
            .map_err(|e| Error::option(format!("cannot start {:?} threads: {e}", options.threads)))?;
        let plan = Plan::new(&circuit);
        let micro_batch = (options.memory_budget / plan.bytes_per_row()).max(1);
        let theta = params.values().to_vec();
        Ok(Self { circuit, plan, theta, flows: Vec::new(), rows: Vec::new(), pool, micro_batch, chunks: Vec::new() })
    }

    /// Rows worked on at once: as many as the memory budget holds.
    pub fn micro_batch_rows(&self) -> usize {
        self.micro_batch
    }

    fn pass<'a>(&'a self, batch: &'a Batch) -> Pass<'a> {
        Pass { circuit: &self.circuit, plan: &self.plan, theta: &self.theta, batch }
    }

    /// Working memory for some rows, cut into chunks.
    fn prepare_chunks(&self, rows: Range<usize>, with_flows: bool, chunks: &mut Vec<Chunk>) {
        let pieces: Vec<_> = tiles(rows.len(), chunk_rows(rows.len())).collect();
        chunks.resize_with(pieces.len(), Chunk::new);
        for (chunk, piece) in chunks.iter_mut().zip(pieces) {
            chunk.prepare(&self.plan, rows.start + piece.start..rows.start + piece.end, with_flows);
        }
    }

    fn flow_buffer(&self, id: FlowsId) -> Result<&FlowBuffer> {
        self.flows.get(id.0 as usize).ok_or_else(foreign_handle)
    }

    fn flow_buffer_mut(&mut self, id: FlowsId) -> Result<&mut FlowBuffer> {
        self.flows.get_mut(id.0 as usize).ok_or_else(foreign_handle)
    }

    fn row_buffer(&self, id: RowsId) -> Result<&Vec<f64>> {
        self.rows.get(id.0 as usize).ok_or_else(foreign_handle)
    }

    fn row_buffer_mut(&mut self, id: RowsId) -> Result<&mut Vec<f64>> {
        self.rows.get_mut(id.0 as usize).ok_or_else(foreign_handle)
    }

    /// The single-precision numbers of a buffer that gradient steps work on.
    fn gradient_values(&mut self, id: FlowsId) -> Result<Vec<f32>> {
        match self.flow_buffer_mut(id)? {
            FlowBuffer::Single(values) => Ok(std::mem::take(values)),
            FlowBuffer::Double(_) => Err(Error::unsupported("gradient steps need flow buffers of single precision")),
        }
    }
}

fn foreign_handle() -> Error {
    Error::state("a buffer handle belongs to another backend")
}

impl Backend for CpuBackend {
    fn circuit(&self) -> &Arc<Circuit> {
        &self.circuit
    }

    fn params(&self) -> Result<Params> {
        Ok(Params::trusted(&self.circuit, self.theta.clone()))
    }

    fn set_params(&mut self, params: &Params) -> Result<()> {
        params.check(&self.circuit)?;
        self.theta.copy_from_slice(params.values());
        Ok(())
    }

    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.circuit.check_batch(batch)?;
        let mut chunks = std::mem::take(&mut self.chunks);
        let mut out = Vec::with_capacity(batch.num_rows());
        let pass = self.pass(batch);
        for rows in tiles(batch.num_rows(), self.micro_batch) {
            self.prepare_chunks(rows, false, &mut chunks);
            self.pool.install(|| {
                chunks.par_iter_mut().for_each(|chunk| {
                    forward(pass, chunk);
                    for (i, row) in chunk.rows.clone().enumerate().filter(|(i, _)| chunk.degenerate[*i]) {
                        chunk.log_likelihoods[i] =
                            rescue::log_values(pass.circuit, pass.theta, Row::Of(batch, row)).log_likelihood();
                    }
                });
            });
            out.extend(chunks.iter().flat_map(|chunk| &chunk.log_likelihoods));
        }
        self.chunks = chunks;
        Ok(out)
    }

    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport> {
        self.circuit.check_batch(batch)?;
        let mut chunks = std::mem::take(&mut self.chunks);
        let mut target = std::mem::replace(self.flow_buffer_mut(into)?, FlowBuffer::Single(Vec::new()));
        let mut report = BatchReport { num_rows: batch.num_rows(), weight: batch.total_weight(), ..Default::default() };
        let pass = self.pass(batch);
        for rows in tiles(batch.num_rows(), self.micro_batch) {
            self.prepare_chunks(rows, true, &mut chunks);
            self.pool.install(|| {
                chunks.par_iter_mut().for_each(|chunk| {
                    forward(pass, chunk);
                    backward(pass, chunk, |row| (gain * f64::from(batch.weight(row))) as f32);
                });
                add_param_flows(pass, &chunks, &mut target);
            });
            for chunk in &mut chunks {
                for (i, row) in chunk.rows.clone().enumerate() {
                    let weight = f64::from(batch.weight(row));
                    if chunk.degenerate[i] {
                        report.rescued_rows += 1;
                        let values = rescue::log_values(pass.circuit, pass.theta, Row::Of(batch, row));
                        chunk.log_likelihoods[i] = values.log_likelihood();
                        if values.log_likelihood() > f64::NEG_INFINITY {
                            rescue::add_flows(pass, row, &values, gain * weight, &mut target);
                        }
                    }
                    if chunk.log_likelihoods[i] == f64::NEG_INFINITY {
                        report.impossible_rows += 1;
                    } else {
                        report.log_likelihood += weight * chunk.log_likelihoods[i];
                        report.possible_weight += weight;
                    }
                }
            }
        }
        *self.flow_buffer_mut(into)? = target;
        self.chunks = chunks;
        Ok(report)
    }

    fn top_down(&mut self, into: RowsId) -> Result<()> {
        let mut out = std::mem::take(self.row_buffer_mut(into)?);
        top_down::top_down(&self.circuit, &self.theta, &mut out);
        *self.row_buffer_mut(into)? = out;
        Ok(())
    }

    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: RowsId) -> Result<()> {
        let mut out = std::mem::take(self.row_buffer_mut(into)?);
        let flows = self.flow_buffer(flows)?;
        self.pool.install(|| with_flows!(flows, flows => update::row_masses(&self.circuit, flows, gain, &mut out)));
        *self.row_buffer_mut(into)? = out;
        Ok(())
    }

    fn em_update(&mut self, update: &EmUpdate) -> Result<()> {
        let retain = match update.retain {
            None => None,
            Some(r) => Some((&self.rows.get(r.rows.0 as usize).ok_or_else(foreign_handle)?[..], r)),
        };
        let flows = self.flows.get(update.flows.0 as usize).ok_or_else(foreign_handle)?;
        let EmUpdate { gain, smoothing, .. } = *update;
        let theta = &mut self.theta;
        self.pool.install(|| {
            with_flows!(flows, flows => {
                update::em_update(&self.circuit, theta, &Update { retain, flows, gain, smoothing });
            });
        });
        Ok(())
    }

    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: RowsId) -> Result<()> {
        let rows = std::mem::take(self.row_buffer_mut(top_down)?);
        let flows = self.flows.get_mut(flows.0 as usize).ok_or_else(foreign_handle)?;
        self.pool.install(|| update::gradient(&self.circuit, &self.theta, flows, gain, &rows));
        *self.row_buffer_mut(top_down)? = rows;
        Ok(())
    }

    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()> {
        let g = self.gradient_values(gradient)?;
        let mut m = self.gradient_values(first)?;
        let mut v = self.gradient_values(second)?;
        self.pool.install(|| update::adam(&mut self.theta, &g, &mut m, &mut v, step));
        for (id, values) in [(gradient, g), (first, m), (second, v)] {
            *self.flow_buffer_mut(id)? = FlowBuffer::Single(values);
        }
        Ok(())
    }

    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()> {
        let g = self.gradient_values(gradient)?;
        self.pool.install(|| update::ascend(&mut self.theta, &g, rate));
        *self.flow_buffer_mut(gradient)? = FlowBuffer::Single(g);
        Ok(())
    }

    fn renormalize(&mut self) -> Result<()> {
        renormalize::renormalize(&self.circuit, &mut self.theta);
        Ok(())
    }

    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId> {
        self.flows.push(FlowBuffer::new(precision, self.circuit.layout().num_stats()));
        Ok(FlowsId((self.flows.len() - 1) as u32))
    }

    fn new_rows(&mut self) -> Result<RowsId> {
        self.rows.push(vec![0.0; self.circuit.layout().num_rows()]);
        Ok(RowsId((self.rows.len() - 1) as u32))
    }

    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()> {
        match self.flow_buffer_mut(flows)? {
            FlowBuffer::Single(values) if factor == 0.0 => values.fill(0.0),
            FlowBuffer::Double(values) if factor == 0.0 => values.fill(0.0),
            FlowBuffer::Single(values) => values.iter_mut().for_each(|x| *x *= factor as f32),
            FlowBuffer::Double(values) => values.iter_mut().for_each(|x| *x *= factor),
        }
        Ok(())
    }

    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()> {
        if flows == into {
            return self.scale(flows, 1.0 + gain);
        }
        let mut target = std::mem::replace(self.flow_buffer_mut(into)?, FlowBuffer::Single(Vec::new()));
        let source = self.flow_buffer(flows)?;
        with_flows!(source, source => {
            match &mut target {
                FlowBuffer::Single(values) => {
                    values.iter_mut().zip(source).for_each(|(x, s)| *x += (gain * update::Count::to_f64(*s)) as f32);
                }
                FlowBuffer::Double(values) => {
                    values.iter_mut().zip(source).for_each(|(x, s)| *x += gain * update::Count::to_f64(*s));
                }
            }
        });
        *self.flow_buffer_mut(into)? = target;
        Ok(())
    }

    fn blend_rows(&mut self, into: RowsId, keep: f64, rows: RowsId, gain: f64) -> Result<()> {
        let source = self.row_buffer(rows)?.clone();
        self.row_buffer_mut(into)?.iter_mut().zip(source).for_each(|(x, s)| *x = keep * *x + gain * s);
        Ok(())
    }

    fn flows(&self, flows: FlowsId) -> Result<Flows> {
        Ok(Flows::new(self.circuit.layout().clone(), self.flow_buffer(flows)?.to_f64()))
    }

    fn rows(&self, rows: RowsId) -> Result<Vec<f64>> {
        Ok(self.row_buffer(rows)?.clone())
    }

    fn save_flows(&self, flows: FlowsId) -> Result<Tensor> {
        Ok(self.flow_buffer(flows)?.save())
    }

    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()> {
        self.flow_buffer_mut(flows)?.load(saved)
    }

    fn save_rows(&self, rows: RowsId) -> Result<Tensor> {
        Ok(Tensor::F64(self.row_buffer(rows)?.clone()))
    }

    fn load_rows(&mut self, rows: RowsId, saved: &Tensor) -> Result<()> {
        let target = self.row_buffer_mut(rows)?;
        match saved {
            Tensor::F64(values) if values.len() == target.len() => target.copy_from_slice(values),
            _ => return Err(Error::state("a saved row buffer has another size than this one")),
        }
        Ok(())
    }
}
