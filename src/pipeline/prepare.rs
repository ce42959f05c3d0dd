//! A pipeline, opened: its source, decoder and held-out rows.
//!
//! What `train`, `check` and `eval` do first. Opening reads headers, not data. `build` makes the circuit that will
//! learn these rows.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_channel::Sender;
use serde_json::json;

pub use super::build::{Built, Given};
use super::feed::Feed;
use super::held_out::HeldOutRows;
use super::model::{are_tables, input_kind};
use super::open::{Opened, OpenedDecoder, open_decoder, open_source, open_source_telling};
use super::spec::{
    DEFAULT_HELD_OUT, DecodeSpec, Format, InputKind, ModelSpec, PipelineSpec, SourceSpec, StartSpec, ValidateSpec,
    expand_path,
};
use super::stream::{LEAST_MEMORY, Stream, StreamOptions};
use super::table::TableReport;
use crate::batcher::{BatchSpec, OnBad};
use crate::data::{Batch, Cursor, Digest, Item};
use crate::decode::Decoder;
use crate::error::{Error, Result};
use crate::files::read_regular;
use crate::learner::Identity;
use crate::optim::{OptimizerSpec, Pace};
use crate::order::Share;
use crate::source::{IndexedSource, Reading, Source};

/// What is part of a run whose inputs are densities: another way to start would be another run.
const DENSITY_START: &str = "densities start from rows";

/// The data side of a pipeline, opened.
#[derive(Clone)]
pub struct Inputs {
    /// The pipeline, with everything that the data decided: columns and decoder.
    pub spec: PipelineSpec,
    /// Where rows come from.
    pub source: Source,
    /// Which columns of a table they come from.
    pub reading: Option<Reading>,
    /// Digests of all bytes of the files, if a resumed run is held to these.
    digests: Vec<String>,
    /// What they mean.
    pub decoder: Arc<dyn Decoder>,
    /// What the columns of a table are understood as.
    pub table: Option<Arc<TableReport>>,
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
            None if is_quick && synthetic.changes.is_empty() => Some(rows.source_log_likelihood()?),
            _ => None,
        };
        Ok(Self { source: Source::Indexed(Arc::new(rows)), rows: None, source_log_likelihood })
    }

    /// Other rows, read as those that the pipeline holds out; of the columns of `like`, where it names none.
    pub async fn open_files(spec: &PipelineSpec, files: &[String], like: Option<&Reading>) -> Result<Self> {
        let held_out =
            spec.validate.as_ref().map(|validate| &validate.source).filter(|source| !source.files.is_empty());
        let format = files.first().and_then(|file| Format::of(file));
        let model = held_out.unwrap_or(&spec.source).at_rest();
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
        self.open_share(inputs, Share::default())
    }

    /// A stream over those of one shard.
    pub(super) fn open_share(&self, inputs: &Inputs, share: Share) -> Result<Stream> {
        let PipelineSpec { batch, pipeline, .. } = &inputs.spec;
        let batch = BatchSpec { shuffle: false, drop_last: false, ..batch.clone() };
        let memory = (pipeline.memory / 2).max(LEAST_MEMORY);
        // What a record may be is as in training: a row that can be learned from can be looked at.
        let limits = pipeline.read_limits();
        let options = StreamOptions { epochs: Some(1), memory, limits: Some(limits), share, ..pipeline.clone() };
        Stream::open(&self.source, &inputs.decoder, &batch, &options, Cursor::default())
    }
}

impl Inputs {
    /// Opens everything that a pipeline names.
    pub async fn open(spec: &PipelineSpec) -> Result<Self> {
        Self::open_telling(spec, &async_channel::unbounded().0).await
    }

