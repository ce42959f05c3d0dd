//! Which unit of which input a cell comes from, given the row: the weights of the mixture that a missing cell is.
//!
//! They are the flows of the inputs (docs/MATH.md, "Posterior marginals"), of a tile where it holds the row, and else
//! of `log_derivatives`.

use std::borrow::Cow;

use crate::backend::cpu::{Evaluator, FlowTile};
use crate::circuit::log_derivatives::log_derivatives;
use crate::circuit::log_values::{Row, log_values};
use crate::data::Batch;
use crate::error::{Error, Result};

/// The posterior weights of the inputs of one row.
pub(super) enum InputWeights<'t, 'a> {
    /// As the tile holds them.
    Tile(&'t FlowTile<'a>, usize),
    /// Of every leaf.
    Rescued(Cow<'t, [Vec<f32>]>),
}

impl<'t, 'a> InputWeights<'t, 'a> {
    /// Of a row of a tile; an error that names it where it is impossible.
    pub fn of(evaluator: &Evaluator, tile: &'t FlowTile<'a>, batch: &Batch, row: usize) -> Result<Self> {
        let at = tile.rows().start + row;
        let log_likelihood = tile.log_likelihood(row);
        if log_likelihood.is_some_and(|ll| ll > f64::NEG_INFINITY) {
            return Ok(Self::Tile(tile, row));
        }
        let rescued = if log_likelihood.is_none() { rescued_weights(evaluator, batch, at) } else { None };
        rescued.map(|weights| Self::Rescued(weights.into())).ok_or_else(|| impossible(at))
    }

    /// Of the units of a leaf.
    pub fn of_leaf(&self, leaf: usize) -> &[f32] {
        match self {
            Self::Tile(tile, row) => tile.flows(leaf, *row),
            Self::Rescued(weights) => &weights[leaf],
        }
    }
}

/// The flows of all leaves for a row, by variable up to a factor, in log space; `None` for one that is impossible.
pub(super) fn rescued_weights(evaluator: &Evaluator, batch: &Batch, row: usize) -> Option<Vec<Vec<f32>>> {
    let (circuit, theta) = (&**evaluator.circuit(), evaluator.params().values());
    let values = log_values(circuit, theta, Row::Of(batch, row));
    if values.log_likelihood() == f64::NEG_INFINITY {
        return None;
    }
    let down = log_derivatives(circuit, theta, &values);
    let logs = |leaf: usize| {
        let node = evaluator.leaves()[leaf].node.index();
        down[node].iter().zip(&values.nodes()[node]).map(|(down, value)| down + value)
    };
    let of_leaf = |leaf: usize| {
        // Relative to the largest of the variable, not to p(x): far out that has no digits left to compare with.
        let all = evaluator.leaves_of(evaluator.leaves()[leaf].var).iter();
        let top = all.flat_map(|&leaf| logs(leaf)).fold(f64::NEG_INFINITY, f64::max);
        logs(leaf).map(|log| (log - top).exp() as f32).collect()
    };
    Some((0..evaluator.leaves().len()).map(of_leaf).collect())
}

/// Nothing is known given something that cannot be.
pub(super) fn impossible(row: usize) -> Error {
    let why = "the values that are kept have probability zero under the model, so nothing is known given them; \
               keep fewer, or leave the row out";
    Error::data(why).at_row(row as u64)
}
