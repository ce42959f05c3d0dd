//! A learner at one moment, between two batches.

use std::sync::Arc;

use super::Progress;
use crate::circuit::{Circuit, Params};
use crate::optim::OptimizerState;

/// An owned copy of all that a learner is: enough to go on to the same bits. Making one costs the learner a copy;
/// writing it (`checkpoint::write`) costs it nothing.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The structure.
    pub circuit: Arc<Circuit>,
    /// Its parameters.
    pub params: Params,
    /// What the optimizer needs besides.
    pub optimizer: OptimizerState,
    /// Counters, and the place in the stream that the parameters belong to.
    pub progress: Progress,
}
