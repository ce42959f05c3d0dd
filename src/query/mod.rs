//! What one can ask parameters: samples, completions, conditional probabilities; next symbols, constraints.
//!
//! Everything here is a pure function of a circuit, its parameters and a seed. Marginals are log-likelihoods of rows
//! with missing cells, which a backend computes. `learner::View` asks all of it of one moment of a learner.

pub mod chain;
mod conditional;
pub mod dfa;
mod draw;
mod sample;
mod sample_given;
mod table_draws;

pub(crate) use conditional::Conditional;
pub use sample::sample;
pub use sample_given::sample_given;
