//! Reads a file that grows, window by window.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::place::{HEAD_BYTES, Identity, Place, inode_of, read_at, read_fully_at};
use super::{Content, FollowedFile};
use crate::data::Position;
use crate::error::{Error, Result};
use crate::source::changes::Changes;
use crate::source::lines::{LinePieces, Lines, MAX_LINE_BYTES};
use crate::source::{Arrived, Lists, LiveReader, OnGap, Piece, Positions, ReadLimits, Records};

/// How much is looked through at once for the end of a long line.
const SCAN_BYTES: usize = 64 << 10;

pub(super) struct Reader {
    source: Arc<FollowedFile>,
    changes: Changes,
    current: Option<Current>,
    window: Option<Window>,
    /// What is to be said before anything else.
    pending: VecDeque<Arrived>,
    /// The end of the window that was begun before a resume.
    known_end: Option<u64>,
    /// Whether it was said that there is no file of this name.
    is_missed: bool,
}

/// The file that is being read.
struct Current {
    file: Arc<File>,
    identity: Identity,
    /// Where the next window begins.
    at: u64,
    /// No line ends between `at` and here.
    scanned: u64,
}

/// A window that is being delivered.
struct Window {
    end: u64,
    /// How long the file was when the window began.
    seen: u64,
    rest: Rest,
}

enum Rest {
    Lines(Box<LinePieces>),
    /// Rows of tokens from here on.
    Tokens(u64),
}

impl Reader {
    pub fn open(source: Arc<FollowedFile>, from: Option<&Position>) -> Result<Self> {
        let changes = Changes::watch(source.folder.path());
        let mut reader = Self {
            source,
            changes,
            current: None,
            window: None,
            pending: VecDeque::new(),
            known_end: None,
            is_missed: false,
        };
        match from {
            Some(position) => reader.go_back(&position.read()?)?,
            None => reader.begin(&reader.source.folder.file())?,
        }
        Ok(reader)
    }

    /// Finds the file of a place again.
    fn go_back(&mut self, place: &Place) -> Result<()> {
        let (source, start) = (self.source.clone(), place.start);
        let Some(identity) = &place.file else { return self.begin(&source.folder.file()) };
        if let Some((path, file)) = source.folder.find(identity)? {
            let length = length_of(&file, &path)?;
            if length >= place.end.unwrap_or(start) {
                if path != source.folder.file() {
                    self.note(format!("{}: goes on in {}, where it was renamed to", source.shown, path.display()));
                }
                self.current =
                    Some(Current { file: file.into(), identity: identity.clone(), at: start, scanned: start });
                self.known_end = place.end;
                return Ok(());
            }
            self.gap(&was_truncated(start, length))?;
            self.begin(&source.folder.file())?;
        } else if source.folder.is_same_inode(identity) {
            self.gap(&format!("was written anew after it was read up to byte {start}"))?;
            self.begin(&source.folder.file())?;
        } else {
            let unread = place.seen.saturating_sub(start);
            self.gap(&format!(
                "the file that was read up to byte {start} is not in its folder any more, under any name (compressed, \
                 deleted, replaced?), and at least {unread} bytes of it are gone"
            ))?;
            let next = source.folder.after(identity.age, identity.inode);
            self.begin(&next.unwrap_or_else(|| source.folder.file()))?;
        }
        let next = self.place(None, 0)?;
        self.pending.push_front(Arrived::WindowLost(next));
        Ok(())
    }

    /// Something was lost: an error, or a note if that is what the user wants.
    fn gap(&mut self, what: &str) -> Result<()> {
        let shown = &self.source.shown;
        if self.source.on_gap == OnGap::Skip {
            self.note(format!("{shown}: {what}; goes on with what there is"));
            return Ok(());
        }
        Err(Error::data(format!(
            "{shown}: {what}; bring it back, or go on with what there is: source.on_gap = \"skip\""
        )))
    }

    fn note(&mut self, note: String) {
        self.pending.push_back(Arrived::Note(note));
    }

    /// Begins with a file, if it is there.
    fn begin(&mut self, path: &Path) -> Result<()> {
        self.current = match File::open(path) {
            Ok(file) => {
                let identity = Identity::of(&file, 0).map_err(|e| Error::io_at(path, &e))?;
                Some(Current { file: file.into(), identity, at: 0, scanned: 0 })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io_at(path, &error)),
        };
        Ok(())
    }

    /// The place of the next window, of which the end may be known.
    fn place(&self, end: Option<u64>, seen: u64) -> Result<Position> {
        let (file, start) = match &self.current {
            Some(current) => (Some(current.identity.clone()), current.at),
            None => (None, 0),
        };
        Position::new(&Place { file, start, end, seen })
    }

