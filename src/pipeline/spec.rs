//! A pipeline as it is written: a TOML file that reads top to bottom as the data flows.
//!
//! ```toml
//! [source]
//! files = "${ANEMONE_DATA}/wikitext2/train-*.parquet"
//! [decode]
//! kind = "text"
//! [circuit]
//! model = "hmm"
//! ```
//!
//! Every other section and key has a default, and [`PipelineSpec::to_toml`] writes all of them out. A key, section or
//! word that is not known is refused with the nearest one that is; a wrong type or range is refused with what was
//! expected; both name file and line. `${NAME}` in paths is replaced when they are opened, so that a pipeline can be
//! written down without the places of one machine.
//!
//! What the text says is in `document`, one file a section gives it meaning; `overrides` changes the text before that.
//! Which keys there are is in `tables`, for the reader and for `anemone keys` alike.

mod circuit;
mod columns;
mod decode;
mod defaults;
mod document;
mod drift;
mod expand;
mod kafka;
mod key;
mod learn;
mod section;
mod size;
mod source;
mod tables;

use std::path::Path;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

pub(crate) use circuit::{COMMON as CIRCUIT_COMMON, MODELS};
pub use circuit::{CircuitSpec, InputKind, ModelSpec, PdSpec, StartSpec, TyingSpec};
pub use columns::ColumnsSpec;
pub use decode::{DEFAULT_TOKENIZER, DEFAULT_WINDOW, DecodeKind, DecodeSpec, GPT2_VOCAB, TextRows};
pub(crate) use defaults::default_words;
pub(crate) use document::{Document, inline, parse_value};
pub use drift::{DriftSection, OnDrift};
pub use expand::{DATA_VARIABLE, expand_path};
pub(crate) use key::{Accepted, Key, Table, Unset, for_all, key};
pub use learn::LearnSection;
pub(crate) use learn::{LIMITS, default_options};
pub use size::{parse_size, show_size, write_size};
pub use source::{Compared, DEFAULT_HELD_OUT, Format, STANDARD_INPUT, SourceSpec, ValidateSpec};
pub(crate) use tables::ALL as PIPELINE_TABLES;

pub(crate) use self::section::Section;
use super::stream::{LEAST_MEMORY, StreamOptions};
use super::suggest::hint;
use crate::batcher::{BadPolicy, BatchSpec, OnBad};
use crate::error::{Error, Result};

/// What is learned from what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineSpec {
    /// What the run is called; `None` takes the name of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where rows come from.
    pub source: SourceSpec,
    /// What they mean.
    pub decode: DecodeSpec,
    /// What single columns of a table mean.
    #[serde(skip_serializing_if = "ColumnsSpec::is_empty")]
    pub columns: ColumnsSpec,
    /// How they are put together.
    #[serde(serialize_with = "as_section")]
    pub batch: BatchSpec,
    /// What learns them.
    pub circuit: CircuitSpec,
    /// How it learns.
    pub learn: LearnSection,
    /// Who watches for changes of the stream; `None` is nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftSection>,
    /// What it is judged by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate: Option<ValidateSpec>,
    /// What is kept.
    pub checkpoint: CheckpointSpec,
    /// What is written down on the way.
    pub metrics: MetricsSpec,
    /// How the stages run.
    pub pipeline: StreamOptions,
}

/// `[checkpoint]`: what is kept, and how often.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointSpec {
    /// After every so many batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_batches: Option<u64>,
    /// After every so many rows: with the first batch that reaches them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_rows: Option<u64>,
    /// After every so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<f64>,
    /// How many of the latest are kept.
    pub keep: usize,
    /// Whether the one of best held-out likelihood is kept besides.
    pub keep_best: bool,
}

/// `[metrics]`: how often a line goes into `metrics.jsonl`, and how long that file may become.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricsSpec {
    /// After every so many batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_batches: Option<u64>,
    /// With the first batch that reaches so many rows more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_rows: Option<u64>,
    /// With the first batch after so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<f64>,
    /// A file that is larger gets a number, and another one begins.
    #[serde(serialize_with = "as_size")]
    pub rotate: u64,
    /// How many files with numbers are kept.
    pub keep: usize,
}

impl MetricsSpec {
    /// Returns true if a line is due after a batch: `rows` are all rows, `new_rows` those since the last line.
    pub fn is_due(&self, batches: u64, rows: u64, new_rows: u64, seconds: f64) -> bool {
        self.every_batches.is_some_and(|every| batches.is_multiple_of(every))
            || self.every_rows.is_some_and(|every| rows.saturating_sub(new_rows) / every < rows / every)
            || self.every_seconds.is_some_and(|every| seconds >= every)
    }
}

pub(super) fn as_size<S: Serializer>(bytes: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&write_size(*bytes))
}

