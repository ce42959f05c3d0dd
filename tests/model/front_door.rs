//! What a program holds in its hand: a learner built in one expression, views, checkpoints, errors as data.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, Device};
use anemone::circuit::{Params, Smoothing};
use anemone::learner::{checkpoint, circuit_digest};
use anemone::optim::{AdamSpec, AnemoneSpec, Averaging, FullBatchEmSpec, StepwiseEmSpec};
use anemone::query::{sample, sample_given};
use anemone::rng::Rng;
use anemone::structure::{start_from_rows, start_sequence};
use anemone::{Batch, Categorical, Circuit, ErrorKind, Learner, View, hmm};
use proptest::prelude::*;

use crate::common::bits;
use crate::common::cases::{all, mixed};

const LENGTH: usize = 6;

fn circuit() -> Arc<Circuit> {
    Arc::new(hmm(LENGTH, 4, Categorical::new(5).unwrap()).unwrap())
}

fn rows(count: usize, seed: u64) -> Batch {
    let circuit = circuit();
    sample(&circuit, &Params::random(&circuit, 99, 6.0).unwrap(), count, &mut Rng::new(seed)).unwrap()
}

/// Resume, learn, ask and keep: all that an embedder needs, in a dozen lines.
#[tokio::test]
async fn the_program_an_embedder_wants_to_write_runs() -> anemone::Result<()> {
    let state = tempfile::tempdir().unwrap();
    let feed = (0..3u64).map(|i| (0..24 * 8).map(|at| ((at + i) % 6) as u8).collect::<Vec<_>>());
    let (query, evidence) = {
        let row = Batch::from_rows(&[1u8; 24], 24)?;
        (row.clone().with_missing(|_, var| var < 12), row.with_missing(|_, var| var >= 12))
    };
    let seed = 1;

    let circuit = hmm(24, 8, Categorical::new(6)?)?;
    let learner = Learner::on(circuit).resume(state.path()).spawn()?; // device auto, anemone's defaults
    for rows in feed {
        let report = learner.learn(Batch::from_rows(&rows, 24)?).await?;
        let view = learner.view().await?; // one θ for every question below
        let odds = view.conditional(&query, &evidence)?; // log p(query | evidence)
        let filled = view.sample_given(&evidence, 4, seed)?;
        assert!(odds[0] < 0.0 && filled.num_rows() == 4 && view.batches() == report.batches);
        if report.batches % 1000 == 3 {
            learner.checkpoint(state.path()).await?;
        }
    }
    learner.close().await?;
    assert!(anemone::learner::latest(state.path())?.found.is_some());
    Ok(())
}

#[test]
fn a_builder_makes_the_learner_that_its_parts_make() {
    let (circuit, batch) = (circuit(), rows(40, 1));
    let built = Learner::on(circuit.clone()).threads(1).seed(5).step(0.3).momentum(0.5).spawn().unwrap();
    let start = Params::random(&circuit, 5, 2.0).unwrap();
    let mut backend = CpuBackend::new(circuit.clone(), &start, &CpuOptions::default()).unwrap();
    let spec = AnemoneSpec { step: 0.3.into(), momentum: 0.5, ..AnemoneSpec::default() };
    let mut optimizer = spec.build(&mut backend).unwrap();
    for _ in 0..5 {
        let report = built.learn_blocking(batch.clone()).unwrap();
        let expected = optimizer.learn(&mut backend, &batch).unwrap();
        assert_eq!((report.batch, report.step_size), (expected.batch, expected.step_size));
    }
    assert_eq!(bits(&built.params_blocking().unwrap()), bits(&backend.averaged_params().unwrap()));
    assert_eq!(built.place().device, Device::Cpu, "where there is no GPU");
}

