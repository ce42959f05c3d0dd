//! Turns a circuit into a plan: first who needs a buffer, then the steps.

use super::{
    Buffer, FactorSource, FlowTarget, GainBelow, InputStep, Plan, PlanFactor, PlanGroup, ProductStep, Step, SumStep,
    Use, View,
};
use crate::circuit::{Circuit, Factor, Node, NodeId, NodeKind, Slice, SumGroup};

/// Lays out the buffers and writes the steps. Without `with_transients` no sum is transient.
pub(super) fn build(circuit: &Circuit, with_transients: bool) -> Plan {
    let needs_value = inputs_with_values(circuit);
    let mut values = Allocator::default();
    let mut flows = Allocator::default();
    let parents = sole_product_parents(circuit);
    let transient = match with_transients {
        true => transient_sums(circuit),
        false => vec![false; circuit.nodes().len()],
    };

    // Flow buffers: one per node that does not share its parent's and whose flow is kept. Own ones are numbered in node
    // order.
    let own: Vec<Option<Buffer>> = (circuit.nodes().iter().zip(&parents).enumerate())
        .map(|(i, (node, parent))| {
            let is_kept = !transient[i] && !is_flowless(node, &transient);
            (parent.is_none() && is_kept).then(|| flows.take(node.units))
        })
        .collect();
    let mut flow_of = own.clone();
    for i in (0..own.len()).rev() {
        flow_of[i] = own[i].or_else(|| parents[i].and_then(|parent| flow_of[parent.index()]));
    }
    let mut transient_buffers: Vec<Buffer> = Vec::new();

    // Forwards: value buffers, panels and the uses of parameters.
    let mut value_of: Vec<Option<Buffer>> = Vec::with_capacity(own.len());
    let mut uses = vec![Vec::new(); circuit.params().len()];
    let mut steps = Vec::new();
    for (i, node) in circuit.nodes().iter().enumerate() {
        let flow = flow_of[i];
        let value = match &node.kind {
            NodeKind::Input { var, param } => {
                let flow = flow.expect("an input's flow is kept");
                uses[param.index()].push(Use::Input { var: *var, flow });
                let value = needs_value[i].then(|| values.take(node.units));
                if let Some(value) = value {
                    steps.push(Step::Input(InputStep { var: *var, param: *param, value }));
                }
                value
            }
            NodeKind::Product { factors } => {
                let factors = factors.iter().map(|factor| {
                    let source = match (&circuit.node(factor.node).kind, value_of[factor.node.index()]) {
                        (_, Some(value)) => FactorSource::Value(value),
                        (NodeKind::Input { var, param }, None) => FactorSource::Table { var: *var, param: *param },
                        _ => unreachable!("only inputs go without a value buffer"),
                    };
                    // `first` is set below, when parents are met in the order of the backward pass.
                    let flow = own[factor.node.index()].map(|buffer| FlowTarget { buffer, first: false });
                    PlanFactor {
                        source,
                        map: factor.map.clone(),
                        transpose: transpose(factor.map.as_deref(), circuit.node(factor.node).units),
                        flow,
                    }
                });
                let factors = factors.collect();
                let value = values.take(node.units);
                steps.push(Step::Product(ProductStep { factors, value, flow }));
                Some(value)
            }
            NodeKind::Sum { groups } => {
                let view = |slice: &Slice| View {
                    buffer: value_of[slice.node.index()].expect("a sum's children have value buffers"),
                    start: slice.start,
                    units: slice.units,
                };
                let first = groups.first().and_then(|group| group.children.first());
                let gain_below =
                    first.and_then(|child| below_product(circuit, child.node, &transient, &value_of, &flow_of, &steps));
                let mut plan_groups = Vec::with_capacity(groups.len());
                let mut start = 0;
                for group in groups {
                    let units = circuit.params()[group.param.index()].units;
                    let slices: Vec<View> = group.children.iter().map(view).collect();
                    // A child sum's buffer turns into its G on the way back, while this sum's parameter flows still
                    // need its values: then a panel keeps them.
                    let keeps_values = |c: &Slice| !matches!(circuit.node(c.node).kind, NodeKind::Sum { .. });
                    let (panel, gathered) = match slices[..] {
                        [only] if keeps_values(&group.children[0]) => (only, Vec::new()),
                        _ => {
                            let cols = slices.iter().map(|s| s.units).sum();
                            (View { buffer: values.take(cols), start: 0, units: cols }, slices)
                        }
                    };
                    let target = |slice: &Slice| {
                        let buffer = own[slice.node.index()].expect("a sum's child has a flow of its own");
                        (FlowTarget { buffer, first: false }, slice.start)
                    };
                    let targets = match gain_below {
                        Some(_) => Vec::new(),
                        None => group.children.iter().map(target).collect(),
                    };
                    plan_groups.push(PlanGroup { param: group.param, start, units, panel, gathered, targets });
                    start += units;
                }
                let value = match transient_buffers.iter().find(|buffer| buffer.units == node.units) {
                    Some(buffer) if transient[i] => *buffer,
                    _ => values.take(node.units),
                };
                if transient[i] && !transient_buffers.contains(&value) {
                    transient_buffers.push(value);
                }
                for group in &plan_groups {
                    let gain = View { buffer: value, start: group.start, units: group.units };
                    let flow = flow.map(|buffer| View { buffer, ..gain });
                    uses[group.param.index()].push(Use::Sum { gain, panel: group.panel, flow });
                }
                steps.push(Step::Sum(SumStep {
                    groups: plan_groups,
                    value,
                    flow,
                    clear: Vec::new(),
                    is_transient: transient[i],
                    gain_below,
                }));
                Some(value)
            }
        };
        value_of.push(value);
    }
    mark_first_contributions(&mut steps, &flows);

    let root = circuit.root().index();
    let widest_panel = steps.iter().map(|step| match step {
        Step::Sum(SumStep { gain_below: Some(_), groups, .. }) => groups[0].panel.buffer.units,
        Step::Sum(sum) => sum.groups.iter().map(|g| g.panel.units).max().unwrap_or(0),
        _ => 0,
    });
    Plan {
        root_value: value_of[root].expect("the root has a value buffer"),
        root_flow: flow_of[root].expect("the root's flow is kept"),
        uses,
        value_units: values.units,
        flow_units: flows.units,
        num_scales: values.buffers,
        widest_panel: widest_panel.max().unwrap_or(0),
        steps,
    }
}

