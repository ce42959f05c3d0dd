//! Which model a path means: a model, a checkpoint, or a run folder, whose latest checkpoint is meant.

use std::path::{Path, PathBuf};

use super::output::note;
use crate::error::{Error, Result};
use crate::learner::latest;
use crate::pipeline::run::CHECKPOINTS;

/// The file that every checkpoint and model has.
const META: &str = "checkpoint.json";

/// The folder of the model that `path` means.
pub(super) fn find_model(path: &Path) -> Result<PathBuf> {
    if path.join(META).is_file() {
        return Ok(path.to_path_buf());
    }
    let inside = path.join(CHECKPOINTS);
    let folder = if inside.is_dir() { inside } else { path.to_path_buf() };
    let found = match folder.is_dir() {
        true => latest(&folder)?,
        false if path.exists() => {
            let why = "is a file, and a model, a checkpoint or a run is a folder";
            return Err(Error::option(format!("{}: {why}", path.display())));
        }
        false => return Err(Error::option(format!("{}: no such model, checkpoint or run folder", path.display()))),
    };
    for (damaged, why) in &found.damaged {
        note(format_args!("warning: {}: passed over: {why}", damaged.display()));
    }
    match found.found {
        Some((checkpoint, _)) => Ok(checkpoint),
        None => Err(Error::option(format!("{}: has no model and no checkpoint", path.display()))),
    }
}
