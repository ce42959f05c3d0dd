//! Which columns of a table are read, and what their records are: as a user says it, and as it was found.
//!
//! `binding` finds the columns in a schema.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which columns of a table to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Columns {
    /// What can only be meant: an image column `image`, the only list, all columns if all are numbers, the only images.
    /// Strings may be texts, names or categories: they have to be asked for.
    #[default]
    Auto,
    /// What can only be meant by somebody who wants such records; other columns are left out.
    Only(Wanted),
    /// A column of texts, byte strings, images (`struct{bytes, path}`), lists of numbers, or numbers.
    One(String),
    /// One column of numbers per variable, in this order; `x*` is every column whose name begins with `x`, in file
    /// order.
    Many(Vec<String>),
    /// These columns cell by cell with their types, for whoever says later what they mean ([`crate::data::Cells`]).
    /// Without a name it is every column that has a single value per row; `x*` as above.
    Cells(Vec<String>),
}

/// Records that are asked for, where columns are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A column of texts: `text`, or the only one.
    Text,
    /// A column of images: `image`, or the only one.
    Images,
    /// A list of numbers, the only one, or all columns that are numbers.
    Rows,
    /// The only list of numbers.
    Lists,
}

/// Which columns of a table are learned from, and which are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Those that are read, in the order in which a record has them.
    pub read: Vec<ColumnInfo>,
    /// The others, in the order of the table.
    pub left_out: Vec<ColumnInfo>,
}

impl Reading {
    /// What to say for the same columns of another file; `asked` is what was said of the first.
    pub fn columns(&self, asked: &Columns) -> Columns {
        let names = || self.read.iter().map(|column| column.name.clone()).collect();
        match (asked, &self.read[..]) {
            (Columns::Cells(_), _) => Columns::Cells(names()),
            (_, [column]) => Columns::One(column.name.clone()),
            _ => Columns::Many(names()),
        }
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, as Arrow calls it.
    #[serde(rename = "type")]
    pub data_type: String,
}

impl fmt::Display for ColumnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.name, self.data_type)
    }
}

/// What the records of bound columns are: enough to choose a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Texts.
    Text,
    /// Image files, or other bytes.
    Image,
    /// Lists of numbers.
    Lists {
        /// How long every list is, if the schema says so.
        width: Option<usize>,
        /// Whether they are real numbers, not categories.
        reals: bool,
    },
    /// Cells of so many columns.
    Cells {
        /// How many.
        width: usize,
    },
}

impl RecordKind {
    /// Returns true if records of another file can be read as these: texts and bytes are both byte strings, and
    /// integers are real numbers where these are wanted.
    pub fn holds(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lists { width: a, reals }, Self::Lists { width: b, reals: other_reals }) => {
                (a == b || a.is_none() || b.is_none()) && (reals || !other_reals)
            }
            (Self::Cells { width: a }, Self::Cells { width: b }) => a == b,
            (Self::Lists { .. } | Self::Cells { .. }, _) | (_, Self::Lists { .. } | Self::Cells { .. }) => false,
            _ => true,
        }
    }

    /// In words.
    pub fn describe(self) -> String {
        let numbers = |reals| if reals { "real numbers" } else { "whole numbers" };
        match self {
            Self::Text => "texts".into(),
            Self::Image => "image files or other bytes".into(),
            Self::Lists { width: Some(width), reals } => format!("rows of {width} {}", numbers(reals)),
            Self::Lists { width: None, reals } => format!("lists of {}", numbers(reals)),
            Self::Cells { width } => format!("rows of {width} columns"),
        }
    }
}
