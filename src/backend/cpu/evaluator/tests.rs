//! An evaluator against the backend it comes from.

use self::cases::Case;
use super::*;
use crate::backend::cpu::{CpuBackend, CpuOptions, Precision};
use crate::backend::{Backend, FlowPrecision};
use crate::circuit::Circuit;
use crate::optim::AnemoneSpec;

// The circuits that the integration tests use as well: this is a small part of what they are used for.
#[allow(dead_code)]
#[path = "../../../../tests/common/cases.rs"]
mod cases;
#[allow(dead_code)]
#[path = "../../../../tests/common/random.rs"]
mod random;

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Both give the same bits for a batch. Returns how many rows were computed in log space.
fn agree(what: &str, circuit: &Arc<Circuit>, params: &Params, options: &CpuOptions, batch: &Batch) -> usize {
    let mut backend = CpuBackend::new(circuit.clone(), params, options).unwrap();
    let evaluator = Evaluator::new(backend.fixed(), params.clone());
    let want = bits(&backend.log_likelihoods(batch).unwrap());
    for time in ["first", "second"] {
        assert_eq!(bits(&evaluator.log_likelihoods(batch).unwrap()), want, "{what}, asked for the {time} time");
    }
    assert_eq!(evaluator.params(), params);
    let flows = backend.new_flows(FlowPrecision::Single).unwrap();
    backend.add_flows(batch, 1.0, flows).unwrap().rescued_rows
}

fn two_threads() -> CpuOptions {
    CpuOptions { threads: Some(2), ..CpuOptions::default() }
}

#[test]
fn an_evaluator_gives_the_bits_of_the_backend() {
    for case in cases::all().into_iter().chain(cases::structures(40, 5)) {
        let Case { name, circuit, params } = &case;
        for rows in [1, 7, 300] {
            let whole = agree(name, circuit, params, &two_threads(), &case.batch(rows, 3));
            let missing = agree(name, circuit, params, &two_threads(), &case.batch_with_missing(rows, 4));
            assert_eq!((whole, missing), (0, 0), "{name}: no row of these needs log space");
        }
    }
}

#[test]
fn rows_that_need_log_space_have_the_same_bits_too() {
    // Each of two states emits its own symbol and hardly ever the other's: what leads is left far behind.
    let circuit = Arc::new(cases::tied_hmm(8, 2, 2));
    let rows: Vec<u8> = [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1], [0; 8]].concat();
    let batch = Batch::from_rows(&rows.repeat(50), 8).unwrap();
    for rare in [0.0, 1e-30, 1e-38] {
        let params = Params::from_rows(&circuit, |param, unit| match (param.index(), unit) {
            (0, 0) => vec![1.0 - rare, rare],
            (0, _) => vec![rare, 1.0 - rare],
            (1, 0) => vec![1.0 - rare, rare],
            (1, _) => vec![rare, 1.0 - rare],
            _ => vec![0.5, 0.5],
        });
        let rescued = agree(&format!("rare {rare:e}"), &circuit, &params.unwrap(), &two_threads(), &batch);
        assert_eq!(rescued > 0, rare > 0.0, "rare {rare:e}: {rescued} rows computed in log space");
    }
    let mixed = Case::new("mixed inputs", cases::mixed()).with_densities_anywhere(5);
    let rescued = agree("far", &mixed.circuit, &mixed.params, &two_threads(), &mixed.far_batch(300, 6));
    assert!(rescued > 0, "no density was far out");
}

#[test]
fn small_memory_and_other_precisions_do_not_show() {
    for case in cases::structures(17, 5) {
        let batch = case.batch_with_missing(200, 3);
        let narrow = CpuOptions { memory_budget: 1, ..two_threads() };
        agree(&case.name, &case.circuit, &case.params, &narrow, &batch);
        let rounded = CpuOptions { precision: Precision::Bf16, ..two_threads() };
        agree(&case.name, &case.circuit, &case.params, &rounded, &batch);
    }
}

#[test]
fn many_may_ask_at_once_while_the_backend_learns() {
    let case = cases::learned_tree("hclt", 9, 4, Default::default());
    let mut backend = CpuBackend::new(case.circuit.clone(), &case.params, &two_threads()).unwrap();
    let evaluator = Evaluator::new(backend.fixed(), case.params.clone());
    let batches: Vec<Batch> = (0..4).map(|seed| case.batch(150 + 60 * seed as usize, seed)).collect();
    let want: Vec<_> = batches.iter().map(|batch| bits(&backend.log_likelihoods(batch).unwrap())).collect();
    let mut optimizer = AnemoneSpec::default().build(&mut backend).unwrap();
    std::thread::scope(|scope| {
        for (batch, want) in batches.iter().zip(&want) {
            let evaluator = &evaluator;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(bits(&evaluator.log_likelihoods(batch).unwrap()), *want);
                }
            });
        }
        for batch in batches.iter().cycle().take(20) {
            optimizer.learn(&mut backend, batch).unwrap();
        }
    });
    assert_ne!(bits(&backend.log_likelihoods(&batches[0]).unwrap()), want[0], "the backend has learned");
    assert!(evaluator.idle().len() <= batches.len(), "no more memory than calls at once");
}

#[test]
fn a_batch_of_another_shape_is_refused() {
    let case = Case::new("hmm", cases::tied_hmm(5, 3, 4));
    let backend = CpuBackend::new(case.circuit.clone(), &case.params, &two_threads()).unwrap();
    let evaluator = Evaluator::new(backend.fixed(), case.params.clone());
    assert!(evaluator.log_likelihoods(&Batch::from_rows(&[0u8, 1, 2], 3).unwrap()).is_err());
    assert!(evaluator.log_likelihoods(&Batch::from_rows(&[0u8, 1, 2, 3, 4], 5).unwrap()).is_err());
}
