//! What a plan does not keep must not be missed: random chains and trees against the specification.

use anemone::plan::{Plan, Step, SumStep};

use super::*;
use crate::common::chains::chain;

use crate::common::start_with;

/// Sizes of which many have factors, for transposes.
const SMALL: [usize; 6] = [4, 6, 8, 9, 12, 5];

/// Sizes around those of the kernels' tiles.
const LARGE: [usize; 5] = [64, 32, 48, 16, 80];

/// Likelihoods, flows and two steps of every EM rule, with weights and missing values, some rows at a time.
fn learns_as_specified(case: &Case, seed: u64, most_rows: usize) {
    let mut rng = Rng::new(seed);
    let rows = [1, 2, 3, 5, 9, 70, 140][rng.below(7)].min(most_rows);
    let memory_budget = if rng.below(3) == 0 { 1 } else { 2 << 30 };
    let options = CpuOptions { threads: Some(1 + rng.below(3)), memory_budget, ..CpuOptions::default() };
    let batch = |i: u64| {
        let weights = (0..rows).map(|row| [2.5, 0.25, 1.0, 0.0][row % 4]).collect();
        case.batch_with_missing(rows, seed + i).with_weights(weights).unwrap()
    };
    let what = format!("{}, {rows} rows", case.name);
    let spec = Spec::new(&case.circuit, &case.params);
    let mut backend = cpu_with(&case.circuit, &case.params, &options);
    let tolerance = Tolerance { absolute: 4e-6, ..LOG_LIKELIHOOD };
    close(&what, &backend.log_likelihoods(&batch(0)).unwrap(), &spec.log_likelihoods(&batch(0)), tolerance);
    close_table(&what, &mean_flows(&mut backend, &batch(0)).0, &spec.mean_flows(&batch(0)), PROBABILITY);
    let rules =
        [anemone(0.4, 0.9, Smoothing::NONE), mini_batch_em(0.4, 0.9, Smoothing::Absolute(1e-3)), full_batch_em()];
    for rule in rules {
        let (mut backend, mut optimizer) = start_with(&case.circuit, &case.params, &rule, &options);
        let mut trainer = Trainer::new(&case.circuit, &case.params, &rule);
        for i in 0..2 {
            optimizer.learn(&mut backend, &batch(i)).unwrap();
            backend.log_likelihoods(&batch(i)).unwrap(); // evaluation packs weights for itself
            trainer.learn(&batch(i));
        }
        optimizer.end_epoch(&mut backend).unwrap();
        trainer.end_epoch();
        let tolerance = Tolerance { absolute: 5e-4, relative: 0.0 };
        close_table(&format!("{what}: {rule:?}"), &theta(&backend), &trainer.spec.theta, tolerance);
    }
}

#[test]
fn random_chains_learn_as_specified() {
    (0..60).for_each(|seed| learns_as_specified(&chain(seed, &SMALL), seed, 70));
    (0..3).for_each(|seed| learns_as_specified(&chain(seed, &LARGE), seed, 3));
}

/// The chains above are worth something only if they have what they are for.
#[test]
fn random_chains_have_transient_sums_of_every_kind() {
    let plans: Vec<Plan> = (0..120).map(|seed| Plan::new(&chain(seed, &SMALL).circuit)).collect();
    let count = |is: &dyn Fn(&SumStep) -> bool| {
        let steps = plans.iter().flat_map(|plan| &plan.steps);
        steps.filter(|step| matches!(step, Step::Sum(sum) if is(sum))).count()
    };
    let below =
        |is: fn(&anemone::plan::GainBelow) -> bool| move |sum: &SumStep| sum.gain_below.as_ref().is_some_and(is);
    assert!(count(&|sum| sum.is_transient && sum.groups.len() > 1) > 50);
    assert!(count(&|sum| sum.is_transient && sum.groups.iter().any(|g| g.units != sum.groups[0].units)) > 20);
    assert!(count(&|sum| sum.is_transient && sum.flow.is_none()) > 20, "without a flow");
    assert!(count(&below(|below| below.transpose.is_some())) > 50);
    assert!(count(&below(|below| below.flow.is_none())) > 20, "over a product without a table");
    assert!(count(&|sum| sum.gain_below.is_some() && sum.groups[0].panel.start > 0) > 20, "in another order");
    assert!(count(&|sum| !sum.is_transient && sum.groups.len() > 1) > 20);
    assert!(count(&|sum| !sum.clear.is_empty()) > 5, "parts that are not a whole");
}

