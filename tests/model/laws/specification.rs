//! The backend is the specification: likelihoods, flows, top-down probabilities and every optimizer.

use super::*;

pub fn agrees_with_the_specification(case: &Case) {
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
fn many_tables_in_one_product_are_the_specification() {
    agrees_with_the_specification(&Case::new("many bytes a step", cases::many_bytes_a_step(24)));
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
            if spec.average().is_on() {
                let average = param_table(&case.circuit, &backend.averaged_params().unwrap());
                close_table(&format!("{}: average of {spec:?}", case.name), &average, &trainer.average, tolerance);
            }
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
        Case::new("wide hmm", hmm(3, 70, table(3000)).unwrap()),
        Case::new("long hmm", hmm(25, 3, table(2)).unwrap()),
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
