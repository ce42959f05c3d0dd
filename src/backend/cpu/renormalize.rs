//! Global renormalisation: every row sums to one, and the circuit says what it said before.
//!
//! With Z the partition function of a node, an input row is divided by its mass Z(c), and a sum row becomes
//! θ[n,c]·Z(c)/Z(n). Where a block is tied and its uses see different Z, the rows of all uses are averaged, each in
//! proportion to the flow it has when everything is missing: a projection. Rows that nothing reaches are divided by
//! their own sum. In log space and double precision, because Z may be anything. See docs/MATH.md.

use super::rescue::{LogValues, Row, log_values, panel, scatter};
use crate::circuit::{Circuit, NodeKind, ParamKind, SumGroup};

/// Normalises all rows of `theta`.
pub(super) fn renormalize(circuit: &Circuit, theta: &mut [f32]) {
    let masses = input_masses(circuit, theta);
    let partition = log_values(circuit, theta, Row::Masses(&masses));
    let rows = sum_rows(circuit, theta, &partition);

    for ((layout, block), rows) in circuit.layout().blocks().iter().zip(circuit.params()).zip(&rows) {
        let theta = &mut theta[layout.values.clone()];
        match &block.kind {
            ParamKind::Sum { cols } => {
                for (row, reached) in theta.chunks_exact_mut(*cols).zip(rows.chunks_exact(*cols)) {
                    if !normalize(row, reached.iter().copied()) {
                        let own: Vec<f64> = row.iter().map(|&p| f64::from(p)).collect();
                        normalize(row, own.into_iter());
                    }
                }
            }
            ParamKind::Input(distribution) if distribution.is_table() => {
                let masses = &masses[layout.rows.clone()];
                for row in theta.chunks_exact_mut(layout.units()) {
                    for (p, &mass) in row.iter_mut().zip(masses).filter(|(_, mass)| **mass > 0.0) {
                        *p = (f64::from(*p) / mass) as f32;
                    }
                }
            }
            ParamKind::Input(_) => {} // a density is normalised by its form
        }
    }
}

/// The mass of each input row: the sum of a table's, 1 of a density's. One number per param row.
fn input_masses(circuit: &Circuit, theta: &[f32]) -> Vec<f64> {
    let mut masses = vec![1.0; circuit.layout().num_rows()];
    for (layout, block) in circuit.layout().blocks().iter().zip(circuit.params()) {
        if let ParamKind::Input(distribution) = &block.kind
            && distribution.is_table()
        {
            let masses = &mut masses[layout.rows.clone()];
            masses.fill(0.0);
            for row in theta[layout.values.clone()].chunks_exact(layout.units()) {
                masses.iter_mut().zip(row).for_each(|(mass, &p)| *mass += f64::from(p));
            }
        }
    }
    masses
}

/// For each block of weights, Σ over its uses of F(n)·θ[n,c]·Z(c)/Z(n), with F the flow when everything is missing.
fn sum_rows(circuit: &Circuit, theta: &[f32], partition: &LogValues) -> Vec<Vec<f64>> {
    let sizes = circuit.params().iter().map(|block| match block.kind {
        ParamKind::Sum { cols } => block.units * cols,
        ParamKind::Input(_) => 0,
    });
    let mut rows: Vec<Vec<f64>> = sizes.map(|size| vec![0.0; size]).collect();
    let mut flows: Vec<Vec<f64>> = circuit.nodes().iter().map(|node| vec![0.0; node.units]).collect();
    flows[circuit.root().index()][0] = 1.0;
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let own = std::mem::take(&mut flows[i]);
        match &node.kind {
            NodeKind::Input { .. } => {}
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
                    let layout = circuit.layout().block(group.param);
                    let units = start..start + layout.units();
                    start = units.end;
                    let (weights, rows) = (&theta[layout.values.clone()], &mut rows[group.param.index()]);
                    let (own, values) = (&own[units.clone()], &partition.nodes[i][units]);
                    let panel_flow = add_group(group, own, values, weights, partition, rows);
                    scatter(group, &panel_flow, &mut flows);
                }
            }
        }
    }
    rows
}

/// Adds the rows of one group, and gives the flow of what it mixes.
fn add_group(
    group: &SumGroup,
    own: &[f64],
    values: &[f64],
    weights: &[f32],
    partition: &LogValues,
    rows: &mut [f64],
) -> Vec<f64> {
    let panel = panel(&partition.nodes, group);
    let top = panel.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut panel_flow = vec![0.0; panel.len()];
    if top == f64::NEG_INFINITY {
        return panel_flow;
    }
    // One exponential per child rather than per edge, unless a unit's Z is so far below that only edges are in range.
    let near: Vec<f64> = panel.iter().map(|z| (z - top).exp()).collect();
    let edges = weights.chunks_exact(panel.len()).zip(rows.chunks_exact_mut(panel.len()));
    for ((&flow, &value), (weights, row)) in own.iter().zip(values).zip(edges) {
        if !(flow > 0.0 && value > f64::NEG_INFINITY) {
            continue;
        }
        let scale = flow * (top - value).exp();
        for (c, &weight) in weights.iter().enumerate() {
            let ratio = if top - value < 500.0 { scale * near[c] } else { flow * (panel[c] - value).exp() };
            let edge = if weight > 0.0 { f64::from(weight) * ratio } else { 0.0 };
            row[c] += edge;
            panel_flow[c] += edge;
        }
    }
    panel_flow
}

/// row ∝ weights. Whether they had any mass.
fn normalize(row: &mut [f32], weights: impl Iterator<Item = f64> + Clone) -> bool {
    let mass: f64 = weights.clone().sum();
    let positive = mass > 0.0 && mass.is_finite();
    if positive {
        row.iter_mut().zip(weights).for_each(|(p, w)| *p = (w / mass) as f32);
    }
    positive
}
