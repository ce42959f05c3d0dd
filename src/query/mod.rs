//! What one can ask parameters: conditionals, posterior marginals, expectations, surprise, completions, samples; of
//! chains next symbols and constraints.
//!
//! Everything here is a pure function of a circuit, its parameters and a seed. Marginals are log-likelihoods of rows
//! with missing cells, which a backend computes; the rest is read off the passes of `backend::cpu::questions`, and of
//! `circuit::log_values` for rows that those cannot hold. `learner::View` asks all of it of one moment of a learner.

pub mod chain;
mod conditional;
pub mod dfa;
mod draw;
mod expectations;
mod input_posteriors;
mod mpe;
mod posteriors;
mod sample;
mod sample_given;
mod surprise;
mod table_draws;

pub(crate) use conditional::Conditional;
pub use expectations::Function;
pub(crate) use expectations::expectations;
pub use mpe::Mpe;
pub(crate) use mpe::mpe;
pub use posteriors::{Marginal, Posterior, PosteriorMarginals};
pub(crate) use posteriors::{for_each_posterior, posterior_marginals};
pub use sample::sample;
pub use sample_given::sample_given;
pub(crate) use sample_given::sample_given_of;
pub use surprise::Surprise;
pub(crate) use surprise::surprise;