    /// The same; says what it waits for, if it has to wait for a first file.
    pub async fn open_telling(spec: &PipelineSpec, tell: &Sender<String>) -> Result<Self> {
        let (mut opened, mut found) = open_rows(spec, &spec.decode, tell).await?;
        let num_read = opened.reading.as_ref().map_or(0, |reading| reading.read.len());
        let is_narrower = found.decode.schema.as_ref().is_some_and(|schema| schema.num_vars() < num_read);
        if is_narrower && !matches!(opened.source, Source::Live(_)) {
            // What is not learned from is not read either.
            let table = found.table.take();
            let columns = found.decode.schema.iter().flat_map(|schema| &schema.columns);
            let columns = columns.map(|column| column.name.clone()).collect();
            let source = SourceSpec { column: None, columns, ..spec.source.clone() };
            (opened, found) = open_rows(&PipelineSpec { source, ..spec.clone() }, &found.decode, tell).await?;
            found.table = table;
        }
        if let Source::Live(source) = &opened.source {
            source.check_shards(spec.batch.shards)?; // before a structure is learned
        }
        let OpenedDecoder { decoder, decode, table } = found;
        let valid = match &spec.validate {
            None => None,
            Some(validate) => {
                Some(HeldOut::prepare(spec, validate, opened.reading.as_ref()).await.map_err(|e| e.at("validate"))?)
            }
        };
        let inputs = Self {
            spec: resolved(spec, &decode, opened.reading.as_ref()),
            source: opened.source,
            reading: opened.reading,
            digests: opened.digests,
            decoder,
            table,
            valid,
            test: None,
            begun: Arc::default(),
            notes: Arc::default(),
        };
        if spec.source.watch {
            let how = if spec.batch.shuffle { " (batch.shuffle has no meaning for them)" } else { "" };
            let files = spec.source.files.join(", ");
            inputs.add_notes([format!("watching {files}: files by name, their rows in order{how}")].into_iter());
        }
        if let Some(valid) = &inputs.valid {
            // Looked at now, not after an epoch: a run should fail before it has taken hours.
            valid.open(&inputs)?.next().await.map_err(|e| e.at("validate"))?;
        }
        Ok(inputs)
    }

    /// The same data, learned as another pipeline says: its batches, circuit, optimizer and limits. Source, decoder and
    /// held-out rows stay those that are open.
    pub fn learned_as(&self, spec: &PipelineSpec) -> Self {
        Self { spec: resolved(spec, &self.spec.decode, self.reading.as_ref()), ..self.clone() }
    }

    /// What a run must share with a checkpoint to go on from it.
    pub fn identity(&self) -> Result<Identity> {
        let spec = &self.spec;
        let mut written = json!(spec.circuit);
        if let (Some(StartSpec::Noise), Some(keys)) = (spec.circuit.start, written.as_object_mut()) {
            keys.remove("start"); // was not written when it was the only one: runs from then are the same runs
        }
        let mut circuit = Digest::new().part(written.to_string()).part(json!(self.decoder.shape()).to_string());
        if let ModelSpec::File { path } = &spec.circuit.model {
            let path = expand_path(path)?;
            circuit.update(read_regular(Path::new(&path)).map_err(|e| Error::io_at(&path, &e))?);
        } else if !are_tables(&spec.circuit, self.decoder.shape()) {
            circuit = circuit.part(DENSITY_START);
        }
        let mut decoder = self.decoder.identity();
        let (memory, default) = (spec.pipeline.memory, StreamOptions::default().memory);
        if spec.pipeline.bad.on_bad != OnBad::Fail && memory != default {
            // Records that are left out for their size count in no window: other limits would be other rows.
            decoder += &format!(" memory={memory}");
        }
        Ok(Identity {
            data: self.data_digest(),
            decoder,
            circuit_spec: circuit.finish(),
            optimizer: json!(spec.learn.optimizer),
            batch: json!(spec.batch),
        })
    }

    /// Digest of the held-out rows' manifest.
    pub(super) fn held_out_digest(&self) -> Option<String> {
        self.valid.as_ref().map(|valid| valid.source.manifest().digest.clone())
    }

    /// What the data is: the manifest's digest, and those of whole files where they are asked for.
    fn data_digest(&self) -> String {
        let manifest = &self.source.manifest().digest;
        match &self.digests[..] {
            [] => manifest.clone(),
            digests => digests.iter().fold(Digest::new().part(manifest), |all, one| all.part(one)).finish(),
        }
    }

    /// Takes note of what a user should be told.
    pub(super) fn add_notes(&self, notes: impl Iterator<Item = String>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(notes);
    }

