//! Learning as a service: one thread owns the device, everybody else holds a [`Learner`].
//!
//! A handle is cheap to clone and its questions may come from any task or thread while the learner learns: each is
//! answered between two batches and changes nothing. The queue is bounded, so a stream that is faster than the device
//! waits: that is the back-pressure. Waiting needs no particular async runtime.
//!
//! A [`Snapshot`] is a learner at one moment; [`checkpoint`] writes it to a folder and reads it back to the same bits,
//! [`CheckpointFolder`] keeps several of them, [`model`] is one without an optimizer. Fed by `batcher` through the
//! pipeline, or by a program of your own (`examples/embed.rs`); drives `optim` and `backend`.

mod blocking;
mod builder;
pub mod checkpoint;
pub mod ctrlg;
pub mod drift;
mod folder;
mod foreign_tensors;
mod hashed_file;
mod identity;
mod keeper;
pub mod model;
mod model_file;
mod progress;
mod publish;
mod recent_rows;
mod reserve;
mod sent;
mod snapshot;
mod view;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_channel::{Receiver, Sender};

pub use builder::LearnerBuilder;
pub use checkpoint::{Checkpoint, CheckpointMeta};
pub use folder::{CheckpointFolder, Hold, Latest, is_checkpoint_folder, latest, list};
pub use identity::{Identity, circuit_digest};
pub use progress::{Prequential, Progress};
pub use recent_rows::{DEFAULT_MEAN_ROWS, RecentRows};
pub use snapshot::Snapshot;
pub use view::View;

use self::blocking::{wait, with_blocking_twins};
use self::keeper::{KEPT, Keeper};
use self::worker::{Command, Fate, Question, Reply, Worker};
use crate::backend::{Backend, BatchReport, Device, PhaseSeconds, Place, TrainingPrecision};
use crate::circuit::{Circuit, Params, StatesInUse};
use crate::cluster::Ranks;
use crate::data::{Batch, Cursor};
use crate::detached::detached;
use crate::error::{Error, Result};
use crate::optim::Optimizer;

/// Commands that wait while the worker is busy: one to go on with at once, one that is being made ready.
const QUEUE: usize = 2;

/// A handle to a circuit that is learning on a thread of its own. The thread ends when the last handle is dropped.
///
/// A call that has been accepted into the queue is carried out even if its future is dropped. Every async method has a
/// twin that blocks, for threads.
///
/// ```
/// use anemone::{Batch, Categorical, Learner, hmm};
///
/// let learner = Learner::on(hmm(3, 4, Categorical::new(5)?)?).spawn()?;
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
    place: Arc<Place>,
    commands: Sender<Command>,
    /// What is answered before the next batch, however many wait.
    questions: Sender<Question>,
    progress: Arc<Mutex<Progress>>,
    keeper: Arc<Keeper>,
    /// Nothing is ever sent here: it closes when the worker is gone.
    ended: Receiver<()>,
    fate: Fate,
}

/// What a batch brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// The batch under the parameters before the update: test, then train.
    pub batch: BatchReport,
    /// The step size, if the parameters moved.
    pub step_size: Option<f64>,
    /// Batches learned from so far, this one included.
    pub batches: u64,
    /// Updates made so far.
    pub updates: u64,
}

impl Learner {
    /// A learner on this circuit, to be configured and [spawned](LearnerBuilder::spawn).
    pub fn on(circuit: impl Into<Arc<Circuit>>) -> LearnerBuilder {
        LearnerBuilder::new(circuit.into())
    }

    /// Puts a backend and the optimizer that was built on it to work, from where they are or from a checkpoint.
    #[doc(hidden)]
    pub fn from_parts(
        backend: Box<dyn Backend>,
        optimizer: Box<dyn Optimizer>,
        resume: Option<&Checkpoint>,
    ) -> Result<Self> {
        let circuit_spec = circuit_digest(backend.circuit());
        let identity = Identity { circuit_spec, optimizer: optimizer.name().into(), ..Identity::default() };
        let keeper = Keeper { identity, kept: KEPT, folder: Mutex::default() };
        let (device, name, precision) = (Device::Cpu, "made by the caller".into(), TrainingPrecision::default());
        Self::start(
            backend,
            optimizer,
            Place { device, name, why: None, precision },
            keeper,
            DEFAULT_MEAN_ROWS,
            resume,
            None,
        )
    }

