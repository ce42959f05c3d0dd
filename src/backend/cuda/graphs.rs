//! Launches that are made again and again with the same arguments, as CUDA graphs.
//!
//! A pass over an HMM is hundreds of small launches. What comes a second time with the same key (rows, slot, gain: all
//! that its arguments depend on) is captured and from then on replayed as one.

use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaStream, sys};

use super::driver_error;
use crate::error::{Error, Result};

/// More would be kept only by somebody whose batches are all of different sizes.
const MOST: usize = 16;

/// The part of a step that a graph is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Forward,
    Backward,
    Flows,
}

/// All that the arguments of a part's launches depend on, as long as the working memory stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub part: Part,
    pub slot: usize,
    pub rows: usize,
    pub data_rows: usize,
    pub flow_bits: i64,
    pub gain_bits: u64,
}

/// Graphs by key.
#[derive(Default)]
pub(super) struct Graphs {
    /// Seen once, launched one by one.
    seen: Vec<Key>,
    ready: Vec<(Key, Replay)>,
}

struct Replay(CudaGraph);

// SAFETY: a graph may be used by one thread at a time, and it is: whoever has the backend has its graphs.
unsafe impl Send for Replay {}

impl Graphs {
    /// Forgets all of them: the memory they name is about to go.
    pub fn clear(&mut self) {
        self.seen.clear();
        self.ready.clear();
    }

    /// Makes the launches of `key`, by replaying them if they have been made before.
    pub fn run(&mut self, key: Key, stream: &Arc<CudaStream>, launch: impl Fn() -> Result<()>) -> Result<()> {
        if let Some((_, graph)) = self.ready.iter().find(|(ready, _)| *ready == key) {
            return graph.0.launch().map_err(|e| driver_error("launch of a graph", e));
        }
        if !self.seen.contains(&key) {
            if self.seen.len() == MOST {
                self.seen.remove(0);
            }
            self.seen.push(key);
            return launch();
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(|e| driver_error("capture of a graph", e))?;
        let launched = launch();
        // Also after a failure: a stream must not be left capturing.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        launched?;
        let graph = graph.map_err(|e| driver_error("capture of a graph", e))?;
        let graph = graph.ok_or_else(|| Error::device("the driver captured nothing of a step"))?;
        graph.launch().map_err(|e| driver_error("launch of a graph", e))?;
        if self.ready.len() == MOST {
            self.ready.remove(0);
        }
        self.ready.push((key, Replay(graph)));
        Ok(())
    }
}
