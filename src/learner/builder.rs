//! Puts a circuit to work: where it lives, how it learns, what it starts from.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::keeper::{KEPT, Keeper};
use super::{Checkpoint, CheckpointFolder, DEFAULT_MEAN_ROWS, Identity, Learner, circuit_digest};
use crate::backend::{ClusterSums, Device, PlaceSpec, TrainingPrecision};
use crate::circuit::{Circuit, Params, Smoothing};
use crate::cluster::{Cluster, Ranks};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::optim::{AnemoneSpec, Averaging, OptimizerSpec, Schedule};
use crate::structure::{start_densities, start_from_rows, start_sequence};

/// How far apart random rows of weights start, exp(−2·U): what a structure can learn from.
const NOISE: f64 = 2.0;

/// The same for sequences, whose states must be told apart from the beginning (docs/MATH.md, "A start from rows").
const NOISE_OF_SEQUENCES: f64 = 8.0;

/// A learner to be: [`Learner::on`] a circuit, with everything defaulted, until [`spawn`](Self::spawn).
///
/// The defaults: the first GPU that can be used or else the CPU with all its cores, [anemone](AnemoneSpec), a random
/// start of seed 1. None of the methods fails; what is wrong is told by `spawn`.
///
/// ```
/// use anemone::{Batch, Categorical, Learner, hmm};
///
/// let learner = Learner::on(hmm(4, 3, Categorical::new(5)?)?).threads(1).seed(7).step(0.2).momentum(0.9).spawn()?;
/// learner.learn_blocking(Batch::from_rows(&[0u8, 1, 2, 3], 4)?)?;
/// # Ok::<(), anemone::Error>(())
/// ```
#[must_use = "`spawn` starts the learner"]
pub struct LearnerBuilder {
    circuit: Arc<Circuit>,
    place: PlaceSpec,
    optimizer: OptimizerSpec,
    start: Start,
    seed: u64,
    resume: Resume,
    identity: String,
    kept: usize,
    mean_rows: u64,
    /// An option that the optimizer does not have.
    refused: Option<&'static str>,
    /// Why the ranks cannot learn together.
    no_cluster: Option<Error>,
}

/// What parameters start from.
enum Start {
    Noise,
    Params(Params),
    Rows(Batch),
    Sequences(Batch),
}

/// What is continued.
enum Resume {
    Nothing,
    Folder(PathBuf),
    Checkpoint(Box<Checkpoint>),
}

impl LearnerBuilder {
    pub(super) fn new(circuit: Arc<Circuit>) -> Self {
        Self {
            circuit,
            place: PlaceSpec::default(),
            optimizer: AnemoneSpec::default().into(),
            start: Start::Noise,
            seed: 1,
            resume: Resume::Nothing,
            identity: String::new(),
            kept: KEPT,
            mean_rows: DEFAULT_MEAN_ROWS,
            refused: None,
            no_cluster: None,
        }
    }

    /// Where the circuit lives. By default the first GPU that can be used, otherwise the CPU.
    pub fn device(mut self, device: Device) -> Self {
        self.place.device = device;
        self
    }

    /// Worker threads on the CPU; one per core by default. The bits do not depend on it.
    pub fn threads(mut self, threads: usize) -> Self {
        self.place.threads = Some(threads);
        self
    }

    /// How precisely training passes multiply matrices; by default what the device is made for.
    pub fn precision(mut self, precision: TrainingPrecision) -> Self {
        self.place.precision = Some(precision);
        self
    }

    /// Learns together with the other ranks of a cluster: every rank builds the same learner, and is given the same
    /// batches in the same order. A batch belongs to `shards` logical shards, of which each rank computes some; the
    /// bits depend on the shards and not on the number of ranks. [`Alone`](crate::cluster::Alone) is one process.
    pub fn cluster(mut self, cluster: Box<dyn Cluster>, shards: usize) -> Self {
        match Ranks::new(cluster, shards) {
            Ok(ranks) => self.place.ranks = Some(ranks),
            Err(error) => self.no_cluster = Some(error),
        }
        self
    }

    /// By which way the flows of ranks are summed: by default between GPUs where every rank has one of its own, and
    /// otherwise by way of the host. The bits do not depend on it.
    pub fn cluster_sums(mut self, sums: ClusterSums) -> Self {
        self.place.sums = sums;
        self
    }

    /// Everything about the device at once.
    #[doc(hidden)]
    pub fn place(mut self, place: PlaceSpec) -> Self {
        self.place = place;
        self
    }

    /// Another optimizer, or anemone with all its options at once: any of the specs in [`optim`](crate::optim).
    pub fn optimizer(mut self, optimizer: impl Into<OptimizerSpec>) -> Self {
        self.optimizer = optimizer.into();
        self
    }

    /// Anemone's step α, a number in (0, 1] or a schedule. By default it follows from how much a batch says about each
    /// state.
    pub fn step(self, step: impl Into<Schedule>) -> Self {
        let step = step.into();
        self.anemone("step", |spec| spec.step = step)
    }

