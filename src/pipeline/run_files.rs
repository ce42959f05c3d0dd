//! The files of a run folder besides its checkpoints: the resolved pipeline, `metrics.jsonl`, `quarantine.jsonl`.
//!
//! A run that goes on from a checkpoint repeats what came after it, so lines of later steps are taken out first. A step has one
//! line in `metrics.jsonl`, and one more with each validation after it; a record is in the ledger once.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::batcher::OnBad;
use crate::decode::BadRecord;
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::learner::{CheckpointFolder, Identity, Progress};

/// The pipeline with every default written out, inside a run folder. Not `pipeline.toml`: that may be the user's own.
pub const RESOLVED: &str = "resolved.toml";

/// What a run leaves behind.
pub struct RunFiles {
    /// The run folder.
    pub out: PathBuf,
    /// Its checkpoints, shared with whoever writes one in the background.
    pub folder: Arc<CheckpointFolder>,
    /// What every checkpoint says about the run it is of.
    pub identity: Identity,
    /// `metrics.jsonl`.
    pub metrics: JsonLines,
    /// `quarantine.jsonl`, where bad records are kept.
    pub ledger: Option<Ledger>,
}

impl RunFiles {
    /// Opens the files of a run that goes on from `progress`.
    pub fn open(
        out: &Path,
        folder: CheckpointFolder,
        identity: Identity,
        on_bad: OnBad,
        progress: &Progress,
    ) -> Result<Self> {
        let metrics = JsonLines::open(&out.join("metrics.jsonl"), |line| {
            let place = |key: &str| line[key].as_u64().unwrap_or(u64::MAX);
            (place("step"), place("epoch")) <= (progress.step, progress.epoch)
        })?;
        let ledger = match on_bad {
            OnBad::Quarantine => Some(Ledger::open(&out.join("quarantine.jsonl"))?),
            OnBad::Fail | OnBad::Skip => None,
        };
        Ok(Self { out: out.into(), folder: Arc::new(folder), identity, metrics, ledger })
    }

    /// Writes the resolved pipeline.
    pub fn write_resolved(&self, pipeline: &str) -> Result<()> {
        write_whole(&self.out.join(RESOLVED), pipeline)
    }
}

/// A file of JSON lines that is only ever added to.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Opens the file for adding, keeping the lines for which `keep` holds. A last line that was cut off goes too.
    pub fn open(path: &Path, mut keep: impl FnMut(&Value) -> bool) -> Result<Self> {
        let failed = |e: &std::io::Error| Error::io(&path.display().to_string(), e);
        let before = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(failed(&e)),
        };
        let kept = |line: &&str| serde_json::from_str(line).is_ok_and(|value: Value| keep(&value));
        let mut text: String = before.lines().filter(kept).collect::<Vec<_>>().join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        if text != before {
            // Beside and renamed: a kill in between loses nothing.
            let beside = path.with_extension("jsonl.tmp");
            fs::write(&beside, &text).and_then(|()| fs::rename(&beside, path)).map_err(|e| failed(&e))?;
        }
        let file = File::options().create(true).append(true).open(path).map_err(|e| failed(&e))?;
        Ok(Self { path: path.into(), file })
    }

    /// Adds a line, in one write: a reader never sees half of one unless the machine dies.
    pub fn add(&mut self, line: &impl Serialize) -> Result<()> {
        let place = || self.path.display().to_string();
        let mut text =
            serde_json::to_string(line).map_err(|e| Error::internal(format!("{}: cannot be written: {e}", place())))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|e| Error::io(&place(), &e))
    }
}

/// The ledger of records that were left out.
#[derive(Debug)]
pub struct Ledger {
    lines: JsonLines,
    /// What is in it already: a window that is read again finds the same records bad again.
    known: HashSet<BadRecord>,
}

impl Ledger {
    /// Opens the ledger for adding.
    pub fn open(path: &Path) -> Result<Self> {
        let mut known = HashSet::new();
        let lines = JsonLines::open(path, |line| match serde_json::from_value(line.clone()) {
            Ok(record) => known.insert(record),
            Err(_) => false,
        })?;
        Ok(Self { lines, known })
    }

    /// Adds a record, unless it is there.
    pub fn add(&mut self, record: BadRecord) -> Result<()> {
        if self.known.contains(&record) {
            return Ok(());
        }
        self.lines.add(&record)?;
        self.known.insert(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_after_a_step_and_half_lines_go_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"ste").unwrap();
        let mut lines = JsonLines::open(&path, |line| line["step"].as_u64().is_some_and(|step| step <= 2)).unwrap();
        lines.add(&json!({"step": 3})).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
    }

    #[test]
    fn a_record_is_in_the_ledger_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine.jsonl");
        let record = |position| BadRecord {
            file: "a.parquet".into(),
            unit: "row".into(),
            position,
            records: 1,
            reason: "null".into(),
        };
        Ledger::open(&path).unwrap().add(record(1)).unwrap();
        let mut again = Ledger::open(&path).unwrap();
        again.add(record(1)).unwrap();
        again.add(record(2)).unwrap();
        again.add(record(2)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }
}
