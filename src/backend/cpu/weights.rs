//! Flows and update of weight matrices: W ⊙ Σ over uses and tiles of Gᵀ·v_panel.

use super::gather::{Gather, Target, kept};
use super::kernels::multiversion;
use super::kernels::product::Matrix;
use super::scratch::{Phase, Scratch};
use super::stages::ParamTask;
use super::update::Coefficients;
use crate::plan::Use;

/// Rows that are multiplied at once.
const DEPTH: usize = 256;

/// Some rows of a block that one node uses.
pub(super) fn run(gather: Gather<'_>, task: &ParamTask, scratch: &mut Scratch) {
    let layout = gather.pass.circuit.layout().block(task.param);
    let (rows, cols) = (task.rows.len(), layout.stats_per_row);
    let [Use::Sum { gain, panel, .. }] = gather.pass.plan.uses[task.param.index()][..] else {
        unreachable!("only blocks of one use are released")
    };
    let arithmetic = gather.pass.arithmetic;
    scratch.sums.prepare(arithmetic, rows, cols, DEPTH);
    for tile in gather.tiles.iter().filter(|tile| !tile.rows.is_empty()) {
        // SAFETY: every tile has passed this node, so G and the panel are final.
        let (gains, values) = unsafe { (tile.values.get(tile.view(gain)), tile.values.get(tile.view(panel))) };
        let gains = Matrix::new(&gains[task.rows.start..], tile.rows.len(), rows, gain.buffer.units);
        let values = Matrix::new(values, tile.rows.len(), cols, panel.buffer.units);
        scratch.sums.add(arithmetic, gains, values, &mut scratch.flow);
    }
    scratch.sums.finish(arithmetic, &mut scratch.flow);
    scratch.single.resize(rows * cols, 0.0);
    scratch.sums.write(0..rows, &mut scratch.single);
    scratch.clock.lap(Phase::Flows);
    let Scratch { single, clock, top_down, .. } = scratch;
    apply(gather, task, single, top_down);
    clock.lap(Phase::Update);
}

/// Adds W ⊙ sums to the flows of some rows and, in a fused step, updates them. `sums` holds these rows only.
pub(super) fn apply(gather: Gather<'_>, task: &ParamTask, sums: &[f32], top_down: &mut Vec<f64>) {
    let layout = gather.pass.circuit.layout().block(task.param);
    let cols = layout.stats_per_row;
    let part = |start: usize| start + task.rows.start * cols..start + task.rows.end * cols;
    // SAFETY: a row is in one task only (`pieces` in `Stages`, `Engine::shared_blocks`), and tasks run after every
    // tile has passed the nodes that use the block (rule 2 of `turns`, or the end of the pass).
    let theta = unsafe { gather.theta.get_mut(part(layout.values.start)) };
    match gather.target {
        Target::Double(target) => {
            // SAFETY: the flows of these rows belong to this task, as the rows do.
            let flows = unsafe { target.get_mut(part(layout.stats.start)) };
            add_double(gather.pass.isa, theta, flows, sums);
        }
        Target::Single(target) => {
            // SAFETY: the flows of these rows belong to this task, as the rows do.
            let flows = unsafe { target.get_mut(part(layout.stats.start)) };
            let Some(fused) = gather.fused else {
                return add_single(gather.pass.isa, theta, flows, sums, gather.keep);
            };
            gather.top_down(task.param, top_down);
            // SAFETY: the masses of these rows belong to this task.
            let masses =
                unsafe { fused.masses.get_mut(layout.rows.start + task.rows.start..layout.rows.start + task.rows.end) };
            let mut move_row = |row: usize, theta: f64, flows: f64| {
                masses[row] = flows;
                fused.rule.of_weights(theta, flows, top_down[task.rows.start + row], cols)
            };
            add_and_move(gather.pass.isa, theta, flows, sums, gather.keep, cols, &mut move_row);
        }
    }
}

/// Given a row's number, the sum of its parameters and the sum of its flows: how it moves, if it does.
type MoveRow<'a> = dyn FnMut(usize, f64, f64) -> Option<Coefficients> + 'a;

multiversion! {
    /// flows += θ·sums.
    fn add_double(theta: &[f32], flows: &mut [f64], sums: &[f32]) = add_double_body;
    /// flows = keep·flows + θ·sums.
    fn add_single(theta: &[f32], flows: &mut [f32], sums: &[f32], keep: f32) = add_single_body;
    /// The same, row by row, and the update of each row while it is in the first cache.
    fn add_and_move(
        theta: &mut [f32], flows: &mut [f32], sums: &[f32], keep: f32, cols: usize, move_row: &mut MoveRow<'_>,
    ) = add_and_move_body::<true>;
    /// The same with flows = keep·flows + given.
    pub(super) fn add_given_and_move(
        theta: &mut [f32], flows: &mut [f32], given: &[f32], keep: f32, cols: usize, move_row: &mut MoveRow<'_>,
    ) = add_and_move_body::<false>;
}

#[inline(always)]
fn add_double_body(theta: &[f32], flows: &mut [f64], sums: &[f32]) {
    for ((f, &p), &s) in flows.iter_mut().zip(theta).zip(sums) {
        *f += f64::from(p) * f64::from(s);
    }
}

#[inline(always)]
fn add_single_body(theta: &[f32], flows: &mut [f32], sums: &[f32], keep: f32) {
    for ((f, &p), &s) in flows.iter_mut().zip(theta).zip(sums) {
        *f = kept(keep, *f) + p * s;
    }
}

/// Partial sums that run side by side: fast, accurate, and always in the same order.
const PARTIALS: usize = 32;

/// What is added to a flow is θ·sums if `WEIGHTED`, and sums as they are if not.
#[inline(always)]
fn add_and_move_body<const WEIGHTED: bool>(
    theta: &mut [f32],
    flows: &mut [f32],
    sums: &[f32],
    keep: f32,
    cols: usize,
    move_row: &mut MoveRow<'_>,
) {
    let rows = theta.chunks_exact_mut(cols).zip(flows.chunks_exact_mut(cols)).zip(sums.chunks_exact(cols));
    for (row, ((theta, flows), sums)) in rows.enumerate() {
        let (mut theta_partials, mut flow_partials) = ([0f32; PARTIALS], [0f32; PARTIALS]);
        let mut add = |theta: &[f32], flows: &mut [f32], sums: &[f32]| {
            let partials = theta_partials.iter_mut().zip(&mut flow_partials);
            for (((f, &p), &s), (theta_partial, flow_partial)) in flows.iter_mut().zip(theta).zip(sums).zip(partials) {
                *f = kept(keep, *f) + if WEIGHTED { p * s } else { s };
                *theta_partial += p;
                *flow_partial += *f;
            }
        };
        let mut at = 0;
        while at + PARTIALS <= cols {
            add(&theta[at..at + PARTIALS], &mut flows[at..at + PARTIALS], &sums[at..at + PARTIALS]);
            at += PARTIALS;
        }
        add(&theta[at..], &mut flows[at..], &sums[at..]);
        let total = |partials: &[f32; PARTIALS]| partials.iter().map(|&x| f64::from(x)).sum::<f64>();
        if let Some(coefficients) = move_row(row, total(&theta_partials), total(&flow_partials)) {
            coefficients.apply(theta, flows);
        }
    }
}
