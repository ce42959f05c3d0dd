//! Ranks that learn together: the same bits for any number of them, also after one is lost.

use std::thread;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, Replicated};
use anemone::circuit::Categorical;
use anemone::cluster::{Alone, Cluster, Ranks, Threads};
use anemone::data::Batch;
use anemone::optim::{AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, SgdSpec, StepwiseEmSpec};
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

/// The bits of parameters, likelihoods and reports after a few batches and the end of an epoch.
fn learned(case: &Case, spec: &OptimizerSpec, cluster: Box<dyn Cluster>) -> Vec<u64> {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let inner = CpuBackend::new(case.circuit.clone(), &case.params, &options).unwrap();
    let mut backend = Replicated::new(Box::new(inner), Ranks::new(cluster, SHARDS).unwrap()).unwrap();
    let mut optimizer = spec.build(&mut backend).unwrap();
    let mut bits = Vec::new();
    for batch in batches(case) {
        let report = optimizer.learn(&mut backend, &batch).unwrap().batch;
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
            let want = learned(&case, &spec, Box::new(Alone));
            assert!(want.len() > 20);
            for num_ranks in 1..=5 {
                for got in on_ranks(num_ranks, |rank| learned(&case, &spec, Box::new(rank))) {
                    assert!(got == want, "{}: {} on {num_ranks} ranks", case.name, spec.name());
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
