//! The values of a product: its factors multiplied, unit by unit, for a tile of rows.
//!
//! A row is computed in one of three ways. Few factors are multiplied in one go. Where they are many, or something
//! might have been lost, they are multiplied one after the other, and the row is brought to standard form (`scaled`)
//! when it has become small. What is dropped on the way may be what the factors to come would have left: a latent
//! variable with hundreds of children tells its states apart by hundreds of bits, and the state that leads after the
//! first half is often not the one that leads at the end. Such a row is computed again in double precision, whose range
//! holds them all.

use super::forward::Pass;
use super::kernels::product::transpose_row;
use super::kernels::{multiversion, prefetch, rows_ahead};
use super::scaled::{
    DOUBTFUL, Extremes, Scale, extremes, is_needlessly_lossy, multiply_all, multiply_into, multiply_rows,
    standardize_row, underflow_loss,
};
use super::scratch::Scratch;
use super::tile::{MISSING, Tile, TileState};
use super::wide::WideRow;
use crate::plan::{FactorSource, PlanFactor, ProductStep};

multiversion! {
    /// Values and scales of all rows.
    pub(super) fn values(
        pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, product: &ProductStep,
    ) = product_forward;
}

#[inline(always)]
fn product_forward(pass: Pass<'_>, tile: &Tile, state: &mut TileState, scratch: &mut Scratch, product: &ProductStep) {
    let units = product.value.units;
    let rows = tile.num_rows();
    // SAFETY: the buffer is this step's own and the tile is this thread's.
    let all = unsafe { tile.values.get_mut(tile.span(product.value)) };
    scratch.mapped.resize(units, 0.0);
    let at_once = AtOnce::new(pass, tile, product);
    for (row, out) in all.chunks_exact_mut(units).enumerate() {
        // No closures: they would not take on the features of the instruction set.
        let quick = match &at_once {
            Some(factors) => factors.row(&state.scales, row, out),
            None => None,
        };
        let of = FactorRow { pass, tile, scales: &state.scales, row };
        let scale = match quick {
            Some(scale) => scale,
            None => carefully(of, product, scratch, out),
        };
        state.scales[product.value.id * rows + row] = scale;
    }
}

/// One row of any product.
#[inline(always)]
fn carefully(of: FactorRow<'_>, product: &ProductStep, scratch: &mut Scratch, out: &mut [f32]) -> Scale {
    let scale = one_by_one(of, product, &mut scratch.mapped, out);
    match product.factors.len() > 2 && is_needlessly_lossy(scale) {
        true => in_double(of, product, &mut scratch.mapped, &mut scratch.wide, out),
        false => scale,
    }
}

/// The factors of a product that can be multiplied in one go: few, none with a map.
struct AtOnce<'a> {
    operands: [Operand<'a>; MOST_AT_ONCE],
    count: usize,
    num_tables: usize,
    units: usize,
}

