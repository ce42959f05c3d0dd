//! The laws of learning, on small circuits of every shape: what must hold whatever the backend does inside.

#![allow(clippy::unwrap_used)] // what fails here fails a test

mod common;

use std::sync::Arc;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, EmUpdate, FlowPrecision, Retain, Tensor};
use anemone::circuit::json::{read_circuit, write_circuit};
use anemone::circuit::{
    Categorical, Circuit, CircuitBuilder, Gaussian, NodeId, ParamKind, Params, Slice, Smoothing, SumGroup, sample,
};
use anemone::data::{Batch, Column};
use anemone::optim::{
    AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule, SgdSpec, StepwiseEmSpec,
};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tying, hmm, monarch_hmm};
use proptest::prelude::*;

use common::cases::{self, Case};
use common::compare::{LOG_LIKELIHOOD, PROBABILITY, Tolerance, close, close_number, close_rows, close_table, distance};
use common::spec::{Spec, Table, map_table, param_table, params_from, scaled, zip_tables};
use common::trainer::Trainer;
use common::{bits, cpu, cpu_with, learned, mean_flows, start, theta, top_down};

fn constant(step: f64) -> Schedule {
    Schedule::Constant { step }
}

fn anemone(step: f64, momentum: f64, smoothing: Smoothing) -> OptimizerSpec {
    OptimizerSpec::Anemone(AnemoneSpec { step: constant(step), momentum, smoothing, ..Default::default() })
}

fn full_batch_em() -> OptimizerSpec {
    OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing: Smoothing::NONE })
}

fn mini_batch_em(step: f64, momentum: f64, smoothing: Smoothing) -> OptimizerSpec {
    OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { step: constant(step), momentum, smoothing, ..Default::default() })
}

/// The EM rules, which suit every circuit, with both kinds of smoothing.
fn em_optimizers() -> Vec<OptimizerSpec> {
    let mut specs = Vec::new();
    for smoothing in [Smoothing::NONE, Smoothing::Relative(1e-3), Smoothing::Absolute(1e-3)] {
        specs.push(OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing }));
        specs.push(mini_batch_em(0.3, 0.0, smoothing));
        specs.push(mini_batch_em(0.3, 0.8, smoothing));
        specs.push(anemone(0.4, 0.9, smoothing));
        specs.push(OptimizerSpec::StepwiseEm(StepwiseEmSpec { smoothing, ..Default::default() }));
    }
    let step = Schedule::Cosine { from: 0.8, to: 0.2, horizon: 3 };
    specs.push(OptimizerSpec::Anemone(AnemoneSpec { step, batches_per_update: 2, ..Default::default() }));
    specs
}

/// Adam's ε is large here: with a small one its first steps are the *signs* of the gradient, and those of entries near
/// zero are decided by rounding.
fn gradient_optimizers() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::Adam(AdamSpec { rate: constant(0.1), epsilon: 0.05, ..Default::default() }),
        OptimizerSpec::Sgd(SgdSpec { rate: constant(0.3), batches_per_update: 2 }),
    ]
}

fn optimizers_for(case: &Case) -> Vec<OptimizerSpec> {
    let mut specs = em_optimizers();
    if case.is_discrete() {
        specs.extend(gradient_optimizers());
    }
    specs
}

fn weighted(batch: Batch) -> Batch {
    let weights = (0..batch.num_rows()).map(|row| [1.0, 0.0, 2.5, 0.25][row % 4]).collect();
    batch.with_weights(weights).unwrap()
}

// The backend is the specification.

fn agrees_with_the_specification(case: &Case) {
    let spec = Spec::new(&case.circuit, &case.params);
    let mut backend = cpu(&case.circuit, &case.params);
    for batch in [case.batch(9, 1), case.batch_with_missing(9, 2), weighted(case.batch_with_missing(9, 3))] {
        let got = backend.log_likelihoods(&batch).unwrap();
        // A row with everything missing has log-likelihood 0, give or take the rounding of its rows' sums.
        let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
        close(&format!("{}: log-likelihoods", case.name), &got, &spec.log_likelihoods(&batch), tolerance);
        let (flows, report) = mean_flows(&mut backend, &batch);
        close_table(&format!("{}: flows", case.name), &flows, &spec.mean_flows(&batch), PROBABILITY);
        let total: f64 = got.iter().enumerate().map(|(row, ll)| ll * f64::from(batch.weight(row))).sum();
        close_number(&format!("{}: report", case.name), report.log_likelihood, total, tolerance);
        assert_eq!((report.num_rows, report.impossible_rows), (9, 0));
        assert_eq!((report.weight, report.possible_weight), (batch.total_weight(), batch.total_weight()));
    }
    close_rows(&format!("{}: td", case.name), &top_down(&mut backend), &spec.top_down(), PROBABILITY);
}

#[test]
fn likelihoods_flows_and_top_down_probabilities_are_the_specification_in_every_case() {
    cases::all().iter().for_each(agrees_with_the_specification);
}

#[test]
fn every_optimizer_follows_the_specification_over_an_epoch_of_uneven_batches() {
    for case in cases::all() {
        let data = weighted(case.batch_with_missing(14, 5));
        for spec in optimizers_for(&case) {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
            let mut trainer = Trainer::new(&case.circuit, &case.params, &spec);
            for batch in data.chunks(4) {
                optimizer.learn(&mut backend, &batch).unwrap();
                trainer.learn(&batch);
            }
            optimizer.end_epoch(&mut backend).unwrap();
            trainer.end_epoch();
            // Four updates, each within the tolerance of one, each moving what the next one sees.
            let tolerance = Tolerance { absolute: 8e-5, relative: 1e-5 };
            close_table(&format!("{}: {spec:?}", case.name), &theta(&backend), &trainer.spec.theta, tolerance);
        }
    }
}

#[test]
fn the_top_down_probability_is_the_flow_of_a_row_with_everything_missing() {
    for case in cases::all() {
        let mut backend = cpu(&case.circuit, &case.params);
        let nothing = case.batch(1, 1).with_missing(|_, _| true);
        let (flows, _) = mean_flows(&mut backend, &nothing);
        let masses = Spec::new(&case.circuit, &case.params).row_masses(&flows);
        close_rows(&case.name, &masses, &top_down(&mut backend), PROBABILITY);
    }
}

#[test]
fn every_case_comes_back_from_json_and_says_the_same() {
    for case in cases::all() {
        let (circuit, params) = read_circuit(&write_circuit(&case.circuit, Some(&case.params))).unwrap();
        assert_eq!(format!("{circuit:?}"), format!("{:?}", case.circuit));
        let params = params.unwrap();
        assert_eq!(bits(&params), bits(&case.params));
        let batch = case.batch(5, 1);
        let again = cpu(&Arc::new(circuit), &params).log_likelihoods(&batch).unwrap();
        assert_eq!(again, cpu(&case.circuit, &case.params).log_likelihoods(&batch).unwrap());
    }
}

