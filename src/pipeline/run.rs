//! The training loop: batches from a stream into a learner, with validation, checkpoints and lines for whoever watches.
//!
//! What happens after a batch depends on its number alone (validation, checkpoints by batches) or changes nothing that
//! is learned (checkpoints by seconds), so a run that was killed and resumed ends with the same parameters as one that
//! was not. Validation comes before a checkpoint of the same step, and the checkpoint remembers its result.
//!
//! [`rehearse`] is the same loop without a run folder, for measuring.

mod checkpoints;
mod few_updates;
mod memory;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};

use self::checkpoints::{Checkpointed, Writing};
use self::few_updates::few_updates;
use self::memory::{Best, Memory};
use super::evaluate::{Evaluation, evaluate};
use super::observer::{EpochEnd, Event, Finished, Observer, Phases, Start, Started, StepLine, Validated, bits_per_dim};
use super::prepare::{Built, HeldOut, Inputs, Machine, Placed};
pub use super::run_files::{CHECKPOINTS, RESOLVED};
use super::run_files::{RunFiles, check_run_folder};
use super::spec::{Format, PipelineSpec};
use super::stop::Stop;
use super::stream::Stream;
use super::waits::StageWaits;
use crate::backend::{PhaseSeconds, TrainingPrecision};
use crate::circuit::Circuit;
use crate::data::{Batch, Cursor, Item};
use crate::decode::BadRecord;
use crate::error::{Error, ErrorKind, Result};
use crate::learner::{Checkpoint, CheckpointFolder, Identity, Learner};
use crate::optim::{OptimizerSpec, Pace, StepReport};
use crate::source::Source;
use crate::telemetry;

/// How this run behaves; what is learned is the pipeline's business.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// What the run is called.
    pub name: String,
    /// The run folder.
    pub out: PathBuf,
    /// Go on from the latest checkpoint there, if there is one.
    pub resume: bool,
    /// Go on even if data, decoder, circuit, optimizer or batches are not the checkpoint's.
    pub force_resume: bool,
    /// The device and what it may use.
    pub machine: Machine,
    /// Held-out rows that cannot be read end the run, instead of being a warning: a curve with holes is no result.
    pub every_look: bool,
}

/// Lines of `metrics.jsonl` are at least this far apart, except for those that carry a validation.
const LINE_INTERVAL: Duration = Duration::from_millis(500);

/// Learns what the pipeline says, until its end, a limit or a request to stop; leaves a checkpoint in any of these
/// cases.
pub async fn train(
    spec: &PipelineSpec,
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    check_end(spec, observer)?;
    let folder = open_folder(options)?;
    let resumed = find_checkpoint(&folder, options, observer)?;
    match unless_stopped(stop, Inputs::open(spec)).await? {
        Some(inputs) => train_from(spec, &inputs, None, (folder, resumed), options, stop, observer).await,
        None => Ok(stopped_before_it_began(observer)),
    }
}

/// Learns as [`train`] does, with inputs that are open and a circuit that is built: for several runs on one stream from
/// one start. A run that goes on has the circuit of its checkpoint.
pub async fn train_on(
    spec: &PipelineSpec,
    inputs: &Inputs,
    circuit: Arc<Circuit>,
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    check_end(spec, observer)?;
    let folder = open_folder(options)?;
    let resumed = find_checkpoint(&folder, options, observer)?;
    train_from(spec, inputs, Some(circuit), (folder, resumed), options, stop, observer).await
}

/// A checkpoint and where it is.
type Found = Option<(PathBuf, Checkpoint)>;

