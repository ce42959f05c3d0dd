//! The training loop: batches from a stream into a learner, with validation, checkpoints and lines for whoever watches.
//!
//! What happens after a batch depends on its number alone (validation, checkpoints by batches) or changes nothing that
//! is learned (checkpoints by seconds), so a run that was killed and resumed ends with the same parameters as one that
//! was not. Validation comes before a checkpoint of the same step, and the checkpoint remembers its result.
//!
//! [`rehearse`] is the same loop without a run folder, for measuring. Here are the beginning, the loop and the end;
//! `resume`, `validate`, `checkpoints`, `lines`, `gauges` and `summary` are what they call.

mod checkpoints;
mod drift;
mod few_updates;
mod gauges;
mod lines;
mod record;
mod resume;
mod summary;
mod together;
mod validate;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, gauge};

use self::checkpoints::{Checkpointed, Writing};
use self::few_updates::few_updates;
use self::lines::Lines;
use self::record::RunRecord;
use self::resume::{Found, find_checkpoint, take_over};
use self::summary::Reason;
use self::together::{as_first_understood, compare_data, greet, share_checkpoint, share_circuit, share_params};
use super::feed::Feed;
use super::observer::{EpochEnd, Event, Finished, Observer, Start, StepLine};
use super::prepare::{Built, Given, Inputs};
pub use super::run_files::{CHECKPOINTS, RESOLVED};
use super::run_files::{RunFiles, check_run_folder};
use super::spec::{PipelineSpec, SourceSpec};
use super::stop::Stop;
use super::team::Team;
use super::waits::StageWaits;
use crate::backend::{PhaseSeconds, PlaceSpec};
use crate::circuit::Circuit;
use crate::cluster::Ranks;
use crate::data::{Batch, Cursor, Item};
use crate::decode::BadRecord;
use crate::error::{Error, Result};
use crate::learner::{CheckpointFolder, Identity, Learner};
use crate::optim::Pace;
use crate::source::Source;
use crate::telemetry::{self, HEALTH};

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
    pub place: PlaceSpec,
    /// Held-out rows that cannot be read end the run, instead of being a warning: a curve with holes is no result.
    pub every_look: bool,
}

/// Learns what the pipeline says, until its end, a limit or a request to stop; leaves a checkpoint in any of these
/// cases.
pub async fn train(
    spec: &PipelineSpec,
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    let team = Team::new(options.place.ranks.as_ref());
    let trained = train_as(&team, spec, options, stop, observer).await;
    trained.map_err(|error| team.mark(error))
}

async fn train_as(
    team: &Team,
    spec: &PipelineSpec,
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    check_end(spec, observer).inspect_err(|_| team.settle())?; // the same on every rank, or soon told apart
    greet(team, spec, options).await?;
    let (folder, found) = match team.is_first().then(|| open_folder(options)) {
        Some(Ok(folder)) => {
            let found = find_checkpoint(&folder, options, observer);
            (Some(folder), found)
        }
        Some(Err(error)) => (None, Err(error)),
        None => (None, Ok(None)),
    };
    let resumed = share_checkpoint(team, found).await?;
    let spec = &resume::as_decided(spec, resumed.as_ref());
    let (tell, told) = async_channel::unbounded();
    let opening = async {
        let mut opening = std::pin::pin!(Inputs::open_telling(spec, &tell));
        loop {
            tokio::select! {
                biased;
                Ok(text) = told.recv() => observer.event(&Event::Warning(text)),
                opened = &mut opening => return opened,
            }
        }
    };
    match unless_one_is_stopped(team, unless_stopped(stop, opening).await).await? {
        Some(inputs) => {
            let inputs = as_first_understood(team, spec, inputs).await?;
            train_from(team, inputs, None, (folder, resumed), options, stop, observer).await
        }
        None => Ok(stopped_before_it_began(observer)),
    }
}

/// What all ranks have done, unless somebody asked one of them to stop meanwhile.
async fn unless_one_is_stopped<T>(team: &Team, done: Result<Option<T>>) -> Result<Option<T>> {
    let done = team.agree(done).await?;
    let is_stopped = !team.is_alone() && team.all(done.is_none()).await?.contains(&true);
    Ok(done.filter(|_| !is_stopped))
}

