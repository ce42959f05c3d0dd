//! Turns a circuit into a plan: first who needs a buffer, then the steps.

use super::{
    Buffer, FactorSource, FlowTarget, GainBelow, InputStep, Plan, PlanFactor, PlanGroup, ProductStep, Step, SumStep,
    Use, View,
};
use crate::circuit::{Circuit, NodeId, NodeKind, Slice};

/// Lays out the buffers and writes the steps.
pub(super) fn build(circuit: &Circuit) -> Plan {
    let needs_value = inputs_with_values(circuit);
    let mut values = Allocator::default();
    let mut flows = Allocator::default();
    let parents = sole_product_parents(circuit);

    // Flow buffers: one per node that does not share its parent's. Own ones are numbered in node order.
    let own: Vec<Option<Buffer>> = (circuit.nodes().iter().zip(&parents))
        .map(|(node, parent)| parent.is_none().then(|| flows.take(node.units)))
        .collect();
    let mut flow_of: Vec<Buffer> = vec![Buffer { at: 0, units: 0, scale: 0 }; own.len()];
    for i in (0..own.len()).rev() {
        flow_of[i] = own[i].unwrap_or_else(|| flow_of[parents[i].expect("a node without flow shares one").index()]);
    }

    let transient = transient_sums(circuit, &parents);
    let mut transient_buffers: Vec<Buffer> = Vec::new();

    // Forwards: value buffers, panels and the uses of parameters.
    let mut value_of: Vec<Option<Buffer>> = Vec::with_capacity(own.len());
    let mut uses = vec![Vec::new(); circuit.params().len()];
    let mut steps = Vec::new();
    for (i, node) in circuit.nodes().iter().enumerate() {
        let flow = flow_of[i];
        let value = match &node.kind {
            NodeKind::Input { var, param } => {
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
                    // `first` is settled below, when parents are met in the order of the backward pass.
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
                let mut plan_groups = Vec::with_capacity(groups.len());
                let mut start = 0;
                for group in groups {
                    let units = circuit.params()[group.param.index()].units;
                    let slices: Vec<View> = group.children.iter().map(view).collect();
                    // A child sum's buffer turns into its G on the way back, while this sum's parameter flows still need
                    // its values: then a panel keeps them.
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
                    let targets = group.children.iter().map(target).collect();
                    let gain_below = match &group.children[..] {
                        [child] if groups.len() == 1 => {
                            below_product(circuit, child.node, &transient, &value_of, &steps)
                        }
                        _ => None,
                    };
                    plan_groups.push(PlanGroup {
                        param: group.param,
                        start,
                        units,
                        panel,
                        gathered,
                        targets,
                        gain_below,
                    });
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
                    let flow = View { buffer: flow, ..gain };
                    uses[group.param.index()].push(Use::Sum { gain, panel: group.panel, flow });
                }
                steps.push(Step::Sum(SumStep {
                    groups: plan_groups,
                    value,
                    flow,
                    clear: Vec::new(),
                    is_transient: transient[i],
                }));
                Some(value)
            }
        };
        value_of.push(value);
    }
    settle_first_contributions(&mut steps, &flows);

    let root = circuit.root().index();
    let widest_panel = steps.iter().map(|step| match step {
        Step::Sum(sum) => sum.groups.iter().map(|g| g.panel.units).max().unwrap_or(0),
        _ => 0,
    });
    Plan {
        root_value: value_of[root].expect("the root has a value buffer"),
        root_flow: flow_of[root],
        uses,
        value_units: values.units,
        flow_units: flows.units,
        num_scales: values.buffers,
        widest_panel: widest_panel.max().unwrap_or(0),
        steps,
    }
}

/// The rows and columns of the matrix that a map transposes, if it takes all `units` of a factor: unit (i, h) of the result
/// is unit (h, i), numbered h·cols + i.
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

