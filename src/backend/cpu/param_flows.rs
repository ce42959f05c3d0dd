//! Gathers the flows of every parameter block over the rows of a micro-batch.
//!
//! Every number has one owner: a task owns some rows of a weight matrix, some categories of a table, or the
//! statistics of an input block, and adds up all uses and all chunks in their order. No atomics, no races, and the
//! same bits for any number of threads. Table flows are gathered by category: occurrences are sorted, so a
//! vocabulary of 50,257 words costs only the words that occur.

use rayon::prelude::*;

use super::buffers::{FlowBuffer, FlowSlice, tiles};
use super::chunk::Chunk;
use super::forward::Pass;
use super::matrix::{Matrix, MatrixMut, multiply};
use crate::circuit::{ParamId, ParamKind};
use crate::plan::{Buffer, Use};

/// Rows of a weight matrix that one task owns.
const WEIGHT_ROWS: usize = 64;

/// About how many occurrences of categories one task gathers.
const OCCURRENCES: usize = 4096;

/// into += flows of all parameters over the chunks.
pub(super) fn add_param_flows(pass: Pass<'_>, chunks: &[Chunk], into: &mut FlowBuffer) {
    let blocks: Vec<Gathered> =
        pass.circuit.param_ids().collect::<Vec<_>>().into_par_iter().map(|id| gather(pass, chunks, id)).collect();
    let tasks = make_tasks(pass, &blocks, into);
    tasks.into_par_iter().for_each_init(Scratch::default, |scratch, task| task.run(pass, chunks, scratch));
}

/// What has to be known of a block before its flows can be shared out.
enum Gathered {
    Weights,
    Table {
        /// (category, which flow row), sorted: a category's occurrences in the order of uses, chunks and rows.
        occurrences: Vec<(u32, FlowRow)>,
        /// Flow of the missing values, per unit; empty if there is none.
        missing: Vec<f64>,
    },
    Statistics,
}

/// Names a row of a flow buffer in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FlowRow {
    usage: u32,
    chunk: u32,
    row: u32,
}

fn gather(pass: Pass<'_>, chunks: &[Chunk], param: ParamId) -> Gathered {
    let distribution = match &pass.circuit.params()[param.index()].kind {
        ParamKind::Sum { .. } => return Gathered::Weights,
        ParamKind::Input(distribution) => distribution,
    };
    if !distribution.is_table() {
        return Gathered::Statistics;
    }
    let units = pass.circuit.params()[param.index()].units;
    let mut occurrences = Vec::new();
    let mut missing = Vec::new();
    for (usage, used) in pass.plan.uses[param.index()].iter().enumerate() {
        let Use::Input { var, flow } = *used else { continue };
        for (c, chunk) in chunks.iter().enumerate() {
            for (row, batch_row) in chunk.rows.clone().enumerate() {
                if pass.batch.is_missing(batch_row, var) {
                    missing.resize(units, 0.0);
                    missing.iter_mut().zip(flow_row(chunk, flow, row)).for_each(|(m, &f)| *m += f64::from(f));
                } else {
                    let category = pass.batch.column(var).category(batch_row);
                    let row = FlowRow { usage: usage as u32, chunk: c as u32, row: row as u32 };
                    occurrences.push((category.expect("check_batch wants integers here"), row));
                }
            }
        }
    }
    occurrences.sort_unstable();
    Gathered::Table { occurrences, missing }
}

fn flow_row(chunk: &Chunk, flow: Buffer, row: usize) -> &[f32] {
    let start = flow.at * chunk.num_rows() + row * flow.units;
    &chunk.flows[start..start + flow.units]
}

/// A part of the flows and what flows into it.
struct Task<'a> {
    param: ParamId,
    kind: TaskKind<'a>,
    into: FlowSlice<'a>,
}

enum TaskKind<'a> {
    /// Rows `first..` of a weight matrix, as many as `rows`.
    Weights {
        first: usize,
        rows: usize,
    },
    /// Categories from `first` on.
    Table {
        first: usize,
        occurrences: &'a [(u32, FlowRow)],
        missing: &'a [f64],
    },
    Statistics,
}

fn make_tasks<'a>(pass: Pass<'_>, blocks: &'a [Gathered], into: &'a mut FlowBuffer) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    let mut rest = into.slice();
    for (param, gathered) in pass.circuit.param_ids().zip(blocks) {
        let layout = pass.circuit.layout().block(param);
        let (units, per_row) = (layout.units(), layout.stats_per_row);
        match gathered {
            Gathered::Weights => {
                for rows in tiles(units, WEIGHT_ROWS) {
                    let into = rest.take(rows.len() * per_row);
                    tasks.push(Task { param, kind: TaskKind::Weights { first: rows.start, rows: rows.len() }, into });
                }
            }
            Gathered::Table { occurrences, missing } => {
                let mut left = &occurrences[..];
                let mut first = 0;
                while first < per_row {
                    // Cut after the category in which the quota is reached; with missing values the rest too has work.
                    let end = left.get(OCCURRENCES).map_or(per_row, |(category, _)| *category as usize + 1);
                    let here = left.partition_point(|(category, _)| (*category as usize) < end);
                    let (mine, others) = left.split_at(here);
                    let kind = TaskKind::Table { first, occurrences: mine, missing };
                    tasks.push(Task { param, kind, into: rest.take((end - first) * units) });
                    (left, first) = (others, end);
                }
            }
            Gathered::Statistics => {
                tasks.push(Task { param, kind: TaskKind::Statistics, into: rest.take(units * per_row) });
            }
        }
    }
    tasks
}

