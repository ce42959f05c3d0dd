//! Holds the learner against fixtures written by an independent reference, through the public face alone.
//!
//! Every law is asked of the processor's own kernels and of those for lesser ones. Reads every `*.json` of the folder
//! in `ANEMONE_FIXTURES`, by default `tests/fixtures`, and fails when there is none.

use std::path::PathBuf;
use std::sync::Arc;

use anemone::backend::cpu::{CpuBackend, CpuOptions, IsaCap};
use anemone::backend::{Backend, FlowPrecision};
use anemone::circuit::json::{read_circuit, write_circuit};
use anemone::circuit::{Circuit, Params, Smoothing};
use anemone::optim::{AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule};
use serde_json::Value;

use crate::common::compare::{LOG_LIKELIHOOD, PROBABILITY, close, close_table};
use crate::common::reference::{categories, fixture, list, number, read_json, vector};
use crate::common::spec::{Table, flow_table, param_table, params_from};
use crate::common::{cpu_with, learned_with, mean_flows, start_with, theta, top_down, two_threads};

/// A circuit of a fixture with everything the reference says about it, and the machine to ask.
struct Fixture {
    name: String,
    options: CpuOptions,
    circuit: Arc<Circuit>,
    params: Params,
    expected: Value,
}

impl Fixture {
    fn backend(&self) -> CpuBackend {
        cpu_with(&self.circuit, &self.params, &self.options)
    }
}

/// Machines to ask, with no more than what they are called.
fn machines() -> impl Iterator<Item = CpuOptions> {
    [IsaCap::Auto, IsaCap::Avx2, IsaCap::Scalar].into_iter().map(|isa| CpuOptions { isa, ..two_threads() })
}

/// All fixtures on all machines, each as it was read and once more after it was written and read again.
fn fixtures() -> Vec<Fixture> {
    let folder = std::env::var_os("ANEMONE_FIXTURES").map_or_else(|| fixture(""), PathBuf::from);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no fixtures here", folder.display());
    let mut fixtures = Vec::new();
    for path in paths {
        let expected = read_json(&path);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let (circuit, params) = read_circuit(&expected.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let params = params.expect("a fixture has parameters");
        let (again, params_again) = read_circuit(&write_circuit(&circuit, Some(&params))).unwrap();
        let params_again = params_again.expect("it had parameters before");
        let (circuit, again) = (Arc::new(circuit), Arc::new(again));
        for options in machines() {
            let (on, expected) = (options.isa, &expected);
            let made = |name: String, circuit: &Arc<Circuit>, params: &Params| {
                let (circuit, params, expected) = (circuit.clone(), params.clone(), expected.clone());
                Fixture { name, options: options.clone(), circuit, params, expected }
            };
            fixtures.push(made(format!("{name} on {on}"), &circuit, &params));
            fixtures.push(made(format!("{name}, written and read again, on {on}"), &again, &params_again));
        }
    }
    fixtures
}

/// `[[..], ..]`, one row a block: every block of the reference has one row.
fn one_row_a_block(value: &Value) -> Table {
    list(value).iter().map(|row| vec![vector(row)]).collect()
}

fn constant(step: f64) -> Schedule {
    Schedule::Constant { step }
}

#[test]
fn log_likelihoods_are_the_references_with_and_without_missing_values() {
    for f in fixtures() {
        let mut backend = f.backend();
        for (data, wanted) in [("data", "log_likelihood"), ("data_missing", "log_likelihood_missing")] {
            let got = backend.log_likelihoods(&categories(&f.expected[data])).unwrap();
            close(&format!("{}: {wanted}", f.name), &got, &vector(&f.expected[wanted]), LOG_LIKELIHOOD);
        }
    }
}

#[test]
fn mean_flows_and_top_down_probabilities_are_the_references() {
    for f in fixtures() {
        let mut backend = f.backend();
        let (flows, report) = mean_flows(&mut backend, &categories(&f.expected["data"]));
        close_table(&format!("{}: flows", f.name), &flows, &one_row_a_block(&f.expected["flows"]), PROBABILITY);
        let total: f64 = vector(&f.expected["log_likelihood"]).iter().sum();
        close(&format!("{}: reported", f.name), &[report.log_likelihood], &[total], LOG_LIKELIHOOD);
        let td: Vec<f64> = top_down(&mut backend).concat();
        close(&format!("{}: td", f.name), &td, &vector(&f.expected["td_params"]), PROBABILITY);
    }
}

#[test]
fn one_update_of_each_em_rule_gives_the_references_parameters() {
    for f in fixtures() {
        let (mini, anemone) = (&f.expected["mini_batch_em"], &f.expected["anemone"]);
        let smoothing = Smoothing::NONE;
        let updates = [
            (
                OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing, ..Default::default() }),
                &f.expected["full_batch_em"],
            ),
            (
                OptimizerSpec::MiniBatchEm(MiniBatchEmSpec {
                    step: constant(number(&mini["alpha"])),
                    smoothing,
                    ..Default::default()
                }),
                &mini["params"],
            ),
            (
                OptimizerSpec::Anemone(AnemoneSpec {
                    step: constant(number(&anemone["alpha"])),
                    momentum: 0.0,
                    smoothing,
                    ..AnemoneSpec::paper()
                }),
                &anemone["params"],
            ),
        ];
        for (spec, wanted) in updates {
            let batch = categories(&f.expected["data"]);
            let params = learned_with(&f.circuit, &f.params, &spec, &[&batch], &f.options);
            let what = format!("{}: {spec:?}", f.name);
            close_table(&what, &param_table(&f.circuit, &params), &one_row_a_block(wanted), PROBABILITY);
        }
    }
}

