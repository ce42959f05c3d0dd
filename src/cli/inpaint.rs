//! `anemone inpaint`: what a model makes of rows that are partly hidden.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::mask::Mask;
use super::model_path::CheckpointArgs;
use super::output::{Outcome, counted, note_json, note_lines, say, say_json, table, thousands};
use super::row_lines::RowLines;
use super::rows_args::RowsArgs;
use super::sink::Sink;
use super::train::MachineArgs;
use super::view::{DrawArgs, View, categories_of, understand_scale};
use super::{runtime, words};
use crate::backend::PlaceSpec;
use crate::data::Batch;
use crate::decode::image::ImageDecoder;
use crate::decode::mosaic::Mosaic;
use crate::decode::text::TextDecoder;
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::learner::model::{self, Model};
use crate::pipeline::prepare::some_rows;
use crate::pipeline::spec::PipelineSpec;
use crate::query::sample_given;
use crate::rng::Rng;

/// Hide a part of some rows and let a model draw it from its exact distribution given the rest.
///
/// Rows come from --data, which is read as the model's own data was, from a pipeline file, or, if neither is given,
/// from those that the model's pipeline holds out. Pictures become a PNG with a line for each row: the original, what
/// the model saw, and its completions. Also says how likely the true values are given the rest, exactly.
#[derive(Args, Clone, Debug)]
pub(super) struct InpaintArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is used unless a flag names another
    model: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    which: RowsArgs,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,
    /// How many rows to skip before these
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// What to hide: left, right, top, bottom or center of pictures; first, last or middle of other rows; random; or
    /// variables such as 10..20. A part may follow, as in right:0.25 or random:0.8 (right or last if left out)
    #[arg(long, value_name = "WHAT", conflicts_with = "keep")]
    #[arg(value_parser = words::PARTS, hide_possible_values = true)]
    missing: Option<String>,
    /// What not to hide, in the same words
    #[arg(long, value_name = "WHAT", value_parser = words::PARTS, hide_possible_values = true)]
    keep: Option<String>,
    /// Completions of every row
    #[arg(long, value_name = "K", default_value_t = 6)]
    samples: usize,
    #[command(flatten)]
    draw: DrawArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// How likely the true values are as one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Where pictures go by default.
const PICTURE: &str = "inpaint.png";

/// Values that all completions together may have: half a gigabyte of them.
const MOST_VALUES: usize = 1 << 26;

/// The two greys of a checkerboard in place of what is hidden.
const CHECKER: [[u8; 3]; 2] = [[112; 3], [144; 3]];

