//! The E-step, alone or fused with the M-step, over the micro-batches of a batch.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Instant;

use rayon::prelude::*;

use super::CpuBackend;
use super::buffers::{FlowBuffer, tiles};
use super::chunk::{Chunk, lanes};
use super::engine::{Engine, lock};
use super::forward::Pass;
use super::gather::{Fused, Gather, Target};
use super::kernels::product::Matrix;
use super::kernels::{Arithmetic, Precision};
use super::large_tables::{Lagging, catch_up, settle, update_large_table};
use super::log_space::RowFlows;
use super::shared::SharedSlice;
use super::tables::SortedRows;
use crate::backend::{BatchReport, EmStep};
use crate::circuit::log_values::{Row, log_values};
use crate::data::Batch;
use crate::error::Result;

/// What one micro-batch is to do.
struct MicroBatch<'a> {
    rows: Range<usize>,
    gain: f64,
    /// Which buffer flows go to, and how much of what is there they keep.
    target: usize,
    keep: f64,
    /// The update to make with the flows, and the buffer of their row masses.
    update: Option<(&'a EmStep, usize)>,
}

impl CpuBackend {
    /// log p of every row.
    pub(super) fn evaluate(&mut self, batch: &Batch) -> Vec<f64> {
        self.settle();
        // What is reported of a model is never rounded, however it was trained.
        let arithmetic = Arithmetic::new(self.isa, Precision::F32);
        let mut begun = Instant::now();
        self.pack_weights(arithmetic);
        let mut out = Vec::with_capacity(batch.num_rows());
        for rows in tiles(batch.num_rows(), self.micro_batch) {
            self.prepare_chunks(batch, rows, false, false);
            self.phases.prepare += begun.elapsed().as_secs_f64();
            let (mut theta, chunks) = (std::mem::take(&mut self.theta), std::mem::take(&mut self.chunks));
            let engine = self.engine(arithmetic, &mut theta, batch, 0);
            engine.forward(&chunks);
            // SAFETY: nothing is updated here.
            let all = unsafe { engine.pass.theta.get(0..engine.pass.theta.len()) };
            self.pool.install(|| {
                chunks.par_iter().for_each(|chunk| {
                    let state = &mut *lock(chunk);
                    for (i, row) in chunk.rows.clone().enumerate().filter(|(i, _)| state.degenerate[*i]) {
                        state.log_likelihoods[i] = log_values(&self.circuit, all, Row::Of(batch, row)).log_likelihood();
                    }
                });
            });
            out.extend(chunks.iter().flat_map(|chunk| lock(chunk).log_likelihoods[..chunk.rows.len()].to_vec()));
            (self.theta, self.chunks) = (theta, chunks);
            self.note_time();
            begun = Instant::now();
        }
        out
    }

    /// target += gain · flows of a batch.
    pub(super) fn add_batch_flows(&mut self, batch: &Batch, gain: f64, target: usize) -> BatchReport {
        self.settle();
        let mut report = BatchReport { num_rows: batch.num_rows(), weight: batch.total_weight(), ..Default::default() };
        for rows in tiles(batch.num_rows(), self.micro_batch) {
            let micro = MicroBatch { rows, gain, target, keep: 1.0, update: None };
            self.run_micro_batch(batch, &micro, &mut report);
        }
        report
    }

    /// A whole EM step: flows of all micro-batches, and the update fused with those of the last.
    pub(super) fn fused_step(
        &mut self,
        batch: &Batch,
        step: &EmStep,
        target: usize,
        masses: usize,
    ) -> Result<BatchReport> {
        let pieces: Vec<_> = tiles(batch.num_rows(), self.micro_batch).collect();
        if pieces.is_empty() || (pieces.len() > 1 && !self.lazy.is_empty()) {
            return step.by_verbs(self, batch); // a large table is updated from one micro-batch, or like any other table
        }
        if self.lazy_flows != Some(target) {
            self.settle();
            self.lazy_flows = Some(target);
        }
        let mut report = BatchReport { num_rows: batch.num_rows(), weight: batch.total_weight(), ..Default::default() };
        let last = pieces.len() - 1;
        for (i, rows) in pieces.into_iter().enumerate() {
            let keep = if i == 0 { step.keep } else { 1.0 };
            let update = (i == last).then_some((step, masses));
            let micro = MicroBatch { rows, gain: step.gain, target, keep, update };
            let is_updated = self.run_micro_batch(batch, &micro, &mut report);
            if i == last && !is_updated {
                step.update_by_verbs(self)?;
            }
        }
        Ok(report)
    }

