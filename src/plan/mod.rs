//! A circuit as a flat program: which buffers there are, and what is computed from what.
//!
//! A backend walks [`Plan::steps`] forwards to compute values and backwards to compute flows, then gathers the flows
//! of each parameter block over [`Plan::uses`]. The plan knows rows only as "so many numbers each": how many rows are
//! worked on at once, and where, is the backend's choice.
//!
//! Buffers are numbered in the order of the nodes, so a step reads only buffers that lie below those it writes, but for
//! the transient ones. Values: every sum, every product and every input that some sum mixes directly has a buffer
//! `[rows × units]`; other table inputs are gathered where they are multiplied. A sum group over several slices, or
//! over another sum, has a *panel*: its children side by side at one common scale. Flows: a node with a single parent
//! that is a product has the same flow as that product, unit by unit, and shares its buffer. A sum of shared weights
//! whose only use is the next product, with a table at the most, which the next sum mixes, is *transient*: all such
//! sums of a width have one value buffer, which stays in a cache. Its flow, and that of a product without a table, is
//! kept nowhere: nobody needs it but the step below.

mod build;
mod transient;

use std::sync::Arc;

use crate::circuit::{Circuit, ParamId};

/// A buffer `[rows × units]` with one scale per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Units before it: rows × `at` is where it starts.
    pub at: usize,
    /// Numbers per row.
    pub units: usize,
    /// Its number among value or flow buffers; for a value buffer also which row of scales belongs to it.
    pub id: usize,
}

/// Consecutive columns of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: Buffer,
    /// First column.
    pub start: usize,
    /// How many.
    pub units: usize,
}

/// What is computed for one node.
#[derive(Clone, Debug)]
pub enum Step {
    /// Values of an input; only those that need a buffer have a step.
    Input(InputStep),
    /// A product.
    Product(ProductStep),
    /// A sum.
    Sum(SumStep),
}

impl Step {
    /// Shows every flow buffer that this step reads or writes in the backward pass.
    pub fn for_each_flow(&mut self, mut see: impl FnMut(&mut Buffer)) {
        match self {
            Step::Input(_) => {}
            Step::Product(product) => {
                product.flow.iter_mut().for_each(&mut see);
                product.factors.iter_mut().filter_map(|f| f.flow.as_mut()).for_each(|target| see(&mut target.buffer));
            }
            Step::Sum(sum) => {
                sum.flow.iter_mut().for_each(&mut see);
                sum.clear.iter_mut().for_each(&mut see);
                let targets = sum.groups.iter_mut().flat_map(|group| &mut group.targets);
                targets.for_each(|(target, _)| see(&mut target.buffer));
                sum.gain_below.iter_mut().filter_map(|below| below.flow.as_mut()).for_each(&mut see);
            }
        }
    }
}

/// Fills a buffer with the values of input units.
#[derive(Clone, Debug)]
pub struct InputStep {
    /// The variable.
    pub var: usize,
    /// The distributions.
    pub param: ParamId,
    /// Where the values go.
    pub value: Buffer,
}

/// Multiplies factors, unit by unit.
#[derive(Clone, Debug)]
pub struct ProductStep {
    /// What is multiplied.
    pub factors: Vec<PlanFactor>,
    /// Where the values go.
    pub value: Buffer,
    /// The product's flow; `None` where only a transient sum has a use for it.
    pub flow: Option<Buffer>,
}

/// One factor of a product.
#[derive(Clone, Debug)]
pub struct PlanFactor {
    /// Where its values come from.
    pub source: FactorSource,
    /// Product unit `k` takes unit `map[k]`; `None` takes unit `k`.
    pub map: Option<Arc<[u32]>>,
    /// Where the map is the transpose of a matrix: the rows and columns of the factor's units.
    pub transpose: Option<(usize, usize)>,
    /// Where the product's flow goes; `None` where the factor shares the product's flow buffer, or is transient.
    pub flow: Option<FlowTarget>,
}

/// Where a factor's values come from.
#[derive(Clone, Copy, Debug)]
pub enum FactorSource {
    /// The table row of the variable's category.
    Table {
        /// The variable.
        var: usize,
        /// The table.
        param: ParamId,
    },
    /// A buffer computed before.
    Value(Buffer),
}

/// Where flow goes: into a buffer, as its first contribution or on top of others.
#[derive(Clone, Copy, Debug)]
pub struct FlowTarget {
    /// The buffer.
    pub buffer: Buffer,
    /// Whether nothing has flowed there yet, so that the target must be set rather than added to.
    pub first: bool,
}

