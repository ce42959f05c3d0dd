//! The emulated driver itself: instructions, checks, streams, counters, and the library that a program loads.

#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;

mod arithmetic;
mod checks;
mod collectives;
mod costs;
mod handwritten;
mod library;
mod misc;
mod streams;
mod tensor;
mod warps;
