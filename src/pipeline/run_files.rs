//! The files of a run folder besides its checkpoints: the resolved pipeline, `metrics.jsonl`, `quarantine.jsonl`.
//!
//! A run that goes on from a checkpoint repeats what came after it, so lines of later steps are taken out first. A step
//! has one line in `metrics.jsonl`, and one more with each validation after it; a record is in the ledger once.
//!
//! All of them are opened before the first batch, and a folder that holds such files of somebody else is refused. From
//! then on nothing that cannot be written here ends a run: lines wait and are tried again with the next one, and only
//! what a checkpoint holds is worth an error at the end.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::batcher::OnBad;
use crate::decode::BadRecord;
use crate::error::{Error, Result};
use crate::files::{is_same_file, read_regular, write_whole};
use crate::learner::{CheckpointFolder, Identity, Progress, is_checkpoint_folder};
use crate::pipeline::spec::MetricsSpec;

/// The pipeline with every default written out, inside a run folder. Not `pipeline.toml`: that may be the user's own.
pub const RESOLVED: &str = "resolved.toml";

/// Where checkpoints are inside a run folder.
pub const CHECKPOINTS: &str = "checkpoints";

const METRICS: &str = "metrics.jsonl";
const LEDGER: &str = "quarantine.jsonl";

/// What the first line of a resolved pipeline begins with: a folder that has one is a run folder of ours.
const HEADER: &str = "# anemone";

/// Returns true if a run of this program made the folder: it has a resolved pipeline or a folder of checkpoints of
/// ours.
pub fn is_run_folder(out: &Path) -> bool {
    let header = read_regular(&out.join(RESOLVED)).is_ok_and(|text| text.starts_with(HEADER.as_bytes()));
    header || is_checkpoint_folder(&out.join(CHECKPOINTS))
}

/// Refuses a run folder in which something of somebody else would be replaced, before anything is written there.
pub fn check_run_folder(out: &Path) -> Result<()> {
    let refuse =
        |what: &str| Err(Error::option(format!("{}: {what}; choose another run folder with --out", out.display())));
    let whole = match fs::canonicalize(out) {
        Ok(whole) => whole,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io_at(out, &e)),
    };
    if whole.parent().is_none() {
        return refuse("is the root of the file system");
    }
    if !whole.is_dir() {
        return refuse("is not a folder");
    }
    if is_run_folder(out) {
        return Ok(());
    }
    let is_empty_folder = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    for name in [METRICS, RESOLVED, LEDGER, CHECKPOINTS] {
        let path = out.join(name);
        if fs::symlink_metadata(&path).is_ok() && !is_empty_folder(&path) {
            return refuse(&format!("holds a `{name}` that no run of anemone wrote, and a run would replace it"));
        }
    }
    Ok(())
}

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
    /// The resolved pipeline.
    resolved: String,
    /// Whether it is in the folder.
    is_resolved: bool,
}

impl RunFiles {
    /// Opens the files of a run that goes on from `progress`.
    pub fn open(
        out: &Path,
        folder: CheckpointFolder,
        identity: Identity,
        on_bad: OnBad,
        progress: &Progress,
        rotation: &MetricsSpec,
        pipeline: &str,
    ) -> Result<Self> {
        let keep = |line: &Value| {
            let place = |key: &str| line[key].as_u64().unwrap_or(u64::MAX);
            (place("step"), place("epoch")) <= (progress.batches, progress.epoch)
        };
        let rotation = Rotation { bytes: rotation.rotate, keep: rotation.keep };
        let metrics = JsonLines::open(&out.join(METRICS), keep)?.rotated(rotation, keep)?;
        let ledger = match on_bad {
            OnBad::Quarantine => Some(Ledger::open(&out.join(LEDGER))?),
            OnBad::Fail | OnBad::Skip => None,
        };
        let version = env!("CARGO_PKG_VERSION");
        let resolved = format!("{HEADER} {version}: the pipeline of this run, every default written out\n{pipeline}");
        Ok(Self { out: out.into(), folder: Arc::new(folder), identity, metrics, ledger, resolved, is_resolved: false })
    }

    /// Writes the resolved pipeline, unless it is written already.
    pub fn write_resolved(&mut self) -> Result<()> {
        if !self.is_resolved {
            write_whole(&self.out.join(RESOLVED), &self.resolved)?;
            self.is_resolved = true;
        }
        Ok(())
    }

