//! Files that appear whole or not at all, and files that are read only if they are files.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file in the making: written beside its place, under its name with `.tmp` behind, and renamed when it is whole.
/// What is no plain file, such as a pipe, is written as it is.
pub(crate) struct WholeFile {
    path: PathBuf,
    /// Where it is until it is whole; `None` if that is its place.
    beside: Option<PathBuf>,
    writer: BufWriter<File>,
}

impl WholeFile {
    /// Begins a file; one that is there stays until the new one is whole.
    pub fn create(path: &Path) -> Result<Self> {
        let is_special = fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir());
        let mut beside = path.as_os_str().to_owned();
        beside.push(".tmp");
        let beside = (!is_special).then(|| PathBuf::from(beside));
        let file = File::create(beside.as_deref().unwrap_or(path));
        let file = file.map_err(|e| Error::io_at(path, &e))?;
        Ok(Self { path: path.to_path_buf(), beside, writer: BufWriter::new(file) })
    }

    /// Where it is until it is whole; `None` for what is written as it is. Whoever ends the process without dropping
    /// the file removes this.
    pub fn unfinished(&self) -> Option<&Path> {
        self.beside.as_deref()
    }

    /// Puts the file into its place, once its bytes are on the disk: a machine that dies leaves the old file or the
    /// new.
    pub fn finish(mut self) -> Result<()> {
        let flushed = self.writer.flush();
        let done = match self.beside.take() {
            Some(beside) => {
                let synced = flushed.and_then(|()| self.writer.get_ref().sync_all());
                let done = synced.and_then(|()| put_in_place(&beside, &self.path));
                if done.is_err() {
                    // A full disk needs the room back. The first failure is the one to report.
                    let _ = fs::remove_file(&beside);
                }
                done
            }
            None => flushed,
        };
        done.map_err(|e| Error::io_at(&self.path, &e))
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A file that was given up leaves nothing behind.
impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

/// Gives a file that is whole and on the disk its name, in place of what has it.
pub(crate) fn put_in_place(beside: &Path, path: &Path) -> io::Result<()> {
    fs::rename(beside, path)?;
    let _ = sync_folder(parent_of(path)); // it is in place; a folder that may be written and not read cannot be flushed
    Ok(())
}

/// The folder that a path is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Makes the names in a folder last. Only Unix lets a folder be flushed.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Writes a small file whole or not at all.
pub(crate) fn write_whole(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let mut file = WholeFile::create(path)?;
    file.write_all(contents.as_ref()).map_err(|e| Error::io_at(path, &e))?;
    file.finish()
}

/// Opens a file of our own for reading. A pipe or a device in its place would let the reader wait without end, so it is
/// refused, and the file that is looked at is the one that was opened. For what users name themselves a pipe may be
/// meant.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    // Opening a pipe does not wait for a writer.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_REGULAR)),
    }
}

/// What is wrong with a pipe, a device or a folder.
pub(crate) const NOT_REGULAR: &str = "is not a regular file";

/// Reads a whole file of our own.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns true if both are the same file, whatever its names are. Where the system does not say, it is taken for the
/// same.
pub(crate) fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = (one, other);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        write_whole(&path, "before").unwrap();
        write_whole(&path, "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_named_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a.html");
        fs::create_dir(&folder).unwrap();
        let error = write_whole(&folder, "text").unwrap_err();
        assert!(error.to_string().contains("a.html"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_given_up_leaves_the_old_one_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        write_whole(&path, "before").unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        #[cfg(unix)]
        write_whole(Path::new("/dev/null"), "gone").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_a_device_and_a_folder_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&*pipe, Path::new("/dev/zero"), dir.path()] {
            let error = read_regular(path).unwrap_err();
            assert!(error.to_string().contains(NOT_REGULAR), "{}: {error}", path.display());
        }
        let file = dir.path().join("file");
        write_whole(&file, "text").unwrap();
        assert_eq!(read_regular(&file).unwrap(), b"text");
        let found = |path: &Path| fs::metadata(path).unwrap();
        assert!(is_same_file(&found(&file), &found(&file)) && !is_same_file(&found(&file), &found(&pipe)));
    }
}
