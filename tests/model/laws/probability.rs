//! Circuits are distributions: worlds, marginals, and flows as slopes of the log-likelihood.

use super::*;

pub fn worlds_sum_to_one(case: &Case) {
    let Some(worlds) = case.all_worlds() else { return };
    let lls = cpu(&case.circuit, &case.params).log_likelihoods(&worlds).unwrap();
    // Up to a thousand worlds, each exact to 1e-5 of itself.
    close_number(&case.name, lls.iter().map(|ll| ll.exp()).sum(), 1.0, Tolerance { absolute: 1e-5, relative: 0.0 });
}

pub fn marginals_are_sums(case: &Case, seed: u64) {
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
pub fn moved(case: &Case, at: (usize, usize, usize), by: f64) -> Params {
    let mut table = param_table(&case.circuit, &case.params);
    table[at.0][at.1][at.2] *= by.exp();
    params_from(&case.circuit, &table)
}

/// The flow of every weight and probability is the slope of the backend's log p̃ along its φ.
pub fn flows_are_slopes(case: &Case) {
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
