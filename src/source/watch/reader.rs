//! Delivers the files of a watched folder, a block a window.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use metrics::{counter, gauge};

use super::Watched;
use super::arrivals::{Arrivals, Next};
use super::place::{Current, Mark, Place, Stamp};
use crate::data::Position;
use crate::error::{Error, ErrorKind, Result};
use crate::order::Share;
use crate::source::changes::Changes;
use crate::source::store::Shard;
use crate::source::{Arrived, IndexedSource, LiveReader, OnGap, Piece, ReadLimits, Source};
use crate::telemetry;

/// Rows in a window of a file whose rows are read by number. Part of what a position means: never change it.
const WINDOW_ROWS: u64 = 1024;

/// How often it is looked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time between two looks, where nothing says that something has changed. A store, which never does, takes money
    /// for every look: it is looked at a fifth as often.
    pub every: Duration,
    /// The least time between two looks, though changes come faster.
    pub pause: Duration,
    /// How many times as long as a look took the next one waits at least: large folders are looked at less often.
    pub share: u32,
    /// How long a reader is silent at most.
    pub quiet: Duration,
}

impl Pace {
    /// The usual one, of folders or of a store.
    pub fn new(is_store: bool) -> Self {
        let (pause, quiet) = (Duration::from_millis(50), Duration::from_millis(200));
        Self { every: Duration::from_secs(if is_store { 5 } else { 1 }), pause, share: 100, quiet }
    }
}

/// The pieces of a block that is being delivered.
type Pieces = Box<dyn Iterator<Item = Result<Piece>> + Send>;

/// Reads a watched folder from a position on.
pub(super) struct WatchReader {
    watched: Arc<Watched>,
    /// Which files are its own.
    share: Share,
    arrivals: Arrivals,
    /// Where the window that comes next, or is being delivered, begins.
    place: Place,
    /// The current file, if it could be opened, and how it looked then.
    file: Option<(Source, Shard)>,
    /// What is left of the current block.
    pieces: Option<Pieces>,
    /// What goes out before anything else.
    ready: VecDeque<Arrived>,
    /// Files that were taken and have been missing in a look since.
    gone: HashSet<String>,
    /// When it was last looked, and how long that took.
    looked: Option<(Instant, Duration)>,
    /// Says when something happens in a folder of this machine, with what files there are called before their own name.
    changes: Vec<(String, Changes)>,
    /// Whether something has happened there since the last look.
    has_changed: bool,
    /// What was last said about places that cannot be looked at.
    trouble: Option<String>,
}

/// What has become of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Same,
    Another,
    Gone,
}

impl WatchReader {
    pub fn open(watched: Arc<Watched>, share: Share, from: Option<&Position>) -> Result<Self> {
        let place: Place = from.map_or_else(|| Ok(Place::default()), Position::read)?;
        let mut reader = Self {
            arrivals: Arrivals::new(watched.options.settle),
            watched,
            share,
            place,
            file: None,
            pieces: None,
            ready: VecDeque::new(),
            gone: HashSet::new(),
            looked: None,
            changes: Vec::new(),
            has_changed: false,
            trouble: None,
        };
        reader.watch_folders(); // before the first look: nothing happens unseen
        reader.go_on()?;
        Ok(reader)
    }

    /// Opens the file that was being read, at its block.
    fn go_on(&mut self) -> Result<()> {
        let Some(current) = self.place.current.clone() else { return Ok(()) };
        self.look()?;
        let Some(shard) = self.arrivals.shard(&current.name).cloned() else {
            return self.gap(&current, "is gone");
        };
        if !self.mark(&shard)?.is_same_content(&current.mark) {
            return self.gap(&current, "is another file now");
        }
        self.open_file(shard)
    }

    /// The current file cannot be read to its end.
    fn gap(&mut self, current: &Current, what: &str) -> Result<()> {
        let lost = match current.block {
            0 => "none of its blocks was learned from wholly".to_string(),
            1 => "only its first block was learned from".to_string(),
            blocks => format!("only its first {blocks} blocks were learned from"),
        };
        let text = format!("{}: {what}, and {lost}", current.name);
        if self.watched.options.on_gap == OnGap::Fail {
            return Err(Error::state(format!(
                "{text}: put it back as it was, or go on without the rest with source.on_gap = \"skip\""
            )));
        }
        let name = current.name.clone();
        self.file = None;
        self.place.end_file();
        if let Some(shard) = self.arrivals.shard(&name).cloned()
            && let Ok(Some(shard)) = self.watched.runtime.block_on(shard.again())
            && let Ok(mark) = self.mark(&shard)
        {
            self.place.taken.add(name, mark); // what it is now is not learned from: this note is the one about it
        }
        self.ready.push_back(Arrived::Note(format!("{text}: the rest is skipped, as source.on_gap says")));
        self.ready.push_back(Arrived::WindowLost(self.place.position()?));
        Ok(())
    }

