//! `anemone inspect`: what a model, a checkpoint, a run folder, a circuit or a pipeline file holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::model_path::CheckpointArgs;
use super::output::{Outcome, counted, say, say_json, table, thousands};
use crate::backend::cpu::top_down_of;
use crate::circuit::{Circuit, NodeKind, ParamKind, StateUse, StatesInUse, UseSummary, json as circuit_json};
use crate::error::{Error, Result};
use crate::learner::{CheckpointMeta, circuit_digest, model};
use crate::pipeline::spec::{PipelineSpec, show_size};

/// Say what a model, checkpoint, run folder, circuit (.json) or pipeline (.toml) holds.
#[derive(Args, Clone, Debug)]
pub(super) struct InspectArgs {
    /// What to look at
    path: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &InspectArgs) -> Outcome {
    let ends_in = |ending: &str| args.path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
    if args.path.is_file() {
        args.checkpoint.refuse_choice(&args.path, "is a file")?;
    }
    let described = match args.path.is_file() {
        true if ends_in("toml") => pipeline(&args.path)?,
        true if ends_in("json") => circuit_file(&args.path)?,
        true => {
            let why = "is not known by its name: a circuit ends in .json, a pipeline in .toml; a model, a checkpoint \
                       or a run is a folder";
            return Err(Error::missing_path(format!("{}: {why}", args.path.display())));
        }
        false => checkpoint(&args.checkpoint.find(&args.path)?)?,
    };
    match args.json {
        true => say_json(described.json)?,
        false => say(described.text)?,
    }
    Ok(())
}

struct Described {
    text: String,
    json: Value,
}

fn pipeline(path: &Path) -> Result<Described> {
    let spec = PipelineSpec::load(path)?;
    Ok(Described { text: spec.to_toml()?.trim_end().to_string(), json: json!(spec) })
}

fn circuit_file(path: &Path) -> Result<Described> {
    let (circuit, params) = circuit_json::load(path)?;
    let mut rows = vec![("circuit", path.display().to_string())];
    rows.extend(circuit_rows(&circuit));
    rows.push(("values", if params.is_some() { "given" } else { "none: structure alone" }.to_string()));
    let json = json!({"circuit": circuit_counts(&circuit), "values": params.is_some()});
    Ok(Described { text: table(&rows), json })
}

fn checkpoint(path: &Path) -> Result<Described> {
    let model = model::load(path)?;
    let origin = model.origin().map(str::to_string);
    let model::Model { circuit, params, meta } = model;
    let used = StatesInUse::new(&circuit, &top_down_of(&circuit, &params))?;
    let kind = if meta.optimizer.is_some() { "checkpoint" } else { "model" };
    let by = match (&origin, meta.files.is_empty()) {
        (Some(origin), true) => format!("in the format of {origin}"),
        (Some(origin), false) => format!("written by anemone {}, imported from {origin}", meta.anemone),
        (None, _) => format!("written by anemone {}", meta.anemone),
    };
    let mut rows = vec![(kind, format!("{}, {by}", path.display()))];
    rows.extend(circuit_rows(&circuit));
    rows.extend(UseSummary::of(&used.variables).map(|summary| ("states in use", show_use(&summary))));
    rows.extend(progress_rows(&meta));
    rows.extend([
        ("data", short(&meta.identity.data)),
        ("decoder", meta.identity.decoder.clone()),
        ("structure", short(&meta.identity.circuit_spec)),
        ("optimizer", meta.identity.optimizer.to_string()),
        ("batches", meta.identity.batch.to_string()),
        ("values", describe_values(meta.identity.is_averaged()).to_string()),
    ]);
    let files = meta.files.iter().map(|(name, file)| format!("{name} {}", show_size(file.bytes)));
    rows.push(("files", files.collect::<Vec<_>>().join(", ")));
    let states = json!({"variables": use_json(&used.variables), "sums": use_json(&used.sums)});
    let json = json!({
        "kind": kind,
        "path": path,
        "circuit": circuit_counts(&circuit),
        "states_in_use": states,
        "averaged": meta.identity.is_averaged(),
        "meta": meta,
    });
    Ok(Described { text: table(&rows), json })
}

fn describe_values(is_averaged: bool) -> &'static str {
    if is_averaged { "averages of the parameters that were learned with" } else { "the latest parameters" }
}

