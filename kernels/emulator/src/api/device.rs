//! Initialisation, devices, contexts, error texts.

use std::ffi::{c_char, c_int, c_uint};

use super::{CURRENT, call, call_waiting, current, put};
use crate::result::Code;
use crate::state::Handle;
use crate::state::{SHARED_DEFAULT, SHARED_LIMIT};

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    let mut answer = 0;
    let status = call(|system| {
        if let Some(code) = system.config.fail_init {
            answer = code;
        } else if system.devices.is_empty() {
            return Err(Code::NoDevice);
        }
        Ok(())
    });
    if status == 0 { answer } else { status }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    call(|system| unsafe { put(version, system.config.driver_version) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    call(|system| unsafe { put(count, system.devices.len() as c_int) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    call(|system| {
        if ordinal < 0 || ordinal as usize >= system.devices.len() {
            return Err(Code::InvalidDevice);
        }
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    call(|system| {
        let text = format!("Emulated device {device}\0");
        if device < 0 || device as usize >= system.devices.len() || name.is_null() || (len as usize) < text.len() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller says that `len` bytes are there, and the text is no longer.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        Ok(())
    })
}

fn uuid(to: *mut [u8; 16], device: c_int) -> c_int {
    let mut bytes = *b"anemone emulator";
    bytes[15] = device as u8;
    // SAFETY: the caller passes a place for the answer.
    call(|_| unsafe { put(to, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: c_int) -> c_int {
    uuid(to, device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: c_int) -> c_int {
    uuid(to, device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    call(|system| {
        let total = system.devices.get(device as usize).ok_or(Code::InvalidDevice)?.memory.total_bytes();
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(bytes, total as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call(|system| {
        if device < 0 || device as usize >= system.devices.len() {
            return Err(Code::InvalidDevice);
        }
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(value, attribute_value(attribute, system.config.pools).ok_or(Code::InvalidValue)?) }
    })
}

/// A device of compute capability 8.0 with few multiprocessors, so that kernels sized by them stay small.
#[allow(clippy::match_overlapping_arm)] // the last arm is the rest
fn attribute_value(attribute: c_int, pools: bool) -> Option<c_int> {
    Some(match attribute {
        1..=3 => 1024,                    // threads per block; block dimensions x, y
        4 => 64,                          // block dimension z
        5 => i32::MAX,                    // grid dimension x
        6 | 7 => 65535,                   // grid dimensions y, z
        8 => SHARED_DEFAULT as c_int,     // shared memory per block
        9 => 65536,                       // constant memory
        10 => 32,                         // warp size
        11 => i32::MAX,                   // pitch
        12 | 82 => 65536,                 // registers per block, per multiprocessor
        13 => 1_410_000,                  // clock rate, kHz
        14 => 512,                        // texture alignment
        16 => 4,                          // multiprocessors
        15 | 19 | 31 | 41 | 79 | 80 => 1, // overlap, host mapping, concurrent kernels, unified addresses, L1 caches
        36 => 1_215_000,                  // memory clock, kHz
        37 => 5120,                       // bus width
        38 => 40 << 20,                   // L2 cache
        39 => 2048,                       // threads per multiprocessor
        40 => 3,                          // copy engines
        75 => 8,                          // compute capability, major
        76 => 0,                          // minor
        81 => 164 << 10,                  // shared memory per multiprocessor
        97 => SHARED_LIMIT as c_int,      // shared memory per block, on request
        106 => 32,                        // blocks per multiprocessor
        111 => 1024,                      // shared memory reserved per block
        115 => c_int::from(pools),        // memory pools
        17..=200 => 0,                    // all else it does not have
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(yes: *mut c_int, _device: c_int, _peer: c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    call(|_| unsafe { put(yes, 0) })
}

/// A context is its device, from 1.
fn context_of(device: usize) -> Handle {
    (device as Handle + 1) << 4
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int {
    call(|system| {
        if device < 0 || device as usize >= system.devices.len() {
            return Err(Code::InvalidDevice);
        }
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(context, context_of(device as usize)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    // Work that nobody waited for still runs, so that its faults are seen.
    call_waiting(|system| Ok(system.demand_all(Some(device as usize))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut Handle,
    _params: usize,
    _n: c_int,
    _flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { cuDevicePrimaryCtxRetain(context, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(context: *mut Handle, _params: usize, _flags: c_uint, device: c_int) -> c_int {
    // SAFETY: as for this function.
    unsafe { cuDevicePrimaryCtxRetain(context, device) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Handle) -> c_int {
    cuDevicePrimaryCtxRelease_v2((context >> 4) as c_int - 1)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> c_int {
    call(|system| {
        if (context >> 4) as usize > system.devices.len() || context & 15 != 0 {
            return Err(Code::InvalidContext);
        }
        CURRENT.set((context >> 4) as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    call(|_| unsafe { put(context, (CURRENT.get() as Handle) << 4) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for the answer.
    call(|system| unsafe { put(device, current(system)? as c_int) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    call_waiting(|system| {
        let device = current(system)?;
        system.forbid_while_capturing()?;
        let progress = system.demand_all(Some(device));
        system.status(device)?;
        Ok(progress)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_flags: c_uint) -> c_int {
    call(|system| current(system).map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    // SAFETY: the caller passes places for the answers, or null.
    call(|_| unsafe {
        let _ = put(least, 0);
        let _ = put(greatest, -5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(_config: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStart() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStop() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    let name = Code::from_number(error).unwrap_or(Code::Unknown).texts().0;
    // SAFETY: the caller passes a place for the answer; the text lives forever.
    call(|_| unsafe { put(text, name.as_ptr()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    let string = Code::from_number(error).unwrap_or(Code::Unknown).texts().1;
    // SAFETY: the caller passes a place for the answer; the text lives forever.
    call(|_| unsafe { put(text, string.as_ptr()) })
}
