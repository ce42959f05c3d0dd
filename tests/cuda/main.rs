//! The CUDA backend on the emulated driver: its kernels, its steps, the command, the scripts around them.

#![allow(clippy::unwrap_used)] // what fails here fails a test

#[path = "../common/mod.rs"]
mod common;

mod backend;
mod cli;
mod emulator;
mod kernel_runs;
mod kernels;
mod ranks;
mod scripts;