pub(super) fn run(args: &InpaintArgs) -> Outcome {
    let place = args.machine.understand()?;
    if let Some(flag) = [("--rows", args.rows), ("--samples", args.samples)].iter().find(|(_, count)| *count == 0) {
        return Err(Error::option(format!("{} 0: must be at least 1", flag.0)));
    }
    let path = match args.json {
        true => args.checkpoint.find_quietly(&args.model)?,
        false => args.checkpoint.find(&args.model)?,
    };
    let model = model::load(&path)?;
    let view = args.draw.view(&model)?;
    let most = MOST_VALUES / model.circuit.num_vars().max(1);
    if args.rows.checked_mul(args.samples).is_none_or(|drawn| drawn > most) {
        let why = format!("--rows {} and --samples {}: more than the {most} completions", args.rows, args.samples);
        return Err(Error::option(format!("{why} that fit in memory")));
    }
    let at_once = args.rows.saturating_add(usize::try_from(args.skip).unwrap_or(usize::MAX)).min(512);
    let spec = args.which.pipeline(&model, &path, at_once)?;
    let (original, grid) = runtime()?.block_on(read(args, &spec, &model))?;
    let (words, keep) = match (&args.missing, &args.keep) {
        (Some(words), _) => (words.as_str(), false),
        (None, Some(words)) => (words.as_str(), true),
        (None, None) => (Mask::usual(grid.as_deref()), false),
    };
    let mask = Mask::understand(words, keep, original.num_vars(), grid.as_deref())?;
    let hidden = Hidden::new(original, args.skip, &mask, args.draw.seed)?;
    let score = hidden.score(&model, &place)?;
    let completions = with_threads(place.threads, || {
        sample_given(&model.circuit, &model.params, &hidden.masked, args.samples, &mut Rng::new(args.draw.seed))
    })??;
    let shown = Shown { hidden: &hidden, first: args.skip, completions: &completions, samples: args.samples };
    let out = match &view {
        View::Picture(decoder) => Some(draw_pictures(args, &shown, decoder)?),
        View::Text(decoder) => {
            let mut sink = Sink::open(args.draw.out.as_deref())?;
            shown.texts(decoder, &mut sink)?;
            sink.finish()?;
            args.draw.out.clone()
        }
        View::Values(layout, meant) => {
            let (out, num_vars) = (args.draw.out.as_deref(), model.circuit.num_vars());
            let mut lines = RowLines::open(out, *layout, meant, num_vars, true)?;
            shown.values(&mut lines)?;
            lines.finish()?;
            args.draw.out.clone()
        }
    };
    let is_discrete = model.circuit.is_discrete();
    let summary = Summary {
        path: &path,
        step: model.meta.progress.batches,
        is_discrete,
        words,
        keep,
        hidden: &hidden,
        score,
        out,
    };
    // Standard output is for rows where they go there, and for this where they do not.
    match (&summary.out, args.json) {
        (Some(_), true) => say_json(summary.to_json())?,
        (Some(_), false) => say(summary.to_table())?,
        (None, true) => note_json(summary.to_json()),
        (None, false) => note_lines(summary.to_table()),
    }
    Ok(())
}

/// The rows, and the grid that their variables lie on.
async fn read(args: &InpaintArgs, spec: &PipelineSpec, model: &Model) -> Result<(Batch, Option<Vec<usize>>)> {
    let rows = args.rows as u64;
    let mut opened = args.which.open(spec, model, Some(rows.saturating_add(args.skip))).await?;
    let rows = some_rows(&mut opened.stream, args.skip, rows).await?;
    let rows = rows.ok_or_else(|| match args.skip {
        0 => Error::data("there is no row to hide a part of"),
        skip => Error::option(format!("--skip {skip}: there is no row after so many")),
    })?;
    Ok((rows, opened.inputs.decoder.shape().grid.clone()))
}

/// Runs `work` on so many threads.
fn with_threads<T: Send>(threads: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    Ok(pool.map_err(|e| Error::device(format!("cannot start threads: {e}")))?.install(work))
}

/// Rows, whole and with a part hidden.
struct Hidden {
    original: Batch,
    masked: Batch,
    /// Cells that were known and are hidden now, over all rows.
    num_hidden: u64,
}

/// How likely the hidden values are given the others.
#[derive(Clone, Copy, Debug)]
struct Score {
    /// Mean of log p(hidden | kept) over the rows that are possible, in nats.
    mean: Option<f64>,
    /// The same by hidden variable.
    per_variable: Option<f64>,
    impossible_rows: u64,
}

impl Hidden {
    /// Hides a part of rows, the first of which has the number `first`.
    fn new(original: Batch, first: u64, mask: &Mask, seed: u64) -> Result<Self> {
        let mask_of = |row: usize| mask.of_row(seed, first.saturating_add(row as u64));
        let rows: Vec<Vec<bool>> = (0..original.num_rows()).map(mask_of).collect();
        let masked = original.clone().with_missing(|row, var| rows[row][var]);
        let known = |row: usize, var: usize| rows[row][var] && !original.is_missing(row, var);
        let count = |row: usize| (0..original.num_vars()).filter(|&var| known(row, var)).count() as u64;
        let num_hidden = (0..original.num_rows()).map(count).sum();
        if num_hidden == 0 {
            return Err(Error::option(
                "nothing is hidden from these rows: hide a larger part with --missing, or keep less with --keep",
            ));
        }
        Ok(Self { original, masked, num_hidden })
    }

