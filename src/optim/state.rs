//! What an optimizer needs to go on to the same bits.

use std::collections::BTreeMap;

use crate::backend::Tensor;
use crate::error::{Error, Result};

/// Counters and buffers of an optimizer, by name. The parameters themselves are the backend's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Which optimizer it belongs to.
    pub optimizer: String,
    /// Updates made, batches waiting.
    pub counters: BTreeMap<String, u64>,
    /// Weights of what is waiting.
    pub numbers: BTreeMap<String, f64>,
    /// Momentum, accumulated flows, running masses.
    pub buffers: BTreeMap<String, Tensor>,
}

impl OptimizerState {
    pub(super) fn new(optimizer: &str) -> Self {
        Self { optimizer: optimizer.to_string(), ..Self::default() }
    }

    pub(super) fn expect(&self, optimizer: &str) -> Result<()> {
        if self.optimizer == optimizer {
            return Ok(());
        }
        Err(Error::state(format!("the saved state is of {}, this optimizer is {optimizer}", self.optimizer)))
    }

    pub(super) fn counter(&self, name: &str) -> Result<u64> {
        self.counters.get(name).copied().ok_or_else(|| missing(name))
    }

    pub(super) fn number(&self, name: &str) -> Result<f64> {
        self.numbers.get(name).copied().ok_or_else(|| missing(name))
    }

    pub(super) fn buffer(&self, name: &str) -> Result<&Tensor> {
        self.buffers.get(name).ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::state(format!("the saved state has no `{name}`; was it saved with the same options?"))
}
