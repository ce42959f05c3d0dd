//! Averaged parameters on the device, held against the CPU; and what sums and inputs retain apart.

use super::*;

use anemone::backend::{EmStep, RetainSource, RetainSources};
use anemone::data::Values;
use anemone::optim::{AverageSpec, Averaging, Optimizer};

use crate::common::bits;
use crate::common::compare::distance;
use crate::common::spec::{Table, param_table};

/// θ̄, block by block and row by row.
fn averaged(backend: &dyn Backend) -> Table {
    param_table(backend.circuit(), &backend.averaged_params().unwrap())
}

/// As for updates: flows are added in another order, and densities divide by their masses.
fn of_updates(case: &Case) -> Tolerance {
    match case.is_discrete() {
        true => Tolerance { absolute: 1e-5, relative: 1e-4 },
        false => Tolerance { absolute: 1e-4, relative: 1e-3 },
    }
}

/// An optimizer that moves θ and leaves θ̄ to the test.
fn plain() -> OptimizerSpec {
    let step = Schedule::Constant { step: 0.3 };
    OptimizerSpec::Anemone(AnemoneSpec { step, average: Averaging::Off, ..AnemoneSpec::default() })
}

/// An optimizer that averages, here at every update.
fn averaging() -> OptimizerSpec {
    let step = Schedule::Constant { step: 0.3 };
    OptimizerSpec::Anemone(AnemoneSpec {
        step,
        average: Averaging::On(AverageSpec { window: 1.0, ..AverageSpec::default() }),
        ..AnemoneSpec::default()
    })
}

fn gaussians() -> Case {
    Case::new("gaussian hmm", hmm(5, 70, Gaussian::new(0.05, 0.5).unwrap()).unwrap())
}

/// On the CPU, rows of its table are averaged when they are next looked at.
fn large_vocabulary() -> Case {
    Case::new("large vocabulary", hmm(3, 5, Categorical::new(5000).unwrap()).unwrap())
}

#[test]
fn averages_are_those_of_the_cpu() {
    within_each(&STREAM_MODES, "backend::averages::averages_are_those_of_the_cpu", &[], || {
        for case in cases::all().into_iter().chain([gaussians(), large_vocabulary()]) {
            eprintln!("{}", case.name);
            let Case { name, circuit, params } = &case;
            let (mut got, mut want) = (cuda(circuit, params, CudaPrecision::F32), cpu(circuit, params));
            let (mut rule, mut want_rule) = (plain().build(&mut got).unwrap(), plain().build(&mut want).unwrap());
            let scored = case.batch_with_missing(5, 90);
            assert_eq!(got.averaged_params().unwrap(), got.params().unwrap(), "{name}: without an average θ̄ is θ");
            let mut moved = false;
            for (i, weight) in [1.0, 0.5, 0.01, 0.5].into_iter().enumerate() {
                let batch = weighted(&case, 9, 80 + i as u64);
                rule.learn(&mut got, &batch).unwrap();
                want_rule.learn(&mut want, &batch).unwrap();
                got.average(weight).unwrap();
                want.average(weight).unwrap();
                let (what, tolerance) = (format!("{name}: {weight}"), of_updates(&case));
                close_table(&format!("{what}: θ"), &theta(&got), &theta(&want), tolerance);
                close_table(&format!("{what}: θ̄"), &averaged(&got), &averaged(&want), tolerance);
                if weight == 1.0 {
                    assert_eq!(bits(&got.averaged_params().unwrap()), bits(&got.params().unwrap()), "{what}");
                }
                moved |= distance(&averaged(&got), &theta(&got)) > 1e-3;

                let before = got.log_likelihoods(&scored).unwrap();
                let found = got.averaged_log_likelihoods(&scored).unwrap();
                let wanted = want.averaged_log_likelihoods(&scored).unwrap();
                close(&what, &found, &wanted, Tolerance { absolute: 1e-4, relative: tolerance.relative });
                // Of θ̄ and of nothing else, and θ is back.
                let mut alone = cuda(circuit, &got.averaged_params().unwrap(), CudaPrecision::F32);
                assert_eq!(alone.log_likelihoods(&scored).unwrap(), found, "{what}: as a model of its own");
                assert_eq!(got.log_likelihoods(&scored).unwrap(), before, "{what}: θ after a question about θ̄");
            }
            // Where there is something to learn, θ̄ is not θ.
            assert!(moved || name == "a unit nobody uses", "{name}: θ̄ never left θ");
            got.set_params(params).unwrap();
            assert_eq!(got.averaged_params().unwrap(), *params, "{name}: θ̄ goes when θ is replaced");
        }
    });
}

