//! The driver as C sees it: exported names, handles, result codes, and nothing that unwinds.
//!
//! The exported functions share one system in a process, so what depends on settings runs in a child process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::Command;

use cuda_emulator::api::device::*;
use cuda_emulator::api::event::*;
use cuda_emulator::api::memory::*;
use cuda_emulator::api::module::*;
use cuda_emulator::api::stream::*;
use cuda_emulator::nccl::*;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// What `cudarc` 0.19.10 looks up on the paths we use: it panics where a name is missing.
const NAMES: &str = "cuInit cuDeviceGetCount cuDeviceGet cuDevicePrimaryCtxRetain cuDeviceGetAttribute cuCtxGetCurrent \
    cuCtxSetCurrent cuDeviceGetName cuCtxSynchronize cuStreamCreate cuModuleLoadData cuEventCreate cuMemHostAlloc \
    cuEventSynchronize cuMemAllocAsync cuStreamWaitEvent cuMemcpyHtoDAsync_v2 cuEventRecord cuMemsetD8Async \
    cuModuleGetFunction cuLaunchKernel cuMemcpyDtoHAsync_v2 cuStreamSynchronize cuMemFreeAsync cuEventDestroy_v2 \
    cuModuleUnload cuStreamBeginCapture_v2 cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphUpload cuGraphLaunch \
    cuGraphExecDestroy cuGraphDestroy cuMemFreeHost cuStreamDestroy_v2 cuDevicePrimaryCtxRelease_v2 cuGetErrorName \
    cuGetErrorString cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemsetD32Async cuMemsetD8_v2 cuMemcpyDtoDAsync_v2 \
    cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemcpyPeerAsync cuDriverGetVersion cuEventElapsedTime \
    cuEventElapsedTime_v2 cuEventQuery cuStreamQuery cuStreamIsCapturing cuStreamCreateWithPriority cuFuncGetAttribute \
    cuFuncSetAttribute cuFuncSetCacheConfig cuModuleLoad cuModuleLoadDataEx cuModuleGetGlobal_v2 cuDeviceTotalMem_v2 \
    cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceCanAccessPeer cuCtxGetDevice cuCtxSetFlags cuCtxCreate_v4 \
    cuCtxDestroy_v2 cuCtxGetStreamPriorityRange cuLaunchHostFunc cuLaunchCooperativeKernel \
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags \
    cuOccupancyAvailableDynamicSMemPerBlock cuProfilerStart cuProfilerStop ncclGetUniqueId ncclCommInitAll \
    ncclCommInitRank ncclCommInitRankConfig ncclCommDestroy ncclCommAbort ncclCommFinalize ncclCommCount \
    ncclCommCuDevice ncclCommUserRank ncclGroupStart ncclGroupEnd ncclAllReduce ncclBroadcast ncclReduce ncclAllGather \
    ncclReduceScatter ncclGetErrorString ncclGetVersion ncclGetLastError";

#[test]
fn the_library_exports_every_name() {
    let deps = std::env::current_exe().unwrap();
    let path = deps.with_file_name("libcuda_emulator.so").to_str().unwrap().to_owned() + "\0";
    let path = CStr::from_bytes_with_nul(path.as_bytes()).unwrap();
    // SAFETY: the emulator has no initialisers; nothing of it is called here.
    let library = unsafe { dlopen(path.as_ptr(), 2) };
    assert!(!library.is_null(), "{path:?}");
    for name in NAMES.split_whitespace() {
        let c_name = std::ffi::CString::new(name).unwrap();
        // SAFETY: the library is open and the name ends with a zero byte.
        assert!(!unsafe { dlsym(library, c_name.as_ptr()) }.is_null(), "{name} is not exported");
    }
}

