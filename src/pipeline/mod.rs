//! Pipelines: what a file describes, opened and running.
//!
//! `spec` reads the file, `overrides` changes it for one run; `open` opens sources and decoders, `prepare` all
//! that a pipeline reads; `model` makes circuits of a spec, `build` those of these rows, on the device that `machine`
//! chose. `stream` joins a source, a decoder and a batcher into stages that run side by side under one memory budget;
//! `feed` puts the streams of shards together, `run` feeds their batches to a learner, and tells `observer` what
//! happens; `team` is the ranks that do so together.

pub mod budget;
pub(crate) mod build;
pub mod evaluate;
pub mod feed;
mod held_out;
pub mod model;
pub mod observer;
pub mod open;
pub(crate) mod overrides;
pub mod prepare;
pub mod run;
pub(crate) mod run_files;
pub mod spec;
pub mod stop;
pub mod stream;
pub(crate) mod suggest;
pub mod table;
pub(crate) mod team;
pub mod waits;
