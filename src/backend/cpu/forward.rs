//! The forward pass: log p(x) of a chunk of rows.
//!
//! sum: v_n = v_panel·Wᵀ, product: v_n = Π v_c, input: a table row or a density. Each row of each buffer is brought to
//! standard form (`scaled`) as soon as it is computed.

use super::chunk::Chunk;
use super::matrix::{Matrix, MatrixMut, multiply};
use super::scaled::{
    DOUBTFUL, Extremes, NO_LOSS, SAFE_BITS, SOME_LOSS, Scale, ZERO, align_row, extremes, is_above_loss, multiply_into,
    normalize_row, standard_exponent, underflow_loss,
};
use crate::circuit::{Circuit, ParamId};
use crate::data::Batch;
use crate::plan::{Buffer, FactorSource, InputStep, Plan, PlanGroup, ProductStep, Step, SumStep};

/// Everything a pass reads.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub circuit: &'a Circuit,
    pub plan: &'a Plan,
    /// The parameters, in the circuit's layout.
    pub theta: &'a [f32],
    pub batch: &'a Batch,
}

impl<'a> Pass<'a> {
    pub fn block(self, param: ParamId) -> &'a [f32] {
        &self.theta[self.circuit.layout().block(param).values.clone()]
    }

    /// The values of table inputs at a row; `None` where the variable is missing and they are all 1.
    fn table_row(self, row: usize, var: usize, param: ParamId) -> Option<&'a [f32]> {
        if self.batch.is_missing(row, var) {
            return None;
        }
        let units = self.circuit.params()[param.index()].units;
        let category = self.batch.column(var).category(row).expect("check_batch wants integers here") as usize;
        Some(&self.block(param)[category * units..(category + 1) * units])
    }
}

/// Computes the values of all buffers and the rows' log-likelihoods. Rows that linear space cannot hold are marked.
pub(super) fn forward(pass: Pass<'_>, chunk: &mut Chunk) {
    let mut mapped = Vec::new();
    for step in &pass.plan.steps {
        match step {
            Step::Input(input) => input_forward(pass, chunk, input),
            Step::Product(product) => product_forward(pass, chunk, product, &mut mapped),
            Step::Sum(sum) => sum_forward(pass, chunk, sum),
        }
    }
    let root = chunk.span(pass.plan.root_value).start;
    let scales = chunk.scale_span(pass.plan.root_value).start;
    for row in 0..chunk.num_rows() {
        let (value, scale) = (chunk.values[root + row], chunk.scales[scales + row]);
        let impossible = value == 0.0 || scale.exponent <= ZERO;
        chunk.log_likelihoods[row] = match impossible {
            true => f64::NEG_INFINITY,
            false => f64::from(value).ln() + scale.exponent as f64 * std::f64::consts::LN_2,
        };
        // An impossible row is believed only if nothing was lost on the way.
        chunk.degenerate[row] = scale.loss > SOME_LOSS && (impossible || scale.loss > scale.exponent - SAFE_BITS);
    }
}

fn input_forward(pass: Pass<'_>, chunk: &mut Chunk, input: &InputStep) {
    let (span, scales) = (chunk.span(input.value), chunk.scale_span(input.value));
    let first_row = chunk.rows.start;
    let out = &mut chunk.values[span];
    let distribution = pass.circuit.distribution(input.param);
    let block = pass.circuit.layout().block(input.param);
    let params: Vec<Vec<f32>> = match distribution.is_table() {
        true => Vec::new(),
        false => (0..block.units()).map(|u| block.value_positions(u).map(|i| pass.theta[i]).collect()).collect(),
    };
    let mut logs = vec![0.0; params.len()];
    for (row, (out, scale)) in out.chunks_exact_mut(input.value.units).zip(&mut chunk.scales[scales]).enumerate() {
        let row = first_row + row;
        *scale = if pass.batch.is_missing(row, input.var) {
            out.fill(1.0);
            normalize_row(out, 1f32.to_bits(), Scale::UNIT)
        } else if distribution.is_table() {
            out.copy_from_slice(pass.table_row(row, input.var, input.param).expect("it is not missing"));
            let max = extremes(out).max;
            normalize_row(out, max, Scale::UNIT)
        } else {
            let value = pass.batch.column(input.var).real(row);
            logs.iter_mut().zip(&params).for_each(|(log, params)| *log = distribution.log_prob(params, value));
            densities(out, &logs)
        };
    }
}

