//! Several optimizers on one stream from one start, and what came of it.
//!
//! `spec` understands comparison files, `run` runs them and keeps what came of it in `store`, all of which is `findings`.

pub mod findings;
pub mod report;
pub mod run;
pub mod spec;
mod store;
