//! Turns a circuit into a plan: first who needs a buffer, then the steps.

use super::transient::{are_whole, is_flowless, transient_sums, transpose};
use super::{
    Buffer, FactorSource, FlowTarget, GainBelow, InputStep, Plan, PlanFactor, PlanGroup, ProductStep, Step, SumStep,
    Use, View,
};
use crate::circuit::{Circuit, Factor, NodeId, NodeKind, ParamId, Slice, SumGroup};

/// Lays out the buffers and writes the steps. Without `with_transients` no sum is transient.
pub(super) fn build(circuit: &Circuit, with_transients: bool) -> Plan {
    let mut builder = Builder::new(circuit, with_transients);
    for (i, node) in circuit.nodes().iter().enumerate() {
        let value = match &node.kind {
            NodeKind::Input { var, param } => builder.input(i, *var, *param),
            NodeKind::Product { factors } => Some(builder.product(i, factors)),
            NodeKind::Sum { groups } => Some(builder.sum(i, groups)),
        };
        builder.value_of.push(value);
    }
    builder.finish()
}

/// A plan on its way, node by node in the order of the forward pass.
struct Builder<'c> {
    circuit: &'c Circuit,
    /// Inputs that need a value buffer.
    needs_value: Vec<bool>,
    /// Sums that are forgotten as soon as they are used.
    transient: Vec<bool>,
    values: Allocator,
    flows: Allocator,
    /// The flow buffer that a node has for itself,
    own: Vec<Option<Buffer>>,
    /// and the one that it uses: its own, or its parent's.
    flow_of: Vec<Option<Buffer>>,
    /// The value buffers of the nodes so far.
    value_of: Vec<Option<Buffer>>,
    /// Shared by the transient sums of one size.
    transient_buffers: Vec<Buffer>,
    /// Of each parameter block.
    uses: Vec<Vec<Use>>,
    steps: Vec<Step>,
}

impl<'c> Builder<'c> {
    /// Decides who needs which buffer, and hands out those of flows.
    fn new(circuit: &'c Circuit, with_transients: bool) -> Self {
        let parents = sole_product_parents(circuit);
        let transient = match with_transients {
            true => transient_sums(circuit),
            false => vec![false; circuit.nodes().len()],
        };
        // One per node that does not share its parent's and whose flow is kept, numbered in node order.
        let mut flows = Allocator::default();
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
        Self {
            circuit,
            needs_value: inputs_with_values(circuit),
            transient,
            values: Allocator::default(),
            flows,
            value_of: Vec::with_capacity(own.len()),
            own,
            flow_of,
            transient_buffers: Vec::new(),
            uses: vec![Vec::new(); circuit.params().len()],
            steps: Vec::new(),
        }
    }

    /// An input: a step only where its values are kept; else whoever multiplies it reads its table.
    fn input(&mut self, i: usize, var: usize, param: ParamId) -> Option<Buffer> {
        let flow = self.flow_of[i].expect("an input's flow is kept");
        self.uses[param.index()].push(Use::Input { var, flow });
        let value = self.needs_value[i].then(|| self.values.take(self.circuit.nodes()[i].units));
        if let Some(value) = value {
            self.steps.push(Step::Input(InputStep { var, param, value }));
        }
        value
    }

    fn product(&mut self, i: usize, factors: &[Factor]) -> Buffer {
        let factors = factors.iter().map(|factor| self.factor(factor)).collect();
        let value = self.values.take(self.circuit.nodes()[i].units);
        self.steps.push(Step::Product(ProductStep { factors, value, flow: self.flow_of[i] }));
        value
    }

    fn factor(&self, factor: &Factor) -> PlanFactor {
        let node = self.circuit.node(factor.node);
        let source = match (&node.kind, self.value_of[factor.node.index()]) {
            (_, Some(value)) => FactorSource::Value(value),
            (NodeKind::Input { var, param }, None) => FactorSource::Table { var: *var, param: *param },
            _ => unreachable!("only inputs go without a value buffer"),
        };
        PlanFactor {
            source,
            map: factor.map.clone(),
            transpose: transpose(factor.map.as_deref(), node.units),
            // `first` is set at the end, when parents are met in the order of the backward pass.
            flow: self.own[factor.node.index()].map(|buffer| FlowTarget { buffer, first: false }),
        }
    }

