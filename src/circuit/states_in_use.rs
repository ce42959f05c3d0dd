//! How many states of its latents a circuit uses.
//!
//! A latent with K states may put nearly all its probability on a few of them: the others cost time and memory and say
//! nothing. The effective number exp(H(p)), p the share of each state in the top-down probabilities, tells how many
//! there are. See docs/MATH.md, "States in use". `Backend::top_down` has the numbers this is made of; the learner asks
//! for them between two batches, and `anemone inspect` for those of a model.

use super::{Circuit, NodeKind, ParamKind};
use crate::error::{Error, Result};

/// How many states are in use, latent by latent.
///
/// ```
/// use std::sync::Arc;
/// use anemone::backend::{Backend, cpu::{CpuBackend, CpuOptions}};
/// use anemone::circuit::{Categorical, Params, StatesInUse};
/// use anemone::structure::hmm;
///
/// let circuit = Arc::new(hmm(3, 4, Categorical::new(5)?)?);
/// let params = Params::random(&circuit, 1, 0.0)?; // all states alike
/// let mut backend = CpuBackend::new(circuit.clone(), &params, &CpuOptions::default())?;
/// let rows = backend.new_rows()?;
/// backend.top_down(rows)?;
/// let used = StatesInUse::new(&circuit, &backend.rows(rows)?)?;
/// assert!((used.mean() - 4.0).abs() < 1e-6);
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatesInUse {
    /// The input rows of each variable, all its blocks together; `index` is the variable. Variables that share a block
    /// are one entry, under the first of them.
    pub variables: Vec<StateUse>,
    /// Each block of mixture weights with more than one row; `index` is the block.
    pub sums: Vec<StateUse>,
}

/// The states of one latent, and how many of them are in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateUse {
    /// A variable or a parameter block.
    pub index: usize,
    /// K: how many states there are.
    pub states: usize,
    /// The effective number, in [1, K]; 0 if nothing ever passes here.
    pub in_use: f64,
}

impl StatesInUse {
    /// From the top-down probability of every param row, in the order of the layout.
    pub fn new(circuit: &Circuit, top_down: &[f64]) -> Result<Self> {
        let layout = circuit.layout();
        if top_down.len() != layout.num_rows() {
            return Err(Error::state(format!(
                "{} top-down probabilities do not fit a circuit that has {} param rows",
                top_down.len(),
                layout.num_rows()
            )));
        }
        let rows_of = |block: usize| &top_down[layout.blocks()[block].rows.clone()];
        let variables = input_blocks(circuit).into_iter().map(|(index, blocks)| {
            let rows: Vec<f64> = blocks.iter().flat_map(|&block| rows_of(block)).copied().collect();
            StateUse { index, states: rows.len(), in_use: effective_number(&rows) }
        });
        let is_latent = |block: &usize| {
            let block = &circuit.params()[*block];
            matches!(block.kind, ParamKind::Sum { .. }) && block.units > 1
        };
        let sums = (0..circuit.params().len()).filter(is_latent).map(|index| {
            let rows = rows_of(index);
            StateUse { index, states: rows.len(), in_use: effective_number(rows) }
        });
        Ok(Self { variables: variables.collect(), sums: sums.collect() })
    }

    /// The headline: how many states of a variable are in use, on average over [`StatesInUse::variables`].
    pub fn mean(&self) -> f64 {
        UseSummary::of(&self.variables).map_or(0.0, |summary| summary.mean)
    }
}

/// Several latents in short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UseSummary {
    /// How many latents.
    pub latents: usize,
    /// How many states of one are in use, on average.
    pub mean: f64,
    /// How many states one has, on average.
    pub states: f64,
    /// The one with the fewest states in use, the first if there are several.
    pub least: StateUse,
}

impl UseSummary {
    /// `None` of nothing.
    pub fn of(latents: &[StateUse]) -> Option<Self> {
        let least = *latents.iter().min_by(|a, b| a.in_use.total_cmp(&b.in_use))?;
        let mean = |number: fn(&StateUse) -> f64| latents.iter().map(number).sum::<f64>() / latents.len() as f64;
        Some(Self {
            latents: latents.len(),
            mean: mean(|latent| latent.in_use),
            states: mean(|latent| latent.states as f64),
            least,
        })
    }
}

/// exp(H(p)), p = mass/Σ mass: K if all K are alike, 1 if one has everything. What is no mass (zero, negative, not
/// finite) has no share; 0 if there is none at all.
fn effective_number(masses: &[f64]) -> f64 {
    let masses = || masses.iter().copied().filter(|mass| *mass > 0.0 && mass.is_finite());
    let (count, largest) = (masses().count(), masses().fold(0.0, f64::max));
    if count == 0 {
        return 0.0;
    }
    // Relative to the largest, the sum neither overflows nor vanishes.
    let total: f64 = masses().map(|mass| mass / largest).sum();
    let entropy: f64 = masses().map(|mass| mass / largest / total).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
    entropy.exp().clamp(1.0, count as f64) // rounding alone could leave the range
}

