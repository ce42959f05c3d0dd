//! Hidden Chow–Liu trees (Liu and Van den Broeck 2021).
//!
//! A tree over the variables, with a latent variable of `latents` values in place of each variable that has children.
//! The region of a variable is the vector of p(variables of its subtree | latent of its parent): for a variable with
//! children, a dense sum over the product of its own inputs and its children's regions; for a leaf of the tree, **its
//! input vector itself**: it has no latent of its own. A star is therefore a plain mixture of products.

use std::sync::Arc;

use super::{Tree, at_least_one, untied_inputs};
use crate::circuit::{Circuit, CircuitBuilder, Distribution, NodeId, ParamId};
use crate::error::{Error, Result};

/// Options of [`hclt`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HcltOptions {
    /// All variables share one block of input distributions.
    pub tie_inputs: bool,
}

/// A hidden Chow–Liu tree over the variables of `tree`, whose inputs are `latents` distributions each.
///
/// [`HcltParams`] tells which parameter block is whose: inputs first, in the order of the variables (a single block if
/// they are tied), then the sums of the root and of all variables with children, in the order of the variables. The
/// root's sum is one row; a tree of one variable is a mixture of its inputs.
pub fn hclt(
    tree: &Tree,
    latents: usize,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
    options: HcltOptions,
) -> Result<Circuit> {
    at_least_one("latents", latents)?;
    let num_vars = tree.num_vars();
    let mut circuit = CircuitBuilder::new(num_vars);
    let inputs = match options.tie_inputs {
        false => untied_inputs(&mut circuit, num_vars, latents, distribution)?,
        true => vec![circuit.input_param(latents, only_distribution(num_vars, distribution)?)?; num_vars],
    };
    let vars: Vec<usize> = (0..num_vars).collect();
    add_hclt(&mut circuit, tree, &vars, &inputs, Root::Single)?;
    circuit.finish()
}

/// Which parameter block of an [`hclt`] is whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcltParams {
    inputs: Vec<ParamId>,
    sums: Vec<Option<ParamId>>,
}

impl HcltParams {
    /// The blocks of the circuit that [`hclt`] makes of the same tree and options.
    pub fn new(tree: &Tree, options: HcltOptions) -> Self {
        let num_vars = tree.num_vars();
        let inputs = (0..num_vars).map(|var| ParamId(if options.tie_inputs { 0 } else { var as u32 })).collect();
        let mut next = if options.tie_inputs { 1 } else { num_vars as u32 };
        let sums = (0..num_vars).map(|var| {
            has_sum(tree, var, Root::Single).then(|| {
                next += 1;
                ParamId(next - 1)
            })
        });
        Self { sums: sums.collect(), inputs }
    }

    /// The input distributions of a variable.
    pub fn inputs(&self, var: usize) -> ParamId {
        self.inputs[var]
    }

    /// The weights that mix the region of a variable; `None` for a leaf of the tree, which has none.
    pub fn sum(&self, var: usize) -> Option<ParamId> {
        self.sums[var]
    }
}

/// What the top of a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// One unit: the root of a circuit.
    Single,
    /// As many units as inputs: a region inside a larger circuit, where a lone variable is its bare input vector.
    Latents,
}

/// Whether a variable has a sum: not the leaves of the tree, except a lone variable that must become a single unit.
fn has_sum(tree: &Tree, var: usize, root: Root) -> bool {
    !tree.children(var).is_empty() || (var == tree.root() && root == Root::Single)
}

/// Adds a tree over some variables of a larger circuit: variable `v` of the tree is `vars[v]`, with the distributions
/// of block `inputs[v]`. Declares the sums' blocks in the order of the tree's variables.
pub(super) fn add_hclt(
    circuit: &mut CircuitBuilder,
    tree: &Tree,
    vars: &[usize],
    inputs: &[ParamId],
    root: Root,
) -> Result<NodeId> {
    debug_assert!(tree.num_vars() == vars.len() && vars.len() == inputs.len());
    let leaves = (0..vars.len()).map(|v| circuit.input(vars[v], inputs[v])).collect::<Result<Vec<_>>>()?;
    let latents = circuit.units(leaves[0]);
    let mut weights = vec![None; vars.len()];
    for v in (0..vars.len()).filter(|&v| has_sum(tree, v, root)) {
        let units = if v == tree.root() && root == Root::Single { 1 } else { latents };
        weights[v] = Some(circuit.sum_param(units, latents)?);
    }
    let mut regions = leaves;
    for v in tree.bottom_up() {
        let Some(weights) = weights[v] else { continue };
        let mut factors: Vec<NodeId> = tree.children(v).iter().map(|&child| regions[child]).collect();
        factors.push(regions[v]); // still the variable's own inputs
        let product = if factors.len() > 1 { circuit.product(&factors)? } else { factors[0] };
        regions[v] = circuit.sum(&[product], weights)?;
    }
    Ok(regions[tree.root()])
}

