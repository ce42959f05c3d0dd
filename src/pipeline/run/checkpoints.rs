//! When a run leaves a checkpoint, and how: copied at once, written in the background.

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use metrics::{counter, gauge};
use tokio::task::JoinHandle;

use super::Run;
use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::learner::Hold;
use crate::pipeline::observer::Event;
use crate::pipeline::run_files::RunFiles;
use crate::source::Source;
use crate::telemetry;

/// A checkpoint on its way to the disk.
pub(super) struct Writing {
    /// Where it is, and why older ones could not be removed, if they could not.
    pub task: JoinHandle<Result<(PathBuf, Option<Error>)>>,
    pub begun: Instant,
}

/// The last checkpoint of this stretch.
pub(super) struct Checkpointed {
    pub at: Instant,
    pub step: u64,
    pub rows: u64,
    pub cursor: Option<Cursor>,
    pub path: Option<PathBuf>,
}

impl Run<'_> {
    pub(super) async fn checkpoint_if_due(&mut self) -> Result<()> {
        if self.writing.as_ref().is_some_and(|writing| writing.task.is_finished()) {
            self.finish_writing_or_warn().await;
        }
        let spec = &self.spec.checkpoint;
        let (progress, last) = (self.learner.progress(), &self.checkpointed);
        let step = progress.batches;
        let by_rows = spec.every_rows.is_some_and(|every| last.rows / every < progress.rows / every);
        let by_batches = spec.every_batches.is_some_and(|every| step.is_multiple_of(every) && step != last.step);
        let is_new = last.cursor.as_ref() != Some(&progress.cursor);
        let by_seconds = is_new && spec.every_seconds.is_some_and(|every| last.at.elapsed().as_secs_f64() >= every);
        let by_drift = step != last.step && self.record.drift.wants_checkpoint(step);
        if by_batches || by_rows || by_seconds || by_drift {
            return self.checkpoint().await;
        }
        Ok(())
    }

    /// Copies everything and writes it in the background. A checkpoint that fails is a warning: the next may succeed,
    /// and until then the last good one stays. Only a folder that another process took ends the run: it will not come
    /// back.
    pub(super) async fn checkpoint(&mut self) -> Result<()> {
        self.finish_writing_or_warn().await;
        let Some(files) = &self.files else { return Ok(()) };
        let (folder, identity) = (files.folder.clone(), files.identity.clone());
        match folder.hold() {
            Ok(Hold::Taken) => return Err(folder.taken()),
            Ok(Hold::Renewed) => {
                let place = folder.dir().display();
                let what = match folder.list().is_ok_and(|there| !there.is_empty()) {
                    true => "the lock file was removed; it is made again",
                    false => "the folder was removed or renamed; it is made again, older checkpoints are not here",
                };
                self.warn(format!("{place}: {what}"));
                if let Some(Err(error)) = self.files.as_mut().map(RunFiles::renew) {
                    self.warn(error.to_string());
                }
            }
            Ok(Hold::Held) | Err(_) => {} // whoever writes looks again, and tells
        }
        let snapshot = self.learner.snapshot().await?;
        self.record.seconds = self.seconds();
        (self.checkpointed.at, self.checkpointed.step) = (Instant::now(), snapshot.progress.batches);
        self.checkpointed.rows = snapshot.progress.rows;
        self.checkpointed.cursor = Some(snapshot.progress.cursor.clone());
        let extra = self.record.write();
        let keep = self.spec.checkpoint.keep;
        let best = self.record.best.map(|best| best.step).filter(|_| self.spec.checkpoint.keep_best);
        let kept: Vec<u64> = best.into_iter().chain(self.record.drift.kept.iter().copied()).collect();
        let task = tokio::task::spawn_blocking(move || {
            let path = folder.write(&snapshot, &identity, &extra)?;
            let unpruned = folder.prune(snapshot.progress.batches, keep, &kept).err();
            Ok((path, unpruned))
        });
        self.writing = Some(Writing { task, begun: Instant::now() });
        Ok(())
    }

    /// The last checkpoint of a run: here a failure is one.
    pub(super) async fn checkpoint_and_wait(&mut self) -> Result<()> {
        self.finish_writing_or_warn().await;
        let is_written = self.checkpointed.path.is_some()
            && self.checkpointed.cursor.as_ref() == Some(&self.learner.progress().cursor);
        if is_written {
            return Ok(());
        }
        self.checkpoint().await?;
        self.finish_writing().await
    }

    async fn finish_writing_or_warn(&mut self) {
        if let Err(error) = self.finish_writing().await {
            self.checkpointed.path = None;
            counter!(telemetry::CHECKPOINT_FAILURES).increment(1);
            self.warn(format!("a checkpoint could not be written, the last good one stays: {error}"));
        }
    }

    async fn finish_writing(&mut self) -> Result<()> {
        let Some(Writing { task, begun }) = self.writing.take() else { return Ok(()) };
        let written = task.await.unwrap_or_else(|e| Err(Error::internal(format!("writing a checkpoint: {e}"))));
        let (path, unpruned) = written?;
        if let Some(error) = unpruned {
            self.warn(format!("an older checkpoint could not be removed: {error}"));
        }
        gauge!(telemetry::CHECKPOINT_SECONDS).set(begun.elapsed().as_secs_f64());
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            gauge!(telemetry::CHECKPOINT_TIME).set(now.as_secs_f64());
        }
        self.checkpointed.path = Some(path.clone());
        if let (Source::Live(source), Some(cursor)) = (&self.inputs.source, &self.checkpointed.cursor) {
            let positions = std::iter::once(cursor).chain(&cursor.shards).filter_map(|place| place.position.as_ref());
            positions.for_each(|position| source.kept(position));
        }
        self.observer.event(&Event::Checkpointed { path });
        Ok(())
    }
}
