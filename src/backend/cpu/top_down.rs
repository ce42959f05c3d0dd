//! Top-down probabilities, by their definition.
//!
//! TD(root) = 1, TD(product) = Σ over parents of θ·TD, TD(sum or input) = Σ over parents of TD. At a normalised circuit
//! it is the flow of a row with every variable missing, without needing that row's values. See docs/MATH.md.

use crate::circuit::{Circuit, NodeKind, Params, SumGroup};

/// TD of every param row of a model that nobody learns: no buffers, no threads.
pub(crate) fn top_down_of(circuit: &Circuit, params: &Params) -> Vec<f64> {
    let mut rows = vec![0.0; circuit.layout().num_rows()];
    top_down(circuit, params.values(), &mut rows);
    rows
}

/// out[param row] = Σ of TD over the units that use the row.
pub(super) fn top_down(circuit: &Circuit, theta: &[f32], out: &mut [f64]) {
    out.fill(0.0);
    let layout = circuit.layout();
    let mut nodes: Vec<Vec<f32>> = circuit.nodes().iter().map(|node| vec![0.0; node.units]).collect();
    nodes[circuit.root().index()][0] = 1.0;
    let mut scratch = Vec::new();
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let own = std::mem::take(&mut nodes[i]);
        let mut add_rows = |param, own: &[f32]| {
            let rows = &mut out[layout.block(param).rows.clone()];
            rows.iter_mut().zip(own).for_each(|(row, &td)| *row += f64::from(td));
        };
        match &node.kind {
            NodeKind::Input { param, .. } => add_rows(*param, &own),
            NodeKind::Product { factors } => {
                for factor in factors {
                    let child = &mut nodes[factor.node.index()];
                    match &factor.map {
                        None => child.iter_mut().zip(&own).for_each(|(c, td)| *c += td),
                        Some(map) => map.iter().zip(&own).for_each(|(&unit, td)| child[unit as usize] += td),
                    }
                }
            }
            NodeKind::Sum { groups } => {
                let mut start = 0;
                for group in groups {
                    let block = layout.block(group.param);
                    let cols = block.values_per_row;
                    let own = &own[start..start + block.units()];
                    start += block.units();
                    add_rows(group.param, own);
                    scratch.clear();
                    scratch.resize(cols, 0.0);
                    for (weights, &td) in theta[block.values.clone()].chunks_exact(cols).zip(own) {
                        scratch.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += td * weight);
                    }
                    add_to_children(group, &scratch, &mut nodes);
                }
            }
        }
    }
}

fn add_to_children(group: &SumGroup, panel: &[f32], nodes: &mut [Vec<f32>]) {
    let mut at = 0;
    for child in &group.children {
        let into = &mut nodes[child.node.index()][child.start..child.start + child.units];
        into.iter_mut().zip(&panel[at..]).for_each(|(c, p)| *c += p);
        at += child.units;
    }
}
