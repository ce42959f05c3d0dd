//! How a person sees the rows of a model: as pictures, as text, or as numbers.
//!
//! What rows are is said by the pipeline that the model was learned with; no data is opened for it. The name of a file may ask
//! for numbers in any case (`.csv`).

use std::path::{Path, PathBuf};

use clap::Args;

use super::rows_args::{categories, stored_pipeline};
use crate::data::{Batch, Column};
use crate::decode::Decoder;
use crate::decode::image::ImageDecoder;
use crate::decode::text::TextDecoder;
use crate::error::{Error, Result};
use crate::learner::model::Model;
use crate::pipeline::open::open_text;
use crate::pipeline::spec::{DecodeKind, DecodeSpec, GPT2_VOCAB, PipelineSpec};

/// How to draw, and where it goes.
#[derive(Args, Clone, Debug)]
pub(super) struct DrawArgs {
    /// Decides what is drawn, and what is hidden at random
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Where rows go; a file that is there is replaced. If left out, a PNG named after the command for pictures, and standard output
    /// for all else. A .csv file gets numbers in any case
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
    /// One value after the other.
    Numbers,
}

/// A tile is scaled until its longer side has about this many pixels.
const COMFORTABLE_SIDE: usize = 64;

impl View {
    /// How rows of `model` are shown in `out`, or on standard output. `tokenizer` is what `--tokenizer` says.
    pub fn understand(model: &Model, out: Option<&Path>, tokenizer: Option<&str>) -> Result<Self> {
        let ending = out.and_then(Path::extension).map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        if ending.as_deref() == Some("csv") {
            return Ok(Self::Numbers);
        }
        let view = Self::natural(model, tokenizer)?;
        let refuse = |why: &str| {
            let out = out.map(|out| out.display().to_string()).unwrap_or_default();
            Err(Error::option(format!("--out {out}: {why}")))
        };
        let is_png = ending.as_deref() == Some("png");
        match (&view, out) {
            (Self::Picture(_), Some(_)) if !is_png => {
                refuse("rows of this model are pictures: name a .png file, or a .csv file for their categories")
            }
            (Self::Text(_), _) if is_png => {
                refuse("rows of this model are text and no pictures: name a .txt file, or a .csv file for tokens")
            }
            (Self::Numbers, _) if is_png => refuse("rows of this model are numbers and no pictures: name a .csv file"),
            _ => Ok(view),
        }
    }

    fn natural(model: &Model, tokenizer: Option<&str>) -> Result<Self> {
        let decode = match stored_pipeline(model)? {
            Some(document) => PipelineSpec::from_document(&document)?.decode,
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
                        "the model's pipeline makes rows of {here} variables, and the model has {num_vars}; --out with a \
                         .csv file writes numbers"
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
            (_, None) => Ok(Self::Numbers),
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
        Some(_) => DecodeKind::Text, // a tokenizer, by its name
    }
}

/// The categories of a row; real numbers become the nearest one.
pub(super) fn categories_of(batch: &Batch, row: usize) -> Vec<u32> {
    (0..batch.num_vars()).map(|var| batch.column(var).real(row).round() as u32).collect()
}

/// The values of a row between commas; nothing where one is missing.
pub(super) fn csv(batch: &Batch, row: usize) -> String {
    let cell = |var: usize| match batch.column(var) {
        _ if batch.is_missing(row, var) => String::new(),
        Column::F32(values) => values[row].to_string(),
        column => column.category(row).unwrap_or_default().to_string(),
    };
    (0..batch.num_vars()).map(cell).collect::<Vec<_>>().join(",")
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
    fn rows_are_lines_with_nothing_for_what_is_missing() {
        let columns = vec![Column::U8(vec![7, 1]), Column::F32(vec![0.1, -2.0]), Column::U32(vec![70_000, 0])];
        let batch = Batch::from_columns(columns).unwrap().with_missing(|row, var| row == 1 && var == 1);
        assert_eq!([csv(&batch, 0), csv(&batch, 1)], ["7,0.1,70000", "1,,0"]);
        assert_eq!(categories_of(&batch, 0), [7, 0, 70_000]);
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
