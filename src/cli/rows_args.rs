//! Which rows a command shows to a model: other files read as the model's own were, a pipeline's, or those held out.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::output::note;
use crate::batcher::BatchSpec;
use crate::circuit::{Circuit, ParamKind};
use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::learner::model::Model;
use crate::pipeline::prepare::Inputs;
use crate::pipeline::spec::{DecodeKind, Document, Format, PipelineSpec};
use crate::pipeline::stream::{Stream, StreamOptions};
use crate::source::Source;

/// Which rows.
#[derive(Args, Clone, Debug)]
pub(super) struct RowsArgs {
    /// A pipeline file whose rows to look at
    #[arg(value_name = "FILE.toml", conflicts_with = "data")]
    file: Option<PathBuf>,
    /// Rows to look at: paths or patterns in quotes
    #[arg(long, value_name = "PATTERN", num_args = 1..)]
    data: Vec<String>,
    /// The column that holds the records, if it is not called as in training
    #[arg(long, requires = "data", conflicts_with = "file")]
    column: Option<String>,
    /// Columns of numbers, one for each variable, if they are not called as in training: names with commas between; x*
    /// is all that begin with x
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(requires = "data", conflicts_with_all = ["file", "column"])]
    columns: Vec<String>,
    /// Which rows of a pipeline
    #[arg(long, value_enum, default_value_t = Split::Validate, conflicts_with = "data")]
    split: Split,
}

/// Which rows of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Split {
    /// Those held out.
    Validate,
    /// Those learned from.
    Source,
}

/// Rows that are ready to be read.
pub(super) struct OpenedRows {
    /// What they come from.
    pub inputs: Inputs,
    /// The rows, once and in order.
    pub stream: Stream,
    /// No more of them than this.
    pub rows: Option<u64>,
}

/// The pipeline that a model was learned with, if it says so.
pub(super) fn stored_pipeline(model: &Model) -> Result<Option<Document>> {
    match model.meta.extra.get("pipeline").and_then(Value::as_str).unwrap_or_default() {
        "" => Ok(None),
        stored => Document::parse(stored, "the model's pipeline").map(Some),
    }
}

impl RowsArgs {
    /// The pipeline that delivers the rows, in batches of `batch_rows`.
    pub fn pipeline(&self, model: &Model, path: &Path, batch_rows: usize) -> Result<PipelineSpec> {
        let mut spec = match &self.file {
            Some(file) => PipelineSpec::load(file)?,
            None => {
                let Some(mut document) = stored_pipeline(model)? else {
                    let why = "the model does not say how its data was read; give a pipeline file";
                    return Err(Error::option(format!("{}: {why}", path.display())));
                };
                if !self.data.is_empty() {
                    self.read_instead(&mut document)?;
                }
                PipelineSpec::from_document(&document)?
            }
        };
        spec.batch.rows = batch_rows;
        // Categories that were counted over the training rows are the circuit's, whatever other rows hold.
        if spec.decode.kind == Some(DecodeKind::Rows) && spec.decode.cats.is_none() {
            spec.decode.cats = categories(&model.circuit);
        }
        Ok(spec)
    }

    /// Other files in place of the model's own, read the same way where they are of the same format.
    fn read_instead(&self, document: &mut Document) -> Result<()> {
        let old = PipelineSpec::from_document(document)?.source.format;
        let new = self.data.first().and_then(|file| Format::of(file));
        for path in [
            "source.files",
            "source.format",
            "source.synthetic",
            "source.watch",
            "source.settle",
            "source.on_gap",
            "batch.max_wait",
            "validate",
        ] {
            document.remove(path);
        }
        if old != new {
            ["column", "columns", "field", "delimiter", "tokens"].iter().for_each(|key| {
                document.remove(&format!("source.{key}"));
            });
        }
        let was_text = document.get("decode.kind").is_some_and(|kind| kind == DecodeKind::Text.name());
        if new == Some(Format::Tokens) && was_text {
            // The same text, cut into tokens beforehand.
            ["decode.kind", "decode.tokenizer", "decode.end_of_text"].iter().for_each(|key| {
                document.remove(key);
            });
        }
        document.set("source.files", json!(self.data), "--data")?;
        if let Some(column) = &self.column {
            ["source.columns", "source.field"].iter().for_each(|key| {
                document.remove(key);
            });
            document.set("source.column", json!(column), "--column")?;
        }
        if !self.columns.is_empty() {
            ["source.column", "source.field"].iter().for_each(|key| {
                document.remove(key);
            });
            document.set("source.columns", json!(self.columns), "--columns")?;
        }
        Ok(())
    }

    /// Opens the rows, no more than `rows` of them.
    pub async fn open(&self, spec: &PipelineSpec, model: &Model, rows: Option<u64>) -> Result<OpenedRows> {
        // Rows of a watched folder are looked at as they are now.
        let spec = &PipelineSpec { source: spec.source.at_rest(), ..spec.clone() };
        let inputs = Inputs::open(spec).await?;
        let (here, there) = (inputs.decoder.shape().num_vars, model.circuit.num_vars());
        if here != there {
            let what = match self.data.is_empty() {
                true => "change [decode] of the pipeline",
                false => "give --data such as it has learned from",
            };
            return Err(Error::option(format!("rows have {here} variables and the model {there}: {what}")));
        }
        let (now, then) = (inputs.decoder.identity(), &model.meta.identity.decoder);
        if now != *then && !then.is_empty() {
            note(format_args!("note: rows are decoded by `{now}`, the model learned from `{then}`"));
        }
        let (stream, rows) = match (&inputs.valid, self.split) {
            (Some(valid), Split::Validate) => (valid.open(&inputs)?, rows.or(valid.rows)),
            (None, Split::Validate) if self.data.is_empty() => {
                let why = "the pipeline holds nothing out; --split source looks at the rows learned from";
                return Err(Error::option(why));
            }
            _ => (in_order(&inputs, rows)?, rows),
        };
        Ok(OpenedRows { inputs, stream, rows })
    }
}

/// How many categories every variable has, if it has any.
pub(super) fn categories(circuit: &Circuit) -> Option<u32> {
    let inputs = circuit.params().iter().filter_map(|block| match &block.kind {
        ParamKind::Input(distribution) => Some(distribution.num_cats()),
        ParamKind::Sum { .. } => None,
    });
    inputs.max().flatten()
}

/// All rows of the source, once.
fn in_order(inputs: &Inputs, rows: Option<u64>) -> Result<Stream> {
    if rows.is_none() && matches!(&inputs.source, Source::Indexed(source) if source.num_rows().is_none()) {
        return Err(Error::option("the source is endless: say how many rows to look at with --rows"));
    }
    let batch = BatchSpec { shuffle: false, drop_last: false, ..inputs.spec.batch.clone() };
    let options = StreamOptions { epochs: Some(1), ..inputs.spec.pipeline.clone() };
    Stream::open(&inputs.source, &inputs.decoder, &batch, &options, Cursor::default())
}
