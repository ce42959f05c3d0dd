//! The laws of learning, on small circuits of every shape: what must hold whatever the backend does inside.

mod average;
mod condition;
mod counts;
mod division;
mod drawn;
mod em;
mod extremes;
mod fused;
mod mixed;
mod probability;
mod queries;
mod rows;
mod specification;
mod transient;

use std::sync::Arc;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, EmUpdate, FlowPrecision, Retain, RetainSource, Tensor};
use anemone::circuit::json::{read_circuit, write_circuit};
use anemone::circuit::{
    Categorical, Circuit, CircuitBuilder, Gaussian, NodeId, ParamKind, Params, Slice, Smoothing, SumGroup,
};
use anemone::data::{Batch, Values};
use anemone::optim::{
    AdamSpec, AnemoneSpec, Averaging, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule, SgdSpec,
    StepwiseEmSpec,
};
use anemone::query::{sample, sample_given};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, hmm, monarch_hmm};
use proptest::prelude::*;

use crate::common::cases::{self, Case};
use crate::common::compare::{
    LOG_LIKELIHOOD, PROBABILITY, Tolerance, close, close_number, close_rows, close_table, distance,
};
use crate::common::spec::{Spec, Table, map_table, param_table, params_from, scaled, zip_tables};
use crate::common::trainer::Trainer;
use crate::common::{bits, cpu, cpu_with, learned, mean_flows, start, theta, top_down};
use crate::common::{drawing, random};

fn constant(step: f64) -> Schedule {
    Schedule::Constant { step }
}

fn anemone(step: f64, momentum: f64, smoothing: Smoothing) -> OptimizerSpec {
    OptimizerSpec::Anemone(AnemoneSpec {
        step: constant(step),
        momentum,
        smoothing,
        average: Averaging::on(),
        ..AnemoneSpec::paper()
    })
}

/// Anemone that retains the larger of top-down probabilities and flows.
fn larger(step: f64, momentum: f64, smoothing: Smoothing) -> OptimizerSpec {
    let (retain, retain_inputs) = (RetainSource::Larger, RetainSource::Larger);
    let step = constant(step);
    OptimizerSpec::Anemone(AnemoneSpec { step, momentum, smoothing, retain, retain_inputs, ..Default::default() })
}

fn full_batch_em() -> OptimizerSpec {
    OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing: Smoothing::NONE, ..Default::default() })
}

fn mini_batch_em(step: f64, momentum: f64, smoothing: Smoothing) -> OptimizerSpec {
    OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { step: constant(step), momentum, smoothing, ..Default::default() })
}

/// The EM rules, which suit every circuit, with both kinds of smoothing.
fn em_optimizers() -> Vec<OptimizerSpec> {
    let mut specs = Vec::new();
    for smoothing in [Smoothing::NONE, Smoothing::Relative(1e-3), Smoothing::Absolute(1e-3)] {
        specs.push(OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing, ..Default::default() }));
        specs.push(mini_batch_em(0.3, 0.0, smoothing));
        specs.push(mini_batch_em(0.3, 0.8, smoothing));
        specs.push(anemone(0.4, 0.9, smoothing));
        specs.push(larger(0.4, 0.0, smoothing));
        specs.push(OptimizerSpec::StepwiseEm(StepwiseEmSpec { smoothing, ..Default::default() }));
    }
    // Points of the rule between anemone and mini-batch EM.
    let (retain, retain_inputs) = (RetainSource::TopDown, RetainSource::Flows);
    specs.push(OptimizerSpec::Anemone(AnemoneSpec { retain, retain_inputs, ..Default::default() }));
    let (retain, retain_inputs) = (RetainSource::Flows, RetainSource::TopDown);
    specs.push(OptimizerSpec::Anemone(AnemoneSpec { retain, retain_inputs, ..Default::default() }));
    let step = Schedule::cosine(0.8, 0.2, 3);
    specs.push(OptimizerSpec::Anemone(AnemoneSpec { step, batches_per_update: 2, ..Default::default() }));
    specs
}

/// Adam's ε is large here: with a small one its first steps are the *signs* of the gradient, and those of entries near
/// zero are decided by rounding.
fn gradient_optimizers() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::Adam(AdamSpec { rate: constant(0.1), epsilon: 0.05, ..Default::default() }),
        OptimizerSpec::Sgd(SgdSpec { rate: constant(0.3), batches_per_update: 2, ..Default::default() }),
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
