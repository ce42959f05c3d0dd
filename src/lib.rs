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
//!
//! # Features
//!
//! Without features there is the core: circuits, structures, the CPU backend, optimizers, the learner and its
//! checkpoints, for programs that have their rows already. The default is `cli`, which has all but the last two rows.
//!
//! | feature | what it adds |
//! |---|---|
//! | `cuda` | the CUDA backend |
//! | `pipeline` | pipeline files, sources, decoders, streams |
//! | `parquet` | Parquet files; Arrow on standard input |
//! | `text` | text, by GPT-2's tokenizer |
//! | `images` | PNG and JPEG files |
//! | `cli` | the command and what it shows: `cli`, `compare`, `bench`, metrics over HTTP |
//! | `tokenizer-json` | text, by any `tokenizer.json` |
//! | `aws`, `gcp`, `azure`, `http` | files in clouds |

#![cfg_attr(docsrs, feature(doc_cfg))]
// Some of the core has its only caller behind a feature: the build with all of them says what is dead.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

#[cfg(test)]
extern crate self as anemone; // unit tests share the circuits of `tests/common`, which name this crate from outside

pub mod backend;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod batcher;
#[cfg(feature = "cli")]
#[cfg_attr(docsrs, doc(cfg(feature = "cli")))]
pub mod bench;
#[cfg(feature = "pipeline")]
mod caught;
pub mod circuit;
#[cfg(feature = "cli")]
#[cfg_attr(docsrs, doc(cfg(feature = "cli")))]
pub mod cli;
#[cfg(feature = "cli")]
#[cfg_attr(docsrs, doc(cfg(feature = "cli")))]
pub mod compare;
pub mod data;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod decode;
mod detached;
mod error;
mod files;
pub mod learner;
mod machine_memory;
pub mod optim;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod order;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod pipeline;
pub mod plan;
pub mod query;
pub mod rng;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod source;
pub mod structure;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
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
