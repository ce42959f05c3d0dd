//! `anemone check`: what a pipeline would do, without doing it.
//!
//! Everything that `train` does before its first batch: read the file, open the data, decode one batch, build the
//! circuit and look whether the batch fits it. A pipeline that passes will start.

use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::columns::describe_table;
use super::output::{Outcome, counted, describe_answers, note, say, say_json, table, thousands};
use super::pipeline_args::{PipelineArgs, Understood};
use super::report::{StructureProgress, describe_columns, describe_rows, describe_start};
use super::runtime;
use super::steps::Steps;
use super::train::MachineArgs;
use crate::backend::PlaceSpec;
use crate::circuit::{Circuit, Params};
use crate::error::Result;
use crate::pipeline::model::{MemoryEstimate, estimate};
use crate::pipeline::observer::{Event, Observer, Start};
use crate::pipeline::open::first_watched;
use crate::pipeline::prepare::{Given, Inputs};
use crate::pipeline::run::check_end;
use crate::pipeline::spec::{PipelineSpec, SourceSpec, show_size};
use crate::source::Source;

/// Read a pipeline, open its data, build its circuit, and say what would happen.
#[derive(Args, Clone, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Print the pipeline with every default written out, but for what the data decides, and do nothing else
    #[arg(long)]
    resolved: bool,
}

pub(super) fn run(args: &CheckArgs) -> Outcome {
    let Understood { spec, name, notes } = args.pipeline.understand()?;
    let place = args.machine.understand()?;
    notes.iter().for_each(|text| note(format_args!("note: {text}")));
    if args.resolved {
        return say(spec.to_toml()?.trim_end());
    }
    let found = runtime()?.block_on(look(&spec, &place))?;
    if args.json { say_json(found.to_json(&name, &spec)) } else { say(found.to_table(&name, &spec)) }
}

/// Shows warnings and nothing else.
struct Warnings;

impl Observer for Warnings {
    fn event(&mut self, event: &Event) {
        if let Event::Warning(text) = event {
            note(format_args!("warning: {text}"));
        }
    }
}

/// What was found.
struct Found {
    inputs: Inputs,
    circuit: Arc<Circuit>,
    /// Rows of the first batch; `None` where looking at it would use it up.
    first_batch: Option<usize>,
    /// What parameters would start from; `None` where that would use up rows.
    start: Option<Start>,
    memory: MemoryEstimate,
    /// How large steps will be; full-batch EM has none.
    steps: Option<Steps>,
    /// Files of a watched folder that are there now, of which only the first was looked at.
    watched: Option<usize>,
}

async fn look(spec: &PipelineSpec, place: &PlaceSpec) -> Result<Found> {
    check_end(spec, &mut Warnings)?;
    let (inputs, watched) = open(spec).await?;
    let optimizer = inputs.optimizer()?;
    let first = match inputs.source {
        Source::Live(_) => None,
        _ => Some(inputs.sample(spec.batch.rows as u64).await?),
    };
    let mut progress = StructureProgress::default();
    let circuit = Arc::new(inputs.build_circuit(&mut |share| progress.show(share)).await?);
    drop(progress);
    let steps = optimizer.schedule().map(|(key, schedule)| {
        let (pace, learn) = (inputs.pace(&optimizer), &spec.learn);
        // How many updates fit into so many seconds is not known.
        let updates = pace.updates_of_run(learn.epochs, learn.batches).filter(|_| learn.seconds.is_none());
        let counts = pace.rows_per_update() * circuit.counts_per_row();
        Steps { key, schedule, counts, updates_per_epoch: pace.updates_per_epoch(), updates }
    });
    inputs.take_notes().iter().for_each(|text| note(format_args!("warning: {text}")));
    if let Some(batch) = &first {
        circuit.check_batch(batch)?;
    }
    let budget = place.memory_budget() as u64;
    let memory = estimate(&circuit, &spec.learn.optimizer, spec.batch.rows, budget, spec.pipeline.memory);
    // Rows of a live stream come once, and a check that waits for them uses them up: noise has the same size.
    let given = match inputs.source {
        Source::Live(_) => Given::Params(Params::random(&circuit, spec.circuit.seed, spec.circuit.perturbation)?),
        _ => Given::Nothing,
    };
    let start = inputs.build_learner(&circuit, place, given).await?.start;
    Ok(Found { first_batch: first.map(|batch| batch.num_rows()), inputs, circuit, start, memory, steps, watched })
}

/// Opens what a pipeline names. Of a watched folder only the first file that is there, which decides what a run reads,
/// and how many there are: a check waits for nothing.
async fn open(spec: &PipelineSpec) -> Result<(Inputs, Option<usize>)> {
    if !spec.source.watch {
        return Ok((Inputs::open(spec).await?, None));
    }
    let (first, count) = first_watched(&spec.source).await.map_err(|e| e.at("source"))?;
    let source = SourceSpec { files: vec![first.name().to_string()], ..spec.source.at_rest() };
    Ok((Inputs::open(&PipelineSpec { source, ..spec.clone() }).await?, Some(count)))
}

