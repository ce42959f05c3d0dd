//! Draws the missing cells of rows given the others: exact samples of p(missing | kept).
//!
//! One pass up gives p_n(kept) of every unit; on the way down a sum then takes child c with probability
//! θ[n,c]·p_c(kept)/p_n(kept) (docs/MATH.md, "Conditional samples"). `sample` is the case in which everything is
//! missing.

use rayon::prelude::*;

use super::draw::{Guide, descend, narrowest};
use super::table_draws::{self, MOST_WAITING, TableDraw};
use crate::circuit::log_values::{LogValues, Row, log_values};
use crate::circuit::{Circuit, ParamId, Params, SumGroup};
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
    let rows: Vec<usize> = (0..batch.num_rows()).collect();
    for rows in rows.chunks(at_once) {
        let complete =
            |&row: &usize| complete_row(circuit, params, batch, row, num_samples, Rng::stream(seed, row as u64));
        let completed: Vec<Result<Draws>> = rows.par_iter().map(complete).collect();
        let mut waiting = Vec::new();
        for draws in completed {
            let draws = draws?; // in the order of the rows: the first one is named
            draws.values.into_iter().for_each(|(cell, value)| values[cell] = value);
            waiting.extend(draws.waiting);
        }
        table_draws::make(params, &mut waiting, |cell, value| values[cell] = value);
    }
    let columns = (0..num_vars).map(|var| narrowest(circuit, var, &values[var * num_drawn..(var + 1) * num_drawn]));
    Batch::from_columns(columns.collect())
}

/// What was drawn for a row, by cell of `[num_vars × num_drawn]`.
#[derive(Default)]
struct Draws {
    values: Vec<(usize, f64)>,
    waiting: Vec<TableDraw>,
}

fn complete_row(
    circuit: &Circuit,
    params: &Params,
    batch: &Batch,
    row: usize,
    num_samples: usize,
    rng: Rng,
) -> Result<Draws> {
    let kept = log_values(circuit, params.values(), Row::Of(batch, row));
    if kept.log_likelihood() == f64::NEG_INFINITY {
        let why = "the values that are kept have probability zero under the model, so nothing can be drawn given them; \
                   keep fewer, or leave the row out";
        return Err(Error::data(why).at_row(row as u64));
    }
    let num_drawn = batch.num_rows() * num_samples;
    let mut completion = Completion {
        circuit,
        params,
        batch,
        row,
        kept,
        rng,
        num_drawn,
        at: 0,
        shares: Vec::new(),
        draws: Draws::default(),
    };
    for sample in 0..num_samples {
        completion.at = row * num_samples + sample;
        descend(circuit, &mut completion);
    }
    Ok(completion.draws)
}

struct Completion<'a> {
    circuit: &'a Circuit,
    params: &'a Params,
    batch: &'a Batch,
    row: usize,
    /// log p_n(kept) of every unit.
    kept: LogValues,
    rng: Rng,
    num_drawn: usize,
    /// The row of the answer that is being drawn.
    at: usize,
    /// Of the children of the sum in hand; kept for its memory.
    shares: Vec<f64>,
    draws: Draws,
}

impl Guide for Completion<'_> {
    /// In proportion to θ[n,c]·p_c(kept). Not by p_n(kept): far below zero its logarithm has too few digits for that.
    fn choose(&mut self, group: &SumGroup, unit: usize) -> usize {
        let block = self.params.layout().block(group.param);
        let weights = block.value_positions(unit).map(|i| f64::from(self.params.values()[i]));
        let nodes = self.kept.nodes();
        let children = group.children.iter().flat_map(|c| &nodes[c.node.index()][c.start..c.start + c.units]);
        self.shares.clear();
        self.shares.extend(weights.zip(children).map(|(weight, log_value)| weight.ln() + log_value));
        let top = self.shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.shares.iter_mut().for_each(|share| *share = (*share - top).exp());
        self.rng.weighted(self.shares.iter().copied())
    }

    fn input(&mut self, var: usize, param: ParamId, unit: usize) {
        if !self.batch.is_missing(self.row, var) {
            return;
        }
        let cell = var * self.num_drawn + self.at;
        let distribution = self.circuit.distribution(param);
        if distribution.is_table() {
            self.draws.waiting.push(TableDraw { param, unit, point: self.rng.uniform(), cell });
        } else {
            let value = distribution.sample(&self.params.row(param, unit), &mut self.rng);
            self.draws.values.push((cell, value));
        }
    }
}
