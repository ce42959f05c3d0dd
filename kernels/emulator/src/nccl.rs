//! The exported functions of NCCL, for several devices of one process.
//!
//! A call is queued in its stream at once and never waits for the others; who synchronises, waits. `ncclGroupStart` and
//! `ncclGroupEnd` therefore have nothing to do.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{call, current, put, stream_of};
use crate::collective::{Call, Element, Kind, Reduction};
use crate::result::Code;
use crate::state::Handle;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// NCCL's result for a driver's.
fn result(status: i32) -> c_int {
    match status {
        0 => 0,
        1 | 400 => 4, // invalid argument
        _ => 1,       // unhandled CUDA error
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    result(call(|_| unsafe { put(version, 22005) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&NEXT_ID.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    // SAFETY: the caller passes a place for the answer.
    result(call(|_| unsafe { put(id, UniqueId { bytes }) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Handle) -> *const c_char {
    c"see the emulator's report".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int) -> c_int {
    let key = u64::from_le_bytes(std::array::from_fn(|i| id.bytes[i]));
    result(call(|system| {
        let device = current(system)?;
        if size < 1 || rank < 0 {
            return Err(Code::InvalidValue);
        }
        let handle = system.comm_init(key, rank as usize, size as usize, device)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(comm, handle) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    _config: usize,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { ncclCommInitRank(comm, size, id, rank) }
}

/// `devices` may be null: then they are 0, 1, ….
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(comms: *mut Handle, size: c_int, devices: *const c_int) -> c_int {
    let key = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    result(call(|system| {
        if comms.is_null() || size < 1 {
            return Err(Code::InvalidValue);
        }
        for rank in 0..size as usize {
            // SAFETY: the caller passes `size` device numbers.
            let device = if devices.is_null() { rank } else { unsafe { *devices.add(rank) as usize } };
            let handle = system.comm_init(key, rank, size as usize, device)?;
            // SAFETY: the caller passes places for `size` answers.
            unsafe { put(comms.add(rank), handle)? };
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: Handle) -> c_int {
    result(call(|system| system.comm_destroy(comm)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: Handle) -> c_int {
    ncclCommDestroy(comm)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(_comm: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(_comm: Handle, error: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    result(call(|_| unsafe { put(error, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: Handle, count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    result(call(|system| unsafe { put(count, system.comm(comm)?.size as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: Handle, device: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    result(call(|system| unsafe { put(device, system.comm(comm)?.device as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: Handle, rank: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    result(call(|system| unsafe { put(rank, system.comm(comm)?.rank as c_int) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    0
}

#[allow(clippy::too_many_arguments)]
fn collective(
    kind: Kind,
    send: u64,
    recv: u64,
    count: usize,
    ty: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    result(call(|system| {
        let stream = stream_of(system, stream)?;
        let ty = Element::from_number(ty).ok_or(Code::InvalidValue)?;
        let op = Reduction::from_number(op).ok_or(Code::InvalidValue)?;
        let root = usize::try_from(root).map_err(|_| Code::InvalidValue)?;
        system.collective(comm, Call { kind, send, recv, count, ty, op, root, stream })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    send: u64,
    recv: u64,
    count: usize,
    ty: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    collective(Kind::AllReduce, send, recv, count, ty, op, 0, comm, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    send: u64,
    recv: u64,
    count: usize,
    ty: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    collective(Kind::Broadcast, send, recv, count, ty, 0, root, comm, stream)
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn ncclReduce(
    send: u64,
    recv: u64,
    count: usize,
    ty: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    collective(Kind::Reduce, send, recv, count, ty, op, root, comm, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(send: u64, recv: u64, count: usize, ty: c_int, comm: Handle, stream: Handle) -> c_int {
    collective(Kind::AllGather, send, recv, count, ty, 0, 0, comm, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    send: u64,
    recv: u64,
    count: usize,
    ty: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    collective(Kind::ReduceScatter, send, recv, count, ty, op, 0, comm, stream)
}
