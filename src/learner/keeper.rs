//! Keeps a learner's checkpoints: which folder is locked, what is written into it, how many stay.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{CheckpointFolder, Identity, Snapshot};
use crate::error::Result;

/// Checkpoints that stay in a folder unless the caller asks for another number.
pub(super) const KEPT: usize = 3;

/// Writes the checkpoints of one learner.
pub(super) struct Keeper {
    /// What the learner is: a checkpoint of another one is not continued.
    pub identity: Identity,
    /// Checkpoints that stay in a folder.
    pub kept: usize,
    /// The folder that was written last, or resumed from. It stays locked as long as the learner lives, so that no
    /// other process writes between two checkpoints.
    pub folder: Mutex<Option<CheckpointFolder>>,
}

impl Keeper {
    /// Writes a checkpoint and removes the oldest ones. Blocks on the disk; calls from several threads take turns.
    pub fn write(&self, dir: &Path, snapshot: &Snapshot) -> Result<PathBuf> {
        let mut open = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match open.take() {
            Some(folder) if is_same(folder.dir(), dir) => open.insert(folder),
            _ => open.insert(CheckpointFolder::open(dir)?),
        };
        let written = folder.write(snapshot, &self.identity, &Default::default())?;
        folder.prune(snapshot.progress.batches, self.kept, &[])?;
        Ok(written)
    }
}

/// Returns true if both paths are one folder, however they are written.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
