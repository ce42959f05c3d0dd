//! How fast a circuit learns, and how far it gets in that time.
//!
//! Two benchmarks with one kind of [`Line`] as a result. On synthetic rows ([`synthetic`]) whole optimizer steps are
//! timed ([`steps`]) on circuits and data of a given size; what is compared is speed. On a pipeline ([`stream`])
//! several optimizers learn the same stream from the same start, through the very loop that trains; what is compared is
//! likelihood at equal rows and at equal seconds.
//!
//! Every speed stands beside the best matrix product that this machine was seen to make in the same run: times are of
//! one machine on one day, their ratio is worth more. Called by `anemone bench`; built on `pipeline` and all below.

pub mod flops;
pub mod host;
mod line;
pub mod rows;
pub mod steps;
pub mod stream;
pub mod synthetic;
pub mod trees;

pub use line::{Line, Speed, Standing, Subject};

use crate::backend::PlaceSpec;
use crate::backend::cpu::reference_gemm;

/// How a benchmark uses the machine, and what a line says about it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Threads and memory.
    pub place: PlaceSpec,
    /// Where it learns.
    pub device: String,
    /// What numbers are multiplied in.
    pub precision: String,
    /// Which instructions are allowed.
    pub isa: String,
}

impl Setting {
    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.place.threads.unwrap_or_else(rayon::current_num_threads)
    }
}

/// The best matrix product seen so far in this run, measured again on every request.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    threads: usize,
    gflops: f64,
}

impl Reference {
    /// Measures for the first time, with as many threads as the benchmark will use.
    pub fn new(threads: usize) -> Self {
        Self { threads, gflops: reference_gemm(threads) }
    }

    /// Measures again: the machine may have been busier before than it is now.
    pub fn again(&mut self) {
        self.gflops = self.gflops.max(reference_gemm(self.threads));
    }

    /// Billions of operations a second, the best so far.
    pub fn gflops(&self) -> f64 {
        self.gflops
    }
}
