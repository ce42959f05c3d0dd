//! The most probable explanation: missing cells by max-product, with the latents that go with them.
//!
//! On the way up a sum takes the largest of its terms and a missing input the probability of its mode; on the way down
//! every sum takes the child that was largest. That maximises p(values, latents) exactly, where the latents are the
//! choices of all sums: in a chain the states, so that this is Viterbi's path. It does *not* maximise p(values), in
//! which latents are summed out; see docs/MATH.md, "Most probable explanation".

use super::draw::{Guide, descend, narrowest};
use super::input_posteriors::impossible;
use crate::backend::cpu::{Evaluator, Mixing, ValueTile};
use crate::circuit::log_values::panel;
use crate::circuit::{NodeId, NodeKind, ParamId, SumGroup};
use crate::data::Batch;
use crate::error::Result;

/// The best completion of every row.
#[derive(Clone, Debug, PartialEq)]
pub struct Mpe {
    rows: Batch,
    log_joints: Vec<f64>,
    has_latents: bool,
}

impl Mpe {
    /// The rows, with nothing missing: kept values as they were, the others from the best completion.
    pub fn rows(&self) -> &Batch {
        &self.rows
    }

    /// log p(values, latents) of every row, in nats: the maximum over missing values and latents together, up to the
    /// rounding of single precision. Never above log p(values).
    pub fn log_joints(&self) -> &[f64] {
        &self.log_joints
    }

    /// Returns true if the completion is the most likely of all, p(values) itself: no sum has a choice. Otherwise the
    /// best completion *with its latents* is what was found, and one of which many latents agree may be more likely.
    pub fn maximizes_likelihood(&self) -> bool {
        !self.has_latents
    }
}

/// Completes all rows of a batch.
pub(crate) fn mpe(evaluator: &Evaluator, batch: &Batch) -> Result<Mpe> {
    let circuit = &**evaluator.circuit();
    let num_vars = circuit.num_vars();
    let tiles = evaluator.with_values(batch, Mixing::Max, |tile| {
        let count = tile.rows().len();
        // [vars × rows], row index fastest.
        let mut best =
            Completion { evaluator, batch, row: 0, at: 0, count, values: vec![0.0; num_vars * count], log_joint: 0.0 };
        let mut log_joints = Vec::with_capacity(count);
        for row in 0..count {
            (best.row, best.at, best.log_joint) = (row, tile.rows().start + row, 0.0);
            match tile.log_value(row) {
                Some(f64::NEG_INFINITY) => return Err(impossible(best.at)),
                Some(_) => descend(circuit, &mut Linear { best: &mut best, tile }),
                None => {
                    let values = log_maxima(evaluator, batch, best.at);
                    if values[circuit.root().index()][0] == f64::NEG_INFINITY {
                        return Err(impossible(best.at));
                    }
                    descend(circuit, &mut Logarithmic { best: &mut best, values: &values });
                }
            }
            log_joints.push(best.log_joint);
        }
        Ok((best.values, log_joints))
    })?;
    let tiles: Vec<(Vec<f64>, Vec<f64>)> = tiles.into_iter().collect::<Result<_>>()?;
    let columns = (0..num_vars).map(|var| {
        let of_tile = |(values, log_joints): &(Vec<f64>, Vec<f64>)| {
            values[var * log_joints.len()..(var + 1) * log_joints.len()].to_vec()
        };
        narrowest(circuit, var, &tiles.iter().flat_map(of_tile).collect::<Vec<_>>())
    });
    let rows = Batch::from_columns(columns.collect())?;
    let log_joints = tiles.into_iter().flat_map(|(_, log_joints)| log_joints).collect();
    Ok(Mpe { rows, log_joints, has_latents: has_latents(evaluator) })
}

/// Returns true if some sum has more than one child with a positive weight.
fn has_latents(evaluator: &Evaluator) -> bool {
    let (circuit, theta) = (&**evaluator.circuit(), evaluator.params().values());
    circuit.nodes().iter().any(|node| match &node.kind {
        NodeKind::Sum { groups } => groups.iter().any(|group| {
            let block = circuit.layout().block(group.param);
            let mut rows = theta[block.values.clone()].chunks_exact(block.values_per_row);
            rows.any(|row| row.iter().filter(|w| **w > 0.0).count() > 1)
        }),
        _ => false,
    })
}

/// What the ways down have found.
struct Completion<'a> {
    evaluator: &'a Evaluator,
    batch: &'a Batch,
    /// The row that is completed, in the tile and in the batch.
    row: usize,
    at: usize,
    count: usize,
    values: Vec<f64>,
    log_joint: f64,
}

