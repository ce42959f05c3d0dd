//! A pipeline, opened: its source, decoder and held-out rows, and the circuit that will learn them.
//!
//! Everything that `train`, `check` and `eval` do before the first batch. Opening reads headers, not data; building a
//! circuit whose structure is learned reads a sample of rows through the very stages that will feed it.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::detached::detached;
pub use super::machine::{Machine, Placed};
use super::model::{
    MemoryEstimate, build_circuit, can_start_without, estimate, initial_params, input_kind, learns_structure,
    needs_sample, start_of,
};
use super::observer::{Start, StartKind};
use super::open::{HeldOutRows, open_decoder, open_source};
use super::spec::{
    DEFAULT_HELD_OUT, DecodeSpec, Format, InputKind, ModelSpec, PipelineSpec, SourceSpec, StartSpec, ValidateSpec,
    expand_path, show_size,
};
use super::stream::{LEAST_MEMORY, Stream, StreamOptions};
use crate::backend::Backend;
use crate::batcher::{BatchSpec, OnBad};
use crate::circuit::{Circuit, Params};
use crate::data::{Batch, Cursor, Digest, Item};
use crate::decode::{Decoder, ValueKind};
use crate::error::{Error, ErrorKind, Result};
use crate::files::read_regular;
use crate::learner::Identity;
use crate::optim::{Optimizer, OptimizerSpec, Pace};
use crate::source::{IndexedSource, Reading, Source};
use crate::structure::Spreads;

/// What is part of a run whose inputs are densities: another way to start would be another run.
const DENSITY_START: &str = "densities start from rows";

/// How often somebody who waits for a structure hears of it.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The data side of a pipeline, opened.
#[derive(Clone)]
pub struct Inputs {
    /// Where rows come from.
    pub source: Source,
    /// Which columns of a table they come from.
    pub reading: Option<Reading>,
    /// Digests of all bytes of the files, if a resumed run is held to these.
    digests: Vec<String>,
    /// What they mean.
    pub decoder: Arc<dyn Decoder>,
    /// `[decode]` of that decoder, with everything that the data decided.
    pub decode: DecodeSpec,
    /// How they are put together.
    pub batch: BatchSpec,
    /// How the stages run.
    pub stream: StreamOptions,
    /// What is held out.
    pub valid: Option<HeldOut>,
    /// What is looked at only when the held-out rows say that the model is the best so far. No pipeline has any: a
    /// comparison does.
    pub test: Option<HeldOut>,
    /// The stream of a source that comes only once, if its first rows have been looked at already.
    begun: Arc<Mutex<Option<Stream>>>,
    /// What was found on the way that a user should know.
    notes: Arc<Mutex<Vec<String>>>,
}

/// Rows to validate on.
#[derive(Clone)]
pub struct HeldOut {
    /// Where they come from.
    pub source: Source,
    /// No more than this many.
    pub rows: Option<u64>,
    /// Mean log-likelihood of the rows under their own source, where that is known: nobody does better.
    pub source_log_likelihood: Option<f64>,
}

impl HeldOut {
    async fn prepare(spec: &PipelineSpec, validate: &ValidateSpec, like: Option<&Reading>) -> Result<Self> {
        let Some(synthetic) = spec.source.synthetic.as_ref().filter(|_| validate.source.files.is_empty()) else {
            return Ok(Self { rows: validate.rows, ..Self::open_source(&validate.source, spec, like).await? });
        };
        let rows = HeldOutRows::new(synthetic, validate.rows.unwrap_or(DEFAULT_HELD_OUT))?;
        // Known only where the distribution stays, and asked for only where it is quickly told.
        let is_quick = rows.num_rows().is_some_and(|rows| rows <= 1 << 16);
        let source_log_likelihood = match synthetic.drift {
            None if is_quick => Some(rows.source_log_likelihood()?),
            _ => None,
        };
        Ok(Self { source: Source::Indexed(Arc::new(rows)), rows: None, source_log_likelihood })
    }

