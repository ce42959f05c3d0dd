//! A fused EM step is what its verbs say one after the other, and a table that is updated lazily gives what an eager
//! one gives.

use anemone::backend::{EmStep, RetainSources};

use super::*;

/// The same optimizer with its steps taken verb by verb.
struct ByVerbs {
    step: EmStep,
    momentum: f64,
    updates: i32,
}

impl ByVerbs {
    fn new(backend: &mut CpuBackend, source: RetainSource, alpha: f64, momentum: f64, smoothing: Smoothing) -> Self {
        let flows = backend.new_flows(FlowPrecision::Single).unwrap();
        let (masses, spare) = (backend.new_rows().unwrap(), backend.new_rows().unwrap());
        let scale = (1.0 - alpha) / alpha;
        let (offset, smoothing) = match (source, smoothing) {
            (RetainSource::TopDown | RetainSource::Larger, _) => (0.0, smoothing.scaled(1.0 / alpha)),
            (RetainSource::Flows, Smoothing::Absolute(epsilon)) => (epsilon, smoothing),
            (RetainSource::Flows, Smoothing::Relative(_)) => (0.0, smoothing),
        };
        let (keep, gain, correction) = (momentum, 0.0, 0.0);
        let sources = RetainSources::both(source);
        let step = EmStep { flows, keep, gain, masses, sources, scale, offset, correction, smoothing, spare };
        Self { step, momentum, updates: 0 }
    }

    fn learn(&mut self, backend: &mut CpuBackend, batch: &Batch) {
        let gain = (1.0 - self.momentum) / batch.total_weight();
        let correction = 1.0 / (1.0 - self.momentum.powi(self.updates + 1));
        EmStep { gain, correction, ..self.step }.by_verbs(backend, batch).unwrap();
        self.updates += 1;
    }
}

/// How far apart parameters are, relative to the larger of each, or to 1e-12 where both are smaller.
fn relative_distance(a: &Params, b: &Params) -> f64 {
    let pairs = a.values().iter().zip(b.values());
    pairs.map(|(&a, &b)| f64::from((a - b).abs()) / f64::from(a.max(b)).max(1e-12)).fold(0.0, |x, y| {
        assert!(!y.is_nan());
        x.max(y)
    })
}

#[test]
fn a_fused_step_is_its_verbs_one_after_the_other() {
    for case in cases::all() {
        for smoothing in [Smoothing::NONE, Smoothing::Relative(1e-3), Smoothing::Absolute(1e-3)] {
            for source in [RetainSource::TopDown, RetainSource::Flows, RetainSource::Larger] {
                let spec = match source {
                    RetainSource::TopDown => anemone(0.4, 0.9, smoothing),
                    RetainSource::Flows => mini_batch_em(0.4, 0.9, smoothing),
                    RetainSource::Larger => larger(0.4, 0.9, smoothing),
                };
                let (mut fused, mut optimizer) = start(&case.circuit, &case.params, &spec);
                let mut verbs = cpu(&case.circuit, &case.params);
                let mut by_verbs = ByVerbs::new(&mut verbs, source, 0.4, 0.9, smoothing);
                for batch in weighted(case.batch_with_missing(40, 3)).chunks(8) {
                    optimizer.learn(&mut fused, &batch).unwrap();
                    by_verbs.learn(&mut verbs, &batch);
                }
                let what = format!("{}: {spec:?}", case.name);
                let (a, b) = (theta(&fused), theta(&verbs));
                close_table(&what, &a, &b, Tolerance { absolute: 2e-6, relative: 2e-5 });
            }
        }
    }
}

/// A hidden Markov model with more words than are sorted and updated as a whole.
pub fn wordy(vars: usize, states: usize) -> Case {
    Case::new("wordy hmm", hmm(vars, states, Categorical::new(5000).unwrap()).unwrap())
}

/// Words by Zipf's law, so that some come in every batch and most in hardly any.
pub fn zipf(case: &Case, rows: usize, rng: &mut Rng) -> Batch {
    let vars = case.circuit.num_vars();
    let word = |rng: &mut Rng| ((5002.0f64).powf(rng.uniform()) - 1.0).min(4999.0) as u16;
    let words: Vec<u16> = (0..rows * vars).map(|_| word(rng)).collect();
    Batch::from_rows(&words, vars).unwrap()
}

/// The largest relative distance to the dense rule at any time in 10,000 updates; at the end every row sums to one.
fn distance_over_ten_thousand_updates(states: usize) -> f64 {
    let case = wordy(2, states);
    let smoothing = Smoothing::Relative(1e-4);
    let (mut lazy, mut optimizer) = start(&case.circuit, &case.params, &anemone(0.05, 0.9, smoothing));
    let mut dense = cpu(&case.circuit, &case.params);
    let mut by_verbs = ByVerbs::new(&mut dense, RetainSource::TopDown, 0.05, 0.9, smoothing);
    let mut rng = Rng::new(11);
    let mut farthest = 0.0f64;
    for update in 1..=10_000 {
        let batch = zipf(&case, 3, &mut rng);
        optimizer.learn(&mut lazy, &batch).unwrap();
        by_verbs.learn(&mut dense, &batch);
        if update % 1000 == 0 {
            farthest = farthest.max(relative_distance(&lazy.params().unwrap(), &dense.params().unwrap()));
        }
    }
    for (param, rows) in theta(&lazy).iter().enumerate() {
        for (row, values) in rows.iter().enumerate() {
            let total: f64 = values.iter().sum();
            assert!((total - 1.0).abs() < 2e-5, "block {param}, row {row} sums to {total}");
        }
    }
    farthest
}

