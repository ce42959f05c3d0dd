//! Mistakes of users are typed errors that say where and what to do, and leave no trace.

use std::fmt::Debug;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{AdamStep, Backend, EmUpdate, FlowPrecision, FlowsId, ParamRowsId, Retain, Tensor};
use anemone::circuit::{Categorical, CircuitBuilder, DiscreteLogistic, Gaussian, Params, Slice, Smoothing, SumGroup};
use anemone::data::{Batch, Values};
use anemone::optim::{
    AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule, SgdSpec, StepwiseEmSpec,
};
use anemone::structure::{factor_latents, monarch_hmm};
use anemone::{ErrorKind, Result};

use crate::common::cases::{self, Case};
use crate::common::{bits, cpu, start};

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
    let columns = |a: Values, b: Vec<f32>, d: Values| {
        Batch::from_columns(vec![a, Values::F32(b), Values::F32(vec![0.0; 3]), d]).unwrap()
    };
    let (cats, reals, bins) = (Values::U8(vec![0, 1, 2]), vec![0.5, -1.0, 2.0], Values::U8(vec![7, 0, 3]));
    let whole = columns(cats.clone(), reals.clone(), bins.clone());
    vec![
        (columns(Values::U8(vec![0, 1, 3]), reals.clone(), bins.clone()), &["row 2", "variable 0", "3", "0..3"]),
        (columns(Values::U32(vec![0, 70_000, 1]), reals.clone(), bins.clone()), &["row 1", "variable 0", "70000"]),
        (columns(cats.clone(), reals.clone(), Values::U16(vec![8, 0, 3])), &["row 0", "variable 3", "8", "0..8"]),
        (columns(Values::F32(vec![0.0; 3]), reals.clone(), bins.clone()), &["variable 0", "integer column"]),
        (columns(cats.clone(), vec![0.0, f32::NAN, 1.0], bins.clone()), &["row 1", "variable 1", "missing"]),
        (columns(cats, vec![0.0, 1.0, f32::INFINITY], bins), &["row 2", "variable 1"]),
        (whole.slice(1..1), &["no rows", "at least one"]),
        (Batch::from_rows(&[0u8, 1, 2], 3).unwrap(), &["3 variables", "the circuit 4"]),
    ]
}

#[test]
fn a_batch_that_does_not_fit_is_refused_by_row_and_variable() {
    let case = Case::new("mixed", cases::mixed());
    let mut backend = cpu(&case.circuit, &case.params);
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
    let mut backend = cpu(&case.circuit, &case.params);
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
    let mut backend = cpu(&case.circuit, &case.params);
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
    let mut backend = cpu(&case.circuit, &case.params);
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
        refuse(
            OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing, ..Default::default() }),
            &["smoothing", "0 or more"],
        );
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
    for least in [0.0, 1e-46, 1e39] {
        refused(Gaussian::new(least, 0.0), ErrorKind::Option, &["min_sigma = ", "f32"]);
        refused(DiscreteLogistic::new(4, (0.0, 1.0), least), ErrorKind::Option, &["min_std = ", "f32"]);
    }
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
    let mut backend = cpu(&case.circuit, &case.params);
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
    let mut backend = cpu(&case.circuit, &case.params);
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

/// A backend with two buffers of every kind, none of them zero.
struct Bench {
    backend: CpuBackend,
    single: [FlowsId; 3],
    double: FlowsId,
    rows: [ParamRowsId; 2],
}

impl Bench {
    fn new(case: &Case) -> Self {
        let mut backend = cpu(&case.circuit, &case.params);
        let single = [0; 3].map(|_| backend.new_flows(FlowPrecision::Single).unwrap());
        let double = backend.new_flows(FlowPrecision::Double).unwrap();
        let rows = [0; 2].map(|_| backend.new_rows().unwrap());
        for (seed, id) in single.into_iter().chain([double]).enumerate() {
            backend.add_flows(&case.batch(5, seed as u64), 0.2, id).unwrap();
        }
        rows.iter().for_each(|&id| backend.top_down(id).unwrap());
        Self { backend, single, double, rows }
    }

    /// Everything that a call could have changed.
    fn everything(&self) -> (Vec<Tensor>, Vec<u32>) {
        let flows = self.single.iter().chain([&self.double]).map(|&id| self.backend.save_flows(id).unwrap());
        let rows = self.rows.iter().map(|&id| self.backend.save_rows(id).unwrap());
        (flows.chain(rows).collect(), bits(&self.backend.params().unwrap()))
    }

    /// The call fails, and nothing has changed.
    fn refuses<T: Debug>(
        &mut self,
        kind: ErrorKind,
        words: &[&str],
        what: &str,
        call: impl Fn(&mut CpuBackend) -> Result<T>,
    ) {
        let before = self.everything();
        let result = call(&mut self.backend).map(|value| format!("{value:?}"));
        assert!(result.is_err(), "{what} must be refused");
        refused(result, kind, words);
        assert_eq!(self.everything(), before, "{what} was refused and left a trace");
    }
}

const ADAM_STEP: AdamStep = AdamStep { rate: 0.1, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, step: 1 };

