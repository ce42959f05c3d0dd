//! Which model a path means: a model, a checkpoint, or a run folder, one of whose checkpoints is chosen.
//!
//! The latest whole checkpoint unless a flag names another one. A choice is told on standard error, so that no user
//! takes the figures of one checkpoint for those of another.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::output::note;
use crate::error::{Error, Result};
use crate::learner::{Checkpoint, Latest, ctrlg, latest, list};
use crate::pipeline::run::CHECKPOINTS;

/// The file that every checkpoint and model has.
const META: &str = "checkpoint.json";

/// Which checkpoint of a run folder.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct CheckpointArgs {
    /// Of a run folder, use the checkpoint with the best held-out likelihood instead of the latest
    #[arg(long, conflicts_with = "checkpoint")]
    best: bool,
    /// Of a run folder, use this checkpoint: its step, or its path
    #[arg(long, value_name = "STEP|PATH")]
    checkpoint: Option<String>,
}

impl CheckpointArgs {
    /// The folder of the model that `path` means. Tells which one was chosen, if there was a choice.
    pub fn find(&self, path: &Path) -> Result<PathBuf> {
        let (found, how) = self.choose(path)?;
        if let Some(how) = how {
            note(format_args!("note: the checkpoint is {}, {how}", found.display()));
        }
        Ok(found)
    }

    /// The same without a word: for output that names the model itself and has standard error to itself.
    pub fn find_quietly(&self, path: &Path) -> Result<PathBuf> {
        self.choose(path).map(|(found, _)| found)
    }

    /// The folder of the model, and how it was chosen.
    fn choose(&self, path: &Path) -> Result<(PathBuf, Option<&'static str>)> {
        if path.join(META).is_file() || ctrlg::is_ctrlg(path) {
            self.refuse_choice(path, "is one checkpoint or model")?;
            return Ok((path.to_path_buf(), None));
        }
        let inside = path.join(CHECKPOINTS);
        let folder = if inside.is_dir() { inside } else { path.to_path_buf() };
        if !folder.is_dir() {
            let why = match path.exists() {
                true => "is a file; name a model, a checkpoint or a run folder, which are folders",
                false => "no such model, checkpoint or run folder",
            };
            return Err(Error::missing_path(format!("{}: {why}", path.display())));
        }
        let (found, how) = match &self.checkpoint {
            Some(named) => (named_one(&folder, named)?, "as named"),
            None if self.best => (best_one(&folder)?, "the best"),
            None => (latest_one(&folder, path)?, "the latest"),
        };
        Ok((found, Some(how)))
    }

    /// An error if a flag chooses among checkpoints where there is nothing to choose from.
    pub fn refuse_choice(&self, path: &Path, what: &str) -> Result<()> {
        let flag = match &self.checkpoint {
            Some(_) => "--checkpoint",
            None if self.best => "--best",
            None => return Ok(()),
        };
        Err(Error::option(format!("{flag}: {} {what}; name a run folder to choose from", path.display())))
    }
}

/// The newest checkpoint that is whole, if there is any checkpoint. Tells which newer ones are not.
fn newest_whole(folder: &Path) -> Result<Option<(PathBuf, Checkpoint)>> {
    let Latest { found, damaged } = latest(folder)?;
    if let (None, Some((newest, why))) = (&found, damaged.first()) {
        return Err(why.clone().at(format!("{}: no checkpoint is whole", newest.display())));
    }
    for (damaged, why) in &damaged {
        note(format_args!("warning: {}: not used: {why}", damaged.display()));
    }
    Ok(found)
}

/// The newest checkpoint that is whole.
fn latest_one(folder: &Path, path: &Path) -> Result<PathBuf> {
    match newest_whole(folder)? {
        Some((checkpoint, _)) => Ok(checkpoint),
        None => Err(Error::missing_path(format!("{}: has no model and no checkpoint", path.display()))),
    }
}

/// The best one, by what the newest whole checkpoint remembers of the run.
fn best_one(folder: &Path) -> Result<PathBuf> {
    let place = folder.display();
    let Some((_, newest)) = newest_whole(folder)? else {
        return Err(Error::missing_path(format!("{place}: has no checkpoint")));
    };
    let best = newest.meta.extra.get("best").and_then(|best| best.get("step")).and_then(Value::as_u64);
    let Some(step) = best else {
        let why = "the run has no best checkpoint: its held-out rows were not looked at, or the parameters moved since";
        return Err(Error::option(format!("--best: {place}: {why}; without --best the latest is used")));
    };
    match list(folder)?.into_iter().find(|(known, _)| *known == step) {
        Some((_, path)) => Ok(path),
        None => {
            let why = format!("the best was after {step} batches and was not kept (checkpoint.keep_best)");
            Err(Error::missing_path(format!("--best: {place}: {why}")))
        }
    }
}

/// The one that `--checkpoint` names: by its step, or as a path, also from inside the folder.
fn named_one(folder: &Path, named: &str) -> Result<PathBuf> {
    let checkpoints = list(folder)?;
    if let Ok(step) = named.parse::<u64>() {
        let steps: Vec<String> = checkpoints.iter().map(|(step, _)| step.to_string()).collect();
        let found = checkpoints.into_iter().find(|(known, _)| *known == step);
        return found.map(|(_, path)| path).ok_or_else(|| {
            let there = if steps.is_empty() { "no step".into() } else { format!("steps {}", steps.join(", ")) };
            Error::missing_path(format!("--checkpoint {named}: {} has {there}", folder.display()))
        });
    }
    let found = [PathBuf::from(named), folder.join(named)].into_iter().find(|path| path.join(META).is_file());
    found.ok_or_else(|| {
        Error::missing_path(format!("--checkpoint {named}: no such checkpoint; give its step or its path"))
    })
}
