//! An emulated CUDA driver, for tests on machines without a GPU.
//!
//! Built as a shared library it stands in for `libcuda.so` (and `libnccl.so`): the driver calls that `cudarc` makes, and
//! an interpreter that executes the PTX that NVIDIA's compiler produced. A kernel walks
//!
//! ```text
//! PTX text → lexer → parse → decode (+ decode_alu, decode_memory) → program
//! launch   → grid (blocks, barriers) → warp (lanes, divergence) → alu, float, convert, mma, cross
//!                                                               → access → memory, race, counters
//! ```
//!
//! and the driver's side is `config`, `state` (devices, handles), `stream` (when things run), `graph`, `api` (the exported
//! functions), `collective` and `nccl`. The README beside `src` says how to use it and what it checks.

pub mod access;
pub mod alu;
#[allow(missing_docs, clippy::missing_safety_doc)] // the names are NVIDIA's, and so is their documentation
pub mod api;
pub mod collective;
pub mod config;
pub mod convert;
pub mod counters;
pub mod cross;
pub mod decode;
mod decode_alu;
mod decode_memory;
pub mod float;
pub mod graph;
pub mod grid;
pub mod lanes;
pub mod lexer;
pub mod machine;
pub mod memory;
pub mod mma;
#[allow(missing_docs, clippy::missing_safety_doc)] // as for `api`
pub mod nccl;
pub mod parse;
pub mod program;
pub mod race;
pub mod result;
pub mod state;
pub mod stream;
pub mod warp;