/// Wider than a tile of weights, more rows than a chunk, more categories than a task gathers.
#[test]
fn circuits_larger_than_any_tile_are_the_specification() {
    let table = |cats| Categorical::new(cats).unwrap();
    let cases = [
        Case::new("wide hmm", hmm(3, 70, table(3000), Tying::Homogeneous).unwrap()),
        Case::new("long hmm", hmm(25, 3, table(2), Tying::Homogeneous).unwrap()),
        Case::new("wide monarch hmm", monarch_hmm(3, (8, 9), table(40)).unwrap()),
        cases::chunked_trees(6, 33, 4),
    ];
    for case in cases {
        let spec = Spec::new(&case.circuit, &case.params);
        let mut backend = cpu(&case.circuit, &case.params);
        for rows in [1, 65, 300] {
            let batch = weighted(case.batch_with_missing(rows, 3));
            let what = format!("{}: {rows} rows", case.name);
            let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
            close(&what, &backend.log_likelihoods(&batch).unwrap(), &spec.log_likelihoods(&batch), tolerance);
            close_table(&what, &mean_flows(&mut backend, &batch).0, &spec.mean_flows(&batch), PROBABILITY);
        }
        close_rows(&case.name, &top_down(&mut backend), &spec.top_down(), PROBABILITY);
    }
}

#[test]
fn comparisons_fail_on_nan_on_nothing_and_on_other_lengths() {
    let fails = |got: &[f64], want: &[f64]| {
        let (got, want) = (got.to_vec(), want.to_vec());
        std::panic::catch_unwind(|| close("", &got, &want, Tolerance { absolute: 1.0, relative: 1.0 })).is_err()
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    assert!(!fails(&[1.0], &[1.5]) && !fails(&[inf], &[inf]));
    assert!(fails(&[9.0], &[1.0]) && fails(&[], &[]) && fails(&[1.0], &[]) && fails(&[1.0, 1.0], &[1.0]));
    assert!(fails(&[nan], &[1.0]) && fails(&[1.0], &[nan]) && fails(&[nan], &[nan]));
    assert!(fails(&[inf], &[1.0]) && fails(&[1.0], &[inf]) && fails(&[inf], &[-inf]));
}

// Probability.

fn worlds_sum_to_one(case: &Case) {
    let Some(worlds) = case.all_worlds() else { return };
    let lls = cpu(&case.circuit, &case.params).log_likelihoods(&worlds).unwrap();
    // Up to a thousand worlds, each exact to 1e-5 of itself.
    close_number(&case.name, lls.iter().map(|ll| ll.exp()).sum(), 1.0, Tolerance { absolute: 1e-5, relative: 0.0 });
}

fn marginals_are_sums(case: &Case, seed: u64) {
    let Some(worlds) = case.all_worlds() else { return };
    let mut backend = cpu(&case.circuit, &case.params);
    let probabilities: Vec<f64> = backend.log_likelihoods(&worlds).unwrap().iter().map(|ll| ll.exp()).collect();
    let asked = case.batch_with_missing(6, seed);
    let agrees = |row: usize, world: usize| {
        (0..asked.num_vars()).all(|var| {
            asked.is_missing(row, var) || asked.column(var).category(row) == worlds.column(var).category(world)
        })
    };
    let sum = |row: usize| (0..worlds.num_rows()).filter(|&w| agrees(row, w)).map(|w| probabilities[w]).sum::<f64>();
    let want: Vec<f64> = (0..asked.num_rows()).map(|row| sum(row).ln()).collect();
    let got = backend.log_likelihoods(&asked).unwrap();
    close(&case.name, &got, &want, Tolerance { absolute: 1e-5, relative: 1e-5 });
}

#[test]
fn the_probabilities_of_all_worlds_sum_to_one() {
    let cases = cases::all();
    assert!(cases.iter().filter(|case| case.all_worlds().is_some()).count() > 10);
    cases.iter().for_each(worlds_sum_to_one);
}

#[test]
fn marginals_are_sums_over_worlds() {
    cases::all().iter().for_each(|case| marginals_are_sums(case, 4));
}

/// φ of one entry moved: θ·e^move, left unnormalised.
fn moved(case: &Case, at: (usize, usize, usize), by: f64) -> Params {
    let mut table = param_table(&case.circuit, &case.params);
    table[at.0][at.1][at.2] *= by.exp();
    params_from(&case.circuit, &table)
}

/// The flow of every weight and probability is the slope of the backend's log p̃ along its φ.
fn flows_are_slopes(case: &Case) {
    let batch = case.batch(4, 8);
    let mut backend = cpu(&case.circuit, &case.params);
    let (flows, _) = mean_flows(&mut backend, &batch);
    let mut mean_ll = |params: &Params| {
        backend.set_params(params).unwrap();
        backend.log_likelihoods(&batch).unwrap().iter().sum::<f64>() / batch.num_rows() as f64
    };
    for (b, block) in case.circuit.params().iter().enumerate() {
        if matches!(&block.kind, ParamKind::Input(distribution) if !distribution.is_table()) {
            continue; // their parameters are not log-weights
        }
        for (r, row) in flows[b].iter().enumerate() {
            for (k, &flow) in row.iter().enumerate() {
                let mut slope =
                    |h: f64| (mean_ll(&moved(case, (b, r, k), h)) - mean_ll(&moved(case, (b, r, k), -h))) / (2.0 * h);
                // Richardson: what remains is of order h⁴ times a fifth derivative, and rounding of 1e-6 over h.
                let slope = (4.0 * slope(0.1) - slope(0.2)) / 3.0;
                let what = format!("{}: block {b} row {r} entry {k}", case.name);
                close_number(&what, flow, slope, Tolerance { absolute: 5e-4, relative: 1e-4 });
            }
        }
    }
}

#[test]
fn flows_are_finite_differences_of_the_log_likelihood() {
    cases::all().iter().for_each(flows_are_slopes);
}

// EM.

fn training_log_likelihood(case: &Case, params: &Params, data: &Batch) -> f64 {
    let lls = cpu(&case.circuit, params).log_likelihoods(data).unwrap();
    lls.iter().enumerate().map(|(row, ll)| ll * f64::from(data.weight(row))).sum::<f64>() / data.total_weight()
}

fn full_batch_em_climbs(case: &Case, rows_a_batch: usize) {
    let data = case.batch_with_missing(30, 6);
    let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &full_batch_em());
    let mut before = training_log_likelihood(case, &case.params, &data);
    for epoch in 0..8 {
        for batch in data.chunks(rows_a_batch) {
            optimizer.learn(&mut backend, &batch).unwrap();
        }
        assert!(optimizer.end_epoch(&mut backend).unwrap());
        let after = training_log_likelihood(case, &backend.params().unwrap(), &data);
        // A converged circuit wavers by rounding, and so does one that has a single world, of log-likelihood 0.
        assert!(after >= before - 1e-5 * before.abs() - 1e-6, "{}: epoch {epoch}: {before} fell to {after}", case.name);
        before = after;
    }
}