impl Completion<'_> {
    fn weights(&self, group: &SumGroup, unit: usize) -> &[f32] {
        let block = self.evaluator.circuit().layout().block(group.param);
        let start = block.values.start + unit * block.values_per_row;
        &self.evaluator.params().values()[start..start + block.values_per_row]
    }

    fn input(&mut self, var: usize, param: ParamId, unit: usize) {
        let best = self.evaluator.best();
        let (value, log) = if self.batch.is_missing(self.at, var) {
            (best.values[param.index()][unit], best.logs[param.index()][unit])
        } else {
            let value = self.batch.column(var).real(self.at);
            (value, self.log_prob(param, unit, value))
        };
        self.values[var * self.count + self.row] = value;
        self.log_joint += log;
    }

    fn log_prob(&self, param: ParamId, unit: usize, value: f64) -> f64 {
        let circuit = self.evaluator.circuit();
        let (distribution, block) = (circuit.distribution(param), circuit.layout().block(param));
        match distribution.is_table() {
            true => {
                let at = block.values.start + value as usize * block.units() + unit;
                f64::from(self.evaluator.params().values()[at]).ln()
            }
            false => distribution.log_prob(&self.evaluator.params().row(param, unit), value),
        }
    }
}

/// By the values of a tile.
struct Linear<'a, 'c> {
    best: &'a mut Completion<'c>,
    tile: &'a ValueTile<'a>,
}

impl Guide for Linear<'_, '_> {
    fn choose(&mut self, node: NodeId, index: usize, group: &SumGroup, unit: usize) -> usize {
        let (weights, panel) = (self.best.weights(group, unit), self.tile.panel(node, index, self.best.row));
        let (mut chosen, mut most) = (0, -1.0);
        for (c, (&weight, &value)) in weights.iter().zip(panel).enumerate() {
            let term = weight * value;
            if term > most {
                (chosen, most) = (c, term);
            }
        }
        self.best.log_joint += f64::from(weights[chosen]).ln();
        chosen
    }

    fn input(&mut self, var: usize, param: ParamId, unit: usize) {
        self.best.input(var, param, unit);
    }
}

/// By values in log space.
struct Logarithmic<'a, 'c> {
    best: &'a mut Completion<'c>,
    values: &'a [Vec<f64>],
}

impl Guide for Logarithmic<'_, '_> {
    fn choose(&mut self, _: NodeId, _: usize, group: &SumGroup, unit: usize) -> usize {
        let weights = self.best.weights(group, unit);
        let (chosen, _) = largest_log(weights, &panel(self.values, group));
        self.best.log_joint += f64::from(weights[chosen]).ln();
        chosen
    }

    fn input(&mut self, var: usize, param: ParamId, unit: usize) {
        self.best.input(var, param, unit);
    }
}

/// The log of the largest product below every unit, in double precision.
fn log_maxima(evaluator: &Evaluator, batch: &Batch, row: usize) -> Vec<Vec<f64>> {
    let circuit = &**evaluator.circuit();
    let looking = Completion { evaluator, batch, row: 0, at: row, count: 0, values: Vec::new(), log_joint: 0.0 };
    let mut nodes: Vec<Vec<f64>> = Vec::with_capacity(circuit.nodes().len());
    for node in circuit.nodes() {
        let values = match &node.kind {
            NodeKind::Input { var, param } if batch.is_missing(row, *var) => {
                evaluator.best().logs[param.index()].clone()
            }
            NodeKind::Input { var, param } => {
                let value = batch.column(*var).real(row);
                (0..node.units).map(|unit| looking.log_prob(*param, unit, value)).collect()
            }
            NodeKind::Product { factors } => {
                let of = |unit: usize, f: &crate::circuit::Factor| {
                    nodes[f.node.index()][f.map.as_ref().map_or(unit, |map| map[unit] as usize)]
                };
                (0..node.units).map(|unit| factors.iter().map(|f| of(unit, f)).sum()).collect()
            }
            NodeKind::Sum { groups } => {
                let mut values = Vec::with_capacity(node.units);
                for group in groups {
                    let panel = panel(&nodes, group);
                    let units = circuit.params()[group.param.index()].units;
                    values.extend((0..units).map(|unit| largest_log(looking.weights(group, unit), &panel).1));
                }
                values
            }
        };
        nodes.push(values);
    }
    nodes
}

/// The child with the largest w·exp(v), and the logarithm of that.
fn largest_log(weights: &[f32], panel: &[f64]) -> (usize, f64) {
    let mut best = (0, f64::NEG_INFINITY);
    for (c, (&weight, value)) in weights.iter().zip(panel).enumerate() {
        let term = f64::from(weight).ln() + value;
        if term > best.1 {
            best = (c, term);
        }
    }
    best
}