/// Between the steps of a replayed graph; one batch is larger, and the working memory is made again for it.
#[test]
fn questions_about_averages_change_nothing() {
    within_each(&STREAM_MODES, "backend::averages::questions_about_averages_change_nothing", &[], || {
        for case in [&structures(8, 6)[0], &gaussians()] {
            let Case { name, circuit, params } = case;
            let learn = |is_asked: bool| {
                let mut backend = cuda(circuit, params, CudaPrecision::F32);
                let mut rule = averaging().build(&mut backend).unwrap();
                for i in 0..6 {
                    rule.learn(&mut backend, &case.batch_with_missing(13, i)).unwrap();
                    if is_asked {
                        let batch = case.batch(if i == 4 { 30 } else { 7 }, i);
                        let found = backend.averaged_log_likelihoods(&batch).unwrap();
                        let mut alone = cpu(circuit, &backend.averaged_params().unwrap());
                        close(name, &found, &alone.log_likelihoods(&batch).unwrap(), LOG_LIKELIHOOD);
                    }
                }
                (bits(&backend.params().unwrap()), bits(&backend.averaged_params().unwrap()))
            };
            assert_eq!(learn(true), learn(false), "{name}");
        }
    });
}

/// Log space reads θ̄ too: of the two sets of parameters only one loses rows.
#[test]
fn rows_are_rescued_under_the_average() {
    within_each(&STREAM_MODES, "backend::averages::rows_are_rescued_under_the_average", &[], || {
        let (lossy, plain) = (stubborn(1e-37, 1e-30), stubborn(0.1, 0.2));
        let rows: Vec<u8> = [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [0; 8]].concat();
        let batch = Batch::from_rows(&rows, 8).unwrap();
        let rescued =
            |case: &Case| mean_flows(&mut cuda(&case.circuit, &case.params, CudaPrecision::F32), &batch).1.rescued_rows;
        assert!(rescued(&lossy) > 0 && rescued(&plain) == 0);
        for (case, other) in [(&lossy, &plain), (&plain, &lossy)] {
            let mut backend = cuda(&case.circuit, &case.params, CudaPrecision::F32);
            backend.set_average(&other.params).unwrap();
            let of = |case: &Case| cpu(&case.circuit, &case.params).log_likelihoods(&batch).unwrap();
            for _ in 0..2 {
                close("θ̄", &backend.averaged_log_likelihoods(&batch).unwrap(), &of(other), LOG_LIKELIHOOD);
                close("θ", &backend.log_likelihoods(&batch).unwrap(), &of(case), LOG_LIKELIHOOD);
            }
        }
    });
}

/// Saved as a checkpoint is: the model is θ̄, and θ goes with the optimizer.
#[test]
fn an_optimizer_that_averages_resumes_bit_identically() {
    within_each(&STREAM_MODES, "backend::averages::an_optimizer_that_averages_resumes_bit_identically", &[], || {
        for case in [&structures(8, 6)[1], &gaussians(), &Case::new("mixed inputs", cases::mixed())] {
            let Case { name, circuit, params } = case;
            let mut device = cuda(circuit, params, CudaPrecision::Tf32);
            let mut rule = averaging().build(&mut device).unwrap();
            let learn = |rule: &mut dyn Optimizer, backend: &mut dyn Backend, batches: std::ops::Range<u64>| {
                for i in batches {
                    rule.learn(backend, &weighted(case, 9, 60 + i)).unwrap();
                }
            };
            learn(&mut *rule, &mut device, 0..3);
            let (model, state) = (device.averaged_params().unwrap(), rule.save(&device).unwrap());
            assert_ne!(bits(&model), bits(&device.params().unwrap()), "{name}: θ̄ is not θ");
            let mut other = cuda(circuit, &model, CudaPrecision::Tf32);
            let mut on_other = averaging().build(&mut other).unwrap();
            on_other.load(&mut other, &state).unwrap();
            assert_eq!(on_other.save(&other).unwrap(), state, "{name}");
            let mut host = cpu(circuit, &model);
            let mut on_host = averaging().build(&mut host).unwrap();
            on_host.load(&mut host, &state).unwrap();
            assert_eq!(on_host.save(&host).unwrap(), state, "{name}: on the CPU");
            assert_eq!(bits(&host.averaged_params().unwrap()), bits(&model), "{name}: on the CPU");

            learn(&mut *rule, &mut device, 3..6);
            learn(&mut *on_other, &mut other, 3..6);
            assert_eq!(bits(&other.params().unwrap()), bits(&device.params().unwrap()), "{name}: θ");
            assert_eq!(bits(&other.averaged_params().unwrap()), bits(&device.averaged_params().unwrap()), "{name}: θ̄");
            assert_eq!(on_other.save(&other).unwrap(), rule.save(&device).unwrap(), "{name}");
        }
    });
}

