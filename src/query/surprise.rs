//! Surprise: log p(x_v | rest of the row) of every value that is not missing, from one pass up and one back down.
//!
//! p(x) is linear in the inputs of a variable, p(x) = Σ A_k·f_k(x_v), and without the value every f_k is one. So
//! p(x_v | rest) = p(x) / Σ A_k, with A_k/p(x) = flow_k / f_k(x_v) (docs/MATH.md, "Surprise"). Where an f_k is so small
//! that its flow is lost, the row is computed in log space, whose derivatives divide by nothing.

use crate::backend::cpu::{Evaluator, FlowTile};
use crate::circuit::log_derivatives::{log_add, log_derivatives};
use crate::circuit::log_values::{Row, log_values};
use crate::data::Batch;
use crate::error::Result;

/// How unlikely each value of a batch is given the others of its row.
#[derive(Clone, Debug, PartialEq)]
pub struct Surprise {
    num_vars: usize,
    log_likelihoods: Vec<f64>,
    /// `[rows × vars]`; NaN where there is none.
    conditionals: Vec<f64>,
}

impl Surprise {
    /// log p(x_v | rest) in nats; −∞ where the value is impossible given the rest. `None` where it is missing, or the
    /// rest is impossible itself.
    pub fn get(&self, row: usize, var: usize) -> Option<f64> {
        assert!(var < self.num_vars, "variable {var} of {}", self.num_vars);
        Some(self.conditionals[row * self.num_vars + var]).filter(|value| !value.is_nan())
    }

    /// Of all variables of a row; NaN where [`get`](Self::get) has nothing.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.conditionals[row * self.num_vars..][..self.num_vars]
    }

    /// log p(x) of every row, which comes with it.
    pub fn log_likelihoods(&self) -> &[f64] {
        &self.log_likelihoods
    }
}

/// Asks all rows of a batch.
pub(crate) fn surprise(evaluator: &Evaluator, batch: &Batch) -> Result<Surprise> {
    let num_vars = batch.num_vars();
    let tiles = evaluator.with_flows(batch, |tile| {
        let count = tile.rows().len();
        let (mut likelihoods, mut conditionals) = (Vec::with_capacity(count), Vec::with_capacity(count * num_vars));
        for row in 0..count {
            let before = conditionals.len();
            let quick = tile.log_likelihood(row).filter(|ll| *ll > f64::NEG_INFINITY);
            match quick.filter(|_| from_flows(evaluator, tile, batch, row, &mut conditionals)) {
                Some(log_likelihood) => likelihoods.push(log_likelihood),
                None => {
                    conditionals.truncate(before);
                    let slow = in_log_space(evaluator, batch, tile.rows().start + row, &mut conditionals);
                    // A row has one log-likelihood, whoever asks: that of the pass, where it holds the row.
                    likelihoods.push(tile.log_likelihood(row).unwrap_or(slow));
                }
            }
        }
        (likelihoods, conditionals)
    })?;
    let mut all = Surprise { num_vars, log_likelihoods: Vec::new(), conditionals: Vec::new() };
    for (likelihoods, conditionals) in tiles {
        all.log_likelihoods.extend(likelihoods);
        all.conditionals.extend(conditionals);
    }
    Ok(all)
}

/// f_k may be 2^−this of the largest and its flow still be in the range of f32.
const SMALLEST_SHARE: i32 = 80;

/// Binary digits that a result has at least.
const DIGITS: f64 = 20.0;

/// Adds the conditionals of a row by its flows; false where those are not enough.
fn from_flows(evaluator: &Evaluator, tile: &FlowTile<'_>, batch: &Batch, row: usize, out: &mut Vec<f64>) -> bool {
    let at = tile.rows().start + row;
    let digits = tile.bits_above_loss(row) as f64;
    for var in 0..batch.num_vars() {
        if batch.is_missing(at, var) {
            out.push(f64::NAN);
            continue;
        }
        // log Σ A_k/p(x).
        let mut rest = f64::NEG_INFINITY;
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for &leaf in evaluator.leaves_of(var) {
            let (values, exponent) = tile.values(leaf, row);
            let (mut low, mut high, mut sum) = (f32::INFINITY, 0f32, 0f64);
            for (&flow, &value) in tile.flows(leaf, row).iter().zip(values) {
                (low, high) = (low.min(value), high.max(value));
                sum += f64::from(flow) / f64::from(value);
            }
            if low.is_nan() || low <= 0.0 {
                return false; // what this unit would contribute is not known
            }
            let scale = exponent as f64;
            (least, most) = (least.min(f64::from(low).log2() + scale), most.max(f64::from(high).log2() + scale));
            rest = log_add(rest, sum.ln() - scale * std::f64::consts::LN_2);
        }
        // A flow is lost below 2^-126, and what was dropped on the way may be a flow: both are divided by f_k.
        if most - least > f64::from(SMALLEST_SHARE) || digits - (most - least) < DIGITS {
            return false;
        }
        out.push(-rest);
    }
    true
}

/// Adds the conditionals of a row by derivatives in log space. Returns its log-likelihood.
fn in_log_space(evaluator: &Evaluator, batch: &Batch, row: usize, out: &mut Vec<f64>) -> f64 {
    let (circuit, theta) = (&**evaluator.circuit(), evaluator.params().values());
    let values = log_values(circuit, theta, Row::Of(batch, row));
    let down = log_derivatives(circuit, theta, &values);
    for var in 0..batch.num_vars() {
        let leaves = evaluator.leaves_of(var).iter();
        let units = leaves.flat_map(|&leaf| &down[evaluator.leaves()[leaf].node.index()]);
        let rest = units.copied().fold(f64::NEG_INFINITY, log_add);
        out.push(match batch.is_missing(row, var) || rest == f64::NEG_INFINITY {
            true => f64::NAN,
            false => values.log_likelihood() - rest,
        });
    }
    values.log_likelihood()
}