/// The distribution that all variables have, or an error that names two which differ.
fn only_distribution(
    num_vars: usize,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
) -> Result<Arc<dyn Distribution>> {
    let first = distribution(0);
    for var in 1..num_vars {
        let other = distribution(var);
        if (other.name(), other.options()) != (first.name(), first.options()) {
            return Err(Error::option(format!(
                "tie_inputs = true: variable {var} has distribution {other:?}, variable 0 {first:?}; \
                 variables that share parameters need the same one"
            )));
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{assert_normalised, describe, describe_reference, numbers, probability, reference};
    use super::super::{MutualInformation, mutual_information};
    use super::*;
    use crate::circuit::{Categorical, Gaussian, NodeKind, Params};
    use crate::data::Batch;
    use crate::error::ErrorKind;
    use crate::rng::Rng;

    fn coins(cats: u32) -> impl Fn(usize) -> Arc<dyn Distribution> {
        move |_| Categorical::new(cats).unwrap()
    }

    fn random_tree(num_vars: usize, seed: u64) -> Tree {
        let mut rng = Rng::new(seed);
        let parents: Vec<_> = (0..num_vars).map(|v| (v > 0).then(|| rng.below(v))).collect();
        Tree::from_parents(&parents).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_tree_is_a_distribution(num_vars in 1usize..8, latents in 1usize..4, tie_inputs: bool, seed: u64) {
            let tree = random_tree(num_vars, seed);
            let circuit = hclt(&tree, latents, coins(2), HcltOptions { tie_inputs }).unwrap();
            assert_normalised(&circuit, 2);
        }

        #[test]
        fn params_are_where_they_are_said_to_be(num_vars in 1usize..8, tie_inputs: bool, seed: u64) {
            let (tree, options) = (random_tree(num_vars, seed), HcltOptions { tie_inputs });
            let circuit = hclt(&tree, 3, coins(2), options).unwrap();
            let params = HcltParams::new(&tree, options);
            let mut sums = Vec::new();
            for node in circuit.nodes() {
                match &node.kind {
                    NodeKind::Input { var, param } => prop_assert_eq!(params.inputs(*var), *param),
                    NodeKind::Sum { groups } => sums.push(groups[0].param),
                    NodeKind::Product { .. } => {}
                }
            }
            let wanted: Vec<_> = tree.bottom_up().into_iter().filter_map(|v| params.sum(v)).collect();
            prop_assert_eq!(sums, wanted);
        }
    }

    #[test]
    fn a_star_is_a_mixture_of_products() {
        let tree = Tree::from_parents(&[None, Some(0), Some(0)]).unwrap();
        let circuit = hclt(&tree, 4, coins(2), HcltOptions::default()).unwrap();
        assert_eq!(describe(&circuit), "1[(x0*x1*x2)]");
    }

    #[test]
    fn data_gives_the_reference_structure_and_its_parameters_the_reference_likelihood() {
        let file = reference("hclt");
        let rows = numbers(&file["structure_data"]);
        let values: Vec<u8> = rows.iter().flatten().map(|&x| x as u8).collect();
        let data = Batch::from_rows(&values, 7).unwrap();
        let how = MutualInformation::SoftBins { num_bins: 5, sigma: 0.1, chunk_size: 64 };
        let tree = Tree::chow_liu(&mutual_information(&data, how).unwrap()).unwrap();
        let circuit = hclt(&tree, 4, coins(5), HcltOptions::default()).unwrap();
        assert_eq!(describe(&circuit), describe_reference(&file));

        // Of the reference's sums, the one of a variable is the one directly over a product with its inputs.
        let nodes = file["nodes"].as_array().unwrap();
        let children = |node: usize| numbers(&serde_json::json!([nodes[node]["children"]])).remove(0);
        let ids = HcltParams::new(&tree, HcltOptions::default());
        let find = |wanted: ParamId| {
            (0..nodes.len()).find(|&node| match nodes[node]["type"].as_str().unwrap() {
                "input" => ids.inputs(nodes[node]["scope"][0].as_u64().unwrap() as usize) == wanted,
                "sum" => {
                    let own = *children(children(node)[0] as usize).last().unwrap() as usize;
                    ids.sum(nodes[own]["scope"][0].as_u64().unwrap() as usize) == Some(wanted)
                }
                _ => false,
            })
        };
        let params = Params::from_rows(&circuit, |id, unit| {
            let node = find(id).unwrap().to_string();
            numbers(&file["initial_params"][node])[unit].iter().map(|&x| x as f32).collect()
        });
        let params = params.unwrap();
        let wanted = numbers(&serde_json::json!([file["oracle_float64"]["log_likelihood"]])).remove(0);
        for (row, wanted) in numbers(&file["data"]).iter().zip(wanted) {
            let row: Vec<_> = row.iter().map(|&x| Some(x)).collect();
            let ours = probability(&circuit, &params, &row).ln();
            assert!((ours - wanted).abs() < 1e-9, "{ours} is not {wanted}");
        }
    }

    #[test]
    fn options_without_meaning_are_refused() {
        let tree = Tree::from_parents(&[None, Some(0)]).unwrap();
        let error = hclt(&tree, 0, coins(2), HcltOptions::default()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Option, "latents = 0: must be at least 1"));
        let mixed = |var: usize| -> Arc<dyn Distribution> {
            if var == 0 { Categorical::new(2).unwrap() } else { Gaussian::new(0.1, 0.0).unwrap() }
        };
        let error = hclt(&tree, 2, mixed, HcltOptions { tie_inputs: true }).unwrap_err();
        assert!(error.to_string().contains("tie_inputs = true: variable 1"), "{error}");
        assert!(hclt(&tree, 2, mixed, HcltOptions::default()).is_ok());
    }
}