#[test]
fn ten_thousand_lazy_updates_are_the_dense_rule() {
    // With one state, flows are counts: the same on both sides, so that only the rule's own rounding is left.
    let far = distance_over_ten_thousand_updates(1);
    assert!(far < 1e-5, "parameters are {far} apart");
    // With two, what rounding does to a parameter also moves the flows of the next batch, and EM passes that on.
    let far = distance_over_ten_thousand_updates(2);
    assert!(far < 2e-3, "parameters are {far} apart");
}

#[test]
fn looking_at_a_lazy_table_or_saving_it_changes_no_bit() {
    let case = wordy(3, 5);
    for spec in [anemone(0.4, 0.9, Smoothing::default()), mini_batch_em(0.2, 0.5, Smoothing::default())] {
        let mut rng = Rng::new(5);
        let batches: Vec<Batch> = (0..80).map(|_| zipf(&case, 4, &mut rng)).collect();
        let run = |look: &dyn Fn(usize) -> bool, stop: &dyn Fn(usize) -> bool| {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
            for (i, batch) in batches.iter().enumerate() {
                if look(i) {
                    backend.log_likelihoods(batch).unwrap();
                    backend.averaged_log_likelihoods(batch).unwrap();
                    backend.params().unwrap();
                    backend.averaged_params().unwrap();
                }
                if stop(i) {
                    let (state, params) = (optimizer.save(&backend).unwrap(), backend.averaged_params().unwrap());
                    (backend, optimizer) = start(&case.circuit, &params, &spec);
                    optimizer.load(&mut backend, &state).unwrap();
                }
                optimizer.learn(&mut backend, batch).unwrap();
            }
            (bits(&backend.averaged_params().unwrap()), optimizer.save(&backend).unwrap())
        };
        let never = |_: usize| false;
        let plain = run(&never, &never);
        assert!(run(&|i| i % 7 == 3, &never) == plain, "{spec:?}: looking");
        assert!(run(&never, &|i| i % 13 == 5) == plain, "{spec:?}: stopping");
    }
}

#[test]
fn a_lazy_table_takes_missing_and_impossible_values_like_any_other() {
    let mut case = wordy(3, 4);
    let mut table = param_table(&case.circuit, &case.params);
    for row in &mut table[0] {
        row[17] = 0.0; // a word that never occurs
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= total);
    }
    case.params = params_from(&case.circuit, &table);
    let (mut fused, mut optimizer) = start(&case.circuit, &case.params, &anemone(0.3, 0.8, Smoothing::NONE));
    let mut dense = cpu(&case.circuit, &case.params);
    let mut by_verbs = ByVerbs::new(&mut dense, RetainSource::TopDown, 0.3, 0.8, Smoothing::NONE);
    let mut rng = Rng::new(3);
    for update in 0..60 {
        let mut batch = zipf(&case, 5, &mut rng);
        if update % 5 == 2 {
            batch = batch.with_missing(|row, var| (row + var) % 3 == 0);
        }
        if update % 11 == 4 {
            let words: Vec<u16> = vec![1, 17, 2, 3, 4, 5];
            batch.append(&Batch::from_rows(&words, 3).unwrap()).unwrap();
        }
        optimizer.learn(&mut fused, &batch).unwrap();
        by_verbs.learn(&mut dense, &batch);
    }
    let far = relative_distance(&fused.params().unwrap(), &dense.params().unwrap());
    assert!(far < 2e-4, "parameters are {far} apart");
}

#[test]
fn a_bad_flow_is_forgotten_by_a_step_that_keeps_nothing() {
    for case in [Case::new("hmm", cases::tied_hmm(4, 3, 5)), wordy(2, 3), Case::new("mixed", cases::mixed())] {
        let batch = case.batch(6, 1);
        let (mut backend, mut optimizer) =
            start(&case.circuit, &case.params, &mini_batch_em(0.3, 0.0, Smoothing::NONE));
        optimizer.learn(&mut backend, &batch).unwrap();
        let good = theta(&backend);

        let mut backend = cpu(&case.circuit, &case.params);
        let by_verbs = ByVerbs::new(&mut backend, RetainSource::Flows, 0.3, 0.0, Smoothing::NONE);
        let bad = match backend.save_flows(by_verbs.step.flows).unwrap() {
            Tensor::F32(flows) => Tensor::F32(vec![f32::INFINITY; flows.len()]),
            Tensor::F64(_) => unreachable!("momentum is single"),
        };
        backend.load_flows(by_verbs.step.flows, &bad).unwrap();
        let gain = 1.0 / batch.total_weight();
        backend.em_step(&batch, &EmStep { gain, correction: 1.0, ..by_verbs.step }).unwrap();
        close_table(&case.name, &theta(&backend), &good, Tolerance { absolute: 1e-6, relative: 1e-5 });
    }
}
