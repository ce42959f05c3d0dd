//! Poon–Domingos circuits: boxes of a grid, cut in two in every way (Poon and Domingos 2011).
//!
//! Variables lie on a grid: the pixels of an image, the positions of a sequence. Each box that can arise by cutting at
//! multiples of an interval is a region, built once and shared by all boxes above it: a sum over one product for each
//! way to cut it in two. `regions` decides which there are; `pdhclt` builds other leaves on the same frame.

use std::sync::Arc;

use super::regions::{PlannedRegion, Region, plan_regions};
use super::{at_least_one, untied_inputs};
use crate::circuit::{Circuit, CircuitBuilder, Distribution, NodeId, ParamId, Slice, SumGroup};
use crate::error::{Error, Result};

/// Options of [`pd`] and [`pdhclt`](super::pdhclt).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PdOptions {
    /// For each axis, the distance between places where a box may be cut.
    pub intervals: Vec<usize>,
    /// Units of every region.
    pub latents: usize,
    /// The most products that a unit of a region mixes; if there are more, each block of units picks some at random.
    /// The root always mixes all of them. `None` is no limit.
    pub max_product_connections: Option<usize>,
    /// Units that pick their products together; must divide `latents`. By default the largest power of two that
    /// does, at most 16 for up to 32 latents and 32 for more.
    pub block_size: Option<usize>,
    /// Decides the random picks.
    pub seed: u64,
}

impl PdOptions {
    /// Cuts at these intervals, `latents` units a region, no limit on products.
    pub fn new(intervals: Vec<usize>, latents: usize) -> Self {
        Self { intervals, latents, max_product_connections: None, block_size: None, seed: 0 }
    }

    pub(super) fn checked_block_size(&self) -> Result<usize> {
        let latents = self.latents;
        at_least_one("latents", latents)?;
        if let Some(limit) = self.max_product_connections {
            at_least_one("max_product_connections", limit)?;
        }
        match self.block_size {
            None => {
                let most = if latents <= 32 { 16 } else { 32 };
                Ok((1 << latents.trailing_zeros()).min(most))
            }
            Some(size) if size > 0 && latents.is_multiple_of(size) => Ok(size),
            Some(size) => Err(Error::option(format!("block_size = {size}: must divide latents = {latents}"))),
        }
    }
}

/// A Poon–Domingos circuit over a grid of variables, numbered row-major.
///
/// A box that is not cut further is a block-diagonal sum over the product of its variables' inputs. Parameter blocks,
/// in order of declaration: the inputs of variables `0..num_vars`, then the sums in the order of the nodes, group by
/// group. Fine intervals make very many boxes: n places on each of d axes give about n^(2d)/2^d.
pub fn pd(
    shape: &[usize],
    options: &PdOptions,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
) -> Result<Circuit> {
    let plan = plan_regions(shape, options)?;
    let num_vars = shape.iter().product();
    let (latents, block_size) = (options.latents, options.checked_block_size()?);
    let mut circuit = CircuitBuilder::new(num_vars);
    let inputs = untied_inputs(&mut circuit, num_vars, latents, distribution)?;
    add_regions(&mut circuit, &plan, options, |circuit, region, is_root| {
        let factors =
            region.vars(shape).into_iter().map(|var| circuit.input(var, inputs[var])).collect::<Result<Vec<_>>>()?;
        let product = if factors.len() > 1 { circuit.product(&factors)? } else { factors[0] };
        match is_root {
            true => add_dense_sum(circuit, &[product], 1),
            false => add_block_diagonal_sum(circuit, product, block_size),
        }
    })?;
    circuit.finish()
}

/// Adds all planned regions. `leaf(circuit, region, is_root)` adds a box that is not cut: a single unit if it is the
/// root, otherwise as many as there are latents.
pub(super) fn add_regions(
    circuit: &mut CircuitBuilder,
    plan: &[PlannedRegion],
    options: &PdOptions,
    mut leaf: impl FnMut(&mut CircuitBuilder, &Region, bool) -> Result<NodeId>,
) -> Result<()> {
    let block_size = options.checked_block_size()?;
    let mut nodes: Vec<NodeId> = Vec::with_capacity(plan.len());
    for (i, planned) in plan.iter().enumerate() {
        let is_root = i + 1 == plan.len();
        let products = planned
            .splits
            .iter()
            .map(|&(left, right)| circuit.product(&[nodes[left], nodes[right]]))
            .collect::<Result<Vec<_>>>()?;
        nodes.push(match (products.is_empty(), planned.picks.is_empty()) {
            (true, _) => leaf(circuit, &planned.region, is_root)?,
            (_, true) => add_dense_sum(circuit, &products, if is_root { 1 } else { options.latents })?,
            (_, false) => {
                let pick = |picked: &Vec<usize>| {
                    let of = |&split: &usize| Slice { node: products[split], start: 0, units: options.latents };
                    let children: Vec<Slice> = picked.iter().map(of).collect();
                    let param = circuit.sum_param(block_size, children.len() * options.latents)?;
                    Ok(SumGroup { children, param })
                };
                let groups = planned.picks.iter().map(pick).collect::<Result<_>>()?;
                circuit.grouped_sum(groups)?
            }
        });
    }
    Ok(())
}