#[test]
fn full_batch_em_never_lowers_the_training_log_likelihood_however_the_epoch_is_cut() {
    // The discrete logistic matches moments, which is not its maximum likelihood: no such law for it.
    for case in cases::all().into_iter().filter(|case| case.name != "mixed inputs") {
        [30, 7, 1].iter().for_each(|&rows| full_batch_em_climbs(&case, rows));
    }
}

#[test]
fn full_batch_em_raises_the_log_likelihood_of_a_gaussian_mixture() {
    let mut c = CircuitBuilder::new(2);
    let param = c.input_param(3, Gaussian::new(0.05, 0.0).unwrap()).unwrap();
    let inputs = [c.input(0, param).unwrap(), c.input(1, param).unwrap()];
    let both = c.product(&inputs).unwrap();
    cases::sum(&mut c, 1, &[both]);
    full_batch_em_climbs(&Case::new("gaussian mixture", c.finish().unwrap()), 7);
}

#[test]
fn full_batch_em_is_the_same_in_one_batch_or_seven() {
    for case in cases::all() {
        let data = weighted(case.batch_with_missing(35, 6));
        let cut: Vec<Batch> = data.chunks(5).collect();
        assert_eq!(cut.len(), 7);
        let one = learned(&case.circuit, &case.params, &full_batch_em(), &[&data]);
        let seven = learned(&case.circuit, &case.params, &full_batch_em(), &cut.iter().collect::<Vec<_>>());
        let table = |params: &Params| param_table(&case.circuit, params);
        // Flows of a batch are added up in f32, 35 of them: 35·6e-8 relative.
        close_table(&case.name, &table(&seven), &table(&one), Tolerance { absolute: 2e-6, relative: 2e-6 });
    }
}

fn a_whole_step_of_anemone_is_em(case: &Case, seed: u64) {
    let data = case.batch_with_missing(12, seed);
    let em = learned(&case.circuit, &case.params, &full_batch_em(), &[&data]);
    let table = |params: &Params| param_table(&case.circuit, params);
    for (alpha, absolute) in [(1.0, 2e-6), (0.9999, 2e-3)] {
        let spec = anemone(alpha, 0.0, Smoothing::NONE);
        let got = learned(&case.circuit, &case.params, &spec, &[&data]);
        if alpha < 1.0 && !has_flow_everywhere(case, &data) {
            continue; // a row with next to no flow still retains itself for α < 1
        }
        close_table(&case.name, &table(&got), &table(&em), Tolerance { absolute, relative: 2e-3 * absolute });
    }
}

#[test]
fn anemone_with_a_whole_step_and_no_momentum_is_one_step_of_em() {
    cases::all().iter().for_each(|case| a_whole_step_of_anemone_is_em(case, 6));
}

/// Whether every row has at least 2 % of flow.
fn has_flow_everywhere(case: &Case, data: &Batch) -> bool {
    let spec = Spec::new(&case.circuit, &case.params);
    spec.row_masses(&spec.mean_flows(data)).iter().flatten().all(|&mass| mass > 0.02)
}

/// Σ a·b over all entries.
fn inner(a: &Table, b: &Table) -> f64 {
    zip_tables(a, b, |x, y| if x == 0.0 { 0.0 } else { x * y }).iter().flatten().flatten().sum()
}

/// TD·θ, entry by entry.
fn td_theta(td: &[Vec<f64>], theta: &Table) -> Table {
    let row = |td: f64, row: &Vec<f64>| row.iter().map(|t| td * t).collect();
    td.iter().zip(theta).map(|(td, rows)| td.iter().zip(rows).map(|(&td, r)| row(td, r)).collect()).collect()
}

/// Every row nudged to another distribution nearby.
fn perturbed(theta: &Table, rng: &mut Rng, by: f64) -> Table {
    let mut out = theta.clone();
    for row in out.iter_mut().flatten() {
        row.iter_mut().for_each(|t| *t *= (by * rng.normal()).exp());
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|t| *t /= total);
    }
    out
}

fn anemone_maximises(case: &Case, seed: u64) {
    let (alpha, data) = (0.4, case.batch(6, seed));
    let mut backend = cpu(&case.circuit, &case.params);
    let (flows, _) = mean_flows(&mut backend, &data);
    let retained = td_theta(&top_down(&mut backend), &theta(&backend));
    // ⟨F, φ'⟩ + (1/η)·⟨TD·θ, φ'⟩ with 1/η = (1−α)/α.
    let mut weights = zip_tables(&flows, &retained, |f, r| f + (1.0 - alpha) / alpha * r);
    // Rounding leaves 1e-9 of flow on entries that the update rounds to zero; log 0 would turn it into −∞.
    weights = map_table(&weights, |w| if w < 1e-7 { 0.0 } else { w });
    let objective = |theta: &Table| inner(&weights, &map_table(theta, f64::ln));
    let spec = anemone(alpha, 0.0, Smoothing::NONE);
    let best = param_table(&case.circuit, &learned(&case.circuit, &case.params, &spec, &[&data]));
    let reached = objective(&best);
    assert!(reached.is_finite(), "{}: {reached}", case.name);
    let mut rng = Rng::new(seed);
    let mut worst = reached;
    for by in [0.01, 0.1, 1.0] {
        for _ in 0..10 {
            let other = objective(&perturbed(&best, &mut rng, by));
            assert!(other <= reached + 1e-6, "{}: moving by {by} raises {reached} to {other}", case.name);
            worst = worst.min(other);
        }
    }
    // It is not flat: some of the moves lose visibly.
    assert!(worst < reached - 1e-3 || best.iter().flatten().all(|row| row.len() == 1), "{}: {worst}", case.name);
}

#[test]
fn the_anemone_update_maximises_its_objective() {
    for case in cases::all().into_iter().filter(Case::is_discrete) {
        anemone_maximises(&case, 3);
    }
}

/// Circuits whose worlds, latents included, can be listed.
fn listable() -> Vec<Case> {
    let mut cases =
        vec![Case::new("short hmm", cases::tied_hmm(3, 2, 2)), Case::new("shared dag", cases::shared_dag(3, 2, 2))];
    let small = ["one input", "mixture of inputs", "grouped sum", "mapped product", "same child twice"];
    cases.extend(cases::all().into_iter().filter(|case| small.contains(&case.name.as_str())));
    cases
}

/// KL(p ‖ q) is Σ TD·θ·(φ − φ'), which is returned.
fn kl_is_linear(case: &Case, seed: u64) -> f64 {
    let other = Params::random(&case.circuit, 100 + seed, 2.0).unwrap();
    let (p, q) = (Spec::new(&case.circuit, &case.params), Spec::new(&case.circuit, &other));
    let td = top_down(&mut cpu(&case.circuit, &case.params));
    let log_ratio = zip_tables(&p.theta, &q.theta, |a, b| (a / b).ln());
    let lemma = inner(&td_theta(&td, &p.theta), &log_ratio);
    close_number(&case.name, lemma, p.kl(&q), Tolerance { absolute: 2e-6, relative: 1e-5 });
    lemma
}

