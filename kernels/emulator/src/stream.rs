//! Streams and events: what runs when.
//!
//! A stream is a queue of operations. In eager mode each runs as soon as it is submitted. In the lazy modes it runs
//! only when somebody is entitled to its result, so that a missing event shows. Operations are numbered over all
//! streams; a stream has done everything up to the number before its first queued operation. A wait names a stream and
//! a number, and a number waited for is always smaller than the waiter's, so waiting cannot go in circles (collectives,
//! which wait for each other, see `collective`, can: then they are [`Progress::Blocked`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::collective::CollectiveId;
use crate::config::StreamMode;
use crate::graph::Graph;
use crate::machine::Shape;
use crate::memory::DeviceMemory;
use crate::program::Kernel;
use crate::result::{Code, Fault};
use crate::state::{Handle, System};

/// An operation in a stream.
#[allow(missing_docs)] // the fields are named for what they are
#[derive(Debug, Clone)]
pub enum Op {
    /// A kernel.
    Launch { kernel: Arc<Kernel>, params: Vec<u8>, shape: Shape },
    /// Bytes from the host.
    Upload { to: u64, from: HostBytes },
    /// Bytes to the host, at this address.
    Download { to: usize, from: u64, len: usize },
    /// Device to device, perhaps to another one.
    Copy { to: u64, from: u64, len: usize },
    /// `count` times the pattern.
    Fill { to: u64, pattern: Vec<u8>, count: usize },
    /// Marks the event as reached.
    Record { event: Handle },
    /// Nothing behind it runs before that stream has done that number.
    Wait { stream: Handle, seq: u64 },
    /// Begins an allocation: what was written there before is a mistake.
    Alloc { address: u64 },
    /// Ends an allocation.
    Free { address: u64 },
    /// Calls the host: function and argument.
    Host { function: usize, argument: usize },
    /// A recorded graph.
    Graph(Arc<Graph>),
    /// This stream's part of a collective.
    Collective(CollectiveId),
}

/// Bytes of the host, taken at the call or read when the copy runs.
#[allow(missing_docs)]
#[derive(Debug, Clone)]
pub enum HostBytes {
    /// Pageable memory: a driver stages it before the call returns.
    Taken(Vec<u8>),
    /// Page-locked memory (or any, in a graph): read late, at this address.
    Late { at: usize, len: usize },
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its device.
    pub device: usize,
    /// Whether it waits for the default stream and makes that one wait.
    pub blocking: bool,
    /// The capture it takes part in.
    pub capture: Option<Handle>,
    /// No handle is left; what is queued still runs.
    pub destroyed: bool,
    queue: VecDeque<(u64, Op)>,
    /// It is being run further up the call stack.
    busy: bool,
}

/// An event.
#[derive(Debug, Default)]
pub struct Event {
    /// Where it was recorded last.
    pub recorded: Option<(Handle, u64)>,
    /// If that was in a capture: which one, and the nodes it stands for.
    pub captured: Option<(Handle, Vec<usize>)>,
    /// Whether it can tell the time.
    pub timing: bool,
    /// When it was last reached.
    pub reached: Option<Instant>,
}

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// As far as was asked.
    Done,
    /// A collective waits for a rank that has not called it.
    Blocked,
}

impl System {
    /// Makes a stream.
    pub fn new_stream(&mut self, device: usize, blocking: bool) -> Handle {
        let handle = self.new_handle();
        let stream = Stream { device, blocking, capture: None, destroyed: false, queue: VecDeque::new(), busy: false };
        self.streams.insert(handle, stream);
        handle
    }

    /// Appends an operation, or records it if the stream is being captured. Returns its number.
    pub fn submit(&mut self, stream: Handle, op: Op) -> Result<u64, Code> {
        let device = self.live_stream(stream)?.device;
        self.status(device)?;
        if self.streams[&stream].capture.is_some() {
            return self.capture_op(stream, op).map(|()| 0);
        }
        self.order_with_default(stream);
        let seq = self.enqueue(stream, op);
        if self.config.streams == StreamMode::Eager {
            self.run_everything();
        }
        Ok(seq)
    }

