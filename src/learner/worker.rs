//! The thread that owns the device: takes one command after the other and answers each.
//!
//! An answer is sent after the progress it made is public. A refused batch (an error of kind `Data`: nothing was
//! touched) concerns its sender alone; any other failure while learning leaves parameters that nobody can vouch for, so
//! the worker stops and says why to everybody. Driven by the handle in `mod.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use async_channel::{Receiver, Sender};

use super::{Checkpoint, Learned, Progress, Snapshot, View};
use crate::backend::cpu::top_down_of;
use crate::backend::{Backend, PhaseSeconds};
use crate::caught::panic_text;
use crate::circuit::{Params, StatesInUse};
use crate::cluster::Ranks;
use crate::data::{Batch, Cursor};
use crate::error::{Error, ErrorKind, Result};
use crate::optim::Optimizer;

/// Where an answer goes. Room for one, so that answering never waits, even if nobody listens any more.
pub(super) type Reply<T> = Sender<Result<T>>;

/// What a worker can be asked to do.
pub(super) enum Command {
    Learn {
        batch: Batch,
        /// The place just after the batch; `None` is as many rows further as it has.
        end: Option<Cursor>,
        reply: Reply<Learned>,
    },
    EndEpoch {
        /// Where the next epoch begins; `None` is at its first row.
        next: Option<Cursor>,
        reply: Reply<bool>,
    },
    LogLikelihoods {
        batch: Batch,
        reply: Reply<Vec<f64>>,
    },
    Params {
        reply: Reply<Params>,
    },
    Swap {
        params: Params,
        reply: Reply<Params>,
    },
    RaiseStep {
        reply: Reply<()>,
    },
    Restore {
        checkpoint: Box<Checkpoint>,
        reply: Reply<()>,
    },
    Snapshot {
        reply: Reply<Snapshot>,
    },
    PhaseSeconds {
        reply: Reply<PhaseSeconds>,
    },
    Meet {
        reply: Reply<Option<String>>,
    },
    StatesInUse {
        reply: Reply<StatesInUse>,
    },
    /// Nothing but a reason to look at the questions.
    Look,
}

/// What is answered before the next command.
pub(super) enum Question {
    View { reply: Reply<View> },
}

/// How a worker ended: `None` is because all had been done.
pub(super) type Fate = Arc<OnceLock<Option<Error>>>;

/// The device, the optimizer, and how far they have come.
pub(super) struct Worker {
    backend: Box<dyn Backend>,
    optimizer: Box<dyn Optimizer>,
    progress: Progress,
    /// What the handles show.
    public: Arc<Mutex<Progress>>,
    /// The view of the parameters as they are, if one was asked for since they moved.
    view: Option<View>,
    /// Who learns with it.
    ranks: Option<Ranks>,
}

/// The life of the thread. `ended` is dropped last: whoever waits for it finds the fate settled and the device
/// released.
pub(super) fn run(
    worker: Worker,
    commands: &Receiver<Command>,
    questions: &Receiver<Question>,
    fate: &Fate,
    ended: Sender<()>,
) {
    let outcome = catch_unwind(AssertUnwindSafe(move || worker.work(commands, questions)));
    let failure = match outcome {
        Ok(done) => done.err(),
        Err(panic) => {
            let text = panic_text(&*panic).unwrap_or("without a message");
            Some(Error::internal(format!("it panicked: {text}")))
        }
    };
    let _ = fate.set(failure); // nobody else sets it
    // Commands still in the queue would keep their senders waiting for ever: the queue lives as long as any handle.
    commands.close();
    questions.close();
    while commands.try_recv().is_ok() {}
    while questions.try_recv().is_ok() {}
    drop(ended);
}

impl Worker {
    pub fn new(
        backend: Box<dyn Backend>,
        optimizer: Box<dyn Optimizer>,
        progress: Progress,
        public: Arc<Mutex<Progress>>,
        ranks: Option<Ranks>,
    ) -> Self {
        Self { backend, optimizer, progress, public, view: None, ranks }
    }

    /// Until the queue is closed and empty, or learning fails.
    fn work(mut self, commands: &Receiver<Command>, questions: &Receiver<Question>) -> Result<()> {
        loop {
            let clock = Instant::now();
            let Ok(command) = commands.recv_blocking() else { return Ok(()) };
            self.progress.wait_seconds += clock.elapsed().as_secs_f64();
            while let Ok(Question::View { reply }) = questions.try_recv() {
                let clock = Instant::now();
                let answer = self.view();
                self.answer_query(clock, &reply, answer)?;
            }
            self.obey(command)?;
        }
    }

