//! Pipelines: what a file describes, opened and running.
//!
//! `spec` reads the file, `overrides` changes it for one run, `model` builds its circuit. `stream` joins a source, a decoder
//! and a batcher into stages that run side by side under one memory budget. `observer` is told what happens.

pub mod budget;
pub mod model;
pub mod observer;
pub(crate) mod overrides;
pub mod spec;
pub mod stream;
pub(crate) mod suggest;
pub mod waits;
