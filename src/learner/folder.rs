//! The checkpoints of a run, side by side in one folder.
//!
//! Whoever writes holds the folder's lock, which the system releases however the process ends: nothing has to be
//! cleaned up by hand after a `kill -9`. Reading needs no lock: a checkpoint is whole from the moment it has its name.
//!
//! A lock is of a file, not of its name. Whoever removes or renames the folder lets another process lock a new file of
//! that name, so [`CheckpointFolder::hold`] looks before every checkpoint whether the file is still the one that is
//! locked.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use super::checkpoint::{self, Checkpoint};
use super::publish::{recover, retire};
use super::reserve::Reserve;
use super::{Identity, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::files::is_same_file;

/// The file that is locked. It stays when the lock is gone, and says that the folder is one of checkpoints.
const LOCK: &str = ".lock";

/// A folder of checkpoints that this process writes, and no other.
#[derive(Debug)]
pub struct CheckpointFolder {
    dir: PathBuf,
    /// Locked as long as it is open; another one after the file was removed.
    lock: Mutex<File>,
    /// So that a checkpoint can be written by a process that has no file left to open.
    reserve: Reserve,
}

/// What became of the lock of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is held.
    Held,
    /// The folder or its lock file was gone; both are there again, and held.
    Renewed,
    /// Another lock file is in its place: another process has, or had, the folder.
    Taken,
}

/// The newest checkpoint of a folder.
#[derive(Debug, Default)]
pub struct Latest {
    /// Where it is, and what it holds; `None` if there is none that is whole.
    pub found: Option<(PathBuf, Checkpoint)>,
    /// Newer ones that cannot be used, and why. A run that finds these and nothing else should not begin anew unasked.
    pub damaged: Vec<(PathBuf, Error)>,
}

impl CheckpointFolder {
    /// Opens a folder for writing, making it if need be, and cleans up what a killed process left unfinished. An error
    /// if another process, or another handle of this one, has it open.
    pub fn open(dir: &Path) -> Result<Self> {
        let place = dir.display().to_string();
        fs::create_dir_all(dir).map_err(|e| Error::io_at(&place, &e))?;
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK));
        let lock = lock.map_err(|e| Error::io(&dir.join(LOCK).display().to_string(), &e))?;
        if !locked(&lock).map_err(|e| Error::io(&format!("{place}: cannot be locked"), &e))? {
            return Err(Error::state(format!(
                "{place}: another run is writing here; let it finish, stop it, or choose another folder"
            )));
        }
        recover(dir)?;
        Ok(Self { dir: dir.to_path_buf(), lock: Mutex::new(lock), reserve: Reserve::new() })
    }

    /// Makes sure that the folder is still this process's: makes it again if it is gone, and tells if another process
    /// took it.
    pub fn hold(&self) -> Result<Hold> {
        let path = self.dir.join(LOCK);
        let failed = |e: io::Error| Error::io_at(&path, &e);
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match fs::metadata(&path) {
            Ok(there) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.dir).map_err(failed)?;
                match File::options().read(true).write(true).create_new(true).open(&path) {
                    Ok(new) if locked(&new).map_err(failed)? => {
                        *lock = new;
                        return Ok(Hold::Renewed);
                    }
                    Ok(_) => return Ok(Hold::Taken), // by somebody who was faster
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(Hold::Taken),
                    Err(e) => return Err(failed(e)),
                }
            }
            Err(e) => return Err(failed(e)),
        };
        let is_ours = is_same_file(&lock.metadata().map_err(failed)?, &there);
        Ok(if is_ours { Hold::Held } else { Hold::Taken })
    }

    /// What to tell where [`Hold::Taken`] is the answer.
    pub fn taken(&self) -> Error {
        let why = "the folder was replaced, and another process may be writing here; nothing is overwritten; go on \
                   from the last checkpoint of this run, wherever it is now";
        Error::io_at(&self.dir, &io::Error::other(why))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint and returns its path. If it fails, the checkpoints that were there still are; if another
    /// process took the folder, it fails.
    pub fn write(&self, snapshot: &Snapshot, identity: &Identity, extra: &Map<String, Value>) -> Result<PathBuf> {
        let _released = self.reserve.release();
        if self.hold()? == Hold::Taken {
            return Err(self.taken());
        }
        checkpoint::write(&self.dir, snapshot, identity, extra)
    }

    /// The checkpoints by step, oldest first; not yet checked.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        list(&self.dir)
    }

    /// The newest checkpoint that is whole.
    pub fn latest(&self) -> Result<Latest> {
        latest(&self.dir)
    }

    /// Of the checkpoints up to the one just `written`, removes all but the last `keep_last` and those of the steps
    /// `kept`. Later ones are not touched and do not count: they are damaged, or the run would not have come back
    /// before them. Returns the paths of the removed.
    pub fn prune(&self, written: u64, keep_last: usize, kept: &[u64]) -> Result<Vec<PathBuf>> {
        if keep_last == 0 {
            return Err(Error::option("keep_last = 0: must be at least 1, or there would be nothing to go on from"));
        }
        let _released = self.reserve.release();
        let mut steps = self.list()?;
        steps.retain(|(step, _)| *step <= written);
        steps.truncate(steps.len().saturating_sub(keep_last));
        let removed = steps.into_iter().filter(|(step, _)| !kept.contains(step)).map(|(_, path)| path);
        removed.map(|path| retire(&path).map(|()| path)).collect()
    }
}

/// Returns true if the folder is one of checkpoints, by its lock file or by their names.
pub fn is_checkpoint_folder(dir: &Path) -> bool {
    dir.join(LOCK).is_file() || list(dir).is_ok_and(|steps| !steps.is_empty())
}

/// Locks a file; false if another process has it.
fn locked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// The checkpoints in a folder by step, oldest first; not yet checked. A folder that does not exist has none.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let failed = |e: &io::Error| Error::io_at(dir, e);
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| failed(&e))?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| failed(&e))?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("step-")).and_then(|step| step.parse().ok());
        // Names that only look like ours (`step-+7`, a copy `step-7`) are somebody else's.
        if let Some(step) = step.filter(|step| *name == *checkpoint::step_name(*step)) {
            steps.push((step, entry.path()));
        }
    }
    steps.sort();
    Ok(steps)
}

/// The newest checkpoint in a folder that is whole. One that a newer version wrote is an error rather than damage:
/// going on from an older one would throw work away.
pub fn latest(dir: &Path) -> Result<Latest> {
    let mut latest = Latest::default();
    for (_, path) in list(dir)?.into_iter().rev() {
        match checkpoint::load(&path) {
            Ok(checkpoint) => {
                latest.found = Some((path, checkpoint));
                break;
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => latest.damaged.push((path, error)),
        }
    }
    Ok(latest)
}
