//! The command, driven as a user would.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

#[path = "../common/mod.rs"]
mod common;

mod attack;
mod bench;
mod cli;
mod commands;
mod compare;
mod damage;
mod drawn_rows;
mod first_use;
mod follow;
mod kafka;
mod kill;
mod mpi;
mod older_runs;
mod pipelines;
mod report;
mod service;
mod stores;
mod watch;
