//! Several optimizers on one stream from one start, and what came of it.
//!
//! `spec` understands comparison files by the lists in `keys`, `run` runs them and keeps what came of it in `store`.
//! All of that is `findings`, which `analysis` asks and `report` shows.

pub mod analysis;
pub mod findings;
pub(crate) mod keys;
mod numbers;
pub mod report;
pub mod run;
pub mod spec;
mod store;