/// Which sums are transient: weights that several nodes share, one group; the only parent is the product of the next
/// node but inputs, with a table at the most; and the next node but inputs after that is the only sum that mixes the
/// product, alone and as a whole. Nothing comes between, so that the shared buffer is nobody else's meanwhile, forwards and
/// backwards. One table: with more, the range of their product would have to be watched.
fn transient_sums(circuit: &Circuit, parents: &[Option<NodeId>]) -> Vec<bool> {
    let mut weight_uses = vec![0usize; circuit.params().len()];
    // For each parent sum, which it is and whether it mixes the node alone and as a whole.
    let mut mixed_by: Vec<Vec<(usize, bool)>> = vec![Vec::new(); circuit.nodes().len()];
    let mut factor_uses = vec![0usize; circuit.nodes().len()];
    for (i, node) in circuit.nodes().iter().enumerate() {
        match &node.kind {
            NodeKind::Input { .. } => {}
            NodeKind::Product { factors } => factors.iter().for_each(|f| factor_uses[f.node.index()] += 1),
            NodeKind::Sum { groups } => {
                for group in groups {
                    weight_uses[group.param.index()] += 1;
                    for child in &group.children {
                        let whole = groups.len() == 1
                            && group.children.len() == 1
                            && child.start == 0
                            && child.units == circuit.node(child.node).units;
                        mixed_by[child.node.index()].push((i, whole));
                    }
                }
            }
        }
    }
    let is_table = |node: NodeId| match &circuit.node(node).kind {
        NodeKind::Input { param, .. } => circuit.distribution(*param).is_table(),
        _ => false,
    };
    let is_input = |node: usize| matches!(circuit.nodes()[node].kind, NodeKind::Input { .. });
    let is_transient = |i: usize| {
        let NodeKind::Sum { groups } = &circuit.nodes()[i].kind else { return false };
        let [group] = &groups[..] else { return false };
        let Some(product) = parents[i] else { return false };
        let NodeKind::Product { factors } = &circuit.node(product).kind else { return false };
        let others = factors.iter().filter(|f| f.node.index() != i);
        weight_uses[group.param.index()] > 1
            && (i + 1..product.index()).all(is_input)
            && factors.iter().all(|f| f.map.is_none())
            && others.clone().count() + 1 == factors.len()
            && others.into_iter().all(|f| is_table(f.node) && mixed_by[f.node.index()].is_empty())
            && factors.len() <= 2
            && matches!(mixed_by[product.index()][..], [(above, true)] if (product.index() + 1..above).all(is_input))
            && factor_uses[product.index()] == 0
    };
    (0..circuit.nodes().len()).map(is_transient).collect()
}

/// How the sum above a product computes G of the transient sum below it.
fn below_product(
    circuit: &Circuit,
    product: NodeId,
    transient: &[bool],
    value_of: &[Option<Buffer>],
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
    Some(GainBelow { value, panel: sum.groups[0].panel.buffer, table })
}

/// Hands out buffers one after the other.
#[derive(Default)]
struct Allocator {
    units: usize,
    buffers: usize,
}

impl Allocator {
    fn take(&mut self, units: usize) -> Buffer {
        let buffer = Buffer { at: self.units, units, scale: self.buffers };
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

/// Marks, in the order of the backward pass, who reaches a flow buffer first. A first contribution to a whole buffer
/// sets it; where it covers only part, the buffer is cleared beforehand.
fn settle_first_contributions(steps: &mut [Step], flows: &Allocator) {
    let mut reached = vec![false; flows.buffers];
    for step in steps.iter_mut().rev() {
        match step {
            Step::Input(_) => {}
            Step::Product(product) => {
                for target in product.factors.iter_mut().filter_map(|f| f.flow.as_mut()) {
                    target.first = !std::mem::replace(&mut reached[target.buffer.scale], true);
                }
            }
            Step::Sum(sum) => {
                let whole = |group: &PlanGroup| {
                    group.targets.len() == 1 && group.panel.units == group.targets[0].0.buffer.units
                };
                let sets_whole = sum.groups.len() == 1 && whole(&sum.groups[0]);
                for (target, _) in sum.groups.iter_mut().flat_map(|g| &mut g.targets) {
                    if !std::mem::replace(&mut reached[target.buffer.scale], true) {
                        if sets_whole {
                            target.first = true;
                        } else {
                            sum.clear.push(target.buffer);
                        }
                    }
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