/// 2^30: densities beyond 2^±FAR are not kept in linear space.
const FAR: f64 = (1 << 30) as f64;

/// A row from logarithms: out·2^e = exp(logs).
fn densities(out: &mut [f32], logs: &[f64]) -> Scale {
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY {
        out.fill(0.0);
        return Scale { exponent: ZERO, loss: NO_LOSS };
    }
    let exponent = (top * std::f64::consts::LOG2_E).floor() + 1.0;
    if exponent.is_nan() || exponent.abs() >= FAR {
        // So far out that products of such rows would leave the range of exponents: left to `log_space`.
        out.fill(0.0);
        return Scale { exponent: ZERO, loss: (exponent as i64).max(ZERO).min(-(FAR as i64)) };
    }
    let mut loss = NO_LOSS;
    for (x, log) in out.iter_mut().zip(logs) {
        let value = (log - exponent * std::f64::consts::LN_2).exp();
        // 2^−100 of the largest, as everywhere.
        let keep = value > 7.9e-31;
        if !keep && *log > f64::NEG_INFINITY {
            loss = exponent as i64 - 100;
        }
        *x = if keep { value as f32 } else { 0.0 };
    }
    Scale { exponent: exponent as i64, loss }
}

fn product_forward(pass: Pass<'_>, chunk: &mut Chunk, product: &ProductStep, mapped: &mut Vec<f32>) {
    let units = product.value.units;
    let (span, scale_span) = (chunk.span(product.value), chunk.scale_span(product.value));
    let (rows, first_row) = (chunk.num_rows(), chunk.rows.start);
    let (below, out) = chunk.values.split_at_mut(span.start);
    let (scales_below, scales) = chunk.scales.split_at_mut(scale_span.start);
    mapped.resize(units, 0.0);
    for row in 0..rows {
        let out = &mut out[row * units..(row + 1) * units];
        let mut scale = Scale::UNIT;
        let mut max = None;
        let mut is_empty = true;
        for factor in &product.factors {
            let (values, factor_scale) = match factor.source {
                FactorSource::Table { var, param } => match pass.table_row(first_row + row, var, param) {
                    Some(values) => (values, Scale::UNIT),
                    None => continue, // missing: a factor of one
                },
                FactorSource::Value(buffer) => {
                    let start = buffer.at * rows + row * buffer.units;
                    (&below[start..start + buffer.units], scales_below[buffer.scale * rows + row])
                }
            };
            let values = match &factor.map {
                None => values,
                Some(map) => {
                    mapped.iter_mut().zip(map.iter()).for_each(|(x, &unit)| *x = values[unit as usize]);
                    &mapped[..]
                }
            };
            // A running product that has become small is rescaled before the next factor, to keep its range.
            if let Some(low) = max.filter(|&max| max < LOW_WATER) {
                scale = normalize_row(out, low, scale);
            }
            scale = scale.times(factor_scale);
            if std::mem::replace(&mut is_empty, false) {
                out.copy_from_slice(values);
            } else {
                let (largest, lost) = multiply_into(out, values);
                max = Some(largest);
                if lost {
                    scale.loss = scale.loss.max(underflow_loss(scale.exponent));
                }
            }
        }
        if is_empty {
            out.fill(1.0);
        }
        scales[row] = normalize_row(out, max.unwrap_or_else(|| extremes(out).max), scale);
    }
}

/// 2^−40.
const LOW_WATER: u32 = (127 - 40) << 23;