fn circuit_rows(circuit: &Circuit) -> Vec<(&'static str, String)> {
    let counts = circuit_counts(circuit);
    let number = |key: &str| thousands(counts[key].as_u64().unwrap_or(0));
    let counted = |key: &str, one: &str| counted(counts[key].as_u64().unwrap_or(0), one, key);
    let inputs = counts["distributions"].as_object().into_iter().flatten();
    let inputs: Vec<String> = inputs.map(|(name, blocks)| format!("{blocks} {name}")).collect();
    vec![
        ("variables", number("variables")),
        (
            "nodes",
            format!(
                "{}: {}, {}, {}",
                number("nodes"),
                counted("inputs", "input"),
                counted("products", "product"),
                counted("sums", "sum")
            ),
        ),
        (
            "parameters",
            format!(
                "{} in {}, of which are inputs: {}",
                number("parameters"),
                counted("blocks", "block"),
                inputs.join(", ")
            ),
        ),
    ]
}

fn circuit_counts(circuit: &Circuit) -> Value {
    let count = |is: fn(&NodeKind) -> bool| circuit.nodes().iter().filter(|node| is(&node.kind)).count();
    let mut distributions: BTreeMap<&str, usize> = BTreeMap::new();
    for block in circuit.params() {
        if let ParamKind::Input(distribution) = &block.kind {
            *distributions.entry(distribution.name()).or_default() += 1;
        }
    }
    json!({
        "variables": circuit.num_vars(),
        "nodes": circuit.nodes().len(),
        "inputs": count(|kind| matches!(kind, NodeKind::Input { .. })),
        "products": count(|kind| matches!(kind, NodeKind::Product { .. })),
        "sums": count(|kind| matches!(kind, NodeKind::Sum { .. })),
        "parameters": circuit.layout().num_values(),
        "blocks": circuit.layout().blocks().len(),
        "distributions": distributions,
        "digest": circuit_digest(circuit),
    })
}

/// `13.5 of 16 on average; least 4.2 (variable 17)`, and less where there is only one number.
fn show_use(summary: &UseSummary) -> String {
    let UseSummary { latents, mean, states, least } = summary;
    let states = if states.fract() == 0.0 { format!("{states}") } else { format!("{states:.1}") };
    match latents {
        1 => format!("{mean:.1} of {states}"),
        _ => format!("{mean:.1} of {states} on average; least {:.1} (variable {})", least.in_use, least.index),
    }
}

/// The summary of some latents and each of them: `null` if there are none.
fn use_json(latents: &[StateUse]) -> Value {
    let one = |latent: &StateUse| json!({"index": latent.index, "states": latent.states, "in_use": latent.in_use});
    UseSummary::of(latents).map_or(Value::Null, |summary| {
        json!({
            "mean": summary.mean,
            "states": summary.states,
            "least": one(&summary.least),
            "each": latents.iter().map(one).collect::<Vec<_>>(),
        })
    })
}

fn progress_rows(meta: &CheckpointMeta) -> Vec<(&'static str, String)> {
    let progress = &meta.progress;
    let cursor = &progress.cursor;
    let mut rows = vec![
        (
            "learned",
            format!(
                "{}, {}, {}, {}",
                counted(progress.batches, "batch", "batches"),
                counted(progress.rows, "row", "rows"),
                counted(progress.updates, "update", "updates"),
                counted(progress.epoch, "epoch", "epochs")
            ),
        ),
        (
            "cursor",
            format!(
                "epoch {}, window {}, row {}; {} read before, {} bad, {} carried",
                cursor.epoch,
                cursor.window,
                cursor.row,
                counted(cursor.records, "record", "records"),
                thousands(cursor.bad_records),
                counted(cursor.carry.len() as u64, "token", "tokens")
            ),
        ),
    ];
    if let Some(mean) = progress.prequential.mean() {
        rows.push(("prequential", format!("{mean:.4} nats per row in the first epoch")));
    }
    let impossible = meta.extra.get("valid_impossible_rows").and_then(Value::as_u64).filter(|rows| *rows > 0);
    if let Some(impossible) = impossible {
        let which = counted(impossible, "row has", "rows have");
        rows.push(("held out", format!("-inf nats per row: {which} probability zero")));
    } else if let Some(valid) = meta.extra.get("valid_ll").and_then(Value::as_f64) {
        rows.push(("held out", format!("{valid:.4} nats per row")));
    }
    rows
}

/// The beginning of a digest, enough to compare by eye.
fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}
