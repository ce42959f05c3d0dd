//! An emulated CUDA driver, for tests on machines without a GPU.
//!
//! Built as a shared library it stands in for `libcuda.so` (and `libnccl.so`): the driver calls that `cudarc` makes,
//! and an interpreter that executes the PTX that NVIDIA's compiler produced. A kernel walks
//!
//! ```text
//! PTX text → lexer → parse → decode (+ decode_alu, decode_memory) → program
//! launch   → grid (blocks, barriers) → warp (lanes, divergence) → alu, float, convert, mma, cross
//!                                                               → access, copies → region → memory, race, counters
//! ```
//!
//! and the driver's side is `config`, `state` (devices, handles), `stream` (when things run), `graph`, `api` (the
//! exported functions), `collective` and `nccl`. The README beside `src` says how to use it and what it checks.

mod access;
mod alu;
#[allow(missing_docs, clippy::missing_safety_doc)] // the names are NVIDIA's, and so is their documentation
pub mod api;
pub mod collective;
pub mod config;
mod convert;
mod copies;
pub mod counters;
mod cross;
pub mod decode;
mod decode_alu;
mod decode_memory;
mod float;
pub mod graph;
mod grid;
mod lanes;
mod lexer;
pub mod machine;
pub mod memory;
mod mma;
#[allow(missing_docs, clippy::missing_safety_doc)] // as for `api`
pub mod nccl;
pub mod parse;
mod program;
mod race;
mod region;
pub mod result;
pub mod state;
pub mod stream;
mod warp;