#[test]
fn the_kl_divergence_over_values_and_latents_is_linear_in_the_log_parameters() {
    for case in listable() {
        for seed in 0..3 {
            assert!(kl_is_linear(&case, seed) > 1e-3, "{}: the two must differ", case.name);
        }
    }
}

// After anything.

fn rows_sum_to_one(what: &str, circuit: &Circuit, params: &Params) {
    for (b, rows) in param_table(circuit, params).iter().enumerate() {
        let is_density =
            matches!(&circuit.params()[b].kind, ParamKind::Input(distribution) if !distribution.is_table());
        for (r, row) in rows.iter().enumerate() {
            assert!(row.iter().all(|v| v.is_finite()), "{what}: block {b} row {r}: {row:?}");
            if !is_density {
                assert!(row.iter().all(|v| (0.0..=1.0 + 1e-6).contains(v)), "{what}: block {b} row {r}: {row:?}");
                // f32 entries below 1, rounded once each.
                close_number(
                    &format!("{what}: block {b} row {r}"),
                    row.iter().sum(),
                    1.0,
                    Tolerance { absolute: 2e-6, relative: 0.0 },
                );
            }
        }
    }
    params.check(circuit).unwrap();
}

#[test]
fn after_anything_every_row_sums_to_one() {
    for case in cases::all() {
        for spec in optimizers_for(&case) {
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
            for (t, batch) in weighted(case.batch_with_missing(22, 9)).chunks(4).enumerate() {
                optimizer.learn(&mut backend, &batch).unwrap();
                rows_sum_to_one(&format!("{}: {spec:?}: {t}", case.name), &case.circuit, &backend.params().unwrap());
            }
            optimizer.end_epoch(&mut backend).unwrap();
            rows_sum_to_one(&format!("{}: {spec:?}", case.name), &case.circuit, &backend.params().unwrap());
        }
    }
}

#[test]
fn renormalising_keeps_the_distribution_when_nothing_is_tied() {
    for case in cases::all().into_iter().filter(|case| ["tree", "shared dag", "wide product"].contains(&&*case.name)) {
        let mut rng = Rng::new(5);
        let table = map_table(&param_table(&case.circuit, &case.params), |v| v * (0.3 + 3.0 * rng.uniform()));
        let foreign = params_from(&case.circuit, &table);
        let mut backend = cpu(&case.circuit, &foreign);
        let worlds = case.batch(40, 3);
        let before = backend.log_likelihoods(&worlds).unwrap();
        backend.renormalize().unwrap();
        let after = backend.log_likelihoods(&worlds).unwrap();
        rows_sum_to_one(&case.name, &case.circuit, &backend.params().unwrap());
        // The same up to the constant log Z.
        let shift = before[0] - after[0];
        let shifted: Vec<f64> = after.iter().map(|ll| ll + shift).collect();
        close(&case.name, &shifted, &before, Tolerance { absolute: 1e-5, relative: 1e-5 });
    }
}

#[test]
fn weights_are_soft_counts() {
    for case in cases::all() {
        let rows = case.batch_with_missing(4, 11);
        let counted = rows.clone().with_weights(vec![2.0, 0.0, 1.0, 3.0]).unwrap();
        let pieces: Vec<Batch> = [0, 0, 2, 3, 3, 3].iter().map(|&r| rows.slice(r..r + 1)).collect();
        let mut backend = cpu(&case.circuit, &case.params);
        let flows = |backend: &mut CpuBackend, batches: &[&Batch]| {
            let id = backend.new_flows(FlowPrecision::Double).unwrap();
            for batch in batches {
                backend.add_flows(batch, 1.0, id).unwrap();
            }
            common::spec::flow_table(&case.circuit, &backend.flows(id).unwrap())
        };
        let got = flows(&mut backend, &[&counted]);
        let want = flows(&mut backend, &pieces.iter().collect::<Vec<_>>());
        close_table(&case.name, &got, &want, Tolerance { absolute: 1e-5, relative: 1e-6 });

        // A batch whose rows all weigh nothing moves nothing.
        let nothing = rows.with_weights(vec![0.0; 4]).unwrap();
        for spec in optimizers_for(&case) {
            let after = learned(&case.circuit, &case.params, &spec, &[&nothing]);
            assert_eq!(bits(&after), bits(&case.params), "{}: {spec:?}", case.name);
        }
    }
}

// The paper's example: a sample of one mode says nothing about the other.

/// A root over two mixtures n1 and n2, each over two Gaussians of its own mode. Blocks: Gaussians, n1, n2, root.
fn two_modes(sigma: f64) -> (Arc<Circuit>, Params) {
    let mut c = CircuitBuilder::new(1);
    let gaussians = c.input_param(4, Gaussian::new(0.01, 0.0).unwrap()).unwrap();
    let x = c.input(0, gaussians).unwrap();
    let group = |c: &mut CircuitBuilder, start| SumGroup {
        children: vec![Slice { node: x, start, units: 2 }],
        param: c.sum_param(1, 2).unwrap(),
    };
    let groups = vec![group(&mut c, 0), group(&mut c, 2)];
    let modes = c.grouped_sum(groups).unwrap();
    cases::sum(&mut c, 1, &[modes]);
    let circuit = c.finish().unwrap();
    let means = [-2.0f32, -1.0, 1.0, 2.0];
    let row = |param: anemone::circuit::ParamId, unit: usize| match param == gaussians {
        true => vec![means[unit], sigma as f32],
        false => vec![0.5, 0.5],
    };
    let params = Params::from_rows(&circuit, row).unwrap();
    (Arc::new(circuit), params)
}

#[test]
fn anemone_leaves_a_mode_alone_that_the_batch_says_nothing_about() {
    let x = Batch::from_columns(vec![Column::F32(vec![-1.5])]).unwrap();
    let posterior_of_n2 = |sigma: f64| {
        let (circuit, params) = two_modes(sigma);
        let mut backend = cpu(&circuit, &params);
        let (flows, _) = mean_flows(&mut backend, &x);
        (flows, top_down(&mut backend))
    };
    // σ such that the posterior of the two modes is 0.9998 and 0.0002: it grows with σ.
    let (mut low, mut high) = (0.3, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if posterior_of_n2(middle).0[3][0][1] > 0.0002 { high = middle } else { low = middle }
    }
    let (flows, td) = posterior_of_n2(low);
    let rel = |block: usize| flows[block][0].iter().sum::<f64>() / td[block][0];
    let near = Tolerance { absolute: 1e-3, relative: 0.0 };
    close(&format!("rel at sigma {low}"), &[rel(1), rel(2)], &[1.9996, 0.0004], near);

    let (circuit, params) = two_modes(low);
    let moved = |spec: &OptimizerSpec| {
        let after = param_table(&circuit, &learned(&circuit, &params, spec, &[&x]));
        let before = param_table(&circuit, &params);
        let weights = distance(&after[2..3].to_vec(), &before[2..3].to_vec());
        (weights, (after[0][2][0] - before[0][2][0]).abs())
    };
    let (weights, mean) = moved(&anemone(0.4, 0.9, Smoothing::NONE));
    assert!(weights < 1e-3 && mean < 5e-3, "anemone moved n2 by {weights} and its mean by {mean}");
    let (weights, mean) = moved(&mini_batch_em(0.4, 0.0, Smoothing::NONE));
    assert!(weights > 0.05 && mean > 0.05, "mini-batch EM moved n2 by {weights} and its mean by {mean}");
}

