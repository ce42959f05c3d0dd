//! A run on several ranks: what they tell each other between two batches, and what makes them one run.
//!
//! Before every batch each rank says what its shards have next, what it was asked for and what went wrong, in one small
//! gather; all draw the same conclusions. So a signal to one stops all after the same update, an epoch ends everywhere
//! at once, and a rank that cannot go on takes nobody by surprise. The clock of the first rank is everybody's.

use std::collections::HashSet;

use metrics::{counter, gauge};
use serde::{Deserialize, Serialize};

use super::record::RunRecord;
use super::resume::as_understood;
use super::summary::Reason;
use super::{Found, RESOLVED, Run, RunFiles, TrainOptions, open_folder};
use crate::circuit::json::{read_circuit, write_circuit};
use crate::circuit::{Circuit, Params};
use crate::cluster::Ranks;
use crate::data::Digest;
use crate::decode::BadRecord;
use crate::error::{Error, ErrorKind, Result};
use crate::learner::Checkpoint;
use crate::pipeline::feed::{Offer, Taken};
use crate::pipeline::observer::RankWork;
use crate::pipeline::prepare::Inputs;
use crate::pipeline::spec::PipelineSpec;
use crate::pipeline::team::{Team, Told};
use crate::telemetry::{self, HEALTH};

/// What a rank says before a batch.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Word {
    /// What its shards have next, if only that they have nothing yet; nothing if it does not ask them any more.
    offers: Vec<Offer>,
    /// Somebody asked it to stop.
    stop: bool,
    /// Somebody asked it for a checkpoint.
    checkpoint: bool,
    /// By its clock the time is over.
    is_late: bool,
    /// By its clock held-out rows are to be looked at.
    is_look_due: bool,
    /// It cannot go on.
    failed: Option<Told>,
    /// Records that it left out since its last word.
    bad: Vec<BadRecord>,
    /// What it has to tell the user.
    notes: Vec<String>,
    work: RankWork,
}

