//! Sums over several devices, by NCCL.
//!
//! NCCL installs itself as `libnccl.so.2`; the name without a number is there only where its headers are. `cudarc`
//! looks for the latter and panics without it, so the functions that are needed are looked up here, under either name.
//!
//! Devices of one process have a [`Communicator`] each, and NCCL adds in an order of its own. Devices of several ranks
//! have a [`Link`] each, by which numbers only move: who adds what to what is `linked`'s business. A link never waits
//! inside NCCL (`blocking = 0`, since 2.14): it asks until NCCL is done, so that a rank that is gone ends the waiting.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::driver::{CudaStream, sys::CUstream};
use libloading::Library;

use super::descriptors::{Count, Ptr};
use crate::backend::{FlowPrecision, Patience};
use crate::error::{Error, Result};

/// Where NCCL may be found, on the library path.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Names the library where it is not on the library path.
const LIBRARY_VARIABLE: &str = "ANEMONE_NCCL_LIBRARY";

/// The oldest version that links work with: 2.14, as NCCL counts.
const OLDEST_FOR_LINKS: c_int = 21_400;

/// `ncclComm_t`.
type Handle = *mut c_void;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    bytes: [u8; 128],
}

/// `ncclConfig_t` as 2.14 has it; later versions take what is missing for not said.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// The functions of NCCL that we call.
struct Nccl {
    init_all: unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions where they are.
    library: Library,
}

/// Functions that only links call.
struct LinkCalls {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int,
    async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    abort: unsafe extern "C" fn(Handle) -> c_int,
}

/// Looks functions up by name: `find!(library, "name")?`.
macro_rules! find {
    ($library:expr, $name:literal) => {{
        // SAFETY: the field that it is put into has the type of the function in NCCL's header.
        let found = unsafe { $library.get(concat!($name, "\0").as_bytes()) };
        found.map(|found| *found).map_err(|_| Error::device(format!("this NCCL has no {}", $name)))
    }};
}

impl Nccl {
    /// Loaded at the first call, and never unloaded: an id of NCCL's has a thread that lives in the library.
    fn load() -> Result<&'static Self> {
        static LOADED: OnceLock<Nccl> = OnceLock::new();
        match LOADED.get() {
            Some(nccl) => Ok(nccl),
            None => Self::open().map(|nccl| LOADED.get_or_init(|| nccl)),
        }
    }

    fn open() -> Result<Self> {
        // SAFETY: loads NCCL, whose initialisers are its own business.
        let open = |name: &str| unsafe { Library::new(name) };
        let library = match std::env::var(LIBRARY_VARIABLE) {
            Ok(path) if !path.is_empty() => {
                open(&path).map_err(|e| Error::device(format!("{LIBRARY_VARIABLE}={path}: {e}")))?
            }
            _ => NAMES.iter().find_map(|&name| open(name).ok()).ok_or_else(|| {
                let what = "NCCL is missing: libnccl.so.2 is not on the library path";
                Error::device(format!("{what}, and {LIBRARY_VARIABLE} does not name it"))
            })?,
        };
        Ok(Self {
            init_all: find!(library, "ncclCommInitAll")?,
            all_reduce: find!(library, "ncclAllReduce")?,
            destroy: find!(library, "ncclCommDestroy")?,
            error_string: find!(library, "ncclGetErrorString")?,
            library,
        })
    }

    fn version(&self) -> Result<c_int> {
        let get: unsafe extern "C" fn(*mut c_int) -> c_int = find!(self.library, "ncclGetVersion")?;
        let mut version = 0;
        // SAFETY: writes one number, which is there.
        self.check("its version", unsafe { get(&mut version) })?;
        Ok(version)
    }

    fn link_calls(&self) -> Result<LinkCalls> {
        Ok(LinkCalls {
            get_unique_id: find!(self.library, "ncclGetUniqueId")?,
            init_rank: find!(self.library, "ncclCommInitRankConfig")?,
            async_error: find!(self.library, "ncclCommGetAsyncError")?,
            group_start: find!(self.library, "ncclGroupStart")?,
            group_end: find!(self.library, "ncclGroupEnd")?,
            send: find!(self.library, "ncclSend")?,
            receive: find!(self.library, "ncclRecv")?,
            abort: find!(self.library, "ncclCommAbort")?,
        })
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: NCCL answers any code with a string of its own that is never freed.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Error::device(format!("{what}: NCCL: {}", text.to_string_lossy())))
    }
}

/// `ncclFloat32` or `ncclFloat64`.
fn data_type(precision: FlowPrecision) -> c_int {
    match precision {
        FlowPrecision::Single => 7,
        FlowPrecision::Double => 8,
    }
}

/// One device's end of a group of devices of this process.
pub(super) struct Communicator {
    nccl: &'static Nccl,
    handle: Handle,
}

