//! Places where scaled linear space would go wrong if it did not know its own errors.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

mod common;

use std::sync::Arc;

use anemone::backend::Backend;
use anemone::circuit::{Categorical, Circuit, CircuitBuilder, NodeId, Params};
use anemone::data::Batch;
use common::compare::{LOG_LIKELIHOOD, PROBABILITY, close, close_table};
use common::spec::Spec;
use common::{cpu, mean_flows};

/// Two coins over `var`, mixed by weights of their own.
fn mixed_coins(c: &mut CircuitBuilder, var: usize) -> NodeId {
    let coins = c.input_param(2, Categorical::new(2).unwrap()).unwrap();
    let weights = c.sum_param(2, 2).unwrap();
    let coins = c.input(var, coins).unwrap();
    c.sum(&[coins], weights).unwrap()
}

/// Parameters by block and row.
fn params(circuit: &Circuit, rows: impl Fn(usize, usize) -> Vec<f32>) -> Params {
    Params::from_rows(circuit, |param, unit| rows(param.index(), unit)).unwrap()
}

const IDENTITY: [[f32; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

/// Over four variables: (x0·x1)·(x2·x3), each pair with its large entries where the other has none, beside four
/// coins that are unlikely but less so than what is left of the pairs once small entries are dropped.
fn products_that_drop_each_other() -> (Arc<Circuit>, Params) {
    let mut c = CircuitBuilder::new(4);
    let x: Vec<NodeId> = (0..4).map(|var| mixed_coins(&mut c, var)).collect();
    let pairs = [c.product(&x[..2]).unwrap(), c.product(&x[2..]).unwrap()];
    let dropped = c.product(&pairs).unwrap();
    let coins: Vec<NodeId> = (0..4)
        .map(|var| {
            let coin = c.input_param(1, Categorical::new(2).unwrap()).unwrap();
            c.input(var, coin).unwrap()
        })
        .collect();
    let unlikely = c.product(&coins).unwrap();
    let weights = c.sum_param(1, 3).unwrap();
    c.sum(&[dropped, unlikely], weights).unwrap();
    let circuit = Arc::new(c.finish().unwrap());
    let coin = |p: f32| vec![p, 1.0 - p];
    let params = params(&circuit, |param, unit| match param {
        0..8 if param % 2 == 1 => IDENTITY[unit].to_vec(),
        0..8 if (param / 2) % 2 == unit => coin(1.0),
        0..8 => coin(2f32.powi(-101)),
        8..12 => coin(2f32.powi(-60)),
        _ => vec![0.25, 0.25, 0.5],
    });
    (circuit, params)
}

#[test]
fn a_product_of_rows_that_were_dropped_is_not_taken_for_nothing() {
    let (circuit, params) = products_that_drop_each_other();
    let batch = Batch::from_rows(&[0u8; 4], 4).unwrap();
    let mut backend = cpu(&circuit, &params);
    let spec = Spec::new(&circuit, &params);
    let lls = backend.log_likelihoods(&batch).unwrap();
    close("log-likelihood", &lls, &spec.log_likelihoods(&batch), LOG_LIKELIHOOD);
    let (flows, report) = mean_flows(&mut backend, &batch);
    close_table("flows", &flows, &spec.mean_flows(&batch), PROBABILITY);
    assert_eq!(report.rescued_rows, 1, "linear space cannot hold this row");
}

#[test]
fn renormalising_is_exact_where_partition_functions_are_out_of_range() {
    let mut c = CircuitBuilder::new(2);
    let x = [mixed_coins(&mut c, 0), mixed_coins(&mut c, 1)];
    let both = c.product(&x).unwrap();
    let weights = c.sum_param(1, 2).unwrap();
    c.sum(&[both], weights).unwrap();
    let circuit = Arc::new(c.finish().unwrap());
    // Each unit of the product has one factor with a partition function of 2e-33 or 8e-33.
    let tiny = 1e-33f32;
    let params = params(&circuit, |param, unit| match (param, unit) {
        (1, 1) => vec![tiny; 2],
        (3, 0) => vec![4.0 * tiny; 2],
        (0..4, _) => vec![0.5; 2],
        _ => vec![3.0, 1.0],
    });
    let mut backend = cpu(&circuit, &params);
    backend.renormalize().unwrap();
    let root = backend.params().unwrap().row(circuit.param_ids().next_back().unwrap(), 0);
    let root: Vec<f64> = root.iter().map(|&p| f64::from(p)).collect();
    close("root weights", &root, &[12.0 / 13.0, 1.0 / 13.0], PROBABILITY); // 3·4 : 1·1
}