    /// Writes again what a folder has to have that was removed or renamed, and was made again. Lines follow by
    /// themselves.
    pub fn renew(&mut self) -> Result<()> {
        self.is_resolved = self.out.join(RESOLVED).exists();
        self.write_resolved()
    }

    /// Tries for the last time to write what could not be written so far; what is still missing, file by file.
    pub fn finish(&mut self) -> Vec<Error> {
        let ledger = self.ledger.as_mut().map_or(Ok(()), |ledger| ledger.lines.finish());
        [self.write_resolved(), self.metrics.finish(), ledger].into_iter().filter_map(Result::err).collect()
    }
}

/// Bytes of lines that wait for room on the disk. Enough for most of an hour; beyond it the oldest go.
const MOST_PENDING: usize = 1 << 20;

/// A file of JSON lines that is only ever added to.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
    /// Lines that are not in the file yet, whole.
    pending: Vec<u8>,
    /// A write failed within a line, and what it left could not be cut off: the next one begins with a new line.
    torn: bool,
    /// Why nothing can be written at present.
    failing: Option<String>,
    /// Lines that were given up because too many were waiting.
    lost: usize,
    /// When another file begins; `None` is never.
    rotation: Option<Rotation>,
}

/// When another file of lines begins, and how many of those before it stay. They are called `name-000001.jsonl` and so
/// on; the one that is added to has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A file that is larger gets a number.
    pub bytes: u64,
    /// Files with numbers that are kept.
    pub keep: usize,
}