/// The rows and columns of the matrix that a map transposes, if it takes all `units` of a factor: unit (i, h) of the
/// result is unit (h, i), numbered h·cols + i.
fn transpose(map: Option<&[u32]>, units: usize) -> Option<(usize, usize)> {
    let map = map.filter(|map| map.len() == units)?;
    let cols = *map.get(1)? as usize;
    if cols < 2 || !map.len().is_multiple_of(cols) {
        return None;
    }
    let rows = map.len() / cols;
    let is_transpose = map.iter().enumerate().all(|(k, &unit)| unit as usize == (k % rows) * cols + k / rows);
    is_transpose.then_some((rows, cols))
}

/// Which sums are transient: their weights are shared by several nodes, and their groups, if there are several, mix
/// parts of one product; they are used once, by the product of the next node but inputs, as they are or transposed,
/// with a table at the most; and the next node but inputs after that is the only one that uses the product, a sum whose
/// groups cover it, each unit once. Nothing comes between, so that the shared buffer is nobody else's meanwhile,
/// forwards and backwards. One table: with more, the range of their product would have to be watched.
fn transient_sums(circuit: &Circuit) -> Vec<bool> {
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

/// Whether groups mix one product, each unit of it once.
fn covers_one_product(circuit: &Circuit, groups: &[SumGroup]) -> bool {
    let parts = groups.iter().flat_map(|group| &group.children).map(|child| (child.start, child.units));
    parts_of_one_product(circuit, groups).is_some_and(|product| are_whole(parts.collect(), circuit.node(product).units))
}

/// Whether parts, each a start and a length, make up a whole without gap or overlap.
fn are_whole(mut parts: Vec<(usize, usize)>, units: usize) -> bool {
    parts.sort_unstable();
    parts.into_iter().try_fold(0, |at, (start, len)| (start == at).then_some(at + len)) == Some(units)
}

/// Whether nobody needs the flow of a node: a product of a transient sum, with no table that learns from it.
fn is_flowless(node: &Node, transient: &[bool]) -> bool {
    let NodeKind::Product { factors } = &node.kind else { return false };
    matches!(factors[..], [Factor { node, .. }] if transient[node.index()])
}

/// How the sum above a product computes G of the transient sum below it.
fn below_product(
    circuit: &Circuit,
    product: NodeId,
    transient: &[bool],
    value_of: &[Option<Buffer>],
    flow_of: &[Option<Buffer>],
    steps: &[Step],
) -> Option<GainBelow> {
    let NodeKind::Product { factors } = &circuit.node(product).kind else { return None };
    let below = factors.iter().find(|factor| transient[factor.node.index()])?;
    let value = value_of[below.node.index()]?;
    // Nothing has come between: the last sum that wrote to the shared buffer is this one.
    let sum = steps.iter().rev().find_map(|step| match step {
        Step::Sum(sum) if sum.value == value => Some(sum),
        _ => None,
    })?;
    let table = factors.iter().find_map(|factor| match &circuit.node(factor.node).kind {
        NodeKind::Input { var, param } => Some((*var, *param)),
        _ => None,
    });
    let transpose = transpose(below.map.as_deref(), value.units);
    let flow = flow_of[product.index()];
    Some(GainBelow { value, panel: sum.groups[0].panel.buffer, table, transpose, flow })
}

/// Hands out buffers one after the other.
#[derive(Default)]
struct Allocator {
    units: usize,
    buffers: usize,
}

impl Allocator {
    fn take(&mut self, units: usize) -> Buffer {
        let buffer = Buffer { at: self.units, units, id: self.buffers };
        self.units += units;
        self.buffers += 1;
        buffer
    }
}

/// Which inputs need a value buffer: those that a sum mixes, the root, and all that are not tables.
fn inputs_with_values(circuit: &Circuit) -> Vec<bool> {
    let mut needs: Vec<bool> = circuit
        .nodes()
        .iter()
        .map(|node| match &node.kind {
            NodeKind::Input { param, .. } => !circuit.distribution(*param).is_table(),
            _ => true,
        })
        .collect();
    needs[circuit.root().index()] = true;
    for node in circuit.nodes() {
        if let NodeKind::Sum { groups } = &node.kind {
            groups.iter().flat_map(|g| &g.children).for_each(|c| needs[c.node.index()] = true);
        }
    }
    needs
}

/// For each node, its parent if that is one product, used once and unit by unit: then both have the same flow.
fn sole_product_parents(circuit: &Circuit) -> Vec<Option<NodeId>> {
    let mut parents = vec![None; circuit.nodes().len()];
    let mut uses = vec![0usize; circuit.nodes().len()];
    for (i, node) in circuit.nodes().iter().enumerate() {
        match &node.kind {
            NodeKind::Input { .. } => {}
            NodeKind::Product { factors } => {
                for factor in factors {
                    uses[factor.node.index()] += 1;
                    // A map, even the identity, keeps its own buffer: one more copy, one rule less.
                    uses[factor.node.index()] += usize::from(factor.map.is_some());
                    parents[factor.node.index()] = Some(NodeId(i as u32));
                }
            }
            NodeKind::Sum { groups } => {
                groups.iter().flat_map(|g| &g.children).for_each(|c| uses[c.node.index()] += 2);
            }
        }
    }
    parents.into_iter().zip(uses).map(|(parent, uses)| parent.filter(|_| uses == 1)).collect()
}

/// Marks, in the order of the backward pass, who reaches a flow buffer first. Where the contributions of a first step
/// make up the whole buffer they set it; where they cover only part, or a part twice, it is cleared beforehand.
fn mark_first_contributions(steps: &mut [Step], flows: &Allocator) {
    let mut reached = vec![false; flows.buffers];
    for step in steps.iter_mut().rev() {
        match step {
            Step::Input(_) => {}
            Step::Product(product) => {
                for target in product.factors.iter_mut().filter_map(|f| f.flow.as_mut()) {
                    target.first = !std::mem::replace(&mut reached[target.buffer.id], true);
                }
            }
            Step::Sum(SumStep { gain_below: Some(below), .. }) => {
                below.flow.into_iter().for_each(|buffer| reached[buffer.id] = true);
            }
            Step::Sum(sum) => {
                // (buffer, start, units) of every target.
                let units = |group: &PlanGroup, i: usize| group.gathered.get(i).map_or(group.panel.units, |v| v.units);
                let parts: Vec<(Buffer, usize, usize)> = (sum.groups.iter())
                    .flat_map(|g| g.targets.iter().enumerate().map(|(i, (t, start))| (t.buffer, *start, units(g, i))))
                    .collect();
                let of = |buffer: Buffer| parts.iter().filter(move |p| p.0 == buffer).map(|p| (p.1, p.2)).collect();
                let mut set = Vec::new();
                for (target, _) in sum.groups.iter_mut().flat_map(|g| &mut g.targets) {
                    let buffer = target.buffer;
                    if !std::mem::replace(&mut reached[buffer.id], true) {
                        match are_whole(of(buffer), buffer.units) {
                            true => set.push(buffer),
                            false => sum.clear.push(buffer),
                        }
                    }
                    target.first = set.contains(&buffer);
                }
            }
        }
    }
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