/// A node over some variables: a table or two at the most, and sums of tied weights over the nodes below.
fn grow(circuit: &mut CircuitBuilder, rng: &mut Rng, weights: &[anemone::circuit::ParamId], vars: &[usize]) -> NodeId {
    const UNITS: usize = 5;
    let tables = rng.below(3).min(vars.len());
    let mut factors: Vec<NodeId> = vars[..tables].iter().map(|&v| cases::categorical(circuit, v, UNITS, 3)).collect();
    let mut rest = &vars[tables..];
    while !rest.is_empty() {
        let take = (1 + rng.below(3)).min(rest.len()).min(if tables == 0 { 2 } else { 3 });
        let (below, after) = rest.split_at(take);
        let below = match below {
            [var] => cases::categorical(circuit, *var, UNITS, 3),
            _ => grow(circuit, rng, weights, below),
        };
        factors.push(circuit.sum(&[below], weights[rng.below(weights.len())]).unwrap());
        rest = after;
    }
    if rng.below(2) == 0 {
        factors.reverse();
    }
    circuit.product(&factors).unwrap()
}

#[test]
fn products_of_few_and_many_factors_learn_as_specified() {
    let bush = |seed: u64| {
        let mut rng = Rng::stream(seed, 42);
        let vars: Vec<usize> = (0..6 + rng.below(8)).collect();
        let mut circuit = CircuitBuilder::new(vars.len());
        let weights: Vec<_> = (0..2).map(|_| circuit.sum_param(5, 5).unwrap()).collect();
        let top = grow(&mut circuit, &mut rng, &weights, &vars);
        cases::sum(&mut circuit, 1, &[top]);
        circuit.finish().ok().map(|circuit| Case::new(&format!("bush {seed}"), circuit)) // unless a block is not used
    };
    let cases: Vec<Case> = (0..80).filter_map(bush).collect();
    assert!(cases.len() > 60, "only {} circuits", cases.len());
    cases.iter().enumerate().for_each(|(seed, case)| learns_as_specified(case, seed as u64, 9));
}

#[test]
fn rows_of_a_vocabulary_with_many_states_are_brought_up_to_date_to_the_bit() {
    for states in [31, 32, 64, 70, 96, 130] {
        let words = Categorical::new(4200).unwrap();
        let case = Case::new("wordy", hmm(3, states, words).unwrap());
        let mut rng = Rng::new(states as u64);
        let mut word = |_| ((4202f64).powf(rng.uniform()) - 1.0).min(4199.0) as u16; // few are frequent
        let batches: Vec<Batch> =
            (0..40).map(|_| Batch::from_rows(&(0..9).map(&mut word).collect::<Vec<u16>>(), 3).unwrap()).collect();
        for momentum in [0.9, 0.0] {
            let rule = anemone(0.4, momentum, Smoothing::Relative(1e-4));
            // Asking for likelihoods in between brings all rows up to date.
            let run = |threads: usize, looks: &dyn Fn(usize) -> bool| {
                let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
                let (mut backend, mut optimizer) = start_with(&case.circuit, &case.params, &rule, &options);
                for (i, batch) in batches.iter().enumerate() {
                    if looks(i) {
                        backend.log_likelihoods(batch).unwrap();
                    }
                    optimizer.learn(&mut backend, batch).unwrap();
                }
                bits(&backend.params().unwrap())
            };
            let never = run(2, &|_| false);
            assert!(never == run(1, &|i| i % 7 == 3), "{states} states, now and then");
            assert!(never == run(3, &|_| true), "{states} states, always");
        }
    }
}
