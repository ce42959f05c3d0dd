//! Ranks that learn together: what they can tell each other, and sums whose bits do not depend on how many they are.
//!
//! A [`Cluster`] is a handful of collective calls. Every rank makes the same calls in the same order, from one thread
//! at a time though not always the same one; a call returns when the others have made theirs. [`Alone`] is a cluster
//! of one process, [`Threads`] one whose ranks are threads of a process. `mpi` lets processes speak to each other that
//! a launcher (`mpiexec`, `srun`) started together.
//!
//! A global batch belongs to logical *shards*, each rank has a contiguous range of them ([`shards_of`]), and
//! `shard_sum` adds up what shards have in a fixed order. [`Ranks`] is what the learner and its backend share of it.
//! Used by `backend/replicated.rs` and `learner`.

mod alone;
#[cfg(all(feature = "mpi", unix))]
pub mod mpi;
mod ranks;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod shard_sum;
mod threads;

use std::ops::Range;

pub use self::alone::Alone;
pub(crate) use self::ranks::host_name;
pub use self::ranks::{Costs, Ranks};
pub use self::threads::Threads;
use crate::error::Result;

/// Ranks of a job, as one of them sees it.
///
/// A call that fails because a rank is gone fails with [`ErrorKind::RankLost`](crate::ErrorKind::RankLost), perhaps
/// not on every rank. After that only [`shrink`](Self::shrink) and [`abort`](Self::abort) make sense.
pub trait Cluster: Send {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn num_ranks(&self) -> usize;

    /// What it is, for people: `mpi (Open MPI 5.0.11)`.
    fn name(&self) -> String;

    /// Returns when all ranks have called it.
    fn barrier(&mut self) -> Result<()>;

    /// Replaces the bytes of every rank by those of rank `root`, however many they are.
    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()>;

    /// The bytes of every rank, in the order of ranks, on every rank. Ranks may have different numbers of them.
    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// All to all: `send` has `send_counts[q]` numbers for each rank `q`, one after the other; `receive` gets
    /// `receive_counts[q]` from each, likewise. What one rank sends another receives: the counts fit.
    fn exchange_f32(
        &mut self,
        send: &[f32],
        send_counts: &[usize],
        receive: &mut [f32],
        receive_counts: &[usize],
    ) -> Result<()>;

    /// [`exchange_f32`](Self::exchange_f32) in double precision.
    fn exchange_f64(
        &mut self,
        send: &[f64],
        send_counts: &[usize],
        receive: &mut [f64],
        receive_counts: &[usize],
    ) -> Result<()>;

    /// Gather to all, in place: `numbers` has `counts[q]` numbers of each rank `q`, one after the other. This rank has
    /// filled in its own; the call fills in all others.
    fn spread_f32(&mut self, numbers: &mut [f32], counts: &[usize]) -> Result<()>;

    /// [`spread_f32`](Self::spread_f32) in double precision.
    fn spread_f64(&mut self, numbers: &mut [f64], counts: &[usize]) -> Result<()>;

    /// Returns true if the others can go on without a rank that is gone.
    fn can_shrink(&self) -> bool {
        false
    }

    /// A rank that is known to be gone, if this can be told without waiting for anybody. Asked while this rank waits
    /// for others elsewhere, in a sum between devices.
    fn lost(&self) -> Option<usize> {
        None
    }

    /// After a rank was lost: makes the others a cluster again, with ranks numbered anew in the old order. Called by
    /// all that are left. Returns the former numbers of the ranks that are left.
    fn shrink(&mut self) -> Result<Vec<usize>>;

    /// Returns true if a call failed here and perhaps not elsewhere, and the cluster did not shrink: others may wait
    /// for this rank, and cannot be told why it does not come.
    fn is_broken(&self) -> bool {
        false
    }

    /// Ends the job: no rank is left waiting for this one. Where ranks are processes this does not return.
    fn abort(&mut self, message: &str);
}

/// The shards of a rank: contiguous, and as many as others have or one more.
pub fn shards_of(rank: usize, num_ranks: usize, num_shards: usize) -> Range<usize> {
    rank * num_shards / num_ranks..(rank + 1) * num_shards / num_ranks
}
