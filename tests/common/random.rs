//! Random circuits that no structure makes: shared regions, ties, maps, groups and slices, with or without densities.

use std::sync::Arc;

use anemone::circuit::{
    Categorical, CircuitBuilder, DiscreteLogistic, Distribution, Factor, Gaussian, NodeId, ParamId, Params, Slice,
    SumGroup,
};
use anemone::rng::Rng;

use super::cases::{Case, sum};

/// A random circuit over one to four variables: shared regions, ties, maps, groups, slices.
pub fn categorical(seed: u64) -> Case {
    let mut rng = Rng::stream(seed, 1234);
    let num_vars = 1 + rng.below(4);
    let domains = (0..num_vars).map(|_| Domain::Cats(2 + rng.below(2) as u32)).collect();
    made(seed, rng, domains, "random")
}

/// A random circuit in which some variables are real numbers, and some bins of a line.
pub fn with_densities(seed: u64) -> Case {
    let mut rng = Rng::stream(seed, 4321);
    let num_vars = 1 + rng.below(4);
    let mut domains: Vec<Domain> = (0..num_vars)
        .map(|_| match rng.below(4) {
            0 => Domain::Cats(3),
            1 => Domain::Bins(5),
            _ => Domain::Real,
        })
        .collect();
    domains[rng.below(num_vars)] = Domain::Real;
    made(seed, rng, domains, "random with densities")
}

/// What a variable may be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Domain {
    Cats(u32),
    /// Categories on a line: discrete logistics, and now and then a table over the same ones.
    Bins(u32),
    Real,
}

fn made(seed: u64, rng: Rng, domains: Vec<Domain>, name: &str) -> Case {
    let num_vars = domains.len();
    let mut maker =
        Maker { circuit: CircuitBuilder::new(num_vars), rng, domains, inputs: Vec::new(), weights: Vec::new() };
    let top = maker.region(&(0..num_vars).collect::<Vec<_>>(), &mut Vec::new());
    sum(&mut maker.circuit, 1, &[top]);
    let mut case = Case::new(&format!("{name} {seed}"), maker.circuit.finish().unwrap());
    case.params = Params::random(&case.circuit, seed, 2.0).unwrap();
    case
}

struct Maker {
    circuit: CircuitBuilder,
    rng: Rng,
    domains: Vec<Domain>,
    /// Blocks made so far, for ties: (what they are over, block).
    inputs: Vec<(Domain, ParamId)>,
    /// (columns, block).
    weights: Vec<(usize, ParamId)>,
}

impl Maker {
    /// A node over `vars`; sometimes one that is already there.
    fn region(&mut self, vars: &[usize], made: &mut Vec<(Vec<usize>, NodeId)>) -> NodeId {
        if let Some((_, node)) = made.iter().find(|(scope, _)| scope == vars)
            && self.rng.below(2) == 0
        {
            return *node;
        }
        let node = if let [var] = *vars {
            let param = self.input_param(self.domains[var]);
            let input = self.circuit.input(var, param).unwrap();
            if self.rng.below(3) == 0 { self.mix(&[input]) } else { input }
        } else {
            let ways = 1 + self.rng.below(2);
            let products: Vec<NodeId> = (0..ways).map(|_| self.cut(vars, made)).collect();
            self.mix(&products)
        };
        made.push((vars.to_vec(), node));
        node
    }

    /// A product over two parts, with maps where their units differ or by chance.
    fn cut(&mut self, vars: &[usize], made: &mut Vec<(Vec<usize>, NodeId)>) -> NodeId {
        let at = 1 + self.rng.below(vars.len() - 1);
        let parts = [self.region(&vars[..at], made), self.region(&vars[at..], made)];
        let [a, b] = parts.map(|part| self.circuit.units(part));
        if a == b && self.rng.below(2) == 0 {
            return self.circuit.product(&parts).unwrap();
        }
        let units = 1 + self.rng.below(4);
        let factors = parts.map(|node| {
            let there = self.circuit.units(node);
            let map: Vec<u32> = (0..units).map(|_| self.rng.below(there) as u32).collect();
            Factor { node, map: Some(map.into()) }
        });
        self.circuit.mapped_product(factors.into()).unwrap()
    }

    /// A sum in one to three groups, each over a slice of every child.
    fn mix(&mut self, children: &[NodeId]) -> NodeId {
        let groups = (0..1 + self.rng.below(3)).map(|_| {
            let slices: Vec<Slice> = children
                .iter()
                .map(|&node| {
                    let there = self.circuit.units(node);
                    let start = self.rng.below(there);
                    Slice { node, start, units: 1 + self.rng.below(there - start) }
                })
                .collect();
            let param = self.sum_param(slices.iter().map(|s| s.units).sum());
            SumGroup { children: slices, param }
        });
        let groups = groups.collect();
        self.circuit.grouped_sum(groups).unwrap()
    }

    fn input_param(&mut self, domain: Domain) -> ParamId {
        let tied = self.inputs.iter().find(|(d, _)| *d == domain).map(|(_, param)| *param);
        if let Some(param) = tied.filter(|_| self.rng.below(3) == 0) {
            return param;
        }
        let units = 1 + self.rng.below(3);
        let distribution: Arc<dyn Distribution> = match domain {
            Domain::Cats(cats) => Categorical::new(cats).unwrap(),
            Domain::Bins(cats) if self.rng.below(4) == 0 => Categorical::new(cats).unwrap(),
            Domain::Bins(cats) => DiscreteLogistic::new(cats, (-1.0, 1.0), 0.05).unwrap(),
            Domain::Real => Gaussian::new(0.1, 0.5).unwrap(),
        };
        let param = self.circuit.input_param(units, distribution).unwrap();
        self.inputs.push((domain, param));
        param
    }

    fn sum_param(&mut self, cols: usize) -> ParamId {
        let tied = self.weights.iter().find(|(c, _)| *c == cols).map(|(_, param)| *param);
        if let Some(param) = tied.filter(|_| self.rng.below(2) == 0) {
            return param;
        }
        let units = 1 + self.rng.below(2);
        let param = self.circuit.sum_param(units, cols).unwrap();
        self.weights.push((cols, param));
        param
    }
}
