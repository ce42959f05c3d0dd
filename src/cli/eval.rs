//! `anemone eval`: how likely some rows are under a model.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::model_path::find_model;
use super::output::{Failure, Outcome, note, say, table, thousands};
use super::runtime;
use super::train::{MachineArgs, understand_isa};
use crate::batcher::BatchSpec;
use crate::circuit::{Circuit, ParamKind};
use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::learner::model::{self, Model};
use crate::pipeline::evaluate::{Evaluation, evaluate};
use crate::pipeline::prepare::{Inputs, Machine};
use crate::pipeline::spec::{DecodeKind, Document, Format, PipelineSpec};
use crate::pipeline::stream::{Stream, StreamOptions};
use crate::source::Source;

/// Mean log-likelihood, bits per dimension and perplexity of rows under a model.
///
/// Rows come from --data, which is read as the model's own data was, from a pipeline file, or, if neither is given, from the
/// pipeline that the model was learned with.
#[derive(Args, Clone, Debug)]
pub(super) struct EvalArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is meant
    model: PathBuf,
    /// A pipeline file whose rows to look at
    #[arg(value_name = "FILE.toml", conflicts_with = "data")]
    file: Option<PathBuf>,
    /// Rows to look at: paths or patterns in quotes
    #[arg(long, value_name = "PATTERN", num_args = 1..)]
    data: Vec<String>,
    /// The column that holds the records, if it is not called as in training
    #[arg(long, requires = "data")]
    column: Option<String>,
    /// Which rows of a pipeline
    #[arg(long, value_enum, default_value_t = Split::Validate, conflicts_with = "data")]
    split: Split,
    /// Look at no more rows than this
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// Rows in a batch
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: u32,
    #[command(flatten)]
    machine: MachineArgs,
    /// The most to use of the processor: scalar, avx2, avx512, amx or auto (auto if left out)
    #[arg(long, value_name = "SET")]
    isa: Option<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Which rows of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Split {
    /// Those held out.
    Validate,
    /// Those learned from.
    Source,
}

pub(super) fn run(args: &EvalArgs) -> Outcome {
    let isa = understand_isa(args.isa.as_deref()).map_err(Failure::not_understood)?;
    let machine = Machine { isa, ..args.machine.understand().map_err(Failure::not_understood)? };
    let path = find_model(&args.model).map_err(Failure::not_understood)?;
    let model = model::load(&path)?;
    let spec = pipeline(args, &model, &path).map_err(Failure::not_understood)?;
    let found = runtime()?.block_on(look(args, &spec, &model, &machine))?;
    let text = if args.json { to_json(&path, &model, &found) } else { to_table(&path, &model, &found) };
    Ok(say(text)?)
}

/// The pipeline that delivers the rows.
fn pipeline(args: &EvalArgs, model: &Model, path: &Path) -> Result<PipelineSpec> {
    let mut spec = match &args.file {
        Some(file) => PipelineSpec::load(file)?,
        None => {
            let stored = model.meta.extra.get("pipeline").and_then(Value::as_str).unwrap_or_default();
            if stored.is_empty() {
                let why = "the model does not say how its data was read; give a pipeline file";
                return Err(Error::option(format!("{}: {why}", path.display())));
            }
            let mut document = Document::parse(stored, "the model's pipeline")?;
            if !args.data.is_empty() {
                read_instead(&mut document, args)?;
            }
            PipelineSpec::from_document(&document)?
        }
    };
    spec.batch.rows = args.batch_rows as usize;
    // Categories that were counted over the training rows are the circuit's, whatever other rows hold.
    if spec.decode.kind == Some(DecodeKind::Rows) && spec.decode.cats.is_none() {
        spec.decode.cats = categories(&model.circuit);
    }
    Ok(spec)
}

