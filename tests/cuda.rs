//! The CUDA backend on the emulated driver, held against the CPU backend.
//!
//! Every test runs itself again in a process that finds `kernels/emulator` where a driver would be; the PTX that ships is executed
//! there. Eager streams do everything at once; lazy ones only what somebody waits for, which is how a missing event is found.

mod common;

use std::sync::Arc;

use anemone::backend::cuda::{CudaBackend, CudaOptions, CudaPrecision};
use anemone::backend::{Backend, BatchReport, FlowPrecision};
use anemone::circuit::{Categorical, Circuit, Gaussian, Params, Smoothing};
use anemone::data::Batch;
use anemone::error::ErrorKind;
use anemone::optim::{
    AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, Optimizer, OptimizerSpec, Schedule, SgdSpec,
    StepwiseEmSpec,
};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tying, hmm, monarch_hmm};

use common::cases::{self, Case};
use common::compare::{LOG_LIKELIHOOD, Tolerance, close, close_number, close_rows, close_table};
use common::emulator::{detach, has_real_driver, within};
use common::{cpu, mean_flows, theta, top_down};

const EAGER: &[(&str, &str)] = &[("STREAMS", "eager")];
const LAZY: &[(&str, &str)] = &[("STREAMS", "lazy")];
const OTHERS_FIRST: &[(&str, &str)] = &[("STREAMS", "others-first")];

/// f32 kernels add in another order than the CPU: 1e-4 of a number, and of the largest flow where a number is next to nothing.
const F32: Tolerance = Tolerance { absolute: 1e-6, relative: 1e-4 };

/// Operands of tf32 have 10 bits: 5e-4 each, over a handful of levels.
const TF32: Tolerance = Tolerance { absolute: 2e-5, relative: 3e-3 };

fn cuda(circuit: &Arc<Circuit>, params: &Params, precision: CudaPrecision) -> CudaBackend {
    let options = CudaOptions { precision, ..CudaOptions::default() };
    CudaBackend::new(circuit.clone(), params, &options).unwrap()
}

/// The structures that the project is about, at sizes that the emulator does in seconds.
fn structures(latents: usize, length: usize) -> Vec<Case> {
    let table = || Categorical::new(7).unwrap();
    let factors = if latents.is_multiple_of(4) { (4, latents / 4) } else { (2, latents / 2) };
    vec![
        Case::new("hmm", hmm(length, latents, table(), Tying::Homogeneous).unwrap()),
        Case::new("monarch hmm", monarch_hmm(length, factors, table()).unwrap()),
        cases::learned_tree("hclt", latents, 5, HcltOptions::default()),
        cases::chunked_trees(9, latents.min(8), 4),
    ]
}

/// Rows with missing cells and weights, one of them zero.
fn weighted(case: &Case, rows: usize, seed: u64) -> Batch {
    let mut rng = Rng::stream(seed, 5);
    let mut weights: Vec<f32> = (0..rows).map(|_| 0.25 + 2.0 * rng.uniform() as f32).collect();
    weights[rows / 2] = 0.0;
    case.batch_with_missing(rows, seed).with_weights(weights).unwrap()
}

fn same_report(what: &str, got: &BatchReport, want: &BatchReport, tolerance: Tolerance) {
    assert_eq!(got.num_rows, want.num_rows, "{what}");
    assert_eq!(got.impossible_rows, want.impossible_rows, "{what}: impossible rows");
    close_number(&format!("{what}: weight"), got.weight, want.weight, F32);
    close_number(&format!("{what}: possible weight"), got.possible_weight, want.possible_weight, F32);
    close_number(&format!("{what}: log-likelihood"), got.log_likelihood, want.log_likelihood, tolerance);
}

/// Likelihoods, flows in both precisions, TD and row masses of one case.
fn agrees(case: &Case, batch: &Batch, precision: CudaPrecision, tolerance: Tolerance) {
    let Case { name, circuit, params } = case;
    let mut want = cpu(circuit, params);
    let mut got = cuda(circuit, params, precision);
    let (found, wanted) = (got.log_likelihoods(batch).unwrap(), want.log_likelihoods(batch).unwrap());
    close(&format!("{name}: log p"), &found, &wanted, LOG_LIKELIHOOD);
    let (flows, report) = mean_flows(&mut got, batch);
    let (want_flows, want_report) = mean_flows(&mut want, batch);
    close_table(&format!("{name}: flows"), &flows, &want_flows, tolerance);
    same_report(name, &report, &want_report, tolerance);
    close_rows(&format!("{name}: TD"), &top_down(&mut got), &top_down(&mut want), F32);

    let (double, want_double) =
        (got.new_flows(FlowPrecision::Double).unwrap(), want.new_flows(FlowPrecision::Double).unwrap());
    got.add_flows(batch, 0.5, double).unwrap();
    want.add_flows(batch, 0.5, want_double).unwrap();
    let (rows, want_rows) = (got.new_rows().unwrap(), want.new_rows().unwrap());
    got.row_masses(double, 2.0, rows).unwrap();
    want.row_masses(want_double, 2.0, want_rows).unwrap();
    let scaled = Tolerance { absolute: tolerance.absolute * batch.num_rows() as f64, ..tolerance };
    close(&format!("{name}: masses"), &got.rows(rows).unwrap(), &want.rows(want_rows).unwrap(), scaled);
}

