//! The circuit that will learn a pipeline's rows, where its parameters start, and the optimizer beside it.
//!
//! A circuit whose structure is learned reads a sample of rows through the very stages that will feed it, and so does a
//! start from rows. Fed by `prepare`, which opens the data.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::model::{
    MemoryEstimate, build_circuit, can_start_without, estimate, initial_params, learns_structure, needs_sample,
    start_of,
};
use super::observer::{Start, StartKind};
use super::prepare::Inputs;
use super::spec::show_size;
use crate::backend::PlaceSpec;
use crate::circuit::{Circuit, Params};
use crate::data::Batch;
use crate::decode::ValueKind;
use crate::detached::detached;
use crate::error::{Error, ErrorKind, Result};
use crate::learner::{Checkpoint, Learner, LearnerBuilder};
use crate::machine_memory::memory_of_this_machine;
use crate::source::Source;
use crate::structure::Spreads;

/// How often somebody who waits for a structure hears of it.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// A circuit that is ready to learn.
pub struct Built {
    /// The circuit, its optimizer and the device.
    pub learner: Learner,
    /// What its parameters start from; `None` if they were given.
    pub start: Option<Start>,
}

/// What a learner goes on from.
pub enum Given {
    /// The pipeline's own start.
    Nothing,
    /// These parameters.
    Params(Params),
    /// All that a learner was.
    Checkpoint(Box<Checkpoint>),
}

impl Inputs {
    /// Builds the circuit, from a sample of rows if these decide what it is. `seen` is told from time to time how much
    /// of a structure has been learned, from 0 to 1.
    pub async fn build_circuit(&self, seen: &mut (dyn FnMut(f64) + Send)) -> Result<Circuit> {
        let (circuit, shape) = (self.spec.circuit.clone(), self.decoder.shape().clone());
        let sample = match needs_sample(&circuit, &shape) {
            true => Some(self.sample(self.most_rows(circuit.structure_rows)).await?),
            false => None,
        };
        if let Some(sample) = &sample {
            self.note_coarse_columns(sample);
        }
        if learns_structure(&circuit) {
            seen(0.0);
        }
        let share = Arc::new(AtomicU64::new(0));
        let told = share.clone();
        let tell = move |share: f64| told.store(share.to_bits(), Ordering::Relaxed);
        let mut built = pin!(detached("structure", move || build_circuit(&circuit, &shape, sample.as_ref(), &tell)));
        loop {
            tokio::select! {
                biased;
                circuit = &mut built => return circuit,
                () = tokio::time::sleep(PROGRESS_INTERVAL) => seen(f64::from_bits(share.load(Ordering::Relaxed))),
            }
        }
    }

    /// Takes note of columns of real numbers that lose their differences as `f32`.
    fn note_coarse_columns(&self, sample: &Batch) {
        if self.decoder.shape().values != ValueKind::Reals {
            return;
        }
        let spreads = Spreads::of_rows(sample);
        let coarse = (0..sample.num_vars()).filter(|&var| spreads.of(var).is_coarse());
        let name = |var: usize| match &self.reading {
            Some(reading) if reading.read.len() == sample.num_vars() => format!("column {}", reading.read[var]),
            _ => format!("variable {var}"),
        };
        let notes = coarse.map(|var| {
            format!(
                "{}: values about {:e} are read as f32, which tells values {:.0e} apart: subtract an offset first",
                name(var),
                spreads.of(var).centre,
                f64::from(f32::EPSILON) * spreads.of(var).centre.abs()
            )
        });
        self.add_notes(notes);
    }

    /// How many of the wanted rows are looked at before the first batch. A live stream is not kept waiting for more
    /// than one batch, but for a structure.
    fn most_rows(&self, wanted: u64) -> u64 {
        match self.source {
            Source::Live(_) if !learns_structure(&self.spec.circuit) => wanted.min(self.spec.batch.rows as u64),
            _ => wanted,
        }
    }

    /// Puts a circuit on the device and an optimizer beside it, with the parameters that the pipeline starts from, or
    /// from what is given.
    pub async fn build_learner(&self, circuit: &Arc<Circuit>, place: &PlaceSpec, given: Given) -> Result<Built> {
        let spec = &self.spec;
        let place = &place.with_shards(spec.batch.shards)?;
        let budget = place.memory_budget() as u64;
        refuse_too_large(&estimate(circuit, &spec.learn.optimizer, spec.batch.rows, budget, spec.pipeline.memory))?;
        let learner = Learner::on(circuit.clone()).place(place.clone()).optimizer(self.optimizer()?);
        let learner = learner.mean_rows(spec.drift.unwrap_or_default().mean_rows);
        let spawn = |learner: LearnerBuilder, start| -> Result<Built> {
            let learner = learner.spawn().map_err(|error| match error.kind() {
                ErrorKind::Option | ErrorKind::Unsupported => error.at("learn"),
                _ => error,
            })?;
            Ok(Built { learner, start })
        };
        match given {
            Given::Nothing => {}
            Given::Params(params) => return spawn(learner.params(params), None),
            Given::Checkpoint(checkpoint) => return spawn(learner.resume_from(*checkpoint), None),
        }
        let (params, start) = self.starting_params(circuit).await?;
        spawn(learner.params(params), Some(start))
    }

    /// The parameters that the pipeline starts from, and what they are made of.
    pub(super) async fn starting_params(&self, circuit: &Arc<Circuit>) -> Result<(Params, Start)> {
        let spec = &self.spec;
        let mut start = start_of(&spec.circuit, circuit);
        let sample = match self.most_rows(start.rows) {
            0 => None,
            rows => match self.sample(rows).await {
                // The run itself meets the same rows, and tells of them with its ledger.
                Err(error) if error.kind() == ErrorKind::Data && can_start_without(&spec.circuit, circuit) => {
                    start.from = StartKind::Noise;
                    None
                }
                sample => Some(sample?),
            },
        };
        start.rows = sample.as_ref().map_or(0, |sample| sample.num_rows() as u64);
        let (how, shared) = (spec.circuit.clone(), circuit.clone());
        let params = detached("start", move || initial_params(&how, &shared, sample.as_ref())).await?;
        Ok((params, start))
    }
}

/// Refuses what this machine has not enough memory for, before anything is allocated.
pub(crate) fn refuse_too_large(needed: &MemoryEstimate) -> Result<()> {
    match memory_of_this_machine().filter(|&memory| needed.total() > memory) {
        None => Ok(()),
        Some(memory) => Err(Error::option(format!(
            "circuit: needs {} in all, {} for its parameters and {} for the optimizer, and this machine has {}: lower \
             circuit.latents, or the number of categories",
            show_size(needed.total()),
            show_size(needed.parameters),
            show_size(needed.optimizer),
            show_size(memory)
        ))),
    }
}
