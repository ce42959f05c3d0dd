//! Which file, and where in it: what a position of a followed file says, and how the file is found again.

use std::cmp::Reverse;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::data::Digest;
use crate::error::{Error, Result};

/// How much of its beginning a file is known by.
pub(super) const HEAD_BYTES: u64 = 4096;

/// A place in a file that grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Which file; `None` is the one that comes next under the name.
    pub file: Option<Identity>,
    /// Where the window begins.
    pub start: u64,
    /// Where it ends; `None` if it is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// How long the file was: what is known to be lost if it cannot be found.
    pub seen: u64,
}

/// What a file is known by, whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// Device and inode, where there are such things.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<(u64, u64)>,
    /// When it was made, in nanoseconds, where that is known; else when it was last written.
    pub age: u64,
    /// Its first bytes, as many as there were.
    pub head_bytes: u64,
    pub head: String,
}

impl Identity {
    /// Of a file, by its first bytes.
    pub fn of(file: &File, head_bytes: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let head_bytes = head_bytes.min(HEAD_BYTES);
        let head = head_of(file, head_bytes)?.unwrap_or_default();
        Ok(Self { inode: inode_of(&metadata), age: age_of(&metadata), head_bytes, head })
    }

    /// Returns true if the first bytes of a file are these.
    pub fn has_head_of(&self, file: &File) -> io::Result<bool> {
        Ok(head_of(file, self.head_bytes)?.as_ref() == Some(&self.head))
    }

    /// Returns true if the file may be this one, by what its folder says. An inode is used again, so the time counts,
    /// too.
    fn may_be(&self, metadata: &Metadata) -> bool {
        let is_as_old = metadata.created().map_or(true, |created| nanoseconds(created) == self.age);
        self.inode == inode_of(metadata) && is_as_old
    }
}

/// A digest of the first bytes; `None` if there are fewer.
fn head_of(file: &File, bytes: u64) -> io::Result<Option<String>> {
    let mut head = vec![0; bytes.min(HEAD_BYTES) as usize];
    let read = read_fully_at(file, &mut head, 0)?;
    Ok((read == head.len()).then(|| Digest::new().part(&head).finish()))
}

/// Reads at a place, without moving another one.
#[cfg(unix)]
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

/// Reads at a place. Nobody else reads from the same descriptor.
#[cfg(not(unix))]
pub(super) fn read_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read(buffer)
}

/// Fills the buffer as far as the file goes.
pub(super) fn read_fully_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match read_at(file, &mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(unix)]
pub(super) fn inode_of(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
pub(super) fn inode_of(_: &Metadata) -> Option<(u64, u64)> {
    None
}

/// Orders files that follow each other.
fn age_of(metadata: &Metadata) -> u64 {
    metadata.created().or_else(|_| metadata.modified()).map_or(0, nanoseconds)
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The folder of a followed file.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
    name: String,
}

impl Folder {
    pub fn of(file: &Path) -> Result<Self> {
        let no_name = || Error::option(format!("{}: is not the name of a file", file.display()));
        let name = file.file_name().and_then(|name| name.to_str()).ok_or_else(no_name)?.to_string();
        let path = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { path: path.to_path_buf(), name })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the followed file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The followed file.
    pub fn file(&self) -> PathBuf {
        self.path.join(&self.name)
    }

    /// A file that shows what the lines are like: the followed one, or the youngest that was rotated if that has none
    /// yet.
    pub fn file_to_look_at(&self) -> Option<PathBuf> {
        let file = self.file();
        let size = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
        if size.is_some_and(|size| size > 0) {
            return Some(file);
        }
        let mut rotated = self.rotated();
        rotated.sort_by_key(|(age, _)| Reverse(*age));
        let rotated = rotated.into_iter().map(|(_, path)| path).next();
        rotated.or_else(|| size.map(|_| file))
    }

    /// The file of this identity, whatever it is called.
    pub fn find(&self, identity: &Identity) -> Result<Option<(PathBuf, File)>> {
        let others = std::fs::read_dir(&self.path).map_err(|e| Error::io_at(&self.path, &e))?;
        let others = others.flatten().map(|entry| entry.path());
        for path in std::iter::once(self.file()).chain(others) {
            let metadata = path.metadata().ok().filter(Metadata::is_file);
            if metadata.is_some_and(|metadata| identity.may_be(&metadata))
                && let Ok(file) = File::open(&path)
                && identity.has_head_of(&file).map_err(|e| Error::io_at(&path, &e))?
            {
                return Ok(Some((path, file)));
            }
        }
        Ok(None)
    }

    /// Returns true if the followed file has this inode: it was truncated or written anew if it is another one.
    pub fn is_same_inode(&self, identity: &Identity) -> bool {
        self.file().metadata().is_ok_and(|metadata| identity.may_be(&metadata))
    }

    /// What was begun next after a file of this age and inode: one that was rotated since, or the followed file, if
    /// that is another one. In a folder where many are, the oldest.
    pub fn after(&self, age: u64, inode: Option<(u64, u64)>) -> Option<PathBuf> {
        let is_other =
            |path: &PathBuf| path.metadata().is_ok_and(|found| inode_of(&found).is_none_or(|i| Some(i) != inode));
        let rotated = self.rotated().into_iter().filter(|(other, path)| *other > age && is_other(path));
        let followed = Some(self.file()).filter(|path| path.is_file() && is_other(path));
        rotated.min_by_key(|(age, _)| *age).map(|(_, path)| path).or(followed)
    }

    /// Files that were rotated, by age: those that have the name, `.` or `-`, and a number or a date.
    fn rotated(&self) -> Vec<(u64, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Vec::new() };
        let is_rotated = |entry: &std::fs::DirEntry| {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(&self.name)).unwrap_or_default();
            rest.starts_with(['.', '-'])
                && rest.contains(|letter: char| letter.is_ascii_digit())
                && rest.chars().all(|letter| letter.is_ascii_digit() || ".-_:TZ".contains(letter))
        };
        let with_age = |entry: std::fs::DirEntry| {
            let metadata = entry.metadata().ok().filter(Metadata::is_file)?;
            Some((age_of(&metadata), entry.path()))
        };
        entries.flatten().filter(is_rotated).filter_map(with_age).collect()
    }
}