#[test]
fn anemone_with_momentum_follows_the_reference_over_three_batches() {
    for f in fixtures() {
        let wanted = &f.expected["anemone_momentum"];
        let spec = OptimizerSpec::Anemone(AnemoneSpec {
            step: constant(number(&wanted["alpha"])),
            momentum: number(&wanted["beta"]),
            smoothing: Smoothing::NONE,
            ..AnemoneSpec::paper()
        });
        let (mut backend, mut optimizer) = start_with(&f.circuit, &f.params, &spec, &f.options);
        let batches = list(&wanted["batches"]);
        assert_eq!(batches.len(), 3);
        for (t, (batch, params)) in batches.iter().zip(list(&wanted["params_after_each"])).enumerate() {
            optimizer.learn(&mut backend, &categories(batch)).unwrap();
            let what = format!("{}: after batch {t}", f.name);
            close_table(&what, &theta(&backend), &one_row_a_block(params), PROBABILITY);
        }
    }
}

#[test]
fn the_gradient_is_the_references() {
    for f in fixtures() {
        let mut backend = f.backend();
        let flows = backend.new_flows(FlowPrecision::Single).unwrap();
        let td = backend.new_rows().unwrap();
        let batch = categories(&f.expected["data"]);
        backend.add_flows(&batch, 1.0, flows).unwrap();
        backend.top_down(td).unwrap();
        backend.gradient(flows, 1.0 / batch.total_weight(), td).unwrap();
        let got = flow_table(&f.circuit, &backend.flows(flows).unwrap());
        close_table(&f.name, &got, &one_row_a_block(&f.expected["adam_gradient"]), PROBABILITY);
    }
}

#[test]
fn global_renormalisation_is_the_references_where_it_is_exact() {
    let mut compared = 0;
    for f in fixtures() {
        let wanted = &f.expected["renormalise"];
        if wanted["normalised"].is_null() {
            continue; // tied rows that would need different normalisers: no exact answer exists
        }
        let mut backend = f.backend();
        backend.set_params(&params_from(&f.circuit, &one_row_a_block(&wanted["unnormalised"]))).unwrap();
        backend.renormalize().unwrap();
        close_table(&f.name, &theta(&backend), &one_row_a_block(&wanted["normalised"]), PROBABILITY);
        compared += 1;
    }
    assert!(compared > 0, "no fixture could be renormalised");
}

#[test]
fn a_lesser_machine_uses_no_more_than_it_has() {
    let f = &fixtures()[0];
    for options in machines() {
        let found = cpu_with(&f.circuit, &f.params, &options).isa().name().parse::<IsaCap>().unwrap();
        assert!(found <= options.isa, "{found} on {}", options.isa);
    }
}