// Stop and go on.

/// All six optimizers, with windows of two batches where they have windows.
fn windowed_optimizers() -> Vec<OptimizerSpec> {
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

// However the work is divided.

#[test]
fn micro_batches_agree_with_one_large_batch() {
    for case in cases::all() {
        let data = weighted(case.batch_with_missing(13, 4));
        let mut whole = cpu(&case.circuit, &case.params);
        assert!(whole.micro_batch_rows() >= 13);
        let options = CpuOptions { threads: Some(2), memory_budget: 1 };
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
fn large_cases() -> Vec<Case> {
    vec![
        Case::new("large hmm", hmm(24, 16, Categorical::new(2000).unwrap(), Tying::Homogeneous).unwrap()),
        cases::learned_tree("large hclt", 16, 5, HcltOptions::default()),
        cases::chunked_trees(12, 16, 5),
    ]
}

/// The bits of everything learned and reported, on so many threads; and how many rows were rescued, how many impossible.
fn run_on(threads: usize, case: &Case, data: &Batch) -> (Vec<u32>, Vec<u64>, (usize, usize)) {
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
        let data = case.batch_with_missing(900, 1);
        let one = run_on(1, &case, &data);
        for threads in [2, 3, 8] {
            assert!(run_on(threads, &case, &data) == one, "{}: {threads} threads end with other bits", case.name);
        }
    }
}

/// Parameters over forty decades, and a category that no state emits.
#[test]
fn any_number_of_threads_ends_with_the_same_bits_where_rows_are_rescued_or_impossible() {
    let mut case = Case::new("extreme hmm", hmm(24, 16, Categorical::new(500).unwrap(), Tying::Homogeneous).unwrap());
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

// However large the batch.

/// A million rows are as exact in one batch as in a thousand or ten thousand, and as the same counts on three rows.
fn a_million_rows_are_exact(weight: impl Fn(usize) -> f32, is_missing: impl Fn(usize) -> bool) {
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

    let column = Column::U8((0..ROWS).map(|row| u8::from(tails(row))).collect());
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

// Where single precision is not enough.

/// A row of every unit's flows and likelihoods must be the specification's, in log space if need be.
fn survives(what: &str, circuit: &Arc<Circuit>, params: &Params, batch: &Batch) -> usize {
    let spec = Spec::new(circuit, params);
    let mut backend = cpu(circuit, params);
    let want = spec.log_likelihoods(batch);
    assert!(want.iter().all(|ll| ll.is_finite()), "{what}: the specification itself has {want:?}");
    close(what, &backend.log_likelihoods(batch).unwrap(), &want, LOG_LIKELIHOOD);
    let counts = (0..batch.num_rows()).map(|row| [0.5, 3.0][row % 2]).collect();
    let weighted = batch.clone().with_weights(counts).unwrap();
    let mut rescued = 0;
    for batch in [batch, &weighted] {
        let (flows, report) = mean_flows(&mut backend, batch);
        close_table(&format!("{what}: flows"), &flows, &spec.mean_flows(batch), PROBABILITY);
        assert_eq!(report.impossible_rows, 0, "{what}");
        rescued += report.rescued_rows;
    }
    for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
        rows_sum_to_one(what, circuit, &learned(circuit, params, &spec, &[batch]));
    }
    rescued
}

/// An HMM of two states that never change; each emits its own symbol, and the other's with probability `rare`.
fn stubborn_hmm(length: usize, rare: f32, switch: f32) -> (Arc<Circuit>, Params) {
    let circuit = cases::tied_hmm(length, 2, 2);
    let params = Params::from_rows(&circuit, |param, unit| match (param.index(), unit) {
        (0, 0) => vec![1.0 - rare, rare],
        (0, _) => vec![rare, 1.0 - rare],
        (1, 0) => vec![1.0 - switch, switch],
        (1, _) => vec![switch, 1.0 - switch],
        _ => vec![0.5, 0.5],
    });
    let params = params.unwrap();
    (Arc::new(circuit), params)
}

#[test]
fn paths_hundreds_of_nats_apart_are_not_lost() {
    let mut rescued = 0;
    // Read from the end, three zeros leave state 1 behind by a factor 1e-90 or more; then the ones make it win.
    let rows: Vec<u8> = [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1], [0; 8]].concat();
    let batch = Batch::from_rows(&rows, 8).unwrap();
    for rare in [1e-3, 1e-10, 1e-20, 1e-30, 1e-37, 1e-38, 1e-40] {
        for switch in [0.0, 1e-38, 1e-30, 1e-5] {
            let (circuit, params) = stubborn_hmm(8, rare, switch);
            rescued += survives(&format!("rare {rare:e}, switch {switch:e}"), &circuit, &params, &batch);
        }
    }
    assert!(rescued > 0, "no row was rescued: the rescue path was not tested");
}

#[test]
fn a_product_of_forty_unlikely_factors_is_not_lost() {
    let circuit = Arc::new(cases::wide_product(40, 3));
    let mut rng = Rng::new(3);
    let mut rescued = 0;
    for rare in [1e-2f32, 1e-10, 1e-30, 1e-38] {
        // Unit u of every variable prefers value u; rows follow no unit, or each unit for a part.
        let params = Params::from_rows(&circuit, |param, unit| match param.index() == 40 {
            true => vec![0.2, 0.3, 0.5],
            false => (0..3).map(|v| if v == unit { 1.0 - 2.0 * rare } else { rare * (1 + v) as f32 }).collect(),
        });
        let params = params.unwrap();
        let mut rows: Vec<u8> = (0..40).map(|v| if v < 20 { 0 } else { 1 }).collect();
        rows.extend((0..40).map(|v| (v % 3) as u8));
        rows.extend((0..40).map(|_| rng.below(3) as u8));
        rows.extend([2; 40]);
        let batch = Batch::from_rows(&rows, 40).unwrap();
        rescued += survives(&format!("rare {rare:e}"), &circuit, &params, &batch);
    }
    assert!(rescued > 0, "no row was rescued: the rescue path was not tested");
}

/// A mixture of two products of Gaussians, with means 0 and 1 and one σ for all.
fn two_gaussians(num_vars: usize, sigma: f32) -> (Arc<Circuit>, Params) {
    let mut c = CircuitBuilder::new(num_vars);
    let x: Vec<NodeId> = (0..num_vars)
        .map(|var| {
            let param = c.input_param(2, Gaussian::new(0.001, 0.0).unwrap()).unwrap();
            c.input(var, param).unwrap()
        })
        .collect();
    let all = c.product(&x).unwrap();
    cases::sum(&mut c, 1, &[all]);
    let circuit = Arc::new(c.finish().unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match param.index() == num_vars {
        true => vec![0.5, 0.5],
        false => vec![unit as f32, sigma],
    });
    let params = params.unwrap();
    (circuit, params)
}

#[test]
fn gaussians_far_from_the_data_are_not_lost() {
    let (circuit, params) = two_gaussians(3, 0.01);
    let batch = Batch::from_columns(vec![
        Column::F32(vec![0.0, 5.0, -3.0]),
        Column::F32(vec![1.0, 5.0, 3.0]),
        Column::F32(vec![0.45, 4.0, 0.5]),
    ]);
    assert!(survives("far gaussians", &circuit, &params, &batch.unwrap()) > 0, "no row was rescued");
}

/// Values so many standard deviations out, one of them or all, have the log-likelihood of the formula, and the
/// nearer of the two units gets the flow.
#[test]
fn gaussians_a_trillion_standard_deviations_from_the_data_are_not_lost() {
    for num_vars in [2, 5] {
        for z in [1e3f32, 1e6, 1e9, 1e12] {
            for sigma in [0.01f32, 1.0] {
                let (circuit, params) = two_gaussians(num_vars, sigma);
                let far = z * sigma;
                let columns = (0..num_vars).map(|var| match var {
                    0 => Column::F32(vec![far, far, 0.0, -far]),
                    _ => Column::F32(vec![far, 0.25, -far, -far]),
                });
                let batch = Batch::from_columns(columns.collect()).unwrap();
                let what = format!("{num_vars} variables, z {z:e}, sigma {sigma}");
                let mut backend = cpu(&circuit, &params);
                let want = Spec::new(&circuit, &params).log_likelihoods(&batch);
                let all_out = -0.5 * (f64::from(z) * f64::from(z)) * num_vars as f64;
                assert!(want[3].is_finite() && want[3] < 0.9 * all_out, "{what}: the specification has {want:?}");
                close(&what, &backend.log_likelihoods(&batch).unwrap(), &want, LOG_LIKELIHOOD);
                let (flows, report) = mean_flows(&mut backend, &batch);
                assert_eq!(report.impossible_rows, 0, "{what}");
                assert!(z < 1e9 || report.rescued_rows == 4, "{what}: only {} rescued", report.rescued_rows);
                close_number(&what, report.log_likelihood, want.iter().sum(), LOG_LIKELIHOOD);
                if z <= 1e6 {
                    // Further out double precision rounds away the weights, in the specification too.
                    let want = Spec::new(&circuit, &params).mean_flows(&batch);
                    close(&format!("{what}: nearer"), &flows[num_vars][0], &want[num_vars][0], PROBABILITY);
                }
                for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
                    rows_sum_to_one(&what, &circuit, &learned(&circuit, &params, &spec, &[&batch]));
                }
            }
        }
    }
}

/// Where a row is further out than this, double precision no longer tells apart what differs by some nats.
const TELLING: f64 = -1e8;

/// Random circuits with densities anywhere, and values up to 1e15: every likelihood is right, and every flow that
/// double precision can tell.
#[test]
fn random_densities_far_from_the_data_are_the_specification() {
    let (mut rescued, mut furthest, mut told) = (0, 0.0f64, 0);
    for seed in 0..150 {
        let case = cases::random_with_densities(seed).with_densities_anywhere(seed);
        let (spec, mut backend) = (Spec::new(&case.circuit, &case.params), cpu(&case.circuit, &case.params));
        for batch in [case.far_batch(16, seed), case.batch_with_missing(16, seed)] {
            let want = spec.log_likelihoods(&batch);
            assert!(want.iter().all(|ll| ll.is_finite()), "{}: the specification itself has {want:?}", case.name);
            furthest = want.iter().copied().fold(furthest, f64::min);
            let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
            close(&case.name, &backend.log_likelihoods(&batch).unwrap(), &want, tolerance);
            let (_, report) = mean_flows(&mut backend, &batch);
            assert_eq!(report.impossible_rows, 0, "{}", case.name);
            close_number(&case.name, report.log_likelihood, want.iter().sum(), tolerance);
            rescued += report.rescued_rows;
            for row in (0..16).filter(|&row| want[row] > TELLING) {
                flows_of_a_row_agree(&case, &mut backend, &batch.slice(row..row + 1));
                told += 1;
            }
            for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
                let after = learned(&case.circuit, &case.params, &spec, &[&batch, &batch]);
                rows_sum_to_one(&format!("{}: {spec:?}", case.name), &case.circuit, &after);
            }
        }
    }
    assert!(rescued > 100 && told > 100 && furthest < -1e24, "{rescued} rescued, {told} told, furthest {furthest:e}");
}

