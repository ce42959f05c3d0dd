//! What the three families of MPI libraries call the same things.
//!
//! MPI fixes names; the values behind them belong to a library. There are three sets: MPI 5's standard ABI
//! (`libmpi_abi`), MPICH's (also Intel MPI, MVAPICH, Cray MPICH), and Open MPI's, whose handles are addresses of its
//! own variables. A handle is a pointer or a 32-bit integer; as a `usize` argument it is in the same register either
//! way on x86-64 and aarch64, and where a library *writes* a handle it is given eight bytes that were zero before.

use std::ffi::c_int;

/// A communicator, datatype or error handler of the library.
pub(super) type Handle = usize;

/// Which family a library is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// MPI 5's standard ABI, by whichever library.
    Standard,
    /// MPICH and what is built from it: Intel MPI, MVAPICH, Cray MPICH.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "the standard ABI",
            Self::Mpich => "MPICH's ABI",
            Self::OpenMpi => "Open MPI's ABI",
        }
    }
}

/// The constants of a library that we use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants {
    /// `MPI_COMM_WORLD`.
    pub world: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_ERRORS_RETURN`: a failure is a return code, where the default ends the process.
    pub errors_return: Handle,
    /// `MPI_PROC_NULL`: the partner of a message that is not sent.
    pub no_rank: c_int,
    pub thread_serialized: c_int,
    pub thread_multiple: c_int,
    /// `MPI_ERR_PROC_FAILED`, `MPI_ERR_PROC_FAILED_PENDING` and `MPI_ERR_REVOKED`: a rank is gone. Empty where the
    /// library has no such classes.
    pub lost: &'static [c_int],
}

impl Constants {
    pub const STANDARD: Self = Self {
        world: 0x101,
        byte: 0x247,
        errors_return: 0x143,
        no_rank: -3,
        thread_serialized: 2048,
        thread_multiple: 4096,
        lost: &[],
    };

    pub const MPICH: Self = Self {
        world: 0x4400_0000,
        byte: 0x4c00_010d,
        errors_return: 0x5400_0001,
        no_rank: -1,
        thread_serialized: 2,
        thread_multiple: 3,
        lost: &[101, 102, 103],
    };

    /// Handles are where the library has put its variables.
    pub fn open_mpi(world: Handle, byte: Handle, errors_return: Handle) -> Self {
        let lost: &[c_int] = &[75, 76, 77];
        Self { world, byte, errors_return, no_rank: -2, thread_serialized: 2, thread_multiple: 3, lost }
    }
}