async fn train_from(
    spec: &PipelineSpec,
    inputs: &Inputs,
    circuit: Option<Arc<Circuit>>,
    (folder, mut resumed): (CheckpointFolder, Found),
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    inputs.optimizer(spec)?; // refused before a structure is learned
    let mut identity = inputs.identity(spec)?;
    // What goes on, which is what is written down: the decoder that was opened, and after a resume the checkpoint's
    // circuit.
    let mut spec = inputs.resolved(spec);
    let mut machine = options.machine.clone();
    let mut memory: Memory = Memory::default();
    if let Some((path, checkpoint)) = &mut resumed {
        check_identity(&identity, checkpoint, path, options.force_resume, observer)?;
        memory = Memory::read(checkpoint);
        let held_out = inputs.valid.as_ref().map(|valid| valid.source.manifest().digest.clone());
        if memory.held_out != held_out {
            // What was best on other rows says nothing about these.
            (memory.best, memory.valid_ll, memory.validated) = (None, None, None);
            memory.valid_impossible_rows = None;
        }
        machine = machine.or(&memory.machine());
        // Told to go on with something else: the circuit stays the checkpoint's, another optimizer starts afresh.
        // Where only the way to digest it is another, the digest is this version's from now on. What is the same by its
        // digest stays as it was given: defaults may be others than those that the checkpoint's text relied on.
        if identity.circuit != checkpoint.meta.identity.circuit {
            let saved = PipelineSpec::parse(&memory.pipeline, RESOLVED).map(|saved| saved.circuit);
            if saved.as_ref() != Ok(&spec.circuit) {
                identity.circuit.clone_from(&checkpoint.meta.identity.circuit);
            }
            spec.circuit = saved.unwrap_or(spec.circuit);
        }
        if checkpoint.optimizer.as_ref().is_some_and(|state| state.optimizer != spec.learn.optimizer.name()) {
            *checkpoint = checkpoint.clone().without_optimizer();
        }
    }
    let circuit = match (&resumed, circuit) {
        (Some((_, checkpoint)), _) => checkpoint.circuit.clone(),
        (None, Some(circuit)) => circuit,
        (None, None) => {
            let mut seen = |share| observer.event(&Event::Structure { share });
            match unless_stopped(stop, inputs.build_circuit(&spec, &mut seen)).await? {
                Some(circuit) => Arc::new(circuit),
                None => return Ok(stopped_before_it_began(observer)),
            }
        }
    };
    let start = resumed.as_ref().map(|(_, checkpoint)| &checkpoint.params);
    let built = unless_stopped(stop, inputs.build_learner(&spec, &circuit, &machine, start)).await?;
    let Some(Built { placed, optimizer, start }) = built else { return Ok(stopped_before_it_began(observer)) };
    let place = Place::of(&placed);
    let learner = Learner::spawn(placed.backend, optimizer, resumed.as_ref().map(|(_, checkpoint)| checkpoint))?;
    memory.memory_budget = if place.is_gpu() { machine.memory_budget } else { Some(machine.memory_budget()) };
    memory.isa = Some(machine.isa.unwrap_or_default());
    memory.precision = Some(place.precision);
    memory.device = Some(place.device.clone());
    memory.held_out = inputs.valid.as_ref().map(|valid| valid.source.manifest().digest.clone());
    memory.pipeline = spec.to_toml()?;
    let (on_bad, progress) = (spec.pipeline.on_bad, learner.progress());
    let mut files = RunFiles::open(&options.out, folder, identity, on_bad, &progress, &memory.pipeline)?;
    if let Err(error) = files.write_resolved() {
        warn_unwritten(observer, &error);
    }
    let resumed_from = resumed.map(|(path, _)| path); // its parameters are the learner's now
    let run = Run::new(&spec, inputs, learner, place, memory, stop, observer)?;
    Run { files: Some(files), every_look: options.every_look, start, ..run }
        .until_the_end(&options.name, resumed_from)
        .await
}

/// Learns as [`train`] does, with inputs that are open and a circuit that is built, and leaves nothing behind: no run
/// folder, no checkpoint, no lines. For measuring, where several optimizers start from one circuit on one stream.
pub async fn rehearse(
    spec: &PipelineSpec,
    inputs: &Inputs,
    circuit: Arc<Circuit>,
    machine: &Machine,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    let Built { placed, optimizer, start } = inputs.build_learner(spec, &circuit, machine, None).await?;
    let place = Place::of(&placed);
    let learner = Learner::spawn(placed.backend, optimizer, None)?;
    let name = spec.name.as_deref().unwrap_or(spec.circuit.model.name());
    let run = Run::new(spec, inputs, learner, place, Memory::default(), stop, observer)?;
    Run { start, ..run }.until_the_end(name, None).await
}

