//! What a circuit is: vectors of units joined by products and sums, and the parameter blocks they refer to.
//!
//! A [`Node`] is a vector of *units*. An input unit is a distribution over one variable, a product unit multiplies
//! one unit of each factor, a sum unit mixes all units of its children with the weights of one parameter row. Nodes
//! are listed children first and the root, a single unit, comes last. A [`ParamBlock`] is declared once and referred
//! to by [`ParamId`]: two nodes with the same id are tied, and that is all tying is.
//!
//! A [`Circuit`] is structure alone and never changes; its numbers live in [`Params`]. It can only be made by
//! [`CircuitBuilder`], so its holder may rely on what the builder checked. `structure` makes the usual shapes, `json`
//! reads and writes any shape, `plan` turns one into a program for a backend.

mod builder;
pub mod distribution;
pub mod json;
mod layout;
pub(crate) mod log_derivatives;
pub(crate) mod log_values;
mod params;
mod scope;
mod smoothing;
mod states_in_use;

use std::fmt;
use std::sync::Arc;

pub use builder::CircuitBuilder;
pub use distribution::{
    Bernoulli, Binomial, Categorical, DiscreteLogistic, Distribution, Gaussian, NegativeBinomial, Poisson,
};
pub use layout::{BlockLayout, Layout};
pub use params::{Flows, Params};
pub use scope::Scope;
pub use smoothing::Smoothing;
pub use states_in_use::{StateUse, StatesInUse, UseSummary};

use crate::data::{Batch, LARGEST_REAL, Values};
use crate::error::{Error, Result};

macro_rules! id {
    ($(#[$doc:meta] $name:ident)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The position in the circuit's list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
id! {
    /// Names a node of one circuit.
    NodeId
    /// Names a parameter block of one circuit. Nodes that share one are tied.
    ParamId
}

/// A vector of units and how they are computed.
#[derive(Clone, Debug)]
pub struct Node {
    /// How many units the vector has.
    pub units: usize,
    /// How each is computed.
    pub kind: NodeKind,
}

/// How the units of a node are computed from its children.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Unit `k` is distribution `k` of the block, over one variable.
    Input {
        /// The variable.
        var: usize,
        /// The distributions' parameters.
        param: ParamId,
    },
    /// Unit `k` is the product, over the factors, of the unit each maps `k` to.
    Product {
        /// What is multiplied; their scopes are disjoint.
        factors: Vec<Factor>,
    },
    /// The units of the groups, one group after the other.
    Sum {
        /// Each group mixes its own children through its own weight matrix. A dense sum has one group; a
        /// block-diagonal one has a group per block.
        groups: Vec<SumGroup>,
    },
}

/// One factor of a product.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The vector multiplied.
    pub node: NodeId,
    /// Product unit `k` takes unit `map[k]` of it; `None` takes unit `k`.
    pub map: Option<Arc<[u32]>>,
}

/// Some of a sum's units: those that mix the same children.
#[derive(Clone, Debug)]
pub struct SumGroup {
    /// What is mixed, side by side in this order.
    pub children: Vec<Slice>,
    /// The weights, one row per unit of the group, one column per child unit.
    pub param: ParamId,
}

/// Consecutive units of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The node.
    pub node: NodeId,
    /// Its first unit in the slice.
    pub start: usize,
    /// How many.
    pub units: usize,
}

/// Parameters declared once, for all the nodes that refer to them.
#[derive(Clone, Debug)]
pub struct ParamBlock {
    /// Param rows: one distribution each, one per unit of a node that uses the block.
    pub units: usize,
    /// What a row holds.
    pub kind: ParamKind,
}

/// What the rows of a parameter block hold.
#[derive(Clone, Debug)]
pub enum ParamKind {
    /// Mixture weights over `cols` child units.
    Sum {
        /// How many child units a row weighs.
        cols: usize,
    },
    /// The parameters of an input distribution.
    Input(Arc<dyn Distribution>),
}

/// A checked circuit: smooth, decomposable, with a single root over all its variables.
#[derive(Clone, Debug)]
pub struct Circuit {
    num_vars: usize,
    nodes: Vec<Node>,
    params: Vec<ParamBlock>,
    layout: Arc<Layout>,
}

impl Circuit {
    /// How many variables it is a distribution over.
    pub fn num_vars(&self) -> usize {
        self.num_vars
    }