// SAFETY: a communicator may be used by one thread at a time, and belongs to one member of a group.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins devices, one communicator for each.
    pub fn join(devices: &[usize]) -> Result<Vec<Self>> {
        let nccl = Nccl::load().map_err(|e| e.at("several devices need NCCL (one does not)"))?;
        let ordinals: Vec<c_int> = devices.iter().map(|&device| device as c_int).collect();
        let mut handles = vec![null_mut(); ordinals.len()];
        // SAFETY: both arrays have as many elements as are announced, and the second is only read.
        let code = unsafe { (nccl.init_all)(handles.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        nccl.check("the devices could not be joined", code)?;
        Ok(handles.into_iter().map(|handle| Self { nccl, handle }).collect())
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
        let data_type = data_type(precision);
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

/// The version of NCCL that a link would use, as NCCL counts; or why there can be none.
pub(super) fn version_for_links() -> Result<i32> {
    let nccl = Nccl::load()?;
    let version = nccl.version()?;
    if version < OLDEST_FOR_LINKS {
        let what = "NCCL is too old: it counts itself";
        return Err(Error::device(format!("{what} {version}, and 2.14 ({OLDEST_FOR_LINKS}) or later is needed")));
    }
    nccl.link_calls()?;
    Ok(version)
}

/// An id that brings devices together.
pub(super) fn new_id() -> Result<Vec<u8>> {
    let nccl = Nccl::load()?;
    let mut id = UniqueId { bytes: [0; 128] };
    // SAFETY: writes one id, which is there.
    let code = unsafe { (nccl.link_calls()?.get_unique_id)(&mut id) };
    nccl.check("no id for the group could be made", code)?;
    Ok(id.bytes.to_vec())
}

/// Numbers that go to another rank, or come from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Whether they go or come.
    pub is_send: bool,
    /// The other rank.
    pub peer: usize,
    /// Where they lie on this device.
    pub address: u64,
    /// How many they are.
    pub len: usize,
}

/// One rank's end of a group of devices of several ranks. Between two calls NCCL is done with the last one, or the link
/// is broken and of no use.
pub(super) struct Link {
    nccl: &'static Nccl,
    calls: LinkCalls,
    handle: Handle,
}

// SAFETY: a communicator may be used by one thread at a time, and belongs to one backend.
unsafe impl Send for Link {}

impl Link {
    /// Joins the group of this id with the device whose context is this thread's. Returns when all ranks have joined.
    pub fn join(id: &[u8], rank: usize, num_ranks: usize, patience: &Patience<'_>) -> Result<Self> {
        let bytes = <[u8; 128]>::try_from(id).map_err(|_| Error::internal("an id of NCCL has 128 bytes"))?;
        let nccl = Nccl::load()?;
        let calls = nccl.link_calls()?;
        let mut config =
            Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: OLDEST_FOR_LINKS as c_uint, blocking: 0 };
        let mut handle = null_mut();
        // SAFETY: the handle and the configuration are there; NCCL copies what it keeps of the latter.
        let code = unsafe {
            (calls.init_rank)(&mut handle, num_ranks as c_int, UniqueId { bytes }, rank as c_int, &mut config)
        };
        let what = "the GPU could not be joined to those of other ranks";
        if code != IN_PROGRESS {
            nccl.check(what, code)?;
        }
        let link = Self { nccl, calls, handle };
        link.settle(what, patience)?;
        Ok(link)
    }

    /// Moves numbers between ranks, in the order of the stream: all of a rank's transfers at once. Transfers between
    /// two ranks meet in their order. Returns when NCCL has taken them, not when they are done.
    pub fn exchange(
        &self,
        transfers: &[Transfer],
        precision: FlowPrecision,
        stream: &CudaStream,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let (what, data_type, stream) = ("a transfer between the GPUs", data_type(precision), stream.cu_stream());
        // SAFETY: takes nothing. The group is closed below, whatever comes in between.
        self.nccl.check(what, unsafe { (self.calls.group_start)() })?;
        let mut failed = SUCCESS;
        for &Transfer { is_send, peer, address, len } in transfers {
            let (address, peer) = (address as *mut c_void, peer as c_int);
            let code = if is_send {
                // SAFETY: callers pass numbers on this link's device that stay there, and its stream.
                unsafe { (self.calls.send)(address, len, data_type, peer, self.handle, stream) }
            } else {
                // SAFETY: as for sends.
                unsafe { (self.calls.receive)(address, len, data_type, peer, self.handle, stream) }
            };
            if ![SUCCESS, IN_PROGRESS].contains(&code) {
                failed = code;
                break;
            }
        }
        // SAFETY: closes the group that was opened above, on the same thread.
        let ended = unsafe { (self.calls.group_end)() };
        self.nccl.check(what, failed)?;
        if ended != IN_PROGRESS {
            self.nccl.check(what, ended)?;
        }
        self.settle(what, patience)
    }

    /// Waits until NCCL has taken the last call.
    fn settle(&self, what: &str, patience: &Patience<'_>) -> Result<()> {
        while !self.is_ready(what)? {
            patience.pause()?;
        }
        Ok(())
    }

    /// Returns false while NCCL is busy with the last call; an error where it, or a peer, has failed.
    pub fn is_ready(&self, what: &str) -> Result<bool> {
        let mut found = SUCCESS;
        // SAFETY: writes one number, which is there.
        let code = unsafe { (self.calls.async_error)(self.handle, &mut found) };
        self.nccl.check(what, code)?;
        match found {
            IN_PROGRESS => Ok(false),
            found => self.nccl.check(what, found).map(|()| true),
        }
    }
}

impl Drop for Link {
    /// Not `ncclCommDestroy`: that may wait for ranks that are gone. What is under way is given up; after a sum that
    /// went well nothing is.
    fn drop(&mut self) {
        // SAFETY: made by `join`, and used no more. A failure leaves something behind that ends with the process.
        unsafe { (self.calls.abort)(self.handle) };
    }
}
