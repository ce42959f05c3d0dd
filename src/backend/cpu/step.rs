//! The E-step, alone or fused with the M-step, over the micro-batches of a batch.

use std::ops::Range;
use std::time::Instant;

use rayon::prelude::*;

use super::CpuBackend;
use super::buffers::FlowBuffer;
use super::engine::{Engine, lock};
use super::fixed::Fixed;
use super::gather::{Fused, Gather, MoveRule, Target};
use super::large_tables::{Lagging, catch_up, settle, update_large_table};
use super::log_space::RowFlows;
use super::moving::{Settled, Unsettled};
use super::shared::{ReadOnly, SharedSlice};
use super::tables::SortedRows;
use super::tile::{Tile, TileState, lanes};
use super::workers::Workers;
use crate::backend::micro_batch::{MicroBatch, MicroBatches, pieces};
use crate::backend::{BatchReport, EmStep};
use crate::circuit::Circuit;
use crate::circuit::log_values::{Row, log_values};
use crate::data::Batch;
use crate::error::Result;

/// Where flows of a batch go: a buffer, and, for an update fused with them, the buffer of their row masses.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct FlowTarget {
    pub flows: usize,
    pub masses: Option<usize>,
}

/// Which parameters an evaluation is of: those that are learned, or their average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Theta,
    Average,
}

impl CpuBackend {
    /// log p of every row, under the parameters or their average; under the parameters where no average is kept.
    pub(super) fn evaluate(&mut self, batch: &Batch, which: Which) -> Vec<f64> {
        let arithmetic = self.fixed.evaluation();
        let Self { fixed, workers, moving, packed, tiles, phases, .. } = self;
        let Settled { theta, average, .. } = moving.settled(fixed, workers);
        let mut begun = Instant::now();
        let theta = match (which, average) {
            (Which::Average, Some(average)) => {
                packed.forget();
                &average[..]
            }
            _ => &theta[..],
        };
        packed.pack(fixed, workers, arithmetic, theta);
        let mut out = Vec::with_capacity(batch.num_rows());
        for rows in pieces(batch.num_rows(), fixed.micro_batch) {
            prepare_tiles(fixed, workers, tiles, batch, rows, None);
            phases.prepare += begun.elapsed().as_secs_f64();
            let pass = fixed.pass(arithmetic, ReadOnly::new(theta), &packed.blocks, batch, 0);
            Engine { pass, stages: &fixed.stages, workers }.forward(tiles);
            workers.install(|| {
                tiles.par_iter().for_each(|tile| rescue(&fixed.circuit, theta, batch, tile, &mut lock(tile)));
            });
            out.extend(tiles.iter().flat_map(|tile| lock(tile).log_likelihoods[..tile.rows.len()].to_vec()));
            phases.add(&workers.take_time());
            begun = Instant::now();
        }
        if which == Which::Average {
            packed.forget(); // what comes next is asked of θ
        }
        out
    }

    /// target += gain · flows of a batch.
    pub(super) fn add_batch_flows(&mut self, batch: &Batch, gain: f64, target: usize) -> Result<BatchReport> {
        // Of θ those rows are brought up to date that the batch touches.
        self.moving.flows_of(target, &self.fixed, &self.workers);
        self.add_flows_of(batch, self.fixed.micro_batch, gain, FlowTarget { flows: target, masses: None })
    }

    /// A whole EM step: flows of all micro-batches, and the update fused with those of the last.
    pub(super) fn fused_step(
        &mut self,
        batch: &Batch,
        step: &EmStep,
        target: usize,
        masses: usize,
    ) -> Result<BatchReport> {
        let most = self.fixed.micro_batch;
        if batch.num_rows() == 0 || (batch.num_rows() > most && self.moving.has_large_tables()) {
            return step.by_verbs(self, batch); // a large table is updated from one micro-batch, or like any other table
        }
        self.moving.let_lag_in(target, &self.fixed, &self.workers);
        self.step_on(batch, most, step, FlowTarget { flows: target, masses: Some(masses) })
    }
}

impl MicroBatches for CpuBackend {
    type Target = FlowTarget;

