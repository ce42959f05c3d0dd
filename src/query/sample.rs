//! Draws rows from a circuit, root to leaves.

use super::draw::{Guide, categories_drawn, descend, narrowest};
use super::table_draws::{self, MOST_WAITING, TableDraw};
use crate::circuit::{Circuit, ParamId, Params, SumGroup};
use crate::data::Batch;
use crate::error::Result;
use crate::rng::Rng;

/// Draws `num_rows` rows. Every sum picks one child in proportion to its weights, every product follows all its
/// factors, every input draws its variable. Columns are `u8`, `u16`, `u32` or `f32`, the narrowest that fits.
pub fn sample(circuit: &Circuit, params: &Params, num_rows: usize, rng: &mut Rng) -> Result<Batch> {
    params.check(circuit)?;
    let values = vec![0.0; circuit.num_vars() * num_rows];
    let mut drawing = Drawing { circuit, params, rng, num_rows, row: 0, values, waiting: Vec::new() };
    for row in 0..num_rows {
        drawing.row = row;
        descend(circuit, &mut drawing);
        if drawing.waiting.len() >= MOST_WAITING {
            drawing.make_waiting();
        }
    }
    drawing.make_waiting();
    let of_var = |var: usize| std::iter::once(&drawing.values[var * num_rows..(var + 1) * num_rows]);
    let columns = categories_drawn(circuit).into_iter().enumerate().map(|(var, cats)| narrowest(cats, of_var(var)));
    Batch::from_columns(columns.collect())
}

struct Drawing<'a> {
    circuit: &'a Circuit,
    params: &'a Params,
    rng: &'a mut Rng,
    num_rows: usize,
    /// The row that is being drawn.
    row: usize,
    /// `[num_vars × num_rows]`, row index fastest.
    values: Vec<f64>,
    waiting: Vec<TableDraw>,
}

impl Drawing<'_> {
    fn make_waiting(&mut self) {
        let values = &mut self.values;
        table_draws::make(self.params, &mut self.waiting, |cell, value| values[cell] = value);
    }
}

impl Guide for Drawing<'_> {
    fn choose(&mut self, group: &SumGroup, unit: usize) -> usize {
        let positions = self.params.layout().block(group.param).value_positions(unit);
        self.rng.weighted(positions.map(|i| f64::from(self.params.values()[i])))
    }

    fn input(&mut self, var: usize, param: ParamId, unit: usize) {
        let cell = var * self.num_rows + self.row;
        let distribution = self.circuit.distribution(param);
        if distribution.is_table() {
            self.waiting.push(TableDraw { param, unit, point: self.rng.uniform(), cell });
        } else {
            self.values[cell] = distribution.sample(&self.params.row(param, unit), self.rng);
        }
    }
}