/// A factor for all rows of a tile.
#[derive(Clone, Copy)]
enum Operand<'a> {
    /// A table, the category of each row, and in a max-product what stands for a missing one.
    Table(&'a [f32], &'a [u32], Option<&'a [f32]>),
    /// Values, and where their scales begin.
    Values(&'a [f32], usize),
}

/// Factors that are multiplied in one go, and values among them.
const MOST_AT_ONCE: usize = 5;
const MOST_VALUES: usize = 4;

impl<'a> AtOnce<'a> {
    /// Looked up once for all rows of a tile. `None` where the product is of another kind.
    fn new(pass: Pass<'a>, tile: &'a Tile, product: &ProductStep) -> Option<Self> {
        if product.factors.len() > MOST_AT_ONCE || product.factors.iter().any(|factor| factor.map.is_some()) {
            return None;
        }
        let mut operands = [Operand::Values(&[], 0); MOST_AT_ONCE];
        let mut num_tables = 0;
        for (operand, factor) in operands.iter_mut().zip(&product.factors) {
            *operand = match factor.source {
                FactorSource::Table { var, param } => {
                    num_tables += 1;
                    // SAFETY: parameters rest while tiles need them.
                    let block = unsafe { pass.block(param) };
                    let best = pass.best.map(|best| best.of_table(param));
                    Operand::Table(block, tile.categories(var), best)
                }
                FactorSource::Value(buffer) => {
                    // SAFETY: a factor's buffer lies below this step's, was written before, and the tile is ours.
                    let values = unsafe { tile.values.get(tile.span(buffer)) };
                    Operand::Values(values, tile.scale_span(buffer).start)
                }
            };
        }
        let count = product.factors.len();
        // A table comes first if there is one; see `row`. Several are multiplied in their order, as `one_by_one` does.
        if num_tables == 1 {
            let at = operands.iter().position(|operand| matches!(operand, Operand::Table(..)))?;
            operands[..=at].rotate_right(1);
        }
        (count - num_tables <= MOST_VALUES).then_some(Self { operands, count, num_tables, units: product.value.units })
    }

    /// One row and its scale; `None` where something might have been lost on the way.
    ///
    /// Values are at most 1, and so are tables of a circuit that is normalised: then partial products are not below the
    /// result, and if that is well inside the normal range they were too. Where a table may have larger numbers, it is
    /// the only one and comes first, or its numbers are looked at.
    #[inline(always)]
    fn row(&self, scales: &[Scale], row: usize, out: &mut [f32]) -> Option<Scale> {
        let units = self.units;
        let mut factors: [&[f32]; MOST_AT_ONCE] = [&[]; MOST_AT_ONCE];
        let mut count = 0;
        let mut scale = None;
        // No closures in here either.
        for operand in &self.operands[..self.count] {
            factors[count] = match *operand {
                Operand::Table(block, categories, best) => {
                    if let Some(&ahead) = categories.get(row + rows_ahead(units))
                        && ahead != MISSING
                    {
                        prefetch(&block[ahead as usize * units..][..units]);
                    }
                    match categories[row] {
                        MISSING => match best {
                            Some(best) => best,
                            None => continue,
                        },
                        category => &block[category as usize * units..][..units],
                    }
                }
                Operand::Values(values, first_scale) => {
                    let own = scales[first_scale + row];
                    scale = Some(match scale {
                        None => own,
                        Some(before) => Scale::times(before, own),
                    });
                    &values[row * units..][..units]
                }
            };
            count += 1;
        }
        let [a, b, c, d, e] = factors;
        let found = match (count, self.num_tables > 1) {
            (2, false) => multiply_all::<2, false>(out, [a, b]),
            (3, false) => multiply_all::<3, false>(out, [a, b, c]),
            (4, false) => multiply_all::<4, false>(out, [a, b, c, d]),
            (5, false) => multiply_all::<5, false>(out, [a, b, c, d, e]),
            (2, true) => multiply_all::<2, true>(out, [a, b]),
            (3, true) => multiply_all::<3, true>(out, [a, b, c]),
            (4, true) => multiply_all::<4, true>(out, [a, b, c, d]),
            (5, true) => multiply_all::<5, true>(out, [a, b, c, d, e]),
            _ => return None, // a copy, or ones
        };
        if found.seen.min < DOUBTFUL.to_bits() {
            return None;
        }
        let scale = standardize_row(out, found.seen, scale.unwrap_or(Scale::UNIT));
        // What `carefully` would rescale on the way, or compute in double precision, is left to it.
        let is_left = self.num_tables > 1
            && (found.largest_factor > LARGEST_FACTOR.to_bits()
                || found.lowest_partial < LOW_WATER
                || (self.count > 2 && is_needlessly_lossy(scale)));
        if is_left { None } else { Some(scale) }
    }
}

/// With factors up to this, a partial product is at most 2^20 below the result.
const LARGEST_FACTOR: f32 = 32.0;

/// Where the values of factors are looked up, for one row.
#[derive(Clone, Copy)]
struct FactorRow<'a> {
    pass: Pass<'a>,
    tile: &'a Tile,
    scales: &'a [Scale],
    row: usize,
}

