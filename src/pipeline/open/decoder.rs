//! Decoders, by what is said of them and by what the source delivers.
//!
//! Where `[decode]` is silent the first records decide, as far as they can only mean one thing: how long rows are, how
//! many categories there are, whether pictures are grey.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::{Hint, Opened};
use crate::data::Values;
#[cfg(feature = "images")]
use crate::decode::image::{Color, ImageDecoder, is_grey};
use crate::decode::rows::RowDecoder;
#[cfg(feature = "text")]
use crate::decode::text::TextDecoder;
use crate::decode::tokens::TokenDecoder;
use crate::decode::{Decoder, ValueKind};
use crate::error::{Error, Result};
use crate::pipeline::spec::{
    ColumnsSpec, DEFAULT_TOKENIZER, DEFAULT_WINDOW, DecodeKind, DecodeSpec, GPT2_VOCAB, TextRows, expand_path,
};
use crate::pipeline::table::{TableReport, open_table};
use crate::source::{RecordKind, Records, Source};

/// Rows that are looked at to count categories.
const ROWS_TO_COUNT: usize = 20_000;

/// Images that are looked at for colours.
#[cfg(feature = "images")]
const IMAGES_TO_SEE: usize = 64;

/// The most categories that are taken from the data without being asked for.
const MOST_COUNTED: u32 = 1 << 20;

/// A decoder, and what was found out about what it decodes.
pub struct OpenedDecoder {
    /// The decoder.
    pub decoder: Arc<dyn Decoder>,
    /// How records become rows, with all that was found.
    pub decode: DecodeSpec,
    /// What the columns of a table are understood as.
    pub table: Option<Arc<TableReport>>,
}

/// The decoder for what a source delivers, where `decode` does not say otherwise.
pub async fn open_decoder(decode: &DecodeSpec, columns: &ColumnsSpec, opened: &mut Opened) -> Result<OpenedDecoder> {
    let kind = decode.kind.unwrap_or_else(|| opened.likely_kind());
    let mut found = decode.of_kind(kind);
    if kind == DecodeKind::Table {
        let (decoder, table) = open_table(&found, columns, opened).await?;
        found.schema = Some(decoder.schema().clone());
        return Ok(OpenedDecoder { decoder, decode: found, table: Some(table) });
    }
    #[cfg(feature = "images")]
    if kind == DecodeKind::Image && found.color.is_none() {
        found = DecodeSpec { color: Some(opened.likely_color().await?), ..found }.of_kind(kind);
    }
    let decoder = decoder_of_kind(kind, &found, opened).await?;
    if let (DecodeKind::Rows, ValueKind::Categories(cats)) = (kind, decoder.shape().values) {
        found.cats = Some(cats);
    }
    Ok(OpenedDecoder { decoder, decode: found, table: None })
}

async fn decoder_of_kind(kind: DecodeKind, decode: &DecodeSpec, opened: &Opened) -> Result<Arc<dyn Decoder>> {
    let window = decode.window.unwrap_or(DEFAULT_WINDOW);
    match kind {
        #[cfg(feature = "text")]
        DecodeKind::Text => Ok(Arc::new(open_text(decode, window)?)),
        #[cfg(not(feature = "text"))]
        DecodeKind::Text => Err(Error::not_built("kind: text", "text")),
        DecodeKind::Tokens => {
            let vocab = decode.vocab.unwrap_or(GPT2_VOCAB);
            let texts = decode.rows == Some(TextRows::Texts);
            Ok(Arc::new(match opened.hint {
                Hint::TokenRows | Hint::TokenStream if texts => {
                    return Err(Error::option(
                        "rows = \"texts\": a token file is one long list, which does not say where texts begin; \
                         give lists of tokens, or text",
                    ));
                }
                _ if texts => TokenDecoder::texts(vocab, window)?,
                Hint::TokenRows => TokenDecoder::rows(vocab, window)?,
                _ => TokenDecoder::new(vocab, window)?,
            }))
        }
        #[cfg(feature = "images")]
        DecodeKind::Image => Ok(Arc::new(ImageDecoder::new(decode.image())?.with_memory(2 * opened.limits.part_bytes))),
        #[cfg(not(feature = "images"))]
        DecodeKind::Image => Err(Error::not_built("kind: image", "images")),
        DecodeKind::Rows => opened.row_decoder(decode).await,
        DecodeKind::Table => unreachable!("opened by itself"),
    }
}

/// The tokenizer that `decode` names.
#[cfg(feature = "text")]
#[cfg_attr(docsrs, doc(cfg(feature = "text")))]
pub fn open_text(decode: &DecodeSpec, window: usize) -> Result<TextDecoder> {
    let decoder = match decode.tokenizer.as_deref().unwrap_or(DEFAULT_TOKENIZER) {
        DEFAULT_TOKENIZER => TextDecoder::gpt2(window)?,
        path => TextDecoder::from_file(Path::new(&expand_path(path)?), window)?,
    };
    let decoder = if decode.rows == Some(TextRows::Texts) { decoder.apart() } else { decoder };
    if !decode.end_of_text.unwrap_or(false) {
        return Ok(decoder);
    }
    let separator = decoder.end_of_text();
    if separator.is_none() {
        return Err(Error::option("end_of_text = true: this tokenizer has no token that ends a text"));
    }
    decoder.with_separator(separator)
}

