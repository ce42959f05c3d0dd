//! A streaming learner for probabilistic circuits.
//!
//! Probabilistic circuits are generative models that answer marginal and conditional queries exactly. Start with
//! [`Learner`]: it puts a circuit on a device and learns its parameters from batches of rows, with anemone, a
//! mini-batch EM, or with one of its baselines. Ask it for a [`View`] to query the model while it learns.
//!
//! ```
//! use anemone::{Batch, Categorical, Learner, hmm};
//!
//! let circuit = hmm(8, 16, Categorical::new(4)?)?; // rows of 8 symbols out of 4, 16 hidden states
//! let learner = Learner::on(circuit).spawn()?; // on a thread of its own; async methods have blocking twins
//! let rows = Batch::from_rows(&[0u8, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0, 3, 2, 1, 0], 8)?;
//! for _ in 0..20 {
//!     learner.learn_blocking(rows.clone())?;
//! }
//! let view = learner.view_blocking()?; // one θ for any number of questions
//! let first_half = rows.clone().with_missing(|_, var| var >= 4);
//! let second_half = rows.with_missing(|_, var| var < 4);
//! println!("{:?}", view.conditional(&second_half, &first_half)?); // log p(second half | first half)
//! # Ok::<(), anemone::Error>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | learn, query, save and resume | [`Learner`], [`LearnerBuilder`], [`View`], [`learner`] |
//! | choose a structure | [`hmm`], [`monarch_hmm`], [`hclt`], [`pd`], [`pdhclt`], [`rat_spn`], [`structure`] |
//! | build a circuit of your own | [`CircuitBuilder`], [`circuit`] |
//! | choose an optimizer and its options | [`optim`] |
//! | hand over rows | [`Batch`], [`data`] |
//! | read files and streams, decode records | [`source`], [`decode`] (feature `pipeline`) |
//!
//! Modules that this page does not list are internal: they are reachable for this crate's own tests, benches and
//! command, and may change at any time. `docs/ARCHITECTURE.md` walks through the code, `docs/MATH.md` through the
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
//! | `mpi` | several processes that learn one model |
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

#[doc(hidden)]
pub mod backend;
#[cfg(feature = "pipeline")]
#[doc(hidden)]
pub mod batcher;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod bench;
mod caught;
pub mod circuit;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod cluster;
#[cfg(feature = "cli")]
#[doc(hidden)]
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
#[doc(hidden)]
pub mod order;
#[cfg(feature = "pipeline")]
#[doc(hidden)]
pub mod pipeline;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod query;
#[doc(hidden)]
pub mod rng;
#[cfg(feature = "parquet")]
#[doc(hidden)]
pub mod sink;
#[cfg(feature = "pipeline")]
#[cfg_attr(docsrs, doc(cfg(feature = "pipeline")))]
pub mod source;
pub mod structure;
#[cfg(feature = "pipeline")]
#[doc(hidden)]
pub mod telemetry;

pub use backend::{BatchReport, Device, Place, TrainingPrecision};
pub use circuit::{Categorical, Circuit, CircuitBuilder, DiscreteLogistic, Gaussian, Params};
pub use data::Batch;
pub use error::{Error, ErrorKind, Result};
pub use learner::{Learned, Learner, LearnerBuilder, View};
pub use structure::{hclt, hmm, monarch_hmm, pd, pdhclt, rat_spn};

/// The README's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
