//! Learning as a service: one thread owns the device, everybody else holds a [`Learner`].
//!
//! A handle is cheap to clone and its questions may come from any task or thread while the learner learns: each is
//! answered between two batches and changes nothing. The queue is bounded, so a stream that is faster than the device
//! waits: that is the back-pressure. Waiting needs no particular async runtime.
//!
//! A [`Snapshot`] is a learner at one moment; [`checkpoint`] writes it to a folder and reads it back to the same bits,
//! [`CheckpointFolder`] keeps several of them, [`model`] is one without an optimizer. Fed by `batcher` through the
//! pipeline, or by a program of your own (`examples/embed.rs`); drives `optim` and `backend`.

pub mod checkpoint;
mod folder;
mod hashed_file;
mod identity;
pub mod model;
mod model_file;
mod progress;
mod publish;
mod reserve;
mod snapshot;
mod worker;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_channel::{Receiver, Sender};

pub use checkpoint::{Checkpoint, CheckpointMeta};
pub use folder::{CheckpointFolder, Hold, Latest, is_checkpoint_folder, latest, list};
pub use identity::{Identity, circuit_digest};
pub use progress::{Prequential, Progress};
pub use snapshot::Snapshot;

use self::worker::{Command, Fate, Reply, Worker};
use crate::backend::{Backend, PhaseSeconds};
use crate::circuit::{Circuit, Params, StatesInUse};
use crate::data::{Batch, Cursor};
use crate::error::{Error, Result};
use crate::optim::{Optimizer, StepReport};

/// Commands that wait while the worker is busy: one to go on with at once, one that is being made ready.
const QUEUE: usize = 2;

/// A handle to a circuit that is learning on a thread of its own. The thread ends when the last handle is dropped.
///
/// A call that has been accepted into the queue is carried out even if its future is dropped.
///
/// ```
/// use std::sync::Arc;
/// use anemone::backend::cpu::{CpuBackend, CpuOptions};
/// use anemone::circuit::{Categorical, Params};
/// use anemone::data::Batch;
/// use anemone::learner::Learner;
/// use anemone::optim::AnemoneSpec;
/// use anemone::structure::{Tying, hmm};
///
/// let circuit = Arc::new(hmm(3, 4, Categorical::new(5)?, Tying::Homogeneous)?);
/// let start = Params::random(&circuit, 1, 2.0)?;
/// let mut backend = Box::new(CpuBackend::new(circuit, &start, &CpuOptions::default())?);
/// let optimizer = AnemoneSpec::default().build(&mut *backend)?;
/// let learner = Learner::spawn(backend, optimizer, None)?;
///
/// let batch = Batch::from_rows(&[0u8, 1, 2, 4, 4, 0], 3)?;
/// let before = learner.log_likelihoods_blocking(batch.clone())?;
/// learner.learn_blocking(batch.clone())?;
/// assert!(learner.log_likelihoods_blocking(batch)?.iter().sum::<f64>() > before.iter().sum());
/// assert_eq!(learner.progress().rows, 2);
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone)]
pub struct Learner {
    circuit: Arc<Circuit>,
    commands: Sender<Command>,
    progress: Arc<Mutex<Progress>>,
    /// Nothing is ever sent here: it closes when the worker is gone.
    ended: Receiver<()>,
    fate: Fate,
}

impl Learner {
    /// Puts a backend and the optimizer that was built on it to work, from where they are or from a checkpoint. A
    /// checkpoint without optimizer state (a model) gives parameters and counters, and the optimizer starts afresh.
    pub fn spawn(
        mut backend: Box<dyn Backend>,
        mut optimizer: Box<dyn Optimizer>,
        resume: Option<&Checkpoint>,
    ) -> Result<Self> {
        let mut progress = Progress::default();
        if let Some(checkpoint) = resume {
            let (here, saved) = (circuit_digest(backend.circuit()), circuit_digest(&checkpoint.circuit));
            if here != saved {
                return Err(Error::state(format!(
                    "the checkpoint is of another circuit ({:.12}…) than this one ({:.12}…); build the same structure, \
                     or start a new run",
                    saved, here
                )));
            }
            backend.set_params(&checkpoint.params)?;
            if let Some(state) = &checkpoint.optimizer {
                optimizer.load(backend.as_mut(), state)?;
            }
            progress = checkpoint.meta.progress.clone();
        }
        let circuit = backend.circuit().clone();
        let public = Arc::new(Mutex::new(progress.clone()));
        let (commands, queue) = async_channel::bounded(QUEUE);
        let (alive, ended) = async_channel::bounded(1);
        let fate = Fate::default();
        let worker = Worker { backend, optimizer, progress, public: public.clone() };
        let worker_fate = fate.clone();
        thread::Builder::new()
            .name("anemone-learner".into())
            .spawn(move || worker::run(worker, &queue, &worker_fate, alive))
            .map_err(|e| Error::io("cannot start the learner's thread", &e))?;
        Ok(Self { circuit, commands, progress: public, ended, fate })
    }

