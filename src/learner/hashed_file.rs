//! Files that are hashed while they are written and checked while they are read.
//!
//! A file is written once, in one go, and is on the disk before its hash is known to anybody. Reading checks the size
//! before the first byte and the hash after the last, so no length inside a file can ask for more than the file has.
//! The one place besides `data` that knows SHA-256: files are too large to be hashed in one piece.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::files::{NOT_REGULAR, open_regular};

const BUFFER: usize = 1 << 18;

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, as `sha256sum` prints it.
    pub sha256: String,
}

/// Writes a file, flushed to the disk, and tells what it must be from now on.
pub(super) fn write(path: &Path, fill: impl FnOnce(&mut HashingWriter) -> io::Result<()>) -> Result<FileHash> {
    let written = || -> io::Result<FileHash> {
        let file = BufWriter::with_capacity(BUFFER, File::create_new(path)?);
        let mut writer = HashingWriter { file, state: Sha256::new(), bytes: 0 };
        fill(&mut writer)?;
        let HashingWriter { mut file, state, bytes } = writer;
        file.flush()?;
        file.get_ref().sync_all()?;
        Ok(FileHash { bytes, sha256: hex(state) })
    };
    written().map_err(|e| Error::io_at(path, &e))
}

fn hex(state: Sha256) -> String {
    format!("{:x}", state.finalize())
}

/// A file in the making.
pub(super) struct HashingWriter {
    file: BufWriter<File>,
    state: Sha256,
    bytes: u64,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.state.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file that is being checked. What was read counts only after [`CheckedReader::finish`].
pub(super) struct CheckedReader {
    /// The path, for messages.
    pub place: String,
    file: File,
    state: Sha256,
    /// Bytes not yet read.
    left: u64,
    sha256: String,
}

impl CheckedReader {
    /// Opens a file and checks its size.
    pub fn open(path: &Path, expected: &FileHash) -> Result<Self> {
        let place = path.display().to_string();
        let file = open_regular(path).map_err(|e| cannot_read(&place, &e))?;
        let found = file.metadata().map_err(|e| cannot_read(&place, &e))?.len();
        if found != expected.bytes {
            return Err(damaged(&place, &format!("has {found} bytes where {} were written", expected.bytes)));
        }
        Ok(Self { place, file, state: Sha256::new(), left: found, sha256: expected.sha256.clone() })
    }

    /// Bytes not yet read.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads the next bytes.
    pub fn read_exact(&mut self, into: &mut [u8]) -> Result<()> {
        if into.len() as u64 > self.left {
            return Err(self.damaged("ends too early"));
        }
        self.file.read_exact(into).map_err(|e| cannot_read(&self.place, &e))?;
        self.state.update(&*into);
        self.left -= into.len() as u64;
        Ok(())
    }

    /// Reads what is left and compares the hash.
    pub fn finish(mut self) -> Result<()> {
        let mut rest = vec![0; BUFFER.min(self.left as usize)];
        while self.left > 0 {
            let count = rest.len().min(self.left as usize);
            self.read_exact(&mut rest[..count])?;
        }
        let found = hex(self.state.clone());
        if found != self.sha256 {
            return Err(self.damaged(&format!("its SHA-256 is {found:.12}… and must be {:.12}…", self.sha256)));
        }
        Ok(())
    }

    /// An error about this file's content.
    pub fn damaged(&self, why: &str) -> Error {
        damaged(&self.place, why)
    }
}

/// Reads a whole file that is small enough to be held at once.
pub(super) fn read_all(path: &Path, expected: &FileHash) -> Result<Vec<u8>> {
    let mut reader = CheckedReader::open(path, expected)?;
    let mut bytes = vec![0; reader.left() as usize]; // the size of the file itself, as the system tells it
    reader.read_exact(&mut bytes)?;
    reader.finish()?;
    Ok(bytes)
}

/// A file that cannot be opened or read: damage if it is not there or not whole, else a failure of the system.
pub(super) fn cannot_read(place: &str, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => damaged(place, "is missing"),
        ErrorKind::UnexpectedEof => damaged(place, "ends too early"),
        ErrorKind::InvalidInput => damaged(place, NOT_REGULAR),
        _ => Error::io_at(place, error),
    }
}

/// An error about a file's content.
pub(super) fn damaged(place: &str, why: &str) -> Error {
    Error::format(format!("{place}: {why}: this checkpoint is damaged, use another one")).with_path(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data;

    #[test]
    fn the_hash_is_that_of_the_content_and_no_file_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let content: Vec<u8> = (0..3 * BUFFER + 17).map(|i| (i * 7) as u8).collect();
        let hash = write(&path, |out| content.chunks(1000).try_for_each(|part| out.write_all(part))).unwrap();
        assert_eq!(hash, FileHash { bytes: content.len() as u64, sha256: data::Digest::of(&content) });
        assert!(read_all(&path, &hash).unwrap() == content);
        CheckedReader::open(&path, &hash).unwrap().finish().unwrap();
        assert!(write(&path, |_| Ok(())).unwrap_err().to_string().contains("exists"));
    }
}
