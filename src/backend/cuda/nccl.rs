//! Sums over several devices, by NCCL.
//!
//! NCCL installs itself as `libnccl.so.2`; the name without a number is there only where its headers are. `cudarc`
//! looks for the latter and panics without it, so the four functions that are needed are looked up here, under either
//! name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaStream, sys::CUstream};
use libloading::Library;

use super::descriptors::{Count, Ptr};
use crate::backend::FlowPrecision;
use crate::error::{Error, Result};

/// Where NCCL may be found, on the library path.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclComm_t`.
type Handle = *mut c_void;

/// The functions of NCCL that we call.
struct Nccl {
    init_all: unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions where they are.
    _library: Library,
}

impl Nccl {
    fn load() -> Result<Self> {
        // SAFETY: loads NCCL, whose initialisers are its own business.
        let library = NAMES.iter().find_map(|&name| unsafe { Library::new(name) }.ok());
        let library = library.ok_or_else(|| {
            Error::device("several devices need NCCL, and libnccl.so.2 is not on the library path; use one device")
        })?;
        let missing = |name: &str| Error::device(format!("this NCCL has no {name}: version 2 is needed"));
        macro_rules! find {
            ($name:literal) => {{
                // SAFETY: the field that it is put into has the type of the function in NCCL's header.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(|_| missing($name))?
            }};
        }
        Ok(Self {
            init_all: find!("ncclCommInitAll"),
            all_reduce: find!("ncclAllReduce"),
            destroy: find!("ncclCommDestroy"),
            error_string: find!("ncclGetErrorString"),
            _library: library,
        })
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL answers any code with a string of its own that is never freed.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Error::device(format!("{what}: NCCL: {}", text.to_string_lossy())))
    }
}

/// One device's end of a group of devices.
pub(super) struct Communicator {
    nccl: Arc<Nccl>,
    handle: Handle,
}

// SAFETY: a communicator may be used by one thread at a time, and belongs to one member of a group.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins devices, one communicator for each.
    pub fn join(devices: &[usize]) -> Result<Vec<Self>> {
        let nccl = Arc::new(Nccl::load()?);
        let ordinals: Vec<c_int> = devices.iter().map(|&device| device as c_int).collect();
        let mut handles = vec![null_mut(); ordinals.len()];
        // SAFETY: both arrays have as many elements as are announced, and the second is only read.
        let code = unsafe { (nccl.init_all)(handles.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        nccl.check("the devices could not be joined", code)?;
        Ok(handles.into_iter().map(|handle| Self { nccl: nccl.clone(), handle }).collect())
    }

    /// Replaces numbers by their sums over all devices, in the order of the stream. Every device has to ask for it.
    pub fn all_reduce(
        &self,
        flows: Ptr<Count>,
        precision: FlowPrecision,
        len: usize,
        stream: &CudaStream,
    ) -> Result<()> {
        const SUM: c_int = 0; // ncclSum
        let data_type: c_int = match precision {
            FlowPrecision::Single => 7, // ncclFloat32
            FlowPrecision::Double => 8, // ncclFloat64
        };
        let address = flows.address() as *mut c_void;
        // SAFETY: callers pass a flow buffer of `len` numbers on this communicator's device, and its stream.
        let code =
            unsafe { (self.nccl.all_reduce)(address, address, len, data_type, SUM, self.handle, stream.cu_stream()) };
        self.nccl.check("a sum over the devices", code)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: made by `join`, and used no more. A failure leaves something behind that ends with the process.
        unsafe { (self.nccl.destroy)(self.handle) };
    }
}