/// A program as `cudarc` would drive it, in C's terms.
#[test]
fn a_program_runs_through_the_exported_functions() {
    let ptx = std::fs::read_to_string(format!("{}/tests/ptx/patterns.ptx", env!("CARGO_MANIFEST_DIR"))).unwrap() + "\0";
    let (mut context, mut module, mut function, mut stream, mut event) = (0, 0, 0, 0, 0);
    let (mut count, mut x, mut pinned) = (0, 0u64, std::ptr::null_mut::<u8>());
    // SAFETY: every pointer is to a live local of the right type, and lengths are those of the buffers.
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!((cuDeviceGetCount(&mut count), count), (0, 1));
        assert_eq!(cuMemAlloc_v2(&mut x, 128), 201, "there is no context yet");
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        assert_eq!(cuEventCreate(&mut event, 0), 0);
        assert_eq!(cuModuleLoadData(&mut module, ptx.as_ptr().cast()), 0);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()), 500);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"scale".as_ptr()), 0);
        assert_eq!(cuMemAlloc_v2(&mut x, 128), 0);
        assert_eq!(cuMemsetD32Async(x, 2.5f32.to_bits(), 32, stream), 0);
        let (by, n) = (4.0f32, 32i32);
        let params = [(&raw const x).cast::<u8>(), (&raw const by).cast(), (&raw const n).cast()];
        assert_eq!(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params.as_ptr(), std::ptr::null()), 0);
        assert_eq!(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, stream, params.as_ptr(), std::ptr::null()), 1);
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!(cuEventSynchronize(event), 0);
        let mut host = [0f32; 32];
        assert_eq!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), x, 128, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(host, [10.0; 32]);
        assert_eq!(
            cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), x + 4, 128, stream),
            1,
            "past the end: refused at the call"
        );
        assert_eq!(cuMemHostAlloc(&mut pinned, 128, 0), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(pinned, x, 128, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(pinned.cast::<f32>().read(), 10.0);
        assert_eq!((cuMemFreeHost(pinned), cuMemFreeHost(pinned)), (0, 1));
        assert_eq!(cuStreamSynchronize(0xdead0), 400);

        let mut comm = 0;
        assert_eq!(ncclCommInitAll(&mut comm, 1, std::ptr::null()), 0);
        assert_eq!(ncclAllReduce(x, x, 32, 7, 0, comm, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(ncclCommDestroy(comm), 0);

        let mut text = std::ptr::null();
        assert_eq!(cuGetErrorName(700, &mut text), 0);
        assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(cuGetErrorString(2, &mut text), 0);
        assert_eq!(CStr::from_ptr(text), c"out of memory");
        assert_eq!((cuMemFree_v2(x), cuModuleUnload(module), cuStreamDestroy_v2(stream)), (0, 0, 0));
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
    }
}

/// Runs one of the tests below in a process with these settings.
fn child(test: &str, settings: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    for (name, value) in settings {
        command.env(format!("ANEMONE_EMULATOR_{name}"), value);
    }
    let output = command.output().expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
}

#[test]
fn a_machine_without_devices_says_so() {
    child("library::inside_no_devices", &[("DEVICES", "0")]);
}

#[test]
#[ignore = "run by a_machine_without_devices_says_so"]
fn inside_no_devices() {
    let mut count = -1;
    assert_eq!(cuInit(0), 100);
    // SAFETY: a live local.
    assert_eq!((unsafe { cuDeviceGetCount(&mut count) }, count), (0, 0));
}

#[test]
fn initialisation_fails_when_it_must() {
    child("library::inside_init_fails", &[("FAIL_INIT", "999")]);
}

#[test]
#[ignore = "run by initialisation_fails_when_it_must"]
fn inside_init_fails() {
    assert_eq!(cuInit(0), 999);
}

#[test]
fn counters_are_written_when_the_process_ends() {
    let path = std::env::temp_dir().join(format!("emulator-counters-{}", std::process::id()));
    let settings = [("COUNTERS", path.to_str().unwrap()), ("STREAMS", "lazy")];
    child("library::a_program_runs_through_the_exported_functions", &settings.map(|s| (s.0, s.1)));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("\"scale\": {\"launches\": 1,"), "{text}");
}
