//! The slow, sure way: the value of every unit for one row, in log space and double precision.
//!
//! Plain recursion over the circuit, which also decides what is truly impossible. `condition` draws by these values;
//! the CPU backend turns to them for rows that scaled linear space cannot hold and for the partition functions of all
//! nodes.

use super::{Circuit, NodeKind, ParamId, SumGroup};
use crate::data::Batch;

/// What is evaluated.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    /// A row of a batch.
    Of(&'a Batch, usize),
    /// Every variable missing, at a circuit that need not be normalised: the value of an input unit is its mass, one
    /// number per param row.
    Masses(&'a [f64]),
}

/// log p of every unit of every node, for one row.
pub(crate) struct LogValues {
    /// By node, then unit.
    nodes: Vec<Vec<f64>>,
}

impl LogValues {
    /// By node, then unit.
    pub fn nodes(&self) -> &[Vec<f64>] {
        &self.nodes
    }

    /// log p of the root.
    pub fn log_likelihood(&self) -> f64 {
        self.nodes.last().expect("a circuit has a root")[0]
    }
}

/// Evaluates one row.
pub(crate) fn log_values(circuit: &Circuit, theta: &[f32], row: Row<'_>) -> LogValues {
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
pub(crate) fn panel(nodes: &[Vec<f64>], group: &SumGroup) -> Vec<f64> {
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

/// exp(panel − top): one exponential per child serves all units whose own value is not too far below the top.
pub(crate) struct Near {
    top: f64,
    linear: Vec<f64>,
}

impl Near {
    pub fn new(panel: &[f64]) -> Self {
        let top = panel.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { top, linear: panel.iter().map(|v| if *v > f64::NEG_INFINITY { (v - top).exp() } else { 0.0 }).collect() }
    }

    /// The share w·exp(panel − value) that each child has in a unit of that value. They add up to one: far below
    /// −1e12 a value has no digits left to say so, so that they are made to.
    pub fn shares(&self, panel: &[f64], weights: &[f32], value: f64, shares: &mut [f64]) {
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