fn em_update(rows: ParamRowsId, flows: FlowsId) -> EmUpdate {
    let retain = Some(Retain { rows, at_least: None, scale: 1.0, offset: 0.0 });
    EmUpdate { retain, retain_inputs: retain, flows, gain: 1.0, smoothing: Smoothing::NONE }
}

/// Both backends have buffers of the same numbers: a handle must know whose it is.
#[test]
fn buffers_of_another_backend_are_refused() {
    let case = Case::new("hmm", cases::tied_hmm(3, 2, 2));
    let (mut mine, other) = (Bench::new(&case), Bench::new(&case));
    let ([f, g, h], [r, q]) = (mine.single, mine.rows);
    let (flows, rows) = (other.single[1], other.rows[1]);
    let (saved_flows, saved_rows) = (mine.backend.save_flows(f).unwrap(), mine.backend.save_rows(r).unwrap());
    let batch = case.batch(2, 1);
    let (kind, words) = (ErrorKind::State, &["another backend"][..]);
    mine.refuses(kind, words, "add_flows", |b| b.add_flows(&batch, 1.0, flows));
    mine.refuses(kind, words, "top_down", |b| b.top_down(rows));
    mine.refuses(kind, words, "row_masses of", |b| b.row_masses(flows, 1.0, r));
    mine.refuses(kind, words, "row_masses into", |b| b.row_masses(f, 1.0, rows));
    mine.refuses(kind, words, "em_update retaining", |b| b.em_update(&em_update(rows, f)));
    mine.refuses(kind, words, "em_update with", |b| b.em_update(&em_update(r, flows)));
    let at_least = Some(Retain { rows: r, at_least: Some(rows), scale: 1.0, offset: 0.0 });
    let update = EmUpdate { retain_inputs: at_least, ..em_update(r, f) };
    mine.refuses(kind, words, "em_update of at least", |b| b.em_update(&update));
    mine.refuses(kind, words, "gradient of", |b| b.gradient(flows, 1.0, r));
    mine.refuses(kind, words, "gradient with", |b| b.gradient(f, 1.0, rows));
    mine.refuses(kind, words, "adam's gradient", |b| b.adam_update(flows, g, h, &ADAM_STEP));
    mine.refuses(kind, words, "adam's first moment", |b| b.adam_update(f, flows, h, &ADAM_STEP));
    mine.refuses(kind, words, "adam's second moment", |b| b.adam_update(f, g, flows, &ADAM_STEP));
    mine.refuses(kind, words, "ascend", |b| b.ascend(flows, 0.1));
    mine.refuses(kind, words, "scale", |b| b.scale(flows, 2.0));
    mine.refuses(kind, words, "add_scaled of", |b| b.add_scaled(flows, 1.0, f));
    mine.refuses(kind, words, "add_scaled into", |b| b.add_scaled(f, 1.0, flows));
    mine.refuses(kind, words, "add_scaled to itself", |b| b.add_scaled(flows, 1.0, flows));
    mine.refuses(kind, words, "blend_rows of", |b| b.blend_rows(q, 0.5, rows, 0.5));
    mine.refuses(kind, words, "blend_rows into", |b| b.blend_rows(rows, 0.5, q, 0.5));
    mine.refuses(kind, words, "flows", |b| b.flows(flows));
    mine.refuses(kind, words, "rows", |b| b.rows(rows));
    mine.refuses(kind, words, "save_flows", |b| b.save_flows(flows));
    mine.refuses(kind, words, "save_rows", |b| b.save_rows(rows));
    mine.refuses(kind, words, "load_flows", |b| b.load_flows(flows, &saved_flows));
    mine.refuses(kind, words, "load_rows", |b| b.load_rows(rows, &saved_rows));
    // A refused call must not have cost the backend its working memory.
    assert!(mine.backend.log_likelihoods(&batch).unwrap().iter().all(|ll| ll.is_finite()));
    // The same calls with buffers of its own do something.
    let before = mine.everything();
    mine.backend.gradient(f, 1.0, r).unwrap();
    mine.backend.adam_update(f, g, h, &ADAM_STEP).unwrap();
    let after = mine.everything();
    assert!((0..3).all(|i| before.0[i] != after.0[i]) && before.1 != after.1);
}

#[test]
fn gradient_steps_on_buffers_that_do_not_suit_are_refused_and_change_nothing() {
    let mut bench = Bench::new(&Case::new("hmm", cases::tied_hmm(3, 2, 2)));
    let ([f, g, h], double) = (bench.single, bench.double);
    let (kind, words) = (ErrorKind::Unsupported, &["single precision"][..]);
    bench.refuses(kind, words, "a double gradient", |b| b.adam_update(double, g, h, &ADAM_STEP));
    bench.refuses(kind, words, "a double first moment", |b| b.adam_update(f, double, h, &ADAM_STEP));
    bench.refuses(kind, words, "a double second moment", |b| b.adam_update(f, g, double, &ADAM_STEP));
    bench.refuses(kind, words, "ascending a double gradient", |b| b.ascend(double, 0.1));
    for (what, [a, b, c]) in [("gradient", [f, f, h]), ("moment", [f, g, g]), ("both", [f, g, f])] {
        bench.refuses(ErrorKind::State, &["of its own"], what, |x| x.adam_update(a, b, c, &ADAM_STEP));
    }
}

