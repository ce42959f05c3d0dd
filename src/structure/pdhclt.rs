//! Poon–Domingos circuits whose smallest boxes are hidden Chow–Liu trees.
//!
//! The frame of `pd` handles what is far apart, trees learned from data handle what is near: images in squares, long
//! sequences in chunks. Every smallest box is one tree over its columns, shared by all boxes above it.

use std::sync::Arc;

use super::hclt::{Root, add_hclt};
use super::mutual_information::information_among;
use super::pd::add_regions;
use super::regions::plan_regions;
use super::{MutualInformation, PdOptions, Tree, untied_inputs};
use crate::circuit::{Circuit, CircuitBuilder, Distribution};
use crate::data::Batch;
use crate::error::{Error, Result};

/// A Poon–Domingos circuit over a grid of variables, numbered row-major, with a Chow–Liu tree in every smallest box.
///
/// The trees are learned from `data`, one column per variable, with [`MutualInformation::Auto`] decided over all of
/// it; within a box, soft bins take chunks of the box's columns. A box of one variable is its bare input vector; if
/// the whole grid is one box, the circuit is an `hclt`. Parameter blocks, in order of declaration: the inputs of
/// variables `0..num_vars`, then the sums box by box, smaller boxes first: of a tree in the order of its variables, of
/// a larger box group by group.
///
/// ```
/// use anemone::circuit::Categorical;
/// use anemone::data::Batch;
/// use anemone::structure::{MutualInformation, PdOptions, pdhclt};
///
/// // Sequences of six in chunks of three, four latents.
/// let data = Batch::from_rows(&[0u8, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1], 6)?;
/// let options = PdOptions::new(vec![3], 4);
/// let circuit = pdhclt(&data, &[6], &options, MutualInformation::Auto, |_| Categorical::new(2).unwrap())?;
/// assert_eq!(circuit.num_vars(), 6);
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn pdhclt(
    data: &Batch,
    shape: &[usize],
    options: &PdOptions,
    how: MutualInformation,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
) -> Result<Circuit> {
    pdhclt_telling(data, shape, options, how, distribution, &|_| ())
}

/// The same. `tell` is told by any thread how much of it is done, from 0 to 1.
pub fn pdhclt_telling(
    data: &Batch,
    shape: &[usize],
    options: &PdOptions,
    how: MutualInformation,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
    tell: &(dyn Fn(f64) + Sync),
) -> Result<Circuit> {
    let plan = plan_regions(shape, options)?;
    let num_vars = shape.iter().product();
    if data.num_vars() != num_vars {
        return Err(Error::data(format!(
            "shape = {shape:?} has {num_vars} variables, the data {}: every one needs its column",
            data.num_vars()
        )));
    }
    let how = how.resolve(data);
    let mut circuit = CircuitBuilder::new(num_vars);
    let inputs = untied_inputs(&mut circuit, num_vars, options.latents, distribution)?;
    let mut seen = 0; // the smallest boxes share out the variables
    add_regions(&mut circuit, &plan, options, |circuit, region, is_root| {
        let vars = region.vars(shape);
        let tell = |share: f64| tell((seen as f64 + share * vars.len() as f64) / num_vars as f64);
        let tree = Tree::chow_liu(&information_among(data, &vars, how, &tell)?)?;
        seen += vars.len();
        let inputs: Vec<_> = vars.iter().map(|&var| inputs[var]).collect();
        add_hclt(circuit, &tree, &vars, inputs, options.latents, if is_root { Root::Single } else { Root::Latents })
    })?;
    circuit.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{assert_normalised, describe, describe_reference, numbers, reference};
    use super::super::{HcltOptions, hclt, mutual_information};
    use super::*;
    use crate::circuit::{Categorical, NodeKind};
    use crate::error::ErrorKind;
    use crate::rng::Rng;

    fn cats(cats: u32) -> impl Fn(usize) -> Arc<dyn Distribution> {
        move |_| Categorical::new(cats).unwrap()
    }

    fn random_data(num_vars: usize, seed: u64) -> Batch {
        let mut rng = Rng::new(seed);
        let values: Vec<u8> = (0..30 * num_vars).map(|_| rng.below(2) as u8).collect();
        Batch::from_rows(&values, num_vars).unwrap()
    }

    #[test]
    fn the_structure_is_that_of_the_reference() {
        let file = reference("pdhclt");
        let values: Vec<u8> = numbers(&file["structure_data"]).iter().flatten().map(|&x| x as u8).collect();
        let data = Batch::from_rows(&values, 12).unwrap();
        for how in [MutualInformation::soft_bins(), MutualInformation::Auto] {
            let circuit = pdhclt(&data, &[12], &PdOptions::new(vec![3], 4), how, cats(4)).unwrap();
            assert_eq!(describe(&circuit), describe_reference(&file));
        }
    }

    #[test]
    fn the_structures_of_the_paper_have_their_sizes() {
        let count = |circuit: &Circuit| {
            let is_input = |kind: &NodeKind| matches!(kind, NodeKind::Input { .. });
            circuit.nodes().iter().filter(|node| is_input(&node.kind)).count()
        };
        let data = random_data(768, 1);
        let options = PdOptions { max_product_connections: Some(8), ..PdOptions::new(vec![3, 4, 4], 2) };
        let image = pdhclt(&data, &[3, 16, 16], &options, MutualInformation::Auto, cats(2)).unwrap();
        assert_eq!(count(&image), 768, "one tree a box: no variable has two input vectors");
        let data = random_data(1167, 2);
        let chunks = pdhclt(&data, &[1167], &PdOptions::new(vec![128], 2), MutualInformation::Auto, cats(2)).unwrap();
        assert_eq!(count(&chunks), 1167);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_grid_builds_and_is_a_distribution(
            shape in prop::collection::vec(1usize..4, 1..3),
            intervals in prop::collection::vec(1usize..4, 2),
            latents in 1usize..4,
            max_product_connections in prop::option::of(1usize..3),
            seed: u64,
        ) {
            let data = random_data(shape.iter().product(), seed);
            let intervals = intervals[..shape.len()].to_vec();
            let options = PdOptions { max_product_connections, seed, ..PdOptions::new(intervals, latents) };
            let circuit = pdhclt(&data, &shape, &options, MutualInformation::Auto, cats(2)).unwrap();
            assert_normalised(&circuit, 2);
        }
    }

    #[test]
    fn a_single_box_is_a_tree() {
        let data = random_data(5, 3);
        let circuit = pdhclt(&data, &[5], &PdOptions::new(vec![5], 3), MutualInformation::Counts, cats(2)).unwrap();
        let tree = Tree::chow_liu(&mutual_information(&data, MutualInformation::Counts).unwrap()).unwrap();
        let wanted = hclt(&tree, 3, cats(2), HcltOptions::default()).unwrap();
        assert_eq!(describe(&circuit), describe(&wanted));
    }

    #[test]
    fn a_box_of_one_variable_is_its_inputs() {
        let data = random_data(3, 3);
        let circuit = pdhclt(&data, &[3], &PdOptions::new(vec![2], 3), MutualInformation::Auto, cats(2)).unwrap();
        assert_eq!(describe(&circuit), "1[(3[(x0*x1)]*x2)]");
    }

    #[test]
    fn data_that_does_not_fit_the_shape_is_refused() {
        let options = PdOptions::new(vec![2], 2);
        let result = pdhclt(&random_data(5, 1), &[4], &options, MutualInformation::Auto, cats(2));
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("shape = [4] has 4 variables, the data 5"), "{error}");
    }
}
