//! The slow, sure way: one row in log space and double precision.
//!
//! Rows that scaled linear space cannot hold (`scaled`) come here: plain recursion over the circuit, which also decides
//! what is truly impossible. `renormalize` uses it for the partition functions of all nodes.

use super::buffers::FlowBuffer;
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
    nodes: Vec<Vec<f64>>,
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
                    let near = Near::new(&panel);
                    let weights = &theta[circuit.layout().block(group.param).values.clone()];
                    let weights = weights.chunks_exact(panel.len());
                    values.extend(weights.map(|weights| log_mix(weights, &panel, &near)));
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
fn panel(nodes: &[Vec<f64>], group: &SumGroup) -> Vec<f64> {
    group.children.iter().flat_map(|c| &nodes[c.node.index()][c.start..c.start + c.units]).copied().collect()
}

/// log Σ w·exp(v). In linear space where that is safe, term by term where all large values have tiny weights.
fn log_mix(weights: &[f32], panel: &[f64], near: &Near) -> f64 {
    let top = near.top;
    if top == f64::NEG_INFINITY {
        return top;
    }
    let mixed: f64 = weights.iter().zip(&near.linear).map(|(&w, x)| f64::from(w) * x).sum();
    if mixed > 1e-200 {
        return top + mixed.ln();
    }
    let terms = || weights.iter().zip(panel).filter(|(w, _)| **w > 0.0).map(|(&w, v)| f64::from(w).ln() + v);
    let top = terms().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + terms().map(|t| (t - top).exp()).sum::<f64>().ln() }
}

/// Takes what flows down a circuit.
pub(super) trait FlowSink {
    /// Flow of the weight at `position` in a block.
    fn edge(&mut self, param: ParamId, position: usize, flow: f64);

    /// Flow of the units of an input.
    fn input(&mut self, var: usize, param: ParamId, flows: &[f64]);
}

/// Sends `flow` down from the root: F(n,c) = F(n)·θ·p_c/p_n. Units with less than `negligible` are not followed.
pub(super) fn flow_down(
    circuit: &Circuit,
    theta: &[f32],
    values: &LogValues,
    flow: f64,
    negligible: f64,
    sink: &mut impl FlowSink,
) {
    let mut flows: Vec<Vec<f64>> = circuit.nodes().iter().map(|node| vec![0.0; node.units]).collect();
    flows[circuit.root().index()][0] = flow;
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let own = std::mem::take(&mut flows[i]);
        match &node.kind {
            NodeKind::Input { var, param } => sink.input(*var, *param, &own),
            NodeKind::Product { factors } => {
                for factor in factors {
                    for (k, flow) in own.iter().enumerate() {
                        flows[factor.node.index()][factor.map.as_ref().map_or(k, |map| map[k] as usize)] += flow;
                    }
                }
            }
            NodeKind::Sum { groups } => {
                let mut start = 0;
                for group in groups {
                    let block = circuit.layout().block(group.param);
                    let panel = panel(&values.nodes, group);
                    let units = own[start..].iter().zip(&values.nodes[i][start..]);
                    let weights = theta[block.values.clone()].chunks_exact(panel.len());
                    let mut panel_flow = vec![0.0; panel.len()];
                    let mut shares = vec![0.0; panel.len()];
                    let near = Near::new(&panel);
                    for (unit, ((&own, &value), weights)) in units.zip(weights).enumerate() {
                        if own <= negligible || value == f64::NEG_INFINITY {
                            continue;
                        }
                        near.shares(&panel, weights, value, &mut shares);
                        for (c, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                            sink.edge(group.param, unit * panel.len() + c, own * share);
                            panel_flow[c] += own * share;
                        }
                    }
                    start += block.units();
                    scatter(group, &panel_flow, &mut flows);
                }
            }
        }
    }
}

/// exp(panel − top): one exponential per child serves all units whose own value is not too far below the top.
struct Near {
    top: f64,
    linear: Vec<f64>,
}

impl Near {
    fn new(panel: &[f64]) -> Self {
        let top = panel.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { top, linear: panel.iter().map(|v| if *v > f64::NEG_INFINITY { (v - top).exp() } else { 0.0 }).collect() }
    }

    /// The share w·exp(panel − value) that each child has in a unit of that value. They add up to one: far below
    /// −1e12 a value has no digits left to say so, so that they are made to.
    fn shares(&self, panel: &[f64], weights: &[f32], value: f64, shares: &mut [f64]) {
        if self.top - value < 500.0 {
            shares.copy_from_slice(&self.linear);
        } else {
            shares.iter_mut().zip(panel).for_each(|(share, v)| *share = (v - value).exp());
        }
        shares.iter_mut().zip(weights).for_each(|(share, &w)| *share *= f64::from(w));
        let total: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share = if total > 0.0 { *share / total } else { 0.0 });
    }
}

/// Gives a panel's flow back to the children it was gathered from.
fn scatter(group: &SumGroup, panel_flow: &[f64], flows: &mut [Vec<f64>]) {
    let mut at = 0;
    for child in &group.children {
        let into = &mut flows[child.node.index()][child.start..child.start + child.units];
        into.iter_mut().zip(&panel_flow[at..]).for_each(|(f, p)| *f += p);
        at += child.units;
    }
}

/// Adds the flows of one row of a batch to a buffer.
pub(super) struct RowFlows<'a> {
    pub circuit: &'a Circuit,
    pub theta: &'a [f32],
    pub batch: &'a Batch,
    pub row: usize,
    pub into: &'a mut FlowBuffer,
}

impl RowFlows<'_> {
    /// into += flow times the flows of the row, whose probability is not zero.
    pub fn add(&mut self, values: &LogValues, flow: f64) {
        flow_down(self.circuit, self.theta, values, flow, NEGLIGIBLE * flow, self);
    }
}

impl FlowSink for RowFlows<'_> {
    fn edge(&mut self, param: ParamId, position: usize, flow: f64) {
        self.into.add(self.circuit.layout().block(param).stats.start + position, flow);
    }

    fn input(&mut self, var: usize, param: ParamId, flows: &[f64]) {
        let Self { circuit, theta, batch, .. } = *self;
        let (distribution, layout) = (circuit.distribution(param), circuit.layout().block(param));
        let value = (!batch.is_missing(self.row, var)).then(|| batch.column(var).real(self.row));
        let mut stats = vec![0.0; layout.stats_per_row];
        for (unit, &flow) in flows.iter().enumerate().filter(|(_, f)| **f > 0.0) {
            if let Some(value) = value.filter(|_| distribution.is_table()) {
                self.into.add(layout.stats.start + value as usize * layout.units() + unit, flow);
                continue;
            }
            stats.fill(0.0);
            match value {
                Some(value) => distribution.add_stats(value, flow, &mut stats),
                None => {
                    let params: Vec<f32> = layout.value_positions(unit).map(|i| theta[i]).collect();
                    distribution.add_expected_stats(&params, flow, &mut stats);
                }
            }
            layout.stat_positions(unit).zip(&stats).for_each(|(at, &stat)| self.into.add(at, stat));
        }
    }
}
