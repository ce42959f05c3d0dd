//! The way down: one child at every sum, all factors of every product, and so one input for each variable.
//!
//! `sample`, `sample_given` and `mpe` walk it alike and differ in how a sum chooses and in what becomes of an input.

use crate::circuit::{Circuit, NodeId, NodeKind, ParamId, SumGroup};
use crate::data::Values;

/// Decides where the way down leads.
pub(super) trait Guide {
    /// Which column of a group's weights unit `unit` of the group takes; the group is number `index` of sum `node`.
    fn choose(&mut self, node: NodeId, index: usize, group: &SumGroup, unit: usize) -> usize;

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
                let mut unit = unit;
                let (index, group) = groups
                    .iter()
                    .enumerate()
                    .find(|(_, g)| {
                        let units = circuit.params()[g.param.index()].units;
                        let here = unit < units;
                        unit -= if here { 0 } else { units };
                        here
                    })
                    .expect("a sum has as many units as its groups together");
                let mut chosen = guide.choose(id, index, group, unit);
                let child = group
                    .children
                    .iter()
                    .find(|c| {
                        let here = chosen < c.units;
                        chosen -= if here { 0 } else { c.units };
                        here
                    })
                    .expect("a param row is as long as its children together");
                stack.push((child.node, child.start + chosen));
            }
        }
    }
}

/// The values of a variable in the narrowest column type that holds whatever any of its inputs may draw.
pub(super) fn narrowest(circuit: &Circuit, var: usize, values: &[f64]) -> Values {
    let families = circuit.nodes().iter().filter_map(|node| match &node.kind {
        NodeKind::Input { var: v, param } if *v == var => Some(circuit.distribution(*param).num_cats()),
        _ => None,
    });
    // `None` where an input draws real numbers.
    let cats = families.reduce(|a, b| Some(a?.max(b?))).flatten();
    match cats {
        None => Values::F32(values.iter().map(|&v| v as f32).collect()),
        Some(0..=256) => Values::U8(values.iter().map(|&v| v as u8).collect()),
        Some(257..=65_536) => Values::U16(values.iter().map(|&v| v as u16).collect()),
        Some(_) => Values::U32(values.iter().map(|&v| v as u32).collect()),
    }
}
