//! Records become rows of categories or numbers.
//!
//! A [`Decoder`] is a pure function of a piece, so that several workers can decode at once and in any order. A record
//! that cannot be decoded is reported, not dropped: `batcher` decides what to do about it. Text and token lists become
//! a stream of tokens, which the batcher cuts into rows, or stay apart; images and lists become rows here.
//!
//! `text` needs the feature `text`, `image` and `mosaic` need `images`.

mod categories;
#[cfg(feature = "text")]
mod gpt2;
#[cfg(feature = "images")]
#[cfg_attr(docsrs, doc(cfg(feature = "images")))]
#[doc(hidden)]
pub mod image;
#[doc(hidden)]
pub mod image_spec;
#[cfg(feature = "text")]
mod long_words;
#[cfg(feature = "images")]
#[doc(hidden)]
pub mod mosaic;
#[cfg(feature = "images")]
mod png_chunks;
mod records;
#[cfg(feature = "images")]
mod room;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod table;
#[cfg(feature = "text")]
#[cfg_attr(docsrs, doc(cfg(feature = "text")))]
#[doc(hidden)]
pub mod text;
#[cfg(feature = "tokenizer-json")]
mod tokenizer_json;
#[doc(hidden)]
pub mod tokens;
#[doc(hidden)]
pub mod ycocg;

use serde::{Deserialize, Serialize};

use crate::data::{InputSpec, Table, TableSchema, Values};
use crate::error::Result;
use crate::source::Piece;

/// Turns the records of a piece into rows.
pub trait Decoder: Send + Sync {
    /// What its rows look like.
    fn shape(&self) -> &RowShape;

    /// Which decoder this is, with everything that decides its output: a digest of the vocabulary, the colour
    /// transform. A run is not resumed with another.
    fn identity(&self) -> String;

    /// About how many bytes of rows a byte of records becomes: what shuffle windows are planned by. Part of the order
    /// of rows, so it depends on nothing but the decoder.
    fn expansion(&self) -> u64 {
        1
    }

    /// What the columns of a table mean, if they mean something each.
    fn schema(&self) -> Option<&TableSchema> {
        None
    }

    /// Decodes all records that can be.
    fn decode(&self, piece: &Piece) -> Result<Decoded>;
}

/// What the rows of a stream look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowShape {
    /// Variables in a row.
    pub num_vars: usize,
    /// What a variable is.
    pub values: ValueKind,
    /// Where variables lie on a grid: `[height, width, channels]` of an image patch, channel fastest.
    pub grid: Option<Vec<usize>>,
    /// What every variable is where they are not alike ([`ValueKind::Mixed`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<InputSpec>,
}

impl RowShape {
    /// Rows of variables that are alike.
    pub fn of(num_vars: usize, values: ValueKind) -> Self {
        Self { num_vars, values, grid: None, columns: Vec::new() }
    }

    /// What a variable is.
    pub fn values_of(&self, var: usize) -> ValueKind {
        match self.columns.get(var).map(|input| input.num_cats()) {
            None => self.values,
            Some(Some(cats)) => ValueKind::Categories(cats),
            Some(None) => ValueKind::Reals,
        }
    }
}

/// What the variables of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// Categories below this many.
    Categories(u32),
    /// Real numbers.
    Reals,
    /// Something else for each variable ([`RowShape::columns`]).
    Mixed,
}

/// What became of a piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The rows, or the tokens they will be cut from.
    pub output: Output,
    /// How many records the piece had, good or bad.
    pub records: u64,
    /// The records that could not be decoded.
    pub bad: Vec<BadRecord>,
}

/// Rows, or a stretch of a token stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Whole rows.
    Rows(Table),
    /// Consecutive tokens; the batcher cuts rows out of them, across pieces.
    Tokens(Values),
}

/// A record that could not be read or decoded: a line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BadRecord {
    /// The file.
    pub file: String,
    /// What `position` counts: rows or bytes.
    pub unit: String,
    /// Where in the file.
    pub position: u64,
    /// How many records are lost; 1 where a damaged stretch does not tell.
    pub records: u64,
    /// Why.
    pub reason: String,
}

impl BadRecord {
    /// Record `record` of a piece.
    pub fn new(piece: &Piece, record: usize, reason: impl Into<String>) -> Self {
        let (unit, position) = piece.positions.place(record);
        Self { file: piece.file.to_string(), unit: unit.into(), position, records: 1, reason: reason.into() }
    }

    /// A stretch of data that cannot be read at all; the reason names the place.
    pub fn damage(reason: String) -> Self {
        Self { file: String::new(), unit: String::new(), position: 0, records: 1, reason }
    }
}

impl std::fmt::Display for BadRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.file.is_empty() {
            return f.write_str(&self.reason);
        }
        write!(f, "{}: {} {}: {}", self.file, self.unit, self.position, self.reason)
    }
}