/// A draw from the root passes one input of every variable: so does the flow of a row, all of it.
#[test]
fn the_flow_of_a_row_arrives_whole_however_unlikely_the_row_is() {
    for seed in 0..150 {
        let case = cases::random_with_densities(seed).with_densities_anywhere(seed);
        let mut backend = cpu(&case.circuit, &case.params);
        for batch in [case.batch(16, seed), case.far_batch(16, seed)] {
            let (flows, _) = mean_flows(&mut backend, &batch);
            let masses = Spec::new(&case.circuit, &case.params).row_masses(&flows);
            let is_input = |b: usize| matches!(&case.circuit.params()[b].kind, ParamKind::Input(_));
            let arrived = (0..masses.len()).filter(|&b| is_input(b)).map(|b| masses[b].iter().sum::<f64>()).sum();
            close_number(&case.name, arrived, case.circuit.num_vars() as f64, PROBABILITY);
        }
    }
}

/// Flows and, scaled by the square of the row's largest number, the moments of densities.
fn flows_of_a_row_agree(case: &Case, backend: &mut CpuBackend, row: &Batch) {
    let ((got, _), want) = (mean_flows(backend, row), Spec::new(&case.circuit, &case.params).mean_flows(row));
    let largest = case.params.values().iter().map(|v| f64::from(v.abs()));
    let largest = (0..row.num_vars()).map(|var| row.column(var).real(0).abs()).chain(largest).fold(1.0, f64::max);
    for (b, block) in case.circuit.params().iter().enumerate() {
        let is_density = matches!(&block.kind, ParamKind::Input(distribution) if !distribution.is_table());
        let what = format!("{}: block {b}", case.name);
        // Σf·x, Σf·x², Σf: each at its own scale.
        let scaled = |rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            let at_scale =
                |(k, v): (usize, &f64)| if is_density { v / [largest, largest * largest, 1.0][k] } else { *v };
            rows.iter().map(|row| row.iter().enumerate().map(at_scale).collect()).collect()
        };
        close_rows(&what, &scaled(&got[b]), &scaled(&want[b]), PROBABILITY);
    }
}