impl Found {
    fn to_table(&self, name: &str, spec: &PipelineSpec) -> String {
        let manifest = self.inputs.source.manifest();
        let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
        let mut source = self.inputs.describe_source();
        if bytes > 0 {
            source += &format!(", {}", show_size(bytes));
        }
        if let Some(count) = self.watched {
            let files = counted(count as u64, "file", "files");
            source += &format!("; watched: {files} now, of which the first decides columns and categories");
        } else if let Some(rows) = self.inputs.num_rows() {
            source += &format!(", {} rows per epoch", thousands(rows));
        }
        let layout = self.circuit.layout();
        let memory = &self.memory;
        let mut rows = vec![("pipeline", name.to_string()), ("source", source)];
        if let Some(columns) = &self.inputs.reading {
            rows.push(("columns", describe_columns(columns)));
        }
        rows.extend([
            (
                "decoder",
                format!(
                    "{}: {}, {}",
                    self.inputs.decoder.identity(),
                    describe_rows(self.inputs.decoder.shape()),
                    self.inputs.describe_input()
                ),
            ),
            ("batch", describe_batch(spec, self.first_batch)),
            (
                "circuit",
                format!(
                    "{}: {} nodes, {} parameters in {} blocks",
                    spec.circuit.model.name(),
                    thousands(self.circuit.nodes().len() as u64),
                    thousands(layout.num_values() as u64),
                    thousands(layout.blocks().len() as u64)
                ),
            ),
            ("start", self.start.map_or_else(|| "not looked for in a live stream".to_string(), describe_start)),
            ("optimizer", format!("{}, {}", spec.learn.optimizer.name(), describe_limits(spec))),
            ("answers", describe_answers(spec.learn.optimizer.average().is_on()).to_string()),
        ]);
        if let Some(steps) = &self.steps {
            rows.push((steps.key, steps.describe()));
        }
        if let Some(valid) = &self.inputs.valid {
            let limit = valid.rows.map_or(String::new(), |rows| format!(", {} rows", thousands(rows)));
            rows.push(("validation", format!("{}{limit}", valid.source.manifest().kind)));
        }
        let checkpoint = &spec.checkpoint;
        let often = [
            checkpoint.every_batches.map(|n| every(&counted(n, "batch", "batches"))),
            checkpoint.every_seconds.map(|s| every(&seconds(s))),
        ];
        let often: Vec<String> = often.into_iter().flatten().collect();
        let best = if checkpoint.keep_best { " and the best" } else { "" };
        rows.push(("checkpoints", format!("{}, keeps {}{best}", often.join(" and "), checkpoint.keep)));
        rows.push((
            "memory",
            format!(
                "{}: parameters {}, optimizer {}, activations {}, pipeline {}",
                show_size(memory.total()),
                show_size(memory.parameters),
                show_size(memory.optimizer),
                show_size(memory.activations),
                show_size(memory.pipeline)
            ),
        ));
        match &self.inputs.table {
            Some(columns) => format!("{}\n{}", table(&rows), describe_table(columns, usize::MAX)),
            None => table(&rows),
        }
    }

    fn to_json(&self, name: &str, spec: &PipelineSpec) -> String {
        let layout = self.circuit.layout();
        let manifest = self.inputs.source.manifest();
        json!({
            "pipeline": name,
            "source": {
                "kind": manifest.kind,
                "files": manifest.files,
                "digest": manifest.digest,
                "rows": self.inputs.num_rows(),
                "watched": self.watched,
            },
            "columns": self.inputs.reading,
            "table": self.inputs.table.as_deref(),
            "decoder": {"identity": self.inputs.decoder.identity(), "rows": self.inputs.decoder.shape()},
            "batch": {"rows": spec.batch.rows, "first": self.first_batch},
            "circuit": {
                "model": spec.circuit.model.name(),
                "variables": self.circuit.num_vars(),
                "nodes": self.circuit.nodes().len(),
                "parameters": layout.num_values(),
                "blocks": layout.blocks().len(),
            },
            "start": self.start,
            "optimizer": spec.learn.optimizer,
            "schedule": self.steps.as_ref().map(Steps::to_json),
            "memory": self.memory,
            "resolved": self.inputs.spec,
        })
        .to_string()
    }
}

fn describe_batch(spec: &PipelineSpec, first: Option<usize>) -> String {
    let order = if spec.batch.shuffle && !spec.source.watch { "shuffled" } else { "in order" };
    let first = match first {
        Some(rows) => format!("the first has {} and fits the circuit", thousands(rows as u64)),
        None => "those of a live stream, which comes once, are not checked".to_string(),
    };
    format!("{} rows, {order}, seed {}; {first}", thousands(spec.batch.rows as u64), spec.batch.seed)
}

fn describe_limits(spec: &PipelineSpec) -> String {
    let learn = &spec.learn;
    let limits = [
        learn.epochs.map(|n| counted(n, "epoch", "epochs")),
        learn.batches.map(|n| counted(n, "batch", "batches")),
        learn.rows.map(|n| counted(n, "row", "rows")),
        learn.seconds.map(seconds),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    if limits.is_empty() {
        return "without an end".into();
    }
    format!("for {}", limits.join(" or "))
}

/// So many seconds: `1 second`, `0.5 seconds`.
fn seconds(number: f64) -> String {
    format!("{number} {}", if number == 1.0 { "second" } else { "seconds" })
}

/// After so many things each: `every batch`, `every 5 batches`.
fn every(counted: &str) -> String {
    format!("every {}", counted.strip_prefix("1 ").unwrap_or(counted))
}
