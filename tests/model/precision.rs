//! How precise each precision is: a hidden Markov model of 256 states over 128 steps, against double precision.
//!
//! `cargo test --test model -- precision:: --nocapture` prints what was measured. Likelihoods and flows of training
//! passes are held to their precision, and those of an evaluation to f32 whatever the precision of training.

use std::sync::Arc;

use anemone::backend::Backend;
use anemone::backend::cpu::{CpuOptions, IsaCap, Precision};
use anemone::circuit::{Categorical, Circuit, NodeKind, ParamKind, Params};
use anemone::data::Batch;
use anemone::optim::{AnemoneSpec, FullBatchEmSpec, OptimizerSpec};
use anemone::query::sample;
use anemone::rng::Rng;
use anemone::structure::{Tying, hmm, hmm_with};

use crate::common::spec::{Spec, Table};
use crate::common::{cases, cpu_with, mean_flows, start_with, two_threads};

fn options(precision: Precision) -> CpuOptions {
    CpuOptions { precision, ..two_threads() }
}

/// A hidden Markov model whose rows of parameters range over exp(`range`).
fn model(length: usize, latents: usize, cats: u32, range: f64) -> (Arc<Circuit>, Params) {
    let circuit = hmm(length, latents, Categorical::new(cats).unwrap()).unwrap();
    let params = Params::random(&circuit, 1, range).unwrap();
    (Arc::new(circuit), params)
}

/// Σ|got − want| / Σ want over the blocks of a kind.
fn distance(circuit: &Circuit, got: &Table, want: &Table, is_weights: bool) -> f64 {
    let (mut off, mut mass) = (0.0, 0.0);
    for (block, (got, want)) in circuit.params().iter().zip(got.iter().zip(want)) {
        if matches!(block.kind, ParamKind::Sum { .. }) == is_weights {
            for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                (off, mass) = (off + (got - want).abs(), mass + want);
            }
        }
    }
    assert!(mass > 0.0 && !off.is_nan(), "there is nothing to compare");
    off / mass
}

#[test]
fn likelihoods_and_flows_of_a_long_hmm_are_as_precise_as_asked() {
    let (circuit, params) = model(128, 256, 1000, 2.0);
    let batch = sample(&circuit, &params, 16, &mut Rng::new(5)).unwrap();
    let spec = Spec::new(&circuit, &params);
    let want = spec.log_likelihoods(&batch);
    let want_flows = spec.mean_flows(&batch);

    // Nats a row, and the share of transition and emission flows that is in the wrong place. 128 steps, each off by
    // 2^-24, by 2^-16 or by 2^-8 in every term, whose mean is what matters; the limits leave a factor of about ten.
    let limits = [
        (Precision::F32, 1e-4, 1e-5, 1e-5),
        (Precision::Bf16x3, 1e-4, 1e-5, 1e-5),
        (Precision::Bf16, 0.06, 3e-3, 1e-2),
    ];
    for (precision, nats, transition, emission) in limits {
        let mut backend = cpu_with(&circuit, &params, &options(precision));
        let off = |got: &[f64]| got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
        // One row at a time, because a report has only the sum.
        let trained: Vec<f64> = (0..batch.num_rows())
            .map(|row| mean_flows(&mut backend, &batch.slice(row..row + 1)).1.log_likelihood)
            .collect();
        let (flows, _) = mean_flows(&mut backend, &batch);
        let found = [
            off(&trained),
            distance(&circuit, &flows, &want_flows, true),
            distance(&circuit, &flows, &want_flows, false),
        ];
        println!(
            "{precision:>6} on {}: log-likelihood {:.1e} nats of {:.0}, transition flows {:.1e}, emission flows {:.1e}",
            backend.isa().name(),
            found[0],
            want[0],
            found[1],
            found[2]
        );
        for (found, limit) in found.into_iter().zip([nats, transition, emission]) {
            assert!(found <= limit, "{precision}: {found:e} is more than {limit:e}");
        }
        if precision != Precision::F32 {
            assert!(found[0] > 1e-6, "{precision}: {:e} is suspiciously good: was anything rounded?", found[0]);
        }
        // After a training pass too, whose packed weights must not be taken for those of an evaluation.
        let evaluated = off(&backend.log_likelihoods(&batch).unwrap());
        assert!(evaluated <= 1e-4, "{precision}: an evaluation is off by {evaluated:e}");
    }
}

