//! However the work is divided: stopping and resuming, micro-batches, threads, batches of a million rows.

use super::extremes::extreme_params;
use super::*;

/// All six optimizers, with windows of two batches where they have windows.
pub fn windowed_optimizers() -> Vec<OptimizerSpec> {
    let batches_per_update = 2;
    vec![
        OptimizerSpec::Anemone(AnemoneSpec { batches_per_update, ..Default::default() }),
        OptimizerSpec::FullBatchEm(FullBatchEmSpec::default()),
        OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { batches_per_update, momentum: 0.5, ..Default::default() }),
        OptimizerSpec::StepwiseEm(StepwiseEmSpec { batches_per_update, ..Default::default() }),
        OptimizerSpec::Adam(AdamSpec { batches_per_update, ..Default::default() }),
        OptimizerSpec::Sgd(SgdSpec { batches_per_update, ..Default::default() }),
    ]
}

#[test]
fn stop_load_and_continue_gives_the_same_bits_as_never_stopping() {
    for case in [Case::new("hmm", cases::tied_hmm(6, 4, 5)), Case::new("mixed", cases::mixed())] {
        let mut specs = windowed_optimizers();
        specs.extend(em_optimizers());
        let gradient = |spec: &OptimizerSpec| matches!(spec, OptimizerSpec::Adam(_) | OptimizerSpec::Sgd(_));
        let batches: Vec<Batch> = weighted(case.batch_with_missing(35, 2)).chunks(5).collect();
        for spec in specs.iter().filter(|spec| case.is_discrete() || !gradient(spec)) {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, spec);
            let mut saved = Vec::new();
            for (t, batch) in batches.iter().enumerate() {
                saved.push((optimizer.save(&backend).unwrap(), backend.params().unwrap()));
                optimizer.learn(&mut backend, batch).unwrap();
                if t == 4 {
                    optimizer.end_epoch(&mut backend).unwrap();
                }
            }
            optimizer.end_epoch(&mut backend).unwrap();
            let (end, state) = (backend.params().unwrap(), optimizer.save(&backend).unwrap());
            assert_ne!(bits(&end), bits(&case.params), "{spec:?} learned nothing");
            for (stop, (state_then, params_then)) in saved.iter().enumerate() {
                let (mut backend, mut optimizer) = start(&case.circuit, params_then, spec);
                optimizer.load(&mut backend, state_then).unwrap();
                for (t, batch) in batches.iter().enumerate().skip(stop) {
                    optimizer.learn(&mut backend, batch).unwrap();
                    if t == 4 {
                        optimizer.end_epoch(&mut backend).unwrap();
                    }
                }
                optimizer.end_epoch(&mut backend).unwrap();
                let what = format!("{}: {spec:?} stopped before batch {stop}", case.name);
                assert_eq!(bits(&backend.params().unwrap()), bits(&end), "{what}");
                assert_eq!(optimizer.save(&backend).unwrap(), state, "{what}");
            }
        }
    }
}

#[test]
fn micro_batches_agree_with_one_large_batch() {
    for case in cases::all() {
        let data = weighted(case.batch_with_missing(13, 4));
        let mut whole = cpu(&case.circuit, &case.params);
        assert!(whole.micro_batch_rows() >= 13);
        let options = CpuOptions { threads: Some(2), memory_budget: 1, ..CpuOptions::default() };
        let mut cut = cpu_with(&case.circuit, &case.params, &options);
        assert_eq!(cut.micro_batch_rows(), 1);
        let (a, b) = (cut.log_likelihoods(&data).unwrap(), whole.log_likelihoods(&data).unwrap());
        close(&case.name, &a, &b, Tolerance { absolute: 2e-6, relative: 1e-6 });
        let ((a, cut), (b, whole)) = (mean_flows(&mut cut, &data), mean_flows(&mut whole, &data));
        close_table(&case.name, &a, &b, Tolerance { absolute: 2e-6, relative: 2e-6 });
        assert_eq!((cut.num_rows, cut.weight), (whole.num_rows, whole.weight));
        close_number(
            &case.name,
            cut.log_likelihood,
            whole.log_likelihood,
            Tolerance { absolute: 1e-5, relative: 1e-6 },
        );
    }
}

/// Circuits large enough that every stage of a pass is really divided among threads.
pub fn large_cases() -> Vec<Case> {
    vec![
        Case::new("large hmm", hmm(24, 16, Categorical::new(2000).unwrap()).unwrap()),
        Case::new("wordy hmm", hmm(6, 16, Categorical::new(6000).unwrap()).unwrap()),
        cases::learned_tree("large hclt", 16, 5, HcltOptions::default()),
        // Wider than what is multiplied as it lies.
        cases::learned_tree("wide hclt", 40, 5, HcltOptions::default()),
        cases::chunked_trees(12, 16, 5),
    ]
}

