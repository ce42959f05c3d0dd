//! `anemone eval`: how likely some rows are under a model.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::model_path::CheckpointArgs;
use super::output::{Outcome, counted, say, say_json, table, thousands};
use super::rows_args::RowsArgs;
use super::train::{MachineArgs, understand_isa};
use super::{runtime, words};
use crate::backend::PlaceSpec;
use crate::error::Result;
use crate::learner::model::{self, Model};
use crate::pipeline::evaluate::{Evaluation, evaluate};
use crate::pipeline::spec::PipelineSpec;

/// Mean log-likelihood of rows under a model; of categories also bits per dimension and perplexity.
///
/// Rows come from --data, which is read as the model's own data was, from a pipeline file, or, if neither is given,
/// from the pipeline that the model was learned with.
#[derive(Args, Clone, Debug)]
pub(super) struct EvalArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is used unless a flag names another
    model: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    which: RowsArgs,
    /// Look at no more rows than this
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// Rows in a batch
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: u32,
    #[command(flatten)]
    machine: MachineArgs,
    /// The most to use of the processor: scalar, avx2, avx512, amx or auto (auto if left out)
    #[arg(long, value_name = "SET", value_parser = words::ISAS, hide_possible_values = true)]
    isa: Option<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvalArgs) -> Outcome {
    let isa = understand_isa(args.isa.as_deref())?;
    let place = PlaceSpec { isa, ..args.machine.understand()? };
    let path = args.checkpoint.find(&args.model)?;
    let model = model::load(&path)?;
    let spec = args.which.pipeline(&model, &path, args.batch_rows as usize)?;
    let found = runtime()?.block_on(look(args, &spec, &model, &place))?;
    match args.json {
        true => say_json(to_json(&path, &model, &found)),
        false => say(to_table(&path, &model, &found)),
    }
}

async fn look(args: &EvalArgs, spec: &PipelineSpec, model: &Model, place: &PlaceSpec) -> Result<Evaluation> {
    let mut opened = args.which.open(spec, model, args.rows).await?;
    let (mut backend, _) = place.place(&model.circuit, &model.params)?;
    let score = async |batch| backend.log_likelihoods(&batch);
    let found = evaluate(&mut opened.stream, opened.rows, score).await?;
    Ok(found.in_units_of(model.circuit.is_discrete()))
}

fn to_table(path: &Path, model: &Model, found: &Evaluation) -> String {
    let number =
        |value: Option<f64>, infinite: &str| value.map_or_else(|| infinite.into(), |value| format!("{value:.6}"));
    let mut rows = vec![
        ("model", format!("{} (after {})", path.display(), counted(model.meta.progress.batches, "batch", "batches"))),
        ("parameters", if model.meta.identity.is_averaged() { "averaged" } else { "the latest" }.to_string()),
        ("rows", thousands(found.rows)),
        ("log-likelihood", format!("{} nats per row", number(found.mean_log_likelihood, "-inf"))),
    ];
    if model.circuit.is_discrete() {
        rows.push(("bits per dimension", number(found.bits_per_dim, "inf")));
        rows.push(("perplexity", format!("{} per variable", number(found.perplexity, "inf"))));
    }
    if found.impossible_rows > 0 {
        rows.push(("impossible", format!("{} of probability zero", counted(found.impossible_rows, "row", "rows"))));
        rows.push(("possible rows", format!("{} nats per row", number(found.possible_log_likelihood, "none"))));
    }
    table(&rows)
}

fn to_json(path: &Path, model: &Model, found: &Evaluation) -> String {
    let mut object = json!({
        "model": path.display().to_string(),
        "step": model.meta.progress.batches,
        "averaged": model.meta.identity.is_averaged(),
    });
    if let (Value::Object(object), Value::Object(found)) = (&mut object, json!(found)) {
        object.extend(found);
    }
    object.to_string()
}
