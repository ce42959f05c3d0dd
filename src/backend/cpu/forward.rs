//! The forward pass: log p(x) of a tile of rows, step by step.
//!
//! sum: v_n = v_panel·Wᵀ, product: v_n = Π v_c, input: a table row or a density. Each row of each buffer is brought to
//! standard form (`scaled`) as soon as it is computed. A row that linear space cannot hold, forwards or backwards,
//! is found here and marked: the backward pass then meets no surprises.

use super::kernels::max_product::multiply_max;
use super::kernels::product::{Matrix, MatrixMut, multiply};
use super::kernels::{Arithmetic, Isa, multiversion};
use super::packed::PackedWeights;
use super::products;
use super::questions::Best;
use super::scaled::{
    DOUBTFUL, NO_LOSS, SAFE_BITS, SOME_LOSS, Scale, ZERO, align_row, extremes, gain_bits, is_above_loss,
    is_comfortable, standard_exponent, standardize_row, underflow_loss,
};
use super::scratch::Scratch;
use super::shared::ReadOnly;
use super::tile::{MISSING, Tile, TileState};
use crate::circuit::{Circuit, ParamId};
use crate::data::Batch;
use crate::plan::{Buffer, InputStep, Plan, PlanGroup, Step, SumStep};

/// Everything a pass reads.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub circuit: &'a Circuit,
    pub plan: &'a Plan,
    pub isa: Isa,
    /// How matrix products are computed.
    pub arithmetic: Arithmetic,
    /// The parameters, in the circuit's layout.
    pub theta: ReadOnly<'a, f32>,
    /// Weights that several nodes share, packed beforehand for this arithmetic; by block.
    pub packed: &'a [Option<PackedWeights>],
    pub batch: &'a Batch,
    /// The largest flow that a row can have at the root is below 2^this.
    pub flow_bits: i64,
    /// Set for max-product: sums take the largest term, and a missing input has the value of its mode.
    pub best: Option<&'a Best>,
}

impl<'a> Pass<'a> {
    /// The parameters of a block.
    ///
    /// # Safety
    /// Nobody updates the block while the slice lives: blocks are updated after every tile is done with them (rule 2 of
    /// `turns`).
    pub unsafe fn block(self, param: ParamId) -> &'a [f32] {
        // SAFETY: nobody updates the block meanwhile, which the caller has promised.
        unsafe { self.theta.get(self.circuit.layout().block(param).values.clone()) }
    }

    /// The row of a category in a table; for a missing one `None`, or in a max-product the largest of each unit.
    ///
    /// # Safety
    /// As `block`.
    #[inline(always)]
    pub unsafe fn table_row(self, param: ParamId, category: u32) -> Option<&'a [f32]> {
        let layout = self.circuit.layout().block(param);
        let start = layout.values.start + (category as usize).wrapping_mul(layout.units());
        match category {
            MISSING => self.best.map(|best| best.of_table(param)),
            // SAFETY: the row is part of the block, which nobody updates meanwhile: the caller's promise.
            _ => Some(unsafe { self.theta.get(start..start + layout.units()) }),
        }
    }

    /// The weights of a group as a matrix.
    ///
    /// # Safety
    /// As `block`.
    pub unsafe fn weights(self, group: &PlanGroup) -> Matrix<'a> {
        // SAFETY: `block` asks that nobody updates it meanwhile, and so does this function.
        let block = unsafe { self.block(group.param) };
        Matrix::new(block, group.units, group.panel.units, group.panel.units)
    }
}

/// Runs one step for a tile.
pub(super) fn forward(pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, step: &Step) {
    match step {
        Step::Input(input) => input_values(pass.isa, pass, tile, state, input),
        Step::Product(product) => products::values(pass.isa, pass, tile, state, scratch, product),
        Step::Sum(sum) => {
            for group in &sum.groups {
                if !group.gathered.is_empty() {
                    panel_values(pass.isa, tile, state, group);
                }
                mix(pass, tile, sum, group, scratch);
            }
            sum_scales(pass.isa, pass, tile, state, scratch, sum);
        }
    }
}

