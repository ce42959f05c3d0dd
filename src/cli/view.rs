//! How a person sees the rows of a model: as pictures, as text, or as numbers.
//!
//! What rows are is said by the pipeline that the model was learned with; no data is opened for it. The ending of a
//! file may ask for values in any case (`.csv`, `.json`, `.jsonl`, see `row_lines`); an ending that says nothing is
//! refused.

use std::path::{Path, PathBuf};

use clap::Args;

use super::row_lines::Layout;
use super::rows_args::{categories, stored_pipeline};
use crate::data::{Batch, TableSchema};
use crate::decode::Decoder;
use crate::decode::image::ImageDecoder;
use crate::decode::text::TextDecoder;
use crate::error::{Error, Result};
use crate::learner::model::Model;
use crate::pipeline::open::open_text;
use crate::pipeline::spec::{DecodeKind, DecodeSpec, GPT2_VOCAB, PipelineSpec, TextRows};

/// How to draw, and where it goes.
#[derive(Args, Clone, Debug)]
pub(super) struct DrawArgs {
    /// Decides what is drawn, and what is hidden at random
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Where rows go; an existing file is replaced. Its ending decides: .png for pictures, .txt for text, .csv, .json
    /// or .jsonl for the values of any row. If left out, a PNG named after the command for pictures, and standard
    /// output for all else
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How many times larger pictures are shown (to about 64 pixels if left out)
    #[arg(long, value_name = "N")]
    pub scale: Option<usize>,
    /// Show token ids as text: gpt2, or the path of a tokenizer.json
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
}

impl DrawArgs {
    /// How rows of `model` are shown.
    pub fn view(&self, model: &Model) -> Result<View> {
        View::understand(model, self.out.as_deref(), self.tokenizer.as_deref())
    }
}

/// What rows are shown as.
pub(super) enum View {
    /// Pixels.
    Picture(ImageDecoder),
    /// The text of tokens.
    Text(TextDecoder),
    /// Values, and what there is to make of them.
    Values(Layout, Meant),
}

/// What values mean, as far as they mean more than numbers.
#[derive(Default)]
pub(super) struct Meant {
    /// The text of tokens.
    pub text: Option<TextDecoder>,
    /// The cells of a table.
    pub table: Option<TableSchema>,
}

/// What the ending of a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Picture,
    Text,
    Values(Layout),
}

/// Every ending that says what to write.
const FORMS: [(&str, Form); 5] = [
    ("csv", Form::Values(Layout::Csv)),
    ("json", Form::Values(Layout::Json)),
    ("jsonl", Form::Values(Layout::Jsonl)),
    ("png", Form::Picture),
    ("txt", Form::Text),
];

impl Form {
    /// What `out` asks for; `None` where nothing is asked: a pipe or a device takes what standard output would.
    fn of(out: &Path) -> Result<Option<Self>> {
        let ending = out.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        if let Some((_, form)) = FORMS.iter().find(|(known, _)| *known == ending) {
            return Ok(Some(*form));
        }
        if out.exists() && !out.is_file() && !out.is_dir() {
            return Ok(None);
        }
        let why = "cannot tell the format from the name; there are .png for pictures, .txt for text, and .csv, .json \
                   and .jsonl for the values of any row";
        Err(Error::option(format!("--out {}: {why}", out.display())))
    }
}

/// A tile is scaled until its longer side has about this many pixels.
const COMFORTABLE_SIDE: usize = 64;

impl View {
    /// How rows of `model` are shown in `out`, or on standard output. `tokenizer` is what `--tokenizer` says.
    pub fn understand(model: &Model, out: Option<&Path>, tokenizer: Option<&str>) -> Result<Self> {
        let form = out.map(Form::of).transpose()?.flatten();
        let natural = Self::natural(model, tokenizer);
        if let Some(Form::Values(layout)) = form {
            return match (layout, natural) {
                (Layout::Json | Layout::Jsonl, Ok(Self::Text(decoder))) => {
                    Ok(Self::Values(layout, Meant { text: Some(decoder), table: None }))
                }
                (_, Err(error)) if tokenizer.is_some() => Err(error),
                (_, Ok(Self::Values(_, meant))) => Ok(Self::Values(layout, meant)),
                _ => Ok(Self::Values(layout, Meant::default())),
            };
        }
        let view = natural?;
        let values = "a .csv, .json or .jsonl file";
        let why = match (&view, form) {
            (Self::Picture(_), Some(Form::Text)) => {
                format!("pictures: name a .png file, or {values} for their categories")
            }
            (Self::Picture(_), None) if out.is_some() => {
                format!("pictures: name a .png file, or {values} for their categories")
            }
            (Self::Text(_), Some(Form::Picture)) => {
                format!("text and not pictures: name a .txt file, or {values} for tokens")
            }
            (Self::Values(..), Some(Form::Picture)) => format!("numbers and not pictures: name {values}"),
            (Self::Values(..), Some(Form::Text)) => format!("numbers and not text: name {values}"),
            _ => return Ok(view),
        };
        let out = out.map(|out| out.display().to_string()).unwrap_or_default();
        Err(Error::option(format!("--out {out}: rows of this model are {why}")))
    }