    /// An update is not fused either where a value of a large table is missing, which touches all of it.
    fn run_micro_batch(
        &mut self,
        batch: &Batch,
        micro: &MicroBatch<'_, FlowTarget>,
        report: &mut BatchReport,
    ) -> Result<bool> {
        let marginal = micro.needs_top_down();
        let update = micro.step.zip(micro.target.masses);
        let begun = Instant::now();
        let Self { fixed, workers, moving, packed, rows: masses, tiles, phases, .. } = self;
        let (fixed, workers) = (&**fixed, &**workers);
        let Unsettled { theta, average, flows, tables: lazy, momentum: lagging_flows } = moving.unsettled();
        packed.pack(fixed, workers, fixed.training, theta);
        let lanes = prepare_tiles(fixed, workers, tiles, batch, micro.rows.clone(), Some(WithFlows { marginal }));
        let (target, momentum) = with_momentum(flows, micro.target.flows, lagging_flows);

        let shared_theta = SharedSlice::new(theta);
        let flow_bits = micro.flow_bits(batch);
        let pass = fixed.pass(fixed.training, shared_theta.read_only(), &packed.blocks, batch, flow_bits);
        let engine = Engine { pass, stages: &fixed.stages, workers };
        let shared_target = match target {
            FlowBuffer::Single(flows) => Target::Single(SharedSlice::new(flows)),
            FlowBuffer::Double(flows) => Target::Double(SharedSlice::new(flows)),
        };
        let average = average.map(SharedSlice::new);
        let lagging = match shared_target {
            Target::Single(flows) => Some(Lagging { theta: shared_theta, flows, average }),
            Target::Double(_) => None,
        };
        // Rows of large tables that this batch touches must be up to date before they are read.
        let touched: Vec<_> = lazy.iter().map(|table| SortedRows::of_table(pass, tiles, table.param)).collect();
        let prepared = begun.elapsed();
        if let (Some(_), Some(lagging)) = (update, lagging) {
            for (table, touched) in lazy.iter_mut().zip(&touched) {
                catch_up(fixed, workers, lagging, table, |category| touched.has(category));
            }
        } else if let Some(FlowBuffer::Single(momentum)) = momentum {
            let lagging = Lagging { theta: shared_theta, flows: SharedSlice::new(momentum), average };
            for (table, touched) in lazy.iter_mut().zip(&touched) {
                let is_touched = |category| touched.has_missing() || touched.has(category);
                catch_up(fixed, workers, lagging, table, is_touched);
            }
        }

        let root_flow = |row: usize| (micro.gain * f64::from(batch.weight(row))) as f32;
        let is_round_trip = fixed.stages.is_released_at_end();
        if is_round_trip {
            let mut rest = &mut tiles[..];
            let lanes = lanes.iter().map(|&len| rest.split_off_mut(..len).expect("as many tiles as lanes have"));
            engine.round_trip(lanes.collect(), root_flow);
        } else {
            engine.forward(tiles);
        }
        let is_fused = update.is_some()
            && !touched.iter().any(SortedRows::has_missing)
            && !tiles.iter().any(|tile| lock(tile).degenerate.contains(&true));
        let fused = match (update, lagging) {
            (Some((step, at)), _) if is_fused => {
                Some(Fused { masses: SharedSlice::new(&mut masses[at]), rule: MoveRule::of(step) })
            }
            (Some(_), Some(lagging)) => {
                settle(fixed, workers, lagging, lazy);
                None
            }
            _ => None,
        };
        let gather = Gather {
            pass,
            tiles,
            theta: shared_theta,
            tied: &fixed.stages.tied,
            target: shared_target,
            keep: micro.keep as f32,
            fused,
        };
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
            _ => lazy.iter().zip(&touched).for_each(|(table, sorted)| engine.large_table(gather, table.param, sorted)),
        }

        let mut rows = FinishedRows { circuit: &fixed.circuit, theta, batch, gain: micro.gain, into: target, report };
        tiles.iter().for_each(|tile| rows.add(tile));
        if is_fused {
            packed.forget();
        }
        phases.prepare += prepared.as_secs_f64();
        phases.add(&workers.take_time());
        Ok(is_fused)
    }
}

/// The buffer that flows go to, and the one whose momentum rows of large tables lag in, if that is another.
fn with_momentum(
    flows: &mut [FlowBuffer],
    target: usize,
    lazy: Option<usize>,
) -> (&mut FlowBuffer, Option<&mut FlowBuffer>) {
    match lazy.filter(|&lazy| lazy != target) {
        Some(lazy) => {
            let [target, momentum] = flows.get_disjoint_mut([target, lazy]).expect("two buffers of this backend");
            (target, Some(momentum))
        }
        None => (&mut flows[target], None),
    }
}

/// Where finished rows of a micro-batch go: log-likelihoods into a report, and flows of those that linear space could
/// not hold into a buffer.
struct FinishedRows<'a> {
    circuit: &'a Circuit,
    theta: &'a [f32],
    batch: &'a Batch,
    gain: f64,
    into: &'a mut FlowBuffer,
    report: &'a mut BatchReport,
}

