//! Posterior marginals: p(X_v = c | rest of the row) of every missing cell, all from one pass up and one back down.
//!
//! A missing cell is a mixture of the units of its variable's inputs, with their flows as weights (docs/MATH.md,
//! "Posterior marginals"). [`PosteriorMarginals`] holds the numbers of a batch; where categories are many,
//! [`Posterior`] shows the mixture instead, cell by cell, and computes what is asked of it.

use super::input_posteriors::InputWeights;
use crate::backend::cpu::{Evaluator, FlowTile};
use crate::data::Batch;
use crate::error::Result;

/// The distribution of one missing cell given the rest of its row: a mixture of input units.
#[derive(Clone, Copy)]
pub struct Posterior<'a> {
    evaluator: &'a Evaluator,
    var: usize,
    weights: &'a InputWeights<'a, 'a>,
    /// The sum of all weights: one, up to rounding.
    mass: f64,
}

impl<'a> Posterior<'a> {
    fn new(evaluator: &'a Evaluator, var: usize, weights: &'a InputWeights<'a, 'a>) -> Self {
        let leaves = evaluator.leaves_of(var).iter();
        let mass = leaves.flat_map(|&leaf| weights.of_leaf(leaf)).map(|&w| f64::from(w)).sum();
        Self { evaluator, var, weights, mass }
    }

    /// How many categories the variable has; `None` where it is a number.
    pub fn num_cats(&self) -> Option<u32> {
        num_cats(self.evaluator, self.var)
    }

    /// p(X_v = category | rest); zero for a variable without categories, and for one that it does not have.
    pub fn probability(&self, category: u32) -> f64 {
        let parts = self.evaluator.leaves_of(self.var).iter().map(|&leaf| {
            let weights = self.weights.of_leaf(leaf);
            let row = self.evaluator.table(self.evaluator.leaves()[leaf].param);
            let row = row.and_then(|table| table.chunks_exact(weights.len()).nth(category as usize));
            row.map_or(0.0, |row| weights.iter().zip(row).map(|(&w, &p)| f64::from(w) * f64::from(p)).sum())
        });
        parts.sum::<f64>() / self.mass
    }

    /// p(X_v = c | rest) of every category, in place of what `out` holds; nothing for a variable without any.
    pub fn probabilities(&self, out: &mut Vec<f64>) {
        out.clear();
        out.extend((0..self.num_cats().unwrap_or(0)).map(|category| self.probability(category)));
    }

    /// Mean and variance given the rest; a category counts as its number.
    pub fn mean_and_variance(&self) -> (f64, f64) {
        let units = || {
            self.evaluator.leaves_of(self.var).iter().flat_map(|&leaf| {
                let moments = self.evaluator.moments(self.evaluator.leaves()[leaf].param);
                self.weights.of_leaf(leaf).iter().map(|&w| f64::from(w) / self.mass).zip(moments)
            })
        };
        let mean: f64 = units().map(|(weight, (mean, _))| weight * mean).sum();
        // About the mean of the mixture: the second moment minus its square would lose digits far from zero.
        let spread = |(weight, &(m, variance)): (f64, &(f64, f64))| weight * (variance + (m - mean).powi(2));
        (mean, units().map(spread).sum())
    }
}

/// How many categories a variable has; `None` where one of its inputs is over numbers.
fn num_cats(evaluator: &Evaluator, var: usize) -> Option<u32> {
    let cats = |&leaf: &usize| evaluator.circuit().distribution(evaluator.leaves()[leaf].param).num_cats();
    evaluator.leaves_of(var).iter().map(cats).reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// Shows every missing cell. Rows are worked on side by side, and those of a tile one after the other.
pub(crate) fn for_each_posterior(
    evaluator: &Evaluator,
    batch: &Batch,
    see: impl Fn(usize, usize, Posterior<'_>) + Sync,
) -> Result<()> {
    let done = evaluator.with_flows(batch, |tile| {
        for row in 0..tile.rows().len() {
            let weights = InputWeights::of(evaluator, tile, batch, row)?;
            let at = tile.rows().start + row;
            for var in (0..batch.num_vars()).filter(|&var| batch.is_missing(at, var)) {
                see(at, var, Posterior::new(evaluator, var, &weights));
            }
        }
        Ok(())
    })?;
    done.into_iter().collect() // in the order of the rows: the first that is impossible is named
}

/// What is known of one missing cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marginal<'a> {
    /// The probability of each category; they sum to one.
    Categories(&'a [f32]),
    /// Of a number.
    Number {
        /// E\[X\].
        mean: f64,
        /// E\[(X − mean)²\].
        variance: f64,
    },
}

/// The posterior marginals of all missing cells of a batch; nothing is kept of cells that are not missing.
#[derive(Clone, Debug, PartialEq)]
pub struct PosteriorMarginals {
    /// In the order of rows, then of variables.
    cells: Vec<Cell>,
    /// The probabilities of the cells of each tile.
    tiles: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    row: usize,
    var: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Categories { tile: usize, start: usize, len: usize },
    Number { mean: f64, variance: f64 },
}

impl PosteriorMarginals {
    /// How many cells were missing.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns true if no cell was missing.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Row, variable and marginal of every missing cell, in the order of rows, then of variables.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, usize, Marginal<'_>)> {
        self.cells.iter().map(|cell| (cell.row, cell.var, self.marginal(cell)))
    }

    /// The marginal of a cell; `None` where it was not missing.
    pub fn get(&self, row: usize, var: usize) -> Option<Marginal<'_>> {
        let at = self.cells.binary_search_by_key(&(row, var), |cell| (cell.row, cell.var)).ok()?;
        Some(self.marginal(&self.cells[at]))
    }

    fn marginal(&self, cell: &Cell) -> Marginal<'_> {
        match cell.place {
            Place::Categories { tile, start, len } => Marginal::Categories(&self.tiles[tile][start..start + len]),
            Place::Number { mean, variance } => Marginal::Number { mean, variance },
        }
    }
}

