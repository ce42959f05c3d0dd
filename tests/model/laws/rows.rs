//! After anything, every param row is a distribution; weights are soft counts.

use super::*;

pub fn rows_sum_to_one(what: &str, circuit: &Circuit, params: &Params) {
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
            crate::common::spec::flow_table(&case.circuit, &backend.flows(id).unwrap())
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
