//! An MPI library, found and loaded at run time.
//!
//! One binary serves every cluster, and building it needs no MPI. `ANEMONE_MPI_LIBRARY` names a library; otherwise the
//! launcher's own is looked for, then those of the library path. Which of the three families (`abi.rs`) it is of is
//! asked of the library itself, never of its name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::abi::{Constants, Family, Handle};
use super::launcher::Launcher;
use crate::error::{Error, ErrorKind, Result};

/// The variable that names a library.
pub(super) const LIBRARY_VARIABLE: &str = "ANEMONE_MPI_LIBRARY";

/// Open MPI's `MPI_ERR_OTHER`.
const OTHER: c_int = 16;

/// `int` of each rank: counts or places.
type Ints = *const c_int;

/// The functions of MPI that we call, and the constants to call them with.
pub(super) struct Library {
    pub init_thread: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    pub initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub finalize: unsafe extern "C" fn() -> c_int,
    pub abort: unsafe extern "C" fn(Handle, c_int) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    pub error_class: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    pub set_errhandler: unsafe extern "C" fn(Handle, Handle) -> c_int,
    pub comm_rank: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub comm_size: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub comm_dup: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub comm_free: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub barrier: unsafe extern "C" fn(Handle) -> c_int,
    pub bcast: unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int,
    pub allgatherv:
        unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, Ints, Ints, Handle, Handle) -> c_int,
    pub alltoallv:
        unsafe extern "C" fn(*const c_void, Ints, Ints, Handle, *mut c_void, Ints, Ints, Handle, Handle) -> c_int,
    #[allow(clippy::type_complexity)] // MPI's own list of arguments
    pub sendrecv: unsafe extern "C" fn(
        *const c_void,
        c_int,
        Handle,
        c_int,
        c_int,
        *mut c_void,
        c_int,
        Handle,
        c_int,
        c_int,
        Handle,
        *mut c_void,
    ) -> c_int,
    /// What survives a lost rank, where the library can.
    pub recovery: Option<Recovery>,
    pub constants: Constants,
    pub family: Family,
    /// What it says of itself: `Open MPI v5.0.11, …`.
    pub version: String,
    /// Where it was found.
    pub path: PathBuf,
    /// Keeps the functions where they are. Never unloaded: MPI has threads of its own, and a call may be under way when
    /// the process ends.
    _loaded: ManuallyDrop<Loaded>,
}

/// User-level failure mitigation (ULFM).
#[derive(Clone, Copy)]
pub(super) struct Recovery {
    pub revoke: unsafe extern "C" fn(Handle) -> c_int,
    pub shrink: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
}

impl Library {
    /// Finds the library of this machine, or of the launcher.
    pub fn find(launcher: Option<&Launcher>) -> Result<Self> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            let loaded = open(&path).map_err(|why| failed(format!("{LIBRARY_VARIABLE}: {why}")))?;
            return Self::of(loaded, &path);
        }
        let candidates = Launcher::candidates(launcher);
        let mut refused = Vec::new();
        for path in &candidates {
            match open(path) {
                Ok(loaded) => return Self::of(loaded, path),
                Err(why) => refused.push((path, why)),
            }
        }
        // A file that is there and does not load is the news; that names are not on the path is the usual case.
        let broken = refused.iter().find(|(path, _)| path.is_file());
        Err(failed(match broken {
            Some((_, why)) => format!("the MPI library of the launcher cannot be loaded: {why}"),
            None => format!(
                "no MPI library was found (looked for {} on the library path); install MPICH or Open MPI, or name a \
                 library in {LIBRARY_VARIABLE}",
                candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            ),
        }))
    }

    fn of(loaded: Loaded, path: &Path) -> Result<Self> {
        macro_rules! find {
            ($name:literal) => {{
                // SAFETY: the field that it is put into has the type of this function in MPI's standard.
                let found: std::result::Result<Symbol<_>, _> = unsafe { loaded.get(concat!($name, "\0").as_bytes()) };
                found.map(|symbol| *symbol)
            }};
        }
        macro_rules! need {
            ($name:literal) => {
                find!($name).map_err(|_| {
                    failed(format!("{}: this is no MPI library that can be used: it has no {}", path.display(), $name))
                })?
            };
        }
        let (family, constants) = family(&loaded, path)?;
        let version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = need!("MPI_Get_library_version");
        let recovery = match (find!("MPIX_Comm_revoke"), find!("MPIX_Comm_shrink")) {
            // MPICH has the functions, too, and its launcher ends the job all the same.
            (Ok(revoke), Ok(shrink)) if family == Family::OpenMpi && is_tolerant() => Some(Recovery { revoke, shrink }),
            _ => None,
        };
        Ok(Self {
            init_thread: need!("MPI_Init_thread"),
            initialized: need!("MPI_Initialized"),
            finalize: need!("MPI_Finalize"),
            abort: need!("MPI_Abort"),
            error_string: need!("MPI_Error_string"),
            error_class: need!("MPI_Error_class"),
            set_errhandler: need!("MPI_Comm_set_errhandler"),
            comm_rank: need!("MPI_Comm_rank"),
            comm_size: need!("MPI_Comm_size"),
            comm_dup: need!("MPI_Comm_dup"),
            comm_free: need!("MPI_Comm_free"),
            barrier: need!("MPI_Barrier"),
            bcast: need!("MPI_Bcast"),
            allgatherv: need!("MPI_Allgatherv"),
            alltoallv: need!("MPI_Alltoallv"),
            sendrecv: need!("MPI_Sendrecv"),
            recovery,
            constants,
            family,
            version: version_of(version),
            path: path.to_path_buf(),
            _loaded: ManuallyDrop::new(loaded),
        })
    }

    /// Turns a code of MPI into an error: [`ErrorKind::RankLost`] where a rank is gone.
    pub fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len, mut class) = ([0 as c_char; 1024], 0, 0);
        // SAFETY: the text has more room than any library's MPI_MAX_ERROR_STRING (512), and is zero at its end.
        let said = unsafe { (self.error_string)(code, text.as_mut_ptr(), &mut len) };
        // SAFETY: writes one integer, which is there.
        let classed = unsafe { (self.error_class)(code, &mut class) };
        let text = match said {
            // SAFETY: MPI ended the text with a zero, within its bounds.
            0 => one_line(&unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy()),
            _ => format!("error {code}"),
        };
        // Open MPI reports some connections to a lost rank as "other": where ranks may be lost, `shrink` tells.
        let is_other = self.recovery.is_some() && class == OTHER;
        if classed == 0 && (is_other || self.constants.lost.contains(&class)) {
            return Err(Error::new(ErrorKind::RankLost, format!("{what}: another rank is gone: {text}")));
        }
        Err(failed(format!("{what}: MPI: {text}")))
    }
}

