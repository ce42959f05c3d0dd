//! A streaming learner for probabilistic circuits.
//!
//! Probabilistic circuits are generative models that answer marginal and conditional queries exactly. This crate builds
//! them ([`structure`], [`circuit`]), puts them on a device ([`backend`]) and learns their parameters from batches of
//! rows ([`optim`]) with anemone, a mini-batch EM, or with one of its baselines.
//!
//! # Layout
//!
//! * [`data`]: batches of rows, the only words that the data side and the model side share.
//! * [`circuit`]: what a circuit is; [`structure`]: the shapes people use; [`plan`]: a circuit as a flat program.
//! * [`backend`]: a circuit on a device: likelihoods, flows, updates.
//! * [`optim`]: optimizers, short programs for a backend.
//! * [`telemetry`]: metrics of a run.
//! * [`compare`]: optimizers side by side.
//! * [`mod@bench`]: how fast all of that is; [`cli`]: the command line.
//!
//! The README has a complete example; `docs/ARCHITECTURE.md` walks through the code, `docs/MATH.md` through the
//! formulas.

#[cfg(test)]
extern crate self as anemone; // unit tests share the circuits of `tests/common`, which name this crate from outside

pub mod backend;
pub mod batcher;
pub mod bench;
mod caught;
pub mod circuit;
pub mod cli;
pub mod compare;
pub mod data;
pub mod decode;
mod detached;
mod error;
mod files;
pub mod learner;
mod machine_memory;
pub mod optim;
pub mod order;
pub mod pipeline;
pub mod plan;
pub mod query;
pub mod rng;
pub mod source;
pub mod structure;
pub mod telemetry;

pub use circuit::{Categorical, Circuit, CircuitBuilder, DiscreteLogistic, Gaussian, Params};
pub use data::Batch;
pub use error::{Error, ErrorKind, Result};
pub use learner::{Learned, Learner, LearnerBuilder, View};
pub use structure::{hclt, hmm, monarch_hmm, pd, pdhclt, rat_spn};

/// The README's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
