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

/// Of the rows of a tile, variable by variable: flows times tables, many rows at once.
fn tile_marginals(evaluator: &Evaluator, tile: &mut FlowTile<'_>, batch: &Batch) -> Result<(Vec<Cell>, Vec<f32>)> {
    let rows = tile.rows();
    let mut rescued = vec![None; rows.len()];
    for (row, rescued) in rescued.iter_mut().enumerate() {
        if let InputWeights::Rescued(weights) = InputWeights::of(evaluator, tile, batch, row)? {
            *rescued = Some(weights.into_owned());
        }
    }
    let is_missing = |var: usize| move |row: &usize| batch.is_missing(rows.start + row, var);
    let (first, count) = (tile.rows().start, tile.rows().len());
    let (mut cells, mut probabilities, mut part, mut sums) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for var in 0..batch.num_vars() {
        let missing: Vec<usize> = (0..count).filter(is_missing(var)).collect();
        if missing.is_empty() {
            continue;
        }
        let number = num_cats(evaluator, var).is_none();
        let (in_tile, aside): (Vec<usize>, Vec<usize>) =
            missing.into_iter().partition(|&row| !number && rescued[row].is_none());
        if !in_tile.is_empty() {
            let leaves = evaluator.leaves_of(var);
            tile.mix_table(leaves[0], &in_tile, &mut sums);
            for &leaf in &leaves[1..] {
                tile.mix_table(leaf, &in_tile, &mut part);
                sums.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
            }
            let cats = sums.len() / in_tile.len();
            for (row, sums) in in_tile.iter().zip(sums.chunks_exact(cats)) {
                let start = probabilities.len();
                // What rounding has left of one, so that they sum to it.
                let scale = (1.0 / total(sums)) as f32;
                probabilities.extend(sums.iter().map(|p| p * scale));
                cells.push(Cell { row: first + row, var, place: Place::Categories { tile: 0, start, len: cats } });
            }
        }
        for row in aside {
            let weights = match &rescued[row] {
                Some(weights) => InputWeights::Rescued(weights[..].into()),
                None => InputWeights::Tile(tile, row),
            };
            let posterior = Posterior::new(evaluator, var, &weights);
            let place = match number {
                true => {
                    let (mean, variance) = posterior.mean_and_variance();
                    Place::Number { mean, variance }
                }
                false => {
                    let (start, mut all) = (probabilities.len(), Vec::new());
                    posterior.probabilities(&mut all);
                    let total: f64 = all.iter().sum();
                    probabilities.extend(all.iter().map(|p| (p / total) as f32));
                    Place::Categories { tile: 0, start, len: all.len() }
                }
            };
            cells.push(Cell { row: first + row, var, place });
        }
    }
    cells.sort_unstable_by_key(|cell| (cell.row, cell.var));
    Ok((cells, probabilities))
}

/// Σ of single-precision numbers, eight at a time and in double precision.
fn total(values: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&v| f64::from(v)).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &v)| *lane += f64::from(v));
    }
    rest + lanes.iter().sum::<f64>()
}
