//! Averaged parameters: what they are the average of, whatever is asked, whenever it stops, on any number of threads.

use anemone::optim::AverageSpec;

use super::fused::{wordy, zipf};
use super::*;
use crate::common::{start_with, two_threads};

fn averaging(spec: AverageSpec) -> OptimizerSpec {
    OptimizerSpec::Anemone(AnemoneSpec { average: Averaging::On(spec), ..Default::default() })
}

/// θ̄ after each of many updates, against the mean that its weights say of the θ of all updates, in double precision.
#[test]
fn the_average_of_a_lazy_table_is_that_of_the_parameters_it_had_at_every_update() {
    let case = wordy(3, 5);
    let average = AverageSpec { every: 4, ..Default::default() };
    let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &averaging(average));
    // One that is never asked: its rows are brought up to date by batches and sweeps alone, 33 updates at the most.
    let (mut unseen, mut beside) = start(&case.circuit, &case.params, &averaging(average));
    let mut rng = Rng::new(8);
    let (mut want, mut last) = (vec![0.0; case.params.values().len()], 0);
    let mut averages = 0;
    for update in 1..=300u64 {
        let batch = zipf(&case, 3, &mut rng);
        optimizer.learn(&mut backend, &batch).unwrap();
        beside.learn(&mut unseen, &batch).unwrap();
        if update - last >= (update / 32).clamp(1, average.every) {
            let weight = 1.0 - (last as f64 / update as f64).powf(average.window + 1.0);
            let theta = backend.params().unwrap();
            want.iter_mut().zip(theta.values()).for_each(|(w, &t)| *w += weight * (f64::from(t) - *w));
            (last, averages) = (update, averages + 1);
        }
        if update % 37 == 0 {
            let got: Vec<f64> = backend.averaged_params().unwrap().values().iter().map(|&v| f64::from(v)).collect();
            close(&format!("update {update}"), &got, &want, Tolerance { absolute: 1e-9, relative: 2e-6 });
        }
    }
    assert!(averages > 100 && want.iter().any(|&w| w > 0.1));
    assert_eq!(bits(&unseen.averaged_params().unwrap()), bits(&backend.averaged_params().unwrap()));
}

#[test]
fn an_average_has_the_same_bits_on_any_number_of_threads_and_over_stops() {
    let mut all = cases::all();
    all.push(wordy(3, 5));
    for case in all {
        let batches: Vec<Batch> = (0..50).map(|i| weighted(case.batch_with_missing(3, i))).collect();
        let mut specs = vec![anemone(0.4, 0.9, Smoothing::default())];
        if case.is_discrete() {
            specs.push(OptimizerSpec::Adam(AdamSpec::default()));
        }
        for spec in specs {
            let run = |threads: usize, stops: bool| {
                let options = CpuOptions { threads: Some(threads), ..two_threads() };
                let (mut backend, mut optimizer) = start_with(&case.circuit, &case.params, &spec, &options);
                for (i, batch) in batches.iter().enumerate() {
                    optimizer.learn(&mut backend, batch).unwrap();
                    if stops && i % 17 == 5 {
                        // What a checkpoint holds: θ̄ for all readers, and θ in the optimizer's state.
                        let (model, state) = (backend.averaged_params().unwrap(), optimizer.save(&backend).unwrap());
                        (backend, optimizer) = start_with(&case.circuit, &model, &spec, &options);
                        optimizer.load(&mut backend, &state).unwrap();
                        assert_eq!(bits(&backend.averaged_params().unwrap()), bits(&model));
                    }
                }
                (bits(&backend.params().unwrap()), bits(&backend.averaged_params().unwrap()))
            };
            let plain = run(1, false);
            assert_ne!(plain.0, plain.1, "{}: {spec:?}: θ̄ is θ", case.name);
            assert!(run(2, false) == plain, "{}: {spec:?}: threads", case.name);
            assert!(run(2, true) == plain, "{}: {spec:?}: stops", case.name);
        }
    }
}

#[test]
fn likelihoods_under_the_average_are_those_of_its_parameters_and_leave_no_trace() {
    for case in cases::all() {
        let spec = anemone(0.4, 0.9, Smoothing::default());
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
        let batch = case.batch_with_missing(6, 1);
        assert_eq!(backend.averaged_log_likelihoods(&batch).unwrap(), backend.log_likelihoods(&batch).unwrap());
        for i in 0..40 {
            optimizer.learn(&mut backend, &case.batch(4, i)).unwrap();
        }
        let (before, average) = (bits(&backend.params().unwrap()), backend.averaged_params().unwrap());
        let here = backend.averaged_log_likelihoods(&batch).unwrap();
        assert_eq!(here, cpu(&case.circuit, &average).log_likelihoods(&batch).unwrap(), "{}", case.name);
        assert_ne!(here, backend.log_likelihoods(&batch).unwrap(), "{}", case.name);
        assert_eq!(bits(&backend.params().unwrap()), before, "{}", case.name);
    }
}

#[test]
fn foreign_parameters_have_no_average() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &anemone(0.4, 0.9, Smoothing::NONE));
    for i in 0..20 {
        optimizer.learn(&mut backend, &case.batch(4, i)).unwrap();
    }
    backend.set_params(&case.params).unwrap();
    assert_eq!(bits(&backend.averaged_params().unwrap()), bits(&case.params));
}