fn sum_forward(pass: Pass<'_>, chunk: &mut Chunk, sum: &SumStep) {
    let rows = chunk.num_rows();
    for group in &sum.groups {
        if !group.gathered.is_empty() {
            gather_panel(chunk, group);
        }
        let span = chunk.span(sum.value);
        let (below, out) = chunk.values.split_at_mut(span.start);
        let panel = &below[group.panel.buffer.at * rows + group.panel.start..];
        let weights = pass.block(group.param);
        multiply(
            MatrixMut::new(&mut out[group.start..sum.value.units * rows], rows, group.units, sum.value.units),
            false,
            Matrix::new(panel, rows, group.panel.units, group.panel.buffer.units),
            Matrix::new(weights, group.units, group.panel.units, group.panel.units).transposed(),
        );
    }
    let (span, scale_span) = (chunk.span(sum.value), chunk.scale_span(sum.value));
    let (below, out) = chunk.values.split_at_mut(span.start);
    let (scales_below, scales) = chunk.scales.split_at_mut(scale_span.start);
    let mut found: Vec<(Extremes, Scale)> = Vec::with_capacity(sum.groups.len());
    for (row, scale) in scales[..rows].iter_mut().enumerate() {
        let out = &mut out[row * sum.value.units..(row + 1) * sum.value.units];
        found.clear();
        for group in &sum.groups {
            let mut panel_scale = scales_below[group.panel.buffer.scale * rows + row];
            let seen = extremes(&out[group.start..group.start + group.units]);
            if seen.min < DOUBTFUL.to_bits() && panel_scale.exponent > ZERO {
                let start = (group.panel.buffer.at * rows + row * group.panel.buffer.units) + group.panel.start;
                let panel = &below[start..start + group.panel.units];
                let outputs = &out[group.start..group.start + group.units];
                if hides_underflow(outputs, panel, pass.block(group.param)) {
                    // Every term may have lost what lies below the normal range; 2^20 terms are more than any sum has.
                    panel_scale.loss = panel_scale.loss.max(underflow_loss(panel_scale.exponent) + 20);
                }
            }
            found.push((seen, panel_scale));
        }
        // All groups of a row share one exponent: that of the largest output.
        let exponent = found.iter().map(|(seen, s)| standard_exponent(seen.max, s.exponent)).max().unwrap_or(ZERO);
        let mut merged = Scale { exponent: ZERO, loss: NO_LOSS };
        for (group, &(seen, panel_scale)) in sum.groups.iter().zip(&found) {
            let part = &mut out[group.start..group.start + group.units];
            let mut after = align_row(part, seen.max, panel_scale, exponent);
            if is_above_loss(seen.min, panel_scale.exponent, after) {
                after.loss = NO_LOSS;
            }
            merged.exponent = merged.exponent.max(after.exponent);
            merged.loss = merged.loss.max(after.loss);
        }
        *scale = merged;
    }
}

/// Whether an output has lost digits below the normal range: it is tiny, or zero though its terms are positive.
fn hides_underflow(outputs: &[f32], panel: &[f32], weights: &[f32]) -> bool {
    outputs.iter().zip(weights.chunks_exact(panel.len())).any(|(&output, weights)| match output {
        0.0 => panel.iter().zip(weights).any(|(&value, &weight)| value > 0.0 && weight > 0.0),
        _ => output < DOUBTFUL,
    })
}

/// Lays a group's children side by side, at the largest of their exponents.
fn gather_panel(chunk: &mut Chunk, group: &PlanGroup) {
    let rows = chunk.num_rows();
    let buffer = group.panel.buffer;
    let (below, panel) = chunk.values.split_at_mut(buffer.at * rows);
    let (scales_below, scales) = chunk.scales.split_at_mut(buffer.scale * rows);
    for (row, scale) in scales[..rows].iter_mut().enumerate() {
        let panel = &mut panel[row * buffer.units..(row + 1) * buffer.units];
        let child_scale = |buffer: Buffer| scales_below[buffer.scale * rows + row];
        let exponent = group.gathered.iter().map(|v| child_scale(v.buffer).exponent).max().unwrap_or(ZERO);
        let mut merged = Scale { exponent, loss: NO_LOSS };
        let mut at = 0;
        for view in &group.gathered {
            let start = view.buffer.at * rows + row * view.buffer.units + view.start;
            let part = &mut panel[at..at + view.units];
            part.copy_from_slice(&below[start..start + view.units]);
            let max = extremes(part).max;
            merged.loss = merged.loss.max(align_row(part, max, child_scale(view.buffer), exponent).loss);
            at += view.units;
        }
        *scale = merged;
    }
}
