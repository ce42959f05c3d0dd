//! A folder or an object-store prefix that grows: a `LiveSource` of files that are learned from once each.
//!
//! **Whole.** A file is taken when its size and its time of change have not changed for the settle time, or at once
//! when it was moved into the folder under its name (a rename, which Linux tells). **Order.** By name; a file that is
//! not whole yet holds back those behind it. A file that appears with a name before one that was taken is late: it is
//! taken next, with a note. So two runs learn the same rows in the same order, whenever they were started, stopped and
//! resumed, if files appear in the order of their names. **Once.** A file that was taken and is replaced by another of
//! the same name is named in a note and not learned from again; one that was deleted and comes back as another is new.
//! A file that cannot be read is bad data (`on_bad`), and the next one follows.
//!
//! A window is one block of a file: a row group, a range of lines, a frame, or a fixed number of rows. What a file is
//! inside is not known here: an [`OpenFile`] opens each as a source of its own, and refuses one that is unlike the
//! first. `places` looks, `arrivals` decides which file is next, `place` is a position, `reader` delivers. Opened by
//! `pipeline`.

mod arrivals;
mod first;
mod place;
mod places;
mod reader;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

pub use self::first::FirstFiles;
use self::places::Places;
use self::reader::{Pace, WatchReader};
use super::store::Shard;
use super::{BoxFuture, LiveReader, LiveSource, Manifest, OnGap, Source};
use crate::data::Position;
use crate::error::{Error, Result};

/// How a folder is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// How long a file must stay the same to count as whole.
    pub settle: Duration,
    /// What to do about a file that changed or vanished while it was learned from.
    pub on_gap: OnGap,
}

/// Opens the files of a watched folder, each by itself.
pub trait OpenFile: Send + Sync {
    /// The records of a file, as blocks or as rows by number; `None` if there is nothing in it. Refuses a file whose
    /// records are unlike those of the first.
    fn open(&self, shard: Shard) -> BoxFuture<'_, Result<Option<Source>>>;
}

/// Files that appear while a run learns.
pub struct Watched {
    places: Places,
    options: WatchOptions,
    files: Arc<dyn OpenFile>,
    manifest: Manifest,
    /// Files are read here; whoever reads them waits on a thread of its own.
    runtime: Handle,
    pace: Pace,
}

impl Watched {
    /// Watches what these paths, patterns and addresses match. `how` is whatever decides which records a file has, such
    /// as the columns. Must be called inside a tokio runtime.
    pub fn new(patterns: &[String], options: WatchOptions, files: Arc<dyn OpenFile>, how: &str) -> Result<Self> {
        Self::of(Places::open(patterns)?, options, files, how)
    }

    fn of(places: Places, options: WatchOptions, files: Arc<dyn OpenFile>, how: &str) -> Result<Self> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::unsupported("a folder must be watched inside a tokio runtime, which reads its files")
        })?;
        let manifest = Manifest::new("watched files", Vec::new(), how);
        let pace = Pace::new(places.has_store());
        Ok(Self { places, options, files, manifest, runtime, pace })
    }
}

impl LiveSource for Watched {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        true
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Ok(Box::new(WatchReader::open(self, from)?))
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({}, {:?})", self.places.describe(), self.options)
    }
}