/// A sum of `units` units over all units of the children, with weights of its own.
pub(super) fn add_dense_sum(circuit: &mut CircuitBuilder, children: &[NodeId], units: usize) -> Result<NodeId> {
    let cols = children.iter().map(|&child| circuit.units(child)).sum();
    let weights = circuit.sum_param(units, cols)?;
    circuit.sum(children, weights)
}

/// A sum whose block `i` mixes block `i` of the child, with weights of its own.
fn add_block_diagonal_sum(circuit: &mut CircuitBuilder, child: NodeId, block_size: usize) -> Result<NodeId> {
    let params = (0..circuit.units(child) / block_size)
        .map(|_| circuit.sum_param(block_size, block_size))
        .collect::<Result<Vec<ParamId>>>()?;
    let group = |(block, param): (usize, ParamId)| SumGroup {
        children: vec![Slice { node: child, start: block * block_size, units: block_size }],
        param,
    };
    circuit.grouped_sum(params.into_iter().enumerate().map(group).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{assert_normalised, describe};
    use super::*;
    use crate::circuit::{Categorical, NodeKind};
    use crate::error::ErrorKind;

    fn coins(_: usize) -> Arc<dyn Distribution> {
        Categorical::new(2).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        // `finish` refuses a product that no sum refers to, so that it builds is the law.
        #[test]
        fn every_grid_builds_and_is_a_distribution(
            shape in prop::collection::vec(1usize..4, 1..4),
            intervals in prop::collection::vec(1usize..4, 3),
            latents in 1usize..5,
            max_product_connections in prop::option::of(1usize..4),
            by_unit: bool,
            seed: u64,
        ) {
            let num_vars: usize = shape.iter().product();
            let options = PdOptions {
                intervals: intervals[..shape.len()].to_vec(),
                latents,
                max_product_connections,
                block_size: by_unit.then_some(1),
                seed,
            };
            let circuit = pd(&shape, &options, coins).unwrap();
            prop_assert_eq!(circuit.num_vars(), num_vars);
            if num_vars <= 9 {
                assert_normalised(&circuit, 2);
            }
        }
    }

    #[test]
    fn long_sequences_with_few_picks_build_and_keep_to_the_limit() {
        for seed in 0..20 {
            let options =
                PdOptions { max_product_connections: Some(2), block_size: Some(2), seed, ..PdOptions::new(vec![1], 4) };
            let circuit = pd(&[24], &options, coins).unwrap();
            for node in &circuit.nodes()[..circuit.nodes().len() - 1] {
                if let NodeKind::Sum { groups } = &node.kind {
                    assert!(groups.iter().all(|g| g.children.len() <= 2));
                }
            }
            let NodeKind::Sum { groups } = &circuit.node(circuit.root()).kind else { panic!("the root is a sum") };
            assert_eq!(groups[0].children.len(), 23);
        }
    }

    #[test]
    fn a_small_grid_is_written_out() {
        let circuit = pd(&[3], &PdOptions::new(vec![1], 2), coins).unwrap();
        let [x0, x1, x2] = ["2[x0]", "2[x1]", "2[x2]"];
        assert_eq!(describe(&circuit), format!("1[(2[({x1}*{x2})]*{x0}) (2[({x0}*{x1})]*{x2})]"));
        let one_box = pd(&[2, 2], &PdOptions::new(vec![2, 2], 3), coins).unwrap();
        assert_eq!(describe(&one_box), "1[(x0*x1*x2*x3)]");
    }

    #[test]
    fn the_default_block_is_the_power_of_two_in_the_latents() {
        for (latents, block) in [(1, 1), (6, 2), (16, 16), (32, 16), (48, 16), (64, 32), (96, 32), (1024, 32)] {
            assert_eq!(PdOptions::new(vec![], latents).checked_block_size().unwrap(), block, "{latents}");
        }
    }

    #[test]
    fn the_seed_decides_the_picks() {
        let picks = |seed| {
            let options = PdOptions { max_product_connections: Some(1), seed, ..PdOptions::new(vec![1], 2) };
            describe(&pd(&[8], &options, coins).unwrap())
        };
        assert_eq!(picks(3), picks(3));
        assert!((0..5).any(|seed| picks(seed) != picks(9)));
    }

    #[test]
    fn options_without_meaning_are_refused() {
        let good = PdOptions::new(vec![2, 2], 4);
        let cases = [
            (vec![], good.clone(), "shape = []"),
            (vec![4, 0], good.clone(), "shape = [4, 0]"),
            (vec![usize::MAX, 2], good.clone(), "more variables than can be numbered"),
            (vec![4], good.clone(), "one number for each axis"),
            (vec![4, 4], PdOptions { intervals: vec![2, 0], ..good.clone() }, "intervals = [2, 0]"),
            (vec![4, 4], PdOptions { latents: 0, ..good.clone() }, "latents = 0"),
            (vec![4, 4], PdOptions { block_size: Some(3), ..good.clone() }, "block_size = 3: must divide latents = 4"),
            (vec![4, 4], PdOptions { block_size: Some(0), ..good.clone() }, "block_size = 0"),
            (vec![4, 4], PdOptions { max_product_connections: Some(0), ..good }, "max_product_connections = 0"),
        ];
        for (shape, options, words) in cases {
            let error = pd(&shape, &options, coins).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option);
            assert!(error.to_string().contains(words), "`{error}` does not say `{words}`");
        }
    }
}