    /// What a user should be told about the data, since this was called last.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first rows of the stream, whatever shards batches have. Those of a live stream are held, and learned from
    /// too; where it has shards, these read them again.
    pub async fn sample(&self, rows: u64) -> Result<Batch> {
        let sample = match self.source {
            Source::Live(_) if self.spec.batch.shards == 1 => {
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

    /// The batches that are learned from, from `start` on, as far as they are of the shards `own`: of the stream whose
    /// first rows were looked at, if they come only once.
    pub fn feed(&self, epochs: Option<u64>, start: Cursor, own: Range<usize>) -> Result<Feed> {
        // Only a run that begins looks ahead: one that goes on has its circuit and its parameters.
        let mut begun = self.take_begun().filter(|_| start == Cursor::default());
        let options = StreamOptions { epochs, ..self.spec.pipeline.clone() };
        let num_vars = self.decoder.shape().num_vars;
        Feed::open(&self.spec.batch, &options, num_vars, start, own, |options, place| match begun.take() {
            Some(begun) => Ok(begun),
            None => Stream::open(&self.source, &self.decoder, &self.spec.batch, options, place),
        })
    }

    fn take_begun(&self) -> Option<Stream> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn open_stream(&self, epochs: Option<u64>, start: Cursor) -> Result<Stream> {
        let options = StreamOptions { epochs, ..self.spec.pipeline.clone() };
        Stream::open(&self.source, &self.decoder, &self.spec.batch, &options, start)
    }

    /// The optimizer with its schedule in updates of these rows.
    pub fn optimizer(&self) -> Result<OptimizerSpec> {
        let optimizer = &self.spec.learn.optimizer;
        optimizer.clone().resolved(&self.pace(optimizer)).map_err(|e| e.at("learn"))
    }

    /// How many updates an optimizer makes of these rows; of full-batch EM, one a batch.
    pub fn pace(&self, optimizer: &OptimizerSpec) -> Pace {
        let batches_per_update = optimizer.batches_per_update().unwrap_or(1);
        let batch = &self.spec.batch;
        Pace::new(self.num_rows(), batch.rows as u64, batch.drop_last, batches_per_update)
    }

    /// Rows of an epoch, where that is known before they are read.
    pub fn num_rows(&self) -> Option<u64> {
        match &self.source {
            Source::Indexed(source) => source.num_rows(),
            Source::Blocks(_) | Source::Live(_) => None,
        }
    }

    /// What inputs a variable has.
    pub fn describe_input(&self) -> &'static str {
        let circuit = &self.spec.circuit;
        if !self.decoder.shape().columns.is_empty() && !matches!(circuit.model, ModelSpec::File { .. }) {
            return "inputs as the columns say";
        }
        match (&circuit.model, input_kind(circuit, self.decoder.shape().values)) {
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

/// The source and the decoder of a pipeline whose records are decoded like this.
async fn open_rows(spec: &PipelineSpec, decode: &DecodeSpec, tell: &Sender<String>) -> Result<(Opened, OpenedDecoder)> {
    let opened = open_source_telling(&spec.source, decode, spec.pipeline.memory, None, tell).await;
    let mut opened = opened.map_err(|e| e.at("source"))?;
    let found = open_decoder(decode, &spec.columns, &mut opened).await.map_err(|e| e.at("decode"))?;
    Ok((opened, found))
}

/// A pipeline with what the data decided.
fn resolved(spec: &PipelineSpec, decode: &DecodeSpec, reading: Option<&Reading>) -> PipelineSpec {
    let mut spec = PipelineSpec { decode: decode.clone(), ..spec.clone() };
    let source = &mut spec.source;
    if let (Some(reading), true) = (reading, decode.schema.is_some()) {
        source.column = None;
        source.columns = reading.read.iter().map(|column| column.name.clone()).collect();
    } else if let (None, [], Some(reading)) = (&source.column, &source.columns[..], reading) {
        match &reading.read[..] {
            [column] => source.column = Some(column.name.clone()),
            columns => source.columns = columns.iter().map(|column| column.name.clone()).collect(),
        }
    }
    spec
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
