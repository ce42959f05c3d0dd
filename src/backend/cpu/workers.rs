//! The threads of a backend, each with scratch memory of its own.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::scratch::Scratch;
use crate::backend::PhaseSeconds;
use crate::error::{Error, Result};

/// Threads and their scratch memory.
pub(super) struct Workers {
    pool: ThreadPool,
    /// By the number of the thread.
    scratch: Vec<Mutex<Scratch>>,
}

impl Workers {
    /// So many threads; `None` takes all cores.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.unwrap_or(0))
            .thread_name(|i| format!("anemone-cpu-{i}"))
            .build()
            .map_err(|e| Error::option(format!("cannot start {threads:?} threads: {e}")))?;
        Ok(Self { scratch: (0..pool.current_num_threads()).map(|_| Mutex::default()).collect(), pool })
    }

    pub fn count(&self) -> usize {
        self.scratch.len()
    }

    /// Does something on one of the threads, which shares it out to the others as it likes.
    pub fn install<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.pool.install(act)
    }

    /// Does something on every thread at once, given its number and its scratch.
    pub fn broadcast(&self, act: impl Fn(usize, &mut Scratch) + Sync) {
        self.pool.broadcast(|context| self.with_scratch(context.index(), |scratch| act(context.index(), scratch)));
    }

    /// Does something for every item in parallel, with the scratch of the thread that does it.
    pub fn for_each<T: Send>(&self, items: Vec<T>, act: impl Fn(T, &mut Scratch) + Sync) {
        self.pool.install(|| {
            items.into_par_iter().with_max_len(1).for_each(|item| {
                let worker = self.pool.current_thread_index().expect("a thread of this pool");
                self.with_scratch(worker, |scratch| {
                    scratch.clock.start();
                    act(item, scratch);
                });
            });
        });
    }

    /// Lends the scratch of a thread that is not at work.
    pub fn with_scratch<T>(&self, worker: usize, act: impl FnOnce(&mut Scratch) -> T) -> T {
        act(&mut self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What all clocks have counted since the last call, divided by the number of threads.
    pub fn take_time(&self) -> PhaseSeconds {
        let workers = self.scratch.len() as f64;
        let mut sum = PhaseSeconds::default();
        for worker in 0..self.scratch.len() {
            let time = self.with_scratch(worker, |scratch| scratch.clock.take());
            sum.forward += time.forward / workers;
            sum.backward += time.backward / workers;
            sum.flows += time.flows / workers;
            sum.update += time.update / workers;
        }
        sum
    }
}
