//! The CUDA backend on the emulated driver, held against the CPU backend.
//!
//! Every test runs itself again in a process that finds `kernels/emulator` where a driver would be; the PTX that ships
//! is executed there. Whole steps run in every mode of its streams: eager ones do everything at once, lazy ones only
//! what is waited for, and where others go first a slot is filled as soon as it may be. The last two are how a missing
//! event is found.

mod averages;

use std::sync::Arc;

use anemone::ErrorKind;
use anemone::backend::cuda::{CudaBackend, CudaGroup, CudaOptions, CudaPrecision};
use anemone::backend::{Backend, BatchReport, FlowPrecision};
use anemone::circuit::{Categorical, Circuit, Gaussian, Params, Smoothing};
use anemone::data::Batch;
use anemone::optim::{
    AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule, SgdSpec, StepwiseEmSpec,
};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tree, Tying, hclt, hmm, hmm_with, monarch_hmm};

use crate::common::cases::{self, Case};
use crate::common::compare::{LOG_LIKELIHOOD, Tolerance, close, close_number, close_rows, close_table};
use crate::common::emulator::{STREAM_MODES, detach, has_real_driver, within, within_each};
use crate::common::{cpu, mean_flows, theta, top_down};

/// For verbs that nothing but the compute stream has to do with.
const LAZY: &[(&str, &str)] = &[("STREAMS", "lazy")];

/// f32 kernels add in another order than the CPU: 1e-4 of a number, and of the largest flow where a number is next to
/// nothing.
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
        Case::new("hmm", hmm(length, latents, table()).unwrap()),
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
    within_each(&STREAM_MODES, "backend::every_shape_has_the_values_and_flows_of_the_cpu", &[], || {
        for case in cases::all() {
            eprintln!("{}", case.name);
            agrees(&case, &case.batch_with_missing(5, 3), CudaPrecision::F32, F32);
        }
    });
}

#[test]
fn structures_agree_with_the_cpu_in_f32() {
    within_each(&STREAM_MODES, "backend::structures_agree_with_the_cpu_in_f32", &[], || {
        for case in structures(20, 6) {
            agrees(&case, &weighted(&case, 37, 1), CudaPrecision::F32, F32);
        }
    });
}

