//! Hidden Chow–Liu trees (Liu and Van den Broeck 2021).
//!
//! A tree over the variables, with a latent variable of `latents` values in place of each variable that has children.
//! The region of a variable is the vector of p(variables of its subtree | latent of its parent): for a variable with
//! children, a dense sum over the product of its own inputs and its children's regions; for a leaf of the tree, **its
//! input vector itself**: it has no latent of its own. A star is therefore a plain mixture of products.
//!
//! With several `components` it is a mixture of such trees (Meilă and Jordan 2000, with hidden variables): all have the
//! same shape, each its own latents and parameters, and only the root knows of the others. So what concerns the whole
//! row (which digit, what slant) is decided once, and no edge can lose it; see `docs/MATH.md`, "A mixture of hidden
//! trees".

use std::sync::Arc;

use super::{Tree, at_least_one, untied_inputs};
use crate::circuit::{Circuit, CircuitBuilder, Distribution, NodeId, ParamId};
use crate::error::{Error, Result};

/// Options of [`hclt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HcltOptions {
    /// All variables share one block of input distributions.
    pub tie_inputs: bool,
    /// Trees that are mixed, each with its own latents and parameters.
    pub components: usize,
}

impl Default for HcltOptions {
    fn default() -> Self {
        Self { tie_inputs: false, components: 1 }
    }
}

/// A hidden Chow–Liu tree over the variables of `tree`, whose inputs are `latents` distributions each, or a mixture of
/// several.
///
/// [`HcltParams`] tells which parameter block is whose: inputs first, component by component, in the order of the
/// variables (a single block a component if they are tied); then the sums of all variables with children, likewise,
/// with the root's among those of the first component. The root's sum is one row over the latents of all components,
/// component by component; a tree of one variable is a mixture of its inputs.
///
/// A component has nodes of its own, not a part of shared ones: log-likelihoods of whole trees differ by hundreds of
/// nats, and units of one node share a scale.
pub fn hclt(
    tree: &Tree,
    latents: usize,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
    options: HcltOptions,
) -> Result<Circuit> {
    at_least_one("latents", latents)?;
    at_least_one("components", options.components)?;
    let num_vars = tree.num_vars();
    let mut circuit = CircuitBuilder::new(num_vars);
    let mut inputs = Vec::new();
    for _ in 0..options.components {
        inputs.push(match options.tie_inputs {
            false => untied_inputs(&mut circuit, num_vars, latents, &distribution)?,
            true => vec![circuit.input_param(latents, only_distribution(num_vars, &distribution)?)?; num_vars],
        });
    }
    let vars: Vec<usize> = (0..num_vars).collect();
    add_hclts(&mut circuit, tree, &vars, &inputs, latents, Root::Single)?;
    circuit.finish()
}

/// Which parameter block of an [`hclt`] is whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcltParams {
    /// By component, then by variable.
    inputs: Vec<Vec<ParamId>>,
    sums: Vec<Vec<Option<ParamId>>>,
}

impl HcltParams {
    /// The blocks of the circuit that [`hclt`] makes of the same tree and options.
    pub fn new(tree: &Tree, options: HcltOptions) -> Self {
        let num_vars = tree.num_vars();
        let own = if options.tie_inputs { 1 } else { num_vars };
        let input = |component: usize, var: usize| ParamId((component * own + var % own) as u32);
        let inputs = (0..options.components).map(|c| (0..num_vars).map(|var| input(c, var)).collect()).collect();
        let mut next = (options.components * own) as u32;
        let mut sum = |component: usize, var: usize| {
            has_own_sum(tree, component, var, Root::Single).then(|| {
                next += 1;
                ParamId(next - 1)
            })
        };
        let sums = (0..options.components).map(|c| (0..num_vars).map(|var| sum(c, var)).collect()).collect();
        Self { inputs, sums }
    }

    /// The input distributions of a variable in a component.
    pub fn inputs(&self, component: usize, var: usize) -> ParamId {
        self.inputs[component][var]
    }