/// Weights that are shared are packed beforehand, others by the pass that needs them: neither may reach the wrong pass.
#[test]
fn evaluations_have_the_same_bits_whatever_the_precision_of_training() {
    for tying in [Tying::Homogeneous, Tying::Inhomogeneous] {
        let circuit = Arc::new(hmm_with(6, 20, Categorical::new(9).unwrap(), tying).unwrap());
        let params = Params::random(&circuit, 2, 2.0).unwrap();
        let batch = sample(&circuit, &params, 40, &mut Rng::new(6)).unwrap();
        // Not beyond the vectors that f32 has, so that bits can be compared where there are tiles.
        let on = |precision| CpuOptions { isa: IsaCap::Avx512, ..options(precision) };
        let want = cpu_with(&circuit, &params, &on(Precision::F32)).log_likelihoods(&batch).unwrap();
        for (_, precision) in Precision::NAMES {
            let mut backend = cpu_with(&circuit, &params, &on(precision));
            let fresh = mean_flows(&mut backend, &batch);
            assert_eq!(backend.log_likelihoods(&batch).unwrap(), want, "{precision}, {tying:?}");
            let again = mean_flows(&mut backend, &batch);
            assert!(fresh.0 == again.0, "{precision}, {tying:?}: an evaluation has changed the next flows");
            assert_eq!(fresh.1.log_likelihood, again.1.log_likelihood);
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn training_in_bf16_climbs_as_training_in_f32_does() {
    let (circuit, source) = model(24, 8, 20, 12.0);
    let data = sample(&circuit, &source, 600, &mut Rng::new(7)).unwrap();
    let held_out = sample(&circuit, &source, 300, &mut Rng::new(8)).unwrap();
    let begin = Params::random(&circuit, 9, 2.0).unwrap();
    let optimizers = [
        (OptimizerSpec::Anemone(AnemoneSpec::default()), 100),
        (OptimizerSpec::FullBatchEm(FullBatchEmSpec::default()), 600),
    ];
    for (spec, rows) in optimizers {
        let reached: Vec<[f64; 3]> = Precision::NAMES
            .iter()
            .map(|(_, precision)| {
                let (mut backend, mut optimizer) = start_with(&circuit, &begin, &spec, &options(*precision));
                let score = |backend: &mut dyn Backend, data: &Batch| mean(&backend.log_likelihoods(data).unwrap());
                let before = score(&mut backend, &data);
                for _ in 0..10 {
                    data.chunks(rows).for_each(|batch| {
                        optimizer.learn(&mut backend, &batch).unwrap();
                    });
                    optimizer.end_epoch(&mut backend).unwrap();
                }
                [before, score(&mut backend, &data), score(&mut backend, &held_out)]
            })
            .collect();
        for ((name, _), got) in Precision::NAMES.iter().zip(&reached) {
            println!("{} in {name}: {:.4} → {:.4}, held out {:.4}", spec.name(), got[0], got[1], got[2]);
            assert!(got[1] > got[0] + 1.0, "{name}: nothing was learned");
            for (got, want) in got.iter().zip(&reached[0]) {
                assert!((got - want).abs() <= 1e-3 * want.abs(), "{name}: {got}, and in f32 {want}");
            }
        }
        assert!(reached[2][1] != reached[0][1], "bf16 has the bits of f32: was anything rounded?");
    }
}

/// A model whose sums each have weights of their own, and groups: the other way through the same products.
#[test]
fn every_case_of_the_specification_holds_in_bf16x3_and_roughly_in_bf16() {
    for case in cases::all() {
        let spec = Spec::new(&case.circuit, &case.params);
        let batch = case.batch_with_missing(9, 2);
        let want = spec.mean_flows(&batch);
        let has_weights = case.circuit.nodes().iter().any(|node| matches!(node.kind, NodeKind::Sum { .. }));
        for (precision, limit) in [(Precision::Bf16x3, 1e-4), (Precision::Bf16, 2e-2)] {
            let (flows, report) = mean_flows(&mut cpu_with(&case.circuit, &case.params, &options(precision)), &batch);
            let total: f64 = spec.log_likelihoods(&batch).iter().sum();
            let allowed = limit * batch.num_rows() as f64;
            assert!((report.log_likelihood - total).abs() <= allowed, "{}: {precision}", case.name);
            if has_weights {
                let found = distance(&case.circuit, &flows, &want, true);
                assert!(found <= limit, "{}: {precision}: {found:e}", case.name);
            }
        }
    }
}
