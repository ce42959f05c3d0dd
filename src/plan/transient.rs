//! Sums that are forgotten as soon as they are used, and what is known of them from the circuit alone.
//!
//! A transient sum shares its value buffer with others of its size, and the sum above computes its G on the way back;
//! so a long chain of them needs the memory of one. Which sums those are is a pattern over the order of nodes. Read by
//! `build`.

use crate::circuit::{Circuit, Factor, Node, NodeId, NodeKind, SumGroup};

/// Which sums are transient: their weights are shared by several nodes, and their groups, if there are several, mix
/// parts of one product; they are used once, by the product of the next node but inputs, as they are or transposed,
/// with a table at the most; and the next node but inputs after that is the only one that uses the product, a sum whose
/// groups cover it, each unit once. Nothing comes between, so that the shared buffer is nobody else's meanwhile,
/// forwards and backwards. One table: with more, the range of their product would have to be watched.
pub(super) fn transient_sums(circuit: &Circuit) -> Vec<bool> {
    let mut weight_uses = vec![0usize; circuit.params().len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); circuit.nodes().len()];
    for (i, node) in circuit.nodes().iter().enumerate() {
        match &node.kind {
            NodeKind::Input { .. } => {}
            NodeKind::Product { factors } => factors.iter().for_each(|f| users[f.node.index()].push(i)),
            NodeKind::Sum { groups } => {
                groups.iter().for_each(|group| weight_uses[group.param.index()] += 1);
                groups.iter().flat_map(|group| &group.children).for_each(|c| users[c.node.index()].push(i));
            }
        }
    }
    let is_input = |node: usize| matches!(circuit.nodes()[node].kind, NodeKind::Input { .. });
    let is_used_by_next = |node: usize| match users[node][..] {
        [user, ..] => users[node].iter().all(|u| *u == user) && (node + 1..user).all(is_input),
        [] => false,
    };
    let is_transient = |i: usize| {
        let NodeKind::Sum { groups } = &circuit.nodes()[i].kind else { return false };
        let [user] = users[i][..] else { return false };
        let NodeKind::Product { factors } = &circuit.nodes()[user].kind else { return false };
        let is_factor_simple = |factor: &Factor| match (&circuit.node(factor.node).kind, &factor.map) {
            _ if factor.node.index() == i => {
                factor.map.is_none() || transpose(factor.map.as_deref(), circuit.nodes()[i].units).is_some()
            }
            (NodeKind::Input { param, .. }, None) => {
                circuit.distribution(*param).is_table() && users[factor.node.index()].len() == 1
            }
            _ => false,
        };
        groups.iter().all(|group| weight_uses[group.param.index()] > 1)
            && (groups.len() == 1 || parts_of_one_product(circuit, groups).is_some())
            && is_used_by_next(i)
            && factors.len() <= 2
            && factors.iter().all(is_factor_simple)
            && is_used_by_next(user)
            && match &circuit.nodes()[users[user][0]].kind {
                NodeKind::Sum { groups } => covers_one_product(circuit, groups),
                _ => false,
            }
    };
    (0..circuit.nodes().len()).map(is_transient).collect()
}

/// The product that all groups mix one part of each, if it is so.
fn parts_of_one_product(circuit: &Circuit, groups: &[SumGroup]) -> Option<NodeId> {
    let product = groups.first()?.children.first()?.node;
    let is_part = |group: &SumGroup| matches!(group.children[..], [child] if child.node == product);
    let is_product = matches!(circuit.node(product).kind, NodeKind::Product { .. });
    (is_product && groups.iter().all(is_part)).then_some(product)
}

/// Returns true if groups mix one product, each unit of it once.
fn covers_one_product(circuit: &Circuit, groups: &[SumGroup]) -> bool {
    let parts = groups.iter().flat_map(|group| &group.children).map(|child| (child.start, child.units));
    parts_of_one_product(circuit, groups).is_some_and(|product| are_whole(parts.collect(), circuit.node(product).units))
}

/// Returns true if nobody needs the flow of a node: a product of a transient sum, with no table that learns from it.
pub(super) fn is_flowless(node: &Node, transient: &[bool]) -> bool {
    let NodeKind::Product { factors } = &node.kind else { return false };
    matches!(factors[..], [Factor { node, .. }] if transient[node.index()])
}

/// The rows and columns of the matrix that a map transposes, if it takes all `units` of a factor: unit (i, h) of the
/// result is unit (h, i), numbered h·cols + i.
pub(super) fn transpose(map: Option<&[u32]>, units: usize) -> Option<(usize, usize)> {
    let map = map.filter(|map| map.len() == units)?;
    let cols = *map.get(1)? as usize;
    if cols < 2 || !map.len().is_multiple_of(cols) {
        return None;
    }
    let rows = map.len() / cols;
    let is_transpose = map.iter().enumerate().all(|(k, &unit)| unit as usize == (k % rows) * cols + k / rows);
    is_transpose.then_some((rows, cols))
}

/// Returns true if parts, each a start and a length, make up a whole without gap or overlap.
pub(super) fn are_whole(mut parts: Vec<(usize, usize)>, units: usize) -> bool {
    parts.sort_unstable();
    parts.into_iter().try_fold(0, |at, (start, len)| (start == at).then_some(at + len)) == Some(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_is_known_by_its_map() {
        let map: Vec<u32> = (0..15).map(|k| (k % 3) * 5 + k / 3).collect(); // (i, h) takes (h, i), h < 3 and i < 5
        assert_eq!(transpose(Some(&map), 15), Some((3, 5)));
        assert_eq!(transpose(Some(&map), 16), None, "a unit that nobody takes");
        assert_eq!(transpose(Some(&[0, 1, 2, 3]), 4), None, "the identity is not worth a kernel");
        assert_eq!(transpose(Some(&[0, 2, 3, 1]), 4), None);
        assert_eq!(transpose(Some(&[0]), 1), None);
        assert_eq!(transpose(None, 4), None);
    }
}
