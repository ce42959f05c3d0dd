//! The exported functions of NCCL, for several devices of one process.
//!
//! A call is queued in its stream at once and never waits for the others; who synchronises, waits. For collectives
//! `ncclGroupStart` and `ncclGroupEnd` therefore have nothing to do; sends and receives are queued together by the end
//! of their group. A communicator that was made with `blocking = 0` says `ncclInProgress` until all ranks have joined,
//! and once after every group; to call it earlier is a mistake.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{call, current, put, stream_of};
use crate::collective::{Call, Element, Kind, Move, Reduction};
use crate::result::Code;
use crate::state::Handle;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

const IN_PROGRESS: c_int = 7;

/// `ncclConfig_t`, as far as every version since 2.14 has it.
#[repr(C)]
pub struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Sends and receives of a thread whose group is open, with the communicator and the stream of each.
#[derive(Default)]
struct Group {
    depth: usize,
    moves: Vec<(Handle, Handle, Move)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// NCCL's result for a driver's.
fn result(status: i32) -> c_int {
    match status {
        0 => 0,
        1 | 400 => 4, // invalid argument
        801 => 5,     // invalid usage
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
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Handle) -> *const c_char {
    c"see the emulator's report".as_ptr()
}

fn init_rank(comm: *mut Handle, size: c_int, id: &UniqueId, rank: c_int, asks: bool) -> c_int {
    let key = u64::from_le_bytes(std::array::from_fn(|i| id.bytes[i]));
    result(call(|system| {
        let device = current(system)?;
        if size < 1 || rank < 0 {
            return Err(Code::InvalidValue);
        }
        let handle = system.comm_init(key, rank as usize, size as usize, device, asks)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(comm, handle) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int) -> c_int {
    init_rank(comm, size, &id, rank, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const NcclConfig,
) -> c_int {
    // SAFETY: null, or the caller's configuration, which is read only.
    let config = unsafe { config.as_ref() };
    let known = |config: &NcclConfig| {
        config.magic == 0xcafe_beef && config.version >= 21_400 && config.size >= size_of::<NcclConfig>()
    };
    if config.is_some_and(|config| !known(config)) {
        return 4; // invalid argument
    }
    let asks = config.is_some_and(|config| config.blocking == 0);
    match init_rank(comm, size, &id, rank, asks) {
        0 if asks => IN_PROGRESS,
        code => code,
    }
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
            let handle = system.comm_init(key, rank, size as usize, device, false)?;
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
    result(call(|system| system.comm_abort(comm)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(_comm: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> c_int {
    result(call(|system| {
        let answer = if system.comm_is_ready(comm)? { 0 } else { IN_PROGRESS };
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(error, answer) }
    }))
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
    GROUP.with_borrow_mut(|group| group.depth += 1);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let moves = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(if group.depth == 0 { std::mem::take(&mut group.moves) } else { Vec::new() })
    });
    let Some(mut moves) = moves else { return 5 }; // no group is open
    let mut answer = 0;
    while let Some(&(comm, stream, _)) = moves.first() {
        let (own, others): (Vec<_>, Vec<_>) = moves.into_iter().partition(|one| (one.0, one.1) == (comm, stream));
        moves = others;
        let own = own.into_iter().map(|(_, _, one)| one).collect();
        let mut asks = false;
        let code = result(call(|system| {
            asks = system.comm(comm)?.asks;
            system.exchange(comm, stream, own)
        }));
        match code {
            0 if asks => answer = IN_PROGRESS,
            0 => {}
            _ => return code,
        }
    }
    answer
}

fn point_to_point(
    is_send: bool,
    address: u64,
    count: usize,
    ty: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    let code = result(call(|system| {
        let stream = stream_of(system, stream)?;
        let ty = Element::from_number(ty).ok_or(Code::InvalidValue)?;
        let peer = usize::try_from(peer).map_err(|_| Code::InvalidValue)?;
        let one = Move { is_send, peer, address, bytes: count * ty.bytes() };
        GROUP.with_borrow_mut(|group| group.moves.push((comm, stream, one)));
        Ok(())
    }));
    let is_alone = GROUP.with_borrow(|group| group.depth == 0);
    if code == 0 && is_alone {
        ncclGroupStart();
        return ncclGroupEnd();
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(send: u64, count: usize, ty: c_int, peer: c_int, comm: Handle, stream: Handle) -> c_int {
    point_to_point(true, send, count, ty, peer, comm, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(recv: u64, count: usize, ty: c_int, peer: c_int, comm: Handle, stream: Handle) -> c_int {
    point_to_point(false, recv, count, ty, peer, comm, stream)
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