impl FinishedRows<'_> {
    fn add(&mut self, tile: &Tile) {
        let Self { circuit, theta, batch, gain, .. } = *self;
        let state = lock(tile);
        for (i, row) in tile.rows.clone().enumerate() {
            let weight = f64::from(batch.weight(row));
            let mut log_likelihood = state.log_likelihoods[i];
            if state.degenerate[i] {
                self.report.rescued_rows += 1;
                let values = log_values(circuit, theta, Row::Of(batch, row));
                log_likelihood = values.log_likelihood();
                if log_likelihood > f64::NEG_INFINITY {
                    RowFlows { circuit, theta, batch, row, into: self.into }.add(&values, gain * weight);
                }
            }
            self.report.add_row(weight, log_likelihood);
        }
    }
}

/// Computes the rows of a tile in log space that linear space could not hold, once its forward pass is over.
pub(super) fn rescue(circuit: &Circuit, theta: &[f32], batch: &Batch, tile: &Tile, state: &mut TileState) {
    for (i, row) in tile.rows.clone().enumerate().filter(|(i, _)| state.degenerate[*i]) {
        state.log_likelihoods[i] = log_values(circuit, theta, Row::Of(batch, row)).log_likelihood();
    }
}

/// Says that flows are wanted, and whether of a row as well in which every variable is missing.
#[derive(Clone, Copy)]
struct WithFlows {
    marginal: bool,
}

/// Working memory for some rows, cut into tiles. Returns how many tiles each lane has.
fn prepare_tiles(
    fixed: &Fixed,
    workers: &Workers,
    tiles: &mut Vec<Tile>,
    batch: &Batch,
    rows: Range<usize>,
    flows: Option<WithFlows>,
) -> Vec<usize> {
    let Fixed { plan, stages, training, .. } = fixed;
    let is_round_trip = flows.is_some() && stages.is_released_at_end();
    let is_free = !stages.is_released_at_end() && stages.is_free_of_tiles();
    // In a team the other one has a tile while this one has the next.
    let wanted = is_free.then(|| workers.count() * stages.team);
    let lanes = lanes(rows.len(), plan, is_round_trip, wanted);
    let cuts: Vec<(bool, Range<usize>)> =
        lanes.iter().flat_map(|lane| lane.iter().enumerate().map(|(i, cut)| (i == 0, cut.clone()))).collect();
    let last = cuts.len() - 1;
    // Where tiles follow each other in the same memory, the last of a lane has it, and the first is to get it.
    let mut at = 0;
    for lane in &lanes {
        if is_round_trip && let Some([first, .., last]) = tiles.get_mut(at..at + lane.len()) {
            first.take_over(last);
        }
        at += lane.len();
    }
    tiles.resize_with(cuts.len(), Tile::new);
    workers.install(|| {
        tiles.par_iter_mut().zip(cuts).enumerate().for_each(|(i, (tile, (is_first, cut)))| {
            let cut = rows.start + cut.start..rows.start + cut.end;
            let marginal = flows.is_some_and(|flows| flows.marginal) && i == last;
            tile.prepare(plan, batch, cut, marginal, flows.is_some());
            if is_first || !is_round_trip {
                tile.prepare_values(plan);
                if flows.is_some() {
                    tile.prepare_sums(stages, *training);
                }
            }
        });
    });
    lanes.iter().map(Vec::len).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::kernels::Arithmetic;
    use crate::backend::cpu::{CpuOptions, IsaCap, Precision};
    use crate::backend::{Backend, FlowPrecision};
    use crate::circuit::{Categorical, Params};
    use crate::optim::AnemoneSpec;
    use crate::query::sample;
    use crate::rng::Rng;
    use crate::structure::{Tying, hmm_with};

    /// Flows and log-likelihood of a batch, and the parameters after two steps on it, with matrix products by one unit
    /// or another.
    fn trained(tying: Tying, precision: Precision, is_modelled: bool) -> (Vec<f64>, f64, Vec<f32>) {
        // Ragged: 37 units are no multiple of a tile's side, and 50 rows make tiles of 12 and 13, and a marginal one.
        let circuit = Arc::new(hmm_with(7, 37, Categorical::new(11).unwrap(), tying).unwrap());
        let params = Params::random(&circuit, 4, 3.0).unwrap();
        let batch = sample(&circuit, &params, 50, &mut Rng::new(5)).unwrap();
        // Not beyond vectors: the model is to be held against those.
        let options = CpuOptions { threads: Some(2), isa: IsaCap::Avx512, precision, ..CpuOptions::default() };
        let mut backend = CpuBackend::new(circuit, &params, &options).unwrap();
        if is_modelled {
            let fixed = Arc::get_mut(&mut backend.fixed).expect("nobody else has it");
            fixed.training = Arithmetic::model(fixed.isa, precision);
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
