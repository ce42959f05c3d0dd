//! Trees like those that are learned from images, without learning them: a benchmark needs their shape, not their
//! truth.

use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::structure::Tree;

/// Colours of a pixel.
pub(super) const CHANNELS: usize = 3;

/// How far back a variable of a line may be joined.
const REACH: usize = 4;

/// A random tree in which neighbours are joined, rooted at its centre.
///
/// Variables that fill a square image in three colours ([`side`]) lie on it with the colour index fastest: the first
/// colours of neighbouring pixels are joined at random, and a pixel's other colours hang from its first. All others
/// lie on a line, and each is joined to one of the few before it.
pub fn local_tree(num_vars: usize, seed: u64) -> Result<Tree> {
    if num_vars == 0 {
        return Err(Error::option("vars = 0: must be at least 1"));
    }
    let mut rng = Rng::new(seed);
    let edges = match side(num_vars) {
        Some(side) => patch_edges(side, &mut rng),
        None => (1..num_vars).map(|var| (var, var - 1 - rng.below(REACH.min(var)))).collect(),
    };
    let mut neighbours = vec![Vec::new(); num_vars];
    for (u, v) in edges {
        neighbours[u].push(v);
        neighbours[v].push(u);
    }
    Tree::rooted_at_centre(&neighbours)
}

/// The side of the square image in three colours that has so many variables.
pub fn side(num_vars: usize) -> Option<usize> {
    let side = (num_vars / CHANNELS).isqrt();
    (side > 0 && CHANNELS * side * side == num_vars).then_some(side)
}

/// The spanning tree of an image's pixels with the least sum of random weights (Kruskal), and the other colours below
/// it.
fn patch_edges(side: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let first = |row: usize, col: usize| (row * side + col) * CHANNELS;
    let mut candidates = Vec::with_capacity(2 * side * side);
    let mut edges = Vec::with_capacity(CHANNELS * side * side);
    for (row, col) in (0..side * side).map(|pixel| (pixel / side, pixel % side)) {
        let here = first(row, col);
        if row + 1 < side {
            candidates.push((rng.uniform(), here, first(row + 1, col)));
        }
        if col + 1 < side {
            candidates.push((rng.uniform(), here, first(row, col + 1)));
        }
        edges.extend((1..CHANNELS).map(|channel| (here + channel - 1, here + channel)));
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut parts = Parts::new(CHANNELS * side * side);
    edges.extend(candidates.into_iter().filter(|&(_, u, v)| parts.join(u, v)).map(|(_, u, v)| (u, v)));
    edges
}

/// Which variables are joined already.
struct Parts {
    /// Another member of the same part; the part's name is the member that points to itself.
    towards: Vec<usize>,
}

impl Parts {
    fn new(members: usize) -> Self {
        Self { towards: (0..members).collect() }
    }

    fn name(&mut self, mut member: usize) -> usize {
        while self.towards[member] != member {
            self.towards[member] = self.towards[self.towards[member]]; // halves the way for the next one
            member = self.towards[member];
        }
        member
    }

    /// Joins the parts of two members. Whether they were apart.
    fn join(&mut self, u: usize, v: usize) -> bool {
        let (u, v) = (self.name(u), self.name(v));
        self.towards[u] = v;
        u != v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_in_three_colours_are_known() {
        for (vars, known) in
            [(768, Some(16)), (3, Some(1)), (12, Some(2)), (4, None), (1, None), (0, None), (256, None)]
        {
            assert_eq!(side(vars), known, "{vars}");
        }
    }

    #[test]
    fn pixels_are_joined_to_their_neighbours_and_colours_hang_below_them() {
        let (side, seed) = (6, 3);
        let tree = local_tree(CHANNELS * side * side, seed).unwrap();
        assert_eq!(tree.root() % CHANNELS, 0);
        for var in 0..tree.num_vars() {
            let Some(parent) = tree.parent(var) else { continue };
            let (pixel, channel) = (var / CHANNELS, var % CHANNELS);
            if channel > 0 {
                assert_eq!(parent, var - 1);
                continue;
            }
            let (row, col, above) = (pixel / side, pixel % side, parent / CHANNELS);
            assert_eq!(parent % CHANNELS, 0);
            assert_eq!(row.abs_diff(above / side) + col.abs_diff(above % side), 1, "{var} hangs from {parent}");
        }
        assert_eq!(tree, local_tree(CHANNELS * side * side, seed).unwrap());
        assert_ne!(tree, local_tree(CHANNELS * side * side, seed + 1).unwrap());
    }

    #[test]
    fn the_root_is_at_the_centre() {
        let depths = |tree: &Tree| {
            let mut depth = vec![0; tree.num_vars()];
            for var in tree.bottom_up().into_iter().rev() {
                depth[var] = tree.parent(var).map_or(0, |parent| depth[parent] + 1);
            }
            depth
        };
        for vars in [768, 100, 2, 1] {
            let tree = local_tree(vars, 1).unwrap();
            let depth = depths(&tree);
            let deepest = |below: usize| {
                let is_below =
                    |var: usize| std::iter::successors(Some(var), |&var| tree.parent(var)).any(|above| above == below);
                (0..vars).filter(|&var| is_below(var)).map(|var| depth[var]).max()
            };
            // The two deepest branches of the root differ by one at most: else a child would be nearer to the centre.
            let mut branches: Vec<usize> = tree.children(tree.root()).iter().filter_map(|&c| deepest(c)).collect();
            branches.sort_unstable_by(|a, b| b.cmp(a));
            let (first, second) = (branches.first().copied().unwrap_or(0), branches.get(1).copied().unwrap_or(0));
            assert!(first - second <= 1, "{vars} variables: {branches:?}");
        }
    }

    #[test]
    fn a_line_is_joined_nearby() {
        let tree = local_tree(50, 2).unwrap();
        for var in 0..50 {
            assert!(tree.parent(var).is_none_or(|parent| parent.abs_diff(var) <= REACH), "{var}");
        }
        assert!(local_tree(0, 1).is_err());
    }
}