/// Other files in place of the model's own, read the same way where they are of the same format.
fn read_instead(document: &mut Document, args: &EvalArgs) -> Result<()> {
    let old = PipelineSpec::from_document(document)?.source.format;
    let new = args.data.first().and_then(|file| Format::of(file));
    for path in ["source.files", "source.format", "source.synthetic", "validate"] {
        document.remove(path);
    }
    if old != new {
        ["column", "columns", "field", "tokens"].iter().for_each(|key| {
            document.remove(&format!("source.{key}"));
        });
    }
    document.set("source.files", json!(args.data), "--data")?;
    if let Some(column) = &args.column {
        document.remove("source.columns");
        document.set("source.column", json!(column), "--column")?;
    }
    Ok(())
}

/// How many categories every variable has, if it has any.
fn categories(circuit: &Circuit) -> Option<u32> {
    let inputs = circuit.params().iter().filter_map(|block| match &block.kind {
        ParamKind::Input(distribution) => Some(distribution.num_cats()),
        ParamKind::Sum { .. } => None,
    });
    inputs.max().flatten()
}

async fn look(args: &EvalArgs, spec: &PipelineSpec, model: &Model, machine: &Machine) -> Result<Evaluation> {
    let inputs = Inputs::open(spec).await?;
    let (here, there) = (inputs.decoder.shape().num_vars, model.circuit.num_vars());
    if here != there {
        return Err(Error::option(format!(
            "rows have {here} variables and the model {there}: change [decode] of the pipeline"
        )));
    }
    let (now, then) = (inputs.decoder.identity(), &model.meta.identity.decoder);
    if now != *then && !then.is_empty() {
        note(format_args!("note: rows are decoded by `{now}`, the model learned from `{then}`"));
    }
    let (mut stream, rows) = match (&inputs.valid, args.split) {
        (Some(valid), Split::Validate) => (valid.open(&inputs)?, args.rows.or(valid.rows)),
        (None, Split::Validate) if args.data.is_empty() => {
            return Err(Error::option("the pipeline holds nothing out; --split source looks at the rows learned from"));
        }
        _ => (in_order(&inputs, args.rows)?, args.rows),
    };
    let mut placed = machine.place(model.circuit.clone(), &model.params)?;
    evaluate(&mut stream, rows, async |batch| placed.backend.log_likelihoods(&batch)).await
}

/// All rows of the source, once.
fn in_order(inputs: &Inputs, rows: Option<u64>) -> Result<Stream> {
    if rows.is_none() && matches!(&inputs.source, Source::Indexed(source) if source.num_rows().is_none()) {
        return Err(Error::option("the source is endless: say how many rows to look at with --rows"));
    }
    let batch = BatchSpec { shuffle: false, drop_last: false, ..inputs.batch.clone() };
    let options = StreamOptions { epochs: Some(1), ..inputs.stream.clone() };
    Stream::open(&inputs.source, &inputs.decoder, &batch, &options, Cursor::default())
}

fn to_table(path: &Path, model: &Model, found: &Evaluation) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "none".to_string(), |value| format!("{value:.6}"));
    let mut rows = vec![
        ("model", format!("{} (after {} batches)", path.display(), thousands(model.meta.progress.step))),
        ("rows", thousands(found.rows)),
        ("log-likelihood", format!("{} nats a row", number(found.mean_log_likelihood))),
        ("bits per dimension", number(found.bits_per_dim)),
        ("perplexity", format!("{} per variable", number(found.perplexity))),
    ];
    if found.impossible_rows > 0 {
        rows.push((
            "impossible",
            format!("{} rows of probability zero, not in the mean", thousands(found.impossible_rows)),
        ));
    }
    table(&rows)
}

fn to_json(path: &Path, model: &Model, found: &Evaluation) -> String {
    let mut object = json!({"model": path, "step": model.meta.progress.step});
    if let (Value::Object(object), Value::Object(found)) = (&mut object, json!(found)) {
        object.extend(found);
    }
    object.to_string()
}
