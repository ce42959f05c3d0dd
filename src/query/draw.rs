//! The way down: one child at every sum, all factors of every product, and so one input for each variable.
//!
//! `sample`, `sample_given` and `mpe` walk it alike and differ in how a sum chooses and in what becomes of an input.

use crate::circuit::{Circuit, NodeId, NodeKind, ParamId, Params, SumGroup};
use crate::data::Values;

/// Decides where the way down leads.
pub(super) trait Guide {
    /// Which column of a group's weights unit `unit` of the group takes.
    fn choose(&mut self, group: &SumGroup, unit: usize) -> usize;

    /// Unit `unit` of an input was reached.
    fn input(&mut self, var: usize, param: ParamId, unit: usize);
}

/// Draws one induced tree, root to leaves.
pub(super) fn descend(circuit: &Circuit, guide: &mut impl Guide) {
    let mut stack: Vec<(NodeId, usize)> = vec![(circuit.root(), 0)];
    while let Some((id, unit)) = stack.pop() {
        match &circuit.node(id).kind {
            NodeKind::Input { var, param } => guide.input(*var, *param, unit),
            NodeKind::Product { factors } => {
                stack.extend(factors.iter().map(|f| (f.node, f.map.as_ref().map_or(unit, |m| m[unit] as usize))));
            }
            NodeKind::Sum { groups } => {
                let (index, unit) = group_of(circuit, groups, unit);
                let chosen = guide.choose(&groups[index], unit);
                stack.push(child_of(&groups[index], chosen));
            }
        }
    }
}

/// Decides where the ways down of many rows lead.
pub(super) trait RowsGuide {
    /// As [`Guide::choose`], for a row; the group is number `index` of sum `node`.
    fn choose(&mut self, row: usize, node: NodeId, index: usize, group: &SumGroup, unit: usize) -> usize;

    /// As [`Guide::input`], for a row.
    fn input(&mut self, row: usize, var: usize, param: ParamId, unit: usize);

    /// The same for all rows that reach an input, each with the unit that it reaches.
    fn inputs(&mut self, rows: &[(usize, usize)], var: usize, param: ParamId) {
        rows.iter().for_each(|&(row, unit)| self.input(row, var, param, unit));
    }
}

/// Draws one induced tree for each of so many rows, node by node for all of them: what a node needs is then in a cache.
/// An induced tree passes a node once at the most, because factors of a product have no variable in common.
pub(super) fn descend_rows(circuit: &Circuit, num_rows: usize, guide: &mut impl RowsGuide) {
    /// No unit of the node is passed.
    const NONE: u32 = u32::MAX;
    // [nodes × rows].
    let mut passed = vec![NONE; circuit.nodes().len() * num_rows];
    let root = circuit.root().index() * num_rows;
    passed[root..root + num_rows].fill(0);
    let mut reached = Vec::with_capacity(num_rows);
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let (below, own) = passed.split_at_mut(i * num_rows);
        let rows = own[..num_rows].iter().enumerate().filter(|(_, unit)| **unit != NONE);
        let rows = rows.map(|(row, &unit)| (row, unit as usize));
        match &node.kind {
            NodeKind::Input { var, param } => {
                reached.clear();
                reached.extend(rows);
                guide.inputs(&reached, *var, *param);
            }
            NodeKind::Product { factors } => {
                for (row, unit) in rows {
                    for factor in factors {
                        let unit = factor.map.as_ref().map_or(unit as u32, |map| map[unit]);
                        below[factor.node.index() * num_rows + row] = unit;
                    }
                }
            }
            NodeKind::Sum { groups } => {
                for (row, unit) in rows {
                    let (index, unit) = group_of(circuit, groups, unit);
                    let group = &groups[index];
                    let chosen = guide.choose(row, NodeId(i as u32), index, group, unit);
                    let (node, unit) = child_of(group, chosen);
                    below[node.index() * num_rows + row] = unit as u32;
                }
            }
        }
    }
}

/// The group that a unit of a sum belongs to, and which of its units it is.
fn group_of(circuit: &Circuit, groups: &[SumGroup], mut unit: usize) -> (usize, usize) {
    for (index, group) in groups.iter().enumerate() {
        let units = circuit.params()[group.param.index()].units;
        if unit < units {
            return (index, unit);
        }
        unit -= units;
    }
    unreachable!("a sum has as many units as its groups together")
}

/// The node and unit that a column of a group's weights stands for.
fn child_of(group: &SumGroup, mut chosen: usize) -> (NodeId, usize) {
    for child in &group.children {
        if chosen < child.units {
            return (child.node, child.start + chosen);
        }
        chosen -= child.units;
    }
    unreachable!("a param row is as long as its children together")
}

/// The weights of one unit of a group.
pub(super) fn weights_of<'a>(params: &'a Params, group: &SumGroup, unit: usize) -> &'a [f32] {
    let block = params.layout().block(group.param);
    let start = block.values.start + unit * block.values_per_row;
    &params.values()[start..start + block.values_per_row]
}

/// Of each variable, how many categories any of its inputs may draw from; `None` where one draws real numbers.
pub(super) fn categories_drawn(circuit: &Circuit) -> Vec<Option<u32>> {
    let mut all = vec![Some(0); circuit.num_vars()];
    for node in circuit.nodes() {
        if let NodeKind::Input { var, param } = &node.kind {
            all[*var] = all[*var].zip(circuit.distribution(*param).num_cats()).map(|(a, b)| a.max(b));
        }
    }
    all
}

/// Drawn values, part by part, in the narrowest column type that holds all that might have been drawn.
pub(super) fn narrowest<'a>(cats: Option<u32>, parts: impl Iterator<Item = &'a [f64]>) -> Values {
    match cats {
        None => Values::F32(converted(parts, |v| v as f32)),
        Some(0..=256) => Values::U8(converted(parts, |v| v as u8)),
        Some(257..=65_536) => Values::U16(converted(parts, |v| v as u16)),
        Some(_) => Values::U32(converted(parts, |v| v as u32)),
    }
}

/// A loop for each part: the compiler makes vectors of it.
fn converted<'a, T>(parts: impl Iterator<Item = &'a [f64]>, convert: impl Fn(f64) -> T) -> Vec<T> {
    let mut values = Vec::new();
    parts.for_each(|part| values.extend(part.iter().map(|&v| convert(v))));
    values
}
