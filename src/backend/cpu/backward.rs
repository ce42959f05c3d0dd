//! The backward pass: the flow of every node for a tile of rows, step by step.
//!
//! For a sum with flow F and value v, G = F/v; then the flow of what it mixes is v_panel ⊙ (G·W), and the flow of its
//! weights W ⊙ (Gᵀ·v_panel), which `weights` sums over all rows. A product passes its flow to every factor.
//!
//! Where a flow buffer is written here, whoever had its memory before is done with it (`flow_memory`).

use std::ops::Range;

use super::forward::{Pass, one_panel};
use super::gather::flow_row;
use super::kernels::product::{Matrix, MatrixMut, multiply, transpose_row};
use super::kernels::{Isa, multiversion, prefetch, rows_ahead};
use super::scaled::{ZERO, two_to_minus};
use super::scratch::{Phase, Scratch};
use super::tile::{Tile, TileState};
use crate::plan::{Buffer, GainBelow, PlanGroup, ProductStep, Step, SumStep};

/// Gives the root of every row its flow: none to rows that are impossible or that linear space cannot hold, and 1 to
/// the marginal row, which makes its flows top-down probabilities.
pub(super) fn start(pass: Pass<'_>, tile: &Tile, state: &TileState, root_flow: impl Fn(usize) -> f32) {
    // SAFETY: this tile belongs to the calling thread, and nothing has read its flows yet.
    let root = unsafe { tile.flows.get_mut(tile.span(pass.plan.root_flow)) };
    for (row, flow) in root.iter_mut().enumerate() {
        let possible = state.log_likelihoods[row] > f64::NEG_INFINITY && !state.degenerate[row];
        *flow = match row < tile.rows.len() {
            _ if !possible => 0.0,
            true => root_flow(tile.rows.start + row),
            false => 1.0,
        };
    }
}

/// Runs one step for a tile. `tied` names the accumulator of each block that several nodes share.
pub(super) fn backward(
    pass: Pass<'_>,
    tile: &Tile,
    state: &mut TileState,
    scratch: &mut Scratch,
    step: &Step,
    tied: &[Option<usize>],
) {
    match step {
        Step::Input(_) => {}
        Step::Product(product) => product_flows(pass.isa, pass.isa, tile, scratch, product),
        Step::Sum(sum) => {
            for buffer in &sum.clear {
                // SAFETY: nobody reads a flow buffer before all its contributions are in, and the tile is ours.
                unsafe { tile.flows.get_mut(tile.span(*buffer)) }.fill(0.0);
            }
            // Groups that mix parts of one buffer have one scale, and are divided together.
            let together = one_panel(sum);
            if together && !sum.is_transient {
                gains(pass.isa, tile, state, sum, &sum.groups[0], 0..sum.value.units);
            }
            for group in &sum.groups {
                if !together {
                    gains(pass.isa, tile, state, sum, group, group.start..group.start + group.units);
                }
                sum_product(pass, tile, state, scratch, sum, group);
                if let Some(index) = tied[group.param.index()] {
                    scratch.clock.lap(Phase::Backward);
                    add_tied(pass, tile, state, scratch, sum, group, index);
                    scratch.clock.lap(Phase::Flows);
                }
                if sum.gain_below.is_none() {
                    panel_flows(pass.isa, tile, state, group);
                }
            }
            if let Some(below) = &sum.gain_below {
                flows_and_gains(pass.isa, pass, tile, state, scratch, sum.groups[0].panel.buffer, below);
            }
        }
    }
}

multiversion! {
    fn product_flows(set: Isa, tile: &Tile, scratch: &mut Scratch, product: &ProductStep) = product_backward;
    fn gains(tile: &Tile, state: &TileState, sum: &SumStep, group: &PlanGroup, units: Range<usize>) = divide_flow;
    fn panel_flows(tile: &Tile, state: &TileState, group: &PlanGroup) = spread;
    fn flows_and_gains(
        pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, panel: Buffer, below: &GainBelow,
    ) = spread_below;
}

