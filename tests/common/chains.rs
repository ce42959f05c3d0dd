//! Random chains of tied block-diagonal sums, with transposes and tables between: circuits of which much need not be
//! kept.

use std::sync::Arc;

use anemone::circuit::{Categorical, CircuitBuilder, Factor, NodeId, ParamId, Params, Slice, SumGroup};
use anemone::rng::Rng;

use super::cases::{Case, sum};

/// A random chain. Each step is one to three sums, of blocks of unequal sizes in any order, now and then with gaps or
/// overlaps, or over a gathered panel; each followed by a product that takes it as it is, transposed, or mapped at
/// random; the last with a table. Weights of a shape are mostly shared.
pub fn chain(seed: u64, sizes: &[usize]) -> Case {
    let made = |i: u64| Chain::new(seed + 100_000 * i, sizes).made(seed);
    (0..).find_map(made).expect("most chains are circuits")
}

struct Chain {
    circuit: CircuitBuilder,
    rng: Rng,
    length: usize,
    units: usize,
    emissions: ParamId,
    /// True if all tables are one.
    one_table: bool,
    /// Blocks made so far, for ties: (rows, columns, block).
    weights: Vec<(usize, usize, ParamId)>,
    /// How units were cut so far: (start, units) of each block.
    cuts: Vec<Vec<(usize, usize)>>,
}

impl Chain {
    fn new(seed: u64, sizes: &[usize]) -> Self {
        let mut rng = Rng::stream(seed, 777);
        let length = 3 + rng.below(4);
        let units = sizes[rng.below(sizes.len())];
        let mut circuit = CircuitBuilder::new(length);
        let emissions = circuit.input_param(units, Categorical::new(3).unwrap()).unwrap();
        let one_table = rng.below(3) == 0;
        Self { circuit, rng, length, units, emissions, one_table, weights: Vec::new(), cuts: Vec::new() }
    }

    /// The circuit, or nothing where chance has left a block without a use.
    fn made(mut self, seed: u64) -> Option<Case> {
        let mut here = self.table(self.length - 1);
        for var in (0..self.length - 1).rev() {
            let layers = 1 + self.rng.below(3);
            for layer in 0..layers {
                let mixed = self.mix(here);
                let is_last = layer + 1 == layers;
                if !is_last && self.rng.below(4) == 0 {
                    here = mixed; // a sum over a sum
                    continue;
                }
                let map = self.map();
                let mut factors = vec![Factor { node: mixed, map }];
                if is_last {
                    let table = Factor { node: self.table(var), map: None };
                    let at = self.rng.below(2);
                    factors.insert(at, table);
                }
                here = self.circuit.mapped_product(factors).unwrap();
            }
        }
        sum(&mut self.circuit, 1, &[here]);
        let mut case = Case::new(&format!("chain {seed}"), self.circuit.finish().ok()?);
        case.params = Params::random(&case.circuit, seed, 2.0).unwrap();
        Some(case)
    }

    fn table(&mut self, var: usize) -> NodeId {
        let param = match self.one_table || self.rng.below(2) == 0 {
            true => self.emissions,
            false => self.circuit.input_param(self.units, Categorical::new(3).unwrap()).unwrap(),
        };
        self.circuit.input(var, param).unwrap()
    }

    /// A sum over all of a node, or over most of it.
    fn mix(&mut self, node: NodeId) -> NodeId {
        let units = self.units;
        let half = units / 2;
        if self.rng.below(10) == 0 {
            let children =
                vec![Slice { node, start: half, units: units - half }, Slice { node, start: 0, units: half }];
            let param = self.weights(units, units);
            return self.circuit.grouped_sum(vec![SumGroup { children, param }]).unwrap();
        }
        let mut blocks = match self.cuts.is_empty() || self.rng.below(3) == 0 {
            true => self.cut(),
            false => self.cuts[self.rng.below(self.cuts.len())].clone(),
        };
        if self.rng.below(2) == 0 {
            blocks.reverse();
        }
        // Outputs of a block stay as many as they were, whatever it mixes: now and then the first units, once more.
        let strays = self.rng.below(6) == 0;
        let groups = (blocks.iter().enumerate())
            .map(|(i, &(start, size))| {
                let start = if strays && i == 0 { 0 } else { start };
                SumGroup { children: vec![Slice { node, start, units: size }], param: self.weights(size, size) }
            })
            .collect();
        self.circuit.grouped_sum(groups).unwrap()
    }

    fn cut(&mut self) -> Vec<(usize, usize)> {
        let most = [self.units, 3, self.units][self.rng.below(3)];
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < self.units {
            let size = 1 + self.rng.below(most.min(self.units - at));
            blocks.push((at, size));
            at += size;
        }
        self.cuts.push(blocks.clone());
        blocks
    }

    fn weights(&mut self, units: usize, cols: usize) -> ParamId {
        let alike: Vec<ParamId> = self.weights.iter().filter(|w| (w.0, w.1) == (units, cols)).map(|w| w.2).collect();
        if !alike.is_empty() && self.rng.below(8) != 0 {
            return alike[self.rng.below(alike.len())];
        }
        let param = self.circuit.sum_param(units, cols).unwrap();
        self.weights.push((units, cols, param));
        param
    }

    fn map(&mut self) -> Option<Arc<[u32]>> {
        let units = self.units;
        let sides: Vec<usize> = (2..units).filter(|side| units.is_multiple_of(*side)).collect();
        match self.rng.below(8) {
            0..3 => None,
            3..7 if !sides.is_empty() => {
                let cols = sides[self.rng.below(sides.len())];
                let rows = units / cols;
                Some((0..units).map(|k| ((k % rows) * cols + k / rows) as u32).collect())
            }
            _ => Some((0..units).map(|_| self.rng.below(units) as u32).collect()),
        }
    }
}