    /// Other rows, read as those that the pipeline holds out; of the columns of `like`, where it names none.
    pub async fn open_files(spec: &PipelineSpec, files: &[String], like: Option<&Reading>) -> Result<Self> {
        let held_out =
            spec.validate.as_ref().map(|validate| &validate.source).filter(|source| !source.files.is_empty());
        let format = files.first().and_then(|file| Format::of(file));
        let model = held_out.unwrap_or(&spec.source).clone();
        let source = SourceSpec { files: files.to_vec(), format: format.or(model.format), synthetic: None, ..model };
        Self::open_source(&source, spec, like).await
    }

    /// Rows that can be looked at again and again.
    async fn open_source(source: &SourceSpec, spec: &PipelineSpec, like: Option<&Reading>) -> Result<Self> {
        let source = open_source(source, &spec.decode, spec.pipeline.memory, like).await?.source;
        if let Source::Live(_) = source {
            return Err(Error::option("files: a live stream comes only once, and held-out rows are looked at often"));
        }
        Ok(Self { source, rows: None, source_log_likelihood: None })
    }

    /// A stream over the held-out rows: once, in order.
    pub fn open(&self, inputs: &Inputs) -> Result<Stream> {
        let batch = BatchSpec { shuffle: false, drop_last: false, ..inputs.batch.clone() };
        let memory = (inputs.stream.memory / 2).max(LEAST_MEMORY);
        // What a record may be is as in training: a row that can be learned from can be looked at.
        let limits = inputs.stream.read_limits();
        let options = StreamOptions { epochs: Some(1), memory, limits: Some(limits), ..inputs.stream.clone() };
        Stream::open(&self.source, &inputs.decoder, &batch, &options, Cursor::default())
    }
}

/// A circuit on a device, and what moves its parameters.
pub struct Built {
    /// The circuit.
    pub placed: Placed,
    /// Its optimizer.
    pub optimizer: Box<dyn Optimizer>,
    /// What its parameters start from; `None` if they were given.
    pub start: Option<Start>,
}

impl Inputs {
    /// Opens everything that a pipeline names.
    pub async fn open(spec: &PipelineSpec) -> Result<Self> {
        let memory = spec.pipeline.memory;
        let opened = open_source(&spec.source, &spec.decode, memory, None).await.map_err(|e| e.at("source"))?;
        let (decoder, decode) = open_decoder(&spec.decode, &opened).await.map_err(|e| e.at("decode"))?;
        let valid = match &spec.validate {
            None => None,
            Some(validate) => {
                Some(HeldOut::prepare(spec, validate, opened.reading.as_ref()).await.map_err(|e| e.at("validate"))?)
            }
        };
        let inputs = Self {
            source: opened.source,
            reading: opened.reading,
            digests: opened.digests,
            decoder,
            decode,
            valid,
            test: None,
            begun: Arc::default(),
            notes: Arc::default(),
            batch: spec.batch.clone(),
            stream: spec.pipeline.clone(),
        };
        if let Some(valid) = &inputs.valid {
            // Looked at now, not after an epoch: a run should fail before it has taken hours.
            valid.open(&inputs)?.next().await.map_err(|e| e.at("validate"))?;
        }
        Ok(inputs)
    }

    /// The pipeline with everything that the data decided: columns and decoder.
    pub fn resolved(&self, spec: &PipelineSpec) -> PipelineSpec {
        let mut spec = PipelineSpec { decode: self.decode.clone(), ..spec.clone() };
        let source = &mut spec.source;
        if let (None, [], Some(reading)) = (&source.column, &source.columns[..], &self.reading) {
            match &reading.read[..] {
                [column] => source.column = Some(column.name.clone()),
                columns => source.columns = columns.iter().map(|column| column.name.clone()).collect(),
            }
        }
        spec
    }

