//! Cells of a table as a source has them, before anybody has said what they mean.
//!
//! A [`Cell`] is one of them, [`Cells`] are those of many rows. Sources fill [`Cells`], a `ColumnSchema` turns a cell
//! into the value of a variable and back.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::civil::{show_date, show_timestamp};

/// What a table has at one place.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Nothing: missing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A text that is known to be one: of a column of strings, or in quotes in JSON.
    Text(Cow<'a, str>),
    /// A text whose type is not known, as in a CSV file: it may spell a number.
    Raw(Cow<'a, str>),
    /// Days since 1970-01-01.
    Date(i64),
    /// Microseconds since 1970-01-01, in UTC.
    Time(i64),
}

impl Cell<'_> {
    /// The same cell with a text of its own.
    pub fn into_owned(self) -> Cell<'static> {
        match self {
            Self::Text(text) => Cell::Text(Cow::Owned(text.into_owned())),
            Self::Raw(text) => Cell::Raw(Cow::Owned(text.into_owned())),
            Self::Null => Cell::Null,
            Self::Bool(value) => Cell::Bool(value),
            Self::Int(value) => Cell::Int(value),
            Self::Float(value) => Cell::Float(value),
            Self::Date(days) => Cell::Date(days),
            Self::Time(micros) => Cell::Time(micros),
        }
    }

    /// Returns true if there is nothing.
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }
}

/// As it is written in a CSV file, without quotes; nothing for [`Cell::Null`].
impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) | Self::Raw(text) => f.write_str(text),
            Self::Date(days) => f.write_str(&show_date(*days)),
            Self::Time(micros) => f.write_str(&show_timestamp(*micros)),
        }
    }
}

/// The type of a column: what all its cells are, but nulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CellType {
    /// True or false.
    Bool,
    /// Whole numbers.
    Int,
    /// Real numbers.
    Float,
    /// Texts.
    Text,
    /// Days.
    Date,
    /// Days with a time.
    Time,
}

impl CellType {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int => "whole numbers",
            Self::Float => "numbers",
            Self::Text => "texts",
            Self::Date => "dates",
            Self::Time => "times",
        }
    }
}

/// The cells of some rows, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    width: usize,
    /// `[rows × width]`.
    slots: Vec<Slot>,
    /// The texts of all cells, one after the other.
    text: String,
}

/// A cell whose text is elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text { start: usize, len: u32 },
    Raw { start: usize, len: u32 },
    Date(i64),
    Time(i64),
}

impl Cells {
    /// No rows yet, of so many cells each.
    pub fn new(width: usize) -> Self {
        Self { width, slots: Vec::new(), text: String::new() }
    }

    /// Cells in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows are complete.
    pub fn num_rows(&self) -> usize {
        self.slots.len().checked_div(self.width).unwrap_or(0)
    }

    /// Bytes that the cells take.
    pub fn num_bytes(&self) -> usize {
        size_of_val(self.slots.as_slice()) + self.text.len()
    }

    /// The cell of a row in a column.
    pub fn get(&self, row: usize, column: usize) -> Cell<'_> {
        let text = |start: usize, len: u32| Cow::Borrowed(&self.text[start..start + len as usize]);
        match self.slots[row * self.width + column] {
            Slot::Null => Cell::Null,
            Slot::Bool(value) => Cell::Bool(value),
            Slot::Int(value) => Cell::Int(value),
            Slot::Float(value) => Cell::Float(value),
            Slot::Text { start, len } => Cell::Text(text(start, len)),
            Slot::Raw { start, len } => Cell::Raw(text(start, len)),
            Slot::Date(days) => Cell::Date(days),
            Slot::Time(micros) => Cell::Time(micros),
        }
    }

    /// Adds the next cell of a row.
    pub fn push(&mut self, cell: &Cell<'_>) {
        let slot = match cell {
            Cell::Null => Slot::Null,
            Cell::Bool(value) => Slot::Bool(*value),
            Cell::Int(value) => Slot::Int(*value),
            Cell::Float(value) => Slot::Float(*value),
            Cell::Text(text) => {
                let (start, len) = self.keep(text);
                Slot::Text { start, len }
            }
            Cell::Raw(text) => {
                let (start, len) = self.keep(text);
                Slot::Raw { start, len }
            }
            Cell::Date(days) => Slot::Date(*days),
            Cell::Time(micros) => Slot::Time(*micros),
        };
        self.slots.push(slot);
    }

    /// Room for a text, or for its first 4 GiB: sources refuse such a record long before.
    fn keep(&mut self, text: &str) -> (usize, u32) {
        let start = self.text.len();
        let mut len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        while !text.is_char_boundary(len as usize) {
            len -= 1;
        }
        self.text.push_str(&text[..len as usize]);
        (start, len)
    }

    /// Fills the row that was begun with nulls: for a record that turned out to be bad.
    pub fn finish_row(&mut self) {
        self.slots.resize(self.slots.len().next_multiple_of(self.width.max(1)), Slot::Null);
    }

    /// Adds a row of nulls.
    pub fn push_null_row(&mut self) {
        self.slots.resize(self.slots.len() + self.width, Slot::Null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_back_as_they_were_put() {
        let row = [
            Cell::Null,
            Cell::Bool(true),
            Cell::Int(-3),
            Cell::Float(0.5),
            Cell::Text("a".into()),
            Cell::Raw("".into()),
            Cell::Date(-1),
            Cell::Time(1),
        ];
        let mut cells = Cells::new(row.len());
        for _ in 0..2 {
            row.iter().for_each(|cell| cells.push(cell));
        }
        cells.push(&row[4]);
        cells.finish_row();
        cells.finish_row();
        cells.push_null_row();
        assert_eq!((cells.num_rows(), cells.width()), (4, 8));
        for (column, cell) in row.iter().enumerate() {
            assert_eq!((&cells.get(0, column), &cells.get(1, column)), (cell, cell));
            assert!(cells.get(3, column).is_null());
        }
        assert_eq!((cells.get(2, 0), cells.get(2, 1)), (row[4].clone(), Cell::Null));
        let shown: Vec<String> = row.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["", "true", "-3", "0.5", "a", "", "1969-12-31", "1970-01-01T00:00:00.000001"]);
    }
}
