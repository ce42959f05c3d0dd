//! Ranks that learn together: the same bits for any number of them, also after one is lost.

use std::thread;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, Replicated};
use anemone::circuit::Categorical;
use anemone::cluster::{Alone, Cluster, Ranks, Threads, shards_of};
use anemone::data::{Batch, ShardRows};
use anemone::optim::{AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, SgdSpec, StepwiseEmSpec};
use anemone::rng::Rng;
use anemone::structure::hmm;
use anemone::{ErrorKind, Learner};

use crate::common::cases::{self, Case};

const SHARDS: usize = 8;

/// Every optimizer, with momentum and averages where it has them.
fn optimizers(case: &Case) -> Vec<OptimizerSpec> {
    let mut all: Vec<OptimizerSpec> = vec![
        AnemoneSpec { momentum: 0.9, ..AnemoneSpec::default() }.into(),
        AnemoneSpec { batches_per_update: 2, ..AnemoneSpec::default() }.into(),
        MiniBatchEmSpec::default().into(),
        StepwiseEmSpec::default().into(),
        FullBatchEmSpec::default().into(),
    ];
    if case.is_discrete() {
        all.extend([AdamSpec::default().into(), SgdSpec::default().into()]);
    }
    all
}

/// Batches of one run: whole, with missing cells, and one so short that some shards have no row.
fn batches(case: &Case) -> Vec<Batch> {
    vec![case.batch(37, 1), case.batch_with_missing(24, 2), case.batch(5, 3)]
}

/// Only the rows of a rank's own shards, as the whole batch has them.
fn part_of(batch: &Batch, ranks: &Ranks) -> Batch {
    let of_shard = |shard| shards_of(shard, SHARDS, batch.num_rows());
    let held = ranks.shards();
    let rows = of_shard(held.start).start..of_shard(held.end - 1).end;
    let part = ShardRows { rows: (0..SHARDS).map(|s| of_shard(s).len()).collect(), held, weight: batch.total_weight() };
    batch.slice(rows).as_part(part).unwrap()
}

/// The bits of parameters, likelihoods and reports after a few batches and the end of an epoch; by parts of batches if
/// `parts`.
fn learned(case: &Case, spec: &OptimizerSpec, cluster: Box<dyn Cluster>, parts: bool) -> Vec<u64> {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let inner = CpuBackend::new(case.circuit.clone(), &case.params, &options).unwrap();
    let ranks = Ranks::new(cluster, SHARDS).unwrap();
    let mut backend = Replicated::new(Box::new(inner), ranks.clone()).unwrap();
    let mut optimizer = spec.build(&mut backend).unwrap();
    let mut bits = Vec::new();
    for batch in batches(case) {
        let given = if parts { part_of(&batch, &ranks) } else { batch.clone() };
        let report = optimizer.learn(&mut backend, &given).unwrap().batch;
        assert_eq!(report.num_rows, batch.num_rows());
        bits.extend([report.log_likelihood.to_bits(), report.possible_weight.to_bits()]);
    }
    optimizer.end_epoch(&mut backend).unwrap();
    bits.extend(backend.params().unwrap().values().iter().map(|x| u64::from(x.to_bits())));
    bits.extend(backend.averaged_log_likelihoods(&case.batch(13, 4)).unwrap().iter().map(|x| x.to_bits()));
    bits
}