    fn start(
        mut backend: Box<dyn Backend>,
        mut optimizer: Box<dyn Optimizer>,
        place: Place,
        keeper: Keeper,
        mean_rows: u64,
        resume: Option<&Checkpoint>,
        ranks: Option<Ranks>,
    ) -> Result<Self> {
        let mut progress = Progress::default();
        if let Some(checkpoint) = resume {
            check_circuit(backend.circuit(), checkpoint)?;
            backend.set_params(&checkpoint.params)?;
            if let Some(state) = &checkpoint.optimizer {
                optimizer.load(backend.as_mut(), state)?;
            }
            progress = checkpoint.meta.progress.clone();
        }
        progress.recent_rows.set_length(mean_rows);
        let circuit = backend.circuit().clone();
        let public = Arc::new(Mutex::new(progress.clone()));
        let (commands, queue) = async_channel::bounded(QUEUE);
        let (questions, asked) = async_channel::unbounded();
        let (alive, ended) = async_channel::bounded(1);
        let fate = Fate::default();
        let worker = Worker::new(backend, optimizer, progress, public.clone(), ranks);
        let worker_fate = fate.clone();
        thread::Builder::new()
            .name("anemone-learner".into())
            .spawn(move || worker::run(worker, &queue, &asked, &worker_fate, alive))
            .map_err(|e| Error::io("cannot start the learner's thread", &e))?;
        let (place, keeper) = (Arc::new(place), Arc::new(keeper));
        Ok(Self { circuit, place, commands, questions, progress: public, keeper, ended, fate })
    }