/// A tower of sums in which each floor reaches the next with probability 1e-20: the lowest has TD 1e-40 and less.
#[test]
fn a_row_that_is_hardly_ever_reached_stays_a_distribution() {
    for floors in 1..5 {
        let mut c = CircuitBuilder::new(1);
        let mut below = cases::categorical(&mut c, 0, 2, 3);
        for _ in 0..floors {
            let beside = cases::categorical(&mut c, 0, 1, 3);
            let mixed = cases::sum(&mut c, 1, &[below]);
            below = cases::sum(&mut c, 1, &[mixed, beside]);
        }
        let circuit = Arc::new(c.finish().unwrap());
        let mut table = param_table(&circuit, &Params::random(&circuit, 1, 2.0).unwrap());
        for floor in 0..floors {
            table[3 + 3 * floor][0] = vec![1e-20, 1.0];
        }
        let params = params_from(&circuit, &table);
        let batch = Batch::from_rows(&[0u8, 1, 2, 1], 1).unwrap();
        let case = Case { name: format!("{floors} floors"), circuit, params };
        for spec in optimizers_for(&case) {
            let after = learned(&case.circuit, &case.params, &spec, &[&batch, &batch]);
            rows_sum_to_one(&format!("{}: {spec:?}", case.name), &case.circuit, &after);
        }
    }
}

/// A tree that gives category 2 of variable 0 no probability at all.
fn with_an_impossible_category() -> Case {
    let mut c = CircuitBuilder::new(2);
    let x = [cases::categorical(&mut c, 0, 3, 3), cases::categorical(&mut c, 1, 3, 2)];
    let both = c.product(&x).unwrap();
    cases::sum(&mut c, 1, &[both]);
    let mut case = Case::new("impossible", c.finish().unwrap());
    let mut table = param_table(&case.circuit, &case.params);
    table[0].iter_mut().for_each(|row| *row = vec![0.3, 0.7, 0.0]);
    case.params = params_from(&case.circuit, &table);
    case
}

#[test]
fn a_row_of_probability_zero_is_counted_and_changes_nothing_else() {
    let case = with_an_impossible_category();
    let possible = Batch::from_rows(&[0u8, 1, 1, 0, 0, 0], 2).unwrap();
    let both = Batch::from_rows(&[2u8, 1, 0, 1, 1, 0, 2, 0, 0, 0], 2).unwrap();
    let mut backend = cpu(&case.circuit, &case.params);
    let lls = backend.log_likelihoods(&both).unwrap();
    let apart = backend.log_likelihoods(&possible).unwrap();
    assert_eq!(lls, [f64::NEG_INFINITY, apart[0], apart[1], f64::NEG_INFINITY, apart[2]]);
    let ((flows, report), (alone, _)) = (mean_flows(&mut backend, &both), mean_flows(&mut backend, &possible));
    close_table("flows", &scaled(&flows, 5.0), &scaled(&alone, 3.0), Tolerance { absolute: 1e-6, relative: 1e-6 });
    assert_eq!((report.num_rows, report.impossible_rows), (5, 2));
    assert_eq!((report.weight, report.possible_weight), (5.0, 3.0));
    close_number("reported", report.log_likelihood, apart.iter().sum(), LOG_LIKELIHOOD);

    let none = both.slice(0..1);
    for spec in optimizers_for(&case) {
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
        for batch in [&both, &none, &both, &none] {
            optimizer.learn(&mut backend, batch).unwrap();
            rows_sum_to_one(&format!("{spec:?}"), &case.circuit, &backend.params().unwrap());
        }
        optimizer.end_epoch(&mut backend).unwrap();
        rows_sum_to_one(&format!("{spec:?}"), &case.circuit, &backend.params().unwrap());
    }
}

#[test]
fn a_minus_zero_is_a_zero() {
    let zero = with_an_impossible_category();
    let mut table = param_table(&zero.circuit, &zero.params);
    table[2][0] = vec![0.4, 0.0, 0.6]; // a weight, too
    let plus = params_from(&zero.circuit, &table);
    let minus = map_table(&table, |p| if p == 0.0 { -0.0 } else { p });
    let flat: Vec<f32> = plus.values().iter().map(|&p| if p == 0.0 { -0.0 } else { p }).collect();
    assert_eq!(flat.iter().filter(|p| p.to_bits() == (-0.0f32).to_bits()).count(), 4);
    let data = zero.batch_with_missing(20, 2);
    let worlds = zero.all_worlds().unwrap();
    let seen = |params: &Params| {
        let mut backend = cpu(&zero.circuit, params);
        let lls: Vec<u64> = backend.log_likelihoods(&worlds).unwrap().iter().map(|ll| ll.to_bits()).collect();
        let (flows, report) = mean_flows(&mut backend, &data);
        let after: Vec<Vec<u32>> =
            optimizers_for(&zero).iter().map(|spec| bits(&learned(&zero.circuit, params, spec, &[&data]))).collect();
        (lls, flows, report, after)
    };
    let want = seen(&plus);
    assert!(want.2.impossible_rows > 0 && want.2.impossible_rows < 20);
    assert!(seen(&params_from(&zero.circuit, &minus)) == want, "rows with −0 are others than rows with 0");
    assert!(seen(&Params::from_values(&zero.circuit, flat).unwrap()) == want, "values with −0 are others");
}

/// Two batches of the heaviest rows there are overflow the flows of a window: parameters then stay, or move, but
/// never stop being distributions.
#[test]
fn flows_that_overflow_make_no_parameter_that_is_none() {
    for case in [Case::new("hmm", cases::tied_hmm(4, 3, 5)), Case::new("mixed", cases::mixed())] {
        let heavy = case.batch(6, 1).with_weights(vec![3e38; 6]).unwrap();
        let mut specs = windowed_optimizers();
        specs.extend(em_optimizers());
        let gradient = |spec: &OptimizerSpec| matches!(spec, OptimizerSpec::Adam(_) | OptimizerSpec::Sgd(_));
        for spec in specs.iter().filter(|spec| case.is_discrete() || !gradient(spec)) {
            let what = format!("{}: {spec:?}", case.name);
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, spec);
            for batch in [&heavy, &heavy, &case.batch(6, 2), &case.batch(6, 3)] {
                // Refusing is as good as learning.
                let _ = optimizer.learn(&mut backend, batch);
                rows_sum_to_one(&what, &case.circuit, &backend.params().unwrap());
            }
            let _ = optimizer.end_epoch(&mut backend);
            rows_sum_to_one(&what, &case.circuit, &backend.params().unwrap());
        }
    }
}