/// The input blocks of every variable, ascending, with the variable; those that share a block are one, named after the
/// first.
fn input_blocks(circuit: &Circuit) -> Vec<(usize, Vec<usize>)> {
    // Disjoint sets: a variable leads to one before it, up to the first of its set, which leads to itself.
    let mut leads: Vec<usize> = (0..circuit.num_vars()).collect();
    fn first(leads: &mut [usize], mut var: usize) -> usize {
        while leads[var] != var {
            leads[var] = leads[leads[var]];
            var = leads[var];
        }
        var
    }
    let mut user = vec![None; circuit.params().len()];
    for node in circuit.nodes() {
        if let NodeKind::Input { var, param } = &node.kind {
            let (a, b) = (first(&mut leads, *user[param.index()].get_or_insert(*var)), first(&mut leads, *var));
            leads[a.max(b)] = a.min(b);
        }
    }
    let mut sets = vec![Vec::new(); circuit.num_vars()];
    for (block, var) in user.into_iter().enumerate() {
        if let Some(var) = var {
            sets[first(&mut leads, var)].push(block);
        }
    }
    sets.into_iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::{Categorical, CircuitBuilder};

    #[test]
    fn equal_shares_count_all_and_a_single_one_counts_once() {
        for k in [1, 2, 7, 1024] {
            assert!((effective_number(&vec![0.3; k]) - k as f64).abs() < 1e-9 * k as f64, "{k}");
        }
        assert_eq!(effective_number(&[0.0, 0.25, 0.0]), 1.0);
        // By hand: H = ½·ln 2 + 2·¼·ln 4, so exp(H) = 2√2.
        assert!((effective_number(&[2.0, 1.0, 1.0]) - 8f64.sqrt()).abs() < 1e-12);
        assert!((effective_number(&[2e300, 1e300, 1e300, 1e-300]) - 8f64.sqrt()).abs() < 1e-12);
        assert_eq!(effective_number(&[f64::MAX, f64::MAX]), 2.0);
        assert_eq!(effective_number(&[5e-324, 5e-324]), 2.0);
    }

    #[test]
    fn what_is_no_mass_counts_nothing() {
        assert_eq!((effective_number(&[]), effective_number(&[0.0, 0.0])), (0.0, 0.0));
        assert_eq!(effective_number(&[f64::NAN, -1.0, f64::INFINITY]), 0.0);
        assert!((effective_number(&[f64::NAN, 0.5, 0.5]) - 2.0).abs() < 1e-12);
    }

    /// A product of mixtures, each of all the inputs that a variable has; `uses` names their blocks.
    fn mixtures(units: &[usize], uses: &[&[usize]]) -> Circuit {
        let mut c = CircuitBuilder::new(uses.len());
        let blocks: Vec<_> =
            units.iter().map(|&units| c.input_param(units, Categorical::new(2).unwrap()).unwrap()).collect();
        let mut mixture = |(var, uses): (usize, &&[usize])| {
            let inputs: Vec<_> = uses.iter().map(|&block| c.input(var, blocks[block]).unwrap()).collect();
            let weights = c.sum_param(1, uses.iter().map(|&block| units[block]).sum()).unwrap();
            c.sum(&inputs, weights).unwrap()
        };
        let factors: Vec<_> = uses.iter().enumerate().map(&mut mixture).collect();
        c.product(&factors).unwrap();
        c.finish().unwrap()
    }

    #[test]
    fn variables_that_share_a_table_are_one_and_blocks_of_a_variable_are_together() {
        // 1 and 3 share block 2, and 3 has one more; 0 has two of its own.
        let circuit = mixtures(&[2, 3, 4, 1, 2], &[&[0, 3], &[2], &[1], &[2, 4]]);
        assert_eq!(input_blocks(&circuit), [(0, vec![0, 3]), (1, vec![2, 4]), (2, vec![1])]);
        // Two that share nothing are joined by a third, in any order.
        for uses in [[&[0][..], &[1], &[0, 1]], [&[1], &[0, 1], &[0]], [&[0, 1], &[1], &[0]]] {
            assert_eq!(input_blocks(&mixtures(&[2, 2], &uses)), [(0, vec![0, 1])], "{uses:?}");
        }

        let mut top_down = vec![0.0; circuit.layout().num_rows()];
        top_down[..2].fill(0.5); // block 0; block 3, at row 9, has nothing
        top_down[3] = 1.0; // block 1
        top_down[5..9].fill(0.4); // block 2
        let used = StatesInUse::new(&circuit, &top_down).unwrap();
        let found: Vec<_> = used.variables.iter().map(|v| (v.index, v.states, v.in_use.round())).collect();
        assert_eq!(found, [(0, 3, 2.0), (1, 6, 4.0), (2, 3, 1.0)]);
        assert!((used.mean() - 7.0 / 3.0).abs() < 1e-12);
        let summary = UseSummary::of(&used.variables).unwrap();
        assert_eq!((summary.latents, summary.states, summary.least.index), (3, 4.0, 2));
        assert!(used.sums.is_empty(), "sums of one unit are no latents");
        assert_eq!(UseSummary::of(&used.sums), None);
        assert!(StatesInUse::new(&circuit, &top_down[1..]).is_err());
    }

    #[test]
    fn sums_of_several_units_are_latents_block_by_block() {
        let mut c = CircuitBuilder::new(2);
        let table = c.input_param(2, Categorical::new(2).unwrap()).unwrap();
        let (inner, root) = (c.sum_param(3, 2).unwrap(), c.sum_param(1, 3).unwrap());
        let factors: Vec<_> = (0..2).map(|var| c.input(var, table).unwrap()).collect();
        let product = c.product(&factors).unwrap();
        let middle = c.sum(&[product], inner).unwrap();
        c.sum(&[middle], root).unwrap();
        let circuit = c.finish().unwrap();
        let used = StatesInUse::new(&circuit, &[2.0, 0.0, 0.5, 0.0, 0.5, 1.0]).unwrap();
        assert_eq!(used.sums, [StateUse { index: 1, states: 3, in_use: 2.0 }]);
        assert_eq!(used.variables, [StateUse { index: 0, states: 2, in_use: 1.0 }]);
    }
}