    /// The weights that mix the region of a variable in a component; `None` for a leaf of the tree, which has none. The
    /// root's are those of all components.
    pub fn sum(&self, component: usize, var: usize) -> Option<ParamId> {
        // All have sums at the same variables but the root, whose only sum is listed with the first.
        self.sums[component][var].or(self.sums[0][var])
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

/// Returns true if a variable has a sum of its own in a component. False for the leaves of the tree, except a lone
/// variable that must become a single unit, and of all roots that become one unit together only the first.
fn has_own_sum(tree: &Tree, component: usize, var: usize, root: Root) -> bool {
    match root {
        Root::Single if var == tree.root() => component == 0,
        _ => !tree.children(var).is_empty(),
    }
}

/// Adds a tree over some variables of a larger circuit: variable `v` of the tree is `vars[v]`, with the
/// `latents` distributions of block `inputs[v]`. Declares the sums' blocks in the order of the tree's variables.
pub(super) fn add_hclt(
    circuit: &mut CircuitBuilder,
    tree: &Tree,
    vars: &[usize],
    inputs: Vec<ParamId>,
    latents: usize,
    root: Root,
) -> Result<NodeId> {
    add_hclts(circuit, tree, vars, &[inputs], latents, root)
}

/// Adds a tree for each list of inputs, and mixes them at a single root.
fn add_hclts(
    circuit: &mut CircuitBuilder,
    tree: &Tree,
    vars: &[usize],
    inputs: &[Vec<ParamId>],
    latents: usize,
    root: Root,
) -> Result<NodeId> {
    debug_assert!(inputs.len() == 1 || root == Root::Single, "several trees have one root");
    debug_assert!(tree.num_vars() == vars.len() && inputs.iter().all(|inputs| inputs.len() == vars.len()));
    let mut weights = vec![vec![None; vars.len()]; inputs.len()];
    for (component, weights) in weights.iter_mut().enumerate() {
        for v in (0..vars.len()).filter(|&v| has_own_sum(tree, component, v, root)) {
            weights[v] = Some(match root {
                Root::Single if v == tree.root() => circuit.sum_param(1, inputs.len() * latents)?,
                _ => circuit.sum_param(latents, latents)?,
            });
        }
    }
    let mut tops = Vec::with_capacity(inputs.len());
    for (inputs, weights) in inputs.iter().zip(&weights) {
        let mut regions = (0..vars.len()).map(|v| circuit.input(vars[v], inputs[v])).collect::<Result<Vec<_>>>()?;
        for v in tree.bottom_up() {
            let mut factors: Vec<NodeId> = tree.children(v).iter().map(|&child| regions[child]).collect();
            factors.push(regions[v]); // still the variable's own inputs
            let product = if factors.len() > 1 { circuit.product(&factors)? } else { factors[0] };
            regions[v] = match weights[v] {
                Some(weights) if v != tree.root() => circuit.sum(&[product], weights)?,
                _ => product,
            };
        }
        tops.push(regions[tree.root()]);
    }
    match weights[0][tree.root()] {
        Some(weights) => circuit.sum(&tops, weights),
        None => Ok(tops[0]),
    }
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

    use super::super::testing::{
        assert_normalised, describe, describe_reference, numbers, probability, reference, worlds,
    };
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
        fn every_tree_is_a_distribution(
            num_vars in 1usize..8, latents in 1usize..4, tie_inputs: bool, components in 1usize..4, seed: u64,
        ) {
            let tree = random_tree(num_vars, seed);
            let circuit = hclt(&tree, latents, coins(2), HcltOptions { tie_inputs, components }).unwrap();
            assert_normalised(&circuit, 2);
        }

        #[test]
        fn components_are_trees_of_their_own_and_the_root_mixes_them(
            num_vars in 2usize..7, latents in 1usize..4, tie_inputs: bool, components in 1usize..4, seed: u64,
        ) {
            let tree = random_tree(num_vars, seed);
            let options = HcltOptions { tie_inputs, components };
            let mixture = hclt(&tree, latents, coins(2), options).unwrap();
            let params = Params::random(&mixture, seed, 2.0).unwrap();
            let (ids, single) = (HcltParams::new(&tree, options), HcltOptions { tie_inputs, components: 1 });
            let alone = hclt(&tree, latents, coins(2), single).unwrap();
            let alone_ids = HcltParams::new(&tree, single);
            let mixed = params.row(ids.sum(0, tree.root()).unwrap(), 0);

            let mut wanted = vec![0.0; worlds(num_vars, 2).count()];
            for component in 0..components {
                let own = &mixed[component * latents..(component + 1) * latents];
                let share: f32 = own.iter().sum();
                let own_params = Params::from_rows(&alone, |id, unit| {
                    match (0..num_vars).find(|&var| alone_ids.sum(0, var) == Some(id)) {
                        Some(var) if var == tree.root() => own.iter().map(|w| w / share).collect(),
                        Some(var) => params.row(ids.sum(component, var).unwrap(), unit),
                        None => {
                            let var = (0..num_vars).find(|&var| alone_ids.inputs(0, var) == id).unwrap();
                            params.row(ids.inputs(component, var), unit)
                        }
                    }
                });
                let own_params = own_params.unwrap();
                for (wanted, world) in wanted.iter_mut().zip(worlds(num_vars, 2)) {
                    *wanted += f64::from(share) * probability(&alone, &own_params, &world);
                }
            }
            for (wanted, world) in wanted.iter().zip(worlds(num_vars, 2)) {
                let found = probability(&mixture, &params, &world);
                // The shares were divided out and multiplied back in f32.
                prop_assert!((found - wanted).abs() < 1e-6, "{} is not {}", found, wanted);
            }
        }

        #[test]
        fn params_are_where_they_are_said_to_be(
            num_vars in 1usize..8, tie_inputs: bool, components in 1usize..4, seed: u64,
        ) {
            let (tree, options) = (random_tree(num_vars, seed), HcltOptions { tie_inputs, components });
            let circuit = hclt(&tree, 3, coins(2), options).unwrap();
            let params = HcltParams::new(&tree, options);
            let (mut inputs, mut sums) = (Vec::new(), Vec::new());
            for node in circuit.nodes() {
                match &node.kind {
                    NodeKind::Input { var, param } => inputs.push((*var, *param)),
                    NodeKind::Sum { groups } => sums.push(groups[0].param),
                    NodeKind::Product { .. } => {}
                }
            }
            let vars = || (0..components).flat_map(|c| (0..num_vars).map(move |var| (c, var)));
            prop_assert_eq!(inputs, vars().map(|(c, var)| (var, params.inputs(c, var))).collect::<Vec<_>>());
            let below = |c: usize| tree.bottom_up().into_iter().filter(|&v| v != tree.root()).map(move |v| (c, v));
            let wanted = (0..components).flat_map(below).chain([(components - 1, tree.root())]);
            prop_assert_eq!(sums, wanted.filter_map(|(c, v)| params.sum(c, v)).collect::<Vec<_>>());
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
                "input" => ids.inputs(0, nodes[node]["scope"][0].as_u64().unwrap() as usize) == wanted,
                "sum" => {
                    let own = *children(children(node)[0] as usize).last().unwrap() as usize;
                    ids.sum(0, nodes[own]["scope"][0].as_u64().unwrap() as usize) == Some(wanted)
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
        let error = hclt(&tree, 2, coins(2), HcltOptions { components: 0, ..HcltOptions::default() }).unwrap_err();
        assert_eq!(error.to_string(), "components = 0: must be at least 1");
        let mixed = |var: usize| -> Arc<dyn Distribution> {
            if var == 0 { Categorical::new(2).unwrap() } else { Gaussian::new(0.1, 0.0).unwrap() }
        };
        let error = hclt(&tree, 2, mixed, HcltOptions { tie_inputs: true, components: 1 }).unwrap_err();
        assert!(error.to_string().contains("tie_inputs = true: variable 1"), "{error}");
        assert!(hclt(&tree, 2, mixed, HcltOptions::default()).is_ok());
    }
}