impl Run<'_> {
    /// Learns until there is a reason to stop, which all ranks find at the same time.
    pub(super) async fn learn_together(&mut self) -> Result<Reason> {
        loop {
            if let Some(reason) = self.limit().or(self.record.drift.is_over().then_some(Reason::Drift)) {
                return Ok(reason);
            }
            match self.step_together().await {
                Ok(Some(reason)) => return Ok(reason),
                Ok(None) => {}
                Err(error) if self.team.can_go_on(&error) => self.go_on().await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One batch, or the end of an epoch; a reason to stop, if there is one.
    async fn step_together(&mut self) -> Result<Option<Reason>> {
        HEALTH.alive();
        let word = self.word().await;
        let mut heard = self.team.all(word).await?;
        for (rank, word) in heard.iter_mut().enumerate() {
            if let Some(told) = word.failed.take() {
                return Err(self.team.failed(rank, told));
            }
        }
        if self.team.is_first() {
            self.note_words(&mut heard);
        }
        if heard.iter().any(|word| word.stop) {
            return Ok(Some(Reason::Signal));
        }
        if heard[0].is_late {
            return Ok(Some(Reason::Seconds));
        }
        if heard.iter().any(|word| word.checkpoint) {
            self.checkpoint().await?;
        }
        self.is_look_due_by_clock = heard[0].is_look_due;
        let offers: Vec<Offer> = heard.into_iter().flat_map(|word| word.offers).collect();
        let taken = self.stream.take(&offers).inspect_err(|_| self.team.settle())?;
        match taken {
            Taken::End => return Ok(Some(Reason::End)),
            Taken::LeftOut | Taken::Nothing => {}
            Taken::Item(item) => self.take_item(*item).await?,
        }
        self.checkpoint_if_due().await?;
        Ok(None)
    }

    /// Goes on without a rank that is gone: those that are left agree on how far they have come, take over its shards
    /// where these were before the step, and the step is made again. Another may be lost meanwhile.
    pub(super) async fn go_on(&mut self) -> Result<()> {
        loop {
            match self.try_to_go_on().await {
                Err(error) if self.team.can_go_on(&error) => {}
                done => return done,
            }
        }
    }

    async fn try_to_go_on(&mut self) -> Result<()> {
        let was_first = self.team.is_first();
        let left = self.team.go_on_without_lost().await?;
        // A step may have been over on some ranks when it failed on others: the furthest is where all go on.
        let progress = self.learner.progress();
        let mine = (progress.batches, progress.epoch, self.record.validated, self.is_looking);
        let all = self.team.all(mine).await?;
        let far = |&(batches, epoch, validated, _): &(u64, u64, Option<u64>, bool)| (batches, epoch, validated);
        let furthest = (0..all.len()).rev().max_by_key(|&rank| far(&all[rank])).unwrap_or(0);
        if all.iter().any(|other| far(other) != far(&all[furthest])) {
            let is_mine = far(&mine) == far(&all[furthest]);
            let identity = self.identity.clone().unwrap_or_default();
            let bytes = match is_mine {
                true => Checkpoint::of(self.learner.snapshot().await?, &identity, self.record.write()).to_bytes()?,
                false => Vec::new(),
            };
            let bytes = self.team.told_by(furthest, bytes).await?;
            if !is_mine {
                let checkpoint = Checkpoint::from_bytes(&bytes)?;
                self.record = RunRecord::read(&checkpoint.meta.extra)?;
                self.learner.restore(checkpoint).await?;
            }
        }
        self.own = self.team.ranks().map_or(0..self.spec.batch.shards, Ranks::shards);
        let cursor = self.learner.progress().cursor;
        let stream = self.inputs.feed(self.spec.learn.epochs, cursor, self.own.clone());
        self.stream = self.team.agree(stream).await?;
        if self.team.is_first() && !was_first {
            self.observer.take_over();
            self.files = self.take_over_files()?;
        }
        if self.team.is_first() {
            let ranks = if left == 1 { "1 rank goes on".into() } else { format!("{left} ranks go on") };
            self.warn(format!("a rank is gone; {ranks}, with its shards, from batch {}", progress.batches));
        }
        if all[furthest].3 {
            self.validate().await?; // was due, and has failed on all
        }
        Ok(())
    }

    /// The files of the run, which another rank had.
    fn take_over_files(&self) -> Result<Option<RunFiles>> {
        let (Some(options), Some(identity)) = (self.options, &self.identity) else { return Ok(None) };
        let folder = open_folder(options)?;
        let (on_bad, progress) = (self.spec.pipeline.bad.on_bad, self.learner.progress());
        let (metrics, pipeline) = (&self.spec.metrics, &self.record.pipeline);
        RunFiles::open(&options.out, folder, identity.clone(), on_bad, &progress, metrics, pipeline).map(Some)
    }

    /// Waits for the rows of own shards, or for a reason not to.
    async fn word(&mut self) -> Word {
        let mut word = Word::default();
        loop {
            let quiet = self.next_deadline();
            tokio::select! {
                biased;
                () = self.stop.requested() => word.stop = true,
                () = self.stop.checkpoint_requested() => {
                    word.checkpoint = true;
                    continue;
                }
                pulled = self.stream.pull() => {
                    // A row that the circuit has no place for would be refused by this rank alone.
                    let circuit = self.learner.circuit();
                    let checked = pulled.and_then(|()| {
                        self.stream.offered_rows().try_for_each(|rows| circuit.check_batch(rows))
                    });
                    match checked {
                        Ok(()) => word.offers = self.stream.offers(),
                        Err(error) => word.failed = Some(Told::new(&error)),
                    }
                }
                () = tokio::time::sleep(quiet) => {
                    HEALTH.alive();
                    continue;
                }
            }
            break;
        }
        word.is_late = self.is_late();
        word.is_look_due = self.is_look_due_by_seconds();
        (word.bad, word.notes) = (self.stream.take_bad(), self.stream.take_notes());
        word.work = self.work();
        word
    }

    /// The first rank writes down and shows what all say.
    fn note_words(&mut self, words: &mut [Word]) {
        for word in words.iter_mut() {
            self.add_bad_records(std::mem::take(&mut word.bad));
            for note in std::mem::take(&mut word.notes) {
                self.observer.event(&crate::pipeline::observer::Event::Note(note));
            }
        }
        let works: Vec<RankWork> = words.iter().map(|word| word.work).collect();
        for (rank, work) in works.iter().enumerate() {
            let rank = rank.to_string();
            counter!(telemetry::RANK_ROWS, "rank" => rank.clone()).absolute(work.rows);
            counter!(telemetry::RANK_BYTES_READ, "rank" => rank.clone()).absolute(work.bytes_read);
            gauge!(telemetry::RANK_COMPUTE, "rank" => rank.clone()).set(work.compute_seconds);
            gauge!(telemetry::RANK_SUMS, "rank" => rank).set(work.sum_seconds);
        }
    }

    /// Looks at held-out rows after the last batch.
    pub(super) async fn last_look(&mut self) -> Result<()> {
        loop {
            match self.validate().await {
                Err(error) if self.team.can_go_on(&error) => self.go_on().await?,
                done => return done,
            }
        }
    }

    /// What every rank has done. Where the first is lost now, another writes the last checkpoint.
    pub(super) async fn last_words(&mut self) -> Result<Vec<RankWork>> {
        loop {
            match self.team.all(self.work()).await {
                Err(error) if self.team.can_go_on(&error) => {
                    self.go_on().await?;
                    self.checkpoint_and_wait().await?;
                }
                said => return said,
            }
        }
    }

    /// What this rank has done so far in this stretch.
    pub(super) fn work(&self) -> RankWork {
        let costs = self.team.ranks().map(|ranks| ranks.costs()).unwrap_or_default();
        RankWork {
            rows: self.own_rows,
            bytes_read: self.stream.bytes_read(),
            compute_seconds: costs.compute_seconds,
            sum_seconds: costs.sum_seconds,
            bytes_received: costs.received,
        }
    }
}

/// What must be the same on every rank before anything is opened.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Hello {
    version: String,
    binary: String,
    pipeline: String,
    how: String,
}

/// Compares what every rank runs, and is told to run. A difference is one sentence, the same on every rank.
pub(super) async fn greet(team: &Team, spec: &PipelineSpec, options: &TrainOptions) -> Result<()> {
    if team.is_alone() {
        return Ok(());
    }
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        binary: binary_digest(),
        pipeline: spec.to_toml()?,
        how: format!(
            "resume {}, force {}, memory {:?}, isa {:?}, precision {:?}, cluster sums {}",
            options.resume,
            options.force_resume,
            options.place.memory_budget,
            options.place.cpu_options().used_isa(),
            options.place.precision,
            options.place.sums
        ),
    };
    let all = team.all(hello).await?;
    let Some((rank, other)) = all.iter().enumerate().find(|(_, hello)| **hello != all[0]) else { return Ok(()) };
    team.settle();
    let first = &all[0];
    let what = if other.version != first.version {
        format!("runs anemone {} where rank 0 runs {}: install one version everywhere", other.version, first.version)
    } else if other.binary != first.binary {
        "runs another build of this version than rank 0: copy one binary everywhere".into()
    } else if other.pipeline != first.pipeline {
        format!("has another pipeline than rank 0: {}", difference(&first.pipeline, &other.pipeline))
    } else {
        format!("was started with other flags, or has another processor, than rank 0: {} / {}", first.how, other.how)
    };
    Err(Error::new(ErrorKind::Cluster, format!("rank {rank} {what}")))
}