/// Where a task adds up. In double precision beyond a few thousand terms: values of discrete data repeat, so that
/// the rounding of a long sum in single precision does not average out.
#[derive(Default)]
struct Scratch {
    single: Vec<f32>,
    double: Vec<f64>,
}

/// Matrix products, of at most 128 rows each, that are added up in single precision.
const FLUSH: usize = 16;

/// double += single.
fn flush(double: &mut [f64], single: &[f32]) {
    double.iter_mut().zip(single).for_each(|(d, &s)| *d += f64::from(s));
}

impl Task<'_> {
    fn run(mut self, pass: Pass<'_>, chunks: &[Chunk], scratch: &mut Scratch) {
        match self.kind {
            TaskKind::Weights { first, rows } => self.add_weights(pass, chunks, first, rows, scratch),
            TaskKind::Table { first, occurrences, missing } => {
                self.add_table(pass, chunks, first, occurrences, missing, scratch);
            }
            TaskKind::Statistics => self.add_statistics(pass, chunks),
        }
    }

    /// W ⊙ Σ over uses and chunks of Gᵀ·v_panel.
    fn add_weights(&mut self, pass: Pass<'_>, chunks: &[Chunk], first: usize, rows: usize, scratch: &mut Scratch) {
        let cols = pass.circuit.layout().block(self.param).stats_per_row;
        let Scratch { single, double } = scratch;
        single.resize(rows * cols, 0.0);
        double.clear();
        double.resize(rows * cols, 0.0);
        let mut products = 0;
        for used in &pass.plan.uses[self.param.index()] {
            let Use::Sum { gain, panel } = *used else { continue };
            for chunk in chunks {
                let count = chunk.num_rows();
                let gains = &chunk.view(&chunk.values, gain)[first..];
                let values = chunk.view(&chunk.values, panel);
                multiply(
                    MatrixMut::new(&mut single[..rows * cols], rows, cols, cols),
                    products % FLUSH != 0,
                    Matrix::new(gains, count, rows, gain.buffer.units).transposed(),
                    Matrix::new(values, count, cols, panel.buffer.units),
                );
                products += 1;
                if products % FLUSH == 0 {
                    flush(double, single);
                }
            }
        }
        if products % FLUSH != 0 {
            flush(double, single);
        }
        let weights = &pass.block(self.param)[first * cols..(first + rows) * cols];
        self.into.add(0, weights.iter().zip(double.iter()).map(|(&w, s)| f64::from(w) * s));
    }

    /// The flows of a category's occurrences, one segment of the sorted list at a time.
    fn add_table(
        &mut self,
        pass: Pass<'_>,
        chunks: &[Chunk],
        first: usize,
        occurrences: &[(u32, FlowRow)],
        missing: &[f64],
        scratch: &mut Scratch,
    ) {
        let units = pass.circuit.params()[self.param.index()].units;
        for segment in occurrences.chunk_by(|a, b| a.0 == b.0) {
            scratch.double.clear();
            scratch.double.resize(units, 0.0);
            for (_, at) in segment {
                let Use::Input { flow, .. } = pass.plan.uses[self.param.index()][at.usage as usize] else { continue };
                flush(&mut scratch.double, flow_row(&chunks[at.chunk as usize], flow, at.row as usize));
            }
            self.into.add((segment[0].0 as usize - first) * units, scratch.double.iter().copied());
        }
        if !missing.is_empty() {
            let table = &pass.block(self.param)[first * units..];
            for (i, row) in table.chunks_exact(units).take(self.into.len() / units).enumerate() {
                self.into.add(i * units, row.iter().zip(missing).map(|(&p, m)| f64::from(p) * m));
            }
        }
    }

    /// The statistics of inputs that are not tables, in double precision until all rows are in.
    fn add_statistics(&mut self, pass: Pass<'_>, chunks: &[Chunk]) {
        let distribution = pass.circuit.distribution(self.param);
        let layout = pass.circuit.layout().block(self.param);
        let units = layout.units();
        let params: Vec<Vec<f32>> =
            (0..units).map(|u| layout.value_positions(u).map(|i| pass.theta[i]).collect()).collect();
        let mut stats = vec![vec![0.0; layout.stats_per_row]; units];
        for used in &pass.plan.uses[self.param.index()] {
            let Use::Input { var, flow } = *used else { continue };
            for chunk in chunks {
                for (row, batch_row) in chunk.rows.clone().enumerate() {
                    let flows = flow_row(chunk, flow, row);
                    let value =
                        (!pass.batch.is_missing(batch_row, var)).then(|| pass.batch.column(var).real(batch_row));
                    for (unit, &flow) in flows.iter().enumerate().filter(|(_, f)| **f > 0.0) {
                        match value {
                            Some(value) => distribution.add_stats(value, f64::from(flow), &mut stats[unit]),
                            None => distribution.add_expected_stats(&params[unit], f64::from(flow), &mut stats[unit]),
                        }
                    }
                }
            }
        }
        for (unit, stats) in stats.iter().enumerate() {
            for (slot, &stat) in stats.iter().enumerate() {
                self.into.add_one(slot * units + unit, stat);
            }
        }
    }
}