impl JsonLines {
    /// Opens the file for adding, keeping the lines for which `keep` holds. Lines that are not whole go too: a killed
    /// process or a full disk may leave the beginning of one.
    pub fn open(path: &Path, mut keep: impl FnMut(&Value) -> bool) -> Result<Self> {
        let failed = |e: &io::Error| Error::io_at(path, e);
        let before = match read_regular(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed(&e)),
        };
        let mut kept = Vec::with_capacity(before.len());
        for line in before.split(|&byte| byte == b'\n') {
            if serde_json::from_slice(line).is_ok_and(|value: Value| keep(&value)) {
                kept.extend_from_slice(line);
                kept.push(b'\n');
            }
        }
        if !before.starts_with(&kept) {
            write_whole(path, &kept)?; // a kill meanwhile loses nothing
        }
        let file = File::options().create(true).append(true).open(path).map_err(|e| failed(&e))?;
        if kept.len() < before.len() {
            file.set_len(kept.len() as u64).map_err(|e| failed(&e))?; // needs no room, also on a full disk
        }
        Ok(Self { path: path.into(), file, pending: Vec::new(), torn: false, failing: None, lost: 0, rotation: None })
    }

    /// The same, in files that do not grow for ever. Lines that are not to be kept go from those with numbers too: a
    /// checkpoint may be older than the last rotation.
    pub fn rotated(mut self, rotation: Rotation, mut keep: impl FnMut(&Value) -> bool) -> Result<Self> {
        for (_, path) in numbered(&self.path).into_iter().rev() {
            let bytes = read_regular(&path).map_err(|e| Error::io_at(&path, &e))?;
            let last = bytes.split(|&byte| byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
            if serde_json::from_slice(last).is_ok_and(|value: Value| keep(&value)) {
                break; // and so are all before it
            }
            drop(Self::open(&path, &mut keep)?);
        }
        self.rotation = Some(rotation);
        Ok(self)
    }

    /// Gives a file that is large enough its number, removes those that are too old, and begins another.
    fn rotate(&mut self) -> io::Result<()> {
        let Some(Rotation { bytes, keep }) = self.rotation else { return Ok(()) };
        if self.file.metadata()?.len() < bytes || self.torn {
            return Ok(());
        }
        let before = numbered(&self.path);
        let number = before.last().map_or(1, |(number, _)| number + 1);
        fs::rename(&self.path, numbered_path(&self.path, number))?;
        for (_, old) in before.iter().rev().skip(keep.saturating_sub(1)) {
            fs::remove_file(old)?;
        }
        self.reopen_if_removed()
    }

    /// Adds a line, in one write: a reader never sees half of one unless the machine dies. A line that cannot be
    /// written is kept and tried again with the next one. An error is a warning, and comes once until writing succeeds
    /// again.
    pub fn add(&mut self, line: &impl Serialize) -> Result<()> {
        let place = self.path.display().to_string();
        let text =
            serde_json::to_string(line).map_err(|e| Error::internal(format!("{place}: cannot be written: {e}")))?;
        self.pending.extend_from_slice(text.as_bytes());
        self.pending.push(b'\n');
        if self.pending.len() > MOST_PENDING {
            let beyond = self.pending.len() - MOST_PENDING;
            let end =
                self.pending[beyond..].iter().position(|&byte| byte == b'\n').map_or(beyond, |at| beyond + at + 1);
            self.lost += self.pending[..end].iter().filter(|&&byte| byte == b'\n').count();
            self.pending.drain(..end);
        }
        let was_failing = self.failing.is_some();
        match self.write_pending() {
            Err(error) if !was_failing => Err(Error::io_at(&place, &error)),
            _ => Ok(()),
        }
    }

    /// Tries once more, and tells whether something is missing.
    pub fn finish(&mut self) -> Result<()> {
        let _ = self.write_pending(); // its error is in `failing`
        let missing = self.lost + self.pending.iter().filter(|&&byte| byte == b'\n').count();
        if missing == 0 {
            return Ok(());
        }
        let why = self.failing.as_deref().unwrap_or("too many waited for room on the disk");
        let why = format!("{missing} lines could not be written: {why}");
        Err(Error::io_at(&self.path, &io::Error::other(why)))
    }

    fn write_pending(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = self.try_write();
        self.failing = written.as_ref().err().map(ToString::to_string);
        if written.is_ok() {
            self.pending.clear();
        }
        written
    }

    fn try_write(&mut self) -> io::Result<()> {
        self.reopen_if_removed()?;
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        self.rotate()?;
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(&self.pending);
        if written.is_err() {
            // A part may be there; what a reader finds are whole lines.
            self.torn = self.file.set_len(before).is_err();
        }
        written
    }

    /// Lines into a file that was removed, or moved with its folder, would be lost to this run. One that has come in
    /// its place is somebody else's.
    fn reopen_if_removed(&mut self) -> io::Result<()> {
        let is_ours = match fs::metadata(&self.path) {
            Ok(there) => is_same_file(&self.file.metadata()?, &there),
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e),
        };
        if !is_ours {
            self.file = File::options().create_new(true).append(true).open(&self.path)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// A file with its number: `metrics-000007.jsonl`.
fn numbered_path(path: &Path, number: u64) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{number:06}.jsonl"))
}

/// The files with numbers beside `path`, the oldest first.
fn numbered(path: &Path) -> Vec<(u64, PathBuf)> {
    let stem = format!("{}-", path.file_stem().unwrap_or_default().to_string_lossy());
    let number = |name: &str| name.strip_prefix(&stem)?.strip_suffix(".jsonl")?.parse::<u64>().ok();
    let entries = path.parent().map(fs::read_dir).and_then(io::Result::ok).into_iter().flatten().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| Some((number(&entry.file_name().to_string_lossy())?, entry.path())))
        .filter(|(number, found)| *found == numbered_path(path, *number))
        .collect();
    found.sort_unstable();
    found
}

/// The ledger of records that were left out.
#[derive(Debug)]
pub struct Ledger {
    lines: JsonLines,
    /// What is in it already, or waits to be: a window that is read again finds the same records bad again.
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