/// The library, with its symbols visible to the plug-ins that Open MPI loads afterwards.
fn open(path: &Path) -> std::result::Result<Loaded, String> {
    // SAFETY: loads a library that the user or the launcher names; what it does when loaded is its own business.
    unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        let below = std::error::Error::source(&error).map(ToString::to_string);
        one_line(&below.unwrap_or_else(|| format!("{}: {error}", path.display())))
    })
}

/// Which family a library is of, by what it has.
fn family(loaded: &Loaded, path: &Path) -> Result<(Family, Constants)> {
    let address = |name: &str| {
        // SAFETY: only the address of the variable is taken; nothing is read through it.
        unsafe { loaded.get::<*mut c_void>(name.as_bytes()) }.ok().map(|symbol| symbol.into_raw() as usize)
    };
    let open_mpi = ["ompi_mpi_comm_world\0", "ompi_mpi_byte\0", "ompi_mpi_errors_return\0"].map(address);
    if let [Some(world), Some(byte), Some(errors_return)] = open_mpi {
        return Ok((Family::OpenMpi, Constants::open_mpi(world, byte, errors_return)));
    }
    // A library with its own ABI answers -1.
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: has this type in MPI 5.
    if let Ok(get_version) = unsafe { loaded.get::<GetVersion>(b"MPI_Abi_get_version\0") } {
        let (mut major, mut minor) = (-1, -1);
        // SAFETY: writes two integers, which are there; MPI 5 allows the call before MPI_Init.
        let code = unsafe { get_version(&mut major, &mut minor) };
        match (code, major) {
            (0, 1) => return Ok((Family::Standard, Constants::STANDARD)),
            (0, 2..) => {
                let path = path.display();
                return Err(failed(format!("{path}: version {major}.{minor} of MPI's ABI is not known; use another")));
            }
            _ => {}
        }
    }
    Ok((Family::Mpich, Constants::MPICH))
}

/// Returns true if the launcher lets the others live when a rank dies (`mpiexec --with-ft ulfm`).
fn is_tolerant() -> bool {
    std::env::var("OMPI_MCA_mpi_ft_enable").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

fn version_of(get: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut text, mut len) = (vec![0 as c_char; 8193], 0);
    // SAFETY: the text has more room than any library's MPI_MAX_LIBRARY_VERSION_STRING (8192), and is zero at its end;
    // the call is allowed before MPI_Init.
    let code = unsafe { get(text.as_mut_ptr(), &mut len) };
    if code != 0 {
        return "a library of an unknown version".into();
    }
    // SAFETY: MPI ended the text with a zero, within its bounds.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    text.split([',', '\n']).next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(super) fn failed(message: String) -> Error {
    Error::new(ErrorKind::Cluster, message)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