/// Refuses full-batch EM on a source that may never end, because it moves the parameters at the end of an epoch and
/// would gather for ever, and epochs in a schedule there; says that a live stream passes once. Known from the pipeline
/// alone: opening standard input may wait for hours.
pub(crate) fn check_end(spec: &PipelineSpec, observer: &mut dyn Observer) -> Result<()> {
    let is_live = spec.source.format == Some(Format::Arrow);
    let is_endless = spec.source.synthetic.as_ref().is_some_and(|synthetic| synthetic.rows.is_none());
    if (is_live || is_endless) && matches!(spec.learn.optimizer, OptimizerSpec::FullBatchEm(_)) {
        return Err(Error::option(
            "learn.optimizer = \"full_batch_em\": updates at the end of an epoch, and this source has none that is \
             known: use anemone, mini_batch_em or stepwise_em, read rows from files, or give synthetic data a number \
             of rows",
        ));
    }
    if is_live || is_endless {
        let batches_per_update = spec.learn.optimizer.batches_per_update().unwrap_or(1);
        let pace = Pace::new(None, spec.batch.rows as u64, spec.batch.drop_last, batches_per_update);
        spec.learn.optimizer.clone().resolved(&pace).map_err(|e| e.at("learn"))?;
    }
    if let (true, Some(epochs @ 2..)) = (is_live, spec.learn.epochs) {
        observer.event(&Event::Warning(format!(
            "learn.epochs = {epochs}: a live stream passes once, so the run ends when the stream does"
        )));
    }
    Ok(())
}

/// Tells that something of a run folder could not be written, and that the run goes on.
fn warn_unwritten(observer: &mut dyn Observer, error: &Error) {
    counter!(telemetry::WRITE_FAILURES).increment(1);
    observer.event(&Event::Warning(format!("{error}; the run goes on, it is tried again later")));
}

/// What the future gives, unless somebody asks for a stop first.
async fn unless_stopped<T>(stop: &Stop, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::select! {
        biased;
        () = stop.requested() => Ok(None),
        done = work => done.map(Some),
    }
}

fn stopped_before_it_began(observer: &mut dyn Observer) -> Finished {
    let finished = Finished { reason: "stopped by a signal before the first batch".into(), ..Finished::default() };
    observer.event(&Event::Finished(finished.clone()));
    finished
}

/// The folder of checkpoints, locked; a run folder that is somebody else's is refused first.
fn open_folder(options: &TrainOptions) -> Result<CheckpointFolder> {
    check_run_folder(&options.out)?;
    CheckpointFolder::open(&options.out.join(CHECKPOINTS))
}

