//! Where a run is in a folder that grows: the files that were taken, and the block of the one that is being read.
//!
//! Only files that are still there are remembered, so a position grows with the folder and not with time.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::data::Position;
use crate::error::Result;
use crate::source::FileEntry;
use crate::source::store::Shard;

/// A place in a folder, as a position says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// What has been learned from.
    pub taken: Taken,
    /// What is being learned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Current>,
}

/// The file that is being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Current {
    pub name: String,
    pub mark: Mark,
    /// The block that begins here.
    pub block: usize,
}

/// The files that were taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Taken {
    /// Those that are still there, by name.
    files: BTreeMap<String, Mark>,
    /// The largest name of all, also of files that are gone: a smaller one is late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
}

/// What a file was when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    #[serde(flatten)]
    pub stamp: Stamp,
    /// Of its first and last bytes.
    pub digest: String,
}

/// How a file looks without being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    bytes: u64,
    /// When it was last written, in nanoseconds of Unix time, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<u64>,
    /// What a store calls this content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

impl Place {
    pub fn position(&self) -> Result<Position> {
        Position::new(self)
    }

    /// The current file is over.
    pub fn end_file(&mut self) {
        if let Some(current) = self.current.take() {
            self.taken.add(current.name, current.mark);
        }
    }
}

impl Taken {
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// How a file looked when it was taken.
    pub fn stamp(&self, name: &str) -> Option<&Stamp> {
        self.files.get(name).map(|mark| &mark.stamp)
    }

    pub fn mark(&self, name: &str) -> Option<&Mark> {
        self.files.get(name)
    }

    /// The taken file whose name is the largest, if it is larger than this one.
    pub fn is_late(&self, name: &str) -> Option<&str> {
        self.last.as_deref().filter(|last| name < *last)
    }

    pub fn add(&mut self, name: String, mark: Mark) {
        if self.last.as_ref().is_none_or(|last| *last < name) {
            self.last = Some(name.clone());
        }
        self.files.insert(name, mark);
    }

    /// Forgets a file: if it is there, it is new.
    pub fn forget(&mut self, name: &str) {
        self.files.remove(name);
    }

    /// Forgets files that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.files.retain(|name, _| is_there(name));
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }
}

impl Mark {
    pub fn new(shard: &Shard, entry: FileEntry) -> Self {
        Self { stamp: Stamp::of(shard), digest: entry.digest }
    }

    /// Returns true if both are the same content, whenever it was written.
    pub fn is_same_content(&self, other: &Self) -> bool {
        (self.stamp.bytes, &self.digest) == (other.stamp.bytes, &other.digest)
    }
}

impl Stamp {
    pub fn of(shard: &Shard) -> Self {
        let looks = shard.looks();
        let since = looks.modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        let modified = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
        Self { bytes: looks.size, modified, version: looks.version.as_deref().map(str::to_string) }
    }
}