#[test]
fn what_a_builder_is_told_wrongly_is_one_clear_error() {
    let on = || Learner::on(circuit());
    let batch = Batch::from_rows(&[9u8; LENGTH], LENGTH).unwrap();
    let adam = AdamSpec::default;
    for (result, words, key) in [
        (on().step(1.5).spawn(), "step = 1.5: must be in (0, 1]", Some("step")),
        (on().momentum(1.0).spawn(), "momentum = 1: must be in [0, 1)", Some("momentum")),
        (on().optimizer(adam()).step(0.1).spawn(), "step: is an option of anemone", Some("step")),
        (on().keep_checkpoints(0).spawn(), "keep_checkpoints = 0", Some("keep_checkpoints")),
        (on().threads(0).spawn(), "threads = 0: must be at least 1", None),
        (on().start_from_rows(batch).spawn(), "category 9 is outside 0..5", None),
        (on().params(Params::random(&mixed(), 1, 1.0).unwrap()).spawn(), "belong to a circuit of another shape", None),
    ] {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(words), "`{error}` has no `{words}`");
        assert!(key.is_none() || error.key() == key, "{error}: {:?}", error.key());
    }
    let error = on().spawn().unwrap().learn_blocking(Batch::from_rows(&[9u8; LENGTH], LENGTH).unwrap()).unwrap_err();
    assert_eq!((error.kind(), error.row()), (ErrorKind::Data, Some(0)));
}

#[test]
fn starts_from_rows_are_those_of_a_pipeline() {
    let (circuit, rows) = (circuit(), rows(400, 3));
    let mut sequence = Params::random(&circuit, 7, 8.0).unwrap();
    start_sequence(&circuit, &rows, &mut sequence).unwrap();
    let mut tree = Params::random(&circuit, 7, 2.0).unwrap();
    start_from_rows(&circuit, &rows, 7, &mut tree).unwrap();
    let on = || Learner::on(circuit.clone()).seed(7);
    for (builder, wanted) in [(on().start_from_sequences(rows.clone()), sequence), (on().start_from_rows(rows), tree)] {
        let started = builder.spawn().unwrap().params_blocking().unwrap();
        assert_eq!(bits(&started), bits(&wanted));
        assert_ne!(bits(&started), bits(&Params::random(&circuit, 7, 2.0).unwrap()));
    }
}