/// The first line in which two pipelines differ.
fn difference(first: &str, other: &str) -> String {
    let (mut first, mut other) = (first.lines(), other.lines());
    loop {
        match (first.next(), other.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => return format!("`{}` where rank 0 has `{}`", b.unwrap_or("nothing"), a.unwrap_or("nothing")),
        }
    }
}

/// Tells binaries apart, by their length and both ends.
fn binary_digest() -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(std::env::current_exe()?)?;
        let len = file.metadata()?.len();
        let mut digest = Digest::new().part(len.to_le_bytes());
        for from in [0, len.saturating_sub(1 << 16)] {
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.by_ref().take(1 << 16).read_to_end(&mut bytes)?;
            digest = digest.part(bytes);
        }
        Ok(digest.finish())
    };
    read().unwrap_or_default() // no reason to end: versions and pipelines are compared besides
}

/// What was opened, on every rank as the first has understood it: of a live source two ranks may have seen different
/// records first.
pub(super) async fn as_first_understood(team: &Team, spec: &PipelineSpec, opened: Inputs) -> Result<Inputs> {
    if team.is_alone() || !spec.source.is_live() {
        return Ok(opened);
    }
    let mine = team.is_first().then(|| opened.spec.to_toml().map(String::into_bytes)).transpose();
    let first = team.made_by_first(mine).await?.unwrap_or_default();
    let first = PipelineSpec::parse(&String::from_utf8_lossy(&first), RESOLVED)?;
    let again = match first == opened.spec {
        true => Ok(opened),
        false => Inputs::open(&as_understood(spec, &first)).await,
    };
    team.agree(again).await
}

