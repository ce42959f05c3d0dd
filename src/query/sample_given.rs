//! Draws the missing cells of rows given the others: exact samples of p(missing | kept).
//!
//! One pass up gives p_n(kept) of every unit; on the way down a sum then takes child c with probability
//! θ[n,c]·p_c(kept)/p_n(kept) (docs/MATH.md, "Conditional samples"). `sample` is the case in which everything is
//! missing.

use std::sync::Arc;

use super::draw::{RowsGuide, categories_drawn, descend_rows, narrowest, weights_of};
use super::table_draws::{self, MOST_WAITING, TableDraw};
use crate::backend::cpu::{Evaluator, Mixing, ValueTile};
use crate::circuit::log_values::{LogValues, Row, log_values};
use crate::circuit::{Circuit, NodeId, ParamId, Params, SumGroup};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Draws `num_samples` completions of every row: what is missing is drawn from its exact distribution given the rest of
/// the row, what is not stays. Row `r·num_samples + k` of the answer is completion `k` of row `r`. Rows are worked on
/// side by side; the answer depends on `rng` alone, and the first completions not on how many there are. Weights of
/// rows are not looked at. Param rows must sum to one, as learned ones do.
///
/// A row whose kept values have probability zero is an error that names it.
///
/// ```
/// use anemone::circuit::{Categorical, Params};
/// use anemone::query::sample_given;
/// use anemone::data::Batch;
/// use anemone::rng::Rng;
/// use anemone::structure::hmm;
///
/// let circuit = hmm(4, 3, Categorical::new(5)?)?;
/// let params = Params::random(&circuit, 1, 2.0)?;
/// let rows = Batch::from_rows(&[4u8, 0, 0, 2], 4)?.with_missing(|_, var| var == 1 || var == 2);
/// let drawn = sample_given(&circuit, &params, &rows, 10, &mut Rng::new(7))?;
/// assert_eq!(drawn.num_rows(), 10);
/// assert!((0..10).all(|row| drawn.column(0).category(row) == Some(4) && drawn.column(3).category(row) == Some(2)));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn sample_given(
    circuit: &Circuit,
    params: &Params,
    batch: &Batch,
    num_samples: usize,
    rng: &mut Rng,
) -> Result<Batch> {
    params.check(circuit)?;
    let evaluator = Evaluator::on_host(Arc::new(circuit.clone()), params.clone())?;
    sample_given_of(&evaluator, batch, num_samples, rng)
}

/// The same, of a circuit that is ready to be asked: rows go up through matrix products, and down by the values that
/// those have left.
pub(crate) fn sample_given_of(
    evaluator: &Evaluator,
    batch: &Batch,
    num_samples: usize,
    rng: &mut Rng,
) -> Result<Batch> {
    let (circuit, params) = (&**evaluator.circuit(), evaluator.params());
    circuit.check_batch(batch)?;
    let seed = rng.next_u64();
    let num_vars = circuit.num_vars();
    let num_drawn = batch.num_rows().checked_mul(num_samples).filter(|drawn| drawn.checked_mul(8 * num_vars).is_some());
    let num_drawn = num_drawn.ok_or_else(|| {
        Error::option(format!("{num_samples} completions of {} rows: more than any memory holds", batch.num_rows()))
    })?;
    // [num_vars × num_drawn], row index fastest.
    let mut values: Vec<f64> = Vec::with_capacity(num_vars * num_drawn);
    for var in 0..num_vars {
        let column = batch.column(var);
        let rows = (0..batch.num_rows()).map(|row| if batch.is_missing(row, var) { 0.0 } else { column.real(row) });
        values.extend(rows.flat_map(|value| std::iter::repeat_n(value, num_samples)));
    }
    let at_once = (MOST_WAITING / (num_vars * num_samples).max(1)).max(1);
    for first in (0..batch.num_rows()).step_by(at_once) {
        let part = first..batch.num_rows().min(first + at_once);
        let slice;
        let rows = match part.len() == batch.num_rows() {
            true => batch,
            false => {
                slice = batch.slice(part);
                &slice
            }
        };
        let draw = |tile: &ValueTile<'_>| complete_tile(evaluator, rows, tile, (first, num_drawn, num_samples), seed);
        let completed = evaluator.with_values(rows, Mixing::Sum, draw)?;
        let mut waiting = Vec::new();
        for draws in completed {
            let draws = draws?; // in the order of the rows: the first one is named
            draws.values.into_iter().for_each(|(cell, value)| values[cell] = value);
            waiting.extend(draws.waiting);
        }
        table_draws::make(params, &mut waiting, |cell, value| values[cell] = value);
    }
    let of_var = |var: usize| std::iter::once(&values[var * num_drawn..(var + 1) * num_drawn]);
    let columns = categories_drawn(circuit).into_iter().enumerate().map(|(var, cats)| narrowest(cats, of_var(var)));
    Batch::from_columns(columns.collect())
}