    /// Anemone's momentum β, in [0, 1); 0 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        self.anemone("momentum", |spec| spec.momentum = momentum)
    }

    /// What keeps anemone's rows away from zero.
    pub fn smoothing(self, smoothing: Smoothing) -> Self {
        self.anemone("smoothing", |spec| spec.smoothing = smoothing)
    }

    /// Which parameters of anemone answer: averaged ones by default, or with [`Averaging::Off`] the latest.
    pub fn average(self, average: Averaging) -> Self {
        self.anemone("average", |spec| spec.average = average)
    }

    fn anemone(mut self, option: &'static str, set: impl FnOnce(&mut AnemoneSpec)) -> Self {
        match &mut self.optimizer {
            OptimizerSpec::Anemone(spec) => set(spec),
            _ => self.refused = Some(option),
        }
        self
    }

    /// The seed of a random start; 1 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Starts from these parameters.
    pub fn params(mut self, params: Params) -> Self {
        self.start = Start::Params(params);
        self
    }

    /// Starts a tree or a circuit of regions from rows of the data, some hundreds: state k of every latent begins as
    /// one whole row, which is worth more than any choice of optimizer (docs/EXPERIMENTS.md). Densities start from them
    /// too.
    pub fn start_from_rows(mut self, rows: Batch) -> Self {
        self.start = Start::Rows(rows);
        self
    }

    /// Starts an HMM from rows of the data, some hundreds: all states begin with the frequencies of the values, and far
    /// from each other.
    pub fn start_from_sequences(mut self, rows: Batch) -> Self {
        self.start = Start::Sequences(rows);
        self
    }

    /// Goes on from the newest checkpoint in a folder, or starts afresh if there is none. The folder is this learner's
    /// from then on: another process that opens it is refused. The resumed learner is bit-identical to one that never
    /// stopped.
    pub fn resume(mut self, folder: impl Into<PathBuf>) -> Self {
        self.resume = Resume::Folder(folder.into());
        self
    }

    /// Goes on from a checkpoint that was read. One without an optimizer's state, a model, gives parameters and
    /// counters, and the optimizer starts afresh.
    pub fn resume_from(mut self, checkpoint: Checkpoint) -> Self {
        self.resume = Resume::Checkpoint(Box::new(checkpoint));
        self
    }

    /// Adds to what a checkpoint must share with this learner to be continued, besides the circuit and the kind of
    /// optimizer: whatever decides what rows mean, such as the version of a vocabulary.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = identity.into();
        self
    }

    /// How many checkpoints stay in a folder; 3 by default.
    pub fn keep_checkpoints(mut self, checkpoints: usize) -> Self {
        self.kept = checkpoints;
        self
    }

    /// How many rows [`RecentRows`](super::RecentRows) are; 10,000 by default.
    pub fn mean_rows(mut self, rows: u64) -> Self {
        self.mean_rows = rows;
        self
    }

    /// Starts the learner on a thread of its own.
    pub fn spawn(self) -> Result<Learner> {
        if let Some(option) = self.refused {
            let other = self.optimizer.name();
            let why = format!("{option}: is an option of anemone; give {other} its own with `optimizer`");
            return Err(Error::option(why).with_key(option));
        }
        if let Some(error) = self.no_cluster {
            return Err(error);
        }
        if self.kept == 0 {
            let why = "keep_checkpoints = 0: must be at least 1, or there would be nothing to go on from";
            return Err(Error::option(why).with_key("keep_checkpoints"));
        }
        let identity = self.whole_identity();
        let (folder, checkpoint) = match self.resume {
            Resume::Nothing => (None, None),
            Resume::Checkpoint(checkpoint) => (None, Some(*checkpoint)),
            Resume::Folder(dir) => {
                let folder = CheckpointFolder::open(&dir)?;
                let checkpoint = newest(&folder, &identity)?;
                (Some(folder), checkpoint)
            }
        };
        let drawn;
        let start = match (&checkpoint, &self.start) {
            (Some(checkpoint), _) => {
                super::check_circuit(&self.circuit, checkpoint)?;
                &checkpoint.params
            }
            (None, Start::Params(params)) => params,
            (None, start) => {
                drawn = start.draw(&self.circuit, self.seed)?;
                &drawn
            }
        };
        let build = |backend: &mut dyn crate::backend::Backend| self.optimizer.build(backend);
        let (backend, place, optimizer) = self.place.place_with(&self.circuit, start, build)?;
        let keeper = Keeper { identity, kept: self.kept, folder: Mutex::new(folder) };
        let ranks = self.place.ranks.clone();
        Learner::start(backend, optimizer, place, keeper, self.mean_rows, checkpoint.as_ref(), ranks)
    }

    fn whole_identity(&self) -> Identity {
        Identity {
            data: self.identity.clone(),
            decoder: String::new(),
            circuit_spec: circuit_digest(&self.circuit),
            optimizer: json!(self.optimizer),
            batch: Value::Null,
        }
    }
}

impl Start {
    fn draw(&self, circuit: &Circuit, seed: u64) -> Result<Params> {
        let noise = if let Self::Sequences(_) = self { NOISE_OF_SEQUENCES } else { NOISE };
        let mut params = Params::random(circuit, seed, noise)?;
        let (Self::Rows(rows) | Self::Sequences(rows)) = self else { return Ok(params) };
        circuit.check_batch(rows).map_err(|e| e.at("the rows to start from"))?;
        match self {
            Self::Sequences(_) => start_sequence(circuit, rows, &mut params)?,
            _ => start_from_rows(circuit, rows, seed, &mut params)?,
        }
        start_densities(circuit, rows, seed, &mut params)?;
        Ok(params)
    }
}

/// The newest checkpoint of a folder, if it has any and is of the same learner. A folder in which no checkpoint is
/// whole is an error: starting afresh would throw away what could perhaps be saved.
fn newest(folder: &CheckpointFolder, identity: &Identity) -> Result<Option<Checkpoint>> {
    let latest = folder.latest()?;
    let Some((path, checkpoint)) = latest.found else {
        return match latest.damaged.into_iter().next() {
            Some((path, reason)) => Err(reason.at("no checkpoint is whole").at_path(path)),
            None => Ok(None),
        };
    };
    match identity.differences(&checkpoint.meta.identity) {
        None => Ok(Some(checkpoint)),
        Some(differences) => Err(Error::state(format!(
            "the checkpoint is of another learner, which differs in {differences}; choose another folder, or start \
             from its parameters"
        ))
        .at_path(path)),
    }
}
