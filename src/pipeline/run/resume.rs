//! A run that goes on: from which checkpoint, whether it may, and with what of it.

use std::path::{Path, PathBuf};

use super::record::RunRecord;
use super::{RESOLVED, TrainOptions};
use crate::error::{Error, Result};
use crate::learner::{Checkpoint, CheckpointFolder, Identity};
use crate::pipeline::observer::{Event, Observer};
use crate::pipeline::prepare::Inputs;
use crate::pipeline::spec::{PipelineSpec, SourceSpec};

/// A checkpoint and where it is.
pub(super) type Found = (PathBuf, Checkpoint);

/// The checkpoint to go on from, if any; damaged ones are left with a warning.
pub(super) fn find_checkpoint(
    folder: &CheckpointFolder,
    options: &TrainOptions,
    observer: &mut dyn Observer,
) -> Result<Option<Found>> {
    if !options.resume && !folder.list()?.is_empty() {
        return Err(Error::state(format!(
            "{}: there are checkpoints of an earlier run here; go on with --resume, or choose another folder \
             with --out",
            options.out.display()
        )));
    }
    let latest = folder.latest()?;
    if latest.found.is_none()
        && let Some((path, reason)) = latest.damaged.first()
    {
        return Err(reason.clone().at(format!("{}: no checkpoint is whole", path.display())));
    }
    for (path, reason) in latest.damaged {
        observer.event(&Event::Warning(format!("{}: not used: {reason}", path.display())));
    }
    Ok(latest.found)
}

/// The pipeline with what the first rows of a live stream decided when the run began, where it is silent: they may be
/// gone, and so may the first file of a watched folder.
pub(super) fn as_decided(spec: &PipelineSpec, resumed: Option<&Found>) -> PipelineSpec {
    let record = resumed.and_then(|(_, checkpoint)| RunRecord::read(&checkpoint.meta.extra).ok());
    let saved = record.and_then(|record| PipelineSpec::parse(&record.pipeline, RESOLVED).ok());
    let is_same = |saved: &PipelineSpec| {
        let topic = |source: &SourceSpec| source.kafka.as_ref().map(|kafka| kafka.topic.clone());
        let (now, then) = (&spec.source, &saved.source);
        now.is_live() && now.files == then.files && topic(now) == topic(then)
    };
    saved.filter(is_same).map_or_else(|| spec.clone(), |saved| as_understood(spec, &saved))
}

/// The pipeline with what was understood of its live source by whoever wrote `saved`, where it is silent.
pub(super) fn as_understood(spec: &PipelineSpec, saved: &PipelineSpec) -> PipelineSpec {
    let mut spec = spec.clone();
    // The rows in which the columns of a table were understood do not come again.
    if spec.decode.kind.is_none_or(|kind| saved.decode.kind == Some(kind))
        && spec.decode.schema.is_none()
        && saved.decode.schema.is_some()
        && spec.columns == saved.columns
    {
        (spec.decode.kind, spec.decode.schema) = (saved.decode.kind, saved.decode.schema.clone());
        if spec.source.column.is_none() && spec.source.columns.is_empty() {
            (spec.source.column, spec.source.columns) = (saved.source.column.clone(), saved.source.columns.clone());
        }
    }
    if spec.source.watch {
        if spec.decode.kind.is_none_or(|kind| saved.decode.kind == Some(kind)) {
            spec.decode.kind = saved.decode.kind;
            spec.decode.cats = spec.decode.cats.or(saved.decode.cats);
            spec.decode.color = spec.decode.color.or(saved.decode.color);
        }
        if spec.source.column.is_none() && spec.source.columns.is_empty() {
            (spec.source.column, spec.source.columns) = (saved.source.column.clone(), saved.source.columns.clone());
        }
    }
    spec
}

/// Refuses a checkpoint of another run, unless told to `force` it, and makes of both what goes on: the record is the
/// checkpoint's, and so is the circuit, also where the pipeline says another; another optimizer starts afresh.
pub(super) fn take_over(
    (path, checkpoint): &mut Found,
    inputs: &mut Inputs,
    identity: &mut Identity,
    force: bool,
    observer: &mut dyn Observer,
) -> Result<RunRecord> {
    check_identity(identity, checkpoint, path, force, observer)?;
    let mut record = read_record(checkpoint, path, force, observer)?;
    if record.held_out != inputs.held_out_digest() {
        // What was best on other rows says nothing about these.
        (record.best, record.valid_ll, record.validated) = (None, None, None);
        record.valid_impossible_rows = None;
    }
    // Where only the way to digest it is another, the digest is this version's from now on. What is the same by its
    // digest stays as it was given: defaults may be others than those that the checkpoint's text relied on.
    if identity.circuit_spec != checkpoint.meta.identity.circuit_spec {
        let saved = PipelineSpec::parse(&record.pipeline, RESOLVED).map(|saved| saved.circuit);
        if saved.as_ref() != Ok(&inputs.spec.circuit) {
            identity.circuit_spec.clone_from(&checkpoint.meta.identity.circuit_spec);
        }
        if let Ok(saved) = saved {
            inputs.spec.circuit = saved; // what goes on, which is what is written down
        }
    }
    if checkpoint.optimizer.as_ref().is_some_and(|state| state.optimizer != inputs.spec.learn.optimizer.name()) {
        *checkpoint = checkpoint.clone().without_optimizer();
    }
    Ok(record)
}

fn check_identity(
    identity: &Identity,
    checkpoint: &Checkpoint,
    path: &Path,
    force: bool,
    observer: &mut dyn Observer,
) -> Result<()> {
    let saved = &checkpoint.meta.identity;
    match identity.differences(saved) {
        Some(differences) if force => {
            observer.event(&Event::Warning(format!(
                "{}: going on as told, with the checkpoint's circuit, though the checkpoint is of another run, which \
                 differs in {differences}",
                path.display()
            )));
            Ok(())
        }
        _ => identity.check(saved).map_err(|e| e.at(path.display())),
    }
}

/// What the run kept in a checkpoint. One that cannot be read is left with a warning by those who were told to go on.
fn read_record(checkpoint: &Checkpoint, path: &Path, force: bool, observer: &mut dyn Observer) -> Result<RunRecord> {
    match RunRecord::read(&checkpoint.meta.extra).map_err(|e| e.at(path.display())) {
        Ok(record) => Ok(record),
        Err(error) if force => {
            observer.event(&Event::Warning(format!("{error}; going on as told, without that record")));
            Ok(RunRecord::default())
        }
        Err(error) => Err(Error::state(format!(
            "{error}: go on with the version that wrote it, remove this checkpoint to go on from the one before it, or \
             go on nevertheless with --force-resume"
        ))),
    }
}
