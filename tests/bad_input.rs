//! Mistakes of users are typed errors that say where and what to do, and leave no trace.

#![allow(clippy::unwrap_used)] // what fails here fails a test

mod common;

use std::fmt::Debug;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, FlowPrecision, Tensor};
use anemone::circuit::{Categorical, CircuitBuilder, DiscreteLogistic, Gaussian, Params, Smoothing};
use anemone::data::{Batch, Column};
use anemone::optim::{
    AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule, SgdSpec, StepwiseEmSpec,
};
use anemone::structure::{factor_latents, monarch_hmm};
use anemone::{ErrorKind, Result};

use common::cases::{self, Case};
use common::{bits, start};

/// Asserts the kind of an error and that its message has all the words; never that of a success.
fn refused<T: Debug>(result: Result<T>, kind: ErrorKind, words: &[&str]) {
    let error = result.map(|value| format!("{value:?}")).expect_err("this must be refused");
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "`{error}` does not say `{word}`");
    }
}

/// All six optimizers; the last two move log-weights and do not suit densities.
fn optimizers() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::Anemone(AnemoneSpec::default()),
        OptimizerSpec::Anemone(AnemoneSpec { batches_per_update: 3, ..Default::default() }),
        OptimizerSpec::FullBatchEm(FullBatchEmSpec::default()),
        OptimizerSpec::MiniBatchEm(MiniBatchEmSpec::default()),
        OptimizerSpec::StepwiseEm(StepwiseEmSpec::default()),
        OptimizerSpec::Adam(AdamSpec::default()),
        OptimizerSpec::Sgd(SgdSpec::default()),
    ]
}

fn is_gradient(spec: &OptimizerSpec) -> bool {
    matches!(spec, OptimizerSpec::Adam(_) | OptimizerSpec::Sgd(_))
}

/// A circuit over a category, two reals and a bin, and batches that do not fit it.
fn misfits() -> Vec<(Batch, &'static [&'static str])> {
    let columns = |a: Column, b: Vec<f32>, d: Column| {
        Batch::from_columns(vec![a, Column::F32(b), Column::F32(vec![0.0; 3]), d]).unwrap()
    };
    let (cats, reals, bins) = (Column::U8(vec![0, 1, 2]), vec![0.5, -1.0, 2.0], Column::U8(vec![7, 0, 3]));
    let whole = columns(cats.clone(), reals.clone(), bins.clone());
    vec![
        (columns(Column::U8(vec![0, 1, 3]), reals.clone(), bins.clone()), &["row 2", "variable 0", "3", "0..3"]),
        (columns(Column::U32(vec![0, 70_000, 1]), reals.clone(), bins.clone()), &["row 1", "variable 0", "70000"]),
        (columns(cats.clone(), reals.clone(), Column::U16(vec![8, 0, 3])), &["row 0", "variable 3", "8", "0..8"]),
        (columns(Column::F32(vec![0.0; 3]), reals.clone(), bins.clone()), &["variable 0", "integer column"]),
        (columns(cats.clone(), vec![0.0, f32::NAN, 1.0], bins.clone()), &["row 1", "variable 1", "missing"]),
        (columns(cats, vec![0.0, 1.0, f32::INFINITY], bins), &["row 2", "variable 1"]),
        (whole.slice(1..1), &["no rows", "at least one"]),
        (Batch::from_rows(&[0u8, 1, 2], 3).unwrap(), &["3 variables", "the circuit 4"]),
    ]
}

#[test]
fn a_batch_that_does_not_fit_is_refused_by_row_and_variable() {
    let case = Case::new("mixed", cases::mixed());
    let mut backend = common::cpu(&case.circuit, &case.params);
    let flows = backend.new_flows(FlowPrecision::Single).unwrap();
    for (batch, words) in misfits() {
        refused(backend.log_likelihoods(&batch), ErrorKind::Data, words);
        refused(backend.add_flows(&batch, 1.0, flows), ErrorKind::Data, words);
        assert!(backend.flows(flows).unwrap().values().iter().all(|f| *f == 0.0), "a refused batch left flows");
    }
}

