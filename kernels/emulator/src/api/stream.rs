//! Streams and graphs.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::{call, call_waiting, current, put, stream_of};
use crate::result::Code;
use crate::state::Handle;
use crate::stream::Op;

const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, flags: c_uint) -> c_int {
    call(|system| {
        let device = current(system)?;
        let handle = system.new_stream(device, flags & NON_BLOCKING == 0);
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(stream, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, _priority: c_int) -> c_int {
    // SAFETY: as for this function.
    unsafe { cuStreamCreate(stream, flags) }
}

/// What is queued still runs, when somebody wants it.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    call(|system| {
        let device = system.live_stream(stream)?.device;
        system.streams.get_mut(&stream).ok_or(Code::InvalidHandle)?.destroyed = true;
        system.status(device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
    call_waiting(|system| {
        let stream = stream_of(system, stream)?;
        system.forbid_in_capture(stream)?;
        let seq = system.last_seq(stream);
        let progress = system.demand(stream, seq);
        system.status(system.live_stream(stream)?.device)?;
        Ok(progress)
    })
}

/// Not ready the first time it has something to do; then it does it.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.forbid_in_capture(stream)?;
        let seq = system.last_seq(stream);
        if system.is_done(stream, seq) {
            return Ok(());
        }
        system.demand(stream, seq);
        Err(Code::NotReady)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.wait_event(stream, event)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(stream: Handle, function: usize, argument: usize) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.submit(stream, Op::Host { function, argument }).map(drop)
    })
}

const RELAXED: c_int = 2;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.begin_capture(stream, mode == RELAXED)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        let captured = system.end_capture(stream)?;
        let handle = system.new_handle();
        system.graphs.insert(handle, Arc::new(captured));
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(graph, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        let capturing = system.live_stream(stream)?.capture.is_some();
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(status, c_int::from(capturing)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, _flags: u64) -> c_int {
    call(|system| {
        let graph = system.graphs.get(&graph).cloned().ok_or(Code::InvalidHandle)?;
        let handle = system.new_handle();
        system.graphs.insert(handle, graph);
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(exec, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> c_int {
    call(|system| {
        stream_of(system, stream)?;
        system.graphs.get(&exec).map(drop).ok_or(Code::InvalidHandle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        let graph = system.graphs.get(&exec).cloned().ok_or(Code::InvalidHandle)?;
        system.submit(stream, Op::Graph(graph)).map(drop)
    })
}

fn destroy(graph: Handle) -> c_int {
    call(|system| system.graphs.remove(&graph).map(drop).ok_or(Code::InvalidHandle))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    destroy(graph)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> c_int {
    destroy(exec)
}
