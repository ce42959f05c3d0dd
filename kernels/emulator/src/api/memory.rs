//! Memory: allocation, copies, fills.

use std::alloc::Layout;
use std::ffi::{c_int, c_uint};

use super::{CURRENT, call, call_waiting, current, put, stream_of};
use crate::config::StreamMode;
use crate::memory::{DeviceMemory, POISON};
use crate::result::Code;
use crate::state::{Handle, System};
use crate::stream::{HostBytes, Op, Progress};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, len: usize) -> c_int {
    call(|system| {
        let device = current(system)?;
        system.forbid_while_capturing()?;
        let base = system.alloc(device, len)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(address, base) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, len: usize, stream: Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        system.forbid_in_capture(stream)?;
        let base = system.alloc_in(stream, len)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(address, base) }
    })
}

/// Waits for the whole device, as the real one does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if address == 0 {
        return 0;
    }
    call_waiting(|system| {
        let device = current(system)?;
        system.forbid_while_capturing()?;
        let progress = system.demand_all(Some(device));
        system.status(device)?;
        if progress == Progress::Done {
            let owner =
                DeviceMemory::device_of(address).filter(|d| *d < system.devices.len()).ok_or(Code::InvalidValue)?;
            system.device(owner)?.memory.free(address)?;
        }
        Ok(progress)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        check(system, address, 1)?;
        system.submit(stream, Op::Free { address }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    call(|system| {
        let device = current(system)?;
        let memory = &system.device(device)?.memory;
        // SAFETY: the caller passes places for the answers.
        unsafe {
            put(free, memory.free_bytes() as usize)?;
            put(total, memory.total_bytes() as usize)
        }
    })
}

fn host_layout(len: usize) -> Result<Layout, Code> {
    Layout::from_size_align(len.max(1), 4096).map_err(|_| Code::InvalidValue)
}

/// Page-locked memory, poisoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut u8, len: usize, _flags: c_uint) -> c_int {
    call(|system| {
        current(system)?;
        let layout = host_layout(len)?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(Code::OutOfMemory);
        }
        // SAFETY: just allocated with this size.
        unsafe { memory.write_bytes(POISON, layout.size()) };
        system.pinned.insert(memory as usize, len);
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(address, memory) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut *mut u8, len: usize) -> c_int {
    // SAFETY: as for this function.
    unsafe { cuMemHostAlloc(address, len, 0) }
}

/// A copy that is still on its way is a mistake: nothing says that this call waits for it. Other work of the thread's
/// device is waited for; that of other devices may be another rank's, which waits for this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut u8) -> c_int {
    call_waiting(|system| {
        let len = *system.pinned.get(&(address as usize)).ok_or(Code::InvalidValue)?;
        system.check_free_host(address as usize, len)?;
        let progress = system.demand_all(CURRENT.get().checked_sub(1));
        if progress == Progress::Done {
            system.pinned.remove(&(address as usize));
            // SAFETY: allocated by cuMemHostAlloc with this layout, and removed from the list, so freed once.
            unsafe { std::alloc::dealloc(address, host_layout(len)?) };
        }
        Ok(progress)
    })
}

/// A range must be inside one allocation of an existing device at the time of the call.
fn check(system: &mut System, address: u64, len: usize) -> Result<usize, Code> {
    let device = DeviceMemory::device_of(address).filter(|d| *d < system.devices.len()).ok_or(Code::InvalidValue)?;
    if let Err(fault) = system.device(device)?.memory.range(address, len) {
        let what = format!("copy, fill or free of {}", fault.what);
        system.report(&what);
        return Err(Code::InvalidValue);
    }
    Ok(device)
}

/// A copy runs on the device of its stream, which must own the memory.
fn check_on(system: &mut System, stream: Handle, address: u64, len: usize) -> Result<(), Code> {
    let owner = check(system, address, len)?;
    if owner != system.live_stream(stream)?.device {
        system.report(&format!("a stream of another device touches memory of device {owner}"));
        return Err(Code::InvalidValue);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: Handle) -> c_int {
    if len == 0 {
        return 0;
    }
    call(|system| {
        let stream = stream_of(system, stream)?;
        check_on(system, stream, to, len)?;
        let late = system.is_pinned(from as usize, len) || system.live_stream(stream)?.capture.is_some();
        let from = if late {
            HostBytes::Late { at: from as usize, len }
        } else {
            // SAFETY: the caller passes `len` readable bytes.
            HostBytes::Taken(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
        };
        system.submit(stream, Op::Upload { to, from }).map(drop)
    })
}

/// Bytes land late: in page-locked memory always, in any other perhaps, by the documentation. Eager streams let the
/// latter be there when the call returns, the others do not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, len: usize, stream: Handle) -> c_int {
    if len == 0 {
        return 0;
    }
    let mut submitted = None;
    call_waiting(|system| {
        let stream = stream_of(system, stream)?;
        let seq = match submitted {
            Some(seq) => seq,
            None => {
                check_on(system, stream, from, len)?;
                let seq = system.submit(stream, Op::Download { to: to as usize, from, len })?;
                submitted = Some(seq);
                seq
            }
        };
        let is_eager = system.config.streams == StreamMode::Eager;
        if !is_eager || system.is_pinned(to as usize, len) || system.live_stream(stream)?.capture.is_some() {
            return Ok(Progress::Done);
        }
        let progress = system.demand(stream, seq);
        system.status(system.live_stream(stream)?.device)?;
        Ok(progress)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) -> c_int {
    if len == 0 {
        return 0;
    }
    call(|system| {
        let stream = stream_of(system, stream)?;
        check(system, to, len)?;
        check(system, from, len)?;
        system.submit(stream, Op::Copy { to, from, len }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) -> c_int {
    cuMemcpyDtoDAsync_v2(to, from, len, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: Handle,
    from: u64,
    _from_context: Handle,
    len: usize,
    stream: Handle,
) -> c_int {
    cuMemcpyDtoDAsync_v2(to, from, len, stream)
}

/// A synchronous call: the operation goes to the default stream, and everything it needs is done before it returns.
fn synchronous(prepare: impl Fn(&mut System, Handle) -> Result<Op, Code>) -> c_int {
    let mut submitted = None;
    call_waiting(|system| {
        let device = current(system)?;
        let stream = system.devices[device].default_stream;
        let seq = match submitted {
            Some(seq) => seq,
            None => {
                system.forbid_while_capturing()?;
                let op = prepare(system, stream)?;
                let seq = system.submit(stream, op)?;
                submitted = Some(seq);
                seq
            }
        };
        let progress = system.demand(stream, seq);
        system.status(device)?;
        Ok(progress)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize) -> c_int {
    if len == 0 {
        return 0;
    }
    synchronous(|system, stream| {
        check_on(system, stream, to, len)?;
        Ok(Op::Upload { to, from: HostBytes::Late { at: from as usize, len } })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize) -> c_int {
    if len == 0 {
        return 0;
    }
    synchronous(|system, stream| {
        check_on(system, stream, from, len)?;
        Ok(Op::Download { to: to as usize, from, len })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> c_int {
    if len == 0 {
        return 0;
    }
    synchronous(|system, _| {
        check(system, to, len)?;
        check(system, from, len)?;
        Ok(Op::Copy { to, from, len })
    })
}

fn fill(to: u64, pattern: &[u8], count: usize, stream: Handle) -> c_int {
    if count == 0 {
        return 0;
    }
    call(|system| {
        let stream = stream_of(system, stream)?;
        check_on(system, stream, to, pattern.len() * count)?;
        system.submit(stream, Op::Fill { to, pattern: pattern.to_vec(), count }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> c_int {
    fill(to, &[value], count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) -> c_int {
    fill(to, &value.to_le_bytes(), count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) -> c_int {
    fill(to, &value.to_le_bytes(), count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> c_int {
    fill(to, &[value], count, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> c_int {
    fill(to, &value.to_le_bytes(), count, 0)
}