    /// log p(hidden | kept) = log p(all) − log p(kept), exactly.
    fn score(&self, model: &Model, place: &PlaceSpec) -> Result<Score> {
        let (mut backend, _) = place.place(&model.circuit, &model.params)?;
        let all = backend.log_likelihoods(&self.original)?;
        let kept = backend.log_likelihoods(&self.masked)?;
        let (mut total, mut hidden, mut possible) = (0.0, 0, 0usize);
        for (row, (all, kept)) in all.iter().zip(&kept).enumerate().filter(|(_, (all, _))| all.is_finite()) {
            total += all - kept;
            possible += 1;
            hidden += (0..self.original.num_vars()).filter(|&var| self.is_hidden(row, var)).count();
        }
        Ok(Score {
            mean: (possible > 0).then(|| total / possible as f64),
            per_variable: (hidden > 0).then(|| total / hidden as f64),
            impossible_rows: (all.len() - possible) as u64,
        })
    }

    /// Returns true if a value that is known is hidden from the model.
    fn is_hidden(&self, row: usize, var: usize) -> bool {
        self.masked.is_missing(row, var) && !self.original.is_missing(row, var)
    }
}

/// Rows and their completions, to be looked at.
struct Shown<'a> {
    hidden: &'a Hidden,
    /// The number of the first row.
    first: u64,
    /// Row `r·samples + k` is completion `k` of row `r`.
    completions: &'a Batch,
    samples: usize,
}

