//! The thread that owns the device: takes one command after the other and answers each.
//!
//! An answer is sent after the progress it made is public. A refused batch (an error of kind `Data`: nothing was
//! touched) concerns its sender alone; any other failure while learning leaves parameters that nobody can vouch for, so
//! the worker stops and says why to everybody. Driven by the handle in `mod.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use async_channel::{Receiver, Sender};

use super::{Progress, Snapshot};
use crate::backend::cpu::top_down_of;
use crate::backend::{Backend, PhaseSeconds};
use crate::caught::panic_text;
use crate::circuit::{Params, StatesInUse};
use crate::data::{Batch, Cursor};
use crate::error::{Error, ErrorKind, Result};
use crate::optim::{Optimizer, StepReport};

/// Where an answer goes. Room for one, so that answering never waits, even if nobody listens any more.
pub(super) type Reply<T> = Sender<Result<T>>;

/// What a worker can be asked to do.
pub(super) enum Command {
    Learn {
        batch: Batch,
        /// The place just after the batch; `None` is as many rows further as it has.
        end: Option<Cursor>,
        reply: Reply<StepReport>,
    },
    EndEpoch {
        next: Cursor,
        reply: Reply<bool>,
    },
    LogLikelihoods {
        batch: Batch,
        reply: Reply<Vec<f64>>,
    },
    Params {
        reply: Reply<Params>,
    },
    Snapshot {
        reply: Reply<Snapshot>,
    },
    PhaseSeconds {
        reply: Reply<PhaseSeconds>,
    },
    StatesInUse {
        reply: Reply<StatesInUse>,
    },
}

/// How a worker ended: `None` is because all had been done.
pub(super) type Fate = Arc<OnceLock<Option<Error>>>;

/// The device, the optimizer, and how far they have come.
pub(super) struct Worker {
    pub backend: Box<dyn Backend>,
    pub optimizer: Box<dyn Optimizer>,
    pub progress: Progress,
    /// What the handles show.
    pub public: Arc<Mutex<Progress>>,
}

/// The life of the thread. `ended` is dropped last: whoever waits for it finds the fate settled and the device
/// released.
pub(super) fn run(worker: Worker, commands: &Receiver<Command>, fate: &Fate, ended: Sender<()>) {
    let outcome = catch_unwind(AssertUnwindSafe(move || worker.work(commands)));
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
    while commands.try_recv().is_ok() {}
    drop(ended);
}

impl Worker {
    /// Until the queue is closed and empty, or learning fails.
    fn work(mut self, commands: &Receiver<Command>) -> Result<()> {
        loop {
            let clock = Instant::now();
            let Ok(command) = commands.recv_blocking() else { return Ok(()) };
            self.progress.wait_seconds += clock.elapsed().as_secs_f64();
            self.obey(command)?;
        }
    }

    fn obey(&mut self, command: Command) -> Result<()> {
        let clock = Instant::now();
        match command {
            Command::Learn { batch, end, reply } => {
                let report = self.learn(&batch, end);
                self.progress.compute_seconds += clock.elapsed().as_secs_f64();
                let refused = report.as_ref().is_err_and(|e| e.kind() == ErrorKind::Data);
                let fatal = report.as_ref().err().filter(|_| !refused).cloned();
                self.answer(&reply, report);
                fatal.map_or(Ok(()), Err)
            }
            Command::EndEpoch { next, reply } => {
                let moved = self.end_epoch(next);
                self.progress.compute_seconds += clock.elapsed().as_secs_f64();
                let fatal = moved.as_ref().err().cloned();
                self.answer(&reply, moved);
                fatal.map_or(Ok(()), Err)
            }
            Command::LogLikelihoods { batch, reply } => {
                let answer = self.backend.averaged_log_likelihoods(&batch);
                self.answer_query(clock, &reply, answer)
            }
            Command::Params { reply } => {
                let answer = self.backend.averaged_params();
                self.answer_query(clock, &reply, answer)
            }
            Command::Snapshot { reply } => {
                let answer = self.snapshot();
                self.answer_query(clock, &reply, answer)
            }
            Command::PhaseSeconds { reply } => {
                let answer = Ok(self.backend.phase_seconds());
                self.answer_query(clock, &reply, answer)
            }
            Command::StatesInUse { reply } => {
                let answer = self.states_in_use();
                self.answer_query(clock, &reply, answer)
            }
        }
    }

    fn learn(&mut self, batch: &Batch, end: Option<Cursor>) -> Result<StepReport> {
        let report = self.optimizer.learn(self.backend.as_mut(), batch)?;
        let end = end.unwrap_or_else(|| {
            let mut cursor = self.progress.cursor.clone();
            cursor.row += batch.num_rows() as u64;
            cursor
        });
        self.progress.learned(&report, end); // only now: the cursor never runs ahead of the parameters
        Ok(report)
    }

    fn end_epoch(&mut self, next: Cursor) -> Result<bool> {
        let moved = self.optimizer.end_epoch(self.backend.as_mut())?;
        self.progress.ended_epoch(moved, next);
        Ok(moved)
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
