//! Structures of the crate, drawn in any kind and size for property tests.

use std::sync::Arc;

use anemone::circuit::{Categorical, Distribution, Params};
use anemone::rng::Rng;
use anemone::structure::{
    HcltOptions, MutualInformation, PdOptions, RatSpnOptions, Tree, Tying, hclt, hmm_with, monarch_hmm,
    mutual_information, pd, pdhclt, rat_spn,
};
use proptest::prelude::*;

use super::cases::{Case, chained_data};

/// A structure of the crate, of any kind and size; printed whole when a law fails on it.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub kind: DrawnKind,
    pub latents: usize,
    pub cats: u32,
    /// Decides data, trees, picks, partitions and parameters.
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub enum DrawnKind {
    Hmm {
        length: usize,
        tying: Tying,
    },
    MonarchHmm {
        length: usize,
        factors: (usize, usize),
    },
    LearnedHclt {
        num_vars: usize,
        tie_inputs: bool,
        components: usize,
    },
    /// Variable v + 1 hangs from `parents[v] % (v + 1)`, under names that are shuffled.
    Hclt {
        parents: Vec<usize>,
        tie_inputs: bool,
        components: usize,
    },
    Pd {
        grid: Grid,
    },
    Pdhclt {
        grid: Grid,
    },
    /// `depth` is taken down to what the variables allow.
    RatSpn {
        num_vars: usize,
        depth: usize,
        repetitions: usize,
        pieces: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Grid {
    pub shape: Vec<usize>,
    pub intervals: Vec<usize>,
    pub limit: Option<usize>,
    /// Blocks of one unit, or of the default size.
    pub single_units: bool,
}

/// Every kind of structure over at most `num_vars` variables, with at most `latents` units and `cats` categories.
pub fn drawn(num_vars: usize, latents: usize, cats: u32) -> impl Strategy<Value = Drawn> {
    let length = 1..=num_vars;
    let tying = prop_oneof![Just(Tying::Homogeneous), Just(Tying::Inhomogeneous)];
    let kind = prop_oneof![
        (length.clone(), tying).prop_map(|(length, tying)| DrawnKind::Hmm { length, tying }),
        // Four states are the fewest, and six as many as the others have at most.
        (1..=num_vars.min(4), prop_oneof![Just((2, 2)), Just((2, 3)), Just((3, 2))])
            .prop_map(|(length, factors)| DrawnKind::MonarchHmm { length, factors }),
        (length.clone(), any::<bool>(), 1..3usize).prop_map(|(num_vars, tie_inputs, components)| {
            DrawnKind::LearnedHclt { num_vars, tie_inputs, components }
        }),
        (prop::collection::vec(0..num_vars, 0..num_vars), any::<bool>(), 1..3usize)
            .prop_map(|(parents, tie_inputs, components)| DrawnKind::Hclt { parents, tie_inputs, components }),
        grid(num_vars).prop_map(|grid| DrawnKind::Pd { grid }),
        grid(num_vars).prop_map(|grid| DrawnKind::Pdhclt { grid }),
        (2..=num_vars.max(2), 1..4usize, 1..4usize, 2..4usize).prop_map(|(num_vars, depth, repetitions, pieces)| {
            DrawnKind::RatSpn { num_vars, depth, repetitions, pieces }
        }),
    ];
    (kind, 1..=latents, 1..=cats, 0u64..1_000_000).prop_map(|(kind, latents, cats, seed)| Drawn {
        kind,
        latents,
        cats,
        seed,
    })
}

/// A line or a rectangle of at most `num_vars` variables; intervals may reach past its ends.
fn grid(num_vars: usize) -> impl Strategy<Value = Grid> {
    let line = (1..=num_vars).prop_map(|length| vec![length]);
    let rectangle = (1..=2usize, 1..=(num_vars / 2).max(1)).prop_map(|(height, width)| vec![height, width]);
    (prop_oneof![line, rectangle], (1..4usize, 1..4usize), prop::option::of(1..3usize), any::<bool>()).prop_map(
        |(shape, intervals, limit, single_units)| {
            let intervals = [intervals.0, intervals.1][..shape.len()].to_vec();
            Grid { shape, intervals, limit, single_units }
        },
    )
}

impl Drawn {
    pub fn case(&self) -> Case {
        let Self { latents, cats, seed, .. } = *self;
        let table = |_: usize| -> Arc<dyn Distribution> { Categorical::new(cats).unwrap() };
        let options = |grid: &Grid| PdOptions {
            intervals: grid.intervals.clone(),
            latents,
            max_product_connections: grid.limit,
            block_size: grid.single_units.then_some(1),
            seed,
        };
        let circuit = match &self.kind {
            DrawnKind::Hmm { length, tying } => hmm_with(*length, latents, table(0), *tying),
            DrawnKind::MonarchHmm { length, factors } => monarch_hmm(*length, *factors, table(0)),
            DrawnKind::LearnedHclt { num_vars, tie_inputs, components } => {
                let data = chained_data(*num_vars, cats, seed);
                let tree = Tree::chow_liu(&mutual_information(&data, MutualInformation::Auto).unwrap()).unwrap();
                hclt(&tree, latents, table, HcltOptions { tie_inputs: *tie_inputs, components: *components })
            }
            DrawnKind::Hclt { parents, tie_inputs, components } => {
                let mut names: Vec<usize> = (0..=parents.len()).collect();
                Rng::new(seed).shuffle(&mut names);
                let mut named = vec![None; names.len()];
                parents.iter().enumerate().for_each(|(v, p)| named[names[v + 1]] = Some(names[p % (v + 1)]));
                let options = HcltOptions { tie_inputs: *tie_inputs, components: *components };
                hclt(&Tree::from_parents(&named).unwrap(), latents, table, options)
            }
            DrawnKind::Pd { grid } => pd(&grid.shape, &options(grid), table),
            DrawnKind::Pdhclt { grid } => {
                let data = chained_data(grid.shape.iter().product(), cats, seed);
                pdhclt(&data, &grid.shape, &options(grid), MutualInformation::Counts, table)
            }
            DrawnKind::RatSpn { num_vars, depth, repetitions, pieces } => {
                let pieces = *pieces.min(num_vars);
                let depth = (*depth).min(num_vars.ilog(pieces) as usize);
                let options = RatSpnOptions { latents, depth, repetitions: *repetitions, pieces, seed };
                rat_spn(*num_vars, &options, table)
            }
        };
        let mut case = Case::new(&format!("{self:?}"), circuit.unwrap());
        case.params = Params::random(&case.circuit, seed, 2.0).unwrap();
        case
    }
}
