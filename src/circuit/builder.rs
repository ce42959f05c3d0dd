//! Builds a circuit node by node and refuses, at once and by name, what is not one.
//!
//! Every rule is checked where it can first be broken: shapes, smoothness (a sum's children share their scope) and
//! decomposability (a product's factors do not share a variable) when the node is added; a single root over all
//! variables, and that nothing is left dangling, by [`CircuitBuilder::finish`].

use std::sync::Arc;

use super::{
    Circuit, Distribution, Factor, Layout, Node, NodeId, NodeKind, ParamBlock, ParamId, ParamKind, Scope, Slice,
    SumGroup,
};
use crate::error::{Error, Result};

/// Makes a [`Circuit`], children first.
///
/// ```
/// use anemone::circuit::{Categorical, CircuitBuilder};
///
/// // A mixture of two products of coins: x0 and x1 are independent given which of the two it is.
/// let mut circuit = CircuitBuilder::new(2);
/// let coins = [circuit.input_param(2, Categorical::new(2)?)?, circuit.input_param(2, Categorical::new(2)?)?];
/// let x0 = circuit.input(0, coins[0])?;
/// let x1 = circuit.input(1, coins[1])?;
/// let both = circuit.product(&[x0, x1])?;
/// let weights = circuit.sum_param(1, 2)?;
/// circuit.sum(&[both], weights)?;
/// let circuit = circuit.finish()?;
/// assert_eq!(circuit.num_vars(), 2);
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Debug)]
pub struct CircuitBuilder {
    num_vars: usize,
    nodes: Vec<Node>,
    scopes: Vec<Scope>,
    params: Vec<ParamBlock>,
    /// Parameters declared so far.
    num_values: u64,
}

/// More parameters than any machine holds: a size beyond it is a mistake, and must not overflow later.
const MAX_VALUES: u64 = 1 << 44;

impl CircuitBuilder {
    /// A circuit over variables `0..num_vars`, with nothing in it yet.
    pub fn new(num_vars: usize) -> Self {
        Self { num_vars, nodes: Vec::new(), scopes: Vec::new(), params: Vec::new(), num_values: 0 }
    }

    /// Declares mixture weights: `units` rows over `cols` child units.
    pub fn sum_param(&mut self, units: usize, cols: usize) -> Result<ParamId> {
        if cols == 0 {
            return Err(Error::circuit("mixture weights need at least one child unit"));
        }
        self.param(units, ParamKind::Sum { cols })
    }

    /// Declares `units` input distributions.
    pub fn input_param(&mut self, units: usize, distribution: Arc<dyn Distribution>) -> Result<ParamId> {
        self.param(units, ParamKind::Input(distribution))
    }

    fn param(&mut self, units: usize, kind: ParamKind) -> Result<ParamId> {
        if units == 0 {
            return Err(Error::circuit(format!("parameter block {}: no units", self.params.len())));
        }
        let per_row = match &kind {
            ParamKind::Sum { cols } => *cols,
            ParamKind::Input(distribution) => distribution.num_params().max(distribution.num_stats()),
        };
        let num_values = self.num_values.saturating_add((units as u64).saturating_mul(per_row as u64));
        if num_values > MAX_VALUES {
            return Err(Error::option(format!(
                "parameter block {}: {units} rows of {per_row} make more than {MAX_VALUES} parameters",
                self.params.len()
            )));
        }
        self.num_values = num_values;
        self.params.push(ParamBlock { units, kind });
        Ok(ParamId((self.params.len() - 1) as u32))
    }

    /// Adds one input unit over variable `var` for each distribution of the block.
    pub fn input(&mut self, var: usize, param: ParamId) -> Result<NodeId> {
        let place = self.place("input");
        if var >= self.num_vars {
            return Err(Error::circuit(format!("{place}: variable {var} is outside 0..{}", self.num_vars)));
        }
        let block = self.block(&place, param)?;
        if let ParamKind::Sum { .. } = block.kind {
            return Err(Error::circuit(format!(
                "{place}, scope {{{var}}}: parameter block {param} holds mixture weights, not input distributions"
            )));
        }
        let units = block.units;
        let mut scope = Scope::empty(self.num_vars);
        scope.insert(var);
        Ok(self.push(Node { units, kind: NodeKind::Input { var, param } }, scope))
    }

    /// Adds a product of vectors of equal length, unit by unit.
    pub fn product(&mut self, factors: &[NodeId]) -> Result<NodeId> {
        self.mapped_product(factors.iter().map(|&node| Factor { node, map: None }).collect())
    }

