//! Events.

use std::ffi::{c_int, c_uint};

use super::{call, call_waiting, current, put, stream_of};
use crate::result::Code;
use crate::state::Handle;
use crate::stream::{Event, Progress};

const DISABLE_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> c_int {
    call(|system| {
        current(system)?;
        let handle = system.new_event(Event { timing: flags & DISABLE_TIMING == 0, ..Event::default() });
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(event, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    call(|system| system.events.remove(&event).map(drop).ok_or(Code::InvalidHandle))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.record_event(event, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) -> c_int {
    cuEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> c_int {
    call_waiting(|system| {
        let state = system.events.get(&event).ok_or(Code::InvalidHandle)?;
        if state.captured.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        let Some((stream, seq)) = state.recorded else { return Ok(Progress::Done) };
        let progress = system.demand(stream, seq);
        let device = system.streams.get(&stream).map(|s| s.device);
        device.map_or(Ok(()), |d| system.status(d))?;
        Ok(progress)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> c_int {
    call(|system| system.query_event(event))
}

fn elapsed(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int {
    call(|system| {
        let find =
            |event| system.events.get(&event).filter(|e| e.timing && e.recorded.is_some()).ok_or(Code::InvalidHandle);
        let (start, end) = (find(start)?, find(end)?);
        for event in [start, end] {
            if event.recorded.is_some_and(|(stream, seq)| !system.is_done(stream, seq)) {
                return Err(Code::NotReady);
            }
        }
        let (Some(from), Some(to)) = (start.reached, end.reached) else { return Err(Code::NotReady) };
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(milliseconds, to.saturating_duration_since(from).as_secs_f32() * 1000.0) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int {
    elapsed(milliseconds, start, end)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int {
    elapsed(milliseconds, start, end)
}