    /// Runs one micro-batch. Whether an update was asked for and could be fused with it: not where a row has to be
    /// computed in log space, which reads all parameters, nor where a value of a large table is missing, which touches
    /// all of it.
    fn run_micro_batch(&mut self, batch: &Batch, micro: &MicroBatch<'_>, report: &mut BatchReport) -> bool {
        let marginal = micro.update.is_some_and(|(step, _)| step.sources.needs_top_down());
        let begun = Instant::now();
        self.pack_weights(self.training);
        let lanes = self.prepare_chunks(batch, micro.rows.clone(), true, marginal);
        let mut theta = std::mem::take(&mut self.theta);
        let (mut lazy, mut average) = (std::mem::take(&mut self.lazy), self.average.take());
        let mut target = std::mem::take(&mut self.flows[micro.target]);
        let mut masses = micro.update.map(|(_, at)| std::mem::take(&mut self.rows[at])).unwrap_or_default();
        let mut chunks = std::mem::take(&mut self.chunks);

        let largest_weight = micro.rows.clone().map(|row| batch.weight(row)).fold(0f32, f32::max);
        let largest_flow = (micro.gain * f64::from(largest_weight)).max(1.0);
        let engine = self.engine(self.training, &mut theta, batch, largest_flow.log2().ceil() as i64);
        let shared_target = match &mut target {
            FlowBuffer::Single(flows) => Target::Single(SharedSlice::new(flows)),
            FlowBuffer::Double(flows) => Target::Double(SharedSlice::new(flows)),
        };
        let lagging = match shared_target {
            Target::Single(flows) => Some(Lagging { flows, average: average.as_deref_mut().map(SharedSlice::new) }),
            Target::Double(_) => None,
        };
        // Rows of large tables that this batch touches must be up to date before they are read.
        let mut touched = Vec::new();
        let mut prepared = begun.elapsed();
        if let (Some(_), Some(lagging)) = (micro.update, lagging) {
            touched.extend(lazy.iter().map(|table| SortedRows::of_table(engine.pass, &chunks, table.param)));
            prepared = begun.elapsed();
            for (table, touched) in lazy.iter_mut().zip(&touched) {
                catch_up(engine, lagging, table, touched);
            }
        }

        let root_flow = |row: usize| (micro.gain * f64::from(batch.weight(row))) as f32;
        let is_round_trip = self.schedule.is_released_at_end();
        if is_round_trip {
            let mut rest = &mut chunks[..];
            let lanes = lanes.iter().map(|&len| rest.split_off_mut(..len).expect("as many tiles as lanes have"));
            engine.round_trip(lanes.collect(), root_flow);
        } else {
            engine.forward(&chunks);
        }
        let is_fused = micro.update.is_some()
            && !touched.iter().any(SortedRows::has_missing)
            && !chunks.iter().any(|chunk| lock(chunk).degenerate.contains(&true));
        let fused = match (micro.update, lagging) {
            (Some((step, _)), _) if is_fused => {
                let EmStep { sources, scale, offset, correction: gain, smoothing, .. } = *step;
                Some(Fused { masses: SharedSlice::new(&mut masses), sources, scale, offset, gain, smoothing })
            }
            (Some(_), Some(lagging)) => {
                settle(engine, lagging, &mut lazy);
                None
            }
            _ => None,
        };
        let (pass, keep) = (engine.pass, micro.keep as f32);
        let gather = Gather { pass, chunks: &chunks, tied: &self.schedule.tied, target: shared_target, keep, fused };
        if !is_round_trip {
            engine.backward(gather, root_flow);
        }
        engine.shared_blocks(gather);
        match (gather.fused, lagging) {
            (Some(fused), Some(lagging)) => {
                for (table, touched) in lazy.iter_mut().zip(&touched) {
                    update_large_table(engine, gather, fused, lagging, table, touched);
                }
            }
            _ => self.schedule.large_tables.iter().for_each(|&param| engine.large_table(gather, param)),
        }

        (self.theta, self.lazy, self.average) = (theta, lazy, average);
        self.add_rows(batch, micro, &chunks, &mut target, report);
        self.flows[micro.target] = target;
        if let Some((_, at)) = micro.update {
            self.rows[at] = masses;
        }
        self.chunks = chunks;
        self.is_packed &= !is_fused;
        self.phases.prepare += prepared.as_secs_f64();
        self.note_time();
        is_fused
    }

