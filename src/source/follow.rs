//! A file that grows, read as it is written: a `LiveSource` that can go back.
//!
//! Only whole lines (of token files: whole rows) are taken. A place is a byte of a file that is known again by its
//! device and inode and by its first bytes (`place.rs`), so that a run goes on where it was although files were renamed
//! meanwhile. What may happen to a followed file, and what comes of it:
//!
//! * *rotated* (renamed, a new one of the same name): the old one is finished first, its last line even without a
//!   newline, then the new one begins. It counts as finished when the new one has its first bytes. Files that were
//!   rotated while nobody looked are found in the folder: the name, `.` or `-`, and a number or a date;
//! * *replaced* by another of the same name, or *deleted*: the old one is finished through its open descriptor, then
//!   the new one begins, or is waited for;
//! * *truncated*, or written anew in place: what stood there may never have been read, so it is an error. Rotation by
//!   copying and truncating (`copytruncate`) loses lines by its nature: rename instead;
//! * *gone after a restart* (deleted, compressed or moved away): an error that says how much is known to be missing.
//!
//! With [`OnGap::Skip`] the last two go on with what there is, and say so. The reader is `reader.rs`.

mod place;
mod reader;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::place::Folder;
use self::reader::Reader;
use super::columns::{Columns, Reading, RecordKind};
use super::json_records::JsonShape;
use super::lines::MAX_LINE_BYTES;
use super::token_width::TokenWidth;
use super::{LiveReader, LiveSource, Manifest, OnGap};
use crate::data::Position;
use crate::error::{Error, Result};

/// Bytes of a window at most, longer lines aside: what a resumed run may have to read again.
const WINDOW_BYTES: u64 = 256 << 10;

/// How much of a file is looked at to find out what its lines mean.
const FIRST_BYTES: u64 = 256 << 10;

/// How long nothing happens before somebody may end the run.
const QUIET: Duration = Duration::from_millis(250);

/// How often a file is looked at that has no line yet.
const LOOK: Duration = Duration::from_millis(100);

/// A file that is read as it is written.
#[derive(Debug)]
pub struct FollowedFile {
    folder: Folder,
    /// As it was named, for messages.
    shown: Arc<str>,
    content: Content,
    on_gap: OnGap,
    manifest: Manifest,
    window_bytes: u64,
    quiet: Duration,
}

/// What the file holds.
#[derive(Debug)]
enum Content {
    Json(Arc<JsonShape>),
    /// Rows of so many tokens.
    Tokens {
        width: TokenWidth,
        window: usize,
    },
}

impl FollowedFile {
    /// Follows JSON lines. Waits for the first one, and finds out what it means.
    pub fn json(path: &Path, columns: &Columns, on_gap: OnGap) -> Result<Self> {
        let folder = Folder::of(path)?;
        let first = wait_for_lines(&folder, path)?;
        let lines: Vec<&[u8]> = first.split(|&byte| byte == b'\n').collect();
        let shown = path.display().to_string();
        let shape = JsonShape::find(&lines, columns).map_err(|error| error.at(&shown))?;
        let options = format!("{} {}", folder.name(), shape.identity());
        let manifest = Manifest::new("followed-jsonl", Vec::new(), &options);
        let content = Content::Json(Arc::new(shape));
        Ok(Self { folder, shown: shown.into(), content, on_gap, manifest, window_bytes: WINDOW_BYTES, quiet: QUIET })
    }

    /// Follows flat tokens, in rows of `window`.
    pub fn tokens(path: &Path, width: TokenWidth, window: usize, on_gap: OnGap) -> Result<Self> {
        if window == 0 {
            return Err(Error::option("window = 0: a row needs at least one token"));
        }
        let folder = Folder::of(path)?;
        if folder.file_to_look_at().is_none() {
            return Err(no_file(path));
        }
        let options = format!("{} {} {window}", folder.name(), width.name());
        let manifest = Manifest::new("followed-tokens", Vec::new(), &options);
        let (shown, content) = (path.display().to_string().into(), Content::Tokens { width, window });
        Ok(Self { folder, shown, content, on_gap, manifest, window_bytes: WINDOW_BYTES, quiet: QUIET })
    }

    /// What the records are; `None` for rows of tokens.
    pub fn kind(&self) -> Option<RecordKind> {
        match &self.content {
            Content::Json(shape) => Some(shape.kind()),
            Content::Tokens { .. } => None,
        }
    }

    /// Which keys are read, and which are not.
    pub fn reading(&self) -> Option<Reading> {
        match &self.content {
            Content::Json(shape) => Some(shape.reading()).filter(|reading| !reading.read.is_empty()),
            Content::Tokens { .. } => None,
        }
    }
}

impl LiveSource for FollowedFile {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        true
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Reader::open(self, from).map(|reader| Box::new(reader) as Box<dyn LiveReader>)
    }
}

fn no_file(path: &Path) -> Error {
    Error::option(format!("{}: there is no such file to follow; an empty one will do", path.display()))
}

/// The first whole lines of a file, or of the one that was rotated last if it has none yet. Waits until there is one.
fn wait_for_lines(folder: &Folder, path: &Path) -> Result<Vec<u8>> {
    loop {
        let file = folder.file_to_look_at().ok_or_else(|| no_file(path))?;
        let mut wanted = FIRST_BYTES;
        while wanted <= MAX_LINE_BYTES as u64 {
            let mut bytes = read_first(&file, wanted)?;
            if let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') {
                bytes.truncate(end + 1);
                if !bytes.trim_ascii().is_empty() {
                    return Ok(bytes);
                }
            }
            if (bytes.len() as u64) < wanted {
                break;
            }
            wanted *= 4;
        }
        std::thread::sleep(LOOK);
    }
}

fn read_first(file: &Path, bytes: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let failed = |e: &std::io::Error| Error::io_at(file, e);
    let mut first = Vec::new();
    match std::fs::File::open(file) {
        Ok(file) => file.take(bytes).read_to_end(&mut first).map_err(|e| failed(&e))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0, // renamed just now
        Err(error) => return Err(failed(&error)),
    };
    Ok(first)
}