/// The rows of a batch, and the same again.
fn twice(batch: &Batch) -> Batch {
    let columns = (0..batch.num_vars()).map(|var| match batch.column(var) {
        Values::U8(values) => Values::U8(values.repeat(2)),
        Values::U16(values) => Values::U16(values.repeat(2)),
        Values::U32(values) => Values::U32(values.repeat(2)),
        Values::F32(values) => Values::F32(values.repeat(2)),
    });
    Batch::from_columns(columns.collect()).unwrap()
}

/// Half of a batch goes to each device, and the halves are the same rows: the answers are, if θ̄ is.
#[test]
fn devices_of_a_group_have_the_same_average() {
    within_each(
        &STREAM_MODES,
        "backend::averages::devices_of_a_group_have_the_same_average",
        &[("DEVICES", "2")],
        || {
            for case in [&structures(8, 6)[0], &Case::new("mixed inputs", cases::mixed())] {
                let Case { name, circuit, params } = case;
                let options = CudaOptions { precision: CudaPrecision::F32, ..CudaOptions::default() };
                let group = |params: &Params| CudaGroup::new(circuit, params, &options, &[0, 1]).unwrap();
                let twice = twice(&case.batch(3, 5));
                let check = |group: &mut CudaGroup| {
                    let found = group.averaged_log_likelihoods(&twice).unwrap();
                    assert_eq!(found[..3], found[3..], "{name}: the first device and the second");
                    let mut alone = cuda(circuit, &group.averaged_params().unwrap(), CudaPrecision::F32);
                    assert_eq!(alone.log_likelihoods(&twice).unwrap(), found, "{name}");
                    assert_ne!(group.log_likelihoods(&twice).unwrap(), found, "{name}: θ̄ is not θ");
                };
                let (mut got, mut want) = (group(params), cpu(circuit, params));
                let (mut rule, mut want_rule) =
                    (averaging().build(&mut got).unwrap(), averaging().build(&mut want).unwrap());
                for (i, rows) in [11, 2, 8].into_iter().enumerate() {
                    let batch = weighted(case, rows, 70 + i as u64);
                    rule.learn(&mut got, &batch).unwrap();
                    want_rule.learn(&mut want, &batch).unwrap();
                }
                close_table(name, &averaged(&got), &averaged(&want), of_updates(case));
                check(&mut got);
                let (model, state) = (got.averaged_params().unwrap(), rule.save(&got).unwrap());
                let mut other = group(&model);
                averaging().build(&mut other).unwrap().load(&mut other, &state).unwrap();
                assert_eq!(bits(&other.averaged_params().unwrap()), bits(&model), "{name}: loaded");
                check(&mut other);
            }
        },
    );
}

/// What sums and inputs retain, in every combination: fused and verb by verb, on the device and on the CPU.
#[test]
fn sums_and_inputs_retain_what_each_is_told() {
    const SOURCES: [RetainSource; 2] = [RetainSource::TopDown, RetainSource::Flows];
    within_each(&STREAM_MODES, "backend::averages::sums_and_inputs_retain_what_each_is_told", &[], || {
        let mixed = [Case::new("mixed inputs", cases::mixed()), gaussians()];
        for case in structures(8, 6).iter().chain(&mixed) {
            let Case { name, circuit, params } = case;
            let mut found: Vec<Table> = Vec::new();
            for (sums, inputs) in SOURCES.into_iter().flat_map(|sums| SOURCES.map(|inputs| (sums, inputs))) {
                let what = format!("{name}: sums {sums:?}, inputs {inputs:?}");
                let learn = |backend: &mut dyn Backend, is_fused: bool| {
                    let step = EmStep {
                        flows: backend.new_flows(FlowPrecision::Single).unwrap(),
                        keep: 0.5,
                        gain: 0.05,
                        masses: backend.new_rows().unwrap(),
                        sources: RetainSources { sums, inputs },
                        scale: 1.5,
                        offset: 1e-3,
                        correction: 1.25,
                        smoothing: Smoothing::Absolute(1e-3),
                        spare: backend.new_rows().unwrap(),
                    };
                    for i in 0..2 {
                        let batch = weighted(case, 11, 50 + i);
                        match is_fused {
                            true => backend.em_step(&batch, &step).unwrap(),
                            false => step.by_verbs(backend, &batch).unwrap(),
                        };
                    }
                    (theta(backend), backend.rows(step.masses).unwrap())
                };
                let (want, want_masses) = learn(&mut cpu(circuit, params), true);
                for is_fused in [true, false] {
                    let (got, masses) = learn(&mut cuda(circuit, params, CudaPrecision::F32), is_fused);
                    close_table(&format!("{what}: fused {is_fused}"), &got, &want, of_updates(case));
                    close(&format!("{what}: masses"), &masses, &want_masses, F32);
                }
                found.push(want);
            }
            // A mistake about which is which would show.
            let different = (0..4).all(|i| (0..i).all(|j| distance(&found[i], &found[j]) > 1e-3));
            assert!(different, "{name}: what is retained makes no difference");
        }
    });
}