    /// Adds a record, unless it is there. Errors are those of [`JsonLines::add`].
    pub fn add(&mut self, record: BadRecord) -> Result<()> {
        if self.known.contains(&record) {
            return Ok(());
        }
        let added = self.lines.add(&record);
        self.known.insert(record);
        added
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
    fn a_file_that_is_long_gets_a_number_and_only_the_latest_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let rotation = Rotation { bytes: 60, keep: 2 };
        let mut lines = JsonLines::open(&path, |_| true).unwrap().rotated(rotation, |_| true).unwrap();
        (0..40).for_each(|step| lines.add(&json!({"step": step})).unwrap());
        lines.finish().unwrap();
        let numbers: Vec<u64> = numbered(&path).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), 2, "{numbers:?}");
        let steps = |until: u64| {
            let files = numbered(&path).into_iter().map(|(_, path)| path).chain([path.clone()]);
            let text: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
            let steps = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap());
            let steps: Vec<u64> = steps.collect();
            assert!(!steps.is_empty() && steps.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{steps:?}");
            assert_eq!(*steps.last().unwrap(), until);
            steps.len()
        };
        assert!(steps(39) >= 10);

        // A checkpoint from before the last rotation: what came after it goes, wherever it is.
        let keep = |line: &Value| line["step"].as_u64().is_some_and(|step| step <= 31);
        let mut lines = JsonLines::open(&path, keep).unwrap().rotated(rotation, keep).unwrap();
        steps(31);
        (32..36).for_each(|step| lines.add(&json!({"step": step})).unwrap());
        steps(35);
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

    #[test]
    fn bytes_that_are_no_text_and_half_lines_in_the_middle_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, b"{\"step\":1}\n{\"st{\"step\":2}\n{\"step\":3}\n\xff\xfe\x00").unwrap();
        drop(JsonLines::open(&path, |_| true).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":3}\n");
    }

    /// `/dev/full` refuses every write as a full disk does.
    #[cfg(target_os = "linux")]
    #[test]
    fn lines_that_cannot_be_written_wait_are_told_once_and_come_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut lines = JsonLines::open(&path, |_| true).unwrap();
        lines.add(&json!({"step": 1})).unwrap();
        let whole = std::mem::replace(&mut lines.file, File::options().append(true).open("/dev/full").unwrap());
        assert!(lines.add(&json!({"step": 2})).unwrap_err().to_string().contains("metrics.jsonl"));
        lines.add(&json!({"step": 3})).unwrap();
        assert!(lines.finish().unwrap_err().to_string().contains("2 lines could not be written"));
        (lines.file, lines.torn) = (whole, false);
        lines.add(&json!({"step": 4})).unwrap();
        lines.finish().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");

        // A half line that could not be cut off is ended before the next one begins.
        fs::write(&path, "{\"step\":1}\n{\"ste").unwrap();
        lines.torn = true;
        lines.add(&json!({"step": 5})).unwrap();
        drop(JsonLines::open(&path, |_| true).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":5}\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_waits_is_bounded_and_what_was_given_up_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = JsonLines::open(&dir.path().join("a.jsonl"), |_| true).unwrap();
        lines.file = File::options().append(true).open("/dev/full").unwrap();
        let long = "x".repeat(MOST_PENDING / 4);
        let errors = (0..8).filter(|step| lines.add(&json!([step, long])).is_err()).count();
        assert_eq!(errors, 1, "told once");
        assert!(lines.pending.len() <= MOST_PENDING && lines.pending.starts_with(b"["));
        assert!(lines.finish().unwrap_err().to_string().contains("8 lines"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_removed_is_made_again_and_one_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut lines = JsonLines::open(&path, |_| true).unwrap();
        fs::remove_file(&path).unwrap();
        lines.add(&json!(1)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert!(lines.add(&json!(2)).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn a_run_folder_is_ours_new_or_free_of_what_a_run_writes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let with = |folder: &str, file: &str, text: &str| {
            let path = at(folder).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            at(folder)
        };
        fs::create_dir_all(at("empty/checkpoints")).unwrap();
        for fine in [
            at("none"),
            at("empty"),
            with("notes", "notes.txt", "mine"),
            with("run", "resolved.toml", "# anemone 0.1.0: …\n"),
            with("locked", "checkpoints/.lock", ""),
            with("copied", "checkpoints/step-0000000007/checkpoint.json", "{}"),
        ] {
            with("run", "metrics.jsonl", "{}");
            check_run_folder(&fine).unwrap_or_else(|e| panic!("{}: {e}", fine.display()));
        }
        for foreign in [
            PathBuf::from("/"),
            PathBuf::from("/usr/.."),
            with("a", "metrics.jsonl", "theirs"),
            with("b", "resolved.toml", "[source]\n"),
            with("c", "quarantine.jsonl", "theirs"),
            with("d", "checkpoints/epoch=3.ckpt", "theirs"),
            with("e", "file", "").join("file"),
        ] {
            let error = check_run_folder(&foreign).unwrap_err();
            assert!(error.kind() == crate::error::ErrorKind::Option && error.to_string().contains("--out"), "{error}");
        }
    }
}