#[test]
fn structures_agree_with_the_cpu_on_tensor_cores() {
    within_each(&STREAM_MODES, "backend::structures_agree_with_the_cpu_on_tensor_cores", &[], || {
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

/// Enough rows and groups for tiles of 128: a star of many leaves, forwards and backwards, and a chain of many weights.
#[test]
fn tall_tiles_agree_with_the_cpu() {
    within_each(&STREAM_MODES, "backend::tall_tiles_agree_with_the_cpu", &[], || {
        let parents: Vec<Option<usize>> = (0..20).map(|var| (var > 0).then_some(0)).collect();
        let tree = Tree::from_parents(&parents).unwrap();
        let star = hclt(&tree, 8, |_| Categorical::new(3).unwrap(), HcltOptions::default()).unwrap();
        let chain = hmm_with(18, 100, Categorical::new(3).unwrap(), Tying::Inhomogeneous).unwrap();
        for (case, rows) in [(Case::new("star", star), 130), (Case::new("chain", chain), 5)] {
            agrees(&case, &weighted(&case, rows, 9), CudaPrecision::Tf32, TF32);
            agrees(&case, &weighted(&case, rows, 9), CudaPrecision::Bf16x3, F32);
        }
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
    within_each(&STREAM_MODES, "backend::every_optimizer_learns_what_it_learns_on_the_cpu", &[], || {
        for case in structures(8, 6) {
            for spec in specs() {
                learns_alike(&case, &spec, CudaPrecision::F32, Tolerance { absolute: 1e-5, relative: 1e-4 });
            }
        }
    });
}

#[test]
fn every_optimizer_learns_on_tensor_cores() {
    within_each(&STREAM_MODES, "backend::every_optimizer_learns_on_tensor_cores", &[], || {
        for case in structures(16, 6) {
            for spec in specs() {
                learns_alike(&case, &spec, CudaPrecision::Tf32, Tolerance { absolute: 1e-4, relative: 3e-3 });
            }
        }
    });
}

/// Passes that the host does not wait for: when a slot comes round again, what reads it may not have run yet.
#[test]
fn a_slot_is_not_filled_before_it_was_read() {
    within_each(&STREAM_MODES, "backend::a_slot_is_not_filled_before_it_was_read", &[], || {
        let gaussian = Gaussian::new(0.05, 0.5).unwrap();
        let gaussians = Case::new("gaussian hmm", hmm(5, 4, gaussian).unwrap());
        for case in [&structures(8, 6)[0], &gaussians] {
            let Case { name, circuit, params } = case;
            let (mut got, mut want) = (cuda(circuit, params, CudaPrecision::F32), cpu(circuit, params));
            let run = |backend: &mut dyn Backend| {
                let flows = backend.new_flows(FlowPrecision::Single).unwrap();
                let rows: Vec<_> = (0..5).map(|_| backend.new_rows().unwrap()).collect();
                // The first pass is of one row, and its memory goes for that of larger ones.
                backend.top_down(rows[4]).unwrap();
                for (i, rows) in rows[..4].iter().enumerate() {
                    backend.add_flows(&weighted(case, 9, i as u64), 0.1, flows).unwrap();
                    backend.top_down(*rows).unwrap();
                }
                // Twice in a row: the next batch goes to memory that was not waited for at all.
                backend.top_down(rows[0]).unwrap();
                backend.add_flows(&weighted(case, 9, 7), 0.1, flows).unwrap();
                let rows: Vec<_> = rows.iter().map(|rows| backend.rows(*rows).unwrap()).collect();
                (backend.flows(flows).unwrap(), rows)
            };
            let ((flows, rows), (want_flows, want_rows)) = (run(&mut got), run(&mut want));
            let tolerance = Tolerance { absolute: 1e-5, relative: 1e-4 };
            close(&format!("{name}: flows"), flows.values(), want_flows.values(), tolerance);
            for (rows, want) in rows.iter().zip(&want_rows) {
                close(&format!("{name}: TD"), rows, want, F32);
            }
        }
    });
}

/// Six batches of one size and weight: from the third on, a step is a replayed graph.
#[test]
fn replayed_graphs_learn_what_single_launches_do() {
    within_each(&STREAM_MODES, "backend::replayed_graphs_learn_what_single_launches_do", &[], || {
        let spec = &specs()[0];
        for case in structures(8, 6) {
            let Case { name, circuit, params } = &case;
            let (mut got, mut want) = (cuda(circuit, params, CudaPrecision::F32), cpu(circuit, params));
            let (mut got_rule, mut want_rule) = (spec.build(&mut got).unwrap(), spec.build(&mut want).unwrap());
            for i in 0..6 {
                let batch = case.batch_with_missing(13, i);
                let report = got_rule.learn(&mut got, &batch).unwrap();
                same_report(name, &report.batch, &want_rule.learn(&mut want, &batch).unwrap().batch, F32);
            }
            close_table(&format!("{name}: parameters"), &theta(&got), &theta(&want), F32);
            assert!(got.phase_seconds().forward >= 0.0);
        }
    });
}

/// Densities and tables in one circuit, with every rule that takes densities.
#[test]
fn densities_learn_what_they_learn_on_the_cpu() {
    within_each(&STREAM_MODES, "backend::densities_learn_what_they_learn_on_the_cpu", &[], || {
        let gaussian = Gaussian::new(0.05, 0.5).unwrap();
        let gaussians = Case::new("gaussian hmm", hmm(6, 8, gaussian).unwrap());
        for case in [Case::new("mixed inputs", cases::mixed()), gaussians] {
            agrees(&case, &weighted(&case, 17, 6), CudaPrecision::F32, Tolerance { absolute: 1e-5, relative: 1e-4 });
            for spec in &specs()[..5] {
                learns_alike(&case, spec, CudaPrecision::F32, Tolerance { absolute: 1e-4, relative: 1e-3 });
            }
        }
    });
}

/// A batch larger than the budget is cut, and the step is the same.
#[test]
fn a_batch_in_several_micro_batches_is_the_same_step() {
    within_each(&STREAM_MODES, "backend::a_batch_in_several_micro_batches_is_the_same_step", &[], || {
        for case in structures(8, 6) {
            let Case { name, circuit, params } = &case;
            let batch = weighted(&case, 40, 8);
            let budget = cuda(circuit, params, CudaPrecision::F32).micro_batch_bytes(17);
            let options =
                CudaOptions { memory_budget: Some(budget), precision: CudaPrecision::F32, ..CudaOptions::default() };
            for spec in [&specs()[0], &specs()[1], &specs()[4]] {
                let mut got = CudaBackend::new(circuit.clone(), params, &options).unwrap();
                let mut want = cpu(circuit, params);
                let (mut rule, mut want_rule) = (spec.build(&mut got).unwrap(), spec.build(&mut want).unwrap());
                for _ in 0..2 {
                    let report = rule.learn(&mut got, &batch).unwrap();
                    same_report(name, &report.batch, &want_rule.learn(&mut want, &batch).unwrap().batch, F32);
                }
                rule.end_epoch(&mut got).unwrap();
                want_rule.end_epoch(&mut want).unwrap();
                assert_eq!(got.micro_batch_rows(), Some(17), "{name}");
                close_table(name, &theta(&got), &theta(&want), Tolerance { absolute: 1e-5, relative: 1e-4 });
                let (found, wanted) = (got.log_likelihoods(&batch).unwrap(), want.log_likelihoods(&batch).unwrap());
                close(name, &found, &wanted, Tolerance { absolute: 1e-4, relative: 1e-4 });
            }
        }
    });
}

/// More rows of one category, and more missing cells, than a block adds up at once.
#[test]
fn a_category_of_many_rows_is_added_up_in_pieces() {
    within_each(&STREAM_MODES, "backend::a_category_of_many_rows_is_added_up_in_pieces", &[], || {
        let circuit = Arc::new(hmm(2, 3, Categorical::new(4).unwrap()).unwrap());
        let params = Params::random(&circuit, 3, 2.0).unwrap();
        let values: Vec<u8> = (0..1400).map(|i| if i % 7 == 0 { (i % 4) as u8 } else { 2 }).collect();
        let batch = Batch::from_rows(&values, 2).unwrap().with_missing(|row, var| var == 1 && row % 2 == 0);
        let case = Case { name: "two tokens".into(), circuit, params };
        agrees(&case, &batch, CudaPrecision::F32, F32);
        learns_alike(&case, &specs()[0], CudaPrecision::F32, Tolerance { absolute: 1e-5, relative: 1e-4 });
    });
}

/// An HMM of two states that hardly change, each with its own symbol: linear space loses the path that wins in the end.
fn stubborn(rare: f32, switch: f32) -> Case {
    let circuit = cases::tied_hmm(8, 2, 2);
    let params = Params::from_rows(&circuit, |param, unit| match (param.index(), unit) {
        (0, 0) => vec![1.0 - rare, rare],
        (0, _) => vec![rare, 1.0 - rare],
        (1, 0) => vec![1.0 - switch, switch],
        (1, _) => vec![switch, 1.0 - switch],
        _ => vec![0.5, 0.5],
    });
    Case { name: format!("stubborn hmm, {rare:e}, {switch:e}"), params: params.unwrap(), circuit: Arc::new(circuit) }
}

#[test]
fn rows_that_linear_space_loses_are_rescued() {
    within_each(&STREAM_MODES, "backend::rows_that_linear_space_loses_are_rescued", &[], || {
        let rows: Vec<u8> =
            [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1], [0; 8]].concat();
        let batch = Batch::from_rows(&rows, 8).unwrap().with_weights(vec![1.0, 0.5, 2.0, 1.0]).unwrap();
        let (mut rescued, mut impossible) = (0, 0);
        for rare in [1e-3, 1e-20, 1e-37, 0.0] {
            for switch in [0.0, 1e-30] {
                let case = stubborn(rare, switch);
                let Case { name, circuit, params } = &case;
                agrees(&case, &batch, CudaPrecision::F32, F32);
                let (mut got, mut want) = (cuda(circuit, params, CudaPrecision::F32), cpu(circuit, params));
                for spec in &specs()[..2] {
                    let (mut rule, mut want_rule) = (spec.build(&mut got).unwrap(), spec.build(&mut want).unwrap());
                    let report = rule.learn(&mut got, &batch).unwrap().batch;
                    let wanted = want_rule.learn(&mut want, &batch).unwrap().batch;
                    same_report(name, &report, &wanted, F32);
                    rescued += report.rescued_rows;
                    impossible += report.impossible_rows;
                    close_table(name, &theta(&got), &theta(&want), F32);
                }
            }
        }
        assert!(rescued > 0 && impossible > 0, "{rescued} rows rescued, {impossible} impossible");
    });
}

/// Rows need not sum to one before, they do afterwards, and the circuit says the same.
#[test]
fn renormalisation_is_that_of_the_cpu() {
    within("backend::renormalisation_is_that_of_the_cpu", LAZY, || {
        for case in cases::all() {
            let Case { name, circuit, params } = &case;
            let mut rng = Rng::new(11);
            let mut scaled = params.clone();
            for id in circuit.param_ids().filter(|_| case.is_discrete()) {
                for unit in 0..circuit.layout().block(id).units() {
                    let by = (4.0 * rng.uniform() - 2.0).exp() as f32;
                    let row: Vec<f32> = params.row(id, unit).iter().map(|p| p * by).collect();
                    scaled.set_row(id, unit, &row).unwrap();
                }
            }
            let (mut got, mut want) = (cuda(circuit, &scaled, CudaPrecision::Tf32), cpu(circuit, &scaled));
            got.renormalize().unwrap();
            want.renormalize().unwrap();
            close_table(name, &theta(&got), &theta(&want), F32);
        }
    });
}

/// What an optimizer saves on one device is what it resumes from on the other, to the bit.
#[test]
fn state_moves_between_devices() {
    within_each(&STREAM_MODES, "backend::state_moves_between_devices", &[], || {
        for case in [&structures(8, 6)[1], &Case::new("mixed inputs", cases::mixed())] {
            for spec in specs().iter().filter(|_| case.is_discrete()).chain(&specs()[..5]) {
                let Case { name, circuit, params } = case;
                let batches = [weighted(case, 9, 60), weighted(case, 9, 61)];
                let mut device = cuda(circuit, params, CudaPrecision::F32);
                let mut host = cpu(circuit, params);
                let mut on_device = spec.build(&mut device).unwrap();
                on_device.learn(&mut device, &batches[0]).unwrap();
                let model = device.averaged_params().unwrap(); // what a checkpoint has besides the state
                let state = on_device.save(&device).unwrap();

                // To the host and back, untouched, it is the same state.
                let mut on_host = spec.build(&mut host).unwrap();
                host.set_params(&model).unwrap();
                on_host.load(&mut host, &state).unwrap();
                assert_eq!(on_host.save(&host).unwrap(), state, "{name}: {}", spec.name());
                let mut other = cuda(circuit, &host.averaged_params().unwrap(), CudaPrecision::F32);
                let mut on_other = spec.build(&mut other).unwrap();
                on_other.load(&mut other, &state).unwrap();
                assert_eq!(on_other.save(&other).unwrap(), state, "{name}: {}", spec.name());
                assert_eq!(other.params().unwrap(), device.params().unwrap());

                // And all three continue alike.
                on_device.learn(&mut device, &batches[1]).unwrap();
                on_other.learn(&mut other, &batches[1]).unwrap();
                on_host.learn(&mut host, &batches[1]).unwrap();
                assert_eq!(other.params().unwrap(), device.params().unwrap(), "{name}: {}", spec.name());
                let tolerance = Tolerance { absolute: 1e-4, relative: 1e-3 };
                close_table(&format!("{name}: {}", spec.name()), &theta(&device), &theta(&host), tolerance);
            }
        }
    });
}

#[test]
fn buffers_are_scaled_added_and_blended() {
    within("backend::buffers_are_scaled_added_and_blended", LAZY, || {
        let case = &structures(8, 6)[0];
        let mut backend = cuda(&case.circuit, &case.params, CudaPrecision::F32);
        let [single, double] = [FlowPrecision::Single, FlowPrecision::Double].map(|p| backend.new_flows(p).unwrap());
        backend.add_flows(&case.batch(9, 1), 1.0, single).unwrap();
        let start = backend.flows(single).unwrap().values().to_vec();
        backend.add_scaled(single, 0.5, double).unwrap();
        backend.add_scaled(double, 2.0, single).unwrap();
        backend.add_scaled(single, 0.5, single).unwrap();
        backend.scale(double, 4.0).unwrap();
        let times = |by: f64| start.iter().map(|x| x * by).collect::<Vec<f64>>();
        close("single", backend.flows(single).unwrap().values(), &times(3.0), F32);
        close("double", backend.flows(double).unwrap().values(), &times(2.0), F32);
        backend.scale(single, 0.0).unwrap();
        assert!(backend.flows(single).unwrap().values().iter().all(|x| *x == 0.0));

        let [into, rows] = [(); 2].map(|()| backend.new_rows().unwrap());
        backend.row_masses(double, 1.0, rows).unwrap();
        backend.row_masses(double, 2.0, into).unwrap();
        backend.blend_rows(into, 0.5, rows, 3.0).unwrap();
        let want: Vec<f64> = backend.rows(rows).unwrap().iter().map(|x| 4.0 * x).collect();
        close("rows", &backend.rows(into).unwrap(), &want, F32);

        let other = cpu(&case.circuit, &case.params).new_flows(FlowPrecision::Single).unwrap();
        assert_eq!(backend.scale(other, 1.0).unwrap_err().kind(), ErrorKind::State, "a handle of another backend");
    });
}

/// Rows over three devices, flows summed over them; a batch of two rows leaves one without.
#[test]
fn several_devices_learn_what_one_does() {
    within_each(&STREAM_MODES, "backend::several_devices_learn_what_one_does", &[("DEVICES", "3")], || {
        for case in [&structures(8, 6)[0], &structures(8, 6)[2]] {
            let Case { name, circuit, params } = case;
            let options = CudaOptions { precision: CudaPrecision::F32, ..CudaOptions::default() };
            for spec in [&specs()[0], &specs()[4], &specs()[5]] {
                let mut got = CudaGroup::new(circuit, params, &options, &[0, 1, 2]).unwrap();
                let mut want = cpu(circuit, params);
                let (mut rule, mut want_rule) = (spec.build(&mut got).unwrap(), spec.build(&mut want).unwrap());
                for (i, rows) in [11, 2, 8].into_iter().enumerate() {
                    let batch = weighted(case, rows, 70 + i as u64);
                    let report = rule.learn(&mut got, &batch).unwrap().batch;
                    same_report(name, &report, &want_rule.learn(&mut want, &batch).unwrap().batch, F32);
                }
                rule.end_epoch(&mut got).unwrap();
                want_rule.end_epoch(&mut want).unwrap();
                let what = format!("{name}: {}", spec.name());
                close_table(&what, &theta(&got), &theta(&want), Tolerance { absolute: 1e-5, relative: 1e-4 });
                let batch = case.batch_with_missing(7, 1);
                let (found, wanted) = (got.log_likelihoods(&batch).unwrap(), want.log_likelihoods(&batch).unwrap());
                close(&what, &found, &wanted, Tolerance { absolute: 1e-4, relative: 1e-4 });
                let state = rule.save(&got).unwrap();
                let mut again = spec.build(&mut want).unwrap();
                again.load(&mut want, &state).unwrap();
                assert_eq!(again.save(&want).unwrap(), state, "{what}: state of a group is state of any device");
            }
        }
    });
}

/// Why there is no backend.
fn refused(options: &CudaOptions) -> String {
    let circuit = Arc::new(hmm(3, 4, Categorical::new(3).unwrap()).unwrap());
    let params = Params::random(&circuit, 1, 2.0).unwrap();
    let error = CudaBackend::new(circuit, &params, options).err().expect("there is no device");
    assert_eq!(error.kind(), ErrorKind::Device);
    error.to_string()
}

#[test]
fn no_device_is_an_error() {
    within("backend::no_device_is_an_error", &[("DEVICES", "0")], || {
        let error = refused(&CudaOptions::default());
        assert!(error.contains("no device") || error.contains("finds no device"), "{error}");
    });
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    within("backend::a_device_that_is_not_there_is_an_error", &[("DEVICES", "2")], || {
        let error = refused(&CudaOptions { device: 2, ..CudaOptions::default() });
        assert!(error.contains("no device cuda:2") && error.contains("cuda:0 to cuda:1"), "{error}");
    });
}

#[test]
fn a_driver_that_does_not_start_is_an_error() {
    within("backend::a_driver_that_does_not_start_is_an_error", &[("FAIL_INIT", "999")], || {
        let error = refused(&CudaOptions::default());
        assert!(error.starts_with("the CUDA driver does not start"), "{error}");
    });
}

#[test]
fn an_old_driver_is_an_error() {
    within("backend::an_old_driver_is_an_error", &[("DRIVER_VERSION", "11080")], || {
        let error = refused(&CudaOptions::default());
        assert!(error.contains("11.8") && error.contains("12.4"), "{error}");
    });
}

/// Without a driver library. Where the machine has a real one there is nothing to be tested.
#[test]
fn no_driver_library_is_an_error() {
    const INSIDE: &str = "ANEMONE_TEST_WITHOUT_DRIVER";
    if std::env::var_os(INSIDE).is_some() {
        let error = refused(&CudaOptions::default());
        return assert!(error.contains("libcuda.so"), "{error}");
    }
    if has_real_driver() {
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "backend::no_driver_library_is_an_error"]).env(INSIDE, "1");
    assert!(detach(&mut command).output().unwrap().status.success());
}

/// Whichever allocation fails, it is an error that names what was needed; never a panic.
#[test]
fn an_allocation_that_fails_is_an_error() {
    const NAME: &str = "backend::an_allocation_that_fails_is_an_error";
    if std::env::var_os("ANEMONE_EMULATOR_FAIL_ALLOC").is_none() {
        let all = ["1", "9", "18", "20", "24", "27", "30", "33"];
        return all
            .iter()
            .for_each(|n| within(NAME, &[("FAIL_ALLOC", n)], || unreachable!("done by the other process")));
    }
    let case = &structures(8, 6)[0];
    let run = || {
        let mut backend = CudaBackend::new(case.circuit.clone(), &case.params, &CudaOptions::default())?;
        let mut rule = specs()[0].build(&mut backend)?;
        rule.learn(&mut backend, &case.batch(9, 1)).map(drop)
    };
    let error = run().expect_err("an allocation fails");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("out of memory") && error.to_string().contains("free"), "{error}");
}

/// A circuit that does not fit, with what would.
#[test]
fn too_small_a_device_says_what_would_fit() {
    within("backend::too_small_a_device_says_what_would_fit", &[("MEMORY", "2M")], || {
        let circuit = Arc::new(hmm(12, 512, Categorical::new(50).unwrap()).unwrap());
        let params = Params::random(&circuit, 1, 2.0).unwrap();
        let error = CudaBackend::new(circuit.clone(), &params, &CudaOptions::default())
            .and_then(|mut backend| {
                let batch = cases::data_for(&circuit, 9, 1);
                backend.log_likelihoods(&batch).map(drop)
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.to_string().contains("out of memory: the smallest micro-batch"), "{error}");
    });
}
