//! Several optimizers on one stream from one start, and what came of it.

pub mod analysis;
pub mod findings;
mod numbers;
pub mod report;
