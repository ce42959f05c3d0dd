//! A streaming learner for probabilistic circuits.

pub mod backend;
pub mod circuit;
pub mod data;
mod error;
pub mod optim;
pub mod plan;
pub mod rng;
pub mod structure;

pub use error::{Error, ErrorKind, Result};