/// What was drawn for some rows, by cell of `[num_vars × num_drawn]`.
#[derive(Default)]
struct Draws {
    values: Vec<(usize, f64)>,
    waiting: Vec<TableDraw>,
}

/// Draws the completions of the rows of a tile, of a batch whose first row is number `first` of all.
fn complete_tile(
    evaluator: &Evaluator,
    batch: &Batch,
    tile: &ValueTile<'_>,
    (first, num_drawn, num_samples): (usize, usize, usize),
    seed: u64,
) -> Result<Draws> {
    let circuit = &**evaluator.circuit();
    let (mut kept, mut rngs) = (Vec::new(), Vec::new());
    for (i, row) in tile.rows().enumerate() {
        let (of_row, log_likelihood) = match tile.log_value(i) {
            Some(log_likelihood) => (Kept::Tile, log_likelihood),
            None => {
                let values = log_values(circuit, evaluator.params().values(), Row::Of(batch, row));
                let log_likelihood = values.log_likelihood();
                (Kept::Logarithms(values), log_likelihood)
            }
        };
        if log_likelihood == f64::NEG_INFINITY {
            let why = "the values that are kept have probability zero under the model, so nothing can be drawn given \
                       them; keep fewer, or leave the row out";
            return Err(Error::data(why).at_row((first + row) as u64));
        }
        kept.push(of_row);
        rngs.push(Rng::stream(seed, (first + row) as u64));
    }
    let shares = Vec::new();
    let draws = Draws::default();
    let cells = Cells { first: (first + tile.rows().start) * num_samples, num_samples, num_drawn };
    let mut completion = Completion { evaluator, batch, tile, kept, rngs, cells, sample: 0, shares, draws };
    for sample in 0..num_samples {
        completion.sample = sample;
        descend_rows(circuit, tile.rows().len(), &mut completion);
    }
    Ok(completion.draws)
}

/// Where the draws of a tile go.
struct Cells {
    /// The row of the answer for the first completion of the first row.
    first: usize,
    num_samples: usize,
    num_drawn: usize,
}

/// Where p_n(kept) of every unit of a row is.
enum Kept {
    /// In the tile.
    Tile,
    /// Here, in log space.
    Logarithms(LogValues),
}

/// The completions of a tile; rows are counted from its first.
struct Completion<'a> {
    evaluator: &'a Evaluator,
    batch: &'a Batch,
    tile: &'a ValueTile<'a>,
    /// Of every row,
    kept: Vec<Kept>,
    /// each with a stream of its own.
    rngs: Vec<Rng>,
    cells: Cells,
    /// Which completion of every row is being drawn.
    sample: usize,
    /// Of the children of the sum in hand; kept for its memory.
    shares: Vec<f64>,
    draws: Draws,
}

impl RowsGuide for Completion<'_> {
    /// In proportion to θ[n,c]·p_c(kept). Not by p_n(kept): far below zero its logarithm has too few digits for that.
    fn choose(&mut self, row: usize, node: NodeId, index: usize, group: &SumGroup, unit: usize) -> usize {
        let weights = weights_of(self.evaluator.params(), group, unit);
        let shares = &mut self.shares;
        shares.clear();
        match &self.kept[row] {
            Kept::Tile => {
                let panel = self.tile.panel(node, index, row);
                shares.extend(weights.iter().zip(panel).map(|(&w, &v)| f64::from(w) * f64::from(v)));
            }
            Kept::Logarithms(values) => {
                let nodes = values.nodes();
                let children = group.children.iter().flat_map(|c| &nodes[c.node.index()][c.start..c.start + c.units]);
                shares.extend(weights.iter().zip(children).map(|(&weight, value)| f64::from(weight).ln() + value));
                let top = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                shares.iter_mut().for_each(|share| *share = (*share - top).exp());
            }
        }
        self.rngs[row].weighted(shares.iter().copied())
    }

    fn input(&mut self, row: usize, var: usize, param: ParamId, unit: usize) {
        if !self.batch.is_missing(self.tile.rows().start + row, var) {
            return;
        }
        let Cells { first, num_samples, num_drawn } = self.cells;
        let cell = var * num_drawn + first + row * num_samples + self.sample;
        let (distribution, rng) = (self.evaluator.circuit().distribution(param), &mut self.rngs[row]);
        if distribution.is_table() {
            self.draws.waiting.push(TableDraw { param, unit, point: rng.uniform(), cell });
        } else {
            let value = distribution.sample(&self.evaluator.params().row(param, unit), rng);
            self.draws.values.push((cell, value));
        }
    }
}