    /// Begins a window if there is one; else sees what became of the file. Returns false if nothing came of it.
    fn look(&mut self, limits: &ReadLimits) -> Result<bool> {
        let source = self.source.clone();
        let failed = |e: &io::Error| Error::io_at(&*source.shown, e);
        let Some(current) = &mut self.current else {
            self.begin(&source.folder.file())?;
            if self.current.is_some() && std::mem::take(&mut self.is_missed) {
                self.note(format!("{}: is there again", source.shown));
            }
            return Ok(self.current.is_some());
        };
        let length = current.file.metadata().map_err(|e| failed(&e))?.len();
        let known_end = self.known_end.take();
        if length < known_end.unwrap_or(current.at) {
            let what = was_truncated(current.at, length);
            return self.begin_anew(&what, known_end.is_some());
        }
        if length > current.at && !current.identity.has_head_of(&current.file).map_err(|e| failed(&e))? {
            let what = format!("was written anew after it was read up to byte {}", current.at);
            return self.begin_anew(&what, known_end.is_some());
        }
        let end = match known_end {
            Some(end) => Some(end),
            None => current.find_end(length, &source).map_err(|e| failed(&e))?,
        };
        match end {
            Some(end) => self.begin_window(end, length, limits).map(|()| true),
            None => self.look_for_another(length, limits),
        }
    }

    /// The file lost what it had, perhaps in the midst of a window that was begun before a resume.
    fn begin_anew(&mut self, what: &str, in_window: bool) -> Result<bool> {
        self.gap(what)?;
        if let Some(current) = &mut self.current {
            (current.at, current.scanned) = (0, 0);
            current.identity = Identity::of(&current.file, 0).map_err(|e| Error::io_at(&*self.source.shown, &e))?;
        }
        if in_window {
            let next = self.place(None, 0)?;
            self.pending.push_front(Arrived::WindowLost(next));
        }
        Ok(true)
    }

    fn begin_window(&mut self, end: u64, length: u64, limits: &ReadLimits) -> Result<()> {
        let source = self.source.clone();
        let Some(current) = &mut self.current else { return Ok(()) };
        if current.identity.head_bytes < end.min(HEAD_BYTES) {
            let identity = Identity::of(&current.file, end).map_err(|e| Error::io_at(&*source.shown, &e))?;
            current.identity = Identity { age: current.identity.age, ..identity };
        }
        let start = current.at;
        let rest = match &source.content {
            Content::Json(shape) => {
                let range = Range { file: current.file.clone(), at: start, end };
                let max_line = MAX_LINE_BYTES.min(usize::try_from(limits.record_bytes).unwrap_or(usize::MAX));
                let lines = Lines::new(Box::new(range), start, max_line);
                let pieces = LinePieces::new(lines, source.shown.clone(), shape.clone(), limits.piece_bytes);
                Rest::Lines(Box::new(pieces))
            }
            Content::Tokens { .. } => Rest::Tokens(start),
        };
        let position = self.place(Some(end), length)?;
        self.pending.push_back(Arrived::WindowStart(position));
        self.window = Some(Window { end, seen: length, rest });
        Ok(())
    }

