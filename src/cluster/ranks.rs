//! What the learner and its backend share of a cluster: the ranks, the shards, and what the calls cost.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Cluster, shards_of};
use crate::error::{Error, ErrorKind, Result};

/// A cluster and the number of logical shards that its ranks have together. A handle: clones are of the same cluster.
#[derive(Clone)]
pub struct Ranks {
    cluster: Arc<Mutex<Box<dyn Cluster>>>,
    num_shards: usize,
    /// Which of the ranks of its machine this one is, from 0.
    local_rank: usize,
    costs: Arc<Mutex<Costs>>,
}

/// What learning together has cost this rank so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Seconds in which flows of its own shards were computed.
    pub compute_seconds: f64,
    /// Seconds in sums over ranks, waiting for slower ranks included.
    pub sum_seconds: f64,
    /// Bytes of flows received from other ranks.
    pub received: u64,
    /// Ranks that were lost which the others went on without.
    pub lost_ranks: usize,
}

impl Ranks {
    /// Refuses more ranks than shards: a rank would have nothing to do.
    pub fn new(cluster: Box<dyn Cluster>, num_shards: usize) -> Result<Self> {
        check(cluster.num_ranks(), num_shards)?;
        Ok(Self { cluster: Arc::new(Mutex::new(cluster)), num_shards, local_rank: 0, costs: Arc::default() })
    }

    /// Finds out which of the ranks of its machine this one is; 0 before. Collective.
    pub fn find_local_rank(&mut self) -> Result<()> {
        let (rank, hosts) = {
            let mut calls = self.calls();
            (calls.rank(), calls.gather(host_name().as_bytes())?)
        };
        self.local_rank = hosts[..rank].iter().filter(|host| **host == hosts[rank]).count();
        Ok(())
    }

    /// Which of the ranks of its machine this one is, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The same ranks with another number of shards.
    pub fn with_shards(&self, num_shards: usize) -> Result<Self> {
        check(self.num_ranks(), num_shards)?;
        Ok(Self { num_shards, ..self.clone() })
    }

    /// Leaves the cluster when all other handles of this process are gone: at once, but for threads that are ending.
    pub fn leave(self) {
        let begun = Instant::now();
        while Arc::strong_count(&self.cluster) > 1 && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The collective calls.
    pub fn calls(&self) -> MutexGuard<'_, Box<dyn Cluster>> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.calls().rank()
    }

    /// How many ranks there are.
    pub fn num_ranks(&self) -> usize {
        self.calls().num_ranks()
    }

    /// How many logical shards a global batch has.
    pub fn num_shards(&self) -> usize {
        self.num_shards
    }

    /// What it has cost so far.
    pub fn costs(&self) -> Costs {
        *self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_compute(&self, time: Duration) {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner).compute_seconds += time.as_secs_f64();
    }

    pub(crate) fn add_sum(&self, time: Duration, received: u64) {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        costs.sum_seconds += time.as_secs_f64();
        costs.received += received;
    }

    /// Returns true if the others can go on without a rank that is gone.
    pub fn can_shrink(&self) -> bool {
        self.calls().can_shrink()
    }

    /// Goes on without a rank that is gone. `batches` is what this rank has learned from: a rank that is a step ahead,
    /// because the last call of that step failed on others only, cannot go on with them.
    pub fn shrink(&self, batches: u64) -> Result<()> {
        self.go_on_without_lost()?;
        let said = self.calls().gather(&batches.to_le_bytes())?;
        if said.iter().any(|theirs| theirs[..] != batches.to_le_bytes()) {
            return Err(Error::new(
                ErrorKind::RankLost,
                "a rank was lost just when a step was over on some ranks and not on others; go on with --resume",
            ));
        }
        Ok(())
    }

    /// Makes those that are left a cluster again. What each of them has done meanwhile is theirs to find out.
    pub fn go_on_without_lost(&self) -> Result<()> {
        let mut calls = self.calls();
        let before = calls.num_ranks();
        calls.shrink()?;
        self.costs.lock().unwrap_or_else(PoisonError::into_inner).lost_ranks += before - calls.num_ranks();
        Ok(())
    }

    /// The shards of this rank.
    pub fn shards(&self) -> Range<usize> {
        let calls = self.calls();
        shards_of(calls.rank(), calls.num_ranks(), self.num_shards)
    }
}

/// What this machine is called; containers with names of their own are machines.
pub(crate) fn host_name() -> String {
    // Where GPUs and launchers are, this file is; elsewhere every rank is taken to be on one machine.
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| String::new(), |name| name.trim().to_string())
}

/// A rank without a shard would have nothing to do.
fn check(num_ranks: usize, num_shards: usize) -> Result<()> {
    if num_ranks <= num_shards {
        return Ok(());
    }
    Err(Error::option(format!(
        "batch.shards = {num_shards}: fewer than the {num_ranks} ranks; give every rank at least one shard, or start \
         {num_shards} rank{}",
        if num_shards == 1 { "" } else { "s" }
    ))
    .with_key("batch.shards"))
}

/// Handles of the same cluster are equal.
impl PartialEq for Ranks {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster, &other.cluster) && self.num_shards == other.num_shards
    }
}

impl Eq for Ranks {}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranks").field("num_shards", &self.num_shards).finish_non_exhaustive()
    }
}