    fn obey(&mut self, command: Command) -> Result<()> {
        let clock = Instant::now();
        match command {
            Command::Look => Ok(()),
            Command::Learn { batch, end, reply } => {
                self.view = None;
                let report = self.learn(&batch, end);
                self.progress.compute_seconds += clock.elapsed().as_secs_f64();
                // Nothing was touched where a batch is refused, nor where a rank is lost in the midst of a step.
                let is_again = |kind| kind == ErrorKind::Data || kind == ErrorKind::RankLost && batch.part().is_some();
                let refused = report.as_ref().is_err_and(|e| is_again(e.kind()));
                let fatal = report.as_ref().err().filter(|_| !refused).cloned();
                self.answer(&reply, report);
                fatal.map_or(Ok(()), Err)
            }
            Command::EndEpoch { next, reply } => {
                self.view = None;
                let moved = self.end_epoch(next);
                self.progress.compute_seconds += clock.elapsed().as_secs_f64();
                let fatal = moved.as_ref().err().cloned();
                self.answer(&reply, moved);
                fatal.map_or(Ok(()), Err)
            }
            Command::LogLikelihoods { batch, reply } => {
                let answer = self.together(|worker| worker.backend.averaged_log_likelihoods(&batch));
                self.answer_query(clock, &reply, answer)
            }
            Command::Params { reply } => {
                let answer = self.backend.averaged_params();
                self.answer_query(clock, &reply, answer)
            }
            Command::Swap { params, reply } => match params.check(self.backend.circuit()) {
                Err(refused) => self.answer_query(clock, &reply, Err(refused)),
                Ok(()) => {
                    self.view = None;
                    let before = self.swap(&params);
                    let fatal = before.as_ref().err().cloned();
                    self.answer_query(clock, &reply, before)?;
                    fatal.map_or(Ok(()), Err)
                }
            },
            Command::RaiseStep { reply } => {
                self.view = None; // θ̄ starts anew
                let raised = self.optimizer.raise_step(self.backend.as_mut());
                let fatal = raised.as_ref().err().cloned();
                self.answer_query(clock, &reply, raised)?;
                fatal.map_or(Ok(()), Err)
            }
            Command::Restore { checkpoint, reply } => {
                self.view = None;
                let restored = self.restore(&checkpoint);
                let fatal = restored.as_ref().err().cloned();
                self.answer_query(clock, &reply, restored)?;
                fatal.map_or(Ok(()), Err)
            }
            Command::Snapshot { reply } => {
                let answer = self.snapshot();
                self.answer_query(clock, &reply, answer)
            }
            Command::PhaseSeconds { reply } => {
                let answer = Ok(self.backend.phase_seconds());
                self.answer_query(clock, &reply, answer)
            }
            Command::Meet { reply } => {
                let answer = self.backend.meet();
                self.answer_query(clock, &reply, answer)
            }
            Command::StatesInUse { reply } => {
                let answer = self.states_in_use();
                self.answer_query(clock, &reply, answer)
            }
        }
    }

    fn learn(&mut self, batch: &Batch, end: Option<Cursor>) -> Result<Learned> {
        let report = match batch.part() {
            None => self.together(|worker| worker.optimizer.learn(worker.backend.as_mut(), batch))?,
            // Those that are left have other shards then: whoever gives out the rows begins the step again.
            Some(_) => self.optimizer.learn(self.backend.as_mut(), batch)?,
        };
        let end = end.unwrap_or_else(|| {
            let mut cursor = self.progress.cursor.clone();
            cursor.row += batch.num_rows() as u64;
            cursor
        });
        self.progress.learned(&report, end); // only now: the cursor never runs ahead of the parameters
        let Progress { batches, updates, .. } = self.progress;
        Ok(Learned { batch: report.batch, step_size: report.step_size, batches, updates })
    }

    /// Does what all ranks do. Where one of them is lost and the others can go on, they do it again without it.
    fn together<T>(&mut self, mut act: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        loop {
            match (act(self), &self.ranks) {
                (Err(error), Some(ranks)) if error.kind() == ErrorKind::RankLost && ranks.can_shrink() => {
                    ranks.shrink(self.progress.batches)?;
                }
                (done, _) => return done,
            }
        }
    }

    fn end_epoch(&mut self, next: Option<Cursor>) -> Result<bool> {
        let moved = self.optimizer.end_epoch(self.backend.as_mut())?;
        let next = next.unwrap_or_else(|| Cursor { epoch: self.progress.epoch + 1, ..Cursor::default() });
        self.progress.ended_epoch(moved, next);
        Ok(moved)
    }

    /// The view of this moment; the same one until the parameters move.
    fn view(&mut self) -> Result<View> {
        if let Some(view) = &self.view {
            return Ok(view.clone());
        }
        let Progress { batches, updates, .. } = self.progress;
        let view = View::new(self.backend.evaluator()?, batches, updates, self.optimizer.is_averaged());
        self.view = Some(view.clone());
        Ok(view)
    }

    fn swap(&mut self, params: &Params) -> Result<Params> {
        let before = self.backend.averaged_params()?;
        self.backend.set_params(params)?;
        self.optimizer.restart(self.backend.as_mut())?;
        Ok(before)
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.backend.set_params(&checkpoint.params)?;
        if let Some(state) = &checkpoint.optimizer {
            self.optimizer.load(self.backend.as_mut(), state)?;
        }
        self.progress = checkpoint.meta.progress.clone();
        Ok(())
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            circuit: self.backend.circuit().clone(),
            params: self.backend.averaged_params()?,
            optimizer: self.optimizer.save(self.backend.as_ref())?,
            progress: self.progress.clone(),
        })
    }

    /// Of the parameters that answer, which a device does not have where it learns: on the host, like `inspect`.
    fn states_in_use(&self) -> Result<StatesInUse> {
        let circuit = self.backend.circuit();
        StatesInUse::new(circuit, &top_down_of(circuit, &self.backend.averaged_params()?))
    }

    fn answer_query<T>(&mut self, clock: Instant, reply: &Reply<T>, answer: Result<T>) -> Result<()> {
        self.progress.query_seconds += clock.elapsed().as_secs_f64();
        self.answer(reply, answer);
        Ok(())
    }

    fn answer<T>(&self, reply: &Reply<T>, answer: Result<T>) {
        self.public.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.progress);
        let _ = reply.try_send(answer); // the sender may have lost interest
    }
}