/// Batches as a file has them: with the window as a size. Their own JSON is that of checkpoints.
fn as_section<S: Serializer>(batch: &BatchSpec, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let BatchSpec { rows, shards, shuffle, seed, drop_last, window_bytes, max_wait, .. } = batch;
    let mut section = serializer.serialize_struct("batch", 7)?;
    section.serialize_field("rows", rows)?;
    section.serialize_field("shards", shards)?;
    section.serialize_field("shuffle", shuffle)?;
    section.serialize_field("seed", seed)?;
    section.serialize_field("drop_last", drop_last)?;
    section.serialize_field("shuffle_window", &write_size(*window_bytes))?;
    match max_wait {
        Some(FOR_EVER) => section.serialize_field("max_wait", "never")?,
        Some(max_wait) => section.serialize_field("max_wait", &max_wait.as_secs_f64())?,
        None => {}
    }
    section.end()
}

/// Another section that knows a key. The held-out one comes last: it shares most of its keys with others, which are
/// meant.
fn elsewhere(here: &str) -> impl Fn(&str) -> Option<String> {
    move |key| {
        let knows = |table: &&&Table| table.path != here && table.key(key).is_some();
        let (validate, others): (Vec<&Table>, Vec<&Table>) =
            tables::SECTIONS.iter().filter(knows).partition(|table| table.path == "validate");
        others.first().or(validate.first()).map(|table| table.path.to_string())
    }
}

impl PipelineSpec {
    /// Reads a pipeline from TOML. `name` is what messages call the text.
    ///
    /// ```
    /// use anemone::pipeline::spec::PipelineSpec;
    ///
    /// let spec = PipelineSpec::parse("[source]\nfiles = \"train-*.parquet\"", "mine.toml")?;
    /// assert_eq!(spec.batch.rows, 512);
    /// let error = PipelineSpec::parse("[source]\nfiels = \"train.parquet\"", "mine.toml").unwrap_err();
    /// assert_eq!(error.to_string(), "mine.toml:2: source.fiels: unknown key; did you mean `files`?");
    /// # Ok::<(), anemone::Error>(())
    /// ```
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        Self::from_document(&Document::parse(text, name)?)
    }

    /// Reads a pipeline from a file.
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_document(&load_document(path)?)
    }

    /// Gives meaning to what was written.
    pub(crate) fn from_document(document: &Document) -> Result<Self> {
        for key in document.root().keys() {
            let names = tables::ROOT.keys.iter().map(|key| key.name);
            let sections = tables::SECTIONS.iter().map(|table| table.path);
            let known = || sections.clone().chain(["columns"]).chain(names.clone());
            if !known().any(|known| known == key) {
                let elsewhere = elsewhere("")(key);
                let hint = elsewhere.map_or_else(
                    || hint(key, known().collect::<Vec<_>>()),
                    |section| format!("did you mean `{section}.{key}`?"),
                );
                return Err(Error::option(format!("{}: {key}: unknown section; {hint}", document.place(key))));
            }
        }
        let name = match document.get("name") {
            None => None,
            Some(serde_json::Value::String(name)) if is_folder_name(name) => Some(name.clone()),
            Some(value) => {
                let why = "expected a text that can name a folder";
                return Err(Error::option(format!("{}: name = {value}: {why}", document.place("name"))));
            }
        };
        let source = source::read(document, elsewhere("source"))?;
        let learn = learn::read(document, &source, elsewhere("learn"))?;
        let decode = decode::read(document, &source, elsewhere("decode"))?;
        let columns = columns::read(document)?;
        if let Some(kind) = decode.kind.filter(|kind| *kind != DecodeKind::Table && !columns.is_empty()) {
            let (place, kind) = (document.place("columns"), kind.name());
            return Err(Error::option(format!(
                "{place}: [columns] has no meaning for kind = \"{kind}\": columns of a table (kind = \"table\") mean \
                 something each"
            )));
        }
        let is_table = decode.kind == Some(DecodeKind::Table);
        Ok(Self {
            name,
            decode,
            columns,
            batch: BatchSpec { epoch_rows: learn.window_rows, ..read_batch(document, &source)? },
            circuit: circuit::read(document, is_table, elsewhere("circuit"))?,
            learn,
            drift: drift::read(document, &source, elsewhere("drift"))?,
            validate: source::read_validate(document, &source, elsewhere("validate"))?,
            checkpoint: read_checkpoint(document)?,
            metrics: read_metrics(document)?,
            pipeline: read_stages(document)?,
            source,
        })
    }

    /// The pipeline with every default written out; reads back to the same.
    pub fn to_toml(&self) -> Result<String> {
        document::write(self)
    }
}

pub(crate) fn load_document(path: &Path) -> Result<Document> {
    let place = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Error::io_at(&place, &e))?;
    let text =
        str::from_utf8(&bytes).map_err(|_| Error::option(format!("{place}: is not text, and a TOML file is")))?;
    Document::parse(text, &place)
}

fn is_folder_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

