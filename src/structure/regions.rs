//! Which boxes of a grid, and which splits of them, a Poon–Domingos circuit has.
//!
//! Every choice is made here, from the whole grid downwards, before a node exists: a split that no block of units
//! picked is left out, and so is a box that nothing then refers to. What is left is listed children first, for `pd`
//! and `pdhclt` to build upwards.

use std::collections::{HashMap, HashSet};

use super::PdOptions;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// A box: on every axis, from the first position to the one past the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Region(Vec<(usize, usize)>);

/// A box with the splits it needs.
#[derive(Debug)]
pub(super) struct PlannedRegion {
    pub(super) region: Region,
    /// The positions, in the plan, of the two halves of each split; none for a box that is not split.
    pub(super) splits: Vec<(usize, usize)>,
    /// For each block of units the positions, in `splits`, of those it picked; empty if all blocks mix all splits.
    pub(super) picks: Vec<Vec<usize>>,
}

/// All boxes that the whole grid needs, halves before the boxes they make up. The last is the whole grid.
pub(super) fn plan_regions(shape: &[usize], options: &PdOptions) -> Result<Vec<PlannedRegion>> {
    if shape.is_empty() || shape.contains(&0) {
        return Err(Error::option(format!("shape = {shape:?}: must have at least one axis, each at least 1 long")));
    }
    if shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length)).is_none() {
        return Err(Error::option(format!("shape = {shape:?}: has more variables than can be numbered")));
    }
    let intervals = &options.intervals;
    if intervals.len() != shape.len() || intervals.contains(&0) {
        return Err(Error::option(format!(
            "intervals = {intervals:?}: must be one number for each axis of shape {shape:?}, each at least 1"
        )));
    }
    let num_blocks = options.latents / options.checked_block_size()?;

    let whole = Region(shape.iter().map(|&length| (0, length)).collect());
    let mut decided = Vec::new();
    let mut seen = HashSet::from([whole.clone()]);
    let mut open = vec![whole.clone()];
    while let Some(region) = open.pop() {
        let mut splits = region.splits(intervals);
        let limit = options.max_product_connections.unwrap_or(usize::MAX);
        let mut picks = Vec::new();
        if splits.len() > limit && region != whole {
            let mut rng = Rng::stream(options.seed, region.name());
            picks = pick_for_blocks(num_blocks, limit, splits.len(), &mut rng);
            keep_picked(&mut splits, &mut picks);
        }
        for half in splits.iter().flat_map(|(left, right)| [left, right]) {
            if seen.insert(half.clone()) {
                open.push(half.clone());
            }
        }
        decided.push((region, splits, picks));
    }

    // A half is smaller than the whole; boxes of one size are in the order of their corners.
    decided.sort_by(|a, b| (a.0.num_vars(), &a.0).cmp(&(b.0.num_vars(), &b.0)));
    let position: HashMap<Region, usize> = decided.iter().enumerate().map(|(i, d)| (d.0.clone(), i)).collect();
    let planned = decided.into_iter().map(|(region, splits, picks)| PlannedRegion {
        region,
        splits: splits.iter().map(|(left, right)| (position[left], position[right])).collect(),
        picks,
    });
    Ok(planned.collect())
}

impl Region {
    /// How many variables it holds.
    pub(super) fn num_vars(&self) -> usize {
        self.0.iter().map(|(low, high)| high - low).product()
    }

    /// Its variables, which are numbered row-major over the whole grid; ascending.
    pub(super) fn vars(&self, shape: &[usize]) -> Vec<usize> {
        let mut vars = vec![0];
        for (&(low, high), &length) in self.0.iter().zip(shape) {
            vars = vars.iter().flat_map(|&before| (low..high).map(move |at| before * length + at)).collect();
        }
        vars
    }

    /// Every way to cut it in two at a multiple of an axis's interval: axis by axis, ascending.
    fn splits(&self, intervals: &[usize]) -> Vec<(Self, Self)> {
        let mut splits = Vec::new();
        for (axis, (&(low, high), &interval)) in self.0.iter().zip(intervals).enumerate() {
            let first = (low / interval + 1).saturating_mul(interval);
            for at in (first..high).step_by(interval) {
                let (mut left, mut right) = (self.clone(), self.clone());
                left.0[axis] = (low, at);
                right.0[axis] = (at, high);
                splits.push((left, right));
            }
        }
        splits
    }

