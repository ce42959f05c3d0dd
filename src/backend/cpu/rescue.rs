//! The slow, sure way: one row in log space and double precision.
//!
//! Rows that scaled linear space cannot hold (`scaled`) come here: plain recursion over the circuit, which also decides
//! what is truly impossible. `renormalize` uses it for the partition functions of all nodes.

use super::buffers::FlowBuffer;
use super::forward::Pass;
use crate::circuit::{Circuit, NodeKind, ParamId, SumGroup};
use crate::data::Batch;

/// Flows below this part of a row's flow are not followed further.
const NEGLIGIBLE: f64 = 1e-30;

/// What is evaluated.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    /// A row of a batch.
    Of(&'a Batch, usize),
    /// Every variable missing, at a circuit that need not be normalised: the value of an input unit is its mass, one
    /// number per param row.
    Masses(&'a [f64]),
}

/// log p of every unit of every node, for one row.
pub(super) struct LogValues {
    /// By node, then unit.
    pub nodes: Vec<Vec<f64>>,
}

impl LogValues {
    pub fn log_likelihood(&self) -> f64 {
        self.nodes.last().expect("a circuit has a root")[0]
    }
}

/// Evaluates one row.
pub(super) fn log_values(circuit: &Circuit, theta: &[f32], row: Row<'_>) -> LogValues {
    let mut nodes: Vec<Vec<f64>> = Vec::with_capacity(circuit.nodes().len());
    for node in circuit.nodes() {
        let values = match &node.kind {
            NodeKind::Input { var, param } => input_values(circuit, theta, row, *var, *param),
            NodeKind::Product { factors } => {
                let mut values = vec![0.0; node.units];
                for factor in factors {
                    let child = &nodes[factor.node.index()];
                    for (k, value) in values.iter_mut().enumerate() {
                        *value += child[factor.map.as_ref().map_or(k, |map| map[k] as usize)];
                    }
                }
                values
            }
            NodeKind::Sum { groups } => {
                let mut values = Vec::with_capacity(node.units);
                for group in groups {
                    let panel = panel(&nodes, group);
                    let top = panel.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let linear: Vec<f64> = panel.iter().map(|v| (v - top).exp()).collect();
                    let weights = &theta[circuit.layout().block(group.param).values.clone()];
                    let weights = weights.chunks_exact(panel.len());
                    values.extend(weights.map(|weights| log_mix(weights, &panel, &linear, top)));
                }
                values
            }
        };
        nodes.push(values);
    }
    LogValues { nodes }
}

fn input_values(circuit: &Circuit, theta: &[f32], row: Row<'_>, var: usize, param: ParamId) -> Vec<f64> {
    let block = circuit.layout().block(param);
    let units = block.units();
    let (batch, row) = match row {
        Row::Masses(masses) => return masses[block.rows.clone()].iter().map(|m| m.ln()).collect(),
        Row::Of(batch, row) if batch.is_missing(row, var) => return vec![0.0; units],
        Row::Of(batch, row) => (batch, row),
    };
    let value = batch.column(var).real(row);
    let distribution = circuit.distribution(param);
    if distribution.is_table() {
        let start = block.values.start + value as usize * units;
        return theta[start..start + units].iter().map(|&p| f64::from(p).ln()).collect();
    }
    let params = |unit| -> Vec<f32> { block.value_positions(unit).map(|i| theta[i]).collect() };
    (0..units).map(|unit| distribution.log_prob(&params(unit), value)).collect()
}

/// The children's log-values side by side.
pub(super) fn panel(nodes: &[Vec<f64>], group: &SumGroup) -> Vec<f64> {
    group.children.iter().flat_map(|c| &nodes[c.node.index()][c.start..c.start + c.units]).copied().collect()
}

/// log Σ w·exp(v). In linear space where that is safe, term by term where all large values have tiny weights.
fn log_mix(weights: &[f32], panel: &[f64], linear: &[f64], top: f64) -> f64 {
    if top == f64::NEG_INFINITY {
        return top;
    }
    let mixed: f64 = weights.iter().zip(linear).map(|(&w, x)| f64::from(w) * x).sum();
    if mixed > 1e-200 {
        return top + mixed.ln();
    }
    let terms = || weights.iter().zip(panel).filter(|(w, _)| **w > 0.0).map(|(&w, v)| f64::from(w).ln() + v);
    let top = terms().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + terms().map(|t| (t - top).exp()).sum::<f64>().ln() }
}

/// into += flow times the flows of one row, whose probability is not zero.
pub(super) fn add_flows(pass: Pass<'_>, row: usize, values: &LogValues, flow: f64, into: &mut FlowBuffer) {
    let Pass { circuit, batch, .. } = pass;
    let mut flows: Vec<Vec<f64>> = circuit.nodes().iter().map(|node| vec![0.0; node.units]).collect();
    flows[circuit.root().index()][0] = flow;
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let own = std::mem::take(&mut flows[i]);
        match &node.kind {
            NodeKind::Input { var, param } => {
                let (distribution, layout) = (circuit.distribution(*param), circuit.layout().block(*param));
                let missing = batch.is_missing(row, *var);
                let mut stats = vec![0.0; layout.stats_per_row];
                for (unit, &flow) in own.iter().enumerate().filter(|(_, f)| **f > 0.0) {
                    if distribution.is_table() && !missing {
                        let category = batch.column(*var).real(row) as usize;
                        into.add(layout.stats.start + category * node.units + unit, flow);
                        continue;
                    }
                    stats.fill(0.0);
                    if missing {
                        let params: Vec<f32> = layout.value_positions(unit).map(|i| pass.theta[i]).collect();
                        distribution.add_expected_stats(&params, flow, &mut stats);
                    } else {
                        distribution.add_stats(batch.column(*var).real(row), flow, &mut stats);
                    }
                    layout.stat_positions(unit).zip(&stats).for_each(|(at, &stat)| into.add(at, stat));
                }
            }
            NodeKind::Product { factors } => {
                for factor in factors {
                    for (k, flow) in own.iter().enumerate() {
                        flows[factor.node.index()][factor.map.as_ref().map_or(k, |map| map[k] as usize)] += flow;
                    }
                }
            }
            NodeKind::Sum { groups } => {
                let mut unit = 0;
                for group in groups {
                    let layout = circuit.layout().block(group.param);
                    let panel = panel(&values.nodes, group);
                    let mut panel_flow = vec![0.0; panel.len()];
                    for (r, weights) in pass.block(group.param).chunks_exact(panel.len()).enumerate() {
                        let (own, value) = (own[unit], values.nodes[i][unit]);
                        unit += 1;
                        if own <= NEGLIGIBLE * flow || value == f64::NEG_INFINITY {
                            continue;
                        }
                        // F(n,c) = F(n)·θ·p_c/p_n
                        for (c, (&weight, v)) in weights.iter().zip(&panel).enumerate() {
                            let edge = own * f64::from(weight) * (v - value).exp();
                            if edge > 0.0 {
                                into.add(layout.stats.start + r * panel.len() + c, edge);
                                panel_flow[c] += edge;
                            }
                        }
                    }
                    scatter(group, &panel_flow, &mut flows);
                }
            }
        }
    }
}

/// Gives a panel's flow back to the children it was gathered from.
pub(super) fn scatter(group: &SumGroup, panel_flow: &[f64], flows: &mut [Vec<f64>]) {
    let mut at = 0;
    for child in &group.children {
        let into = &mut flows[child.node.index()][child.start..child.start + child.units];
        into.iter_mut().zip(&panel_flow[at..]).for_each(|(f, p)| *f += p);
        at += child.units;
    }
}