    fn sum(&mut self, i: usize, groups: &[SumGroup]) -> Buffer {
        let first = groups.first().and_then(|group| group.children.first());
        let gain_below = first.and_then(|child| self.gain_below(child.node));
        let mut plan_groups = Vec::with_capacity(groups.len());
        let mut start = 0;
        for group in groups {
            let units = self.circuit.params()[group.param.index()].units;
            let (panel, gathered) = self.panel(group);
            let targets = match gain_below {
                Some(_) => Vec::new(),
                None => group.children.iter().map(|slice| self.flow_target(slice)).collect(),
            };
            plan_groups.push(PlanGroup { param: group.param, start, units, panel, gathered, targets });
            start += units;
        }
        let (value, flow) = (self.sum_value(i), self.flow_of[i]);
        for group in &plan_groups {
            let gain = View { buffer: value, start: group.start, units: group.units };
            let flow = flow.map(|buffer| View { buffer, ..gain });
            self.uses[group.param.index()].push(Use::Sum { gain, panel: group.panel, flow });
        }
        self.steps.push(Step::Sum(SumStep {
            groups: plan_groups,
            value,
            flow,
            clear: Vec::new(),
            is_transient: self.transient[i],
            gain_below,
        }));
        value
    }

    /// What a group multiplies its weights with: its only child as it lies there, or its children gathered side by
    /// side. A child sum's buffer turns into its G on the way back, while this sum's parameter flows still need its
    /// values: then a panel keeps them.
    fn panel(&mut self, group: &SumGroup) -> (View, Vec<View>) {
        let view = |slice: &Slice| View {
            buffer: self.value_of[slice.node.index()].expect("a sum's children have value buffers"),
            start: slice.start,
            units: slice.units,
        };
        let slices: Vec<View> = group.children.iter().map(view).collect();
        let keeps_values = |child: &Slice| !matches!(self.circuit.node(child.node).kind, NodeKind::Sum { .. });
        match slices[..] {
            [only] if keeps_values(&group.children[0]) => (only, Vec::new()),
            _ => {
                let cols = slices.iter().map(|slice| slice.units).sum();
                (View { buffer: self.values.take(cols), start: 0, units: cols }, slices)
            }
        }
    }

    /// Where the flow of a child goes. `first` is set at the end.
    fn flow_target(&self, slice: &Slice) -> (FlowTarget, usize) {
        let buffer = self.own[slice.node.index()].expect("a sum's child has a flow of its own");
        (FlowTarget { buffer, first: false }, slice.start)
    }

    /// The value buffer of a sum: transient ones of a size share theirs.
    fn sum_value(&mut self, i: usize) -> Buffer {
        let units = self.circuit.nodes()[i].units;
        if !self.transient[i] {
            return self.values.take(units);
        }
        if let Some(buffer) = self.transient_buffers.iter().find(|buffer| buffer.units == units) {
            return *buffer;
        }
        let buffer = self.values.take(units);
        self.transient_buffers.push(buffer);
        buffer
    }

    /// How the sum above a product computes G of the transient sum below it; `None` where there is none.
    fn gain_below(&self, product: NodeId) -> Option<GainBelow> {
        let NodeKind::Product { factors } = &self.circuit.node(product).kind else { return None };
        let below = factors.iter().find(|factor| self.transient[factor.node.index()])?;
        let value = self.value_of[below.node.index()]?;
        // Nothing has come between: the last sum that wrote to the shared buffer is this one.
        let sum = self.steps.iter().rev().find_map(|step| match step {
            Step::Sum(sum) if sum.value == value => Some(sum),
            _ => None,
        })?;
        let table = factors.iter().find_map(|factor| match &self.circuit.node(factor.node).kind {
            NodeKind::Input { var, param } => Some((*var, *param)),
            _ => None,
        });
        let transpose = transpose(below.map.as_deref(), value.units);
        let flow = self.flow_of[product.index()];
        Some(GainBelow { value, panel: sum.groups[0].panel.buffer, table, transpose, flow })
    }

    fn finish(mut self) -> Plan {
        mark_first_contributions(&mut self.steps, self.flows.buffers);
        let root = self.circuit.root().index();
        let widest_panel = self.steps.iter().map(|step| match step {
            Step::Sum(SumStep { gain_below: Some(_), groups, .. }) => groups[0].panel.buffer.units,
            Step::Sum(sum) => sum.groups.iter().map(|g| g.panel.units).max().unwrap_or(0),
            _ => 0,
        });
        Plan {
            root_value: self.value_of[root].expect("the root has a value buffer"),
            root_flow: self.flow_of[root].expect("the root's flow is kept"),
            uses: self.uses,
            value_units: self.values.units,
            flow_units: self.flows.units,
            num_scales: self.values.buffers,
            widest_panel: widest_panel.max().unwrap_or(0),
            steps: self.steps,
        }
    }
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
fn mark_first_contributions(steps: &mut [Step], num_flow_buffers: usize) {
    let mut reached = vec![false; num_flow_buffers];
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
