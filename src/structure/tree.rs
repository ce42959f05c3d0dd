//! Trees over variables, and the Chow–Liu tree: the one whose edges carry the most mutual information.

use super::InformationMatrix;
use crate::error::{Error, Result};

/// A rooted tree over variables `0..num_vars`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    parent: Vec<Option<usize>>,
    /// The children of each variable, ascending.
    children: Vec<Vec<usize>>,
    root: usize,
}

impl Tree {
    /// The Chow–Liu tree (Chow and Liu 1968): the spanning tree of most mutual information, rooted at its centre.
    ///
    /// Of two edges that carry equal information the lexicographically smaller wins; of two centres the lower one is
    /// the root.
    pub fn chow_liu(information: &InformationMatrix) -> Result<Self> {
        let num_vars = information.num_vars();
        if num_vars == 0 {
            return Err(Error::data("a tree needs at least one variable"));
        }
        for u in 0..num_vars {
            // NaN compares with nothing: it would give some order, silently.
            if let Some(v) = (0..num_vars).find(|&v| v != u && !information.get(u, v).is_finite()) {
                return Err(Error::data(format!(
                    "variables {u} and {v}: mutual information {} is not a number",
                    information.get(u, v)
                )));
            }
        }
        Self::rooted_at_centre(&spanning_tree(information))
    }

    /// The tree that joins each variable to its `neighbours`, rooted at its centre, the lower one if there are two.
    /// They must be those of a tree.
    pub(crate) fn rooted_at_centre(neighbours: &[Vec<usize>]) -> Result<Self> {
        let root = lowest_centre(neighbours);
        let mut parent = vec![None; neighbours.len()];
        let mut open = vec![root];
        while let Some(var) = open.pop() {
            let above = parent[var];
            for &next in neighbours[var].iter().filter(|&&next| above != Some(next)) {
                parent[next] = Some(var);
                open.push(next);
            }
        }
        Self::from_parents(&parent)
    }

    /// The tree in which variable `v` hangs from `parents[v]`; exactly one variable, the root, hangs from none.
    pub fn from_parents(parents: &[Option<usize>]) -> Result<Self> {
        let num_vars = parents.len();
        let mut roots = (0..num_vars).filter(|&v| parents[v].is_none());
        let root = match (roots.next(), roots.next()) {
            (Some(root), None) => root,
            (Some(a), Some(b)) => {
                return Err(Error::option(format!("variables {a} and {b} have no parent: a tree has one root")));
            }
            (None, _) if num_vars == 0 => return Err(Error::option("a tree needs at least one variable")),
            (None, _) => return Err(Error::option("every variable has a parent: a tree has one root, which has none")),
        };
        let mut children = vec![Vec::new(); num_vars];
        for (v, parent) in parents.iter().enumerate() {
            if let Some(p) = *parent {
                let siblings = children
                    .get_mut(p)
                    .ok_or_else(|| Error::option(format!("variable {v}: parent {p} is outside 0..{num_vars}")))?;
                siblings.push(v);
            }
        }
        let tree = Self { parent: parents.to_vec(), children, root };
        let mut reached = vec![false; num_vars];
        tree.bottom_up().into_iter().for_each(|v| reached[v] = true);
        match reached.iter().position(|reached| !reached) {
            Some(v) => {
                Err(Error::option(format!("variable {v} does not hang from root {root}: its parents form a cycle")))
            }
            None => Ok(tree),
        }
    }

    /// How many variables.
    pub fn num_vars(&self) -> usize {
        self.parent.len()
    }

    /// The variable that has no parent.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The variable that `var` hangs from; `None` for the root.
    pub fn parent(&self, var: usize) -> Option<usize> {
        self.parent[var]
    }

    /// The variables that hang from `var`, ascending.
    pub fn children(&self, var: usize) -> &[usize] {
        &self.children[var]
    }

    /// All variables, each after its children; subtrees stay together.
    pub fn bottom_up(&self) -> Vec<usize> {
        // A root-first walk that takes the last child first, reversed. A list and not recursion: a long chain
        // is a legal tree and would exhaust the stack.
        let mut order = Vec::with_capacity(self.num_vars());
        let mut open = vec![self.root];
        while let Some(var) = open.pop() {
            order.push(var);
            open.extend_from_slice(&self.children[var]);
        }
        order.reverse();
        order
    }
}

/// The neighbours of each variable in the spanning tree of most information.
///
/// Prim's algorithm. With ties broken by the edges' names no two edges are equal, so there is one best tree, the same
/// that sorting all edges (Kruskal) finds, without the list of all edges.
fn spanning_tree(information: &InformationMatrix) -> Vec<Vec<usize>> {
    let num_vars = information.num_vars();
    let better = |(u, v): (usize, usize), (s, t): (usize, usize)| {
        let (this, that) = (information.get(u, v), information.get(s, t));
        this > that || (this == that && (u.min(v), u.max(v)) < (s.min(t), s.max(t)))
    };
    let mut neighbours = vec![Vec::new(); num_vars];
    // For each variable outside the tree, the tree variable at the other end of its best edge.
    let mut anchor = vec![0; num_vars];
    let mut outside: Vec<usize> = (1..num_vars).collect();
    while !outside.is_empty() {
        let best = (1..outside.len()).fold(0, |best, i| {
            let (this, that) = (outside[i], outside[best]);
            if better((anchor[this], this), (anchor[that], that)) { i } else { best }
        });
        let joined = outside.swap_remove(best);
        neighbours[joined].push(anchor[joined]);
        neighbours[anchor[joined]].push(joined);
        for &var in &outside {
            if better((joined, var), (anchor[var], var)) {
                anchor[var] = joined;
            }
        }
    }
    neighbours
}