/// The posterior marginals of all missing cells of a batch.
pub(crate) fn posterior_marginals(evaluator: &Evaluator, batch: &Batch) -> Result<PosteriorMarginals> {
    let tiles = evaluator.with_flows(batch, |tile| tile_marginals(evaluator, tile, batch))?;
    let tiles: Vec<(Vec<Cell>, Vec<f32>)> = tiles.into_iter().collect::<Result<_>>()?;
    let mut all = PosteriorMarginals { cells: Vec::new(), tiles: Vec::with_capacity(tiles.len()) };
    for (mut cells, probabilities) in tiles {
        cells.iter_mut().for_each(|cell| {
            if let Place::Categories { tile, .. } = &mut cell.place {
                *tile = all.tiles.len();
            }
        });
        all.cells.append(&mut cells);
        all.tiles.push(probabilities);
    }
    Ok(all)
}

/// Of the rows of a tile, variable by variable: flows times tables, many rows at once. All room is taken beforehand,
/// and what is found is written where it stays.
fn tile_marginals(evaluator: &Evaluator, tile: &mut FlowTile<'_>, batch: &Batch) -> Result<(Vec<Cell>, Vec<f32>)> {
    let (first, count) = (tile.rows().start, tile.rows().len());
    let mut rescued = vec![None; count];
    for (row, rescued) in rescued.iter_mut().enumerate() {
        if let InputWeights::Rescued(weights) = InputWeights::of(evaluator, tile, batch, row)? {
            *rescued = Some(weights.into_owned());
        }
    }
    let missing = |var: usize| (0..count).filter(move |&row| batch.is_missing(first + row, var));
    // Where the next cell of each row goes, so that they are in the order of rows, then of variables.
    let mut next = vec![0; count];
    let mut num_probabilities = 0;
    for var in 0..batch.num_vars() {
        let cats = num_cats(evaluator, var).unwrap_or(0) as usize;
        missing(var).for_each(|row| {
            next[row] += 1;
            num_probabilities += cats;
        });
    }
    let mut num_cells = 0;
    next.iter_mut().for_each(|next| num_cells += std::mem::replace(next, num_cells));
    let unknown = Cell { row: 0, var: 0, place: Place::Number { mean: 0.0, variance: 0.0 } };
    let (mut cells, mut probabilities) = (vec![unknown; num_cells], tile.room(num_probabilities));
    let mut place = |row: usize, var: usize, place: Place| {
        cells[next[row]] = Cell { row: first + row, var, place };
        next[row] += 1;
    };
    let (mut start, mut in_tile) = (0, Vec::with_capacity(count));
    for var in 0..batch.num_vars() {
        let cats = num_cats(evaluator, var).map(|cats| cats as usize);
        in_tile.clear();
        in_tile.extend(missing(var).filter(|&row| cats.is_some() && rescued[row].is_none()));
        if let Some(cats) = cats.filter(|_| !in_tile.is_empty()) {
            let end = start + in_tile.len() * cats;
            tile.probabilities(var, &in_tile, &mut probabilities[start..end]);
            for (&row, start) in in_tile.iter().zip((start..end).step_by(cats)) {
                place(row, var, Place::Categories { tile: 0, start, len: cats });
            }
            start = end;
        }
        for row in missing(var).filter(|&row| cats.is_none() || rescued[row].is_some()) {
            let weights = match &rescued[row] {
                Some(weights) => InputWeights::Rescued(weights[..].into()),
                None => InputWeights::Tile(tile, row),
            };
            let posterior = Posterior::new(evaluator, var, &weights);
            if cats.is_none() {
                let (mean, variance) = posterior.mean_and_variance();
                place(row, var, Place::Number { mean, variance });
                continue;
            }
            let mut all = Vec::new();
            posterior.probabilities(&mut all);
            let total: f64 = all.iter().sum();
            let to = &mut probabilities[start..start + all.len()];
            to.iter_mut().zip(&all).for_each(|(to, p)| *to = (p / total) as f32);
            place(row, var, Place::Categories { tile: 0, start, len: all.len() });
            start += all.len();
        }
    }
    Ok((cells, probabilities))
}