/// Learns as [`train`] does, with inputs that are open and a circuit that is built: for several runs on one stream from
/// one start. A run that goes on has the circuit of its checkpoint.
pub async fn train_on(
    inputs: &Inputs,
    circuit: Arc<Circuit>,
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    check_end(&inputs.spec, observer)?;
    let folder = open_folder(options)?;
    let resumed = find_checkpoint(&folder, options, observer)?;
    let team = Team::new(None);
    train_from(&team, inputs.clone(), Some(circuit), (Some(folder), resumed), options, stop, observer).await
}

async fn train_from(
    team: &Team,
    mut inputs: Inputs,
    circuit: Option<Arc<Circuit>>,
    (folder, mut resumed): (Option<CheckpointFolder>, Option<Found>),
    options: &TrainOptions,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    inputs.optimizer().inspect_err(|_| team.settle())?; // refused before a structure is learned
    let mut identity = team.agree(inputs.identity()).await?;
    let files = inputs.source.manifest().files.iter();
    let files = files.map(|file| format!("{} of {} bytes", file.name, file.bytes)).collect();
    compare_data(team, format!("{} {} {:?}", identity.data, identity.decoder, inputs.held_out_digest()), files).await?;
    let mut place = options.place.clone();
    let mut record = RunRecord::default();
    if let Some(found) = &mut resumed {
        record = take_over(found, &mut inputs, &mut identity, options.force_resume, observer)
            .inspect_err(|_| team.settle())?; // all have the same checkpoint
        place = place.or(&record.place());
    }
    place = place.with_shards(inputs.spec.batch.shards)?;
    let circuit = match (&resumed, circuit) {
        (Some((_, checkpoint)), _) => checkpoint.circuit.clone(),
        (None, Some(circuit)) => circuit,
        (None, None) if team.is_first() => {
            let mut seen = |share| observer.event(&Event::Structure { share });
            let built = unless_stopped(stop, inputs.build_circuit(&mut seen)).await;
            match unless_first_is_stopped(team, built).await? {
                Some(circuit) => Arc::new(share_circuit(team, Some(Ok(circuit))).await?),
                None => return Ok(stopped_before_it_began(observer)),
            }
        }
        (None, None) => match unless_first_is_stopped(team, Ok(Some(()))).await? {
            Some(()) => Arc::new(share_circuit(team, None).await?),
            None => return Ok(stopped_before_it_began(observer)),
        },
    };
    let (resumed_from, checkpoint) = resumed.unzip(); // its parameters are the learner's from now on
    let mut start = None;
    let given = match checkpoint {
        Some(checkpoint) => Given::Checkpoint(Box::new(checkpoint)),
        None if team.is_alone() => Given::Nothing,
        None => {
            let made = match team.is_first() {
                true => Some(inputs.starting_params(&circuit).await.map(|(params, from)| {
                    start = Some(from);
                    params
                })),
                false => None,
            };
            Given::Params(share_params(team, &circuit, made).await?)
        }
    };
    let built = unless_stopped(stop, inputs.build_learner(&circuit, &place, given)).await;
    let built = unless_one_is_stopped(team, built).await?;
    let Some(Built { learner, start: own_start }) = built else { return Ok(stopped_before_it_began(observer)) };
    let start = start.or(own_start);
    if let Some(told) = learner.meet().await?
        && team.is_first()
    {
        observer.event(&Event::Note(told));
    }
    let found = learner.place();
    record.memory_budget = if found.device.is_cuda() { place.memory_budget } else { Some(place.memory_budget()) };
    record.isa = Some(place.isa.unwrap_or_default());
    record.precision = Some(found.precision);
    record.device = Some(found.name.clone());
    record.held_out = inputs.held_out_digest();
    record.pipeline = inputs.spec.to_toml()?;
    let (on_bad, progress) = (inputs.spec.pipeline.bad.on_bad, learner.progress());
    let kept_identity = identity.clone();
    let open = |folder| {
        RunFiles::open(&options.out, folder, identity, on_bad, &progress, &inputs.spec.metrics, &record.pipeline)
    };
    let mut files = team.agree(folder.map(open).transpose()).await?;
    if let Some(Err(error)) = files.as_mut().map(RunFiles::write_resolved) {
        warn_unwritten(observer, &error);
    }
    let run = team.agree(Run::new(&inputs, learner, record, stop, observer, (team, &place))).await?;
    let (options_of, identity) = (Some(options), Some(kept_identity));
    Run { files, options: options_of, identity, every_look: options.every_look, start, ..run }
        .until_the_end(&options.name, resumed_from)
        .await
}