    fn natural(model: &Model, tokenizer: Option<&str>) -> Result<Self> {
        let decode = match stored_pipeline(model)? {
            Some(document) => PipelineSpec::from_document(&document)?.decode,
            // Whoever names the token that ends a text has tokens.
            None if model.end_of_text().is_some() => {
                let vocab = categories(&model.circuit);
                DecodeSpec { kind: Some(DecodeKind::Tokens), vocab, ..DecodeSpec::default() }
            }
            None => DecodeSpec { kind: Some(DecodeKind::Rows), ..DecodeSpec::default() },
        };
        let decode = decode.of_kind(decode.kind.unwrap_or_else(|| kind_of(&model.meta.identity.decoder)));
        let num_vars = model.circuit.num_vars();
        match (decode.kind, tokenizer) {
            (Some(DecodeKind::Image), Some(_)) => Err(Error::option("--tokenizer: rows of this model are pictures")),
            (Some(DecodeKind::Image), None) => {
                let decoder = ImageDecoder::new(decode.image())?;
                let here = decoder.shape().num_vars;
                if here != num_vars {
                    return Err(Error::option(format!(
                        "the model's pipeline makes rows of {here} variables, and the model has {num_vars}; --out with \
                         a .csv file writes values"
                    )));
                }
                Ok(Self::Picture(decoder))
            }
            (Some(DecodeKind::Text), None) => {
                Ok(Self::Text(open_text(&DecodeSpec { end_of_text: None, ..decode }, num_vars)?))
            }
            (Some(DecodeKind::Tokens), None) if decode.vocab == Some(GPT2_VOCAB) => {
                Ok(Self::Text(TextDecoder::gpt2(num_vars)?))
            }
            (_, None) => Ok(Self::Values(Layout::Csv, Meant { text: None, table: decode.schema })),
            (_, Some(name)) => {
                let named = DecodeSpec { tokenizer: Some(name.to_string()), ..DecodeSpec::default() };
                let decoder = open_text(&named, num_vars).map_err(|e| e.at("--tokenizer"))?;
                match categories(&model.circuit) {
                    Some(cats) if cats <= decoder.vocab() => Ok(Self::Text(decoder)),
                    Some(cats) => {
                        let vocab = decoder.vocab();
                        Err(Error::option(format!("--tokenizer {name}: has {vocab} tokens, and the model {cats}")))
                    }
                    None => Err(Error::option(format!("--tokenizer {name}: rows of this model are real numbers"))),
                }
            }
        }
    }
}

/// What kind of rows a decoder made, by what it called itself: for pipelines that left it to the data.
fn kind_of(identity: &str) -> DecodeKind {
    match identity.split(' ').next() {
        Some("rows" | "") | None => DecodeKind::Rows,
        Some("tokens" | "token") => DecodeKind::Tokens,
        Some("image") => DecodeKind::Image,
        Some("table") => DecodeKind::Table,
        Some(_) => DecodeKind::Text, // a tokenizer, by its name
    }
}

/// The token behind which rows of a model have nothing: where each of its rows was a text of its own.
pub(super) fn end_of_rows(model: &Model) -> Result<Option<u32>> {
    let Some(document) = stored_pipeline(model)? else { return Ok(None) };
    if PipelineSpec::from_document(&document)?.decode.rows != Some(TextRows::Texts) {
        return Ok(None);
    }
    match View::natural(model, None)? {
        View::Text(decoder) => Ok(decoder.end_of_text()),
        _ => Ok(None),
    }
}

/// The same rows, in which what follows the first `end` is missing.
pub(super) fn up_to_end(batch: Batch, end: Option<u32>) -> Batch {
    let Some(end) = end else { return batch };
    let first = |row: usize| (0..batch.num_vars()).find(|&var| batch.column(var).category(row) == Some(end));
    let ends: Vec<Option<usize>> = (0..batch.num_rows()).map(first).collect();
    batch.with_missing(|row, var| ends[row].is_some_and(|end| var > end))
}

/// The categories of a row; real numbers become the nearest one.
pub(super) fn categories_of(batch: &Batch, row: usize) -> Vec<u32> {
    (0..batch.num_vars()).map(|var| batch.column(var).real(row).round() as u32).collect()
}

/// How many times larger a tile is shown: as asked, or until it is easily seen.
pub(super) fn understand_scale(asked: Option<usize>, (height, width): (usize, usize)) -> Result<usize> {
    match asked {
        Some(0) => Err(Error::option("--scale 0: must be at least 1")),
        Some(scale) => Ok(scale),
        None => Ok((COMFORTABLE_SIDE / height.max(width)).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_are_known_by_what_they_call_themselves() {
        for (identity, kind) in [
            ("rows num_vars=3 categories=2", DecodeKind::Rows),
            ("", DecodeKind::Rows),
            ("token rows vocab=5 window=4", DecodeKind::Tokens),
            ("tokens vocab=5 window=4", DecodeKind::Tokens),
            ("image color=grey size=2x2", DecodeKind::Image),
            ("gpt2 sha256:12 window=8", DecodeKind::Text),
        ] {
            assert_eq!(kind_of(identity), kind, "{identity}");
        }
    }

    #[test]
    fn the_ending_of_a_file_says_what_to_write() {
        for (out, form) in [
            ("a.csv", Form::Values(Layout::Csv)),
            ("b.JSON", Form::Values(Layout::Json)),
            ("c.d/e.jsonl", Form::Values(Layout::Jsonl)),
            ("f.png", Form::Picture),
            ("g.txt", Form::Text),
        ] {
            assert_eq!(Form::of(Path::new(out)).unwrap(), Some(form), "{out}");
        }
        for out in ["a.dat", "a", "a.csv.gz", "."] {
            let error = Form::of(Path::new(out)).unwrap_err().to_string();
            assert!(error.contains(".csv, .json and .jsonl"), "{error}");
        }
    }

    #[test]
    fn small_tiles_are_shown_larger() {
        let scale = |asked, tile| understand_scale(asked, tile).unwrap();
        assert_eq!(
            [scale(None, (16, 16)), scale(None, (28, 20)), scale(None, (500, 2)), scale(Some(3), (1, 1))],
            [4, 2, 1, 3]
        );
        assert!(understand_scale(Some(0), (1, 1)).is_err());
    }
}
