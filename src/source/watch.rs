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
//! **Shares.** Whose a file is follows from its name (`has_file`); a share has its own files by name, as if the others
//! were not there. Readers of several shares look together.
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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

pub use self::first::FirstFiles;
use self::places::{Look, Places};
use self::reader::{Pace, WatchReader};
use super::store::Shard;
use super::{BoxFuture, LiveReader, LiveSource, Manifest, OnGap, Source};
use crate::data::{Digest, Position};
use crate::error::{Error, Result};
use crate::order::Share;

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
    /// The last look that readers of several shares had, and when it began.
    looked: Mutex<Option<(Instant, Look)>>,
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
        Ok(Self { places, options, files, manifest, runtime, pace, looked: Mutex::default() })
    }

    /// The files of a share that are there, as of a look that began at `not_before` or later, and when it began. A
    /// folder is listed once for all shares that are read here: that takes time, and of a store money. Blocks.
    fn look(&self, share: Share, not_before: Instant) -> Result<(Instant, Look)> {
        let look = || -> Result<(Instant, Look)> {
            let begun = Instant::now();
            Ok((begun, self.runtime.block_on(self.places.look())?))
        };
        if share.shards == 1 {
            return look();
        }
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = looked.take().filter(|(begun, _)| *begun >= not_before);
        let (begun, look) = looked.insert(recent.map_or_else(look, Ok)?);
        let own = look.files.iter().filter(|(name, _)| has_file(share, name));
        let files = own.map(|(name, shard)| (name.clone(), shard.clone())).collect();
        Ok((*begun, Look { files, missing: look.missing.clone() }))
    }
}

/// Returns true if a file is that of a share, by its name below the folder that is watched. Part of what a position
/// means: never change it.
fn has_file(share: Share, name: &str) -> bool {
    share.shards == 1 || share.has(Digest::new().part(name).number())
}

impl LiveSource for Watched {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        true
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        self.open_share(Share::default(), from)
    }

    fn check_shards(&self, _: usize) -> Result<()> {
        Ok(()) // a shard may be without a file for now
    }

    fn open_share(self: Arc<Self>, share: Share, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Ok(Box::new(WatchReader::open(self, share, from)?))
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({}, {:?})", self.places.describe(), self.options)
    }
}