    /// Learns from some rows and moves the cursor by as many. Waits while the queue is full. A batch that does not fit
    /// the circuit is refused and leaves no trace.
    pub async fn learn(&self, batch: Batch) -> Result<StepReport> {
        self.ask(|reply| Command::Learn { batch, end: None, reply }).await
    }

    /// Learns from some rows of a stream, which end at `end`.
    pub async fn learn_to(&self, batch: Batch, end: Cursor) -> Result<StepReport> {
        self.ask(|reply| Command::Learn { batch, end: Some(end), reply }).await
    }

    /// Says that an epoch is over and the next begins at `next`. Whether the parameters moved.
    pub async fn end_epoch(&self, next: Cursor) -> Result<bool> {
        self.ask(|reply| Command::EndEpoch { next, reply }).await
    }

    /// log p(x) of every row under the parameters of this moment; missing cells are marginalised.
    pub async fn log_likelihoods(&self, batch: Batch) -> Result<Vec<f64>> {
        self.ask(|reply| Command::LogLikelihoods { batch, reply }).await
    }

    /// A copy of the parameters of this moment.
    pub async fn params(&self) -> Result<Params> {
        self.ask(|reply| Command::Params { reply }).await
    }

    /// A copy of everything, taken between two batches. Write it wherever waiting for a disk does no harm.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.ask(|reply| Command::Snapshot { reply }).await
    }

    /// Where the device's time has gone so far, questions included.
    pub async fn phase_seconds(&self) -> Result<PhaseSeconds> {
        self.ask(|reply| Command::PhaseSeconds { reply }).await
    }

    /// How many states of its latents the circuit uses at this moment.
    pub async fn states_in_use(&self) -> Result<StatesInUse> {
        self.ask(|reply| Command::StatesInUse { reply }).await
    }

    /// [`Learner::learn`] for threads; it blocks, so not for async tasks.
    pub fn learn_blocking(&self, batch: Batch) -> Result<StepReport> {
        self.ask_blocking(|reply| Command::Learn { batch, end: None, reply })
    }

    /// [`Learner::log_likelihoods`] for threads; it blocks, so not for async tasks.
    pub fn log_likelihoods_blocking(&self, batch: Batch) -> Result<Vec<f64>> {
        self.ask_blocking(|reply| Command::LogLikelihoods { batch, reply })
    }

    /// How far it has come. Never waits for the device.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The circuit that learns.
    pub fn circuit(&self) -> &Arc<Circuit> {
        &self.circuit
    }

    /// Takes no more commands, waits until those in the queue are done and the device is released, and tells whether
    /// all went well. Other handles find the learner closed.
    pub async fn close(self) -> Result<()> {
        self.commands.close();
        let _ = self.ended.recv().await; // an error is what it waits for
        match self.fate.get() {
            Some(Some(error)) => Err(stopped(error)),
            _ => Ok(()),
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = async_channel::bounded(1);
        if self.commands.send(command(reply)).await.is_ok()
            && let Ok(answer) = answer.recv().await
        {
            return answer;
        }
        let _ = self.ended.recv().await; // the fate is settled a moment after the queue is closed
        Err(self.why_ended())
    }

    fn ask_blocking<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = async_channel::bounded(1);
        if self.commands.send_blocking(command(reply)).is_ok()
            && let Ok(answer) = answer.recv_blocking()
        {
            return answer;
        }
        let _ = self.ended.recv_blocking();
        Err(self.why_ended())
    }

    fn why_ended(&self) -> Error {
        match self.fate.get() {
            Some(Some(error)) => stopped(error),
            _ => Error::state("the learner was closed; start another one to go on"),
        }
    }
}

fn stopped(error: &Error) -> Error {
    error.clone().at("the learner stopped")
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
