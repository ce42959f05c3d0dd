//! Draws from tables of probabilities, put off until many can be made at once.
//!
//! A table is `[cats × units]`, unit index fastest, so that reading one unit's probabilities jumps through all of it:
//! with a vocabulary of 50,000 that costs more than everything else about a draw. So a draw first takes its random
//! point only; then, table by table, the probabilities of the units that were asked for are laid out once and serve all
//! their draws. The values are those that drawing at once would have given.

use rayon::prelude::*;

use crate::circuit::{ParamId, Params};

/// Draws that may wait: some tens of megabytes.
pub(super) const MOST_WAITING: usize = 1 << 20;

/// Units whose probabilities share cache lines: they are laid out together.
const UNITS_TOGETHER: usize = 16;

/// A draw that has its random point but not its category.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableDraw {
    pub param: ParamId,
    pub unit: usize,
    /// Uniform on [0, 1): where in the unit's total mass.
    pub point: f64,
    /// Where the category goes; for the caller alone.
    pub cell: usize,
}

/// Makes all draws and hands each category to `put(cell, category)`.
pub(super) fn make(params: &Params, draws: &mut Vec<TableDraw>, mut put: impl FnMut(usize, f64)) {
    draws.sort_unstable_by_key(|draw| (draw.param, draw.unit));
    let line = |draw: &TableDraw| (draw.param, draw.unit / UNITS_TOGETHER);
    let lines: Vec<&[TableDraw]> = draws.chunk_by(|a, b| line(a) == line(b)).collect();
    let made: Vec<Vec<(usize, f64)>> = lines.into_par_iter().map(|line| make_line(params, line)).collect();
    made.into_iter().flatten().for_each(|(cell, category)| put(cell, category));
    draws.clear();
}

/// Draws of neighbouring units of one table, in the order of the units.
fn make_line(params: &Params, draws: &[TableDraw]) -> Vec<(usize, f64)> {
    let block = params.layout().block(draws[0].param);
    let cats = block.values_per_row;
    let by_unit: Vec<&[TableDraw]> = draws.chunk_by(|a, b| a.unit == b.unit).collect();
    // [units asked for × cats], category fastest.
    let mut rows = vec![0.0f32; by_unit.len() * cats];
    for (cat, probabilities) in params.values()[block.values.clone()].chunks_exact(block.units()).enumerate() {
        for (row, draws) in by_unit.iter().enumerate() {
            rows[row * cats + cat] = probabilities[draws[0].unit];
        }
    }
    let mut made = Vec::with_capacity(draws.len());
    let mut sums: Vec<f64> = Vec::with_capacity(cats);
    for (draws, row) in by_unit.iter().zip(rows.chunks_exact(cats)) {
        // Running sums, category by category: each draw then finds its place by halving.
        sums.clear();
        sums.extend(row.iter().scan(0.0, |sum, &p| {
            *sum += f64::from(p);
            Some(*sum)
        }));
        let total = sums.last().copied().unwrap_or(0.0);
        made.extend(draws.iter().map(|draw| {
            let point = draw.point * total;
            // Rounding may leave a point at the very end: it is the last category's that can be.
            let last = || sums.partition_point(|&sum| sum < total);
            let found = sums.partition_point(|&sum| sum <= point);
            (draw.cell, if found < cats { found } else { last() } as f64)
        }));
    }
    made
}
