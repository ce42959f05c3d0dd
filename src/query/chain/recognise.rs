//! Finds the chain in a circuit, or says why there is none.

use super::Chain;
use super::transition::{Block, Map, Transition};
use crate::circuit::{Circuit, NodeId, NodeKind, ParamId, Params, SumGroup};
use crate::error::{Error, Result};

impl<'a> Chain<'a> {
    /// The chain that a circuit is, with these parameters. A circuit that is none is an error.
    pub fn of(circuit: &Circuit, params: &'a Params) -> Result<Self> {
        params.check(circuit)?;
        let why = |what: &str| {
            Error::unsupported(format!(
                "the circuit is not a chain ({what}): next symbols and constraints are for hidden Markov models over \
                 categories (structures hmm and monarch)"
            ))
        };
        let shape = Shape::of(circuit).map_err(|what| why(&what))?;
        let Shape { initial, mut emissions, mut transitions } = shape;
        let num_vars = circuit.num_vars();
        let table = circuit.distribution(emissions[0]);
        let num_symbols = table.num_cats().filter(|_| table.is_table()).ok_or_else(|| why("inputs are no tables"))?;
        let alike = |id: &ParamId| {
            let other = circuit.distribution(*id);
            other.is_table() && other.num_cats() == Some(num_symbols)
        };
        if !emissions.iter().all(alike) {
            return Err(why("variables have different categories"));
        }
        let is_homogeneous =
            emissions.iter().all(|id| *id == emissions[0]) && transitions.windows(2).all(|w| w[0] == w[1]);
        if is_homogeneous {
            emissions.truncate(1);
            transitions.truncate(1);
        }
        let initial = params.row(initial, 0).into_iter().map(f64::from).collect();
        Ok(Self {
            params,
            initial,
            emissions,
            transitions,
            num_vars,
            num_symbols: num_symbols as usize,
            is_homogeneous,
        })
    }
}

/// The parameters of a chain, step by step.
struct Shape {
    initial: ParamId,
    emissions: Vec<ParamId>,
    transitions: Vec<Transition>,
}

impl Shape {
    fn of(circuit: &Circuit) -> std::result::Result<Self, String> {
        let NodeKind::Sum { groups } = &circuit.node(circuit.root()).kind else {
            return Err("its root is no sum".into());
        };
        let [group] = &groups[..] else { return Err("its root has several groups".into()) };
        let mut at = whole_child(circuit, group).ok_or("its root mixes several vectors")?;
        let num_states = circuit.node(at).units;
        let mut shape = Self { initial: group.param, emissions: Vec::new(), transitions: Vec::new() };
        loop {
            let var = shape.emissions.len();
            let expected = |found: usize, param: ParamId| match found == var {
                true => Ok(param),
                false => Err(format!("variable {found} stands where variable {var} is expected")),
            };
            match &circuit.node(at).kind {
                NodeKind::Input { var, param } => {
                    shape.emissions.push(expected(*var, *param)?);
                    return Ok(shape);
                }
                NodeKind::Product { factors } if factors.len() == 2 => {
                    let is_input = |of: usize| matches!(circuit.node(factors[of].node).kind, NodeKind::Input { .. });
                    let (input, rest) = match (is_input(0), is_input(1)) {
                        (true, false) => (&factors[0], &factors[1]),
                        (false, true) => (&factors[1], &factors[0]),
                        _ => return Err(format!("a product over variable {var} has no input and one sum")),
                    };
                    let NodeKind::Input { var: found, param } = circuit.node(input.node).kind else {
                        return Err("a factor is no input".into());
                    };
                    if input.map.is_some() {
                        return Err(format!("the input of variable {var} is permuted"));
                    }
                    shape.emissions.push(expected(found, param)?);
                    if circuit.node(rest.node).units != num_states {
                        return Err("units are left out or repeated".into());
                    }
                    let first = rest.map.iter().map(|map| Map::Permuted(map.clone())).collect();
                    let (maps, next) = maps_below(circuit, rest.node, first)?;
                    if circuit.node(next).units != num_states {
                        return Err(format!("variables {var} and {} have different numbers of states", var + 1));
                    }
                    shape.transitions.push(Transition { maps, num_states });
                    at = next;
                }
                NodeKind::Product { factors } => {
                    return Err(format!("a product has {} factors where a chain has two", factors.len()));
                }
                NodeKind::Sum { .. } => return Err("sums follow each other without an input".into()),
            }
        }
    }
}

/// The maps from a node down to the next one that has an input in it, and that node.
fn maps_below(circuit: &Circuit, from: NodeId, mut maps: Vec<Map>) -> std::result::Result<(Vec<Map>, NodeId), String> {
    let mut at = from;
    loop {
        match &circuit.node(at).kind {
            NodeKind::Sum { groups } => {
                let child = groups[0].children[0].node;
                let mut blocks = Vec::new();
                for group in groups {
                    match &group.children[..] {
                        [slice] if slice.node == child => blocks.push(Block { param: group.param, from: slice.start }),
                        _ => return Err("a sum mixes several vectors".into()),
                    }
                }
                maps.push(Map::Mixed { blocks, below: circuit.node(child).units });
                at = child;
            }
            NodeKind::Product { factors } if factors.len() == 1 => {
                maps.extend(factors[0].map.iter().map(|map| Map::Permuted(map.clone())));
                if circuit.node(factors[0].node).units != circuit.node(at).units {
                    return Err("units are left out or repeated".into());
                }
                at = factors[0].node;
            }
            _ => return Ok((maps, at)),
        }
    }
}

/// The node that a group mixes all units of, if it is one.
fn whole_child(circuit: &Circuit, group: &SumGroup) -> Option<NodeId> {
    match &group.children[..] {
        [slice] if slice.start == 0 && slice.units == circuit.node(slice.node).units => Some(slice.node),
        _ => None,
    }
}
