//! `anemone sample`: rows drawn from a model.

use std::path::{Path, PathBuf};

use clap::Args;

use super::constraint::ConstraintArgs;
use super::model_path::CheckpointArgs;
use super::output::{Outcome, counted, note, say};
use super::row_lines::{Layout, RowLines};
use super::sink::Sink;
use super::view::{DrawArgs, Meant, View, categories_of, end_of_rows, understand_scale, up_to_end};
use crate::data::Batch;
use crate::decode::image::ImageDecoder;
use crate::decode::mosaic::Mosaic;
use crate::decode::text::TextDecoder;
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::learner::model::{self, Model};
use crate::query::chain::Chain;
use crate::query::sample;
use crate::rng::Rng;

/// Draw rows from a model: pictures as a PNG, text as text, other rows as CSV.
///
/// What a row is comes from the pipeline that the model was learned with. The same seed draws the same rows.
#[derive(Args, Clone, Debug)]
pub(super) struct SampleArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is used unless a flag names another
    model: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// How many rows (64 pictures or 8 other rows if left out)
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    #[command(flatten)]
    draw: DrawArgs,
    #[command(flatten)]
    constraint: ConstraintArgs,
}

/// Where pictures go by default.
const PICTURE: &str = "samples.png";

/// Rows drawn at once, so that any number of them takes little memory.
const ROWS_AT_ONCE: usize = 512;

pub(super) fn run(args: &SampleArgs) -> Outcome {
    if args.rows == Some(0) {
        return Err(Error::option("--rows 0: must be at least 1"));
    }
    let path = args.checkpoint.find(&args.model)?;
    let model = model::load(&path)?;
    let view = args.draw.view(&model)?;
    if args.constraint.is_asked() {
        return draw_constrained(args, &model, view);
    }
    match view {
        View::Picture(decoder) => draw_pictures(args, &model, &decoder),
        View::Text(decoder) => draw_texts(args, &model, &decoder),
        View::Values(layout, meant) => draw_values(args, &model, layout, &meant),
    }
}

fn draw_pictures(args: &SampleArgs, model: &Model, decoder: &ImageDecoder) -> Outcome {
    let rows = args.rows.unwrap_or(64);
    let side = rows.isqrt();
    let columns = side + usize::from(side * side < rows);
    let scale = understand_scale(args.draw.scale, decoder.tile())?;
    let mosaic = Mosaic::new(decoder.tile(), rows, columns, scale);
    let mut mosaic = mosaic.map_err(|e| e.at("--rows and --scale"))?;
    draw(args, model, rows, |batch, row| {
        mosaic.push(&decoder.colours(&categories_of(batch, row)));
        Ok(true)
    })?;
    let out = args.draw.out.as_deref().unwrap_or(Path::new(PICTURE));
    let (height, width) = mosaic.size();
    write_whole(out, &mosaic.into_png()?)?;
    let rows = counted(rows as u64, "row", "rows");
    let what = format!("{rows}, {columns} in a line, {width}×{height} pixels");
    say(format_args!("{}: {what}", out.display()))
}

fn draw_texts(args: &SampleArgs, model: &Model, decoder: &TextDecoder) -> Result<()> {
    let mut sink = Sink::open(args.draw.out.as_deref())?;
    let (mut first, end) = (true, end_of_rows(model)?);
    draw(args, model, args.rows.unwrap_or(8), |batch, row| {
        let tokens = categories_of(batch, row);
        let end = tokens.iter().position(|&token| Some(token) == end).unwrap_or(tokens.len());
        let text = decoder.decode_tokens(&tokens[..end])?;
        // A paragraph each.
        let more = (std::mem::take(&mut first) || sink.line("")?) && sink.line(text.trim_end())?;
        Ok(more)
    })?;
    sink.finish()
}

fn draw_values(args: &SampleArgs, model: &Model, layout: Layout, meant: &Meant) -> Result<()> {
    let mut lines = RowLines::open(args.draw.out.as_deref(), layout, meant, model.circuit.num_vars(), false)?;
    let mut number = 0;
    draw(args, model, args.rows.unwrap_or(8), |batch, row| {
        number += 1;
        lines.push(number - 1, None, batch, row)
    })?;
    lines.finish()
}

/// Rows of a chain that meet a constraint; says how probable that was.
fn draw_constrained(args: &SampleArgs, model: &Model, view: View) -> Outcome {
    let (layout, meant) = match view {
        View::Picture(_) => return Err(Error::option("constraints are for text and tokens; rows here are pictures")),
        View::Text(text) => (None, Meant { text: Some(text), table: None }),
        View::Values(layout, meant) => (Some(layout), meant),
    };
    let chain = Chain::of(&model.circuit, &model.params)?;
    let constraint = args.constraint.understand(&chain, meant.text.as_ref(), model.end_of_text())?;
    let (rows, log_p) = constraint.draw(chain, args.rows.unwrap_or(8), args.draw.seed)?;
    note(format_args!("note: log p(constraint | prefix) = {log_p:.3} nats"));
    if let Some(layout) = layout {
        let length = rows.first().map_or(0, Vec::len);
        let batch = up_to_end(Batch::from_rows(&rows.concat(), length)?, constraint.end);
        let mut lines = RowLines::open(args.draw.out.as_deref(), layout, &meant, length, false)?;
        for row in 0..rows.len() {
            if !lines.push(row as u64, None, &batch, row)? {
                break;
            }
        }
        return lines.finish();
    }
    let Some(text) = meant.text else { return Ok(()) };
    let mut sink = Sink::open(args.draw.out.as_deref())?;
    for (at, row) in rows.iter().enumerate() {
        // The text ends where end-of-text is; what follows is none of it.
        let end = row.iter().position(|&token| Some(token) == constraint.end).unwrap_or(row.len());
        let line = text.decode_tokens(&row[..end])?;
        if (at > 0 && !sink.line("")?) || !sink.line(line.trim_end())? {
            break;
        }
    }
    sink.finish()
}

/// Shows every row to `see`, until it wants no more. Where each row is a text, what follows its end is missing.
fn draw(
    args: &SampleArgs,
    model: &Model,
    rows: usize,
    mut see: impl FnMut(&Batch, usize) -> Result<bool>,
) -> Result<()> {
    let end = end_of_rows(model)?;
    let mut rng = Rng::new(args.draw.seed);
    let mut left = rows;
    while left > 0 {
        let batch = sample(&model.circuit, &model.params, left.min(ROWS_AT_ONCE), &mut rng)?;
        let batch = up_to_end(batch, end);
        left -= batch.num_rows();
        for row in 0..batch.num_rows() {
            if !see(&batch, row)? {
                return Ok(());
            }
        }
    }
    Ok(())
}
