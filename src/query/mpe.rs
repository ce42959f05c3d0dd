//! The most probable explanation: missing cells by max-product, with the latents that go with them.
//!
//! On the way up a sum takes the largest of its terms and a missing input the probability of its mode; on the way down
//! every sum takes the child that was largest. That maximises p(values, latents) exactly, where the latents are the
//! choices of all sums: in a chain the states, so that this is Viterbi's path. It does *not* maximise p(values), in
//! which latents are summed out; see docs/MATH.md, "Most probable explanation".

use super::draw::{RowsGuide, categories_drawn, descend_rows, narrowest, weights_of};
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
        let mut rescued = Vec::with_capacity(count);
        for (row, at) in tile.rows().enumerate() {
            let (values, log_value) = match tile.log_value(row) {
                Some(log_value) => (None, log_value),
                None => {
                    let values = log_maxima(evaluator, batch, at);
                    let log_value = values[circuit.root().index()][0];
                    (Some(values), log_value)
                }
            };
            if log_value == f64::NEG_INFINITY {
                return Err(impossible(at));
            }
            rescued.push(values);
        }
        // [vars × rows], row index fastest.
        let values = vec![0.0; num_vars * count];
        let joints = vec![LogProduct::default(); count];
        let mut best = Completion { evaluator, batch, tile, rescued, values, joints, places: Vec::new() };
        descend_rows(circuit, count, &mut best);
        Ok((best.values, best.joints.iter().map(LogProduct::log).collect::<Vec<_>>()))
    })?;
    let tiles: Vec<(Vec<f64>, Vec<f64>)> = tiles.into_iter().collect::<Result<_>>()?;
    let columns = categories_drawn(circuit).into_iter().enumerate().map(|(var, cats)| {
        let of_tiles = tiles.iter().map(|(values, log_joints)| {
            let count = log_joints.len();
            &values[var * count..(var + 1) * count]
        });
        narrowest(cats, of_tiles)
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

/// What the ways down have found; rows are counted from the tile's first.
struct Completion<'a> {
    evaluator: &'a Evaluator,
    batch: &'a Batch,
    tile: &'a ValueTile<'a>,
    /// Values of the rows that the tile does not hold, in log space.
    rescued: Vec<Option<Vec<Vec<f64>>>>,
    values: Vec<f64>,
    joints: Vec<LogProduct>,
    /// Rows that reach the input in hand, and where the parameter is that each of them needs; kept for its memory.
    places: Vec<(usize, usize)>,
}

impl RowsGuide for Completion<'_> {
    fn choose(&mut self, row: usize, node: NodeId, index: usize, group: &SumGroup, unit: usize) -> usize {
        let weights = weights_of(self.evaluator.params(), group, unit);
        let chosen = match &self.rescued[row] {
            Some(values) => largest_log(weights, &panel(values, group)).0,
            None => self.tile.largest(node, index, row, weights),
        };
        self.joints[row].multiply(f64::from(weights[chosen]));
        chosen
    }

    fn input(&mut self, row: usize, var: usize, param: ParamId, unit: usize) {
        let (evaluator, at) = (self.evaluator, self.tile.rows().start + row);
        let (value, log) = if self.batch.is_missing(at, var) {
            let best = evaluator.best();
            (best.values[param.index()][unit], best.logs[param.index()][unit])
        } else {
            let value = self.batch.column(var).real(at);
            (value, log_prob(evaluator, param, unit, value))
        };
        self.values[var * self.joints.len() + row] = value;
        self.joints[row].log += log;
    }

    /// A table is large, and every row reads another place of it: all are on their way before the first is waited for.
    fn inputs(&mut self, rows: &[(usize, usize)], var: usize, param: ParamId) {
        let evaluator = self.evaluator;
        if !evaluator.circuit().distribution(param).is_table() {
            return rows.iter().for_each(|&(row, unit)| self.input(row, var, param, unit));
        }
        let (first, count) = (self.tile.rows().start, self.joints.len());
        let (column, best) = (self.batch.column(var), evaluator.best());
        let (modes, highest) = (&best.values[param.index()], best.of_table(param));
        let of_var = &mut self.values[var * count..(var + 1) * count];
        self.places.clear();
        for &(row, unit) in rows {
            of_var[row] = match self.batch.is_missing(first + row, var) {
                true => {
                    self.joints[row].multiply(f64::from(highest[unit]));
                    modes[unit]
                }
                false => {
                    let value = column.real(first + row);
                    let place = place_in_table(evaluator, param, unit, value);
                    evaluator.prefetch(place);
                    self.places.push((row, place));
                    value
                }
            };
        }
        let theta = evaluator.params().values();
        self.places.iter().for_each(|&(row, place)| self.joints[row].multiply(f64::from(theta[place])));
    }
}

/// The logarithm of a product of many weights and probabilities: they are multiplied as long as the range holds.
#[derive(Clone, Debug)]
struct LogProduct {
    log: f64,
    product: f64,
}

impl Default for LogProduct {
    fn default() -> Self {
        Self { log: 0.0, product: 1.0 }
    }
}

impl LogProduct {
    fn multiply(&mut self, weight: f64) {
        self.product *= weight;
        if self.product < 1e-200 {
            self.log += self.product.ln();
            self.product = 1.0;
        }
    }

    fn log(&self) -> f64 {
        self.log + self.product.ln()
    }
}

/// log f(value) of one unit of an input.
fn log_prob(evaluator: &Evaluator, param: ParamId, unit: usize, value: f64) -> f64 {
    let distribution = evaluator.circuit().distribution(param);
    match distribution.is_table() {
        true => f64::from(evaluator.params().values()[place_in_table(evaluator, param, unit, value)]).ln(),
        false => distribution.log_prob(&evaluator.params().row(param, unit), value),
    }
}

/// Where f(value) of one unit of a table is among the parameters.
fn place_in_table(evaluator: &Evaluator, param: ParamId, unit: usize, value: f64) -> usize {
    let block = evaluator.circuit().layout().block(param);
    block.values.start + value as usize * block.units() + unit
}

/// The log of the largest product below every unit, in double precision.
fn log_maxima(evaluator: &Evaluator, batch: &Batch, row: usize) -> Vec<Vec<f64>> {
    let circuit = &**evaluator.circuit();
    let mut nodes: Vec<Vec<f64>> = Vec::with_capacity(circuit.nodes().len());
    for node in circuit.nodes() {
        let values = match &node.kind {
            NodeKind::Input { var, param } if batch.is_missing(row, *var) => {
                evaluator.best().logs[param.index()].clone()
            }
            NodeKind::Input { var, param } => {
                let value = batch.column(*var).real(row);
                (0..node.units).map(|unit| log_prob(evaluator, *param, unit, value)).collect()
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
                    values.extend(
                        (0..units).map(|unit| largest_log(weights_of(evaluator.params(), group, unit), &panel).1),
                    );
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
