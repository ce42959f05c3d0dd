//! What EM and anemone promise: climbing, the optimum of the objective, the KL divergence; and the paper's example.

use super::*;

pub fn training_log_likelihood(case: &Case, params: &Params, data: &Batch) -> f64 {
    let lls = cpu(&case.circuit, params).log_likelihoods(data).unwrap();
    lls.iter().enumerate().map(|(row, ll)| ll * f64::from(data.weight(row))).sum::<f64>() / data.total_weight()
}

pub fn full_batch_em_climbs(case: &Case, rows_a_batch: usize) {
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

pub fn a_whole_step_of_anemone_is_em(case: &Case, seed: u64) {
    let data = case.batch_with_missing(12, seed);
    let em = learned(&case.circuit, &case.params, &full_batch_em(), &[&data]);
    let table = |params: &Params| param_table(&case.circuit, params);
    for (alpha, absolute) in [(1.0, 2e-6), (0.9999, 2e-3)] {
        let spec = anemone(alpha, 0.0, Smoothing::NONE);
        let got = learned(&case.circuit, &case.params, &spec, &[&data]);
        if alpha < 1.0 && !has_flow_everywhere(case, &data) {
            continue; // a row with almost no flow still retains itself for α < 1
        }
        close_table(&case.name, &table(&got), &table(&em), Tolerance { absolute, relative: 2e-3 * absolute });
    }
}

#[test]
fn anemone_with_a_whole_step_and_no_momentum_is_one_step_of_em() {
    cases::all().iter().for_each(|case| a_whole_step_of_anemone_is_em(case, 6));
}

/// Returns true if every row has at least 2 % of flow.
pub fn has_flow_everywhere(case: &Case, data: &Batch) -> bool {
    let spec = Spec::new(&case.circuit, &case.params);
    spec.row_masses(&spec.mean_flows(data)).iter().flatten().all(|&mass| mass > 0.02)
}

/// Σ a·b over all entries.
pub fn inner(a: &Table, b: &Table) -> f64 {
    zip_tables(a, b, |x, y| if x == 0.0 { 0.0 } else { x * y }).iter().flatten().flatten().sum()
}

/// TD·θ, entry by entry.
pub fn td_theta(td: &[Vec<f64>], theta: &Table) -> Table {
    let row = |td: f64, row: &Vec<f64>| row.iter().map(|t| td * t).collect();
    td.iter().zip(theta).map(|(td, rows)| td.iter().zip(rows).map(|(&td, r)| row(td, r)).collect()).collect()
}

/// Every row nudged to another distribution nearby.
pub fn perturbed(theta: &Table, rng: &mut Rng, by: f64) -> Table {
    let mut out = theta.clone();
    for row in out.iter_mut().flatten() {
        row.iter_mut().for_each(|t| *t *= (by * rng.normal()).exp());
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|t| *t /= total);
    }
    out
}

pub fn anemone_maximises(case: &Case, seed: u64) {
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
pub fn listable() -> Vec<Case> {
    let mut cases =
        vec![Case::new("short hmm", cases::tied_hmm(3, 2, 2)), Case::new("shared dag", cases::shared_dag(3, 2, 2))];
    let small = ["one input", "mixture of inputs", "grouped sum", "mapped product", "same child twice"];
    cases.extend(cases::all().into_iter().filter(|case| small.contains(&case.name.as_str())));
    cases
}

/// KL(p ‖ q) is Σ TD·θ·(φ − φ'), which is returned.
pub fn kl_is_linear(case: &Case, seed: u64) -> f64 {
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

/// A root over two mixtures n1 and n2, each over two Gaussians of its own mode. Blocks: Gaussians, n1, n2, root.
pub fn two_modes(sigma: f64) -> (Arc<Circuit>, Params) {
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
    let x = Batch::from_columns(vec![Values::F32(vec![-1.5])]).unwrap();
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