/// Flows without bounds say nothing about a row: it keeps what it was.
#[test]
fn a_row_of_infinite_flow_keeps_its_parameters() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    for retained in [false, true] {
        for smoothing in [Smoothing::NONE, Smoothing::default(), Smoothing::Absolute(1e-3)] {
            let mut backend = cpu(&case.circuit, &case.params);
            let (flows, rows) = (backend.new_flows(FlowPrecision::Single).unwrap(), backend.new_rows().unwrap());
            backend.top_down(rows).unwrap();
            let endless = vec![f32::INFINITY; backend.flows(flows).unwrap().values().len()];
            backend.load_flows(flows, &Tensor::F32(endless)).unwrap();
            let retain = retained.then_some(Retain { rows, scale: 1.5, offset: 0.0 });
            backend.em_update(&EmUpdate { retain, flows, gain: 0.5, smoothing }).unwrap();
            assert_eq!(bits(&backend.params().unwrap()), bits(&case.params), "{retained}: {smoothing:?}");
        }
    }
}

#[test]
fn samples_keep_the_categories_of_the_widest_input_of_their_variable() {
    for order in [[2u32, 1000], [1000, 2], [2, 70_000], [70_000, 2]] {
        let mut c = CircuitBuilder::new(1);
        let x = order.map(|cats| cases::categorical(&mut c, 0, 1, cats));
        cases::sum(&mut c, 1, &x);
        let circuit = c.finish().unwrap();
        // Every input draws its last category, and both are drawn equally often.
        let params = Params::from_rows(&circuit, |param, _| match param.index() {
            2 => vec![0.5, 0.5],
            b => (0..order[b]).map(|v| if v + 1 == order[b] { 1.0 } else { 0.0 }).collect(),
        });
        let batch = sample(&circuit, &params.unwrap(), 400, &mut Rng::new(4)).unwrap();
        let drawn = |cats: u32| (0..400).filter(|&row| batch.column(0).category(row) == Some(cats - 1)).count();
        let counts = order.map(drawn);
        assert_eq!(counts[0] + counts[1], 400, "{order:?}");
        // Five standard deviations of a fair coin.
        assert!(counts.iter().all(|&count| (150..=250).contains(&count)), "{order:?}: {counts:?}");
    }
}

/// Rows whose entries span many decades, some of them zero.
fn extreme_params(case: &Case, seed: u64, decades: f64) -> Table {
    let mut rng = Rng::stream(seed, 5);
    let mut table = param_table(&case.circuit, &case.params);
    for row in table.iter_mut().flatten() {
        let keep = rng.below(row.len()); // one entry stays of order one
        for (k, p) in row.iter_mut().enumerate() {
            *p = match (k == keep, rng.below(8)) {
                (true, _) => 1.0,
                (false, 0) => 0.0,
                _ => 10f64.powf(-decades * rng.uniform()),
            };
        }
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= total);
    }
    table
}

/// With extreme parameters every likelihood is right or, if so, exactly −∞, every flow is right, and no optimizer
/// leaves the simplex.
fn extremes_agree(case: &Case, seed: u64, decades: f64) {
    let table = extreme_params(case, seed, decades);
    let params = params_from(&case.circuit, &table);
    let (spec, mut backend) = (Spec::new(&case.circuit, &params), cpu(&case.circuit, &params));
    for batch in [case.batch(12, seed), case.batch_with_missing(12, seed)] {
        let want = spec.log_likelihoods(&batch);
        let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
        close(&case.name, &backend.log_likelihoods(&batch).unwrap(), &want, tolerance);
        let (flows, report) = mean_flows(&mut backend, &batch);
        close_table(&case.name, &flows, &spec.mean_flows(&batch), PROBABILITY);
        assert_eq!(report.impossible_rows, want.iter().filter(|ll| **ll == f64::NEG_INFINITY).count());
        for spec in optimizers_for(case) {
            let what = format!("{}: {spec:?}", case.name);
            rows_sum_to_one(&what, &case.circuit, &learned(&case.circuit, &params, &spec, &[&batch, &batch]));
        }
    }
}

/// Draws of a circuit, latents and values together, that are still listed.
const MOST_DRAWS: f64 = 200_000.0;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_circuits_are_the_specification(seed in 0u64..1_000_000) {
        let case = cases::random(seed);
        agrees_with_the_specification(&case);
        worlds_sum_to_one(&case);
        marginals_are_sums(&case, seed);
    }

    #[test]
    fn random_circuits_with_extreme_parameters_are_the_specification(seed in 0u64..1_000_000, decades in 1u32..44) {
        extremes_agree(&cases::random(seed), seed, f64::from(decades));
    }

    #[test]
    fn random_circuits_have_slopes_for_flows(seed in 0u64..1_000_000) {
        flows_are_slopes(&cases::random(seed));
    }

    #[test]
    fn random_circuits_climb_under_full_batch_em(seed in 0u64..1_000_000, rows in 1usize..31) {
        full_batch_em_climbs(&cases::random(seed), rows);
    }

    #[test]
    fn random_circuits_get_what_anemone_promises(seed in 0u64..1_000_000) {
        anemone_maximises(&cases::random(seed), seed);
    }

    #[test]
    fn random_circuits_tend_to_em_and_have_a_linear_kl_divergence(seed in 0u64..1_000_000) {
        let case = cases::random(seed);
        a_whole_step_of_anemone_is_em(&case, seed);
        prop_assume!(case.num_draws() < MOST_DRAWS);
        kl_is_linear(&case, seed);
    }

    #[test]
    fn random_circuits_with_densities_are_the_specification(seed in 0u64..1_000_000) {
        let case = cases::random_with_densities(seed);
        agrees_with_the_specification(&case);
        a_whole_step_of_anemone_is_em(&case, seed);
    }

    #[test]
    fn structures_of_any_size_are_the_specification(drawn in cases::drawn(6, 5, 4)) {
        let case = drawn.case();
        agrees_with_the_specification(&case);
        prop_assert!(case.all_worlds().is_some(), "{}: too many worlds to list", case.name);
        worlds_sum_to_one(&case);
        marginals_are_sums(&case, drawn.seed);
    }

    #[test]
    fn structures_of_any_size_climb_under_full_batch_em(drawn in cases::drawn(6, 5, 4), rows in 1usize..31) {
        full_batch_em_climbs(&drawn.case(), rows);
    }

    #[test]
    fn structures_of_any_size_get_what_anemone_promises(drawn in cases::drawn(6, 5, 4)) {
        let case = drawn.case();
        anemone_maximises(&case, drawn.seed);
        a_whole_step_of_anemone_is_em(&case, drawn.seed);
    }

    #[test]
    fn structures_of_any_size_have_a_linear_kl_divergence(drawn in cases::drawn(4, 3, 3)) {
        let case = drawn.case();
        prop_assume!(case.num_draws() < MOST_DRAWS);
        kl_is_linear(&case, drawn.seed);
    }
}