fn read_batch(document: &Document, source: &SourceSpec) -> Result<BatchSpec> {
    let section = Section::open(document, "batch")?.only(tables::BATCH.keys, elsewhere("batch"))?;
    let usual = BatchSpec::default();
    let rows = section.count("rows", 1)?.unwrap_or(usual.rows);
    let shards = section.count("shards", 1)?.unwrap_or(usual.shards);
    if shards > rows {
        return Err(section.refuse("shards", format_args!("must be at most batch.rows = {rows}: one row for each")));
    }
    if shards > 1 && (source.is_standard_input() || source.follow) {
        let what = if source.follow { "a followed file" } else { "standard input" };
        return Err(section.refuse(
            "shards",
            format_args!(
                "must be 1 for {what}: it comes as one stream, which cannot be shared out; a watched folder and a \
                 topic can"
            ),
        ));
    }
    Ok(BatchSpec {
        rows,
        shards,
        shuffle: section.truth("shuffle", usual.shuffle)?,
        seed: section.whole("seed", 0)?.unwrap_or(usual.seed),
        drop_last: section.truth("drop_last", usual.drop_last)?,
        window_bytes: section.size("shuffle_window", 1)?.unwrap_or(usual.window_bytes),
        epoch_rows: None, // `learn` says it
        max_wait: read_max_wait(section, source, shards)?,
    })
}

/// How long rows of a live stream wait for a full batch. Where the order of rows is to be the same in every run,
/// batches are too: then they wait for ever, unless somebody says otherwise. Not for a shard that has nothing: which
/// has rows when is a matter of chance.
fn read_max_wait(section: Section<'_>, source: &SourceSpec, shards: usize) -> Result<Option<Duration>> {
    if section.has("max_wait") && !source.is_live() {
        return Err(section.refuse("max_wait", "has no meaning for files that end: their batches are full"));
    }
    if section.value("max_wait").and_then(serde_json::Value::as_str) == Some("never") {
        return Ok(Some(FOR_EVER));
    }
    let longest = Duration::from_secs(10 * 365 * 24 * 3600).as_secs_f64();
    let seconds = section.number("max_wait", |s| s > 0.0 && s <= longest, "positive, or \"never\"")?;
    let waits = source.has_fixed_order() && shards == 1;
    let usual = source.is_live().then_some(if waits { FOR_EVER } else { MAX_WAIT });
    Ok(seconds.map(Duration::from_secs_f64).or(usual))
}

/// No clock comes so far.
const FOR_EVER: Duration = Duration::MAX;

/// How long the first row of a batch waits for the last, where nothing is said.
const MAX_WAIT: Duration = Duration::from_secs(5);

fn read_checkpoint(document: &Document) -> Result<CheckpointSpec> {
    let section = Section::open(document, "checkpoint")?.only(tables::CHECKPOINT.keys, elsewhere("checkpoint"))?;
    let (every_batches, every_rows) = (section.whole("every_batches", 1)?, section.whole("every_rows", 1)?);
    let every_seconds = section.number("every_seconds", |s| s > 0.0, "positive")?;
    let is_counted = every_batches.is_some() || every_rows.is_some();
    Ok(CheckpointSpec {
        every_batches,
        every_rows,
        every_seconds: every_seconds.or((!is_counted).then_some(300.0)),
        keep: section.count("keep", 1)?.unwrap_or(3),
        keep_best: section.truth("keep_best", true)?,
    })
}

fn read_metrics(document: &Document) -> Result<MetricsSpec> {
    let section = Section::open(document, "metrics")?.only(tables::METRICS.keys, elsewhere("metrics"))?;
    let (every_batches, every_rows) = (section.whole("every_batches", 1)?, section.whole("every_rows", 1)?);
    let every_seconds = section.number("every_seconds", |s| s > 0.0, "positive")?;
    let is_counted = every_batches.is_some() || every_rows.is_some();
    Ok(MetricsSpec {
        every_batches,
        every_rows,
        every_seconds: every_seconds.or((!is_counted).then_some(0.5)),
        rotate: section.size("rotate", LEAST_ROTATED)?.unwrap_or(64 << 20),
        keep: section.count("keep", 1)?.unwrap_or(8),
    })
}

/// A smaller file of lines would be another one every few minutes.
const LEAST_ROTATED: u64 = 4 << 10;

fn read_stages(document: &Document) -> Result<StreamOptions> {
    let section = Section::open(document, "pipeline")?.only(tables::PIPELINE.keys, elsewhere("pipeline"))?;
    let policies = [("fail", OnBad::Fail), ("skip", OnBad::Skip), ("quarantine", OnBad::Quarantine)];
    let few = |key: &str, most: usize| match section.count(key, 1)? {
        Some(count) if count > most => Err(section.refuse(key, format!("must be at most {most}"))),
        count => Ok(count),
    };
    let part = section.number("max_bad_fraction", |x| (0.0..=1.0).contains(&x), "in [0, 1]")?;
    let usual = StreamOptions::default();
    Ok(StreamOptions {
        memory: section.size("memory", LEAST_MEMORY)?.unwrap_or(usual.memory),
        workers: few("workers", 256)?,
        prefetch: few("prefetch", 1024)?.unwrap_or(usual.prefetch),
        bad: BadPolicy {
            on_bad: section.choice("on_bad", &policies)?.unwrap_or(usual.bad.on_bad),
            max_bad: section.whole("max_bad", 0)?.unwrap_or(usual.bad.max_bad),
            max_bad_fraction: part.unwrap_or(usual.bad.max_bad_fraction),
        },
        ..usual
    })
}

#[cfg(test)]
mod tests;