/// After a shift the average of before is of no use: with a reset it is forgotten at once.
#[test]
fn a_shift_resets_the_average_and_nothing_else_does() {
    let circuit = Arc::new(cases::tied_hmm(6, 3, 5));
    let sources = [1, 2].map(|seed| Params::random(&circuit, seed, 6.0).unwrap());
    let learn = |reset: f64, shift: bool| {
        let spec = averaging(AverageSpec { reset, ..Default::default() });
        let start_params = Params::random(&circuit, 3, 2.0).unwrap();
        let (mut backend, mut optimizer) = start(&circuit, &start_params, &spec);
        let mut rng = Rng::new(5);
        for i in 0..400 {
            // Short batches deviate more, and are no shift.
            let rows = if i % 10 == 9 { 30 } else { 300 };
            let source = &sources[usize::from(shift && i >= 300)];
            optimizer.learn(&mut backend, &sample(&circuit, source, rows, &mut rng).unwrap()).unwrap();
        }
        let counter = optimizer.save(&backend).unwrap().counters["average_updates"];
        let fresh = sample(&circuit, &sources[1], 500, &mut rng).unwrap();
        let mean = backend.averaged_log_likelihoods(&fresh).unwrap().iter().sum::<f64>() / 500.0;
        (counter, mean)
    };
    assert_eq!(learn(6.0, false).0, 400, "nothing has happened");
    let (counter, with_reset) = learn(6.0, true);
    assert_eq!(counter, 100, "reset at the shift");
    let (counter, without) = learn(0.0, true);
    assert_eq!(counter, 400);
    assert!(with_reset > without + 0.01, "{with_reset} against {without}");
}

/// A step falls by counts because states are near their place. After a shift they are not, and half of it stays.
#[test]
fn a_step_by_counts_begins_again_at_a_shift_also_when_resumed_and_other_steps_do_not() {
    let circuit = Arc::new(cases::tied_hmm(6, 3, 5));
    let sources = [1, 2].map(|seed| Params::random(&circuit, seed, 6.0).unwrap());
    let start_params = Params::random(&circuit, 3, 2.0).unwrap();
    let steps = |step: Schedule, reset: f64, stop: Option<usize>| {
        let average = Averaging::On(AverageSpec { reset, ..Default::default() });
        let spec = OptimizerSpec::Anemone(AnemoneSpec { step, average, ..Default::default() });
        let (mut backend, mut optimizer) = start(&circuit, &start_params, &spec);
        let mut rng = Rng::new(5);
        let mut steps = Vec::new();
        for i in 0..300 {
            let batch = sample(&circuit, &sources[usize::from(i >= 200)], 300, &mut rng).unwrap();
            steps.push(optimizer.learn(&mut backend, &batch).unwrap().step_size.unwrap());
            if stop == Some(i) {
                let (model, state) = (backend.averaged_params().unwrap(), optimizer.save(&backend).unwrap());
                (backend, optimizer) = start(&circuit, &model, &spec);
                optimizer.load(&mut backend, &state).unwrap();
            }
        }
        (steps, bits(&backend.params().unwrap()), bits(&backend.averaged_params().unwrap()))
    };
    let by_counts = Schedule::falling_counts(0.01, 0.4, 0.5, 20, 0.0);
    let whole = steps(by_counts, 6.0, None);
    let (before, after) = whole.0.split_at(201); // the batch that tells of the shift is learned from as usual
    assert!(before.windows(2).all(|pair| pair[1] < pair[0]), "{before:?}");
    let half = before[0] / 2.0;
    assert!(before[99] < half, "else nothing is seen of where it stays");
    for (step, first) in after.iter().zip(before) {
        assert!((step - first.max(half)).abs() < 1e-12, "{step} after the shift, {first} at first");
    }
    for stop in [150, 200, 250] {
        assert!(steps(by_counts, 6.0, Some(stop)) == whole, "stopped after batch {stop}");
    }
    for (step, reset) in [(by_counts, 0.0), (Schedule::power(0.4, 0.5, 20, 0.0), 6.0)] {
        let (going_on, ..) = steps(step, reset, None);
        assert!(going_on.windows(2).all(|pair| pair[1] < pair[0]), "{step:?}: {going_on:?}");
    }
}

#[test]
fn a_state_that_was_saved_without_an_average_begins_one_and_one_that_does_not_fit_changes_nothing() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    let off = OptimizerSpec::Anemone(AnemoneSpec { average: Averaging::Off, ..Default::default() });
    let on = averaging(AverageSpec::default());
    let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &off);
    optimizer.learn(&mut backend, &case.batch(4, 1)).unwrap();
    let (params, state) = (backend.params().unwrap(), optimizer.save(&backend).unwrap());
    assert_eq!(bits(&backend.averaged_params().unwrap()), bits(&params));

    let (mut resumed, mut averaged) = start(&case.circuit, &params, &on);
    averaged.load(&mut resumed, &state).unwrap();
    averaged.learn(&mut resumed, &case.batch(4, 2)).unwrap();
    optimizer.learn(&mut backend, &case.batch(4, 2)).unwrap();
    assert_eq!(bits(&resumed.params().unwrap()), bits(&backend.params().unwrap()));

    for i in 0..40 {
        averaged.learn(&mut resumed, &case.batch(4, i)).unwrap();
    }
    let before = (averaged.save(&resumed).unwrap(), bits(&resumed.averaged_params().unwrap()));
    let mut bad = before.0.clone();
    bad.buffers.insert("learning_params".into(), Tensor::F32(vec![0.5; 3]));
    assert!(averaged.load(&mut resumed, &bad).is_err());
    assert!((averaged.save(&resumed).unwrap(), bits(&resumed.averaged_params().unwrap())) == before);
}
