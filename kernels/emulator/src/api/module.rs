//! Modules, functions, launches, occupancy.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{call, current, put, stream_of};
use crate::machine::Shape;
use crate::result::Code;
use crate::state::Handle;

/// Loads PTX text. Machine code (cubin, fatbin) is refused: it cannot be interpreted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_char) -> c_int {
    call(|system| {
        let device = current(system)?;
        if image.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the driver's contract: an image in text form ends with a zero byte. Machine code begins with one of
        // two magic numbers, each with a zero byte in its first sixteen, so the search ends inside the image.
        let text = unsafe { CStr::from_ptr(image) };
        let handle = match text.to_str() {
            Ok(text) if text.contains(".version") => system.load_module(device, text)?,
            _ => {
                system.report("a module that is not PTX text");
                return Err(Code::InvalidImage);
            }
        };
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(module, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_char,
    _num_options: c_uint,
    _options: *const c_int,
    _values: *const *const c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(module: *mut Handle, path: *const c_char) -> c_int {
    call(|system| {
        let device = current(system)?;
        if path.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller passes a path that ends with a zero byte.
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| Code::InvalidValue)?;
        let text = std::fs::read_to_string(path).map_err(|_| Code::NotFound)?;
        let handle = system.load_module(device, &text)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(module, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> c_int {
    call(|system| system.unload_module(module))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> c_int {
    call(|system| {
        if name.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller passes a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::NotFound)?;
        let handle = system.function(module, name)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(function, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut u64,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> c_int {
    call(|system| {
        if name.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller passes a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::NotFound)?;
        let (base, size) = system.global(module, name)?;
        // SAFETY: the caller passes places for the answers, either of which may be null.
        unsafe {
            let _ = put(address, base);
            let _ = put(bytes, size);
        }
        Ok(())
    })
}

const ATTRIBUTE_MAX_DYNAMIC_SHARED: c_int = 8;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle) -> c_int {
    call(|system| {
        let function = system.functions.get(&function).ok_or(Code::InvalidHandle)?;
        let answer = match attribute {
            0 => function.kernel.max_threads as c_int,
            1 => function.kernel.shared_static as c_int,
            3 => function.kernel.local_bytes as c_int,
            4 => 64, // registers: only the assembler knows
            5 | 6 => 80,
            ATTRIBUTE_MAX_DYNAMIC_SHARED => function.max_dynamic as c_int,
            2 | 7 | 9..=15 => 0,
            _ => return Err(Code::InvalidValue),
        };
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(value, answer) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> c_int {
    call(|system| match attribute {
        ATTRIBUTE_MAX_DYNAMIC_SHARED => system.set_max_dynamic(function, value),
        _ => system.functions.get(&function).map(drop).ok_or(Code::InvalidHandle),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(_function: Handle, _config: c_int) -> c_int {
    0
}

/// Copies the arguments as the PTX declares them: `params[i]` points to the i-th.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const *const u8,
    extra: *const *const c_void,
) -> c_int {
    call(|system| {
        let stream = stream_of(system, stream)?;
        let kernel = system.functions.get(&function).ok_or(Code::InvalidHandle)?.kernel.clone();
        if !extra.is_null() || (params.is_null() && !kernel.params.is_empty()) {
            return Err(Code::InvalidValue);
        }
        let mut block = vec![0u8; kernel.param_bytes];
        for (i, param) in kernel.params.iter().enumerate() {
            // SAFETY: the caller passes one pointer for each parameter of the kernel, to as many bytes as it declares.
            let bytes = unsafe {
                let at = *params.add(i);
                if at.is_null() {
                    return Err(Code::InvalidValue);
                }
                std::slice::from_raw_parts(at, param.size)
            };
            block[param.offset..param.offset + param.size].copy_from_slice(bytes);
        }
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        system.launch(stream, function, shape, block)
    })
}

/// Blocks run one after another, so they cannot wait for each other.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    _function: Handle,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    _stream: Handle,
    _params: *const *const u8,
) -> c_int {
    Code::NotSupported as c_int
}

fn occupancy(blocks: *mut c_int, function: Handle, block_size: c_int, shared: usize) -> c_int {
    call(|system| {
        let kernel = &system.functions.get(&function).ok_or(Code::InvalidHandle)?.kernel;
        let by_threads = 2048 / block_size.max(32);
        let each = kernel.shared_static + shared + 1024;
        let by_shared = ((164 << 10) / each) as c_int;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(blocks, by_threads.min(by_shared).min(32)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: Handle,
    block_size: c_int,
    shared: usize,
) -> c_int {
    occupancy(blocks, function, block_size, shared)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: Handle,
    block_size: c_int,
    shared: usize,
    _flags: c_uint,
) -> c_int {
    occupancy(blocks, function, block_size, shared)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: Handle,
    num_blocks: c_int,
    _block_size: c_int,
) -> c_int {
    call(|system| {
        let kernel = &system.functions.get(&function).ok_or(Code::InvalidHandle)?.kernel;
        let each = (164 << 10) / num_blocks.max(1) as usize;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(bytes, each.saturating_sub(kernel.shared_static + 1024)) }
    })
}