    /// How often a row uses each state of the inputs on average: variables over param rows of inputs. A tied HMM of T
    /// variables with K states has T/K, a hidden tree 1/K.
    pub fn counts_per_row(&self) -> f64 {
        let inputs = self.params().iter().filter(|block| matches!(block.kind, ParamKind::Input(_)));
        self.num_vars as f64 / inputs.map(|block| block.units).sum::<usize>().max(1) as f64
    }

    /// The nodes, children before parents, the root last.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of that id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The root: one unit, the last node.
    pub fn root(&self) -> NodeId {
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// The parameter blocks.
    pub fn params(&self) -> &[ParamBlock] {
        &self.params
    }

    /// The ids of the parameter blocks, in order.
    pub fn param_ids(&self) -> impl ExactSizeIterator<Item = ParamId> + DoubleEndedIterator + use<> {
        (0..self.params.len() as u32).map(ParamId)
    }

    /// The distribution family of an input block. Panics for a block of mixture weights.
    pub fn distribution(&self, param: ParamId) -> &dyn Distribution {
        match &self.params[param.index()].kind {
            ParamKind::Input(distribution) => &**distribution,
            ParamKind::Sum { .. } => panic!("parameter block {param} holds mixture weights"),
        }
    }

    /// Where each block's numbers lie in flat buffers.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns true if every variable has categories: a row then has a probability, and not a density.
    pub(crate) fn is_discrete(&self) -> bool {
        self.params.iter().all(|block| match &block.kind {
            ParamKind::Input(distribution) => distribution.num_cats().is_some(),
            ParamKind::Sum { .. } => true,
        })
    }

    /// Refuses a circuit with densities, which have no log-weights to move along a gradient.
    pub fn require_weights_only(&self) -> Result<()> {
        for (id, block) in self.params.iter().enumerate() {
            if let ParamKind::Input(distribution) = &block.kind
                && !distribution.is_table()
            {
                return Err(Error::unsupported(format!(
                    "gradient steps move log-weights and parameter block {id} is {}; train this circuit with an EM \
                     rule",
                    distribution.name()
                )));
            }
        }
        Ok(())
    }

    /// Refuses a batch that this circuit has no probability for, naming row and variable.
    pub fn check_batch(&self, batch: &Batch) -> Result<()> {
        if batch.num_global_rows() == 0 {
            return Err(Error::data("the batch has no rows: a step needs at least one"));
        }
        if batch.num_vars() != self.num_vars {
            return Err(Error::data(format!(
                "the batch has {} variables, the circuit {}: every row needs one value, or a missing one, for each",
                batch.num_vars(),
                self.num_vars
            )));
        }
        let mut checked = vec![Vec::new(); self.num_vars];
        for node in &self.nodes {
            if let NodeKind::Input { var, param } = &node.kind
                && !checked[*var].contains(param)
            {
                checked[*var].push(*param);
                check_column(self.distribution(*param), batch.column(*var), batch.missing(*var))
                    .map_err(|(row, why)| Error::data(format!("variable {var}: {why}")).at_row(row as u64))?;
            }
        }
        Ok(())
    }
}

/// The first row of a column that a distribution has no probability for, and why.
fn check_column(
    distribution: &dyn Distribution,
    column: &Values,
    missing: Option<&[bool]>,
) -> std::result::Result<(), (usize, String)> {
    let present = |row: usize| !missing.is_some_and(|m| m[row]);
    let Some(cats) = distribution.num_cats() else {
        let Values::F32(values) = column else { return Ok(()) };
        let bad = |row: &usize| present(*row) && (values[*row].is_nan() || values[*row].abs() > LARGEST_REAL);
        return match (0..values.len()).find(bad) {
            Some(row) if values[row].is_nan() => Err((row, "NaN is no value; mark missing values as missing".into())),
            Some(row) => Err((row, format!("{} is outside ±{LARGEST_REAL:e}; rescale the column", values[row]))),
            None => Ok(()),
        };
    };
    if let Values::F32(_) = column {
        return match (0..column.len()).find(|&row| present(row)) {
            Some(row) => Err((row, format!("{} categories need an integer column, this one holds f32", cats))),
            None => Ok(()),
        };
    }
    match column.first_outside(cats, missing) {
        Some((row, value)) => Err((row, format!("category {value} is outside 0..{cats}"))),
        None => Ok(()),
    }
}