impl Opened {
    /// What the records are, where nobody says.
    fn likely_kind(&self) -> DecodeKind {
        match &self.hint {
            Hint::Records(RecordKind::Text) => DecodeKind::Text,
            Hint::Records(RecordKind::Image) => DecodeKind::Image,
            Hint::Records(RecordKind::Lists { .. }) | Hint::Array(_) | Hint::Synthetic { .. } => DecodeKind::Rows,
            Hint::Records(RecordKind::Cells { .. }) => DecodeKind::Table,
            Hint::TokenRows | Hint::TokenStream => DecodeKind::Tokens,
        }
    }

    /// How long most of the first lists are: a list of another length is a bad record. Where there is no such length
    /// the lists are not rows.
    async fn list_length(&self) -> Result<usize> {
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        let mut first_other = None;
        self.look(ROWS_TO_COUNT, |piece| {
            let Records::Lists(lists) = &piece.records else { return Ok(()) };
            let good = (0..lists.ends.len()).filter(|record| piece.bad.iter().all(|(bad, _)| bad != record));
            for record in good {
                let length = lists.range(record).len();
                *lengths.entry(length).or_default() += 1;
                if lengths.len() == 2 && first_other.is_none() {
                    let (unit, number) = piece.positions.place(record);
                    first_other = Some(format!("{}: {unit} {number} has {length}", piece.file));
                }
            }
            Ok(())
        })
        .await?;
        let total: usize = lengths.values().sum();
        let most = lengths.iter().max_by_key(|(_, count)| **count);
        match (most, lengths.keys().next(), lengths.keys().last()) {
            (Some((&length, &count)), ..) if 2 * count > total && length > 0 => Ok(length),
            (_, Some(shortest), Some(longest)) if longest > shortest => Err(Error::data(format!(
                "lists of {shortest} to {longest} values are not rows ({}); decode.kind = \"tokens\" joins them",
                first_other.unwrap_or_default()
            ))),
            _ => Err(Error::data("the first lists are empty: there is no row in them")),
        }
    }

    async fn row_decoder(&self, decode: &DecodeSpec) -> Result<Arc<dyn Decoder>> {
        let (num_vars, grid, known_cats, reals) = match &self.hint {
            Hint::Synthetic { num_vars, cats } => (*num_vars, None, Some(*cats), false),
            Hint::Array(shape) => (shape.iter().product(), Some(shape.clone()), None, false),
            Hint::Records(RecordKind::Lists { width, reals }) => {
                let length = match width {
                    Some(width) => *width,
                    None => self.list_length().await?,
                };
                (length, None, None, *reals)
            }
            Hint::TokenRows | Hint::TokenStream => {
                return Err(Error::option("kind = \"rows\": token files are read with kind = \"tokens\""));
            }
            Hint::Records(_) => return Err(Error::option("kind = \"rows\": the records are not lists of numbers")),
        };
        let values = match decode.cats.or(known_cats) {
            Some(cats) => ValueKind::Categories(cats),
            None if reals => ValueKind::Reals,
            None => self.count_categories().await?,
        };
        let decoder = RowDecoder::new(num_vars, values)?;
        Ok(Arc::new(match grid.filter(|grid| grid.len() > 1) {
            Some(grid) => decoder.with_grid(grid)?,
            None => decoder,
        }))
    }

    /// Grey if all of the first images are, which are few; otherwise colours. Those of a live stream cannot be looked
    /// at.
    #[cfg(feature = "images")]
    async fn likely_color(&self) -> Result<Color> {
        if let (Source::Live(_), None) = (&self.source, &self.first_file) {
            return Ok(Color::YcocgR);
        }
        let (mut grey, mut coloured) = (0, 0);
        self.look(IMAGES_TO_SEE, |piece| {
            if let Records::Blobs(blobs) = &piece.records {
                for is_grey in (0..blobs.ends.len().min(IMAGES_TO_SEE)).filter_map(|record| is_grey(blobs.get(record)))
                {
                    *if is_grey { &mut grey } else { &mut coloured } += 1;
                }
            }
            Ok(())
        })
        .await?;
        Ok(if grey > 0 && coloured == 0 { Color::Grey } else { Color::YcocgR })
    }

    /// One more than the largest value of the first rows; at least two.
    async fn count_categories(&self) -> Result<ValueKind> {
        let mut largest = 1;
        let mut reals = false;
        self.look(ROWS_TO_COUNT, |piece| {
            let Records::Lists(lists) = &piece.records else { return Ok(()) };
            reals |= matches!(lists.values, Values::F32(_));
            let missing = |at: usize| lists.missing.as_ref().is_some_and(|missing| missing[at]);
            let values = (0..lists.values.len()).filter(|&at| !missing(at)).filter_map(|at| lists.values.category(at));
            largest = values.max().unwrap_or(0).max(largest);
            Ok(())
        })
        .await?;
        match (reals, largest.checked_add(1)) {
            (true, _) => Ok(ValueKind::Reals),
            (false, Some(cats)) if cats <= MOST_COUNTED => Ok(ValueKind::Categories(cats)),
            (false, _) => Err(Error::data(format!(
                "a value {largest} among the first rows would make more categories than anybody means; if it is right, \
                 say so with decode.cats"
            ))),
        }
    }
}
