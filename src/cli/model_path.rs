//! Which model a path means: a model, a checkpoint, or a run folder, whose latest checkpoint is meant.

use std::path::{Path, PathBuf};

use super::output::note;
use crate::error::{Error, Result};
use crate::learner::{Latest, latest};
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
    if !folder.is_dir() {
        let why = match path.exists() {
            true => "is a file; name a model, a checkpoint or a run folder, which are folders",
            false => "no such model, checkpoint or run folder",
        };
        return Err(Error::path(format!("{}: {why}", path.display())));
    }
    let Latest { found, damaged } = latest(&folder)?;
    if let (None, Some((newest, why))) = (&found, damaged.first()) {
        return Err(why.clone().at(format!("{}: no checkpoint is whole", newest.display())));
    }
    for (damaged, why) in &damaged {
        note(format_args!("warning: {}: not used: {why}", damaged.display()));
    }
    match found {
        Some((checkpoint, _)) => Ok(checkpoint),
        None => Err(Error::path(format!("{}: has no model and no checkpoint", path.display()))),
    }
}