    with_blocking_twins! {
        /// Learns from some rows and moves the cursor by as many. Waits while the queue is full. A batch that does not
        /// fit the circuit is refused and leaves no trace.
        pub async fn learn / learn_blocking(&self, batch: Batch) -> Result<Learned> {
            self.ask(|reply| Command::Learn { batch, end: None, reply }).await
        }

        /// Learns from some rows of a stream, which end at `end`.
        pub async fn learn_to / learn_to_blocking(&self, batch: Batch, end: Cursor) -> Result<Learned> {
            self.ask(|reply| Command::Learn { batch, end: Some(end), reply }).await
        }

        /// Says that an epoch is over: full-batch EM updates now, the others use up an incomplete group of batches.
        /// Returns true if the parameters moved.
        pub async fn end_epoch / end_epoch_blocking(&self) -> Result<bool> {
            self.ask(|reply| Command::EndEpoch { next: None, reply }).await
        }

        /// Says that an epoch is over and the next begins at `next`. Returns true if the parameters moved.
        pub async fn end_epoch_at / end_epoch_at_blocking(&self, next: Cursor) -> Result<bool> {
            self.ask(|reply| Command::EndEpoch { next: Some(next), reply }).await
        }

        /// log p(x) of every row under the parameters of this moment, on the device that learns; missing cells are
        /// marginalised. For many questions, or for several about one moment, take a [`view`](Self::view).
        pub async fn log_likelihoods / log_likelihoods_blocking(&self, batch: Batch) -> Result<Vec<f64>> {
            self.ask(|reply| Command::LogLikelihoods { batch, reply }).await
        }

        /// The parameters of this moment, for any number of questions. Taken after the batch that is being learned and
        /// before those that wait; views of the same moment share one copy.
        pub async fn view / view_blocking(&self) -> Result<View> {
            self.question(|reply| Question::View { reply }).await
        }

        /// A copy of the parameters of this moment.
        pub async fn params / params_blocking(&self) -> Result<Params> {
            self.ask(|reply| Command::Params { reply }).await
        }

        /// Replaces the parameters. Averages, momentum and all else that the optimizer has gathered begin afresh; the
        /// counters and the cursor go on. Returns what answered until then.
        pub async fn swap / swap_blocking(&self, params: Params) -> Result<Params> {
            self.ask(|reply| Command::Swap { params, reply }).await
        }

        /// Learns faster for a while, because the rows have changed: the schedule of the step starts again, with a step
        /// that is raised at first; averages, momentum and flows that wait for an update are forgotten.
        /// Parameters, counters and cursor stay. Part of the optimizer's state: a resumed learner is bit-identical.
        pub async fn raise_step / raise_step_blocking(&self) -> Result<()> {
            self.ask(|reply| Command::RaiseStep { reply }).await
        }

        /// Writes a checkpoint of this moment into a folder and returns its path. It appears whole or not at all, on a
        /// thread of its own while learning goes on; the oldest of more than [a few](LearnerBuilder::keep_checkpoints)
        /// are removed. [`LearnerBuilder::resume`] goes on from it.
        pub async fn checkpoint / checkpoint_blocking(&self, folder: impl AsRef<Path>) -> Result<PathBuf> {
            let (folder, keeper) = (folder.as_ref().to_path_buf(), self.keeper.clone());
            let snapshot = self.snapshot().await?;
            detached("checkpoint", move || keeper.write(&folder, &snapshot)).await
        }

        /// A copy of everything, taken between two batches. Write it wherever waiting for a disk does no harm.
        pub async fn snapshot / snapshot_blocking(&self) -> Result<Snapshot> {
            self.ask(|reply| Command::Snapshot { reply }).await
        }

        /// Becomes what a checkpoint of the same circuit and optimizer says: parameters, optimizer, counters and place.
        pub async fn restore / restore_blocking(&self, checkpoint: Checkpoint) -> Result<()> {
            check_circuit(&self.circuit, &checkpoint)?;
            self.ask(|reply| Command::Restore { checkpoint: Box::new(checkpoint), reply }).await
        }

        /// Where the device's time has gone so far, questions included.
        pub async fn phase_seconds / phase_seconds_blocking(&self) -> Result<PhaseSeconds> {
            self.ask(|reply| Command::PhaseSeconds { reply }).await
        }

        /// Agrees with the other ranks, where there are any, on how flows are summed; every rank calls it, or none. If
        /// left out, ranks agree before their first sum. Returns a sentence for the user, where there is a choice: who
        /// computes where, and by which way flows are summed.
        pub async fn meet / meet_blocking(&self) -> Result<Option<String>> {
            self.ask(|reply| Command::Meet { reply }).await
        }

        /// How many states of its latents the circuit uses at this moment.
        pub async fn states_in_use / states_in_use_blocking(&self) -> Result<StatesInUse> {
            self.ask(|reply| Command::StatesInUse { reply }).await
        }
    }

    /// How far it has come. Never waits for the device.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The circuit that learns.
    pub fn circuit(&self) -> &Arc<Circuit> {
        &self.circuit
    }

    /// Where it learns, and how precisely.
    pub fn place(&self) -> &Place {
        &self.place
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

    /// [`close`](Self::close) for threads: it blocks, so not for async tasks.
    pub fn close_blocking(self) -> Result<()> {
        wait(self.close())
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

    /// Asks something that does not wait for the batches in the queue.
    async fn question<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T> {
        let (reply, answer) = async_channel::bounded(1);
        if self.questions.send(question(reply)).await.is_ok() {
            // The worker looks at questions before each command. One that waits for a command gets one; where the queue
            // is full it has some to come.
            let _full_or_closed = self.commands.try_send(Command::Look);
            if let Ok(answer) = answer.recv().await {
                return answer;
            }
        }
        let _ = self.ended.recv().await;
        Err(self.why_ended())
    }

    fn why_ended(&self) -> Error {
        match self.fate.get() {
            Some(Some(error)) => stopped(error),
            _ => Error::state("the learner was closed; start another one to go on"),
        }
    }
}

/// Refuses a checkpoint of another circuit.
fn check_circuit(circuit: &Circuit, checkpoint: &Checkpoint) -> Result<()> {
    let (here, saved) = (circuit_digest(circuit), circuit_digest(&checkpoint.circuit));
    if here == saved {
        return Ok(());
    }
    Err(Error::state(format!(
        "the checkpoint is of another circuit ({saved:.12}…) than this one ({here:.12}…); build the same structure, or \
         start a new run"
    )))
}

fn stopped(error: &Error) -> Error {
    error.clone().at("the learner stopped")
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