    /// Adds a product whose unit `k` multiplies, of each factor, the unit its map gives for `k`.
    pub fn mapped_product(&mut self, factors: Vec<Factor>) -> Result<NodeId> {
        let place = self.place("product");
        let Some(first) = factors.first() else {
            return Err(Error::circuit(format!("{place}: no children")));
        };
        let mut scope = Scope::empty(self.num_vars);
        let mut units = None;
        for (i, factor) in factors.iter().enumerate() {
            let child = self.child(&place, factor.node)?;
            let child_scope = &self.scopes[factor.node.index()];
            if let Some(var) = scope.common(child_scope) {
                let other = factors[..i]
                    .iter()
                    .find(|f| self.scopes[f.node.index()].common(child_scope).is_some())
                    .map_or(first.node, |f| f.node);
                return Err(Error::circuit(format!(
                    "{place}: not decomposable: children {other}, scope {}, and {}, scope {child_scope}, share \
                     variable {var}; the factors of a product must be over different variables",
                    self.scopes[other.index()],
                    factor.node
                )));
            }
            scope.extend(child_scope);
            if let Some(&out) = factor.map.as_deref().unwrap_or(&[]).iter().find(|&&u| u as usize >= child.units) {
                return Err(Error::circuit(format!(
                    "{place}: child {}, scope {child_scope}, has {} units, the map names unit {out}",
                    factor.node, child.units
                )));
            }
            let given = factor.map.as_ref().map_or(child.units, |map| map.len());
            if *units.get_or_insert(given) != given || given == 0 {
                return Err(Error::circuit(format!(
                    "{place}: child {}, scope {child_scope}, gives {given} units where child {} gives {}",
                    factor.node,
                    first.node,
                    units.unwrap_or(0)
                )));
            }
        }
        let units = units.expect("there is a first factor");
        Ok(self.push(Node { units, kind: NodeKind::Product { factors } }, scope))
    }

    /// Adds a dense sum: every row of the block mixes all units of all children.
    pub fn sum(&mut self, children: &[NodeId], param: ParamId) -> Result<NodeId> {
        let place = self.place("sum");
        let mut slices = Vec::with_capacity(children.len());
        for &node in children {
            slices.push(Slice { node, start: 0, units: self.child(&place, node)?.units });
        }
        self.grouped_sum(vec![SumGroup { children: slices, param }])
    }

    /// Adds a sum whose units come in groups, each mixing its own slices of the children.
    pub fn grouped_sum(&mut self, groups: Vec<SumGroup>) -> Result<NodeId> {
        let place = self.place("sum");
        let mut scope: Option<(NodeId, Scope)> = None;
        let mut units = 0;
        for group in &groups {
            let mut cols = 0;
            for slice in &group.children {
                let child = self.child(&place, slice.node)?;
                let child_scope = &self.scopes[slice.node.index()];
                let end = slice.start.saturating_add(slice.units);
                if slice.units == 0 || end > child.units {
                    return Err(Error::circuit(format!(
                        "{place}: child {}, scope {child_scope}, has {} units, not {}..{}",
                        slice.node, child.units, slice.start, end
                    )));
                }
                cols += slice.units;
                match &scope {
                    None => scope = Some((slice.node, child_scope.clone())),
                    Some((first, wanted)) if wanted != child_scope => {
                        return Err(Error::circuit(format!(
                            "{place}: not smooth: child {first} has scope {wanted}, child {} has scope {child_scope}; \
                             the children of a sum must be over the same variables",
                            slice.node
                        )));
                    }
                    Some(_) => {}
                }
            }
            let block = self.block(&place, group.param)?;
            match block.kind {
                ParamKind::Sum { cols: weights } if weights == cols && cols > 0 => units += block.units,
                ParamKind::Sum { cols: weights } => {
                    return Err(Error::circuit(format!(
                        "{place}: parameter block {} weighs {weights} child units, the children have {cols}",
                        group.param
                    )));
                }
                ParamKind::Input(_) => {
                    return Err(Error::circuit(format!(
                        "{place}: parameter block {} holds input distributions, not mixture weights",
                        group.param
                    )));
                }
            }
        }
        let Some((_, scope)) = scope else {
            return Err(Error::circuit(format!("{place}: no children")));
        };
        Ok(self.push(Node { units, kind: NodeKind::Sum { groups } }, scope))
    }

    /// How many units a node already added has.
    pub fn units(&self, node: NodeId) -> usize {
        self.nodes[node.index()].units
    }

    /// The variables below a node already added.
    pub fn scope(&self, node: NodeId) -> &Scope {
        &self.scopes[node.index()]
    }