    /// What a run must share with a checkpoint to go on from it.
    pub fn identity(&self, spec: &PipelineSpec) -> Result<Identity> {
        let mut written = json!(spec.circuit);
        if let (Some(StartSpec::Noise), Some(keys)) = (spec.circuit.start, written.as_object_mut()) {
            keys.remove("start"); // was not written when it was the only one: runs from then are the same runs
        }
        let mut circuit = Digest::new().part(written.to_string()).part(json!(self.decoder.shape()).to_string());
        if let ModelSpec::File { path } = &spec.circuit.model {
            let path = expand_path(path)?;
            circuit.update(read_regular(Path::new(&path)).map_err(|e| Error::io(&path, &e))?);
        } else if input_kind(&spec.circuit, self.decoder.shape().values) != InputKind::Categorical {
            circuit = circuit.part(DENSITY_START);
        }
        let mut decoder = self.decoder.identity();
        let (memory, default) = (self.stream.memory, StreamOptions::default().memory);
        if self.stream.bad.on_bad != OnBad::Fail && memory != default {
            // Records that are left out for their size count in no window: other limits would be other rows.
            decoder += &format!(" memory={memory}");
        }
        Ok(Identity {
            data: self.data_digest(),
            decoder,
            circuit: circuit.finish(),
            optimizer: json!(spec.learn.optimizer),
            batch: json!(self.batch),
        })
    }

    /// What the data is: the manifest's digest, and those of whole files where they are asked for.
    fn data_digest(&self) -> String {
        let manifest = &self.source.manifest().digest;
        match &self.digests[..] {
            [] => manifest.clone(),
            digests => digests.iter().fold(Digest::new().part(manifest), |all, one| all.part(one)).finish(),
        }
    }