impl Shown<'_> {
    fn rows(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.hidden.original.num_rows()
    }

    /// The tokens of a row as text, with marks around what was missing.
    fn text(&self, decoder: &TextDecoder, batch: &Batch, at: usize, row: usize) -> Result<String> {
        let tokens = categories_of(batch, at);
        let missing: Vec<bool> = (0..tokens.len()).map(|var| self.hidden.masked.is_missing(row, var)).collect();
        let mut text = String::new();
        let mut start = 0;
        for stretch in missing.chunk_by(|a, b| a == b) {
            let words = decoder.decode_tokens(&tokens[start..start + stretch.len()])?;
            start += stretch.len();
            if stretch[0] { text.extend(["⟦", &words, "⟧"]) } else { text.push_str(&words) }
        }
        Ok(text.trim_end().to_string())
    }

    fn texts(&self, decoder: &TextDecoder, sink: &mut Sink) -> Result<bool> {
        for row in self.rows() {
            let original = self.text(decoder, &self.hidden.original, row, row)?;
            let number = self.first + row as u64;
            let mut more = sink.line(&format!("── row {number}, original"))? && sink.line(&original)?;
            for k in 0..self.samples {
                let text = self.text(decoder, self.completions, row * self.samples + k, row)?;
                more = more && sink.line(&format!("── row {number}, completion {}", k + 1))? && sink.line(&text)?;
            }
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Original, kept and completions of every row; `false` if the reader is gone.
    fn values(&self, lines: &mut RowLines<'_>) -> Result<bool> {
        for row in self.rows() {
            let number = self.first + row as u64;
            let mut more = lines.push(number, Some("original"), &self.hidden.original, row)?
                && lines.push(number, Some("kept"), &self.hidden.masked, row)?;
            for k in 0..self.samples {
                let line = (k + 1).to_string();
                more = more && lines.push(number, Some(&line), self.completions, row * self.samples + k)?;
            }
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A tile with a checkerboard in place of what is missing in `batch`.
    fn tile(decoder: &ImageDecoder, batch: &Batch, row: usize) -> Vec<[u8; 3]> {
        let mut colours = decoder.colours(&categories_of(batch, row));
        let (_, width) = decoder.tile();
        let channels = batch.num_vars() / colours.len();
        for (at, colour) in colours.iter_mut().enumerate() {
            if (at * channels..(at + 1) * channels).any(|var| batch.is_missing(row, var)) {
                *colour = CHECKER[(at / width + at % width) % 2];
            }
        }
        colours
    }
}

/// Writes the picture and says where.
fn draw_pictures(args: &InpaintArgs, shown: &Shown<'_>, decoder: &ImageDecoder) -> Result<PathBuf> {
    let scale = understand_scale(args.draw.scale, decoder.tile())?;
    let columns = 2 + shown.samples;
    let rows = shown.hidden.original.num_rows();
    let mosaic = Mosaic::new(decoder.tile(), rows * columns, columns, scale);
    let mut mosaic = mosaic.map_err(|e| e.at("--rows, --samples and --scale"))?;
    for row in shown.rows() {
        mosaic.push(&Shown::tile(decoder, &shown.hidden.original, row));
        mosaic.push(&Shown::tile(decoder, &shown.hidden.masked, row));
        for k in 0..shown.samples {
            mosaic.push(&Shown::tile(decoder, shown.completions, row * shown.samples + k));
        }
    }
    let out = args.draw.out.clone().unwrap_or_else(|| PathBuf::from(PICTURE));
    write_whole(&out, &mosaic.into_png()?)?;
    Ok(out)
}

/// What is said in the end.
struct Summary<'a> {
    path: &'a Path,
    step: u64,
    is_discrete: bool,
    words: &'a str,
    keep: bool,
    hidden: &'a Hidden,
    score: Score,
    out: Option<PathBuf>,
}

impl Summary<'_> {
    /// Bits per hidden variable; a density has none.
    fn bits(&self) -> Option<f64> {
        self.score.per_variable.filter(|_| self.is_discrete).map(|nats| -nats / std::f64::consts::LN_2)
    }

    fn to_table(&self) -> String {
        let (rows, vars) = (self.hidden.original.num_rows() as u64, self.hidden.original.num_vars() as u64);
        let hidden = format!("{} of {}", thousands(self.hidden.num_hidden), counted(rows * vars, "value", "values"));
        let verb = if self.keep { "kept" } else { "hidden" };
        let number =
            |value: Option<f64>, unit: &str| value.map_or_else(|| "none".into(), |value| format!("{value:.4} {unit}"));
        let bits = self.bits().map_or(String::new(), |bits| format!(", {bits:.4} bits"));
        let mut lines = vec![
            ("model", format!("{} (after {})", self.path.display(), counted(self.step, "batch", "batches"))),
            ("rows", thousands(rows)),
            ("hidden", format!("{hidden} ({} {verb})", self.words)),
            ("log-likelihood", format!("{} of what is hidden given the rest", number(self.score.mean, "nats per row"))),
            ("per variable", format!("{}{bits}", number(self.score.per_variable, "nats"))),
        ];
        if self.score.impossible_rows > 0 {
            let count = counted(self.score.impossible_rows, "row", "rows");
            lines.push(("impossible", format!("{count} of probability zero, not in the mean")));
        }
        if let Some(out) = &self.out {
            lines.push(("written", out.display().to_string()));
        }
        table(&lines)
    }

    fn to_json(&self) -> String {
        let what = if self.keep { "keep" } else { "missing" };
        json!({
            "model": self.path.display().to_string(),
            "step": self.step,
            "rows": self.hidden.original.num_rows(),
            "variables": self.hidden.original.num_vars(),
            what: self.words,
            "hidden_values": self.hidden.num_hidden,
            "mean_log_likelihood": self.score.mean,
            "nats_per_variable": self.score.per_variable,
            "bits_per_variable": self.bits(),
            "impossible_rows": self.score.impossible_rows,
            "out": self.out.as_ref().map(|out| out.display().to_string()),
        })
        .to_string()
    }
}