#[test]
fn what_is_missing_need_not_fit() {
    let case = Case::new("mixed", cases::mixed());
    let mut backend = common::cpu(&case.circuit, &case.params);
    for (batch, _) in misfits().into_iter().filter(|(batch, _)| batch.num_vars() == 4 && batch.num_rows() > 0) {
        let lls = backend.log_likelihoods(&batch.with_missing(|_, var| var != 2)).unwrap();
        assert!(lls.iter().all(|ll| ll.is_finite()), "{lls:?}");
    }
}

#[test]
fn a_refused_batch_leaves_parameters_and_optimizer_as_they_were() {
    let case = Case::new("mixed", cases::mixed());
    let good = case.batch_with_missing(6, 1);
    for spec in optimizers().into_iter().filter(|spec| !is_gradient(spec)) {
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
        let (mut untroubled, mut other) = start(&case.circuit, &case.params, &spec);
        for (batch, words) in misfits() {
            optimizer.learn(&mut backend, &good).unwrap();
            other.learn(&mut untroubled, &good).unwrap();
            let before = (optimizer.save(&backend).unwrap(), bits(&backend.params().unwrap()));
            refused(optimizer.learn(&mut backend, &batch), ErrorKind::Data, words);
            assert_eq!((optimizer.save(&backend).unwrap(), bits(&backend.params().unwrap())), before, "{spec:?}");
        }
        // Nor is there a trace that only shows later.
        optimizer.end_epoch(&mut backend).unwrap();
        other.end_epoch(&mut untroubled).unwrap();
        assert_eq!(bits(&backend.params().unwrap()), bits(&untroubled.params().unwrap()), "{spec:?}");
    }
}

#[test]
fn a_batch_refused_by_a_gradient_optimizer_leaves_no_trace_either() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    let bad = Batch::from_rows(&[0u8, 1, 2, 5], 4).unwrap();
    for spec in optimizers().into_iter().filter(is_gradient) {
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
        optimizer.learn(&mut backend, &case.batch(5, 1)).unwrap();
        let before = (optimizer.save(&backend).unwrap(), bits(&backend.params().unwrap()));
        refused(optimizer.learn(&mut backend, &bad), ErrorKind::Data, &["row 0", "variable 3", "5"]);
        assert_eq!((optimizer.save(&backend).unwrap(), bits(&backend.params().unwrap())), before, "{spec:?}");
    }
}

#[test]
fn steps_outside_their_range_are_refused() {
    let case = Case::new("hmm", cases::tied_hmm(3, 2, 2));
    let mut backend = common::cpu(&case.circuit, &case.params);
    for step in [0.0, 1.4, -0.1, f64::NAN, f64::INFINITY] {
        let step = Schedule::Constant { step };
        let specs = [
            OptimizerSpec::Anemone(AnemoneSpec { step, ..Default::default() }),
            OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { step, ..Default::default() }),
            OptimizerSpec::StepwiseEm(StepwiseEmSpec { step, ..Default::default() }),
        ];
        for spec in specs {
            refused(spec.build(&mut backend).map(|_| ()), ErrorKind::Option, &["must be in (0, 1]"]);
        }
    }
    for rate in [0.0, -1.0, f64::NAN] {
        let rate = Schedule::Constant { step: rate };
        for spec in [
            OptimizerSpec::Adam(AdamSpec { rate, ..Default::default() }),
            OptimizerSpec::Sgd(SgdSpec { rate, ..Default::default() }),
        ] {
            refused(spec.build(&mut backend).map(|_| ()), ErrorKind::Option, &["must be"]);
        }
    }
}

