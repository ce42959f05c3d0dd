//! Circuits, backends, optimizers and the learner: what needs the core of the library and nothing else.

#![allow(clippy::unwrap_used)] // what fails here fails a test

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod chains;
mod cluster;
mod front_door;
mod laws;
mod learner;
mod oracle;
mod precision;
mod pyjuice;
mod specs;
mod states_in_use;
mod walls;