    /// Adds a micro-batch's rows to a report, after computing those that linear space could not hold.
    fn add_rows(
        &self,
        batch: &Batch,
        micro: &MicroBatch<'_>,
        chunks: &[Chunk],
        target: &mut FlowBuffer,
        report: &mut BatchReport,
    ) {
        for chunk in chunks {
            let state = lock(chunk);
            for (i, row) in chunk.rows.clone().enumerate() {
                let weight = f64::from(batch.weight(row));
                let mut log_likelihood = state.log_likelihoods[i];
                if state.degenerate[i] {
                    report.rescued_rows += 1;
                    let values = log_values(&self.circuit, &self.theta, Row::Of(batch, row));
                    log_likelihood = values.log_likelihood();
                    if log_likelihood > f64::NEG_INFINITY {
                        let (circuit, theta) = (&*self.circuit, &self.theta[..]);
                        let mut flows = RowFlows { circuit, theta, batch, row, into: target };
                        flows.add(&values, micro.gain * weight);
                    }
                }
                if log_likelihood == f64::NEG_INFINITY {
                    report.impossible_rows += 1;
                } else {
                    report.log_likelihood += weight * log_likelihood;
                    report.possible_weight += weight;
                }
            }
        }
    }

    fn engine<'a>(
        &'a self,
        arithmetic: Arithmetic,
        theta: &'a mut [f32],
        batch: &'a Batch,
        flow_bits: i64,
    ) -> Engine<'a> {
        let pass = Pass {
            circuit: &self.circuit,
            plan: &self.plan,
            isa: self.isa,
            arithmetic,
            theta: SharedSlice::new(theta),
            packed: &self.packed,
            batch,
            flow_bits,
        };
        Engine { pass, schedule: &self.schedule, pool: &self.pool, scratch: &self.scratch }
    }

    /// Working memory for some rows, cut into tiles. How many tiles each lane has.
    fn prepare_chunks(&mut self, batch: &Batch, rows: Range<usize>, with_flows: bool, marginal: bool) -> Vec<usize> {
        let is_round_trip = with_flows && self.schedule.is_released_at_end();
        let is_free = !self.schedule.is_released_at_end() && self.schedule.is_free_of_tiles();
        // In a team the other one has a tile while this one has the next.
        let wanted = is_free.then(|| self.pool.current_num_threads() * self.schedule.team);
        let lanes = lanes(rows.len(), &self.plan, is_round_trip, wanted);
        let tiles: Vec<(bool, Range<usize>)> =
            lanes.iter().flat_map(|lane| lane.iter().enumerate().map(|(i, tile)| (i == 0, tile.clone()))).collect();
        let last = tiles.len() - 1;
        // Where tiles follow each other in the same memory, the last of a lane has it, and the first is to get it.
        let mut at = 0;
        for lane in &lanes {
            if is_round_trip && let Some([first, .., last]) = self.chunks.get_mut(at..at + lane.len()) {
                first.take_over(last);
            }
            at += lane.len();
        }
        self.chunks.resize_with(tiles.len(), Chunk::new);
        let (plan, schedule, training) = (&self.plan, &self.schedule, self.training);
        self.pool.install(|| {
            self.chunks.par_iter_mut().zip(tiles).enumerate().for_each(|(i, (chunk, (is_first, tile)))| {
                let tile = rows.start + tile.start..rows.start + tile.end;
                chunk.prepare(plan, batch, tile, marginal && i == last, with_flows);
                if is_first || !is_round_trip {
                    chunk.prepare_values(plan);
                    if with_flows {
                        chunk.prepare_sums(schedule, training);
                    }
                }
            });
        });
        lanes.iter().map(Vec::len).collect()
    }

    /// Packs the weights that several nodes share, if they have changed or were packed for another arithmetic: training
    /// and evaluation take turns of many batches.
    fn pack_weights(&mut self, arithmetic: Arithmetic) {
        if self.is_packed && self.packed_for == arithmetic {
            return;
        }
        (self.is_packed, self.packed_for) = (true, arithmetic);
        let (circuit, theta) = (&self.circuit, &self.theta);
        self.pool.install(|| {
            self.packed.par_iter_mut().zip(circuit.layout().blocks()).for_each(|(packed, layout)| {
                let Some(packed) = packed else { return };
                let (units, cols) = (layout.units(), layout.values_per_row);
                let weights = Matrix::new(&theta[layout.values.clone()], units, cols, cols);
                rayon::join(
                    || packed.forward.pack_transposed(arithmetic, weights),
                    || packed.backward.pack(arithmetic, weights),
                );
            });
        });
    }

    /// Brings all rows of large tables up to date.
    pub(super) fn settle(&mut self) {
        let Some(at) = self.lazy_flows.take() else { return };
        let mut flows = std::mem::take(&mut self.flows[at]);
        let (mut theta, mut lazy) = (std::mem::take(&mut self.theta), std::mem::take(&mut self.lazy));
        let mut average = self.average.take();
        if let FlowBuffer::Single(flows) = &mut flows {
            let batch = Batch::empty();
            let average = average.as_deref_mut().map(SharedSlice::new);
            let lagging = Lagging { flows: SharedSlice::new(flows), average };
            settle(self.engine(self.training, &mut theta, &batch, 0), lagging, &mut lazy);
        }
        (self.theta, self.lazy, self.flows[at], self.average) = (theta, lazy, flows, average);
    }

    /// A copy of the parameters and of a flow buffer, with all rows of large tables up to date.
    pub(super) fn settled(&self, flows: Option<usize>) -> (Vec<f32>, FlowBuffer) {
        let mut theta = self.theta.clone();
        let copy = self.settle_copies(&mut theta, None, flows);
        (theta, copy)
    }

    /// A copy of the averaged parameters, likewise; `None` where there are none.
    pub(super) fn settled_average(&self) -> Option<Vec<f32>> {
        let mut average = self.average.clone()?;
        if self.lazy_flows.is_some() {
            self.settle_copies(&mut self.theta.clone(), Some(&mut average), None);
        }
        Some(average)
    }

    /// Brings copies up to date, and makes one of a flow buffer.
    fn settle_copies(&self, theta: &mut [f32], average: Option<&mut [f32]>, flows: Option<usize>) -> FlowBuffer {
        let mut copy = flows.map(|at| self.flows[at].clone()).unwrap_or_default();
        if let Some(at) = self.lazy_flows {
            let mut momentum = if flows == Some(at) { std::mem::take(&mut copy) } else { self.flows[at].clone() };
            if let FlowBuffer::Single(momentum) = &mut momentum {
                let batch = Batch::empty();
                let mut lazy = self.lazy.clone();
                let average = average.map(SharedSlice::new);
                let lagging = Lagging { flows: SharedSlice::new(momentum), average };
                settle(self.engine(self.training, theta, &batch, 0), lagging, &mut lazy);
            }
            if flows == Some(at) {
                copy = momentum;
            }
        }
        copy
    }

    /// Adds up the clocks of all workers.
    fn note_time(&mut self) {
        let workers = self.scratch.len() as f64;
        for scratch in &mut self.scratch {
            let time = scratch.get_mut().unwrap_or_else(PoisonError::into_inner).clock.take();
            self.phases.forward += time.forward / workers;
            self.phases.backward += time.backward / workers;
            self.phases.flows += time.flows / workers;
            self.phases.update += time.update / workers;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::{CpuOptions, IsaCap};
    use crate::backend::{Backend, FlowPrecision};
    use crate::circuit::{Categorical, Params};
    use crate::query::sample;
    use crate::optim::AnemoneSpec;
    use crate::rng::Rng;
    use crate::structure::{Tying, hmm};

    /// Flows and log-likelihood of a batch, and the parameters after two steps on it, with matrix products by one unit
    /// or another.
    fn trained(tying: Tying, precision: Precision, is_modelled: bool) -> (Vec<f64>, f64, Vec<f32>) {
        // Ragged: 37 units are no multiple of a tile's side, and 50 rows make tiles of 12 and 13, and a marginal one.
        let circuit = Arc::new(hmm(7, 37, Categorical::new(11).unwrap(), tying).unwrap());
        let params = Params::random(&circuit, 4, 3.0).unwrap();
        let batch = sample(&circuit, &params, 50, &mut Rng::new(5)).unwrap();
        // Not beyond vectors: the model is to be held against those.
        let options = CpuOptions { threads: Some(2), isa: IsaCap::Avx512, precision, ..CpuOptions::default() };
        let mut backend = CpuBackend::new(circuit, &params, &options).unwrap();
        if is_modelled {
            backend.training = Arithmetic::model(backend.isa, precision);
        }
        let flows = backend.new_flows(FlowPrecision::Single).unwrap();
        let report = backend.add_flows(&batch, 1.0, flows).unwrap();
        let flows = backend.flows(flows).unwrap().values().to_vec();
        let mut optimizer = AnemoneSpec::default().build(&mut backend).unwrap();
        for _ in 0..2 {
            optimizer.learn(&mut backend, &batch).unwrap();
        }
        (flows, report.log_likelihood, backend.params().unwrap().values().to_vec())
    }

    /// The whole of training through the driver of bf16 tiles: all of it that does not need a machine that has them.
    #[test]
    fn training_on_bf16_tiles_is_training_on_rounded_f32() {
        for (tying, precision) in [Tying::Homogeneous, Tying::Inhomogeneous]
            .into_iter()
            .flat_map(|tying| [Precision::Bf16, Precision::Bf16x3].map(|precision| (tying, precision)))
        {
            let (flows, log_likelihood, params) = trained(tying, precision, true);
            let (want_flows, want_log_likelihood, want_params) = trained(tying, precision, false);
            let what = format!("{tying:?} in {precision}");
            // Products are the same but for the order of their sums, 1e-7; but a last bit may decide how a number of
            // the next product is rounded, 2^-8 or 2^-16 of one term in thousands.
            let tolerance = if precision == Precision::Bf16 { 1e-4 } else { 1e-5 };
            let off = |got: f64, want: f64| (got - want).abs() / want.abs();
            assert!(off(log_likelihood, want_log_likelihood) <= tolerance, "{what}: log-likelihood");
            let total = |values: &[f64]| values.iter().sum::<f64>();
            let apart: Vec<f64> = flows.iter().zip(&want_flows).map(|(got, want)| (got - want).abs()).collect();
            assert!(total(&want_flows) > 0.0 && total(&apart) <= tolerance * total(&want_flows), "{what}: flows");
            assert_eq!(params.len(), want_params.len());
            for (got, want) in params.iter().zip(&want_params) {
                assert!((got - want).abs() <= tolerance as f32, "{what}: {got} is not {want}");
            }
        }
    }
}