#[test]
fn gradients_asked_of_a_backend_with_densities_are_unsupported_and_change_nothing() {
    let mut bench = Bench::new(&Case::new("mixed", cases::mixed()));
    let ([f, g, h], [r, _]) = (bench.single, bench.rows);
    let (kind, words) = (ErrorKind::Unsupported, &["gaussian", "EM"][..]);
    bench.refuses(kind, words, "gradient", |b| b.gradient(f, 1.0, r));
    bench.refuses(kind, words, "adam_update", |b| b.adam_update(f, g, h, &ADAM_STEP));
    bench.refuses(kind, words, "ascend", |b| b.ascend(f, 0.1));
}

#[test]
fn marking_missing_cells_twice_marks_those_of_both() {
    let batch = Batch::from_rows(&[0u8, 1, 2, 3, 4, 5], 2).unwrap();
    let twice = batch.with_missing(|row, var| (row, var) == (0, 1)).with_missing(|row, _| row == 2);
    let marked = |batch: &Batch| -> Vec<(usize, usize)> {
        (0..3).flat_map(|row| [(row, 0), (row, 1)]).filter(|&(row, var)| batch.is_missing(row, var)).collect()
    };
    assert_eq!(marked(&twice), [(0, 1), (2, 0), (2, 1)]);
    assert_eq!(marked(&twice.clone().with_missing(|_, _| false)), marked(&twice));
}

#[test]
fn a_param_row_that_does_not_exist_is_refused_and_nothing_is_written() {
    for case in [Case::new("hmm", cases::tied_hmm(3, 2, 4)), Case::new("mixed", cases::mixed())] {
        let mut params = case.params.clone();
        for id in case.circuit.param_ids() {
            let units = case.circuit.layout().block(id).units();
            let row = params.row(id, 0);
            for unit in [units, units + 1, usize::MAX] {
                refused(params.set_row(id, unit, &row), ErrorKind::State, &["block", &unit.to_string()]);
            }
            refused(params.set_row(id, 0, &[&row[..], &[0.5]].concat()), ErrorKind::State, &["block", "row 0"]);
            assert_eq!(bits(&params), bits(&case.params), "{}: block {id}", case.name);
        }
    }
}

#[test]
fn a_perturbation_that_would_start_weights_at_zero_is_refused() {
    let case = Case::new("hmm", cases::tied_hmm(3, 2, 50));
    for perturbation in [80.1, 200.0, 1e300] {
        refused(Params::random(&case.circuit, 1, perturbation), ErrorKind::Option, &["perturbation", "80"]);
    }
    let params = Params::random(&case.circuit, 1, 80.0).unwrap();
    assert!(params.values().iter().all(|p| *p > 0.0), "a weight starts at zero and stays there");
}

#[test]
fn values_too_large_for_a_density_are_refused_by_row_and_variable() {
    let case = Case::new("mixed", cases::mixed());
    let mut backend = cpu(&case.circuit, &case.params);
    let batch = |value: f32| {
        let columns = vec![
            Values::U8(vec![0, 1]),
            Values::F32(vec![0.0, 1.0]),
            Values::F32(vec![0.0, value]),
            Values::U8(vec![0, 1]),
        ];
        Batch::from_columns(columns).unwrap()
    };
    for value in [1.1e18f32, -1.1e18, 3e38, f32::NEG_INFINITY] {
        refused(backend.log_likelihoods(&batch(value)), ErrorKind::Data, &["row 1", "variable 2"]);
    }
    for value in [1e18f32, -1e18] {
        let lls = backend.log_likelihoods(&batch(value)).unwrap();
        assert!(lls.iter().all(|ll| ll.is_finite()), "{value}: {lls:?}");
    }
}

#[test]
fn sizes_no_machine_holds_are_refused_and_the_builder_goes_on() {
    let mut circuit = CircuitBuilder::new(1);
    for (units, cols) in [(usize::MAX, 2), (2, usize::MAX), (usize::MAX, usize::MAX), (1 << 40, 1 << 40)] {
        refused(circuit.sum_param(units, cols), ErrorKind::Option, &["parameter block 0"]);
    }
    let table = Categorical::new(u32::MAX).unwrap();
    refused(circuit.input_param(usize::MAX, table), ErrorKind::Option, &["parameter block 0"]);
    let x = cases::categorical(&mut circuit, 0, 2, 3);
    let weights = circuit.sum_param(1, 2).unwrap();
    for (start, units) in [(usize::MAX, 2), (usize::MAX - 1, 2), (1, usize::MAX), (2, 1), (3, 2)] {
        let children = vec![Slice { node: x, start, units }];
        let sum = circuit.grouped_sum(vec![SumGroup { children, param: weights }]);
        refused(sum, ErrorKind::Circuit, &["node 1", "2 units"]);
    }
    circuit.sum(&[x], weights).unwrap();
    assert_eq!(circuit.finish().unwrap().nodes().len(), 2);
}