/// What the first rank has made, unless somebody asked it to stop meanwhile: then on no rank.
async fn unless_first_is_stopped<T>(team: &Team, made: Result<Option<T>>) -> Result<Option<T>> {
    unless_one_is_stopped(team, made).await
}

/// Learns as [`train`] does, with inputs that are open and a circuit that is built, and leaves nothing behind: no run
/// folder, no checkpoint, no lines. For measuring, where several optimizers start from one circuit on one stream.
pub async fn rehearse(
    inputs: &Inputs,
    circuit: Arc<Circuit>,
    place: &PlaceSpec,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Finished> {
    let place = &place.with_shards(inputs.spec.batch.shards)?;
    let Built { learner, start } = inputs.build_learner(&circuit, place, Given::Nothing).await?;
    let spec = &inputs.spec;
    let name = spec.name.as_deref().unwrap_or(spec.circuit.model.name());
    let run = Run::new(inputs, learner, RunRecord::default(), stop, observer, (&Team::new(None), place))?;
    Run { start, ..run }.until_the_end(name, None).await
}

/// Refuses full-batch EM on a source without an end that is known, because it moves the parameters at the end of an
/// epoch and would gather for ever, unless `learn.window_rows` says what an epoch is; and epochs in a schedule there.
/// Says that a pipe passes once. Known from the pipeline alone: opening standard input may wait for hours.
pub(crate) fn check_end(spec: &PipelineSpec, observer: &mut dyn Observer) -> Result<()> {
    let SourceSpec { synthetic, .. } = &spec.source;
    let (is_live, is_endless) = (spec.source.is_live(), spec.source.is_endless());
    let optimizer = &spec.learn.optimizer;
    if is_endless && optimizer.batches_per_update().is_none() && spec.learn.window_rows.is_none() {
        let what_to_do = match synthetic {
            Some(_) => "give synthetic data a number of rows",
            None => {
                "say how many rows of the stream are one epoch (learn.window_rows), or read rows from files that end"
            }
        };
        return Err(Error::option(format!(
            "learn.optimizer = \"{}\": updates at the end of an epoch, and this source has none that is known: use \
             anemone, mini_batch_em or stepwise_em, or {what_to_do}",
            optimizer.name()
        )));
    }
    if is_endless {
        let batches_per_update = optimizer.batches_per_update().unwrap_or(1);
        let rows = spec.learn.window_rows;
        let pace = Pace::new(rows, spec.batch.rows as u64, spec.batch.drop_last, batches_per_update);
        optimizer.clone().resolved(&pace).map_err(|e| e.at("learn"))?;
    }
    if let (true, Some(epochs @ 2..), None) = (is_live, spec.learn.epochs, spec.learn.window_rows) {
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

/// A run between its first and its last batch.
struct Run<'a> {
    spec: &'a PipelineSpec,
    inputs: &'a Inputs,
    learner: Learner,
    /// What parameters started from, if they did not go on.
    start: Option<Start>,
    /// Who learns together.
    team: Team,
    /// The batches; on several ranks the rows of own shards.
    stream: Feed,
    /// The shards of this process.
    own: Range<usize>,
    /// Rows of them that this process has learned from.
    own_rows: u64,
    /// Held-out rows are to be looked at after this batch, by the clock of the first rank.
    is_look_due_by_clock: bool,
    observer: &'a mut dyn Observer,
    /// `None` leaves nothing behind.
    files: Option<RunFiles>,
    /// What a rank needs that takes over the files of another.
    options: Option<&'a TrainOptions>,
    identity: Option<Identity>,
    /// Held-out rows are being looked at.
    is_looking: bool,
    /// Held-out rows that cannot be read end the run.
    every_look: bool,
    lines: Lines,
    record: RunRecord,
    /// Seconds of earlier stretches of this run.
    seconds_before: f64,
    begun: Instant,
    checkpointed: Checkpointed,
    /// A checkpoint on its way to the disk, while learning goes on.
    writing: Option<Writing>,
    /// The device's time that went into validation: no part of learning.
    validating: PhaseSeconds,
    /// When held-out rows were looked at last in this stretch, or its beginning.
    looked: Instant,
    stop: Stop,
    /// The latest line, for the end.
    line: StepLine,
}

impl<'a> Run<'a> {
    /// A run from where the learner is, without files.
    fn new(
        inputs: &'a Inputs,
        learner: Learner,
        mut record: RunRecord,
        stop: &Stop,
        observer: &'a mut dyn Observer,
        (team, place): (&Team, &PlaceSpec),
    ) -> Result<Self> {
        let spec = &inputs.spec;
        let own = place.ranks.as_ref().map_or(0..spec.batch.shards, Ranks::shards);
        record.drift.set_options(spec.drift.as_ref())?;
        let progress = learner.progress();
        let now = Instant::now();
        Ok(Self {
            spec,
            inputs,
            stream: inputs.feed(spec.learn.epochs, progress.cursor.clone(), own.clone())?,
            own,
            own_rows: 0,
            is_look_due_by_clock: false,
            team: team.clone(),
            learner,
            start: None,
            observer,
            files: None,
            options: None,
            identity: None,
            is_looking: false,
            every_look: false,
            lines: Lines::after(progress.rows),
            seconds_before: record.seconds,
            record,
            begun: now,
            checkpointed: Checkpointed {
                at: now,
                step: progress.batches,
                rows: progress.rows,
                cursor: None,
                path: None,
            },
            writing: None,
            validating: PhaseSeconds::default(),
            looked: now,
            stop: stop.clone(),
            line: StepLine {
                step: progress.batches,
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

    async fn until_the_end(mut self, name: &str, resumed_from: Option<PathBuf>) -> Result<Finished> {
        let is_resumed = resumed_from.is_some();
        self.observer.event(&Event::Started(self.started(name, resumed_from)));
        if let Source::Live(source) = &self.inputs.source
            && !source.can_go_back()
        {
            self.warn(match is_resumed {
                false => {
                    "a pipe cannot go back: after a crash, rows since the last checkpoint do not come again".into()
                }
                true => {
                    "a pipe cannot go back: this run continues with the rows that arrive now; those that an earlier \
                         stretch read after its last checkpoint do not come again"
                        .into()
                }
            });
        }
        self.inputs.take_notes().into_iter().for_each(|note| self.warn(note));
        if let Some(rows) = self.inputs.num_rows() {
            self.hint_at_few_updates(rows);
        }
        HEALTH.set_ready(true);
        let mut ended = self.learn().await;
        HEALTH.set_ready(false);
        if ended.as_ref().is_ok_and(|reason| *reason != Reason::Signal)
            && self.spec.validate.is_some()
            && let Err(error) = self.last_look().await
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
        let ranks = self.last_words().await?;
        let progress = self.learner.progress();
        if progress.batches > 0 && progress.updates == 0 {
            self.warn("the parameters have not moved: full-batch EM updates them at the end of an epoch".into());
        }
        let finished = Finished {
            reason: reason.text(self.spec, &self.inputs.source),
            step: progress.batches,
            epoch: progress.epoch,
            rows: progress.rows,
            bad_records: progress.cursor.bad_records,
            seconds: self.seconds(),
            prequential_ll: progress.prequential.mean(),
            valid_ll: self.record.valid_ll,
            valid_impossible_rows: self.record.valid_impossible_rows,
            best_valid_ll: self.record.best.map(|best| best.log_likelihood),
            source_ll: self.inputs.valid.as_ref().and_then(|valid| valid.source_log_likelihood),
            bound: self
                .stream
                .waits()
                .bound(&StageWaits::default(), self.begun.elapsed().as_secs_f64())
                .as_str()
                .into(),
            phases: self.phases().await?,
            checkpoint: self.checkpointed.path.clone(),
            ranks: if self.team.is_alone() { Vec::new() } else { ranks },
        };
        self.observer.event(&Event::Finished(finished.clone()));
        self.learner.close().await?;
        Ok(finished)
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
        if !self.team.is_alone() {
            return self.learn_together().await;
        }
        loop {
            if let Some(reason) = self.limit().or(self.record.drift.is_over().then_some(Reason::Drift)) {
                return Ok(reason);
            }
            HEALTH.alive();
            let quiet = self.next_deadline();
            let item = tokio::select! {
                biased;
                () = self.stop.requested() => return Ok(Reason::Signal),
                () = self.stop.checkpoint_requested() => {
                    self.checkpoint().await?;
                    continue;
                }
                item = self.stream.next() => item?,
                // A live source may be silent for hours; limits and checkpoints by time do not wait for it.
                () = tokio::time::sleep(quiet) => {
                    self.note_bad_records();
                    self.checkpoint_if_due().await?;
                    continue;
                }
            };
            let Some(item) = item else { return Ok(Reason::End) };
            self.is_look_due_by_clock = self.is_look_due_by_seconds();
            self.take_item(item).await?;
            self.note_bad_records();
            self.checkpoint_if_due().await?;
        }
    }

    async fn take_item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Batch { batch, end } => self.batch(batch, end).await,
            Item::EpochEnd { next } => self.end_epoch(next).await,
        }
    }

    fn limit(&self) -> Option<Reason> {
        let learn = &self.spec.learn;
        let progress = self.learner.progress();
        if learn.batches.is_some_and(|most| progress.batches >= most) {
            return Some(Reason::Batches);
        }
        if learn.rows.is_some_and(|most| progress.rows >= most) {
            return Some(Reason::Rows);
        }
        // The stream of files ends by itself; a live one does not know how many epochs are wanted.
        if learn.window_rows.is_some() && learn.epochs.is_some_and(|most| progress.epoch >= most) {
            return Some(Reason::End);
        }
        (self.team.is_alone() && self.is_late()).then_some(Reason::Seconds)
    }

    /// Returns true if by this process's clock the time is over.
    fn is_late(&self) -> bool {
        self.spec.learn.seconds.is_some_and(|most| self.seconds() >= most)
    }

    /// How long to wait for an item before the clock is looked at again.
    fn next_deadline(&self) -> Duration {
        let limit = self.spec.learn.seconds.map(|most| most - self.seconds());
        let checkpoint =
            self.spec.checkpoint.every_seconds.map(|every| every - self.checkpointed.at.elapsed().as_secs_f64());
        // What a live source has to tell is looked for besides, and the run says that it is alive.
        let seconds = [limit, checkpoint].into_iter().flatten().fold(1.0, f64::min);
        Duration::from_secs_f64(seconds.clamp(0.01, 1.0))
    }

    async fn batch(&mut self, batch: Batch, end: Cursor) -> Result<()> {
        let begun = Instant::now();
        let rows = batch.num_global_rows() as u64;
        self.own_rows += batch.num_rows() as u64;
        let for_drift = self.for_drift(&batch);
        let report = self.learner.learn_to(batch, end).await?;
        self.record_gauges(&report, rows, begun.elapsed());
        self.record.epoch.log_likelihood += report.batch.log_likelihood;
        self.record.epoch.weight += report.batch.possible_weight;
        self.line = self.step_line(&report);
        self.watch_for_drift(&report, rows, for_drift).await?;
        if self.is_look_due(rows) {
            self.validate().await?;
        } else if self.lines.is_due(&self.spec.metrics, self.line.step, self.line.rows) || self.line.drift.is_some() {
            self.write_line(None);
        }
        self.observer.event(&Event::Step(self.line.clone()));
        Ok(())
    }

    async fn end_epoch(&mut self, next: Cursor) -> Result<()> {
        let updated = self.learner.end_epoch_at(next).await?;
        let progress = self.learner.progress();
        let sums = std::mem::take(&mut self.record.epoch);
        if updated && self.record.best.is_some_and(|best| best.step == progress.batches) {
            // The parameters moved without a batch: the next checkpoint takes the place of the best one.
            self.record.best = None;
        }
        self.record.train_ll = (sums.weight > 0.0).then(|| sums.log_likelihood / sums.weight);
        gauge!(telemetry::EPOCH).set(progress.epoch as f64);
        // Where it was not known before how many rows there are.
        if progress.epoch == 1 && self.inputs.num_rows().is_none() && !matches!(self.inputs.source, Source::Live(_)) {
            self.hint_at_few_updates(progress.rows);
        }
        self.observer.event(&Event::EpochEnd(EpochEnd {
            epoch: progress.epoch,
            step: progress.batches,
            rows: progress.rows,
            log_likelihood: self.record.train_ll,
            updated,
            seconds: self.seconds(),
        }));
        self.validate_if_due(progress.epoch).await
    }

    fn note_bad_records(&mut self) {
        let records = self.stream.take_bad();
        self.add_bad_records(records);
        for note in self.stream.take_notes() {
            self.observer.event(&Event::Note(note));
        }
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