/// Mixes children through weights.
#[derive(Clone, Debug)]
pub struct SumStep {
    /// Its groups of units.
    pub groups: Vec<PlanGroup>,
    /// Where the values go. The backward pass leaves G = flow/value here, which the parameter flows need.
    pub value: Buffer,
    /// The sum's flow; `None` where it is transient and shares none.
    pub flow: Option<Buffer>,
    /// Flow buffers that this step is the first to reach, but not as a whole: they start at zero.
    pub clear: Vec<Buffer>,
    /// Whether `value` is shared with other sums: it is read by the very next product and then forgotten. In the
    /// backward pass the sum above that product computes G and leaves it here ([`GainBelow`]).
    pub is_transient: bool,
    /// Set where the sum mixes a product of a transient sum, and of a table if there is one: its groups then cover that
    /// product, each unit once, and none of them has targets.
    pub gain_below: Option<GainBelow>,
}

/// One group of a sum's units.
#[derive(Clone, Debug)]
pub struct PlanGroup {
    /// The weights, `[units × cols]`.
    pub param: ParamId,
    /// The group's columns in the sum's buffer.
    pub start: usize,
    /// Rows of the weights.
    pub units: usize,
    /// What is mixed: a part of a child's buffer, or a panel of its own.
    pub panel: View,
    /// The slices that the panel is gathered from, if it is one of its own.
    pub gathered: Vec<View>,
    /// For each slice, where its flow goes and the first column there.
    pub targets: Vec<(FlowTarget, usize)>,
}

/// G of a transient sum s below a product p = s ⊙ table. With B = G·W of the sum above, the flow of p and s is
/// v_p ⊙ B, and so G_s = flow/v_s = B ⊙ table: neither v_s nor a division is needed.
#[derive(Clone, Debug)]
pub struct GainBelow {
    /// Where G goes: the transient buffer.
    pub value: Buffer,
    /// What s mixes, whose scale G has.
    pub panel: Buffer,
    /// The other factor, if there is one: variable and table.
    pub table: Option<(usize, ParamId)>,
    /// Where the product takes the transpose of s: rows and columns of the units of s.
    pub transpose: Option<(usize, usize)>,
    /// Where the flow of p goes, if somebody needs it.
    pub flow: Option<Buffer>,
}

/// One place where a parameter block is used, for its flows.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// A sum group: flow = W ⊙ (Gᵀ·panel).
    Sum {
        /// G of the group.
        gain: View,
        /// What it mixes.
        panel: View,
        /// The group's flow, if it is kept.
        flow: Option<View>,
    },
    /// An input: the flow of each row belongs to that row's value.
    Input {
        /// The variable.
        var: usize,
        /// The flow of the input's units.
        flow: Buffer,
    },
}

impl Use {
    /// The flow of the units that use the block, if it is kept.
    pub fn flow_mut(&mut self) -> Option<&mut Buffer> {
        match self {
            Use::Sum { flow, .. } => flow.as_mut().map(|view| &mut view.buffer),
            Use::Input { flow, .. } => Some(flow),
        }
    }
}

/// A circuit as a program.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In order of evaluation.
    pub steps: Vec<Step>,
    /// The root's value, one unit.
    pub root_value: Buffer,
    /// The root's flow, one unit.
    pub root_flow: Buffer,
    /// Where each parameter block is used.
    pub uses: Vec<Vec<Use>>,
    /// Numbers per row in all value buffers.
    pub value_units: usize,
    /// Numbers per row in the memory of all flow buffers.
    pub flow_units: usize,
    /// Scales per row.
    pub num_scales: usize,
    /// The widest panel of any sum, or product whose flow is spread at once: what the backward pass needs as scratch,
    /// per row.
    pub widest_panel: usize,
}

impl Plan {
    /// The program of a circuit.
    pub fn new(circuit: &Circuit) -> Self {
        build::build(circuit, true)
    }

    /// The program of a circuit in which no sum is transient: every node keeps its values and has a flow. For a device
    /// that works on all rows of a node at once, where nothing stays in a cache until it is used.
    pub fn whole(circuit: &Circuit) -> Self {
        build::build(circuit, false)
    }

    /// Shows every mention of a flow buffer, so that a backend can look for it or give it another place.
    pub fn for_each_flow(&mut self, mut see: impl FnMut(&mut Buffer)) {
        see(&mut self.root_flow);
        self.steps.iter_mut().for_each(|step| step.for_each_flow(&mut see));
        for used in self.uses.iter_mut().flatten() {
            used.flow_mut().into_iter().for_each(&mut see);
        }
    }

    /// Bytes that one row takes in values, flows, scales and scratch.
    pub fn bytes_per_row(&self) -> usize {
        4 * (self.value_units + self.flow_units + self.widest_panel) + 16 * self.num_scales + 32
    }
}