    /// A number for its random stream that depends on nothing but where it lies.
    fn name(&self) -> u64 {
        let corners = self.0.iter().flat_map(|&(low, high)| [low, high]);
        corners.fold(0, |name, at| Rng::new(name ^ (at as u64)).next_u64())
    }
}

/// For every block, `limit` of `num_splits` splits, ascending.
fn pick_for_blocks(num_blocks: usize, limit: usize, num_splits: usize, rng: &mut Rng) -> Vec<Vec<usize>> {
    let mut all: Vec<usize> = (0..num_splits).collect();
    let mut pick = || {
        rng.shuffle(&mut all);
        let mut picked = all[..limit].to_vec();
        picked.sort_unstable();
        picked
    };
    (0..num_blocks).map(|_| pick()).collect()
}

/// Drops the splits that no block picked, and renumbers the picks.
fn keep_picked<T>(splits: &mut Vec<T>, picks: &mut [Vec<usize>]) {
    let mut new_position = vec![None; splits.len()];
    picks.iter().flatten().for_each(|&split| new_position[split] = Some(0));
    for (new, slot) in new_position.iter_mut().flatten().enumerate() {
        *slot = new;
    }
    let mut old = 0;
    splits.retain(|_| {
        old += 1;
        new_position[old - 1].is_some()
    });
    for split in picks.iter_mut().flatten() {
        *split = new_position[*split].expect("a picked split is kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(intervals: &[usize], limit: Option<usize>) -> PdOptions {
        PdOptions { max_product_connections: limit, ..PdOptions::new(intervals.to_vec(), 4) }
    }

    fn count(shape: &[usize], intervals: &[usize]) -> (usize, usize) {
        let plan = plan_regions(shape, &options(intervals, None)).unwrap();
        (plan.len(), plan.iter().filter(|p| p.splits.is_empty()).count())
    }

    #[test]
    fn known_shapes_have_known_numbers_of_boxes() {
        // n pieces of an axis make n(n+1)/2 intervals; boxes are the product over the axes.
        assert_eq!(count(&[12], &[3]), (10, 4));
        assert_eq!(count(&[1167], &[128]), (55, 10));
        assert_eq!(count(&[3, 16, 16], &[3, 4, 4]), (100, 16));
        assert_eq!(count(&[2, 2], &[1, 1]), (9, 4));
        assert_eq!(count(&[5], &[9]), (1, 1));
    }

    #[test]
    fn splits_of_a_box_partition_it_and_halves_come_first() {
        let shape = [4, 3];
        let plan = plan_regions(&shape, &options(&[2, 1], None)).unwrap();
        for (i, planned) in plan.iter().enumerate() {
            for &(left, right) in &planned.splits {
                assert!(left < i && right < i);
                let mut both = [plan[left].region.vars(&shape), plan[right].region.vars(&shape)].concat();
                both.sort_unstable();
                assert_eq!(both, planned.region.vars(&shape));
            }
        }
        assert_eq!(plan.last().unwrap().region.vars(&shape), (0..12).collect::<Vec<_>>());
        assert_eq!(plan[0].region.vars(&shape), [0, 3]);
    }

    #[test]
    fn a_limit_leaves_out_what_nobody_picked() {
        let plan = plan_regions(&[64], &PdOptions { block_size: Some(2), ..options(&[4], Some(1)) }).unwrap();
        let mut used = vec![false; plan.len()];
        let (whole, others) = plan.split_last().unwrap();
        assert!(whole.splits.len() == 15 && whole.picks.is_empty(), "the root has no limit");
        for planned in &plan {
            planned.splits.iter().for_each(|&(left, right)| (used[left], used[right]) = (true, true));
        }
        assert!(used[..others.len()].iter().all(|used| *used));
        for planned in others.iter().filter(|p| !p.picks.is_empty()) {
            assert!(planned.picks.len() == 2 && planned.picks.iter().all(|picked| picked.len() == 1));
            assert!((0..planned.splits.len()).all(|split| planned.picks.iter().any(|p| p.contains(&split))));
        }
        assert!(others.len() < 135, "of 135 intervals some are in no picked split");
    }

    #[test]
    fn picks_keep_their_meaning_when_splits_are_dropped() {
        let mut splits = vec!['a', 'b', 'c', 'd', 'e'];
        let mut picks = vec![vec![1, 4], vec![1, 3]];
        keep_picked(&mut splits, &mut picks);
        assert_eq!((splits, picks), (vec!['b', 'd', 'e'], vec![vec![0, 2], vec![0, 1]]));
    }
}