/// The lowest-numbered variable whose farthest variable is nearest: what is left after peeling off leaves.
fn lowest_centre(neighbours: &[Vec<usize>]) -> usize {
    let mut degree: Vec<usize> = neighbours.iter().map(Vec::len).collect();
    let mut left = neighbours.len();
    let mut leaves: Vec<usize> = (0..left).filter(|&v| degree[v] <= 1).collect();
    while left > 2 {
        left -= leaves.len();
        let mut next = Vec::new();
        for &leaf in &leaves {
            degree[leaf] = 0;
            // A neighbour of degree 0 was peeled off before and stays off.
            for &var in &neighbours[leaf] {
                match degree[var] {
                    0 => continue,
                    2 => next.push(var),
                    _ => {}
                }
                degree[var] -= 1;
            }
        }
        leaves = next;
    }
    leaves.into_iter().min().expect("a tree has a centre")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{numbers, reference};
    use super::*;
    use crate::error::ErrorKind;

    fn matrix(num_vars: usize, of: impl Fn(usize, usize) -> f64) -> InformationMatrix {
        InformationMatrix::from_fn(num_vars, |u, v| of(u.min(v), u.max(v)))
    }

    fn edges(tree: &Tree) -> Vec<(usize, usize)> {
        let edge = |v: usize| tree.parent(v).map(|p| (p.min(v), p.max(v)));
        let mut edges: Vec<_> = (0..tree.num_vars()).filter_map(edge).collect();
        edges.sort_unstable();
        edges
    }

    /// Kruskal by the letter: all edges, sorted stably from the lexicographic order, joined where they close no cycle.
    fn kruskal(information: &InformationMatrix) -> Vec<(usize, usize)> {
        let n = information.num_vars();
        let mut all: Vec<_> = (0..n).flat_map(|u| (u + 1..n).map(move |v| (u, v))).collect();
        all.sort_by(|a, b| information.get(b.0, b.1).partial_cmp(&information.get(a.0, a.1)).unwrap());
        let mut part: Vec<usize> = (0..n).collect();
        all.retain(|&(u, v)| {
            let (a, b) = (part[u], part[v]);
            part.iter_mut().filter(|p| **p == a).for_each(|p| *p = b);
            a != b
        });
        all.sort_unstable();
        all
    }

    fn eccentricity(edges: &[(usize, usize)], from: usize, n: usize) -> usize {
        let mut distance = vec![usize::MAX; n];
        distance[from] = 0;
        for _ in 0..n {
            for &(u, v) in edges {
                distance[u] = distance[u].min(distance[v].saturating_add(1));
                distance[v] = distance[v].min(distance[u].saturating_add(1));
            }
        }
        distance.into_iter().max().unwrap()
    }

    proptest! {
        // Values of few digits, so that ties are common.
        #[test]
        fn it_is_the_tree_of_kruskal_rooted_at_its_lowest_centre(n in 1usize..9, seed: u64) {
            let mut rng = crate::rng::Rng::new(seed);
            let values: Vec<f64> = (0..n * n).map(|_| rng.below(5) as f64).collect();
            let information = matrix(n, |u, v| values[u * n + v]);
            let tree = Tree::chow_liu(&information).unwrap();
            prop_assert_eq!(edges(&tree), kruskal(&information));
            let radius = |v: usize| eccentricity(&edges(&tree), v, n);
            let centre = (0..n).min_by_key(|&v| radius(v)).unwrap();
            prop_assert_eq!(tree.root(), centre);
        }
    }

    #[test]
    fn the_reference_information_gives_the_reference_tree() {
        for name in ["hclt", "hclt_gaussian", "hclt_discrete_logistic"] {
            let circuit = reference(name);
            let information = numbers(&circuit["mutual_information"]);
            let tree = Tree::chow_liu(&matrix(information.len(), |u, v| information[u][v])).unwrap();
            let wanted: Vec<_> =
                numbers(&circuit["tree_edges"]).iter().map(|e| (e[0] as usize, e[1] as usize)).collect();
            assert_eq!((edges(&tree), tree.root() as u64), (wanted, circuit["root"].as_u64().unwrap()), "{name}");
        }
    }

    #[test]
    fn children_come_before_their_parents() {
        let tree = Tree::from_parents(&[Some(2), Some(2), None, Some(0), Some(0)]).unwrap();
        assert_eq!(tree.bottom_up(), [3, 4, 0, 1, 2]);
        assert_eq!((tree.children(0), tree.children(2), tree.root()), (&[3, 4][..], &[0, 1][..], 2));
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for (parents, words) in [
            (vec![], "at least one variable"),
            (vec![None, None], "variables 0 and 1 have no parent"),
            (vec![Some(1), Some(0)], "every variable has a parent"),
            (vec![None, Some(2), Some(1)], "cycle"),
            (vec![None, Some(7)], "variable 1: parent 7 is outside 0..2"),
        ] {
            let error = Tree::from_parents(&parents).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn information_that_is_not_a_number_is_refused() {
        let error = Tree::chow_liu(&matrix(3, |u, v| if (u, v) == (1, 2) { f64::NAN } else { 1.0 })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("variables 1 and 2"), "{error}");
    }
}