#[test]
fn other_options_outside_their_range_are_refused_by_name() {
    let case = Case::new("hmm", cases::tied_hmm(3, 2, 2));
    let mut backend = common::cpu(&case.circuit, &case.params);
    let mut refuse = |spec: OptimizerSpec, words: &[&str]| {
        refused(spec.build(&mut backend).map(|_| ()), ErrorKind::Option, words);
    };
    for momentum in [1.0, 1.5, -0.1, f64::NAN] {
        refuse(OptimizerSpec::Anemone(AnemoneSpec { momentum, ..Default::default() }), &["momentum", "[0, 1)"]);
        refuse(OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { momentum, ..Default::default() }), &["momentum", "[0, 1)"]);
        refuse(OptimizerSpec::Adam(AdamSpec { beta1: momentum, ..Default::default() }), &["beta1", "[0, 1)"]);
        refuse(OptimizerSpec::Adam(AdamSpec { beta2: momentum, ..Default::default() }), &["beta2", "[0, 1)"]);
    }
    let none = AnemoneSpec { batches_per_update: 0, ..Default::default() };
    refuse(OptimizerSpec::Anemone(none), &["batches_per_update", "at least 1"]);
    for smoothing in [Smoothing::Relative(-1.0), Smoothing::Absolute(f64::NAN)] {
        refuse(OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing }), &["smoothing", "0 or more"]);
    }
    let options = CpuOptions { threads: Some(0), ..CpuOptions::default() };
    let no_threads = CpuBackend::new(case.circuit.clone(), &case.params, &options).map(|_| ());
    refused(no_threads, ErrorKind::Option, &["threads = 0", "at least 1"]);
    for perturbation in [-1.0, f64::NAN, f64::INFINITY] {
        refused(Params::random(&case.circuit, 1, perturbation), ErrorKind::Option, &["perturbation"]);
    }
}

#[test]
fn distributions_that_are_none_are_refused() {
    refused(Categorical::new(0), ErrorKind::Option, &["at least one category"]);
    refused(Gaussian::new(0.0, 0.0), ErrorKind::Option, &["min_sigma = 0", "positive"]);
    refused(Gaussian::new(f64::NAN, 0.0), ErrorKind::Option, &["min_sigma"]);
    refused(DiscreteLogistic::new(1, (0.0, 1.0), 0.1), ErrorKind::Option, &["cats = 1", "two"]);
    refused(DiscreteLogistic::new(4, (1.0, 1.0), 0.1), ErrorKind::Option, &["range", "not empty"]);
}

#[test]
fn states_that_do_not_factor_are_refused_for_monarch() {
    for latents in [0, 1, 2, 7, 13] {
        refused(factor_latents(latents), ErrorKind::Option, &[&latents.to_string()]);
    }
    refused(monarch_hmm(4, (1, 6), Categorical::new(3).unwrap()), ErrorKind::Option, &["factors", "at least 2"]);
}

#[test]
fn circuits_that_are_none_are_refused_by_node_and_scope() {
    let mut circuit = CircuitBuilder::new(2);
    let x = [cases::categorical(&mut circuit, 0, 2, 2), cases::categorical(&mut circuit, 0, 2, 2)];
    refused(circuit.product(&x), ErrorKind::Circuit, &["node 2", "not decomposable", "variable 0"]);
    let y = cases::categorical(&mut circuit, 1, 2, 2);
    let weights = circuit.sum_param(1, 4).unwrap();
    refused(circuit.sum(&[x[0], y], weights), ErrorKind::Circuit, &["node 3", "not smooth", "{0}", "{1}"]);
    refused(circuit.finish(), ErrorKind::Circuit, &["root"]);
}

#[test]
fn parameters_of_another_circuit_are_refused() {
    let (case, other) = (Case::new("hmm", cases::tied_hmm(3, 2, 2)), Case::new("other", cases::tied_hmm(3, 3, 2)));
    let made = CpuBackend::new(case.circuit.clone(), &other.params, &CpuOptions::default()).map(|_| ());
    refused(made, ErrorKind::State, &["another shape"]);
    let mut backend = common::cpu(&case.circuit, &case.params);
    refused(backend.set_params(&other.params), ErrorKind::State, &["another shape"]);
    assert_eq!(bits(&backend.params().unwrap()), bits(&case.params));
    refused(Params::from_values(&case.circuit, vec![0.5; 3]), ErrorKind::State, &["3 parameters"]);
    for bad in [f32::NAN, f32::INFINITY, -0.1] {
        let mut values = case.params.values().to_vec();
        values[4] = bad;
        refused(Params::from_values(&case.circuit, values), ErrorKind::State, &["block", "row"]);
    }
}