/// Every question under one θ: against the same questions asked of the parameters themselves.
#[test]
fn a_view_answers_as_its_parameters_do_on_every_small_circuit() {
    for case in all() {
        let learner = Learner::on(case.circuit.clone()).threads(2).params(case.params.clone()).spawn().unwrap();
        let batch = case.batch(50, 4);
        for seed in 4..8 {
            learner.learn_blocking(case.batch(50, seed)).unwrap(); // the average is not θ any more
        }
        let view = learner.view_blocking().unwrap();
        assert_eq!(bits(view.params()), bits(&learner.params_blocking().unwrap()), "{}", case.name);
        assert_eq!(view.log_likelihoods(&batch).unwrap(), learner.log_likelihoods_blocking(batch).unwrap());
        let drawn = sample(&case.circuit, view.params(), 7, &mut Rng::new(3)).unwrap();
        assert_eq!(view.sample(7, 3).unwrap(), drawn);
        let half = drawn.with_missing(|row, var| (row + var) % 2 == 0);
        let completed = sample_given(&case.circuit, view.params(), &half, 3, &mut Rng::new(5)).unwrap();
        assert_eq!(view.sample_given(&half, 3, 5).unwrap(), completed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The chain rule, for any split of the variables into asked, known and neither.
    #[test]
    fn a_conditional_is_a_quotient_of_marginals(seed in 0u64..1000, parts in prop::collection::vec(0u8..3, LENGTH)) {
        let circuit = circuit();
        let params = Params::random(&circuit, seed, 4.0).unwrap();
        let view = Learner::on(circuit).threads(1).params(params).spawn().unwrap().view_blocking().unwrap();
        let whole = rows(5, seed);
        let only = |part: u8| whole.clone().with_missing(|_, var| parts[var] != part);
        let both = whole.clone().with_missing(|_, var| parts[var] == 2);
        let answers = view.conditional(&only(0), &only(1)).unwrap();
        let (joint, known) = (view.log_likelihoods(&both).unwrap(), view.log_likelihoods(&only(1)).unwrap());
        for row in 0..5 {
            prop_assert!((answers[row] - (joint[row] - known[row])).abs() < 1e-9);
            // One row of evidence for all queries is the same as a copy for each.
            let alone = view.conditional(&only(0).slice(row..row + 1), &only(1).slice(row..row + 1)).unwrap();
            prop_assert_eq!(alone[0], answers[row]);
        }
        let given_first = view.conditional(&only(0), &only(1).slice(0..1)).unwrap();
        prop_assert_eq!(given_first[0], answers[0]);
    }
}

#[test]
fn conditionals_of_all_values_of_a_variable_sum_to_one() {
    let view = Learner::on(circuit()).spawn().unwrap().view_blocking().unwrap();
    let known = rows(1, 8).with_missing(|_, var| var == 2);
    let values: Vec<u8> = (0..5u8).flat_map(|value| [value; LENGTH]).collect();
    let asked = Batch::from_rows(&values, LENGTH).unwrap().with_missing(|_, var| var != 2);
    let total: f64 = view.conditional(&asked, &known).unwrap().iter().map(|ll| ll.exp()).sum();
    assert!((total - 1.0).abs() < 1e-6, "{total}");
}

#[test]
fn a_query_against_its_evidence_is_impossible_and_impossible_evidence_is_an_error() {
    let coins = hmm(2, 2, Categorical::new(2).unwrap()).unwrap();
    let never = |_, unit| if unit == 0 { vec![1.0, 0.0] } else { vec![0.5, 0.5] };
    let params = Params::from_rows(&coins, |param, unit| match param.index() {
        0 => vec![1.0, 0.0], // always 0
        _ => never(param, unit),
    });
    let view = Learner::on(coins).params(params.unwrap()).spawn().unwrap().view_blocking().unwrap();
    let row = |values: [u8; 2], missing: Option<usize>| {
        Batch::from_rows(&values, 2).unwrap().with_missing(|_, var| Some(var) == missing)
    };
    let zero = row([0, 0], Some(1));
    assert_eq!(view.conditional(&row([0, 0], None), &zero).unwrap(), [0.0], "what is known is certain");
    assert_eq!(view.conditional(&row([1, 0], None), &zero).unwrap(), [f64::NEG_INFINITY], "a contradiction");
    assert_eq!(view.conditional(&row([0, 1], Some(0)), &zero).unwrap(), [f64::NEG_INFINITY], "it never happens");
    let error = view.conditional(&zero, &row([1, 1], Some(0))).unwrap_err();
    assert_eq!((error.kind(), error.row()), (ErrorKind::Data, Some(0)), "{error}");
    let narrow = Batch::from_rows(&[0u8], 1).unwrap();
    assert!(view.conditional(&zero, &narrow).unwrap_err().to_string().contains("variables"));
    let three = Batch::from_rows(&[0u8; 6], 2).unwrap();
    assert!(view.conditional(&zero, &three).unwrap_err().to_string().contains("one row for each query"));
}

#[test]
fn a_view_stays_what_it_was_and_says_of_which_update() {
    let learner = Learner::on(circuit()).spawn().unwrap();
    let batch = rows(30, 2);
    let before = learner.view_blocking().unwrap();
    let answers = before.log_likelihoods(&batch).unwrap();
    assert_eq!((before.updates(), before.batches(), before.is_averaged()), (0, 0, true));
    for _ in 0..3 {
        learner.learn_blocking(batch.clone()).unwrap();
    }
    let after = learner.view_blocking().unwrap();
    assert_eq!((after.updates(), after.batches()), (3, 3));
    assert_eq!(before.log_likelihoods(&batch).unwrap(), answers);
    assert_ne!(after.log_likelihoods(&batch).unwrap(), answers);
    learner.close_blocking().unwrap();
    assert_eq!(before.log_likelihoods(&batch).unwrap(), answers, "a view outlives its learner");
    let latest = Learner::on(circuit()).average(Averaging::Off).spawn().unwrap().view_blocking().unwrap();
    assert!(!latest.is_averaged());
}

#[test]
fn a_model_that_was_read_is_asked_like_a_learner() {
    let home = tempfile::tempdir().unwrap();
    let learner = Learner::on(circuit()).spawn().unwrap();
    learner.learn_blocking(rows(30, 2)).unwrap();
    let path = learner.checkpoint_blocking(home.path()).unwrap();
    let view = anemone::learner::model::load(&path).unwrap().view().unwrap();
    assert_eq!(bits(view.params()), bits(&learner.params_blocking().unwrap()));
    let batch = rows(10, 3);
    assert_eq!(view.log_likelihoods(&batch).unwrap(), learner.log_likelihoods_blocking(batch).unwrap());
}

/// Threads that ask without a pause, some of them for a new view each time, change no bit of what is learned; and every
/// answer is of one θ, by its view's own parameters.
#[test]
fn learning_ends_with_the_same_bits_however_many_ask() {
    let learn = |asking: usize| {
        let learner = Learner::on(circuit()).threads(2).momentum(0.9).spawn().unwrap();
        let over = AtomicBool::new(false);
        let seen: Mutex<Vec<(View, Vec<f64>)>> = Mutex::default();
        let probe = rows(20, 77);
        thread::scope(|scope| {
            for thread in 0..asking {
                let (learner, over, seen, probe) = (learner.clone(), &over, &seen, &probe);
                scope.spawn(move || {
                    let mut view = learner.view_blocking().unwrap();
                    while !over.load(Ordering::Relaxed) {
                        if thread % 2 == 0 {
                            view = learner.view_blocking().unwrap();
                        }
                        let answers = view.log_likelihoods(probe).unwrap();
                        view.sample_given(&probe.slice(0..1).with_missing(|_, var| var > 2), 1, 3).unwrap();
                        seen.lock().unwrap().push((view.clone(), answers));
                    }
                });
            }
            for i in 0..60 {
                learner.learn_blocking(rows(64, i)).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        for (view, answers) in seen.into_inner().unwrap().iter().step_by(7) {
            let fresh = Learner::on(circuit()).threads(1).params(view.params().clone()).spawn().unwrap();
            assert_eq!(&fresh.log_likelihoods_blocking(probe.clone()).unwrap(), answers);
        }
        bits(&learner.params_blocking().unwrap())
    };
    let alone = learn(0);
    assert_eq!(learn(4), alone);
}

#[test]
fn swapped_parameters_are_learned_from_as_if_they_were_the_start() {
    let specs = [
        AnemoneSpec::default().into(),
        AnemoneSpec::paper().into(),
        AnemoneSpec { batches_per_update: 3, ..AnemoneSpec::default() }.into(),
        StepwiseEmSpec { step: 0.5.into(), ..StepwiseEmSpec::default() }.into(),
        AdamSpec::default().into(),
        FullBatchEmSpec { average: Averaging::on(), ..FullBatchEmSpec::default() }.into(),
    ];
    let other = Params::random(&circuit(), 42, 3.0).unwrap();
    for spec in specs {
        let spec: anemone::optim::OptimizerSpec = spec;
        let spawn = || Learner::on(circuit()).optimizer(spec.clone());
        let fresh = spawn().params(other.clone()).spawn().unwrap();
        let swapped = spawn().spawn().unwrap();
        for i in 0..4 {
            swapped.learn_blocking(rows(20, i)).unwrap();
        }
        swapped.end_epoch_blocking().unwrap();
        swapped.learn_blocking(rows(20, 9)).unwrap();
        let answered = swapped.view_blocking().unwrap().params().clone();
        assert_eq!(bits(&swapped.swap_blocking(other.clone()).unwrap()), bits(&answered), "{}", spec.name());
        assert_eq!(bits(swapped.view_blocking().unwrap().params()), bits(&other));
        for i in 10..18 {
            swapped.learn_blocking(rows(20, i)).unwrap();
            fresh.learn_blocking(rows(20, i)).unwrap();
        }
        swapped.end_epoch_blocking().unwrap();
        fresh.end_epoch_blocking().unwrap();
        let (one, two) = (swapped.params_blocking().unwrap(), fresh.params_blocking().unwrap());
        assert_eq!(bits(&one), bits(&two), "{}", spec.name());
        assert_eq!(swapped.progress().batches, 13, "counters go on");
    }
    let learner = Learner::on(circuit()).spawn().unwrap();
    let before = learner.params_blocking().unwrap();
    let foreign = Params::random(&mixed(), 1, 1.0).unwrap();
    assert!(learner.swap_blocking(foreign).is_err());
    learner.learn_blocking(rows(4, 1)).unwrap(); // a refused swap concerns its sender alone
    assert_ne!(bits(&before), bits(&learner.params_blocking().unwrap()));
}

#[test]
fn a_learner_resumes_bit_identically_from_its_folder_and_keeps_a_few_checkpoints() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("state");
    let spawn = || Learner::on(circuit()).momentum(0.9).identity("symbols, version 1").keep_checkpoints(2);
    let whole = spawn().spawn().unwrap();
    for i in 0..10 {
        whole.learn_blocking(rows(16, i)).unwrap();
    }
    for round in 0..5 {
        let learner = spawn().resume(&folder).spawn().unwrap();
        assert_eq!(learner.progress().batches, 2 * round);
        let error = spawn().resume(&folder).spawn().unwrap_err();
        assert!(error.to_string().contains("another run is writing here"), "{error}");
        for i in 2 * round..2 * round + 2 {
            learner.learn_blocking(rows(16, i)).unwrap();
        }
        let path = learner.checkpoint_blocking(&folder).unwrap();
        assert_eq!(checkpoint::load(&path).unwrap().meta.identity.circuit_spec, circuit_digest(&circuit()));
        learner.close_blocking().unwrap();
    }
    assert_eq!(anemone::learner::list(&folder).unwrap().len(), 2);
    let resumed = spawn().resume(&folder).spawn().unwrap();
    assert_eq!(bits(&resumed.params_blocking().unwrap()), bits(&whole.params_blocking().unwrap()));
    resumed.close_blocking().unwrap();

    let other = Learner::on(circuit()).momentum(0.9).identity("symbols, version 2").resume(&folder).spawn();
    let error = other.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(error.to_string().contains("version 2 here, symbols, version 1 there"), "{error}");
    assert!(error.path().is_some());
    let wider = hmm(LENGTH, 5, Categorical::new(5).unwrap()).unwrap();
    let error = Learner::on(wider).identity("symbols, version 1").resume(&folder).spawn().unwrap_err();
    assert!(error.to_string().contains("the circuit ("), "{error}");
    let error = spawn().optimizer(StepwiseEmSpec::default()).resume(&folder).spawn().unwrap_err();
    assert!(error.to_string().contains("stepwise_em here, anemone there"), "{error}");
}

#[test]
fn a_folder_without_a_whole_checkpoint_is_not_begun_again_unasked() {
    let home = tempfile::tempdir().unwrap();
    let learner = Learner::on(circuit()).spawn().unwrap();
    let path = learner.checkpoint_blocking(home.path()).unwrap();
    learner.close_blocking().unwrap();
    std::fs::write(path.join("model.safetensors"), b"cut off").unwrap();
    let error = Learner::on(circuit()).resume(home.path()).spawn().unwrap_err();
    assert!(error.to_string().contains("no checkpoint is whole"), "{error}");
}

#[test]
fn a_checkpoint_that_was_read_is_resumed_on_any_device_and_smoothing_is_an_option() {
    let home = tempfile::tempdir().unwrap();
    let spawn = || Learner::on(circuit()).device(Device::Cpu).smoothing(Smoothing::Relative(1e-3));
    let learner = spawn().spawn().unwrap();
    learner.learn_blocking(rows(16, 1)).unwrap();
    let saved = checkpoint::load(&learner.checkpoint_blocking(home.path()).unwrap()).unwrap();
    let resumed = spawn().resume_from(saved).spawn().unwrap();
    learner.learn_blocking(rows(16, 2)).unwrap();
    resumed.learn_blocking(rows(16, 2)).unwrap();
    assert_eq!(bits(&learner.params_blocking().unwrap()), bits(&resumed.params_blocking().unwrap()));
}
