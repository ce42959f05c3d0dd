//! The ranks of a run, as the run speaks to them.
//!
//! Every rank says the same kinds of words in the same order, so none waits for ever: what one finds out alone (a
//! signal, data that cannot be read) it says with the next word, and all act on it together. The first rank has the run
//! folder and speaks to the user. Waiting for others blocks a thread of its own, not the runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cluster::Ranks;
use crate::detached::detached;
use crate::error::{Error, ErrorKind, Result};

/// The ranks of a run; one process alone is a team of one.
#[derive(Clone, Debug)]
pub struct Team {
    /// `None` where there is nobody to speak to.
    ranks: Option<Ranks>,
    rank: usize,
    /// Whether all ranks know why they end.
    is_agreed: Arc<AtomicBool>,
}

/// An error, as others are told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    kind: String,
    text: String,
}

/// Kinds that keep their meaning on the way to other ranks; another is told as a failure of the cluster.
const KINDS: [ErrorKind; 12] = [
    ErrorKind::Data,
    ErrorKind::Circuit,
    ErrorKind::Option,
    ErrorKind::Path,
    ErrorKind::Format,
    ErrorKind::State,
    ErrorKind::Diverged,
    ErrorKind::Unsupported,
    ErrorKind::Io,
    ErrorKind::Device,
    ErrorKind::Cluster,
    ErrorKind::Internal,
];

impl Told {
    /// What others are told of an error.
    pub fn new(error: &Error) -> Self {
        Self { kind: format!("{:?}", error.kind()), text: error.to_string() }
    }

    /// The error again, as that of a rank.
    fn of_rank(self, rank: usize) -> Error {
        let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == self.kind).unwrap_or(ErrorKind::Cluster);
        Error::new(kind, format!("rank {rank}: {}", self.text))
    }
}

impl Team {
    /// The ranks that learn together.
    pub fn new(ranks: Option<&Ranks>) -> Self {
        let (rank, num_ranks) = ranks.map_or((0, 1), |ranks| (ranks.rank(), ranks.num_ranks()));
        let ranks = ranks.filter(|_| num_ranks > 1).cloned();
        Self { ranks, rank, is_agreed: Arc::default() }
    }

    /// Returns true if this process has the run folder and speaks to the user.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Returns true if there is nobody to speak to.
    pub fn is_alone(&self) -> bool {
        self.ranks.is_none()
    }

    /// The cluster, where there is more than this process.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// Returns true if all ranks know why they end: none has to end the others.
    pub fn is_agreed(&self) -> bool {
        self.is_alone() || self.is_agreed.load(Ordering::SeqCst)
    }

    /// What every rank says, by rank.
    pub async fn all<T: Serialize + DeserializeOwned + Send + 'static>(&self, mine: T) -> Result<Vec<T>> {
        let Some(ranks) = self.ranks.clone() else { return Ok(vec![mine]) };
        let said = detached("ranks", move || ranks.calls().gather(&to_json(&mine)?)).await?;
        said.iter().map(|bytes| from_json(bytes)).collect()
    }

    /// What this rank has found, if all have; where one failed, its error is everybody's.
    pub async fn agree<T>(&self, mine: Result<T>) -> Result<T> {
        if self.is_alone() {
            return mine;
        }
        let told = self.all(mine.as_ref().err().map(Told::new)).await?;
        match told.into_iter().enumerate().find_map(|(rank, told)| Some((rank, told?))) {
            Some((rank, told)) => Err(self.failed(rank, told)),
            None => mine,
        }
    }

    /// The error that all ranks end with, which one of them has told.
    pub fn failed(&self, rank: usize, told: Told) -> Error {
        self.settle();
        told.of_rank(rank)
    }

    /// Returns true if the others can go on after this failure: a rank is gone, and they need not wait for it.
    pub fn can_go_on(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::RankLost && self.ranks.as_ref().is_some_and(Ranks::can_shrink)
    }

    /// Makes those that are left a team again. Returns how many they are.
    pub async fn go_on_without_lost(&mut self) -> Result<usize> {
        let Some(ranks) = self.ranks.clone() else { return Err(Error::internal("one process alone lost a rank")) };
        let (rank, left) = detached("ranks", move || {
            ranks.go_on_without_lost()?;
            Ok((ranks.rank(), ranks.num_ranks()))
        })
        .await?;
        self.rank = rank;
        Ok(left)
    }

    /// The bytes that a rank has, on every rank.
    pub async fn told_by(&self, rank: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let Some(ranks) = self.ranks.clone() else { return Ok(bytes) };
        detached("ranks", move || {
            ranks.calls().broadcast(rank, &mut bytes)?;
            Ok(bytes)
        })
        .await
    }

    /// All ranks have found the same mistake, and end with it.
    pub fn settle(&self) {
        self.is_agreed.store(true, Ordering::SeqCst);
    }

    /// An error that ends this rank: where the others do not know of it, they are told, and end too.
    pub fn mark(&self, error: Error) -> Error {
        if let (Some(ranks), false) = (&self.ranks, self.is_agreed()) {
            let mut calls = ranks.calls();
            // What another rank has told is known to all; a call that failed is not.
            if error.kind() != ErrorKind::Cluster || calls.is_broken() {
                calls.abort(&error.to_string());
            }
        }
        error
    }

    /// What only the first rank does, on every rank: `made` is asked there, and what it gives is sent as bytes.
    pub async fn made_by_first(&self, made: Result<Option<Vec<u8>>>) -> Result<Option<Vec<u8>>> {
        let made = self.agree(made).await?;
        let flag = u8::from(made.is_some());
        let mut bytes = self.told_by(0, [vec![flag], made.unwrap_or_default()].concat()).await?;
        let has_some = bytes.first() == Some(&1);
        Ok(has_some.then(|| bytes.split_off(1)))
    }
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::internal(format!("a word for other ranks: {e}")))
}

fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::internal(format!("a word of another rank: {e}")))
}
