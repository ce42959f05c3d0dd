//! The way from one state to the next: sums and permutations, each a linear map.
//!
//! A dense transition is one sum; a Monarch transition is two block-diagonal sums with permutations between. Nothing of
//! it is multiplied out: both directions apply the maps one after the other. In logarithms a vector is scaled by its
//! largest entry on the way; entries that this loses are added up once more, each by itself.

use std::sync::Arc;

use crate::circuit::{ParamId, Params};

/// p(next state | state) as a product of maps, the first nearest to the present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub maps: Vec<Map>,
    /// How many states.
    pub num_states: usize,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// Unit `k` is unit `permutation[k]` of what follows.
    Permuted(Arc<[u32]>),
    /// Blocks of weights, each over consecutive units of what follows; `below` units in all.
    Mixed { blocks: Vec<Block>, below: usize },
}

/// Units that mix the same units of what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub param: ParamId,
    /// The first unit that is mixed.
    pub from: usize,
}

impl Transition {
    /// Forwards: y\[j\] = Σ_i x\[i\]·A\[i, j\].
    pub fn push(&self, params: &Params, x: &[f64]) -> Vec<f64> {
        self.maps.iter().fold(x.to_vec(), |x, map| match map {
            Map::Permuted(permutation) => {
                let mut y = vec![0.0; x.len()];
                permutation.iter().zip(&x).for_each(|(&to, p)| y[to as usize] += p);
                y
            }
            Map::Mixed { blocks, below } => {
                let mut y = vec![0.0; *below];
                let mut above = &x[..];
                for block in blocks {
                    let (weights, rows, cols) = matrix(params, block.param);
                    let (here, rest) = above.split_at(rows);
                    for (&p, row) in here.iter().zip(weights.chunks_exact(cols)).filter(|(p, _)| **p > 0.0) {
                        y[block.from..][..cols].iter_mut().zip(row).for_each(|(y, &w)| *y += p * f64::from(w));
                    }
                    above = rest;
                }
                y
            }
        })
    }

    /// Backwards: y\[i\] = Σ_j A\[i, j\]·x\[j\].
    pub fn pull(&self, params: &Params, x: &[f64]) -> Vec<f64> {
        self.maps.iter().rev().fold(x.to_vec(), |x, map| match map {
            Map::Permuted(permutation) => permutation.iter().map(|&from| x[from as usize]).collect(),
            Map::Mixed { blocks, .. } => {
                let mut y = Vec::with_capacity(self.num_states);
                for block in blocks {
                    let (weights, _, cols) = matrix(params, block.param);
                    let x = &x[block.from..][..cols];
                    y.extend(weights.chunks_exact(cols).map(|row| dot(row, x)));
                }
                y
            }
        })
    }

    /// Row `state` of A.
    pub fn row(&self, params: &Params, state: usize) -> Vec<f64> {
        self.push(params, &self.one(state))
    }

    /// [`push`](Self::push) of logarithms: y\[j\] = log Σ_i exp(x\[i\])·A\[i, j\], whatever lies between the entries.
    pub fn log_push(&self, params: &Params, x: &[f64]) -> Vec<f64> {
        in_logs(x, |x| self.push(params, x), |to| self.pull(params, &self.one(to)))
    }

    /// [`pull`](Self::pull) of logarithms: y\[i\] = log Σ_j A\[i, j\]·exp(x\[j\]).
    pub fn log_pull(&self, params: &Params, x: &[f64]) -> Vec<f64> {
        in_logs(x, |x| self.pull(params, x), |from| self.row(params, from))
    }

    fn one(&self, state: usize) -> Vec<f64> {
        let mut one = vec![0.0; self.num_states];
        one[state] = 1.0;
        one
    }
}

/// Below this share of the largest entry, terms may have been lost to underflow.
const DOUBTFUL: f64 = 1e-200;

/// A linear map with weights that are not negative, of logarithms. `weights` are those of one entry of the answer.
fn in_logs(x: &[f64], map: impl Fn(&[f64]) -> Vec<f64>, weights: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return vec![largest; x.len()];
    }
    let scaled: Vec<f64> = x.iter().map(|x| (x - largest).exp()).collect();
    let is_certain = scaled.iter().zip(x).all(|(p, x)| *p > DOUBTFUL || *x == f64::NEG_INFINITY);
    let entry = |(at, y): (usize, f64)| match y > DOUBTFUL || (is_certain && y == 0.0) {
        true => largest + y.ln(),
        false => log_sum(weights(at).iter().zip(x).map(|(w, x)| w.ln() + x)),
    };
    map(&scaled).into_iter().enumerate().map(entry).collect()
}

/// log Σ exp of some logarithms; −∞ if there is none.
pub(super) fn log_sum(terms: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = terms.clone().fold(f64::NEG_INFINITY, f64::max);
    match largest == f64::NEG_INFINITY {
        true => largest,
        false => largest + terms.map(|term| (term - largest).exp()).sum::<f64>().ln(),
    }
}

/// Weights `[rows × cols]`, and their shape.
fn matrix(params: &Params, param: ParamId) -> (&[f32], usize, usize) {
    let block = params.layout().block(param);
    (&params.values()[block.values.clone()], block.units(), block.values_per_row)
}

/// In four lanes, so that it runs side by side; the order of addition is fixed.
fn dot(row: &[f32], x: &[f64]) -> f64 {
    let mut lanes = [0.0f64; 4];
    let (rows, xs) = (row.chunks_exact(4), x.chunks_exact(4));
    let rest: f64 = rows.remainder().iter().zip(xs.remainder()).map(|(&w, x)| f64::from(w) * x).sum();
    for (row, x) in rows.zip(xs) {
        (0..4).for_each(|lane| lanes[lane] += f64::from(row[lane]) * x[lane]);
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest
}
