//! The CPU backend.

use std::sync::Arc;

use super::*;

/// Options of [`CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Worker threads; `None` takes all cores. The bits do not depend on it.
    pub threads: Option<usize>,
    /// Bytes that the values and flows of a micro-batch may take.
    pub memory_budget: usize,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, memory_budget: 512 << 20 }
    }
}

/// A circuit in main memory.
pub struct CpuBackend {}

impl CpuBackend {
    /// Puts a circuit and its parameters to work.
    pub fn new(_circuit: Arc<Circuit>, _params: &Params, _options: &CpuOptions) -> Result<Self> {
        Ok(Self {})
    }
}
