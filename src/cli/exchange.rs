//! `anemone export` and `anemone import`: models in the format of another program.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::model_path::CheckpointArgs;
use super::output::{Outcome, counted, note, say, thousands};
use super::view::View;
use crate::error::{Error, Result};
use crate::learner::model::{self, Model};
use crate::learner::{Snapshot, ctrlg};
use crate::optim::OptimizerState;
use crate::query::chain::Chain;

/// Write a model in the format of another program.
///
/// Formats: ctrlg, the folder of a hidden Markov model that ctrlg.HMM.from_pretrained loads. A Monarch HMM is written
/// with its transitions multiplied out.
#[derive(Args, Clone, Debug)]
pub(super) struct ExportArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is used unless a flag names another
    model: PathBuf,
    /// The folder to write; an older one of the same format is replaced
    folder: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Whose format
    #[arg(long, value_enum, default_value_t = Format::Ctrlg)]
    format: Format,
    /// The id of the token that ends a text (that of the tokenizer if left out)
    #[arg(long, value_name = "ID")]
    end_of_text: Option<u32>,
}

/// Read a model of another program: a Ctrl-G folder becomes a model of ours.
#[derive(Args, Clone, Debug)]
pub(super) struct ImportArgs {
    /// The folder of the other program
    folder: PathBuf,
    /// The model to write, a folder; an older model there is replaced
    model: PathBuf,
    /// Tokens in a row (as many as the folder notes if left out; only folders that anemone wrote note it)
    #[arg(long, value_name = "N")]
    length: Option<usize>,
}

/// Formats of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Hidden Markov models of Ctrl-G.
    Ctrlg,
}

pub(super) fn export(args: &ExportArgs) -> Outcome {
    let path = args.checkpoint.find(&args.model)?;
    let model = model::load(&path)?;
    match args.format {
        Format::Ctrlg => {
            let chain = Chain::of(&model.circuit, &model.params)?;
            let end = end_of_text(args, &model)?;
            ctrlg::write(&args.folder, &model.circuit, &model.params, end)?;
            said(&args.folder, &chain, end)
        }
    }
}

/// The token that the flag names, the model, or the tokenizer that its rows were made with.
fn end_of_text(args: &ExportArgs, model: &Model) -> Result<u32> {
    if let Some(end) = args.end_of_text.or(model.end_of_text()) {
        return Ok(end);
    }
    let end = match View::understand(model, None, None) {
        Ok(View::Text(decoder)) => decoder.end_of_text(),
        _ => None,
    };
    end.ok_or_else(|| {
        Error::option(
            "the format names the token that ends a text, and this model has none: name it with --end-of-text",
        )
    })
}

pub(super) fn import(args: &ImportArgs) -> Outcome {
    if !ctrlg::is_ctrlg(&args.folder) {
        let what = match args.folder.is_dir() {
            true => "is no Ctrl-G folder, which has config.json and model.safetensors and no checkpoint.json",
            false => "no such folder",
        };
        return Err(Error::missing_path(format!("{}: {what}", args.folder.display())));
    }
    let read = ctrlg::read(&args.folder, args.length)?;
    if read.farthest > 0.0 {
        let off = read.farthest;
        note(format_args!(
            "note: rows of probabilities that did not sum to one were normalised (off by up to {off:.1e})"
        ));
    }
    let (end, model) = (read.end_of_text, read.into_model());
    let Model { circuit, params, meta } = &model;
    let snapshot = Snapshot {
        circuit: circuit.clone(),
        params: params.clone(),
        optimizer: OptimizerState::default(),
        progress: meta.progress.clone(),
    };
    model::save(&args.model, &snapshot, &meta.identity, &meta.extra)?;
    said(&args.model, &Chain::of(circuit, params)?, end)
}

fn said(folder: &std::path::Path, chain: &Chain<'_>, end: u32) -> Outcome {
    let states = counted(chain.num_states() as u64, "hidden state", "hidden states");
    let (tokens, length) = (thousands(chain.num_symbols() as u64), chain.num_vars());
    say(format_args!("{}: {states}, {tokens} tokens, rows of {length}, end-of-text {end}", folder.display()))
}
