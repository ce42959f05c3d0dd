//! Flows and update of inputs that are not tables: sufficient statistics, in double precision until all rows are in.

use super::gather::{Gather, MoveRule, Target, flow_row};
use super::scratch::{Phase, Scratch};
use super::update::update_density;
use crate::circuit::{BlockLayout, Distribution, ParamId};
use crate::plan::Use;

/// A whole block.
pub(super) fn run(gather: Gather<'_>, param: ParamId, scratch: &mut Scratch) {
    let pass = gather.pass;
    let distribution = pass.circuit.distribution(param);
    let layout = pass.circuit.layout().block(param);
    let units = layout.units();
    // SAFETY: the block belongs to this task, and every tile is done with it.
    let theta = unsafe { gather.theta.get_mut(layout.values.clone()) };
    let first = layout.values.start;
    let params: Vec<Vec<f32>> =
        (0..units).map(|u| layout.value_positions(u).map(|i| theta[i - first]).collect()).collect();
    let mut stats = vec![vec![0.0; layout.stats_per_row]; units];
    for used in &pass.plan.uses[param.index()] {
        let Use::Input { var, flow } = *used else { continue };
        for tile in gather.tiles {
            for row in 0..tile.rows.len() {
                // SAFETY: every tile is done with the nodes that use the block, so their flows are final.
                let flows = unsafe { flow_row(tile, flow, row) };
                let value = tile.real(pass.batch, row, var);
                for (unit, &flow) in flows.iter().enumerate().filter(|(_, f)| **f > 0.0) {
                    match value {
                        Some(value) => distribution.add_stats(value, f64::from(flow), &mut stats[unit]),
                        None => distribution.add_expected_stats(&params[unit], f64::from(flow), &mut stats[unit]),
                    }
                }
            }
        }
    }
    let cells = stats
        .iter()
        .enumerate()
        .flat_map(|(unit, stats)| stats.iter().enumerate().map(move |(slot, &stat)| (slot * units + unit, stat)));
    match gather.target {
        Target::Double(target) => {
            // SAFETY: the block's flows belong to this task: a shared block has one (`Engine::shared_blocks`).
            let flows = unsafe { target.get_mut(layout.stats.clone()) };
            cells.for_each(|(at, stat)| flows[at] += stat);
        }
        Target::Single(target) => {
            // SAFETY: the block's flows belong to this task: a shared block has one (`Engine::shared_blocks`).
            let flows = unsafe { target.get_mut(layout.stats.clone()) };
            add(flows, gather.keep, cells);
            scratch.clock.lap(Phase::Flows);
            let Some(fused) = gather.fused else { return };
            gather.top_down(param, &mut scratch.top_down);
            // SAFETY: the masses of the block's rows belong to this task.
            let masses = unsafe { fused.masses.get_mut(layout.rows.clone()) };
            update(fused.rule, layout, distribution, theta, flows, masses, &scratch.top_down);
            scratch.clock.lap(Phase::Update);
        }
    }
}

/// flows = keep·flows + some statistics.
pub(super) fn add(flows: &mut [f32], keep: f32, cells: impl Iterator<Item = (usize, f64)>) {
    // Statistics may be negative: nothing is dropped, but a keep of 0 clears.
    let kept = |flow: f32| if keep == 0.0 { 0.0 } else { f64::from(keep * flow) };
    cells.for_each(|(at, stat)| flows[at] = (kept(flows[at]) + stat) as f32);
}

/// Masses and update of a block whose flows are in.
pub(super) fn update(
    rule: MoveRule,
    layout: &BlockLayout,
    distribution: &dyn Distribution,
    theta: &mut [f32],
    flows: &[f32],
    masses: &mut [f64],
    top_down: &[f64],
) {
    for (unit, mass) in masses.iter_mut().enumerate() {
        let stats: Vec<f64> = flows.iter().skip(unit).step_by(layout.units()).map(|&f| f64::from(f)).collect();
        *mass = distribution.mass(&stats);
    }
    // No offset: densities are not smoothed.
    let retain = |unit: usize| rule.scale * rule.retained_of_input(masses[unit], top_down[unit]);
    update_density(theta, flows, &retain, layout, distribution, rule.gain, rule.smoothing);
}
