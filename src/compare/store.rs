//! Where the runs of a comparison live, and what each leaves behind.
//!
//! A folder is named after everything that decides what is learned in it. Change a contender and it runs again beside
//! what was there; leave it as it is and its result is taken as found. `result.json` is there once a run is over, whole
//! or not at all; `curve.jsonl` grows with every look at held-out rows.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::findings::{Point, Run};
use crate::backend::Device;
use crate::backend::PlaceSpec;
use crate::data::Digest;
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::pipeline::observer::{Event, Observer};
use crate::pipeline::prepare::{HeldOut, Inputs};
use crate::pipeline::run::CHECKPOINTS;
use crate::pipeline::run_files::JsonLines;
use crate::pipeline::spec::PipelineSpec;

/// The folder of one run.
#[derive(Clone, Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
}

/// A run that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RunResult {
    pub run: Run,
    pub valid_rows: u64,
    /// Numbers that were learned.
    #[serde(default)]
    pub parameters: u64,
}

impl RunResult {
    /// Returns true if held-out rows were looked at after so many epochs.
    pub fn is_looked_at_after(&self, epochs: u64) -> bool {
        self.run.points.last().is_some_and(|point| point.epoch >= epochs as f64)
    }
}

impl RunFolder {
    /// The folder of what `spec` learns from these rows on this machine, under a name that people recognise.
    pub fn new(parent: &Path, name: &str, spec: &PipelineSpec, inputs: &Inputs, place: &PlaceSpec) -> Result<Self> {
        let digest_of = |rows: &Option<HeldOut>| rows.as_ref().map(|rows| rows.source.manifest().digest.clone());
        let digest = Digest::new()
            .part(spec.to_toml()?)
            .part(json!(inputs.identity()?).to_string())
            .part(json!([digest_of(&inputs.valid), digest_of(&inputs.test)]).to_string())
            .part(format!("{:?} {:?} {:?}", place.precision, place.isa, place.memory_budget));
        let digest = match place.device {
            Device::Cpu => digest,
            other => digest.part(other.to_string()),
        };
        let digest = digest.finish();
        Ok(Self { path: parent.join(format!("{name}-{}", &digest[..8])) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What came of the run, if it is over.
    pub fn result(&self) -> Result<Option<RunResult>> {
        let path = self.path.join("result.json");
        let place = path.display().to_string();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io_at(&place, &e)),
        };
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|e| Error::format(format!("{place}: cannot be read: {e}; remove it to run this anew")))
    }

    /// Says that the run is over.
    pub fn finish(&self, result: &RunResult) -> Result<()> {
        let text =
            serde_json::to_string(result).map_err(|e| Error::internal(format!("a result cannot be written: {e}")))?;
        write_whole(&self.path.join("result.json"), &text)
    }

    /// Removes what a run that is over needs no longer, if its model is not needed.
    pub fn remove_checkpoints(&self) -> Result<()> {
        let path = self.path.join(CHECKPOINTS);
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io_at(&path, &e)),
            _ => Ok(()),
        }
    }
}

/// A line of `curve.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CurveLine {
    step: u64,
    point: Point,
    best: bool,
    test: Option<f64>,
    valid_rows: u64,
}

/// Watches a run, keeps its curve, and passes everything on.
pub(super) struct Recorder<'a> {
    folder: PathBuf,
    next: &'a mut dyn Observer,
    lines: Option<JsonLines>,
    /// Known once learning has begun.
    parameters: Option<u64>,
    /// Nothing can be written any more.
    failed: Option<Error>,
}

impl<'a> Recorder<'a> {
    pub fn new(folder: &RunFolder, next: &'a mut dyn Observer) -> Self {
        Self { folder: folder.path.clone(), next, lines: None, parameters: None, failed: None }
    }

    /// The curve of the run, from its `start` on, over all resumptions.
    pub fn finish(mut self, seed: u64, start: Point) -> Result<RunResult> {
        let (path, parameters) = (self.path(), self.parameters.unwrap_or(0));
        if let Some(lines) = &mut self.lines {
            lines.finish()?; // a curve with holes would be taken for a result
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        let text = fs::read_to_string(&path).or_else(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Ok(String::new()), // it failed before the first look
            _ => Err(Error::io_at(&path, &e)),
        })?;
        let mut lines: Vec<CurveLine> = Vec::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<CurveLine>(line).ok()) {
            // A run that was killed between a look and its checkpoint looks again.
            lines.retain(|earlier| (earlier.step, earlier.point.epoch) < (line.step, line.point.epoch));
            lines.push(line);
        }
        let test = lines.iter().rev().find(|line| line.best).and_then(|line| line.test);
        let valid_rows = lines.last().map_or(0, |line| line.valid_rows);
        let points: Vec<Point> = std::iter::once(start).chain(lines.iter().map(|line| line.point)).collect();
        let seconds = points.last().map_or(0.0, |point| point.seconds);
        Ok(RunResult { run: Run { seed, points, seconds, test, ..Run::default() }, valid_rows, parameters })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("curve.jsonl")
    }

    fn record(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Started(started) => {
                self.parameters = Some(started.parameters);
                let step = started.step;
                let keep = |line: &serde_json::Value| line["step"].as_u64().is_some_and(|at| at <= step);
                self.lines = Some(JsonLines::open(&self.path(), keep)?);
            }
            Event::Validated(found) => {
                let line = CurveLine {
                    step: found.step,
                    point: Point {
                        epoch: found.epoch as f64,
                        seconds: found.learned_seconds,
                        valid: found.log_likelihood.filter(|_| found.impossible_rows == 0),
                        train: found.train_ll,
                    },
                    best: found.best,
                    test: found.test_ll,
                    valid_rows: found.rows,
                };
                if let Some(lines) = &mut self.lines
                    && let Err(error) = lines.add(&line)
                {
                    // It is tried again with the next one, and at the end.
                    self.next.event(&Event::Warning(error.to_string()));
                }
            }
            Event::Step(_)
            | Event::EpochEnd(_)
            | Event::Structure { .. }
            | Event::Checkpointed { .. }
            | Event::Drift(_)
            | Event::Warning(_)
            | Event::Note(_)
            | Event::Finished(_) => {}
        }
        Ok(())
    }
}

impl Observer for Recorder<'_> {
    fn event(&mut self, event: &Event) {
        if self.failed.is_none() {
            self.failed = self.record(event).err();
        }
        self.next.event(event);
    }
}