/// The bits of everything learned and reported, on so many threads; and how many rows were rescued, how many
/// impossible.
pub fn run_on(threads: usize, case: &Case, data: &Batch) -> (Vec<u32>, Vec<u64>, (usize, usize)) {
    let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
    let mut backend = cpu_with(&case.circuit, &case.params, &options);
    let lls = backend.log_likelihoods(data).unwrap();
    let mut reported: Vec<u64> = lls.iter().map(|ll| ll.to_bits()).collect();
    let mut odd_rows = (0, 0);
    for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em(), gradient_optimizers().remove(0)] {
        let mut optimizer = spec.build(&mut backend).unwrap();
        for batch in data.chunks(300) {
            let report = optimizer.learn(&mut backend, &batch).unwrap().batch;
            reported.push(report.log_likelihood.to_bits());
            odd_rows.0 += report.rescued_rows;
            odd_rows.1 += report.impossible_rows;
        }
        optimizer.end_epoch(&mut backend).unwrap();
    }
    let lls = backend.log_likelihoods(data).unwrap();
    reported.extend(lls.iter().map(|ll| ll.to_bits()));
    (bits(&backend.params().unwrap()), reported, odd_rows)
}

#[test]
fn any_number_of_threads_ends_with_the_same_bits() {
    for case in large_cases() {
        for data in [case.batch(900, 1), case.batch_with_missing(900, 1)] {
            let one = run_on(1, &case, &data);
            for threads in [2, 3, 8] {
                assert!(run_on(threads, &case, &data) == one, "{}: {threads} threads end with other bits", case.name);
            }
        }
    }
}

#[test]
fn any_number_of_threads_ends_with_the_same_bits_where_weights_are_large() {
    // Large enough that two threads take turns by stages.
    let case = cases::learned_tree("team hclt", 384, 3, HcltOptions::default());
    let data = case.batch_with_missing(600, 1);
    let one = run_on(1, &case, &data);
    for threads in [2, 3, 8] {
        assert!(run_on(threads, &case, &data) == one, "{threads} threads end with other bits than one");
    }
}

/// Parameters over forty decades, and a category that no state emits.
#[test]
fn any_number_of_threads_ends_with_the_same_bits_where_rows_are_rescued_or_impossible() {
    let mut case = Case::new("extreme hmm", hmm(24, 16, Categorical::new(500).unwrap()).unwrap());
    let mut table = extreme_params(&case, 3, 40.0);
    for row in &mut table[0] {
        row[7] = 0.0;
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= total);
    }
    case.params = params_from(&case.circuit, &table);
    let data = case.batch_with_missing(900, 1);
    let one = run_on(1, &case, &data);
    let (rescued, impossible) = one.2;
    assert!(rescued > 20 && impossible > 5, "{rescued} rows rescued, {impossible} impossible");
    for threads in [2, 3, 8] {
        assert!(run_on(threads, &case, &data) == one, "{threads} threads end with other bits than one");
    }
}

/// A million rows are as exact in one batch as in a thousand or ten thousand, and as the same counts on three rows.
pub fn a_million_rows_are_exact(weight: impl Fn(usize) -> f32, is_missing: impl Fn(usize) -> bool) {
    const ROWS: usize = 1_000_000;
    let mut c = CircuitBuilder::new(1);
    let coins = cases::categorical(&mut c, 0, 2, 2);
    cases::sum(&mut c, 1, &[coins]);
    let circuit = Arc::new(c.finish().unwrap());
    let rows = [[vec![0.31, 0.69], vec![0.83, 0.17]].to_vec(), [vec![0.37, 0.63]].to_vec()];
    let params = params_from(&circuit, &rows.to_vec());
    let tails = |row: usize| row % 10 == 3;

    let mut counts = [0.0f64; 3]; // heads, tails, missing
    for row in 0..ROWS {
        counts[if is_missing(row) { 2 } else { usize::from(tails(row)) }] += f64::from(weight(row));
    }
    let few = Batch::from_rows(&[0u8, 1, 0], 1).unwrap().with_missing(|row, _| row == 2);
    let few = few.with_weights(counts.iter().map(|c| (c / ROWS as f64) as f32).collect()).unwrap();
    let mut want = Trainer::new(&circuit, &params, &full_batch_em());
    want.learn(&few);
    want.end_epoch();

    let column = Values::U8((0..ROWS).map(|row| u8::from(tails(row))).collect());
    let many = Batch::from_columns(vec![column]).unwrap().with_missing(|row, _| is_missing(row));
    let many = many.with_weights((0..ROWS).map(weight).collect()).unwrap();
    let one = learned(&circuit, &params, &full_batch_em(), &[&many]);
    close_table("in one batch", &param_table(&circuit, &one), &want.spec.theta, PROBABILITY);
    for rows in [1000, 100] {
        let cut: Vec<Batch> = many.chunks(rows).collect();
        let after = learned(&circuit, &params, &full_batch_em(), &cut.iter().collect::<Vec<_>>());
        close_table(&format!("in batches of {rows}"), &param_table(&circuit, &after), &want.spec.theta, PROBABILITY);
    }
    let anemone = |batch: &Batch| learned(&circuit, &params, &anemone(0.4, 0.9, Smoothing::NONE), &[batch]);
    let table = |params: &Params| param_table(&circuit, params);
    close_table("anemone", &table(&anemone(&many)), &table(&anemone(&few)), PROBABILITY);
}

#[test]
fn a_million_rows_in_one_batch_are_as_exact_as_in_many() {
    a_million_rows_are_exact(|_| 1.0, |_| false);
}

#[test]
fn a_million_weighted_rows_in_one_batch_are_as_exact_as_in_many() {
    a_million_rows_are_exact(|row| [0.1, 3.0, 0.7, 1000.0][row % 4], |_| false);
}

#[test]
fn a_million_rows_with_missing_values_in_one_batch_are_as_exact_as_in_many() {
    a_million_rows_are_exact(|_| 1.0, |row| row % 3 == 1);
}
