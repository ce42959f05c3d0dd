//! Expectations of functions of single variables given the rest of a row: Σ_c f_v(c)·p(c | rest).
//!
//! A unit's own expectation does not depend on the row, so it is computed once: what is left per cell is a sum over
//! units. Dosage is the expectation of the category's number.

use super::input_posteriors::InputWeights;
use crate::backend::cpu::Evaluator;
use crate::data::Batch;
use crate::error::{Error, Result};

/// A function of one variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Function {
    /// x, or the number of the category.
    Identity,
    /// x².
    Square,
    /// One value for each category.
    Table(Vec<f64>),
}

impl Function {
    /// f(x).
    fn of(&self, x: f64) -> f64 {
        match self {
            Self::Identity => x,
            Self::Square => x * x,
            Self::Table(values) => values[x as usize],
        }
    }
}

/// E\[f_v(X_v) | rest\] of every cell, `[rows × vars]`; f_v(x_v) of a cell that is not missing.
pub(crate) fn expectations(evaluator: &Evaluator, batch: &Batch, functions: &[Function]) -> Result<Vec<f64>> {
    let circuit = &**evaluator.circuit();
    let num_vars = circuit.num_vars();
    if functions.len() != num_vars {
        return Err(Error::option(format!(
            "{} functions for {num_vars} variables: give one for each",
            functions.len()
        )));
    }
    for (var, function) in functions.iter().enumerate() {
        if let Function::Table(values) = function {
            for &leaf in evaluator.leaves_of(var) {
                let cats = circuit.distribution(evaluator.leaves()[leaf].param).num_cats();
                if cats.is_none_or(|cats| cats as usize > values.len()) {
                    let has = cats.map_or("is a number".to_string(), |cats| format!("has {cats} categories"));
                    let given = values.len();
                    return Err(Error::option(format!("variable {var} {has}, its function {given} values")));
                }
            }
        }
    }
    // E[f] of each unit, by leaf.
    let of_units: Vec<Vec<f64>> =
        evaluator.leaves().iter().map(|leaf| unit_expectations(evaluator, leaf.param, &functions[leaf.var])).collect();
    let tiles = evaluator.with_flows(batch, |tile| {
        let mut out = Vec::with_capacity(tile.rows().len() * num_vars);
        for row in 0..tile.rows().len() {
            let weights = InputWeights::of(evaluator, tile, batch, row)?;
            let at = tile.rows().start + row;
            out.extend((0..num_vars).map(|var| {
                if !batch.is_missing(at, var) {
                    return functions[var].of(batch.column(var).real(at));
                }
                let (mut sum, mut mass) = (0.0, 0.0);
                for &leaf in evaluator.leaves_of(var) {
                    for (&weight, expected) in weights.of_leaf(leaf).iter().zip(&of_units[leaf]) {
                        sum += f64::from(weight) * expected;
                        mass += f64::from(weight);
                    }
                }
                sum / mass
            }));
        }
        Ok(out)
    })?;
    let tiles: Vec<Vec<f64>> = tiles.into_iter().collect::<Result<_>>()?;
    Ok(tiles.concat())
}

fn unit_expectations(evaluator: &Evaluator, param: crate::circuit::ParamId, function: &Function) -> Vec<f64> {
    let moments = || evaluator.moments(param).iter();
    match function {
        Function::Identity => moments().map(|(mean, _)| *mean).collect(),
        Function::Square => moments().map(|(mean, variance)| variance + mean * mean).collect(),
        Function::Table(values) => {
            let units = evaluator.circuit().layout().block(param).units();
            let mut sums = vec![(0.0, 0.0); units];
            let table = evaluator.table(param).into_iter().flat_map(|table| table.chunks_exact(units));
            for (value, row) in values.iter().zip(table) {
                sums.iter_mut().zip(row).for_each(|((sum, mass), &p)| {
                    *sum += value * f64::from(p);
                    *mass += f64::from(p);
                });
            }
            sums.into_iter().map(|(sum, mass)| sum / mass).collect()
        }
    }
}