    pub(crate) fn enqueue(&mut self, stream: Handle, op: Op) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.streams.get_mut(&stream).expect("a live stream").queue.push_back((seq, op));
        seq
    }

    pub(crate) fn live_stream(&self, stream: Handle) -> Result<&Stream, Code> {
        self.streams.get(&stream).filter(|s| !s.destroyed).ok_or(Code::InvalidHandle)
    }

    /// The default stream and the blocking streams of its device wait for each other.
    fn order_with_default(&mut self, stream: Handle) {
        let device = self.streams[&stream].device;
        let default = self.devices[device].default_stream;
        let others: Vec<Handle> = if stream == default {
            self.streams
                .iter()
                .filter(|(h, s)| **h != default && s.device == device && s.blocking)
                .map(|(h, _)| *h)
                .collect()
        } else if self.streams[&stream].blocking {
            vec![default]
        } else {
            Vec::new()
        };
        for other in others {
            if let Some(&(seq, _)) = self.streams[&other].queue.back() {
                self.enqueue(stream, Op::Wait { stream: other, seq });
            }
        }
    }

    /// Whether a stream has done everything up to a number.
    pub fn is_done(&self, stream: Handle, seq: u64) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.queue.front().is_none_or(|(first, _)| *first > seq))
    }

    /// The number of the last operation of a stream.
    pub(crate) fn last_seq(&self, stream: Handle) -> u64 {
        self.streams.get(&stream).and_then(|s| s.queue.back()).map_or(0, |(seq, _)| *seq)
    }

    /// Somebody wants the result of a stream up to a number.
    pub fn demand(&mut self, stream: Handle, seq: u64) -> Progress {
        if self.is_done(stream, seq) {
            return Progress::Done;
        }
        if self.config.streams == StreamMode::OthersFirst {
            let others: Vec<Handle> = self.streams.keys().rev().copied().filter(|h| *h != stream).collect();
            for other in others {
                self.run_until(other, u64::MAX);
            }
        }
        self.run_until(stream, seq)
    }

    /// Somebody wants everything on a device (or, with `None`, on all): the youngest stream goes first.
    pub fn demand_all(&mut self, device: Option<usize>) -> Progress {
        let streams: Vec<Handle> =
            self.streams.iter().rev().filter(|(_, s)| device.is_none_or(|d| s.device == d)).map(|(h, _)| *h).collect();
        let mut progress = Progress::Done;
        for stream in streams {
            if self.run_until(stream, u64::MAX) == Progress::Blocked {
                progress = Progress::Blocked;
            }
        }
        self.streams.retain(|_, s| !(s.destroyed && s.queue.is_empty()));
        progress
    }

    /// Eager mode: all that can run, in the order of submission.
    fn run_everything(&mut self) {
        loop {
            let mut heads: Vec<(u64, Handle)> =
                self.streams.iter().filter_map(|(h, s)| s.queue.front().map(|(seq, _)| (*seq, *h))).collect();
            heads.sort_unstable();
            let before = heads.len();
            let moved = heads.iter().any(|&(seq, stream)| self.run_until(stream, seq) == Progress::Done);
            if before == 0 || !moved {
                return;
            }
        }
    }

    /// Runs a stream up to a number.
    pub(crate) fn run_until(&mut self, stream: Handle, seq: u64) -> Progress {
        if self.is_done(stream, seq) {
            return Progress::Done;
        }
        let Some(state) = self.streams.get_mut(&stream) else { return Progress::Done };
        if state.busy {
            return Progress::Blocked;
        }
        state.busy = true;
        let progress = self.run_queue(stream, seq);
        if let Some(state) = self.streams.get_mut(&stream) {
            state.busy = false;
        }
        progress
    }

    fn run_queue(&mut self, stream: Handle, seq: u64) -> Progress {
        loop {
            let state = self.streams.get_mut(&stream).expect("it cannot be removed while it runs");
            let device = state.device;
            match state.queue.front() {
                Some(&(first, Op::Wait { stream: other, seq: awaited })) if first <= seq => {
                    if self.run_until(other, awaited) == Progress::Blocked {
                        return Progress::Blocked;
                    }
                    self.streams.get_mut(&stream).expect("as above").queue.pop_front();
                }
                Some(&(first, Op::Collective(id))) if first <= seq => {
                    // When done it has taken itself off all queues.
                    if self.run_collective(id) == Progress::Blocked {
                        return Progress::Blocked;
                    }
                }
                Some(&(first, _)) if first <= seq => {
                    let (_, op) = state.queue.pop_front().expect("it has a front");
                    self.run_op(device, &op);
                }
                _ => return Progress::Done,
            }
        }
    }

    /// Takes a finished collective off a stream.
    pub(crate) fn pop_collective(&mut self, stream: Handle, id: CollectiveId) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        if matches!(state.queue.front(), Some((_, Op::Collective(at))) if *at == id) {
            state.queue.pop_front();
        }
    }

    /// Takes a collective that will not run off a stream, wherever it is in the queue.
    pub(crate) fn drop_collective(&mut self, stream: Handle, id: CollectiveId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.queue.retain(|(_, op)| !matches!(op, Op::Collective(at) if *at == id));
        }
    }

    /// The number of the next operation of a stream.
    pub(crate) fn first_seq(&self, stream: Handle) -> Option<u64> {
        self.streams.get(&stream).and_then(|s| s.queue.front()).map(|(seq, _)| *seq)
    }

    /// Whether a collective is next in a stream.
    pub(crate) fn is_at_collective(&self, stream: Handle, id: CollectiveId) -> bool {
        let front = self.streams.get(&stream).and_then(|s| s.queue.front());
        matches!(front, Some((_, Op::Collective(at))) if *at == id)
    }

    /// Runs one operation now. After a fault a device does nothing any more.
    pub(crate) fn run_op(&mut self, device: usize, op: &Op) {
        if self.devices[device].sticky.is_some() && !matches!(op, Op::Record { .. }) {
            return;
        }
        if let Err(fault) = self.execute(device, op) {
            self.report(&fault.what);
            self.devices[device].sticky.get_or_insert(fault.code);
        }
    }

    fn execute(&mut self, device: usize, op: &Op) -> Result<(), Fault> {
        match op {
            Op::Launch { kernel, params, shape } => self.run_kernel(device, kernel, params, *shape),
            Op::Upload { to, from } => self.upload(device, *to, from),
            Op::Download { to, from, len } => {
                let (region, at) = self.devices[device].memory.range(*from, *len).map_err(|f| late(&f, "download"))?;
                let bytes = &region.bytes.data[at..at + len];
                // SAFETY: the program handed this range to a copy and must keep it alive until the copy is done, which
                // is the contract of cuMemcpyDtoHAsync; page-locked ranges are freed through us, after all work is
                // done.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), *to as *mut u8, *len) };
                Ok(())
            }
            Op::Copy { to, from, len } => self.copy(*to, *from, *len),
            Op::Fill { to, pattern, count } => {
                let len = pattern.len() * count;
                let (region, at) = self.devices[device].memory.range(*to, len).map_err(|f| late(&f, "fill"))?;
                region.bytes.data[at..at + len]
                    .chunks_exact_mut(pattern.len())
                    .for_each(|c| c.copy_from_slice(pattern));
                region.bytes.mark(at, len);
                Ok(())
            }
            Op::Record { event } => {
                if let Some(event) = self.events.get_mut(event) {
                    event.reached = Some(Instant::now());
                }
                Ok(())
            }
            Op::Alloc { address } => {
                let found = self.devices[device].memory.find(*address);
                if found.is_none_or(|allocation| allocation.bytes.is_untouched()) {
                    return Ok(());
                }
                let what =
                    format!("memory at {address:#x} was written before the stream that allocates it came to that");
                Err(Fault::new(Code::IllegalAddress, what))
            }
            Op::Free { address } => {
                let freed = self.devices[device].memory.free(*address);
                freed.map_err(|code| Fault::new(code, format!("{address:#x} is freed, which is no allocation")))
            }
            Op::Host { function, argument } => {
                // SAFETY: the program gave us this function and argument through cuLaunchHostFunc, whose contract is
                // that both stay good until the call.
                let function: extern "C" fn(*mut std::ffi::c_void) = unsafe { std::mem::transmute(*function) };
                function(*argument as *mut std::ffi::c_void);
                Ok(())
            }
            Op::Graph(graph) => {
                for node in graph.order(self.config.streams) {
                    self.run_op(device, &graph.nodes[node].op);
                }
                Ok(())
            }
            Op::Wait { .. } | Op::Collective(_) => Ok(()), // handled by `run_queue`
        }
    }

    fn upload(&mut self, device: usize, to: u64, from: &HostBytes) -> Result<(), Fault> {
        let bytes: &[u8] = match from {
            HostBytes::Taken(bytes) => bytes,
            // SAFETY: the program handed this range to a copy and must keep it alive and unchanged until the copy is
            // done, which is the contract of cuMemcpyHtoDAsync; page-locked ranges are freed through us, after all work
            // is done.
            HostBytes::Late { at, len } => unsafe { std::slice::from_raw_parts(*at as *const u8, *len) },
        };
        let (region, at) = self.devices[device].memory.range(to, bytes.len()).map_err(|f| late(&f, "upload"))?;
        region.bytes.data[at..at + bytes.len()].copy_from_slice(bytes);
        region.bytes.mark(at, bytes.len());
        Ok(())
    }

    /// Between any two devices; what was never written stays so.
    fn copy(&mut self, to: u64, from: u64, len: usize) -> Result<(), Fault> {
        let place = |address| {
            let device = DeviceMemory::device_of(address).filter(|d| *d < self.devices.len());
            device
                .ok_or_else(|| Fault::new(Code::IllegalAddress, format!("copy at {address:#x}, which is on no device")))
        };
        let (target, source) = (place(to)?, place(from)?);
        let (region, at) = self.devices[source].memory.range(from, len).map_err(|f| late(&f, "copy from"))?;
        let mut part = crate::memory::Bytes::poisoned(len);
        part.data.copy_from_slice(&region.bytes.data[at..at + len]);
        part.copy_marks(0, &region.bytes, at, len);
        let (region, at) = self.devices[target].memory.range(to, len).map_err(|f| late(&f, "copy to"))?;
        region.bytes.data[at..at + len].copy_from_slice(&part.data);
        region.bytes.copy_marks(at, &part, 0, len);
        Ok(())
    }

    /// A device with a copy on its way that reads or writes this range of the host.
    pub(crate) fn copying(&self, at: usize, len: usize) -> Option<usize> {
        let touches = |op: &Op| match op {
            Op::Upload { from: HostBytes::Late { at: from, len: bytes }, .. } => *from < at + len && at < from + bytes,
            Op::Download { to, len: bytes, .. } => *to < at + len && at < to + bytes,
            _ => false,
        };
        let is_queued = |op: &Op| match op {
            Op::Graph(graph) => graph.nodes.iter().any(|node| touches(&node.op)),
            _ => touches(op),
        };
        self.streams.values().find(|s| s.queue.iter().any(|(_, op)| is_queued(op))).map(|s| s.device)
    }

    /// Makes an event.
    pub fn new_event(&mut self, event: Event) -> Handle {
        let handle = self.new_handle();
        self.events.insert(handle, event);
        handle
    }

    /// Records an event in a stream.
    pub fn record_event(&mut self, event: Handle, stream: Handle) -> Result<(), Code> {
        if !self.events.contains_key(&event) {
            return Err(Code::InvalidHandle);
        }
        if let Some(capture) = self.live_stream(stream)?.capture {
            let frontier = self.capture_frontier(capture, stream);
            let event = self.events.get_mut(&event).expect("checked above");
            event.captured = Some((capture, frontier));
            return Ok(());
        }
        let seq = self.submit(stream, Op::Record { event })?;
        let event = self.events.get_mut(&event).expect("checked above");
        event.recorded = Some((stream, seq));
        event.captured = None;
        Ok(())
    }

    /// Makes a stream wait for what an event stands for now.
    pub fn wait_event(&mut self, stream: Handle, event: Handle) -> Result<(), Code> {
        let event = self.events.get(&event).ok_or(Code::InvalidHandle)?;
        if let Some((capture, nodes)) = event.captured.clone() {
            return self.join_capture(stream, capture, &nodes);
        }
        let recorded = event.recorded;
        if self.live_stream(stream)?.capture.is_some() {
            // An event that was never recorded waits for nothing; one from outside cannot be part of a graph.
            return if recorded.is_some() { Err(self.invalidate(stream, Code::CaptureIsolation)) } else { Ok(()) };
        }
        match recorded {
            Some((other, seq)) if !self.is_done(other, seq) => {
                self.submit(stream, Op::Wait { stream: other, seq }).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether an event has been reached; if not, it will be when asked again.
    pub fn query_event(&mut self, event: Handle) -> Result<(), Code> {
        let recorded = self.events.get(&event).ok_or(Code::InvalidHandle)?.recorded;
        match recorded {
            Some((stream, seq)) if !self.is_done(stream, seq) => {
                self.demand(stream, seq);
                Err(Code::NotReady)
            }
            _ => Ok(()),
        }
    }
}

/// A range that was good at the call and is not any more.
fn late(fault: &Fault, what: &str) -> Fault {
    Fault::new(Code::IllegalAddress, format!("{what} of {}", fault.what))
}