#[test]
fn gradients_on_densities_are_unsupported() {
    let case = Case::new("mixed", cases::mixed());
    let mut backend = common::cpu(&case.circuit, &case.params);
    for spec in optimizers().into_iter().filter(is_gradient) {
        refused(spec.build(&mut backend).map(|_| ()), ErrorKind::Unsupported, &["gaussian", "EM"]);
    }
}

#[test]
fn the_state_of_another_optimizer_is_refused_and_changes_nothing() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    let batch = case.batch(5, 1);
    let specs = optimizers();
    for from in &specs {
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, from);
        optimizer.learn(&mut backend, &batch).unwrap();
        let state = optimizer.save(&backend).unwrap();
        for into in specs.iter().filter(|into| std::mem::discriminant(*into) != std::mem::discriminant(from)) {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, into);
            optimizer.learn(&mut backend, &batch).unwrap();
            let before = optimizer.save(&backend).unwrap();
            refused(
                optimizer.load(&mut backend, &state),
                ErrorKind::State,
                &["the saved state is of", &state.optimizer],
            );
            assert_eq!(optimizer.save(&backend).unwrap(), before, "{from:?} into {into:?}");
        }
    }
}

#[test]
fn state_that_is_incomplete_or_of_another_circuit_is_refused_and_changes_nothing() {
    let (case, other) = (Case::new("hmm", cases::tied_hmm(4, 3, 5)), Case::new("other", cases::tied_hmm(4, 4, 5)));
    for spec in optimizers() {
        let saved = |case: &Case| {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
            optimizer.learn(&mut backend, &case.batch(5, 1)).unwrap();
            optimizer.save(&backend).unwrap()
        };
        let whole = saved(&case);
        let mut damaged = Vec::new();
        for name in whole.counters.keys() {
            let mut state = whole.clone();
            state.counters.remove(name);
            damaged.push(state);
        }
        for name in whole.numbers.keys() {
            let mut state = whole.clone();
            state.numbers.remove(name);
            damaged.push(state);
        }
        for name in whole.buffers.keys() {
            let mut state = whole.clone();
            state.buffers.remove(name);
            damaged.push(state.clone());
            state.buffers.insert(name.clone(), Tensor::F64(vec![0.5; 2]));
            damaged.push(state);
        }
        if !whole.buffers.is_empty() {
            damaged.push(saved(&other));
        }
        assert!(!damaged.is_empty());
        for state in damaged {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
            optimizer.learn(&mut backend, &case.batch(5, 2)).unwrap();
            let before = optimizer.save(&backend).unwrap();
            refused(optimizer.load(&mut backend, &state), ErrorKind::State, &["saved"]);
            assert_eq!(optimizer.save(&backend).unwrap(), before, "{spec:?}: a refused state was half loaded");
        }
    }
}

#[test]
fn buffers_of_another_backend_are_refused() {
    let case = Case::new("hmm", cases::tied_hmm(3, 2, 2));
    let (mut one, mut two) = (common::cpu(&case.circuit, &case.params), common::cpu(&case.circuit, &case.params));
    let flows = one.new_flows(FlowPrecision::Single).unwrap();
    let rows = one.new_rows().unwrap();
    refused(two.add_flows(&case.batch(2, 1), 1.0, flows), ErrorKind::State, &["another backend"]);
    refused(two.top_down(rows), ErrorKind::State, &["another backend"]);
    // A refused call must not have cost the backend its working memory.
    assert!(two.log_likelihoods(&case.batch(2, 1)).unwrap().iter().all(|ll| ll.is_finite()));
}
