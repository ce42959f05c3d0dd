//! The slow, sure way: the flows of one row in log space and double precision.
//!
//! Rows that scaled linear space cannot hold (`scaled`) come here, with values from `circuit::log_values`.
//! `renormalize` sends the flow of the row in which everything is missing.

use super::buffers::FlowBuffer;
use crate::backend::NEGLIGIBLE_FLOW;
use crate::circuit::log_values::{LogValues, Near, panel};
use crate::circuit::{Circuit, NodeKind, ParamId, SumGroup};
use crate::data::Batch;

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
                    let panel = panel(values.nodes(), group);
                    let units = own[start..].iter().zip(&values.nodes()[i][start..]);
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
        flow_down(self.circuit, self.theta, values, flow, NEGLIGIBLE_FLOW * flow, self);
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