    /// Builds the circuit, from a sample of rows if these decide what it is. `seen` is told from time to time how much
    /// of a structure has been learned, from 0 to 1.
    pub async fn build_circuit(&self, spec: &PipelineSpec, seen: &mut (dyn FnMut(f64) + Send)) -> Result<Circuit> {
        let sample = match needs_sample(&spec.circuit, self.decoder.shape()) {
            true => Some(self.sample(self.most_rows(spec, spec.circuit.structure_rows)).await?),
            false => None,
        };
        if let Some(sample) = &sample {
            self.note_coarse_columns(sample);
        }
        let (circuit, shape) = (spec.circuit.clone(), self.decoder.shape().clone());
        if learns_structure(&spec.circuit) {
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

    /// What a user should be told about the data, since this was called last.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
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
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(notes);
    }

    /// How many of the wanted rows are looked at before the first batch. A live stream is not kept waiting for more
    /// than one batch, but for a structure.
    fn most_rows(&self, spec: &PipelineSpec, wanted: u64) -> u64 {
        match self.source {
            Source::Live(_) if !learns_structure(&spec.circuit) => wanted.min(spec.batch.rows as u64),
            _ => wanted,
        }
    }

    /// The first rows of the stream. Those of a live stream are held, and learned from too.
    pub async fn sample(&self, rows: u64) -> Result<Batch> {
        let sample = match self.source {
            Source::Live(_) => {
                let begun = self.take_begun();
                let mut stream = begun.map_or_else(|| self.open_stream(Some(1), Cursor::default()), Ok)?;
                let seen = stream.look_ahead(rows).await;
                *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
                seen?
            }
            _ => some_rows(&mut self.open_stream(Some(1), Cursor::default())?, 0, rows).await?,
        };
        sample.ok_or_else(|| Error::data("there is no row to start from"))
    }

    /// The stream that is learned from, from `start` on: the one whose first rows were looked at, if they come only
    /// once.
    pub fn stream(&self, epochs: Option<u64>, start: Cursor) -> Result<Stream> {
        // Only a run that begins looks ahead: one that goes on has its circuit and its parameters.
        let begun = self.take_begun().filter(|_| start == Cursor::default());
        begun.map_or_else(|| self.open_stream(epochs, start), Ok)
    }

    fn take_begun(&self) -> Option<Stream> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn open_stream(&self, epochs: Option<u64>, start: Cursor) -> Result<Stream> {
        let options = StreamOptions { epochs, ..self.stream.clone() };
        Stream::open(&self.source, &self.decoder, &self.batch, &options, start)
    }

    /// Puts a circuit on the device and an optimizer beside it, with the parameters that the pipeline starts from, or
    /// those of `given`.
    pub async fn build_learner(
        &self,
        spec: &PipelineSpec,
        circuit: &Arc<Circuit>,
        machine: &Machine,
        given: Option<&Params>,
    ) -> Result<Built> {
        let budget = machine.memory_budget() as u64;
        refuse_too_large(&estimate(circuit, &spec.learn.optimizer, spec.batch.rows, budget, spec.pipeline.memory))?;
        let optimizer = self.optimizer(spec)?;
        let place = |params: &Params, start: Option<Start>| -> Result<Built> {
            let build = |backend: &mut dyn Backend| optimizer.build(backend).map_err(|e| e.at("learn"));
            let (placed, optimizer) = machine.place_with(circuit, params, build)?;
            Ok(Built { placed, optimizer, start })
        };
        if let Some(given) = given {
            return place(given, None);
        }
        let mut start = start_of(&spec.circuit, circuit);
        let sample = match self.most_rows(spec, start.rows) {
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
        place(&detached("start", move || initial_params(&how, &shared, sample.as_ref())).await?, Some(start))
    }

    /// The optimizer with its schedule in updates of these rows.
    pub fn optimizer(&self, spec: &PipelineSpec) -> Result<OptimizerSpec> {
        let optimizer = &spec.learn.optimizer;
        optimizer.clone().resolved(&self.pace(optimizer)).map_err(|e| e.at("learn"))
    }

    /// How many updates an optimizer makes of these rows; of full-batch EM, one a batch.
    pub fn pace(&self, optimizer: &OptimizerSpec) -> Pace {
        let batches_per_update = optimizer.batches_per_update().unwrap_or(1);
        Pace::new(self.num_rows(), self.batch.rows as u64, self.batch.drop_last, batches_per_update)
    }

    /// Rows of an epoch, where that is known before they are read.
    pub fn num_rows(&self) -> Option<u64> {
        match &self.source {
            Source::Indexed(source) => source.num_rows(),
            Source::Blocks(_) | Source::Live(_) => None,
        }
    }

    /// What inputs a variable has.
    pub fn describe_input(&self, spec: &PipelineSpec) -> &'static str {
        match (&spec.circuit.model, input_kind(&spec.circuit, self.decoder.shape().values)) {
            (ModelSpec::File { .. }, _) => "as the circuit's file says",
            (_, InputKind::Categorical) => "a table of probabilities each",
            (_, InputKind::Gaussian) => "as normal densities",
            (_, InputKind::DiscreteLogistic) => "as discrete logistic distributions",
        }
    }

    /// What is read, in a few words.
    pub fn describe_source(&self) -> String {
        let manifest = self.source.manifest();
        match &manifest.files[..] {
            [] => manifest.kind.clone(),
            [file] => format!("{} {}", manifest.kind, file.name),
            files => format!("{} {} … ({} files)", manifest.kind, files[0].name, files.len()),
        }
    }
}

/// As many rows of a stream as it has after the first `skip`, but no more than `rows`; `None` if it has none.
pub async fn some_rows(stream: &mut Stream, mut skip: u64, rows: u64) -> Result<Option<Batch>> {
    let mut taken: Option<Batch> = None;
    while let left = rows - taken.as_ref().map_or(0, Batch::num_rows) as u64
        && left > 0
        && let Some(Item::Batch { batch, .. }) = stream.next().await?
    {
        let len = batch.num_rows() as u64;
        let from = skip.min(len);
        skip -= from;
        let batch = batch.slice(from as usize..(from + left).min(len) as usize);
        match &mut taken {
            _ if batch.num_rows() == 0 => {}
            Some(taken) => taken.append(&batch)?,
            None => taken = Some(batch),
        }
    }
    Ok(taken)
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

/// How much memory this machine has, where it says so.
fn memory_of_this_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