    /// What a file is now.
    fn mark(&self, shard: &Shard) -> Result<Mark> {
        Ok(Mark::new(shard, self.watched.runtime.block_on(shard.entry())?))
    }

    /// Opens the current file. One that cannot be read is a window of its own, damaged.
    fn open_file(&mut self, shard: Shard) -> Result<()> {
        let opened = self.watched.runtime.block_on(self.watched.files.open(shard.clone()));
        match opened {
            Ok(Some(source)) => {
                self.file = Some((source, shard));
                Ok(())
            }
            Ok(None) => {
                self.ready
                    .push_back(Arrived::Note(format!("{}: is empty: there is nothing to learn in it", shard.name())));
                self.end_file();
                Ok(())
            }
            Err(_) if self.now(&shard) == Now::Gone => {
                // Removed between two looks, before a row of it was read.
                self.place.current = None;
                self.ready.push_back(Arrived::Note(format!("{}: was removed before it was read", shard.name())));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Io || error.kind() == ErrorKind::Internal => Err(error),
            Err(error) => {
                self.ready.push_back(Arrived::WindowStart(self.place.position()?));
                // Also one without the columns, or compressed in a way that is not read: bad data of that file.
                self.ready.push_back(Arrived::Damaged(Error::data(error.to_string())));
                self.end_file();
                self.ready.push_back(Arrived::WindowEnd(self.place.position()?));
                Ok(())
            }
        }
    }

    /// The current file is over, and files that are not there any more are forgotten.
    fn end_file(&mut self) {
        self.file = None;
        self.place.end_file();
        counter!(telemetry::FILES_TAKEN).increment(1);
        // Unless everything is gone: a disk that is away for a moment would make all of it new.
        if !self.arrivals.is_empty() && self.trouble.is_none() {
            let (arrivals, gone) = (&self.arrivals, &mut self.gone);
            self.place.taken.retain(|name| arrivals.has(name) || !gone.contains(name));
            gone.retain(|name| arrivals.has(name));
        }
    }

    /// Begins the window of the next block of the current file.
    fn begin_window(&mut self, limits: &ReadLimits) -> Result<()> {
        let Some((source, shard)) = &self.file else { return Ok(()) };
        let Some(current) = self.place.current.clone() else {
            return Err(Error::internal("a watched file is open, and none is current"));
        };
        if current.block >= num_blocks(source) {
            return Err(Error::state(format!(
                "{}: has no block {}: the data has changed",
                current.name, current.block
            )));
        }
        let fetched = fetch(&self.watched, source, current.block, limits);
        // A store is asked for one version of a file and refuses where there is another; only then is it asked why.
        let now = if shard.local_path().is_some() || fetched.is_err() { self.now(shard) } else { Now::Same };
        match fetched {
            _ if now == Now::Gone => self.gap(&current, "is gone"),
            _ if now == Now::Another => self.gap(&current, "is another file now"),
            Ok(pieces) => {
                self.ready.push_back(Arrived::WindowStart(self.place.position()?));
                self.pieces = Some(pieces);
                Ok(())
            }
            Err(error) => {
                self.ready.push_back(Arrived::WindowStart(self.place.position()?));
                self.ready.push_back(Arrived::Damaged(error));
                self.end_window()
            }
        }
    }

    /// What has become of a file since it was found. A place that does not answer has its own error.
    fn now(&self, shard: &Shard) -> Now {
        match self.watched.runtime.block_on(shard.again()) {
            Ok(None) => Now::Gone,
            Ok(Some(now)) if Stamp::of(&now) != Stamp::of(shard) => Now::Another,
            Ok(Some(_)) | Err(_) => Now::Same,
        }
    }

    fn end_window(&mut self) -> Result<()> {
        let num_blocks = self.file.as_ref().map_or(0, |(source, _)| num_blocks(source));
        match &mut self.place.current {
            Some(current) if current.block + 1 < num_blocks => current.block += 1,
            _ => self.end_file(),
        }
        self.ready.push_back(Arrived::WindowEnd(self.place.position()?));
        Ok(())
    }

    /// Takes the next file, if one is whole. Returns false after waiting for a moment.
    fn take_next(&mut self) -> Result<bool> {
        if self.is_look_due() {
            self.look_or_wait_for_it()?;
            if !self.ready.is_empty() {
                return Ok(true);
            }
        }
        let quiet = self.watched.pace.quiet;
        let name = match self.arrivals.next(&self.place.taken) {
            Next::File(name) if self.trouble.is_none() => name,
            Next::File(_) | Next::Nothing => return Ok(self.wait(quiet)),
            Next::Settling(until) => {
                return Ok(self.wait(quiet.min(until.saturating_duration_since(Instant::now()))));
            }
        };
        let Some(shard) = self.arrivals.shard(&name).cloned() else { return Ok(true) };
        let mark = match self.mark(&shard) {
            Err(_) if self.now(&shard) != Now::Same => {
                self.looked = None; // it went away, or is another already: look again
                return Ok(true);
            }
            mark => mark?,
        };
        if let Some(last) = self.place.taken.is_late(&name) {
            self.ready.push_back(Arrived::Note(format!(
                "{name}: appeared after {last} was taken, though its name comes before: it is learned from out of order"
            )));
        }
        self.place.current = Some(Current { name, mark, block: 0 });
        self.open_file(shard)?;
        Ok(true)
    }

    /// Waits for changes. Always false, for whoever asked for a file.
    fn wait(&mut self, time: Duration) -> bool {
        let time = time.max(Duration::from_millis(1));
        match &mut self.changes[..] {
            // What has happened is known already; when it is looked at is a matter of time.
            _ if self.has_changed => std::thread::sleep(time.min(self.watched.pace.pause)),
            [] => std::thread::sleep(time),
            [(_, changes)] => self.has_changed = changes.wait(time),
            several => {
                self.has_changed = several.iter_mut().any(|(_, changes)| changes.wait(Duration::ZERO));
                if !self.has_changed {
                    std::thread::sleep(time);
                }
            }
        }
        false
    }

    /// Watches the folders anew: one that is back is another.
    fn watch_folders(&mut self) {
        let folders = self.watched.places.folders();
        self.changes = folders.into_iter().map(|(folder, called)| (called, Changes::watch(&folder))).collect();
    }

    /// Names of files that were moved to where they are since the last look, by what `places` calls them.
    fn moved(&self) -> HashSet<String> {
        let named = |(folder, changes): &(String, Changes)| {
            changes.take_moved().into_iter().map(|name| format!("{folder}{name}")).collect::<Vec<_>>()
        };
        self.changes.iter().flat_map(named).collect()
    }

    /// Returns true if something may have changed since the last look: something did, a file may be whole by now, or
    /// some time has passed.
    fn is_look_due(&self) -> bool {
        let Some((at, took)) = self.looked else { return true };
        let pace = &self.watched.pace;
        let pause = if self.has_changed || self.is_file_due() { pace.pause } else { pace.every };
        at.elapsed() >= pause.max(took * pace.share)
    }

    /// Returns true if a file may be whole by now.
    fn is_file_due(&self) -> bool {
        match self.arrivals.next(&self.place.taken) {
            Next::Settling(until) => Instant::now() >= until,
            Next::File(_) | Next::Nothing => false,
        }
    }

    /// Looks; where that fails, says so once, and the next look is another try.
    fn look_or_wait_for_it(&mut self) -> Result<()> {
        let trouble = match self.look() {
            Ok(missing) => {
                missing.map(|folder| format!("{folder}: the watched folder is gone: waiting until it is back"))
            }
            Err(error) if error.kind() == ErrorKind::Option => return Err(error),
            Err(error) => Some(format!("{error}: trying again until it works")),
        };
        if self.trouble != trouble {
            let note = trouble.clone().unwrap_or_else(|| format!("{}: is there again", self.watched.places.describe()));
            self.ready.push_back(Arrived::Note(note));
            self.trouble = trouble;
            self.watch_folders();
        }
        if self.trouble.is_none() {
            self.notice_replaced()?;
        }
        let (waiting, oldest) = self.arrivals.waiting(&self.place.taken);
        let oldest = oldest.map_or(0.0, |since| since.elapsed().as_secs_f64());
        if self.share.shards == 1 {
            gauge!(telemetry::FILES_WAITING).set(waiting as f64);
            gauge!(telemetry::OLDEST_WAITING).set(oldest);
        } else {
            let shard = self.share.shard.to_string();
            gauge!(telemetry::FILES_WAITING, telemetry::SHARD => shard.clone()).set(waiting as f64);
            gauge!(telemetry::OLDEST_WAITING, telemetry::SHARD => shard).set(oldest);
        }
        Ok(())
    }

    /// One look at what is there; a folder that is not.
    fn look(&mut self) -> Result<Option<String>> {
        let begun = Instant::now();
        let has_changed = std::mem::take(&mut self.has_changed); // what happens from now on may not be seen
        let moved = self.moved();
        // Where nothing is known to have changed, what another share has seen lately is as good.
        let is_routine = self.looked.is_some() && !has_changed && moved.is_empty() && !self.is_file_due();
        let not_before = if is_routine { begun.checked_sub(self.watched.pace.every / 2) } else { None };
        let looked = self.watched.look(self.share, not_before.unwrap_or(begun));
        self.looked = Some((Instant::now(), begun.elapsed()));
        let (at, look) = looked?;
        self.arrivals.see(look.files, &moved, at, SystemTime::now());
        let arrivals = &self.arrivals;
        self.gone.extend(self.place.taken.names().filter(|name| !arrivals.has(name)).cloned());
        Ok(look.missing)
    }

    /// Looks into files that were taken and do not look as they did.
    fn notice_replaced(&mut self) -> Result<()> {
        let changed: Vec<(String, Shard)> =
            self.arrivals.changed(&self.place.taken).map(|(name, shard)| (name.clone(), shard.clone())).collect();
        for (name, shard) in changed {
            let mark = match self.mark(&shard) {
                Err(_) if self.now(&shard) != Now::Same => continue, // it went away meanwhile, or changed again
                mark => mark?,
            };
            let is_same = self.place.taken.mark(&name).is_some_and(|taken| taken.is_same_content(&mark));
            if !is_same && self.gone.contains(&name) {
                self.place.taken.forget(&name); // deleted, and another came: a new file
            } else {
                self.place.taken.add(name.clone(), mark);
                if !is_same {
                    self.ready.push_back(Arrived::Note(format!(
                        "{name}: was replaced after it was learned from; the new content is not learned from: give it \
                         a new name"
                    )));
                }
            }
            self.gone.remove(&name);
        }
        // What is back as it was is not gone; what is back as something else may still be on its way.
        let (arrivals, taken) = (&self.arrivals, &self.place.taken);
        self.gone.retain(|name| taken.has(name) && arrivals.stamp(name) != taken.stamp(name));
        Ok(())
    }
}

impl LiveReader for WatchReader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        loop {
            if let Some(arrived) = self.ready.pop_front() {
                return Ok(Some(arrived));
            }
            if let Some(pieces) = &mut self.pieces {
                match pieces.next() {
                    Some(Ok(piece)) => return Ok(Some(Arrived::Piece(piece))),
                    Some(Err(error)) => {
                        self.ready.push_back(Arrived::Damaged(error));
                        self.pieces = None;
                        self.end_window()?;
                    }
                    None => {
                        self.pieces = None;
                        self.end_window()?;
                    }
                }
            } else if self.file.is_some() {
                self.begin_window(limits)?;
            } else if !self.take_next()? {
                return Ok(Some(Arrived::Quiet));
            }
        }
    }
}

