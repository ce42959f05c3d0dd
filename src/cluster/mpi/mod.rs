//! MPI, the library that a cluster's launcher speaks, loaded at run time.
//!
//! [`join`] finds the library (`library.rs`), tells its family (`abi.rs`), compares what it says with what the launcher
//! said (`launcher.rs`) and returns a [`Mpi`] of all ranks. `unsafe` is in `library.rs` and `communicator.rs`.

mod abi;
mod communicator;
mod launcher;
mod library;

#[doc(hidden)]
pub use abi::Family;
#[doc(hidden)]
pub use communicator::{Communicator, Received};
#[doc(hidden)]
pub use launcher::Launcher;

use communicator::{Session, bytes_of, bytes_of_mut};
use library::{LIBRARY_VARIABLE, Library, failed};

use super::Cluster;
use crate::error::Result;

/// Joins the other ranks that the launcher started. Every rank calls it once; without a launcher there is one rank.
pub fn join() -> Result<Mpi> {
    let launcher = Launcher::of_this_process();
    let library = Library::find(launcher.as_ref())?;
    let size = launcher.as_ref().and_then(|launcher| launcher.size);
    let name = launcher.as_ref().map_or("", |launcher| launcher.name);
    let other = |library: &str, knows: &str| {
        let size = size.unwrap_or(0);
        failed(format!(
            "{name} started {size} ranks, and {library} {knows}: the library is not the launcher's; start with the \
             mpiexec of this library, or name the launcher's library in {LIBRARY_VARIABLE}"
        ))
    };
    // MPICH would end the process by itself, with words for its developers.
    if name == launcher::OPEN_MPI && library.version.contains("MPICH") {
        return Err(other(&library.version, "does not understand it"));
    }
    let communicator = Communicator::world(&Session::start(library)?)?;
    if size.is_some_and(|size| size != communicator.size()) {
        return Err(other(&communicator.library(), &format!("knows of {}", communicator.size())));
    }
    Ok(Mpi { communicator })
}

/// Ranks that are processes, anywhere.
pub struct Mpi {
    communicator: Communicator,
}

impl Mpi {
    /// The calls below the [`Cluster`]'s: bytes, counters of what was received.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Those calls alone.
    pub fn into_communicator(self) -> Communicator {
        self.communicator
    }
}

/// An exchange and a spread, in one precision.
macro_rules! of_precision {
    ($exchange:ident $spread:ident $number:ty) => {
        fn $exchange(
            &mut self,
            send: &[$number],
            send_counts: &[usize],
            receive: &mut [$number],
            receive_counts: &[usize],
        ) -> Result<()> {
            let (sent, expected) = (in_bytes::<$number>(send_counts), in_bytes::<$number>(receive_counts));
            self.communicator.exchange(bytes_of(send), &sent, bytes_of_mut(receive), &expected)
        }

        fn $spread(&mut self, numbers: &mut [$number], counts: &[usize]) -> Result<()> {
            let rank = self.communicator.rank();
            let begin: usize = counts[..rank].iter().sum();
            let own = numbers[begin..begin + counts[rank]].to_vec();
            self.communicator.gather(bytes_of(&own), &in_bytes::<$number>(counts), bytes_of_mut(numbers))
        }
    };
}

fn in_bytes<T>(counts: &[usize]) -> Vec<usize> {
    counts.iter().map(|count| count * size_of::<T>()).collect()
}

impl Cluster for Mpi {
    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn num_ranks(&self) -> usize {
        self.communicator.size()
    }

    fn name(&self) -> String {
        format!("mpi: {}", self.communicator.library())
    }

    fn barrier(&mut self) -> Result<()> {
        self.communicator.barrier()
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let mut len = (bytes.len() as u64).to_le_bytes();
        self.communicator.broadcast(root, &mut len)?;
        bytes.resize(u64::from_le_bytes(len) as usize, 0);
        self.communicator.broadcast(root, bytes)
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let size = self.communicator.size();
        let mut lens = vec![0; 8 * size];
        self.communicator.gather(&(bytes.len() as u64).to_le_bytes(), &vec![8; size], &mut lens)?;
        let len = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes")) as usize;
        let lens: Vec<usize> = lens.chunks_exact(8).map(len).collect();
        let mut all = vec![0; lens.iter().sum()];
        self.communicator.gather(bytes, &lens, &mut all)?;
        let mut rest = &all[..];
        let mut take = |&len: &usize| rest.split_off(..len).expect("as long as all of them").to_vec();
        Ok(lens.iter().map(&mut take).collect())
    }

    of_precision!(exchange_f32 spread_f32 f32);
    of_precision!(exchange_f64 spread_f64 f64);

    fn can_shrink(&self) -> bool {
        self.communicator.can_shrink()
    }

    fn shrink(&mut self) -> Result<Vec<usize>> {
        let former = self.communicator.rank() as u64;
        self.communicator = self.communicator.shrink()?;
        let all = self.gather(&former.to_le_bytes())?;
        let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("eight bytes")) as usize;
        Ok(all.into_iter().map(number).collect())
    }

    fn is_broken(&self) -> bool {
        self.communicator.is_broken()
    }

    fn abort(&mut self, message: &str) {
        eprintln!("error: rank {}: {message}", self.communicator.rank());
        self.communicator.abort(1)
    }
}