/// The checkpoint to go on from, if any; damaged ones are left with a warning.
fn find_checkpoint(folder: &CheckpointFolder, options: &TrainOptions, observer: &mut dyn Observer) -> Result<Found> {
    if !options.resume && !folder.list()?.is_empty() {
        return Err(Error::state(format!(
            "{}: there are checkpoints of an earlier run here; go on with --resume, or choose another folder with \
             --out",
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

/// Where a run learns, and how.
#[derive(Clone, Debug)]
struct Place {
    device: String,
    why: Option<String>,
    precision: TrainingPrecision,
}

impl Place {
    fn of(placed: &Placed) -> Self {
        Self { device: placed.device.clone(), why: placed.why.clone(), precision: placed.precision }
    }

    fn is_gpu(&self) -> bool {
        self.device.starts_with("cuda")
    }
}

/// A run between its first and its last batch.
struct Run<'a> {
    spec: &'a PipelineSpec,
    inputs: &'a Inputs,
    learner: Learner,
    place: Place,
    /// What parameters started from, if they did not go on.
    start: Option<Start>,
    stream: Stream,
    observer: &'a mut dyn Observer,
    /// `None` leaves nothing behind.
    files: Option<RunFiles>,
    /// Held-out rows that cannot be read end the run.
    every_look: bool,
    lines: Lines,
    memory: Memory,
    /// Seconds of earlier stretches of this run.
    seconds_before: f64,
    begun: Instant,
    checkpointed: Checkpointed,
    /// A checkpoint on its way to the disk, while learning goes on.
    writing: Option<Writing>,
    /// The device's time that went into validation: no part of learning.
    validating: PhaseSeconds,
    stop: Stop,
    /// The latest line, for the end.
    line: StepLine,
}

/// What the lines of `metrics.jsonl` need to remember.
struct Lines {
    written: Option<Instant>,
    rows: u64,
    waits: StageWaits,
    rate: Rate,
}

/// Rows a second over the latest stretch of at least one line interval.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    rows_per_second: f64,
    bound: &'static str,
}

impl<'a> Run<'a> {
    /// A run from where the learner is, without files.
    fn new(
        spec: &'a PipelineSpec,
        inputs: &'a Inputs,
        learner: Learner,
        place: Place,
        memory: Memory,
        stop: &Stop,
        observer: &'a mut dyn Observer,
    ) -> Result<Self> {
        let progress = learner.progress();
        let now = Instant::now();
        Ok(Self {
            spec,
            inputs,
            stream: inputs.stream(spec.learn.epochs, progress.cursor.clone())?,
            learner,
            place,
            start: None,
            observer,
            files: None,
            every_look: false,
            lines: Lines { written: None, rows: progress.rows, waits: StageWaits::default(), rate: Rate::default() },
            seconds_before: memory.seconds,
            memory,
            begun: now,
            checkpointed: Checkpointed { at: now, step: progress.step, cursor: None, path: None },
            writing: None,
            validating: PhaseSeconds::default(),
            stop: stop.clone(),
            line: StepLine {
                step: progress.step,
                updates: progress.updates,
                epoch: progress.epoch,
                rows: progress.rows,
                log_likelihood: progress.last,
                prequential_ll: progress.prequential.mean(),
                step_size: progress.last_step_size,
                impossible_rows: progress.impossible_rows,
                bad_records: progress.cursor.bad_records,
                ..StepLine::default()
            },
        })
    }

    fn started(&self, name: &str, resumed_from: Option<PathBuf>) -> Started {
        let circuit = self.learner.circuit();
        Started {
            name: name.to_string(),
            out: self.files.as_ref().map(|files| files.out.clone()),
            resumed_from,
            step: self.line.step,
            source: self.inputs.describe_source(),
            columns: self.inputs.reading.clone(),
            rows: self.inputs.num_rows(),
            shape: Some(self.inputs.decoder.shape().clone()),
            input: self.inputs.describe_input(self.spec).to_string(),
            num_vars: circuit.num_vars(),
            circuit: self.spec.circuit.model.name().to_string(),
            parameters: circuit.layout().num_values() as u64,
            start: self.start,
            optimizer: self.spec.learn.optimizer.name().to_string(),
            first_step: self.first_step(),
            is_averaged: self.spec.learn.optimizer.average().is_on(),
            device: self.place.device.clone(),
            device_note: self.place.why.clone(),
            precision: self.place.precision,
            epochs: self.spec.learn.epochs,
            batches: self.spec.learn.batches,
        }
    }

    /// The step of an update from a whole batch, before any other.
    fn first_step(&self) -> Option<f64> {
        let optimizer = self.inputs.optimizer(self.spec).ok()?;
        let rows = self.inputs.pace(&optimizer).rows_per_update();
        let (_, schedule) = optimizer.schedule()?;
        Some(schedule.at(0, rows * self.learner.circuit().counts_per_row()))
    }

    async fn until_the_end(mut self, name: &str, resumed_from: Option<PathBuf>) -> Result<Finished> {
        self.observer.event(&Event::Started(self.started(name, resumed_from)));
        self.inputs.take_notes().into_iter().for_each(|note| self.warn(note));
        if let Some(rows) = self.inputs.num_rows() {
            self.hint_at_few_updates(rows);
        }
        let mut ended = self.learn().await;
        if ended.as_ref().is_ok_and(|reason| *reason != Reason::Signal)
            && self.spec.validate.is_some()
            && let Err(error) = self.validate().await
        {
            ended = Err(error);
        }
        self.note_bad_records();
        if let Err(error) = &ended {
            // Bad data or a lost disk: what was learned so far is worth keeping. The error is what the user must see.
            match self.checkpoint_and_wait().await {
                Err(also) if also != *error => {
                    self.warn(format!("the last checkpoint could not be written either: {also}"));
                }
                _ => {}
            }
        }
        let saved = match &ended {
            Ok(_) => self.checkpoint_and_wait().await,
            Err(_) => Ok(()),
        };
        // Lines that are missing are a warning to the end: what was learned is in the checkpoint.
        for error in self.files.as_mut().map_or_else(Vec::new, RunFiles::finish) {
            self.warn(error.to_string());
        }
        let reason = ended?;
        saved?;
        let progress = self.learner.progress();
        if progress.step > 0 && progress.updates == 0 {
            self.warn("the parameters have not moved: full-batch EM updates them at the end of an epoch".into());
        }
        let finished = Finished {
            reason: reason.text(self.spec, &self.inputs.source),
            step: progress.step,
            epoch: progress.epoch,
            rows: progress.rows,
            bad_records: progress.cursor.bad_records,
            seconds: self.seconds(),
            prequential_ll: progress.prequential.mean(),
            valid_ll: self.memory.valid_ll,
            valid_impossible_rows: self.memory.valid_impossible_rows,
            best_valid_ll: self.memory.best.map(|best| best.log_likelihood),
            source_ll: self.inputs.valid.as_ref().and_then(|valid| valid.source_log_likelihood),
            bound: self
                .stream
                .waits()
                .bound(&StageWaits::default(), self.begun.elapsed().as_secs_f64())
                .as_str()
                .into(),
            phases: self.phases().await?,
            checkpoint: self.checkpointed.path.clone(),
        };
        self.observer.event(&Event::Finished(finished.clone()));
        self.learner.close().await?;
        Ok(finished)
    }

    /// Where the time of this stretch went, validation left out.
    async fn phases(&self) -> Result<Phases> {
        let device = self.learner.phase_seconds().await?.since(&self.validating);
        let waits = self.stream.waits();
        Ok(Phases {
            read: waits.cutter.input + waits.cutter.busy,
            decode: waits.decoders.busy,
            wait: waits.learner.input,
            prepare: device.prepare,
            forward: device.forward,
            backward: device.backward,
            flows: device.flows,
            update: device.update,
        })
    }

    /// Tells once that a run will hardly move. Not where runs are compared or timed: somebody has chosen their length.
    fn hint_at_few_updates(&mut self, epoch_rows: u64) {
        if self.files.is_some()
            && !self.every_look
            && let Some(hint) = few_updates(self.spec, epoch_rows)
        {
            self.warn(hint);
        }
    }

    /// Learns until there is a reason to stop.
    async fn learn(&mut self) -> Result<Reason> {
        let Cursor { epoch, window, row, .. } = self.learner.progress().cursor;
        if epoch > 0 && window == 0 && row == 0 {
            self.validate_if_due(epoch).await?; // an earlier stretch may have been stopped just before it
        }
        loop {
            if let Some(reason) = self.limit() {
                return Ok(reason);
            }
            let quiet = self.next_deadline();
            let item = tokio::select! {
                biased;
                () = self.stop.requested() => return Ok(Reason::Signal),
                item = self.stream.next() => item?,
                // A live source may be silent for hours; limits and checkpoints by time do not wait for it.
                () = tokio::time::sleep(quiet) => {
                    self.checkpoint_if_due().await?;
                    continue;
                }
            };
            match item {
                None => return Ok(Reason::End),
                Some(Item::Batch { batch, end }) => self.batch(batch, end).await?,
                Some(Item::EpochEnd { next }) => self.end_epoch(next).await?,
            }
            self.note_bad_records();
            self.checkpoint_if_due().await?;
        }
    }

    fn limit(&self) -> Option<Reason> {
        let learn = &self.spec.learn;
        if learn.batches.is_some_and(|most| self.learner.progress().step >= most) {
            return Some(Reason::Batches);
        }
        learn.seconds.is_some_and(|most| self.seconds() >= most).then_some(Reason::Seconds)
    }

    /// How long to wait for an item before the clock is looked at again.
    fn next_deadline(&self) -> Duration {
        let limit = self.spec.learn.seconds.map(|most| most - self.seconds());
        let checkpoint =
            self.spec.checkpoint.every_seconds.map(|every| every - self.checkpointed.at.elapsed().as_secs_f64());
        let seconds = [limit, checkpoint].into_iter().flatten().fold(3600.0, f64::min);
        Duration::from_secs_f64(seconds.clamp(0.01, 3600.0))
    }

    async fn batch(&mut self, batch: Batch, end: Cursor) -> Result<()> {
        let begun = Instant::now();
        let rows = batch.num_rows() as u64;
        let report = self.learner.learn_to(batch, end).await?;
        self.record(&report, rows, begun.elapsed());
        self.memory.epoch.log_likelihood += report.batch.log_likelihood;
        self.memory.epoch.weight += report.batch.possible_weight;
        self.line = self.step_line(&report);
        let every = self.spec.validate.as_ref().and_then(|validate| validate.every_batches);
        if every.is_some_and(|every| self.line.step.is_multiple_of(every)) {
            self.validate().await?;
        } else if self.lines.written.is_none_or(|at| at.elapsed() >= LINE_INTERVAL) {
            self.write_line(None);
        }
        self.observer.event(&Event::Step(self.line.clone()));
        Ok(())
    }

    async fn end_epoch(&mut self, next: Cursor) -> Result<()> {
        let updated = self.learner.end_epoch(next).await?;
        let progress = self.learner.progress();
        let sums = std::mem::take(&mut self.memory.epoch);
        if updated && self.memory.best.is_some_and(|best| best.step == progress.step) {
            // The parameters moved without a batch: the next checkpoint takes the place of the best one.
            self.memory.best = None;
        }
        self.memory.train_ll = (sums.weight > 0.0).then(|| sums.log_likelihood / sums.weight);
        gauge!(telemetry::EPOCH).set(progress.epoch as f64);
        // Where it was not known before how many rows there are.
        if progress.epoch == 1 && self.inputs.num_rows().is_none() && !matches!(self.inputs.source, Source::Live(_)) {
            self.hint_at_few_updates(progress.rows);
        }
        self.observer.event(&Event::EpochEnd(EpochEnd {
            epoch: progress.epoch,
            step: progress.step,
            rows: progress.rows,
            log_likelihood: self.memory.train_ll,
            updated,
            seconds: self.seconds(),
        }));
        self.validate_if_due(progress.epoch).await
    }

    /// Looks at held-out rows if that is due after so many epochs.
    async fn validate_if_due(&mut self, epochs: u64) -> Result<()> {
        let every = self.spec.validate.as_ref().and_then(|validate| validate.every_epochs);
        match every {
            Some(every) if epochs.is_multiple_of(every) => self.validate().await,
            _ => Ok(()),
        }
    }

    /// Asks for the log-likelihood of held-out rows, on a stream of their own.
    async fn validate(&mut self) -> Result<()> {
        let Some(valid) = &self.inputs.valid else { return Ok(()) };
        let progress = self.learner.progress();
        if self.memory.validated == Some(progress.updates) {
            return Ok(());
        }
        let learned_seconds = self.seconds() - self.memory.validation_seconds;
        let begun = Instant::now();
        let device = self.learner.phase_seconds().await?;
        let found = match self.look_at(valid).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()), // the loop sees the request next
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Path) && !self.every_look => {
                // Reading them is no part of learning: they are looked at again when it is next due.
                self.warn(format!("validate: held-out rows could not be looked at: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.at("validate")),
        };
        let better = |log_likelihood: f64| self.memory.best.is_none_or(|best| log_likelihood > best.log_likelihood);
        let best = found.mean_log_likelihood.filter(|&ll| better(ll));
        let mut test_ll = None;
        if let Some(log_likelihood) = best {
            if let Some(test) = &self.inputs.test {
                let Some(tested) = self.look_at(test).await.map_err(|e| e.at("test"))? else { return Ok(()) };
                test_ll = tested.mean_log_likelihood;
            }
            self.memory.best = Some(Best { step: progress.step, log_likelihood, test_ll });
        }
        (self.memory.validated, self.memory.valid_ll) = (Some(progress.updates), found.mean_log_likelihood);
        self.memory.valid_impossible_rows = Some(found.impossible_rows);
        gauge!(telemetry::VALID_LL).set(found.mean_log_likelihood.unwrap_or(f64::NEG_INFINITY));
        gauge!(telemetry::VALID_IMPOSSIBLE_ROWS).set(found.impossible_rows as f64);
        let states_in_use = self.learner.states_in_use().await?.mean();
        gauge!(telemetry::STATES_IN_USE).set(states_in_use);
        self.validating.add(&self.learner.phase_seconds().await?.since(&device));
        let seconds = begun.elapsed().as_secs_f64();
        self.memory.validation_seconds += seconds;
        self.write_line(Some((&found, states_in_use)));
        self.observer.event(&Event::Validated(Validated {
            step: progress.step,
            epoch: progress.epoch,
            log_likelihood: found.mean_log_likelihood,
            possible_ll: found.possible_log_likelihood,
            bits_per_dim: found.bits_per_dim,
            perplexity: found.perplexity,
            rows: found.rows,
            impossible_rows: found.impossible_rows,
            best: best.is_some(),
            train_ll: self.memory.train_ll,
            test_ll,
            states_in_use: Some(states_in_use),
            seconds,
            learned_seconds,
        }));
        if best.is_some() && self.spec.checkpoint.keep_best {
            self.checkpoint().await?; // the best is kept, so it has to be written
        }
        Ok(())
    }

    /// How likely held-out rows are now; `None` if somebody asks for a stop meanwhile.
    async fn look_at(&mut self, rows: &HeldOut) -> Result<Option<Evaluation>> {
        let mut stream = rows.open(self.inputs)?;
        let learner = self.learner.clone();
        let score = async |batch| learner.log_likelihoods(batch).await;
        let found = unless_stopped(&self.stop, evaluate(&mut stream, rows.rows, score)).await?;
        if found.is_some() {
            self.add_bad_records(stream.take_bad());
        }
        Ok(found.map(|found| found.in_units_of(self.learner.circuit().is_discrete())))
    }

    fn step_line(&mut self, report: &StepReport) -> StepLine {
        let progress = self.learner.progress();
        let possible = report.batch.possible_weight > 0.0;
        let log_likelihood = possible.then(|| report.batch.mean_log_likelihood());
        let circuit = self.learner.circuit();
        let in_bits = log_likelihood.filter(|_| circuit.is_discrete());
        StepLine {
            step: progress.step,
            updates: progress.updates,
            epoch: progress.epoch,
            rows: progress.rows,
            seconds: self.seconds(),
            log_likelihood,
            prequential_ll: progress.prequential.mean(),
            valid_ll: None,
            valid_possible_ll: None,
            valid_impossible_rows: None,
            states_in_use: None,
            bits_per_dim: in_bits.map(|ll| bits_per_dim(ll, circuit.num_vars())),
            step_size: report.step.or(progress.last_step_size),
            rows_per_second: self.lines.rate.rows_per_second,
            bound: self.lines.rate.bound.into(),
            impossible_rows: progress.impossible_rows,
            bad_records: progress.cursor.bad_records,
        }
    }

    /// Adds the latest line to `metrics.jsonl`, with how fast and bound by what the stretch since the last one was, and
    /// with what held-out rows and states in use were found.
    fn write_line(&mut self, look: Option<(&Evaluation, f64)>) {
        let valid = look.map(|(found, _)| found);
        let since = self.lines.written.unwrap_or(self.begun);
        let seconds = since.elapsed().as_secs_f64();
        let (rows, waits) = (self.learner.progress().rows, self.stream.waits());
        if rows > self.lines.rows {
            let rows_per_second = (rows - self.lines.rows) as f64 / seconds.max(1e-9);
            let bound = waits.bound(&self.lines.waits, seconds).as_str();
            self.lines = Lines { written: Some(Instant::now()), rows, waits, rate: Rate { rows_per_second, bound } };
        }
        self.line.rows_per_second = self.lines.rate.rows_per_second;
        self.line.bound = self.lines.rate.bound.into();
        let Some(files) = &mut self.files else { return };
        let line = StepLine {
            valid_ll: valid.and_then(|found| found.mean_log_likelihood),
            valid_possible_ll: valid
                .filter(|found| found.impossible_rows > 0)
                .and_then(|it| it.possible_log_likelihood),
            valid_impossible_rows: valid.map(|found| found.impossible_rows),
            states_in_use: look.map(|(_, states_in_use)| states_in_use),
            epoch: self.learner.progress().epoch,
            ..self.line.clone()
        };
        if let Err(error) = files.metrics.add(&line) {
            warn_unwritten(self.observer, &error);
        }
    }

    fn record(&self, report: &StepReport, rows: u64, time: Duration) {
        let progress = self.learner.progress();
        counter!(telemetry::ROWS).increment(rows);
        counter!(telemetry::BATCHES).increment(1);
        counter!(telemetry::UPDATES).absolute(progress.updates);
        counter!(telemetry::IMPOSSIBLE_ROWS).absolute(progress.impossible_rows);
        histogram!(telemetry::STEP_SECONDS).record(time.as_secs_f64());
        gauge!(telemetry::CURSOR_WINDOW).set(progress.cursor.window as f64);
        gauge!(telemetry::CURSOR_ROW).set(progress.cursor.row as f64);
        gauge!(telemetry::QUEUE_BYTES).set(self.stream.bytes_in_flight().0 as f64);
        counter!(telemetry::BYTES_READ).absolute(self.stream.bytes_read());
        if let Some(step) = report.step {
            gauge!(telemetry::STEP_SIZE).set(step);
        }
        if report.batch.possible_weight > 0.0 {
            gauge!(telemetry::BATCH_LL).set(report.batch.mean_log_likelihood());
        }
        if let Some(mean) = progress.prequential.mean() {
            gauge!(telemetry::PREQUENTIAL_LL).set(mean);
        }
        let waits = self.stream.waits();
        for (stage, time) in [
            ("cutter", waits.cutter),
            ("decode", waits.decoders),
            ("batcher", waits.batcher),
            ("learner", waits.learner),
        ] {
            gauge!(telemetry::STAGE_WAIT, "stage" => stage, "side" => "input").set(time.input);
            gauge!(telemetry::STAGE_WAIT, "stage" => stage, "side" => "output").set(time.output);
        }
    }

    fn note_bad_records(&mut self) {
        let records = self.stream.take_bad();
        self.add_bad_records(records);
    }

    fn add_bad_records(&mut self, records: Vec<BadRecord>) {
        counter!(telemetry::DECODE_ERRORS).increment(records.iter().map(|record| record.records).sum());
        for record in records {
            match self.files.as_mut().and_then(|files| files.ledger.as_mut()) {
                Some(ledger) => {
                    if let Err(error) = ledger.add(record) {
                        warn_unwritten(self.observer, &error);
                    }
                }
                None => self.observer.event(&Event::Warning(format!("left out: {record}"))),
            }
        }
    }

    fn warn(&mut self, message: String) {
        self.observer.event(&Event::Warning(message));
    }

    /// Seconds of this run, all stretches together.
    fn seconds(&self) -> f64 {
        self.seconds_before + self.begun.elapsed().as_secs_f64()
    }
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    End,
    Batches,
    Seconds,
    Signal,
}

impl Reason {
    fn text(self, spec: &PipelineSpec, source: &Source) -> String {
        let learn = &spec.learn;
        let number = |number: Option<String>, one: &str, more: &str| {
            number.map_or("the data ended".into(), |n| format!("{n} {}", if n == "1" { one } else { more }))
        };
        match self {
            // It passes once, whatever was asked for.
            Self::End if matches!(source, Source::Live(_)) => "the data ended".into(),
            Self::End => number(learn.epochs.map(|n| n.to_string()), "epoch", "epochs"),
            Self::Batches => number(learn.batches.map(|n| n.to_string()), "batch", "batches"),
            Self::Seconds => number(learn.seconds.map(|n| n.to_string()), "second", "seconds"),
            Self::Signal => "stopped by a signal".into(),
        }
    }
}
