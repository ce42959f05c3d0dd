//! The backward pass: the flow of every node for a chunk of rows.
//!
//! For a sum with flow F and value v, G = F/v; then the flow of what it mixes is v_panel ⊙ (G·W), and the flow of its
//! weights W ⊙ (Gᵀ·v_panel), which `param_flows` sums over all rows. A product passes its flow to every factor.

use super::chunk::Chunk;
use super::forward::Pass;
use super::matrix::{Matrix, MatrixMut, multiply};
use super::scaled::ZERO;
use crate::plan::{PlanGroup, ProductStep, Step, SumStep};

/// Above this, G may overflow in the sums that follow: such a row is left to `log_space`.
const LARGEST_GAIN: f32 = f32::from_bits((127 + 100) << 23);

/// Computes all flows of a chunk after `forward`, with the root's flow of each row given by `root_flow`. Degenerate
/// rows, also those found on the way, take no part.
pub(super) fn backward(pass: Pass<'_>, chunk: &mut Chunk, root_flow: impl Fn(usize) -> f32) {
    let root = chunk.span(pass.plan.root_flow).start;
    for row in 0..chunk.num_rows() {
        let possible = chunk.log_likelihoods[row] > f64::NEG_INFINITY && !chunk.degenerate[row];
        chunk.flows[root + row] = if possible { root_flow(chunk.rows.start + row) } else { 0.0 };
    }
    for step in pass.plan.steps.iter().rev() {
        match step {
            Step::Input(_) => {}
            Step::Product(product) => product_backward(chunk, product),
            Step::Sum(sum) => sum_backward(pass, chunk, sum),
        }
    }
    if chunk.degenerate.contains(&true) {
        chunk.clear_degenerate(pass.plan);
    }
}

fn product_backward(chunk: &mut Chunk, product: &ProductStep) {
    let rows = chunk.num_rows();
    let span = chunk.span(product.flow);
    for factor in &product.factors {
        let Some(target) = factor.flow else { continue };
        let (below, flow) = chunk.flows.split_at_mut(span.start);
        let flow = &flow[..span.len()];
        let into = &mut below[target.buffer.at * rows..(target.buffer.at + target.buffer.units) * rows];
        match &factor.map {
            None if target.first => into.copy_from_slice(flow),
            None => into.iter_mut().zip(flow).for_each(|(x, f)| *x += f),
            Some(map) => {
                if target.first {
                    into.fill(0.0);
                }
                let rows = into.chunks_exact_mut(target.buffer.units).zip(flow.chunks_exact(map.len()));
                for (into, flow) in rows {
                    map.iter().zip(flow).for_each(|(&unit, f)| into[unit as usize] += f);
                }
            }
        }
    }
}

fn sum_backward(pass: Pass<'_>, chunk: &mut Chunk, sum: &SumStep) {
    let rows = chunk.num_rows();
    for buffer in &sum.clear {
        let span = chunk.span(*buffer);
        chunk.flows[span].fill(0.0);
    }
    for group in &sum.groups {
        divide_flow(chunk, sum, group);

        // scratch = G·W
        let gain = &chunk.values[sum.value.at * rows + group.start..];
        let cols = group.panel.units;
        multiply(
            MatrixMut::new(&mut chunk.scratch, rows, cols, cols),
            false,
            Matrix::new(gain, rows, group.units, sum.value.units),
            Matrix::new(pass.block(group.param), group.units, cols, cols),
        );

        // flow of the children = v_panel ⊙ scratch
        let panel = group.panel;
        let mut col = 0;
        for (i, &(target, start)) in group.targets.iter().enumerate() {
            let units = group.gathered.get(i).map_or(panel.units, |view| view.units);
            let stride = target.buffer.units;
            let span = chunk.span(target.buffer);
            let into = &mut chunk.flows[span];
            for row in 0..rows {
                let values = (panel.buffer.at * rows + row * panel.buffer.units) + panel.start + col;
                let values = &chunk.values[values..values + units];
                let products = &chunk.scratch[row * cols + col..row * cols + col + units];
                let into = &mut into[row * stride + start..row * stride + start + units];
                let terms = into.iter_mut().zip(values).zip(products);
                if target.first {
                    terms.for_each(|((x, v), p)| *x = v * p);
                } else {
                    terms.for_each(|((x, v), p)| *x += v * p);
                }
            }
            col += units;
        }
    }
}

/// Replaces a group's values by G = F/v, both at the scale of the panel, so that no scale is left to carry.
fn divide_flow(chunk: &mut Chunk, sum: &SumStep, group: &PlanGroup) {
    let rows = chunk.num_rows();
    let units = sum.value.units;
    let (scales, panel_scales) = (chunk.scale_span(sum.value), chunk.scale_span(group.panel.buffer));
    let (values, flows) = (chunk.span(sum.value), chunk.span(sum.flow));
    for row in 0..rows {
        let (own, panel) = (chunk.scales[scales.start + row].exponent, chunk.scales[panel_scales.start + row].exponent);
        let at = row * units + group.start;
        let values = &mut chunk.values[values.start + at..values.start + at + group.units];
        let flows = &chunk.flows[flows.start + at..flows.start + at + group.units];
        if chunk.degenerate[row] || own <= ZERO || panel <= ZERO {
            values.fill(0.0);
            continue;
        }
        // 2^(panel − own): at least 2^−127 and at most 2^127 for rows in standard form, or the row is degenerate.
        let factor = 2f32.powi((panel - own).clamp(-150, 150) as i32);
        let mut largest = 0;
        for (value, &flow) in values.iter_mut().zip(flows) {
            let gain = flow / *value * factor;
            *value = if *value > 0.0 && flow > 0.0 { gain } else { 0.0 };
            largest = largest.max(value.to_bits());
        }
        if largest > LARGEST_GAIN.to_bits() {
            chunk.degenerate[row] = true;
            values.fill(0.0);
        }
    }
}