/// Every rank must have the same data before it; `identity` says what this one has.
pub(super) async fn compare_data(team: &Team, identity: String, files: Vec<String>) -> Result<()> {
    if team.is_alone() {
        return Ok(());
    }
    let all = team.all((identity, files)).await?;
    let Some((rank, (_, files))) = all.iter().enumerate().find(|(_, (data, _))| *data != all[0].0) else {
        return Ok(());
    };
    team.settle();
    let known: HashSet<&String> = all[0].1.iter().collect();
    let what = match files.iter().find(|file| !known.contains(file)) {
        Some(file) => format!("{file} is not what rank 0 reads"),
        None if files.len() != all[0].1.len() => {
            format!("it has {} files where rank 0 has {}", files.len(), all[0].1.len())
        }
        None => "files of the same names have other contents, or are decoded otherwise".into(),
    };
    Err(Error::new(ErrorKind::Cluster, format!("rank {rank} reads other data than rank 0: {what}")))
}

/// The checkpoint that the first rank has found, on every rank.
pub(super) async fn share_checkpoint(team: &Team, found: Result<Option<Found>>) -> Result<Option<Found>> {
    if team.is_alone() {
        return found;
    }
    let (kept, made) = match found {
        Ok(Some((path, checkpoint))) => {
            let bytes = checkpoint.to_bytes();
            (Some((path, checkpoint)), bytes.map(Some))
        }
        Ok(None) => (None, Ok(None)),
        Err(error) => (None, Err(error)),
    };
    let sent = team.made_by_first(made).await?;
    match (kept, sent) {
        (Some(found), _) => Ok(Some(found)),
        (None, Some(bytes)) => Ok(Some(("the checkpoint of rank 0".into(), Checkpoint::from_bytes(&bytes)?))),
        (None, None) => Ok(None),
    }
}

/// The circuit that the first rank has built, on every rank.
pub(super) async fn share_circuit(team: &Team, built: Option<Result<Circuit>>) -> Result<Circuit> {
    let (kept, made) = match built {
        Some(Ok(circuit)) if team.is_alone() => return Ok(circuit),
        Some(Ok(circuit)) => {
            let text = write_circuit(&circuit, None).into_bytes();
            (Some(circuit), Ok(Some(text)))
        }
        Some(Err(error)) => (None, Err(error)),
        None => (None, Ok(None)),
    };
    let sent = team.made_by_first(made).await?;
    match (kept, sent) {
        (Some(circuit), _) => Ok(circuit),
        (None, Some(text)) => read_circuit(&String::from_utf8_lossy(&text)).map(|(circuit, _)| circuit),
        (None, None) => Err(Error::internal("the first rank sent no circuit")),
    }
}

/// The parameters that the first rank starts from, on every rank.
pub(super) async fn share_params(team: &Team, circuit: &Circuit, made: Option<Result<Params>>) -> Result<Params> {
    let shared = share_start(team, circuit, made.transpose()).await?;
    shared.ok_or_else(|| Error::internal("the first rank sent no parameters"))
}

/// Parameters that the first rank has, or has not, on every rank.
pub(super) async fn share_start(
    team: &Team,
    circuit: &Circuit,
    made: Result<Option<Params>>,
) -> Result<Option<Params>> {
    if team.is_alone() {
        return made;
    }
    let bytes = |params: &Params| params.values().iter().flat_map(|x| x.to_le_bytes()).collect();
    let sent = made.as_ref().map(|made| made.as_ref().map(bytes)).map_err(Error::clone);
    let sent = team.made_by_first(sent).await?;
    let number = |four: &[u8]| f32::from_le_bytes(four.try_into().expect("four bytes"));
    let received = |bytes: Vec<u8>| Params::from_values(circuit, bytes.chunks_exact(4).map(number).collect());
    match made? {
        Some(params) => Ok(Some(params)),
        None => sent.map(received).transpose(),
    }
}
