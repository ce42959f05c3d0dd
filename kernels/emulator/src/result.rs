//! The driver's result codes, and faults: errors with a story.

/// `CUresult`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Code {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    InvalidPtx = 218,
    UnsupportedPtxVersion = 222,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeout = 702,
    Assert = 710,
    IllegalInstruction = 715,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
    CaptureInvalidated = 901,
    CaptureUnmatched = 903,
    CaptureUnjoined = 904,
    CaptureIsolation = 905,
    CaptureWrongThread = 908,
    Unknown = 999,
}

impl Code {
    /// Every code, to find one by its number.
    pub const ALL: [Code; 28] = [
        Code::Success,
        Code::InvalidValue,
        Code::OutOfMemory,
        Code::NotInitialized,
        Code::NoDevice,
        Code::InvalidDevice,
        Code::InvalidImage,
        Code::InvalidContext,
        Code::InvalidPtx,
        Code::UnsupportedPtxVersion,
        Code::InvalidHandle,
        Code::NotFound,
        Code::NotReady,
        Code::IllegalAddress,
        Code::LaunchOutOfResources,
        Code::LaunchTimeout,
        Code::Assert,
        Code::IllegalInstruction,
        Code::MisalignedAddress,
        Code::LaunchFailed,
        Code::NotSupported,
        Code::CaptureUnsupported,
        Code::CaptureInvalidated,
        Code::CaptureUnmatched,
        Code::CaptureUnjoined,
        Code::CaptureIsolation,
        Code::CaptureWrongThread,
        Code::Unknown,
    ];

    /// The code with this number.
    pub fn from_number(number: i32) -> Option<Code> {
        Code::ALL.into_iter().find(|c| *c as i32 == number)
    }

    /// What `cuGetErrorName` and `cuGetErrorString` answer, ready for C.
    pub fn texts(self) -> (&'static std::ffi::CStr, &'static std::ffi::CStr) {
        match self {
            Code::Success => (c"CUDA_SUCCESS", c"no error"),
            Code::InvalidValue => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
            Code::OutOfMemory => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
            Code::NotInitialized => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
            Code::NoDevice => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
            Code::InvalidDevice => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
            Code::InvalidImage => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
            Code::InvalidContext => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
            Code::InvalidPtx => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
            Code::UnsupportedPtxVersion => {
                (c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain")
            }
            Code::InvalidHandle => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
            Code::NotFound => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
            Code::NotReady => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
            Code::IllegalAddress => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
            Code::LaunchOutOfResources => {
                (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch")
            }
            Code::LaunchTimeout => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
            Code::Assert => (c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
            Code::IllegalInstruction => (c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
            Code::MisalignedAddress => (c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
            Code::LaunchFailed => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
            Code::NotSupported => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
            Code::CaptureUnsupported => {
                (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
            }
            Code::CaptureInvalidated => {
                (c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture")
            }
            Code::CaptureUnmatched => {
                (c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began")
            }
            Code::CaptureUnjoined => (c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
            Code::CaptureIsolation => {
                (c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream")
            }
            Code::CaptureWrongThread => (
                c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
                c"attempt to terminate a thread-local capture sequence from another thread",
            ),
            Code::Unknown => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        }
    }
}

/// An error that knows what happened.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What the caller is told.
    pub code: Code,
    /// What a person is told: kernel, PTX line, block, thread.
    pub what: String,
}

impl Fault {
    /// A fault with its story.
    pub fn new(code: Code, what: impl Into<String>) -> Fault {
        Fault { code, what: what.into() }
    }
}

impl From<Code> for Fault {
    fn from(code: Code) -> Fault {
        Fault { code, what: String::new() }
    }
}
