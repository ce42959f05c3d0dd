//! What the tests share: the specification, circuits to hold it against, and comparisons that cannot pass by accident.

#![allow(dead_code)] // every test file uses its part of it

pub mod browser;
pub mod cases;
pub mod chains;
pub mod compare;
pub mod data_folder;
pub mod drawing;
pub mod emulator;
pub mod findings;
pub mod random;
pub mod reference;
pub mod running;
pub mod shards;
pub mod spec;
pub mod trainer;

use std::sync::Arc;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, BatchReport, FlowPrecision};
use anemone::circuit::{Circuit, Params};
use anemone::data::Batch;
use anemone::optim::{Optimizer, OptimizerSpec};

use self::spec::{Table, flow_table, param_table};

/// Two threads, and all else as it is by default.
pub fn two_threads() -> CpuOptions {
    CpuOptions { threads: Some(2), ..CpuOptions::default() }
}

/// The backend under test, with two threads.
pub fn cpu(circuit: &Arc<Circuit>, params: &Params) -> CpuBackend {
    cpu_with(circuit, params, &two_threads())
}

pub fn cpu_with(circuit: &Arc<Circuit>, params: &Params, options: &CpuOptions) -> CpuBackend {
    CpuBackend::new(circuit.clone(), params, options).unwrap()
}

/// The mean flows of a batch, and what the backend reported about it.
pub fn mean_flows(backend: &mut dyn Backend, batch: &Batch) -> (Table, BatchReport) {
    let flows = backend.new_flows(FlowPrecision::Single).unwrap();
    let report = backend.add_flows(batch, 1.0 / batch.total_weight(), flows).unwrap();
    (flow_table(backend.circuit(), &backend.flows(flows).unwrap()), report)
}

/// TD of every param row, block by block.
pub fn top_down(backend: &mut dyn Backend) -> Vec<Vec<f64>> {
    let rows = backend.new_rows().unwrap();
    backend.top_down(rows).unwrap();
    let td = backend.rows(rows).unwrap();
    backend.circuit().layout().blocks().iter().map(|block| td[block.rows.clone()].to_vec()).collect()
}

/// The parameters, block by block and row by row.
pub fn theta(backend: &dyn Backend) -> Table {
    param_table(backend.circuit(), &backend.params().unwrap())
}

/// A backend and an optimizer that starts on it.
pub fn start(circuit: &Arc<Circuit>, params: &Params, spec: &OptimizerSpec) -> (CpuBackend, Box<dyn Optimizer>) {
    start_with(circuit, params, spec, &two_threads())
}

pub fn start_with(
    circuit: &Arc<Circuit>,
    params: &Params,
    spec: &OptimizerSpec,
    options: &CpuOptions,
) -> (CpuBackend, Box<dyn Optimizer>) {
    let mut backend = cpu_with(circuit, params, options);
    let optimizer = spec.build(&mut backend).unwrap();
    (backend, optimizer)
}

/// The parameters after an optimizer has learned from the batches and closed the epoch.
pub fn learned(circuit: &Arc<Circuit>, params: &Params, spec: &OptimizerSpec, batches: &[&Batch]) -> Params {
    learned_with(circuit, params, spec, batches, &two_threads())
}

pub fn learned_with(
    circuit: &Arc<Circuit>,
    params: &Params,
    spec: &OptimizerSpec,
    batches: &[&Batch],
    options: &CpuOptions,
) -> Params {
    let (mut backend, mut optimizer) = start_with(circuit, params, spec, options);
    for batch in batches {
        optimizer.learn(&mut backend, batch).unwrap();
    }
    optimizer.end_epoch(&mut backend).unwrap();
    backend.params().unwrap()
}

/// The bits of all parameters.
pub fn bits(params: &Params) -> Vec<u32> {
    params.values().iter().map(|v| v.to_bits()).collect()
}