/// What every rank of a cluster of threads finds.
fn on_ranks<T: Send>(num_ranks: usize, act: impl Fn(Threads) -> T + Sync) -> Vec<T> {
    let act = &act;
    thread::scope(|scope| {
        let ranks: Vec<_> = Threads::ranks(num_ranks).into_iter().map(|rank| scope.spawn(move || act(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_structure_and_optimizer_learns_the_same_bits_on_one_to_five_ranks() {
    let mut compared = 0;
    for case in cases::all() {
        for spec in optimizers(&case) {
            let want = learned(&case, &spec, Box::new(Alone), false);
            assert!(want.len() > 20);
            // Ranks are given whole batches or their own rows only: it is the same.
            for (num_ranks, parts) in [(1, true), (2, false), (3, true), (4, false), (5, true), (5, false)] {
                for got in on_ranks(num_ranks, |rank| learned(&case, &spec, Box::new(rank), parts)) {
                    let how = if parts { "parts" } else { "whole batches" };
                    assert!(got == want, "{}: {} on {num_ranks} ranks by {how}", case.name, spec.name());
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn shards_change_a_step_by_rounding_only() {
    for case in cases::all() {
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let mut plain = CpuBackend::new(case.circuit.clone(), &case.params, &options).unwrap();
        let spec: OptimizerSpec = MiniBatchEmSpec::default().into();
        let mut optimizer = spec.build(&mut plain).unwrap();
        let batch = case.batch(40, 1);
        optimizer.learn(&mut plain, &batch).unwrap();
        let inner = CpuBackend::new(case.circuit.clone(), &case.params, &options).unwrap();
        let ranks = Ranks::new(Box::new(Alone), SHARDS).unwrap();
        let mut sharded = Replicated::new(Box::new(inner), ranks).unwrap();
        let mut optimizer = spec.build(&mut sharded).unwrap();
        optimizer.learn(&mut sharded, &batch).unwrap();
        let (want, got) = (plain.params().unwrap(), sharded.params().unwrap());
        assert_eq!(want.values().len(), got.values().len());
        for (want, got) in want.values().iter().zip(got.values()) {
            // One step moves θ by at most 1; sums of 40 terms round to 40·2⁻²⁴ of their size, densities a little more.
            assert!((want - got).abs() <= 2e-4 * want.abs().max(1.0), "{}: {got} is not {want}", case.name);
        }
    }
}

/// A learner of a small HMM on a rank.
fn learner(cluster: Box<dyn Cluster>) -> anemone::Result<Learner> {
    let circuit = hmm(4, 5, Categorical::new(600).unwrap()).unwrap();
    Learner::on(circuit).threads(1).seed(3).momentum(0.5).cluster(cluster, SHARDS).spawn()
}

fn rows(step: u64) -> Batch {
    let values: Vec<u16> = (0..4 * 50).map(|i| ((i * i + 31 * step as usize) % 600) as u16).collect();
    Batch::from_rows(&values, 4).unwrap()
}

fn bits(learner: &Learner) -> Vec<u32> {
    learner.params_blocking().unwrap().values().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_lost_rank_changes_nothing_that_is_learned() {
    let alone = learner(Box::new(Alone)).unwrap();
    for step in 0..6 {
        alone.learn_blocking(rows(step)).unwrap();
    }
    let want = bits(&alone);
    for lost in 0..4 {
        let found = on_ranks(4, |rank| {
            let me = rank.rank();
            let learner = learner(Box::new(rank)).unwrap();
            for step in 0..6 {
                if me == lost && step == 3 {
                    learner.close_blocking().unwrap();
                    return None;
                }
                learner.learn_blocking(rows(step)).unwrap();
            }
            Some(bits(&learner))
        });
        assert_eq!(found.iter().flatten().count(), 3);
        assert!(found.iter().flatten().all(|got| *got == want), "without rank {lost}");
    }
}

#[test]
fn ranks_that_are_given_other_rows_end_with_a_sentence() {
    let errors = on_ranks(3, |rank| {
        let step = u64::from(rank.rank() == 2);
        learner(Box::new(rank)).unwrap().learn_blocking(rows(step)).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 2 has other rows than rank 0")), "{errors:?}");
}

#[test]
fn more_ranks_than_shards_are_refused() {
    let error = learner(Box::new(Threads::ranks(9).remove(0))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    assert!(error.to_string().contains("batch.shards = 8: fewer than the 9 ranks"), "{error}");
}

/// Words of a vocabulary that is updated lazily: a few common ones, and others that come up now and then.
fn words(step: u64, is_missing: bool) -> Batch {
    let mut rng = Rng::new(step);
    let word = |u: f64| (5000.0 * u.powi(6)) as u16;
    let values: Vec<u16> = (0..4 * 30).map(|_| word(rng.uniform())).collect();
    let batch = Batch::from_rows(&values, 4).unwrap();
    if is_missing { batch.with_missing(|row, var| (row + var) % 17 == 0) } else { batch }
}

/// Parameters and an average after steps that some rows of the table have missed, looked at in between.
fn learned_words(backend: &mut dyn Backend, ranks: Option<&Ranks>, spec: &OptimizerSpec) -> Vec<f32> {
    let mut optimizer = spec.build(backend).unwrap();
    let mut seen = Vec::new();
    for step in 0..45 {
        let batch = words(step, step == 20);
        let given = ranks.map_or_else(|| batch.clone(), |ranks| part_of(&batch, ranks));
        optimizer.learn(backend, &given).unwrap();
        match step {
            10 | 30 => backend.average(0.5).unwrap(),
            15 => seen.extend_from_slice(backend.params().unwrap().values()),
            25 => {
                let saved = optimizer.save(backend).unwrap();
                optimizer.load(backend, &saved).unwrap();
            }
            _ => {}
        }
    }
    seen.extend_from_slice(backend.params().unwrap().values());
    seen.extend_from_slice(backend.averaged_params().unwrap().values());
    seen
}

#[test]
fn a_vocabulary_is_learned_lazily_to_the_same_bits_on_any_number_of_ranks() {
    let circuit = std::sync::Arc::new(hmm(4, 7, Categorical::new(5000).unwrap()).unwrap());
    let params = anemone::Params::random(&circuit, 1, 2.0).unwrap();
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let plain = || CpuBackend::new(circuit.clone(), &params, &options).unwrap();
    let learned = |cluster: Box<dyn Cluster>, spec: &OptimizerSpec| {
        let ranks = Ranks::new(cluster, SHARDS).unwrap();
        let mut backend = Replicated::new(Box::new(plain()), ranks.clone()).unwrap();
        learned_words(&mut backend, Some(&ranks), spec)
    };
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let specs: [OptimizerSpec; 3] = [
        AnemoneSpec { momentum: 0.9, ..AnemoneSpec::default() }.into(),
        AnemoneSpec { momentum: 0.0, ..AnemoneSpec::default() }.into(),
        MiniBatchEmSpec::default().into(),
    ];
    for spec in specs {
        let want = learned(Box::new(Alone), &spec);
        for num_ranks in [1, 2, 3, 5] {
            for got in on_ranks(num_ranks, |rank| learned(Box::new(rank), &spec)) {
                assert!(bits(&got) == bits(&want), "{} on {num_ranks} ranks", spec.name());
            }
        }
        // And it is what one backend learns alone, but for rounding: of sums, and of masses that are kept up.
        let alone = learned_words(&mut plain(), None, &spec);
        assert!(alone.len() > 3 * 5000 && alone.len() == want.len());
        for (want, got) in alone.iter().zip(&want) {
            assert!((want - got).abs() <= 1e-3 * want.abs() + 1e-7, "{}: {got} is not {want}", spec.name());
        }
    }
}

#[test]
fn few_rows_of_a_large_table_are_few_bytes() {
    let received = on_ranks(2, |rank| {
        let circuit = std::sync::Arc::new(hmm(4, 8, Categorical::new(5000).unwrap()).unwrap());
        let params = anemone::Params::random(&circuit, 1, 2.0).unwrap();
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let inner = CpuBackend::new(circuit.clone(), &params, &options).unwrap();
        let ranks = Ranks::new(Box::new(rank), SHARDS).unwrap();
        let mut backend = Replicated::new(Box::new(inner), ranks.clone()).unwrap();
        let mut optimizer = OptimizerSpec::from(AnemoneSpec::default()).build(&mut backend).unwrap();
        optimizer.learn(&mut backend, &rows(0)).unwrap();
        ranks.costs().received
    });
    let dense = 4 * 5000 * 8;
    assert!(received.iter().all(|&bytes| bytes > 0 && bytes < dense / 4), "{received:?} of {dense}");
}