impl<'a> FactorRow<'a> {
    /// The values of a factor and their scale; `None` for a missing value, a factor of one.
    #[inline(always)]
    fn of(self, factor: &PlanFactor) -> Option<(&'a [f32], Scale)> {
        let Self { pass, tile, scales, row } = self;
        match factor.source {
            FactorSource::Table { var, param } => {
                let categories = tile.categories(var);
                let units = pass.circuit.layout().block(param).units();
                if let Some(&ahead) = categories.get(row + rows_ahead(units)) {
                    // SAFETY: parameters rest while tiles need them.
                    unsafe { pass.table_row(param, ahead) }.into_iter().for_each(prefetch);
                }
                // SAFETY: a table is updated after every tile has passed the nodes that use it (rule 2 of `turns`).
                unsafe { pass.table_row(param, categories[row]) }.map(|values| (values, Scale::UNIT))
            }
            FactorSource::Value(buffer) => {
                // SAFETY: a factor's buffer lies below this step's, was written before, and the tile is ours.
                let values = unsafe { tile.values.get(tile.row(buffer, row)) };
                Some((values, scales[buffer.id * tile.num_rows() + row]))
            }
        }
    }

    /// The values in the order of the product's units.
    #[inline(always)]
    fn map(self, factor: &PlanFactor, values: &[f32], mapped: &mut [f32]) {
        match (&factor.map, factor.transpose) {
            (None, _) => mapped.copy_from_slice(values),
            (_, Some((_, cols))) => transpose_row(self.pass.isa, values, cols, mapped),
            (Some(map), None) => mapped.iter_mut().zip(map.iter()).for_each(|(x, &unit)| *x = values[unit as usize]),
        }
    }
}

/// One row, factor by factor.
#[inline(always)]
fn one_by_one(of: FactorRow<'_>, product: &ProductStep, mapped: &mut [f32], out: &mut [f32]) -> Scale {
    let mut scale = Scale::UNIT;
    let mut first: Option<&[f32]> = None;
    let mut seen = None;
    for factor in &product.factors {
        let Some((values, factor_scale)) = of.of(factor) else { continue };
        // A running product that has become small is rescaled before the next factor, to keep its range.
        if let Some(Extremes { max, .. }) = seen.filter(|seen: &Extremes| seen.max < LOW_WATER) {
            scale = standardize_row(out, Extremes { max, min: 0 }, scale);
        }
        scale = scale.times(factor_scale);
        let multiplied = match (&factor.map, first, seen) {
            (None, None, None) => {
                first = Some(values);
                continue;
            }
            (Some(_), None, None) => {
                of.map(factor, values, out);
                seen = Some(extremes(out));
                continue;
            }
            (None, Some(before), _) => multiply_rows(out, before, values),
            (None, None, Some(_)) => multiply_into(out, values),
            (Some(_), ..) => {
                of.map(factor, values, mapped);
                match first {
                    Some(before) => multiply_rows(out, before, mapped),
                    None => multiply_into(out, mapped),
                }
            }
        };
        first = None;
        seen = Some(multiplied.seen);
        if multiplied.lost {
            scale.loss = scale.loss.max(underflow_loss(scale.exponent));
        }
    }
    match (first, seen) {
        (Some(only), _) => out.copy_from_slice(only),
        (None, None) => out.fill(1.0),
        _ => {}
    }
    let seen = seen.unwrap_or_else(|| extremes(out));
    standardize_row(out, seen, scale)
}

/// The same in double precision: nothing is dropped but at the end.
#[inline(always)]
fn in_double(
    of: FactorRow<'_>,
    product: &ProductStep,
    mapped: &mut [f32],
    wide: &mut WideRow,
    out: &mut [f32],
) -> Scale {
    wide.start(out.len());
    for factor in &product.factors {
        let Some((values, scale)) = of.of(factor) else { continue };
        match &factor.map {
            None => wide.multiply(values, scale),
            Some(_) => {
                of.map(factor, values, mapped);
                wide.multiply(mapped, scale);
            }
        }
    }
    wide.finish(out)
}

/// 2^−40.
const LOW_WATER: u32 = (127 - 40) << 23;
