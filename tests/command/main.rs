//! The command, driven as a user would.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod attack;
mod bench;
mod cli;
#[cfg(unix)]
mod cluster;
mod commands;
mod compare;
mod constrained;
mod csv;
mod damage;
mod drawn_rows;
mod exchange;
mod first_use;
mod follow;
mod kafka;
mod kill;
mod mpi;
mod older_runs;
mod pipelines;
mod report;
mod service;
mod typed_tables;
mod watch;
