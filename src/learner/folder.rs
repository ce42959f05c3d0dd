//! The checkpoints of a run, side by side in one folder.
//!
//! Whoever writes holds the folder's lock, which the system releases however the process ends: nothing has to be cleaned up
//! by hand after a `kill -9`. Reading needs no lock: a checkpoint is whole from the moment it has its name.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::checkpoint::{self, Checkpoint};
use super::publish::{recover, retire};
use super::{Identity, Snapshot};
use crate::error::{Error, ErrorKind, Result};

const LOCK: &str = ".lock";

/// A folder of checkpoints that this process writes, and no other.
#[derive(Debug)]
pub struct CheckpointFolder {
    dir: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
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
    /// Opens a folder for writing, making it if need be, and cleans up what a killed process left unfinished. An error if
    /// another process, or another handle of this one, has it open.
    pub fn open(dir: &Path) -> Result<Self> {
        let place = dir.display().to_string();
        fs::create_dir_all(dir).map_err(|e| Error::io(&place, &e))?;
        let path = dir.join(LOCK);
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(|e| Error::io(&path.display().to_string(), &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::state(format!(
                    "{place}: another run is writing here; let it finish, stop it, or choose another folder"
                )));
            }
            Err(TryLockError::Error(e)) => return Err(Error::io(&format!("{place}: cannot be locked"), &e)),
        }
        recover(dir)?;
        Ok(Self { dir: dir.to_path_buf(), _lock: lock })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint and returns its path. If it fails, the checkpoints that were there still are.
    pub fn write(&self, snapshot: &Snapshot, identity: &Identity, extra: &Map<String, Value>) -> Result<PathBuf> {
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

    /// Of the checkpoints up to the one just `written`, removes all but the last `keep_last` and that of step `best`. Later
    /// ones are not touched and do not count: they are damaged, or the run would not have come back before them.
    /// Returns the paths of the removed.
    pub fn prune(&self, written: u64, keep_last: usize, best: Option<u64>) -> Result<Vec<PathBuf>> {
        if keep_last == 0 {
            return Err(Error::option("keep_last = 0: must be at least 1, or there would be nothing to go on from"));
        }
        let mut steps = self.list()?;
        steps.retain(|(step, _)| *step <= written);
        steps.truncate(steps.len().saturating_sub(keep_last));
        let removed = steps.into_iter().filter(|(step, _)| Some(*step) != best).map(|(_, path)| path);
        removed.map(|path| retire(&path).map(|()| path)).collect()
    }
}

/// The checkpoints in a folder by step, oldest first; not yet checked. A folder that does not exist has none.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let failed = |e: &std::io::Error| Error::io(&dir.display().to_string(), e);
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
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

/// The newest checkpoint in a folder that is whole. One that a newer version wrote is an error rather than damage: going on
/// from an older one would throw work away.
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
