//! What the learner and its backend share of a cluster: the ranks, the shards, and what the calls cost.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Cluster, shards_of};
use crate::error::{Error, Result};

/// A cluster and the number of logical shards that its ranks have together. A handle: clones are of the same cluster.
#[derive(Clone)]
pub struct Ranks {
    cluster: Arc<Mutex<Box<dyn Cluster>>>,
    num_shards: usize,
}

impl Ranks {
    /// Refuses more ranks than shards: a rank would have nothing to do.
    pub fn new(cluster: Box<dyn Cluster>, num_shards: usize) -> Result<Self> {
        let num_ranks = cluster.num_ranks();
        if num_ranks > num_shards {
            return Err(Error::option(format!(
                "batch.shards = {num_shards}: fewer than the {num_ranks} ranks; give every rank at least one shard, or \
                 start {num_shards} ranks"
            ))
            .with_key("batch.shards"));
        }
        Ok(Self { cluster: Arc::new(Mutex::new(cluster)), num_shards })
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

    /// The shards of this rank.
    pub fn shards(&self) -> Range<usize> {
        let calls = self.calls();
        shards_of(calls.rank(), calls.num_ranks(), self.num_shards)
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranks").field("num_shards", &self.num_shards).finish_non_exhaustive()
    }
}