fn num_blocks(source: &Source) -> usize {
    match source {
        Source::Blocks(source) => source.blocks().len(),
        Source::Indexed(source) => {
            usize::try_from(source.num_rows().unwrap_or(0).div_ceil(WINDOW_ROWS)).unwrap_or(usize::MAX)
        }
        Source::Live(_) => 0, // no file is one
    }
}

fn fetch(watched: &Watched, source: &Source, block: usize, limits: &ReadLimits) -> Result<Pieces> {
    match source {
        Source::Blocks(source) => Ok(watched.runtime.block_on(source.fetch(block, *limits))?.pieces),
        Source::Indexed(source) => Ok(Box::new(rows_of_window(source.clone(), block as u64, limits.piece_bytes)?)),
        Source::Live(_) => Err(Error::internal("a watched file is a live stream")),
    }
}

/// The rows of a window, some at a time.
fn rows_of_window(
    source: Arc<dyn IndexedSource>,
    window: u64,
    piece_bytes: usize,
) -> Result<impl Iterator<Item = Result<Piece>> + Send> {
    let first = window * WINDOW_ROWS;
    let end = source.num_rows().unwrap_or(0).min(first + WINDOW_ROWS);
    let row_bytes = source.gather(&[first])?.num_bytes().max(1);
    let piece_rows = (piece_bytes / row_bytes).clamp(1, WINDOW_ROWS as usize);
    let starts = (first..end).step_by(piece_rows);
    Ok(starts.map(move |start| {
        let rows: Vec<u64> = (start..end.min(start + piece_rows as u64)).collect();
        source.gather(&rows)
    }))
}