multiversion! {
    fn input_values(pass: Pass<'_>, tile: &Tile, state: &mut TileState, input: &InputStep) = input_forward;
    fn panel_values(tile: &Tile, state: &mut TileState, group: &PlanGroup) = gather_panel;
    fn sum_scales(
        pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, sum: &SumStep,
    ) = finish_sum;
}

/// Reads the log-likelihoods off the root once all steps are done.
pub(super) fn finish(pass: Pass<'_>, tile: &Tile, state: &mut TileState) {
    // SAFETY: this tile belongs to the calling thread, and its forward pass is over.
    let root = unsafe { tile.values.get(tile.span(pass.plan.root_value)) };
    let scales = tile.scale_span(pass.plan.root_value).start;
    for (row, &value) in root.iter().enumerate() {
        let scale = state.scales[scales + row];
        let impossible = value == 0.0 || scale.exponent <= ZERO;
        state.log_likelihoods[row] = match impossible {
            true => f64::NEG_INFINITY,
            false => f64::from(value).ln() + scale.exponent as f64 * std::f64::consts::LN_2,
        };
        // An impossible row is believed only if nothing was lost on the way.
        state.degenerate[row] |= scale.loss > SOME_LOSS && (impossible || scale.loss > scale.exponent - SAFE_BITS);
    }
}

#[inline(always)]
fn input_forward(pass: Pass<'_>, tile: &Tile, state: &mut TileState, input: &InputStep) {
    let scales = tile.scale_span(input.value);
    // SAFETY: the buffer is this step's own and the tile is this thread's; parameters rest while tiles need them.
    let (out, block) = unsafe { (tile.values.get_mut(tile.span(input.value)), pass.block(input.param)) };
    let distribution = pass.circuit.distribution(input.param);
    let layout = pass.circuit.layout().block(input.param);
    let units = layout.units();
    let first = layout.values.start;
    let params: Vec<Vec<f32>> = match distribution.is_table() {
        true => Vec::new(),
        false => (0..units).map(|u| layout.value_positions(u).map(|i| block[i - first]).collect()).collect(),
    };
    let mut logs = vec![0.0; params.len()];
    for (row, (out, scale)) in out.chunks_exact_mut(units).zip(&mut state.scales[scales]).enumerate() {
        *scale = if distribution.is_table() {
            match tile.categories(input.var)[row] {
                MISSING => match pass.best {
                    Some(best) => out.copy_from_slice(best.of_table(input.param)),
                    None => out.fill(1.0),
                },
                category => out.copy_from_slice(&block[category as usize * units..][..units]),
            }
            let seen = extremes(out);
            standardize_row(out, seen, Scale::UNIT)
        } else if let Some(value) = tile.real(pass.batch, row, input.var) {
            logs.iter_mut().zip(&params).for_each(|(log, params)| *log = distribution.log_prob(params, value));
            densities(out, &logs)
        } else if let Some(best) = pass.best {
            densities(out, &best.logs[input.param.index()])
        } else {
            out.fill(1.0);
            Scale::UNIT
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

/// The matrix product of a group: v_n = v_panel·Wᵀ.
fn mix(pass: Pass<'_>, tile: &Tile, sum: &SumStep, group: &PlanGroup, scratch: &mut Scratch) {
    let rows = tile.num_rows();
    // SAFETY: the sum's buffer is this step's own, its panel was written before, the tile is this thread's, and
    // parameters rest while tiles need them.
    let (out, panel, weights) = unsafe {
        (tile.values.get_mut(tile.span(sum.value)), tile.values.get(tile.view(group.panel)), pass.weights(group))
    };
    let packed = match &pass.packed[group.param.index()] {
        Some(packed) => &packed.forward,
        None => scratch.packs.forward(pass.arithmetic, group.param, weights),
    };
    let out = MatrixMut::new(&mut out[group.start..], rows, group.units, sum.value.units);
    let panel = Matrix::new(panel, rows, group.panel.units, group.panel.buffer.units);
    match pass.best {
        None => multiply(pass.arithmetic, out, panel, packed, &mut scratch.left),
        Some(_) => multiply_max(pass.arithmetic, out, panel, packed, &mut scratch.left),
    }
}

/// Scales of a sum's rows, once its groups are computed.
#[inline(always)]
fn finish_sum(pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, sum: &SumStep) {
    let rows = tile.num_rows();
    let units = sum.value.units;
    // SAFETY: the sum's buffer is this step's own and the tile is this thread's.
    let all = unsafe { tile.values.get_mut(tile.span(sum.value)) };
    let found = &mut scratch.found;
    let one_panel = one_panel(sum);
    for row in 0..rows {
        let out = &mut all[row * units..(row + 1) * units];
        let scales = &mut state.scales;
        let own = sum.value.id * rows + row;
        let panel_scale = |scales: &[Scale], group: &PlanGroup| scales[group.panel.buffer.id * rows + row];
        if one_panel {
            // Outputs that are all in range: the common case, and nothing to be done.
            let (seen, panel) = (extremes(out), panel_scale(scales, &sum.groups[0]));
            if is_comfortable(seen) && panel.exponent > ZERO {
                let loss = if is_above_loss(seen.min, panel.exponent, panel) { NO_LOSS } else { panel.loss };
                scales[own] = Scale { exponent: panel.exponent, loss };
                state.degenerate[row] |= gain_bits(seen.min, 0) + pass.flow_bits > LARGEST_GAIN_BITS;
                continue;
            }
        }
        found.clear();
        for group in &sum.groups {
            let mut panel_scale = panel_scale(scales, group);
            let outputs = &out[group.start..group.start + group.units];
            let seen = extremes(outputs);
            if seen.min < DOUBTFUL.to_bits() && panel_scale.exponent > ZERO {
                // SAFETY: the panel was written before, the tile is ours, and parameters rest.
                let (panel, weights) =
                    unsafe { (tile.values.get(tile.row(group.panel.buffer, row)), pass.block(group.param)) };
                let panel = &panel[group.panel.start..group.panel.start + group.panel.units];
                if hides_underflow(outputs, panel, weights) {
                    // Every term may have lost what lies below the normal range; 2^20 terms are more than any sum has.
                    panel_scale.loss = panel_scale.loss.max(underflow_loss(panel_scale.exponent) + 20);
                }
            }
            found.push((seen, panel_scale));
        }
        // All groups of a row share one exponent: that of the largest output.
        let exponent = found.iter().map(|(seen, s)| standard_exponent(seen.max, s.exponent)).max().unwrap_or(ZERO);
        let mut merged = Scale { exponent: ZERO, loss: NO_LOSS };
        for (group, &(seen, panel_scale)) in sum.groups.iter().zip(found.iter()) {
            let part = &mut out[group.start..group.start + group.units];
            let mut after = align_row(part, seen.max, panel_scale, exponent);
            if is_above_loss(seen.min, panel_scale.exponent, after) {
                after.loss = NO_LOSS;
            }
            if after.exponent > ZERO {
                let smallest = part.iter().filter(|x| **x > 0.0).map(|x| x.to_bits()).min();
                let bits = smallest.map_or(0, |min| gain_bits(min, panel_scale.exponent - after.exponent));
                state.degenerate[row] |= bits + pass.flow_bits > LARGEST_GAIN_BITS;
            }
            merged.exponent = merged.exponent.max(after.exponent);
            merged.loss = merged.loss.max(after.loss);
        }
        scales[own] = merged;
    }
}

/// Whether all groups of a sum mix parts of one buffer, so that their outputs have one scale.
pub(super) fn one_panel(sum: &SumStep) -> bool {
    sum.groups.iter().all(|group| group.panel.buffer == sum.groups[0].panel.buffer)
}

/// G = F/v may be as large as 2^this; above, it could overflow in the sums that follow, and the row is left to
/// `log_space`.
pub(super) const LARGEST_GAIN_BITS: i64 = 101;

/// Whether an output has lost digits below the normal range: it is tiny, or zero though its terms are positive.
fn hides_underflow(outputs: &[f32], panel: &[f32], weights: &[f32]) -> bool {
    outputs.iter().zip(weights.chunks_exact(panel.len())).any(|(&output, weights)| match output {
        0.0 => panel.iter().zip(weights).any(|(&value, &weight)| value > 0.0 && weight > 0.0),
        _ => output < DOUBTFUL,
    })
}

/// Lays a group's children side by side, at the largest of their exponents.
#[inline(always)]
fn gather_panel(tile: &Tile, state: &mut TileState, group: &PlanGroup) {
    let rows = tile.num_rows();
    let buffer = group.panel.buffer;
    // SAFETY: the panel is this step's own and the tile is this thread's.
    let all = unsafe { tile.values.get_mut(tile.span(buffer)) };
    let (scales_below, scales) = state.scales.split_at_mut(buffer.id * rows);
    for (row, scale) in scales[..rows].iter_mut().enumerate() {
        let panel = &mut all[row * buffer.units..(row + 1) * buffer.units];
        let child_scale = |buffer: Buffer| scales_below[buffer.id * rows + row];
        let exponent = group.gathered.iter().map(|v| child_scale(v.buffer).exponent).max().unwrap_or(ZERO);
        let mut merged = Scale { exponent, loss: NO_LOSS };
        let mut at = 0;
        for view in &group.gathered {
            // SAFETY: a child's buffer lies below the panel, was written before, and the tile is ours.
            let child = unsafe { tile.values.get(tile.row(view.buffer, row)) };
            let part = &mut panel[at..at + view.units];
            part.copy_from_slice(&child[view.start..view.start + view.units]);
            let max = extremes(part).max;
            merged.loss = merged.loss.max(align_row(part, max, child_scale(view.buffer), exponent).loss);
            at += view.units;
        }
        *scale = merged;
    }
}