    /// Checks the whole: the last node is the root, one unit over all variables, and everything hangs from it.
    pub fn finish(self) -> Result<Circuit> {
        let Some(root) = self.nodes.last() else {
            return Err(Error::circuit("the circuit has no nodes"));
        };
        let (id, scope) = (self.nodes.len() - 1, &self.scopes[self.nodes.len() - 1]);
        if root.units != 1 {
            return Err(Error::circuit(format!(
                "node {id}, scope {scope}: the root must be a single unit, it has {}; mix them with a one-unit sum",
                root.units
            )));
        }
        if scope.len() != self.num_vars {
            let absent = (0..self.num_vars).find(|v| !scope.iter().any(|s| s == *v)).unwrap_or(0);
            return Err(Error::circuit(format!(
                "node {id}, scope {scope}: the root is over {} of {} variables; variable {absent} is not in it",
                scope.len(),
                self.num_vars
            )));
        }
        let mut used = vec![false; self.nodes.len()];
        let mut param_used = vec![false; self.params.len()];
        used[id] = true;
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if !used[i] {
                return Err(Error::circuit(format!(
                    "node {i}, scope {}: no node refers to it, and it is not the root (node {id}); \
                     a circuit has a single root",
                    self.scopes[i]
                )));
            }
            match &node.kind {
                NodeKind::Input { param, .. } => param_used[param.index()] = true,
                NodeKind::Product { factors } => factors.iter().for_each(|f| used[f.node.index()] = true),
                NodeKind::Sum { groups } => {
                    for group in groups {
                        param_used[group.param.index()] = true;
                        group.children.iter().for_each(|c| used[c.node.index()] = true);
                    }
                }
            }
        }
        if let Some(param) = param_used.iter().position(|used| !used) {
            return Err(Error::circuit(format!("parameter block {param}: no node refers to it")));
        }
        let layout = Arc::new(Layout::new(&self.params));
        Ok(Circuit { num_vars: self.num_vars, nodes: self.nodes, params: self.params, layout })
    }

    fn push(&mut self, node: Node, scope: Scope) -> NodeId {
        self.nodes.push(node);
        self.scopes.push(scope);
        NodeId((self.nodes.len() - 1) as u32)
    }

    fn place(&self, kind: &str) -> String {
        format!("node {} ({kind})", self.nodes.len())
    }

    fn child(&self, place: &str, id: NodeId) -> Result<&Node> {
        self.nodes
            .get(id.index())
            .ok_or_else(|| Error::circuit(format!("{place}: child {id} does not exist yet; children come first")))
    }

    fn block(&self, place: &str, id: ParamId) -> Result<&ParamBlock> {
        self.params
            .get(id.index())
            .ok_or_else(|| Error::circuit(format!("{place}: parameter block {id} does not exist")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::Categorical;
    use crate::error::ErrorKind;

    fn coins(circuit: &mut CircuitBuilder, var: usize, units: usize) -> NodeId {
        let param = circuit.input_param(units, Categorical::new(2).unwrap()).unwrap();
        circuit.input(var, param).unwrap()
    }

    fn refused(result: Result<impl std::fmt::Debug>, words: &[&str]) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Circuit);
        for word in words {
            assert!(error.to_string().contains(word), "`{error}` does not say `{word}`");
        }
    }

    #[test]
    fn a_product_over_one_variable_twice_is_refused_by_name_and_scope() {
        let mut circuit = CircuitBuilder::new(2);
        let (a, b) = (coins(&mut circuit, 0, 2), coins(&mut circuit, 0, 2));
        refused(circuit.product(&[a, b]), &["node 2 (product)", "not decomposable", "variable 0", "scope {0}"]);
    }

    #[test]
    fn a_sum_over_different_variables_is_refused_by_name_and_scope() {
        let mut circuit = CircuitBuilder::new(2);
        let (a, b) = (coins(&mut circuit, 0, 2), coins(&mut circuit, 1, 2));
        let weights = circuit.sum_param(1, 4).unwrap();
        refused(circuit.sum(&[a, b], weights), &["node 2 (sum)", "not smooth", "{0}", "{1}"]);
    }

    #[test]
    fn shapes_must_fit() {
        let mut circuit = CircuitBuilder::new(2);
        let (a, b) = (coins(&mut circuit, 0, 2), coins(&mut circuit, 1, 3));
        refused(circuit.product(&[a, b]), &["gives 3 units", "gives 2"]);
        let weights = circuit.sum_param(1, 3).unwrap();
        refused(circuit.sum(&[a], weights), &["weighs 3 child units", "have 2"]);
        let map = Some(Arc::from([0u32, 2]));
        refused(circuit.mapped_product(vec![Factor { node: a, map }]), &["names unit 2"]);
        refused(circuit.product(&[NodeId(9)]), &["child 9 does not exist"]);
    }

    #[test]
    fn there_is_one_root_over_everything_and_nothing_dangles() {
        let build = |steps: fn(&mut CircuitBuilder)| {
            let mut circuit = CircuitBuilder::new(2);
            steps(&mut circuit);
            circuit.finish()
        };
        refused(build(|_| {}), &["no nodes"]);
        refused(build(|c| _ = coins(c, 0, 1)), &["variable 1 is not in it"]);
        let two_units = |c: &mut CircuitBuilder| {
            let children = [coins(c, 0, 2), coins(c, 1, 2)];
            drop(c.product(&children));
        };
        refused(build(two_units), &["single unit"]);
        let dangling = |c: &mut CircuitBuilder| {
            coins(c, 0, 1);
            let children = [coins(c, 0, 1), coins(c, 1, 1)];
            drop(c.product(&children));
        };
        refused(build(dangling), &["node 0", "single root"]);
        let unused = |c: &mut CircuitBuilder| {
            let children = [coins(c, 0, 1), coins(c, 1, 1)];
            drop(c.product(&children));
            drop(c.sum_param(1, 1));
        };
        refused(build(unused), &["parameter block 2"]);
    }
}
