//! Capturing streams into graphs.
//!
//! While a stream is captured its operations become nodes. Other streams join by waiting for an event of the capture
//! and must be joined back before it ends. A graph keeps what depends on what and nothing else: in the lazy modes nodes
//! that do not depend on each other run last one first.

use std::collections::HashMap;
use std::thread::ThreadId;

use crate::config::StreamMode;
use crate::result::Code;
use crate::state::{Handle, System};
use crate::stream::{HostBytes, Op};

/// What a graph does.
#[derive(Debug, Default)]
pub struct Graph {
    /// In the order of capture, which is one possible order of execution.
    pub nodes: Vec<Node>,
}

/// An operation and the nodes before it.
#[derive(Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Indices of nodes that must be done.
    pub after: Vec<usize>,
}

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    origin: Handle,
    graph: Graph,
    /// The last nodes of each stream that takes part.
    frontiers: HashMap<Handle, Vec<usize>>,
    /// Something forbidden happened.
    invalid: bool,
    /// Unless it is relaxed, this thread must not do unsafe things meanwhile.
    strict_thread: Option<ThreadId>,
}

impl Graph {
    /// An order that respects all dependencies: as captured, or the most hostile one.
    pub fn order(&self, mode: StreamMode) -> Vec<usize> {
        if mode == StreamMode::Eager {
            return (0..self.nodes.len()).collect();
        }
        let mut done = vec![false; self.nodes.len()];
        let mut order = Vec::new();
        while order.len() < self.nodes.len() {
            let ready = |n: &usize| !done[*n] && self.nodes[*n].after.iter().all(|d| done[*d]);
            let next = (0..self.nodes.len()).rev().find(ready).expect("edges point backwards");
            done[next] = true;
            order.push(next);
        }
        order
    }
}

impl System {
    /// Starts a capture. `relaxed` allows unsafe calls meanwhile.
    pub fn begin_capture(&mut self, stream: Handle, relaxed: bool) -> Result<(), Code> {
        let state = self.live_stream(stream)?;
        if state.capture.is_some() || self.devices[state.device].default_stream == stream {
            return Err(Code::CaptureUnsupported);
        }
        self.status(state.device)?;
        let capture = self.new_handle();
        self.captures.insert(
            capture,
            Capture {
                origin: stream,
                graph: Graph::default(),
                frontiers: HashMap::from([(stream, Vec::new())]),
                invalid: false,
                strict_thread: (!relaxed).then(|| std::thread::current().id()),
            },
        );
        self.streams.get_mut(&stream).expect("found above").capture = Some(capture);
        Ok(())
    }

    /// Ends a capture and gives the graph.
    pub fn end_capture(&mut self, stream: Handle) -> Result<Graph, Code> {
        let handle = self.live_stream(stream)?.capture.ok_or(Code::InvalidValue)?;
        if self.captures[&handle].origin != stream {
            return Err(self.invalidate(stream, Code::CaptureUnmatched));
        }
        let capture = self.captures.remove(&handle).expect("a capturing stream has its capture");
        for state in self.streams.values_mut() {
            if state.capture == Some(handle) {
                state.capture = None;
            }
        }
        if capture.invalid {
            return Err(Code::CaptureInvalidated);
        }
        // Everything must lie before the origin's last nodes.
        let mut joined = vec![false; capture.graph.nodes.len()];
        let mut todo = capture.frontiers[&stream].clone();
        while let Some(node) = todo.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                todo.extend(&capture.graph.nodes[node].after);
            }
        }
        if joined.iter().all(|j| *j) { Ok(capture.graph) } else { Err(Code::CaptureUnjoined) }
    }

    /// Adds a node.
    pub(crate) fn capture_op(&mut self, stream: Handle, op: Op) -> Result<(), Code> {
        let handle = self.streams[&stream].capture.expect("the caller checked");
        let forbidden =
            matches!(op, Op::Alloc { .. } | Op::Free { .. } | Op::Collective(_) | Op::Graph(_) | Op::Wait { .. });
        let taken = matches!(op, Op::Upload { from: HostBytes::Taken(_), .. });
        if forbidden || taken {
            return Err(self.invalidate(stream, Code::CaptureUnsupported));
        }
        let capture = self.captures.get_mut(&handle).expect("a capturing stream has its capture");
        if capture.invalid {
            return Err(Code::CaptureInvalidated);
        }
        let node = capture.graph.nodes.len();
        let frontier = capture.frontiers.entry(stream).or_default();
        let after = std::mem::replace(frontier, vec![node]);
        capture.graph.nodes.push(Node { op, after });
        Ok(())
    }

    /// What an event recorded now in a capturing stream stands for.
    pub(crate) fn capture_frontier(&self, capture: Handle, stream: Handle) -> Vec<usize> {
        self.captures.get(&capture).and_then(|c| c.frontiers.get(&stream)).cloned().unwrap_or_default()
    }

    /// A stream waits for an event of a capture: it takes part from here on.
    pub(crate) fn join_capture(&mut self, stream: Handle, handle: Handle, nodes: &[usize]) -> Result<(), Code> {
        let Some(capture) = self.captures.get_mut(&handle) else { return Err(Code::InvalidValue) };
        let state = self.streams.get_mut(&stream).ok_or(Code::InvalidHandle)?;
        match state.capture {
            Some(other) if other != handle => return Err(Code::CaptureIsolation),
            _ => state.capture = Some(handle),
        }
        let frontier = capture.frontiers.entry(stream).or_default();
        for &node in nodes {
            if !frontier.contains(&node) {
                frontier.push(node);
            }
        }
        Ok(())
    }

    /// Ruins the capture a stream takes part in.
    pub(crate) fn invalidate(&mut self, stream: Handle, code: Code) -> Code {
        let handle = self.streams.get(&stream).and_then(|s| s.capture);
        if let Some(capture) = handle.and_then(|h| self.captures.get_mut(&h)) {
            capture.invalid = true;
        }
        code
    }

    /// Calls that wait for a stream are forbidden while it is captured.
    pub(crate) fn forbid_in_capture(&mut self, stream: Handle) -> Result<(), Code> {
        if self.live_stream(stream)?.capture.is_some() {
            return Err(self.invalidate(stream, Code::CaptureUnsupported));
        }
        Ok(())
    }

    /// Calls that may wait for anything (allocation, synchronous copies) are forbidden to a thread that captures.
    pub(crate) fn forbid_while_capturing(&mut self) -> Result<(), Code> {
        let me = std::thread::current().id();
        match self.captures.values_mut().find(|c| c.strict_thread == Some(me)) {
            Some(capture) => {
                capture.invalid = true;
                Err(Code::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }
}
