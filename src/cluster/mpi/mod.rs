//! MPI, the library that a cluster's launcher speaks, loaded at run time.
//!
//! [`join`] finds the library (`library.rs`), tells its family (`abi.rs`), compares what it says with what the launcher
//! said (`launcher.rs`) and returns a [`Communicator`] of all ranks. `unsafe` is in `library.rs` and `communicator.rs`.

mod abi;
mod communicator;
mod launcher;
mod library;

pub use abi::Family;
pub use communicator::{Communicator, Received};
pub use launcher::Launcher;

use communicator::Session;
use library::{LIBRARY_VARIABLE, Library, failed};

use crate::error::Result;

/// Joins the other ranks that the launcher started. Every rank calls it once; without a launcher there is one rank.
pub fn join() -> Result<Communicator> {
    let launcher = Launcher::of_this_process();
    let session = Session::start(Library::find(launcher.as_ref())?)?;
    let world = Communicator::world(&session)?;
    if let Some(Launcher { name, size: Some(size), .. }) = launcher
        && size != world.size()
    {
        let (library, found) = (world.library(), world.size());
        return Err(failed(format!(
            "{name} started {size} ranks, and {library} knows of {found}: the library is not the launcher's; start \
             with the mpiexec of this library, or name the launcher's library in {LIBRARY_VARIABLE}"
        )));
    }
    Ok(world)
}