#[inline(always)]
fn product_backward(isa: Isa, tile: &Tile, scratch: &mut Scratch, product: &ProductStep) {
    for factor in &product.factors {
        let (Some(target), Some(flow)) = (factor.flow, product.flow) else { continue };
        // SAFETY: a factor's buffer is another than the product's, whose contributions are all in; nobody reads the
        // factor's before this step is done, and the tile is this thread's.
        let (flow, into) = unsafe { (tile.flows.get(tile.span(flow)), tile.flows.get_mut(tile.span(target.buffer))) };
        match &factor.map {
            None if target.first => into.copy_from_slice(flow),
            None => into.iter_mut().zip(flow).for_each(|(x, f)| *x += f),
            Some(map) => {
                if let Some((rows, _)) = factor.transpose {
                    // The way back of a transpose is the other transpose.
                    let each = into.chunks_exact_mut(target.buffer.units).zip(flow.chunks_exact(map.len()));
                    scratch.mapped.resize(map.len(), 0.0);
                    for (into, flow) in each {
                        if target.first {
                            transpose_row(isa, flow, rows, into);
                        } else {
                            transpose_row(isa, flow, rows, &mut scratch.mapped);
                            into.iter_mut().zip(&scratch.mapped).for_each(|(x, f)| *x += f);
                        }
                    }
                    continue;
                }
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

/// Replaces the values of some units by G = F/v, both at the scale of a group's panel, so that no scale is left to
/// carry.
#[inline(always)]
fn divide_flow(tile: &Tile, state: &TileState, sum: &SumStep, group: &PlanGroup, part: Range<usize>) {
    let units = sum.value.units;
    let flow = sum.flow.expect("only transient sums go without, and their G is there");
    // SAFETY: the sum's values are this step's alone by now: its parents are done. Its flow is complete. The tile is
    // ours.
    let (values, flows) = unsafe { (tile.values.get_mut(tile.span(sum.value)), tile.flows.get(tile.span(flow))) };
    let scales = &state.scales[tile.scale_span(sum.value)];
    let panel_scales = &state.scales[tile.scale_span(group.panel.buffer)];
    let rows = values.chunks_exact_mut(units).zip(flows.chunks_exact(units)).zip(scales.iter().zip(panel_scales));
    for (row, ((values, flows), (own, panel))) in rows.enumerate() {
        let (values, flows) = (&mut values[part.clone()], &flows[part.clone()]);
        if state.degenerate[row] || own.exponent <= ZERO || panel.exponent <= ZERO {
            values.fill(0.0);
        } else if own.exponent == panel.exponent {
            values.iter_mut().zip(flows).for_each(|(value, &flow)| {
                let gain = flow / *value;
                *value = if *value > 0.0 { gain } else { 0.0 };
            });
        } else {
            // 2^(panel − own): the forward pass has seen to it that the result stays in range.
            let factor = 2f32.powi((panel.exponent - own.exponent).clamp(-150, 150) as i32);
            values.iter_mut().zip(flows).for_each(|(value, &flow)| {
                let gain = flow / *value * factor;
                *value = if *value > 0.0 { gain } else { 0.0 };
            });
        }
    }
}

/// product = G·W; of the groups of a sum side by side where they are spread together.
fn sum_product(
    pass: Pass<'_>,
    tile: &Tile,
    state: &mut TileState,
    scratch: &mut Scratch,
    sum: &SumStep,
    group: &PlanGroup,
) {
    let (rows, cols) = (tile.num_rows(), group.panel.units);
    // SAFETY: G was written by this step, the tile is ours, and parameters rest while tiles need them.
    let (gains, weights) = unsafe { (&tile.values.get(tile.span(sum.value))[group.start..], pass.weights(group)) };
    let packed = match &pass.packed[group.param.index()] {
        Some(packed) => &packed.backward,
        None => scratch.packs.backward(pass.arithmetic, group.param, weights),
    };
    let (first, stride) = match sum.gain_below {
        Some(_) => (group.panel.start, group.panel.buffer.units),
        None => (0, cols),
    };
    multiply(
        pass.arithmetic,
        MatrixMut::new(&mut state.product[first..], rows, cols, stride),
        Matrix::new(gains, rows, group.units, sum.value.units),
        packed,
        &mut scratch.left,
    );
}

/// Flow of the children = v_panel ⊙ product.
#[inline(always)]
fn spread(tile: &Tile, state: &TileState, group: &PlanGroup) {
    let panel = group.panel;
    let mut col = 0;
    for (i, &(target, start)) in group.targets.iter().enumerate() {
        let units = group.gathered.get(i).map_or(panel.units, |view| view.units);
        let stride = target.buffer.units;
        // SAFETY: nobody reads the children's flows before this step is done; the panel's values are final; the
        // tile is this thread's.
        let (into, values) =
            unsafe { (tile.flows.get_mut(tile.span(target.buffer)), tile.values.get(tile.span(panel.buffer))) };
        let values = values.chunks_exact(panel.buffer.units);
        let products = state.product.chunks_exact(panel.units);
        for ((into, values), products) in into.chunks_exact_mut(stride).zip(values).zip(products) {
            let into = &mut into[start..start + units];
            let values = &values[panel.start + col..panel.start + col + units];
            let terms = into.iter_mut().zip(values).zip(&products[col..col + units]);
            if target.first {
                terms.for_each(|((x, v), p)| *x = v * p);
            } else {
                terms.for_each(|((x, v), p)| *x += v * p);
            }
        }
        col += units;
    }
}

/// Flow of the product below = v_panel ⊙ product, where it is kept, and G of the transient sum below that: product ⊙
/// table.
#[inline(always)]
fn spread_below(
    pass: Pass<'_>,
    tile: &Tile,
    state: &mut TileState,
    scratch: &mut Scratch,
    panel: Buffer,
    below: &GainBelow,
) {
    let units = panel.units;
    // SAFETY: nobody reads the product's flow before this step is done; the product's values are final; G below is
    // this tile's, and the G that was there has been used.
    let (mut flows, values, gains) = unsafe {
        (
            below.flow.map(|flow| tile.flows.get_mut(tile.span(flow))),
            tile.values.get(tile.span(panel)),
            tile.values.get_mut(tile.span(below.value)),
        )
    };
    let scales = &state.scales[tile.scale_span(panel)];
    let below_scales = &state.scales[tile.scale_span(below.panel)];
    scratch.mapped.resize(units, 0.0);
    state.marginal_flow.resize(units, 0.0);
    for (row, (values, gains)) in values.chunks_exact(units).zip(gains.chunks_exact_mut(units)).enumerate() {
        let products = &state.product[row * units..(row + 1) * units];
        let (own, panel) = (scales[row].exponent, below_scales[row].exponent);
        let is_void = state.degenerate[row] || own <= ZERO || panel <= ZERO;
        if let Some(flows) = &mut flows {
            let flows = &mut flows[row * units..(row + 1) * units];
            match is_void {
                true => flows.fill(0.0),
                false => multiply_to(flows, values, products),
            }
        }
        if row >= tile.rows.len() {
            match (is_void, below.transpose) {
                (true, _) => state.marginal_flow.fill(0.0),
                (false, None) => multiply_to(&mut state.marginal_flow, values, products),
                (false, Some((rows, _))) => {
                    multiply_to(&mut scratch.mapped, values, products);
                    transpose_row(pass.isa, &scratch.mapped, rows, &mut state.marginal_flow);
                }
            }
        }
        if is_void {
            gains.fill(0.0);
            continue;
        }
        // At the scale of what the sum below mixes; see `GainBelow`. In two halves, because the power may leave the
        // range of f32 where the result, which the forward pass has bounded, does not.
        let shift = (own - panel).clamp(-240, 240);
        let halves = (two_to_minus(shift / 2), two_to_minus(shift - shift / 2));
        // No closures: they would not take on the features of the instruction set.
        let mut table = None;
        if let Some((var, param)) = below.table {
            let categories = tile.categories(var);
            if let Some(&ahead) = categories.get(row + rows_ahead(units))
                // SAFETY: parameters rest while tiles need them.
                && let Some(ahead) = unsafe { pass.table_row(param, ahead) }
            {
                prefetch(ahead);
            }
            // SAFETY: a table is updated after every tile has passed the nodes that use it (rule 2 of `turns`).
            table = unsafe { pass.table_row(param, categories[row]) };
        }
        match below.transpose {
            None => gains_below(gains, values, products, table, halves),
            Some((rows, _)) => {
                gains_below(&mut scratch.mapped, values, products, table, halves);
                transpose_row(pass.isa, &scratch.mapped, rows, gains);
            }
        }
    }
}

/// out = a ⊙ b.
#[inline(always)]
fn multiply_to(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
}

/// G = product ⊙ table · 2^shift where the value is positive, and zero elsewhere.
#[inline(always)]
fn gains_below(gains: &mut [f32], values: &[f32], products: &[f32], table: Option<&[f32]>, (half, rest): (f32, f32)) {
    let each = gains.iter_mut().zip(values).zip(products);
    match table {
        None => {
            for ((g, &v), &p) in each {
                let gain = p * half * rest;
                *g = if v > 0.0 { gain } else { 0.0 };
            }
        }
        Some(table) => {
            for (((g, &v), &p), &t) in each.zip(table) {
                let gain = p * t * half * rest;
                *g = if v > 0.0 { gain } else { 0.0 };
            }
        }
    }
}

/// Adds Gᵀ·v_panel of this tile to the flows of weights that several nodes share, while both are in the cache; and the
/// flow of the marginal row to their top-down probabilities.
fn add_tied(
    pass: Pass<'_>,
    tile: &Tile,
    state: &mut TileState,
    scratch: &mut Scratch,
    sum: &SumStep,
    group: &PlanGroup,
    index: usize,
) {
    let rows = tile.rows.len(); // without the marginal row
    if tile.marginal {
        let flow = match sum.flow.filter(|_| !sum.is_transient) {
            // SAFETY: the sum's flow is complete.
            Some(flow) => unsafe { flow_row(tile, flow, rows) },
            None => &state.marginal_flow[..],
        };
        let own = &flow[group.start..group.start + group.units];
        let sums = &mut state.tied[index].top_down;
        sums.iter_mut().zip(own).for_each(|(sum, &flow)| *sum += f64::from(flow));
    }
    if rows == 0 {
        return;
    }
    // SAFETY: G and the panel are final, and the tile is ours.
    let (gains, values) =
        unsafe { (&tile.values.get(tile.span(sum.value))[group.start..], tile.values.get(tile.view(group.panel))) };
    let gains = Matrix::new(gains, rows, group.units, sum.value.units);
    let values = Matrix::new(values, rows, group.panel.units, group.panel.buffer.units);
    state.tied[index].sums.add(pass.arithmetic, gains, values, &mut scratch.flow);
}
