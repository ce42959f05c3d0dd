//! Random and tensorised circuits (RAT-SPN, Peharz et al. 2019): random partitions of the variables, no data needed.
//!
//! Each repetition shuffles the variables and cuts them into near-equal pieces, and those again, `depth` times. All
//! repetitions share the input vectors, and the root mixes them.

use std::sync::Arc;

use super::pd::add_dense_sum;
use super::{at_least_one, untied_inputs};
use crate::circuit::{Circuit, CircuitBuilder, Distribution, NodeId};
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Options of [`rat_spn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatSpnOptions {
    /// Units of every region.
    pub latents: usize,
    /// How many times a repetition cuts; `pieces` to the power of it may not exceed the number of variables.
    pub depth: usize,
    /// Random partitions, mixed by the root.
    pub repetitions: usize,
    /// Pieces that a cut makes.
    pub pieces: usize,
    /// Decides the partitions. Repetition `r` is the same however many follow it.
    pub seed: u64,
}

/// A random circuit over `num_vars` variables.
///
/// A piece that is not cut further is a dense sum over the product of its variables' inputs; one that is, over the
/// product of its pieces; the root is one sum over the top products of all repetitions. Parameter blocks, in order of
/// declaration: the inputs of variables `0..num_vars`, then the sums in the order of the nodes, the root's last.
pub fn rat_spn(
    num_vars: usize,
    options: &RatSpnOptions,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
) -> Result<Circuit> {
    let RatSpnOptions { latents, depth, repetitions, pieces, seed } = *options;
    at_least_one("num_vars", num_vars)?;
    at_least_one("latents", latents)?;
    at_least_one("depth", depth)?;
    at_least_one("repetitions", repetitions)?;
    if pieces < 2 {
        return Err(Error::option(format!("pieces = {pieces}: must be at least 2")));
    }
    let smallest = u32::try_from(depth).ok().and_then(|depth| pieces.checked_pow(depth));
    if smallest.is_none_or(|smallest| smallest > num_vars) {
        let deepest = num_vars.ilog(pieces);
        return Err(Error::option(format!(
            "depth = {depth}: must be at most {deepest}; {num_vars} variables cannot be cut into {pieces} pieces more \
             often"
        )));
    }
    let mut circuit = CircuitBuilder::new(num_vars);
    let params = untied_inputs(&mut circuit, num_vars, latents, distribution)?;
    let inputs =
        params.iter().enumerate().map(|(var, &param)| circuit.input(var, param)).collect::<Result<Vec<_>>>()?;
    let mut tops = Vec::with_capacity(repetitions);
    for repetition in 0..repetitions {
        let mut order = inputs.clone();
        Rng::stream(seed, repetition as u64).shuffle(&mut order);
        tops.push(add_product(&mut circuit, &order, depth, options)?);
    }
    add_dense_sum(&mut circuit, &tops, 1)?;
    circuit.finish()
}

/// The product of the regions of the pieces of `inputs`, or of the inputs themselves if they are not cut further.
fn add_product(
    circuit: &mut CircuitBuilder,
    inputs: &[NodeId],
    depth: usize,
    options: &RatSpnOptions,
) -> Result<NodeId> {
    if depth == 0 {
        return if inputs.len() > 1 { circuit.product(inputs) } else { Ok(inputs[0]) };
    }
    let (num_vars, pieces) = (inputs.len(), options.pieces);
    let mut regions = Vec::with_capacity(pieces);
    for piece in 0..pieces {
        let of_piece = &inputs[piece * num_vars / pieces..(piece + 1) * num_vars / pieces];
        let product = add_product(circuit, of_piece, depth - 1, options)?;
        regions.push(add_dense_sum(circuit, &[product], options.latents)?);
    }
    circuit.product(&regions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{assert_normalised, describe};
    use super::*;
    use crate::circuit::{Categorical, NodeKind};
    use crate::error::ErrorKind;

    const SMALL: RatSpnOptions = RatSpnOptions { latents: 3, depth: 2, repetitions: 4, pieces: 2, seed: 1 };

    fn coins(_: usize) -> Arc<dyn Distribution> {
        Categorical::new(2).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_partition_builds_and_is_a_distribution(
            num_vars in 2usize..9,
            latents in 1usize..4,
            depth in 1usize..4,
            repetitions in 1usize..4,
            pieces in 2usize..4,
            seed: u64,
        ) {
            let fits = pieces.pow(depth as u32) <= num_vars;
            let result = rat_spn(num_vars, &RatSpnOptions { latents, depth, repetitions, pieces, seed }, coins);
            prop_assert_eq!(result.is_ok(), fits);
            if let Ok(circuit) = result {
                assert_normalised(&circuit, 2);
            }
        }
    }

    #[test]
    fn repetitions_share_inputs_and_have_the_counts_of_a_binary_tree() {
        let circuit = rat_spn(11, &SMALL, coins).unwrap();
        let count = |is: fn(&NodeKind) -> bool| circuit.nodes().iter().filter(|n| is(&n.kind)).count();
        assert_eq!(count(|kind| matches!(kind, NodeKind::Input { .. })), 11);
        // A repetition has 2 + 4 sums; the root is one more.
        assert_eq!(count(|kind| matches!(kind, NodeKind::Sum { .. })), 4 * 6 + 1);
        let NodeKind::Sum { groups } = &circuit.node(circuit.root()).kind else { panic!("the root is a sum") };
        assert_eq!(groups[0].children.len(), 4);
    }

    #[test]
    fn the_first_repetition_does_not_depend_on_how_many_follow() {
        let first = |repetitions| {
            let circuit = rat_spn(8, &RatSpnOptions { repetitions, ..SMALL }, coins).unwrap();
            let text = describe(&circuit);
            text.split(' ').next().unwrap().trim_end_matches(']').to_string()
        };
        assert_eq!(first(1), first(3));
        let other = rat_spn(8, &RatSpnOptions { repetitions: 1, seed: 2, ..SMALL }, coins).unwrap();
        assert_ne!(first(1), describe(&other).trim_end_matches(']'));
    }

    #[test]
    fn options_without_meaning_are_refused() {
        let cases = [
            (0, SMALL, "num_vars = 0"),
            (8, RatSpnOptions { latents: 0, ..SMALL }, "latents = 0"),
            (8, RatSpnOptions { depth: 0, ..SMALL }, "depth = 0"),
            (8, RatSpnOptions { repetitions: 0, ..SMALL }, "repetitions = 0"),
            (8, RatSpnOptions { pieces: 1, ..SMALL }, "pieces = 1: must be at least 2"),
            (7, RatSpnOptions { depth: 3, ..SMALL }, "depth = 3: must be at most 2; 7 variables"),
            (7, RatSpnOptions { depth: usize::MAX, ..SMALL }, "must be at most 2"),
        ];
        for (num_vars, options, words) in cases {
            let error = rat_spn(num_vars, &options, coins).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option);
            assert!(error.to_string().contains(words), "`{error}` does not say `{words}`");
        }
    }
}
