//! Finding out whether there is a device that can be used, without ever panicking.
//!
//! `cudarc` loads the driver library at its first call, and panics where the library or one of its functions is
//! missing. So both are looked for here before anything else is called. Whoever asks for a device by number gets an
//! error that says why there is none; `auto` falls back to the CPU and says why in one line.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::driver_error;
use crate::error::{Error, Result};

/// The oldest driver that takes our PTX (`.version 8.4`), as `cuDriverGetVersion` counts.
const OLDEST_DRIVER: i32 = 12_040;

/// Tensor cores that multiply tf32 and bf16, and asynchronous copies: what the PTX is compiled for.
const OLDEST_ARCHITECTURE: (i32, i32) = (8, 0);

/// All that the backend calls. An old driver may lack some.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// A context on device `ordinal`, or why there is none.
pub(super) fn open(ordinal: usize) -> Result<Arc<CudaContext>> {
    check_device(ordinal)?;
    CudaContext::new(ordinal).map_err(|e| driver_error(&format!("cuda:{ordinal} cannot be used"), e))
}

/// Whether device `ordinal` can be used, and why not. Asks the driver, and makes nothing on the device.
pub fn check_device(ordinal: usize) -> Result<()> {
    let count = device_count()?;
    if ordinal >= count {
        let there = match count {
            0 => "the CUDA driver finds no device".to_string(),
            1 => "there is one CUDA device, cuda:0".to_string(),
            _ => format!("there are {count} CUDA devices, cuda:0 to cuda:{}", count - 1),
        };
        return Err(Error::device(format!("no device cuda:{ordinal}: {there}")));
    }
    let ask = |what| {
        let device = result::device::get(ordinal as i32)?;
        // SAFETY: the driver has just handed out the device.
        unsafe { result::device::get_attribute(device, what) }
    };
    let major = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    let minor = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    let architecture = major.and_then(|major| Ok((major, minor?)));
    let architecture = architecture.map_err(|e| driver_error("the device has no architecture", e))?;
    if architecture < OLDEST_ARCHITECTURE {
        let ((major, minor), (least, _)) = (architecture, OLDEST_ARCHITECTURE);
        return Err(Error::device(format!(
            "cuda:{ordinal} has compute capability {major}.{minor}, the kernels need {least}.0 or later (A100, RTX 30)"
        )));
    }
    Ok(())
}

/// How many devices there are. An error where nobody can tell.
pub fn device_count() -> Result<usize> {
    // SAFETY: loads the driver library, whose initialisers are its own business.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::device("no CUDA driver: libcuda.so is not on the library path"));
    }
    if let Some(symbol) = SYMBOLS.iter().find(|symbol| !has_symbol(symbol)) {
        return Err(Error::device(format!(
            "the CUDA driver is too old: it has no {symbol}; version 12.4 (550) or later is needed"
        )));
    }
    let count = CudaContext::device_count().map_err(|e| driver_error("the CUDA driver does not start", e))?;
    let mut version = 0;
    // SAFETY: writes one number to where the pointer points.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(|e| driver_error("driver version", e))?;
    if version < OLDEST_DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(Error::device(format!(
            "the CUDA driver is of version {major}.{minor}: version 12.4 (550) or later is needed"
        )));
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Whether the driver library has a function of this name.
fn has_symbol(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: the library is there (`is_culib_present`), and the address is only looked up, never called.
    unsafe { sys::culib().get::<*const ()>(name.as_bytes_with_nul()) }.is_ok()
}