#[test]
fn every_shape_has_the_values_and_flows_of_the_cpu() {
    within("every_shape_has_the_values_and_flows_of_the_cpu", LAZY, || {
        for case in cases::all() {
            eprintln!("{}", case.name);
            agrees(&case, &case.batch_with_missing(5, 3), CudaPrecision::F32, F32);
        }
    });
}

#[test]
fn structures_agree_with_the_cpu_in_f32() {
    within("structures_agree_with_the_cpu_in_f32", EAGER, || {
        for case in structures(20, 6) {
            agrees(&case, &weighted(&case, 37, 1), CudaPrecision::F32, F32);
        }
    });
}

#[test]
fn structures_agree_with_the_cpu_on_tensor_cores() {
    within("structures_agree_with_the_cpu_on_tensor_cores", LAZY, || {
        for case in structures(16, 7) {
            agrees(&case, &weighted(&case, 21, 2), CudaPrecision::Tf32, TF32);
            agrees(&case, &weighted(&case, 9, 3), CudaPrecision::Bf16x3, F32);
        }
        // bf16 has 7 bits: eight times as far off as tf32.
        let bf16 = Tolerance { absolute: 2e-4, relative: 2.4e-2 };
        let case = &structures(12, 6)[0];
        agrees(case, &weighted(case, 9, 4), CudaPrecision::Bf16, bf16);
    });
}

fn specs() -> Vec<OptimizerSpec> {
    let step = Schedule::Constant { step: 0.3 };
    vec![
        OptimizerSpec::Anemone(AnemoneSpec { step, ..AnemoneSpec::default() }),
        OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { step, ..MiniBatchEmSpec::default() }),
        OptimizerSpec::MiniBatchEm(MiniBatchEmSpec {
            step,
            smoothing: Smoothing::Absolute(1e-3),
            ..MiniBatchEmSpec::default()
        }),
        OptimizerSpec::StepwiseEm(StepwiseEmSpec { step, ..StepwiseEmSpec::default() }),
        OptimizerSpec::FullBatchEm(FullBatchEmSpec::default()),
        OptimizerSpec::Adam(AdamSpec { rate: Schedule::Constant { step: 0.05 }, ..AdamSpec::default() }),
        OptimizerSpec::Sgd(SgdSpec { rate: Schedule::Constant { step: 0.1 }, ..SgdSpec::default() }),
    ]
}

/// Three steps and the end of an epoch, on a device and on the CPU.
fn learns_alike(case: &Case, spec: &OptimizerSpec, precision: CudaPrecision, tolerance: Tolerance) {
    let Case { name, circuit, params } = case;
    let what = format!("{name}: {}", spec.name());
    let (mut got, mut want) = (cuda(circuit, params, precision), cpu(circuit, params));
    let (mut got_rule, mut want_rule) = (spec.build(&mut got).unwrap(), spec.build(&mut want).unwrap());
    for i in 0..3 {
        let batch = weighted(case, 11, 40 + i);
        let report = got_rule.learn(&mut got, &batch).unwrap();
        let want_report = want_rule.learn(&mut want, &batch).unwrap();
        same_report(&what, &report.batch, &want_report.batch, tolerance);
    }
    got_rule.end_epoch(&mut got).unwrap();
    want_rule.end_epoch(&mut want).unwrap();
    close_table(&format!("{what}: parameters"), &theta(&got), &theta(&want), tolerance);
}

#[test]
fn every_optimizer_learns_what_it_learns_on_the_cpu() {
    within("every_optimizer_learns_what_it_learns_on_the_cpu", EAGER, || {
        for case in structures(8, 6) {
            for spec in specs() {
                learns_alike(&case, &spec, CudaPrecision::F32, Tolerance { absolute: 1e-5, relative: 1e-4 });
            }
        }
    });
}

#[test]
fn every_optimizer_learns_on_tensor_cores_and_lazy_streams() {
    within("every_optimizer_learns_on_tensor_cores_and_lazy_streams", LAZY, || {
        for case in structures(16, 6) {
            for spec in specs() {
                learns_alike(&case, &spec, CudaPrecision::Tf32, Tolerance { absolute: 1e-4, relative: 3e-3 });
            }
        }
    });
}
