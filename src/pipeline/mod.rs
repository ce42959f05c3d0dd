//! Pipelines: what a file describes, opened and running.
//!
//! `stream` joins a source, a decoder and a batcher into stages that run side by side under one memory budget.

pub mod budget;
pub mod stream;
pub mod waits;