    /// At the end of a file: whether another one has taken its name, and has begun.
    fn look_for_another(&mut self, length: u64, limits: &ReadLimits) -> Result<bool> {
        let source = self.source.clone();
        let Some(current) = &self.current else { return Ok(false) };
        let failed = |e: &io::Error| Error::io_at(&*source.shown, e);
        let own = current.file.metadata().map_err(|e| failed(&e))?;
        let path = source.folder.file();
        match path.metadata() {
            Ok(found) if inode_of(&found) == inode_of(&own) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !self.is_missed {
                    self.is_missed = true;
                    self.note(format!("{}: was deleted or renamed: waiting until it is there again", source.shown));
                    return Ok(true);
                }
            }
            Err(error) => return Err(failed(&error)),
        }
        // Whoever wrote into the next one has finished this one; before that, lines may still come.
        let Some(next) = source.folder.after(current.identity.age, inode_of(&own)) else { return Ok(false) };
        if next.metadata().map_or(0, |metadata| metadata.len()) == 0 {
            return Ok(false);
        }
        if current.file.metadata().map_err(|e| failed(&e))?.len() > length {
            return Ok(true); // came in the meantime
        }
        let left = length - current.at;
        match source.content {
            Content::Json(_) if left > 0 => return self.begin_window(length, length, limits).map(|()| true),
            Content::Tokens { .. } if left > 0 => {
                self.note(format!("{}: its last {left} bytes are no whole row, and are left out", source.shown));
            }
            _ => {}
        }
        self.is_missed = false;
        self.note(format!("{}: another file has taken its place; goes on with {}", source.shown, next.display()));
        self.begin(&next)?;
        Ok(true)
    }

    /// The next piece of the window; `None` after the last.
    fn next_piece(&mut self, limits: &ReadLimits) -> Result<Option<Piece>> {
        let (Some(window), Some(current)) = (&mut self.window, &self.current) else { return Ok(None) };
        let (shown, end) = (self.source.shown.clone(), window.end);
        let shrunk = |at: u64| Error::data(format!("{shown}: {}", was_truncated(end, at)));
        match (&mut window.rest, &self.source.content) {
            (Rest::Lines(pieces), _) => match pieces.next().transpose()? {
                None if pieces.offset() < end => Err(shrunk(pieces.offset())),
                piece => Ok(piece),
            },
            (Rest::Tokens(at), Content::Tokens { width, window }) if *at < end => {
                let row_bytes = (width.bytes() * window) as u64;
                let rows = (limits.piece_bytes as u64 / row_bytes).max(1).min((end - *at) / row_bytes);
                let mut bytes = vec![0; (rows * row_bytes) as usize];
                let read = read_fully_at(&current.file, &mut bytes, *at).map_err(|e| Error::io_at(&*shown, &e))?;
                if read < bytes.len() {
                    return Err(shrunk(*at + read as u64));
                }
                let ends = (1..=rows as usize).map(|row| row * window).collect();
                let values = width.column_from_le_bytes(&bytes);
                let positions = Positions::Rows { first: *at / row_bytes };
                *at += rows * row_bytes;
                let records = Records::Lists(Lists { values, ends, missing: None });
                Ok(Some(Piece { file: shown, positions, records, bad: Vec::new() }))
            }
            (Rest::Tokens(_), _) => Ok(None),
        }
    }
}

impl LiveReader for Reader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        loop {
            if let Some(first) = self.pending.pop_front() {
                return Ok(Some(first));
            }
            if self.window.is_some() {
                if let Some(piece) = self.next_piece(limits)? {
                    return Ok(Some(Arrived::Piece(piece)));
                }
                if let (Some(window), Some(current)) = (self.window.take(), &mut self.current) {
                    (current.at, current.scanned) = (window.end, window.end);
                    return Ok(Some(Arrived::WindowEnd(self.place(None, window.seen)?)));
                }
            }
            if !self.look(limits)? {
                self.changes.wait(self.source.quiet);
                return Ok(Some(Arrived::Quiet));
            }
        }
    }
}

impl Current {
    /// Where the next window ends: after the last whole line, or row, that is not too far away.
    fn find_end(&mut self, length: u64, source: &FollowedFile) -> io::Result<Option<u64>> {
        if let Content::Tokens { width, window } = source.content {
            let row_bytes = (width.bytes() * window) as u64;
            let near = length.min(self.at + source.window_bytes.max(row_bytes));
            let rows = (near - self.at) / row_bytes;
            return Ok((rows > 0).then(|| self.at + rows * row_bytes));
        }
        let near = length.min(self.at + source.window_bytes);
        if self.scanned < near {
            let mut bytes = vec![0; (near - self.scanned) as usize];
            let read = read_fully_at(&self.file, &mut bytes, self.scanned)?;
            if let Some(end) = bytes[..read].iter().rposition(|&byte| byte == b'\n') {
                return Ok(Some(self.scanned + end as u64 + 1));
            }
            self.scanned += read as u64;
        }
        // A long line: to its end, and no further.
        while self.scanned < length {
            let mut bytes = vec![0; SCAN_BYTES];
            let read = read_fully_at(&self.file, &mut bytes, self.scanned)?;
            if let Some(end) = bytes[..read].iter().position(|&byte| byte == b'\n') {
                return Ok(Some(self.scanned + end as u64 + 1));
            }
            self.scanned += read as u64;
            if read == 0 {
                break;
            }
        }
        Ok(None)
    }
}

/// Bytes of a file from here to there.
struct Range {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Range {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let read = read_at(&self.file, &mut buffer[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn length_of(file: &File, path: &Path) -> Result<u64> {
    file.metadata().map(|metadata| metadata.len()).map_err(|e| Error::io_at(path, &e))
}

fn was_truncated(at: u64, length: u64) -> String {
    format!(
        "was truncated to {length} bytes after it was read up to byte {at}, and what was written in between is not \
         known \
         (rotate by renaming, not by copying and truncating)"
    )
}
