//! Which of the files that are there is next: the rules of taking files, without a clock and without a disk.
//!
//! A file is *whole* when its size and its time of change have stayed the same for the settle time, or when it was
//! moved into the folder under its name. The next file is the one with the smallest name of those that were not taken;
//! while it is not whole, those behind it wait. So a run that was down and finds many files takes them in the order in
//! which a run that saw them come has taken them, if they came in the order of their names. Used by `reader`.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use super::place::{Stamp, Taken};
use crate::source::store::Shard;

/// Files that were written this long before they were first seen are whole at once. Not the settle time: the clock of a
/// file server may be some seconds behind, and a file that grows would look old.
const LONG_AGO: Duration = Duration::from_secs(60);

/// The files that are there, with what is known of each.
#[derive(Default)]
pub(super) struct Arrivals {
    settle: Duration,
    seen: BTreeMap<String, Sighting>,
}

/// A file that is there.
struct Sighting {
    shard: Shard,
    stamp: Stamp,
    /// Since when it has been like this.
    since: Instant,
    /// When a file of this name was first seen.
    first: Instant,
    is_whole: bool,
}

/// Which file is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This one, which is whole.
    File(String),
    /// None yet: a file is not whole, and may be from this moment on.
    Settling(Instant),
    /// None: everything that is there was taken.
    Nothing,
}

impl Arrivals {
    pub fn new(settle: Duration) -> Self {
        Self { settle, seen: BTreeMap::new() }
    }

    /// Takes in what is there now. `moved` are the names of files that were moved into the folder since the last look.
    pub fn see(&mut self, files: BTreeMap<String, Shard>, moved: &HashSet<String>, now: Instant, clock: SystemTime) {
        let mut before = std::mem::take(&mut self.seen);
        for (name, shard) in files {
            let stamp = Stamp::of(&shard);
            let was_moved = moved.contains(&name);
            let sighting = match before.remove(&name) {
                Some(known) if known.stamp == stamp => {
                    let is_whole = known.is_whole || was_moved || now.duration_since(known.since) >= self.settle;
                    Sighting { shard, is_whole, ..known }
                }
                known => {
                    let age = shard.looks().modified.and_then(|modified| clock.duration_since(modified).ok());
                    let is_old = known.is_none() && age.is_some_and(|age| age >= self.settle.max(LONG_AGO));
                    let first = known.map_or(now, |known| known.first);
                    Sighting { shard, stamp, since: now, first, is_whole: is_old || was_moved || self.settle.is_zero() }
                }
            };
            self.seen.insert(name, sighting);
        }
    }

    /// Which file is next.
    pub fn next(&self, taken: &Taken) -> Next {
        let next = self.seen.iter().find(|(name, _)| !taken.has(name));
        match next {
            None => Next::Nothing,
            Some((name, file)) if file.is_whole => Next::File(name.clone()),
            Some((_, file)) => Next::Settling(file.since + self.settle),
        }
    }

    /// Whole files that were taken and do not look as they did then. Whether they are others is for their content to
    /// say.
    pub fn changed<'a>(&'a self, taken: &'a Taken) -> impl Iterator<Item = (&'a String, &'a Shard)> {
        let is_other = |name: &str, file: &Sighting| taken.stamp(name).is_some_and(|stamp| *stamp != file.stamp);
        self.seen
            .iter()
            .filter(move |(name, file)| file.is_whole && is_other(name, file))
            .map(|(name, file)| (name, &file.shard))
    }

    /// Returns true if a file is there.
    pub fn has(&self, name: &str) -> bool {
        self.seen.contains_key(name)
    }

    /// How a file that is there looks.
    pub fn stamp(&self, name: &str) -> Option<&Stamp> {
        self.seen.get(name).map(|file| &file.stamp)
    }

    /// Returns true if nothing is there.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// A file that is there.
    pub fn shard(&self, name: &str) -> Option<&Shard> {
        self.seen.get(name).map(|file| &file.shard)
    }

    /// Files that were not taken, and since when the first of them has been there.
    pub fn waiting(&self, taken: &Taken) -> (usize, Option<Instant>) {
        let mut waiting = self.seen.iter().filter(|(name, _)| !taken.has(name)).map(|(_, file)| file.first);
        let first = waiting.next();
        waiting.fold((usize::from(first.is_some()), first), |(count, first), at| (count + 1, first.min(Some(at))))
    }
}
