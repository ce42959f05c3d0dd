//! Lists of category ids, checked and made as narrow as the number of categories allows.
//!
//! What token lists and rows of a table have in common. Where every value of a piece is good, one pass finds its
//! maximum and one more copies it; single records are looked at only where something is wrong. The output type depends
//! on the number of categories alone, so that every piece of a stream has the same. Used by `tokens` and `rows`.

use std::fmt::Display;
use std::ops::Range;

use super::records::{self, decode_each};
use super::{BadRecord, Decoded, Output};
use crate::data::{Table, Values};
use crate::error::Result;
use crate::source::{Lists, Piece};

/// What the lists of a piece must be.
#[derive(Clone, Debug)]
pub(super) struct CategoryRule {
    /// Every value is below this.
    pub cats: u32,
    /// How many values every list has, if that is fixed.
    pub length: Option<usize>,
    /// What the values are.
    pub kind: ListKind,
}

/// What the values of lists are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    /// Tokens, which have no gaps.
    Tokens,
    /// One value per variable, some perhaps missing.
    Rows,
}

impl ListKind {
    fn plural(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Rows => "values",
        }
    }
}

/// The lists that kept the rule, one after the other.
pub(super) struct Checked {
    /// As narrow as the number of categories allows.
    pub values: Values,
    /// Where each list ends among them.
    pub ends: Vec<usize>,
    /// Which values are missing; `None` where none is.
    pub missing: Option<Vec<bool>>,
    /// The records that are not among them.
    pub bad: Vec<BadRecord>,
}

impl Checked {
    /// The lists as rows of a table.
    pub(super) fn into_rows(self, num_vars: usize, piece: &Piece) -> Result<Decoded> {
        let mut table = Table::new(num_vars, self.values)?;
        if let Some(missing) = self.missing {
            table = table.with_missing(missing)?;
        }
        Ok(Decoded { output: Output::Rows(table), records: piece.num_records() as u64, bad: self.bad })
    }
}

impl CategoryRule {
    /// Checks and narrows all lists of a piece.
    pub(super) fn check(&self, piece: &Piece) -> Result<Checked> {
        let lists = records::lists(piece, self.kind.plural())?;
        Ok(match &lists.values {
            Values::U8(values) => self.check_values(piece, lists, values),
            Values::U16(values) => self.check_values(piece, lists, values),
            Values::U32(values) => self.check_values(piece, lists, values),
            Values::F32(values) => self.check_values(piece, lists, values),
        })
    }

    fn check_values<N: Number>(&self, piece: &Piece, lists: &Lists, values: &[N]) -> Checked {
        if self.all_good(piece, lists, values) {
            let (values, ends) = (self.narrow(values.iter().copied()), lists.ends.clone());
            return Checked { values, ends, missing: None, bad: Vec::new() };
        }
        let mut kept: Vec<Range<usize>> = Vec::new();
        let bad = decode_each(piece, |record| {
            let range = lists.range(record);
            self.check_list(&values[range.clone()], lists.missing.as_ref().map(|marks| &marks[range.clone()]))?;
            kept.push(range);
            Ok(())
        });
        let ends = kept.iter().scan(0, |end, range| {
            *end += range.len();
            Some(*end)
        });
        let ends = ends.collect();
        let indices = kept.into_iter().flatten();
        match &lists.missing {
            None => Checked { values: self.narrow(indices.map(|i| values[i])), ends, missing: None, bad },
            // What a missing value holds does not matter; 0 is a valid category everywhere.
            Some(marks) => Checked {
                values: self.narrow(indices.clone().map(|i| if marks[i] { N::default() } else { values[i] })),
                ends,
                missing: Some(indices.map(|i| marks[i]).collect()),
                bad,
            },
        }
    }

    /// Returns true if no list of the piece needs a closer look.
    fn all_good<N: Number>(&self, piece: &Piece, lists: &Lists, values: &[N]) -> bool {
        piece.bad.is_empty()
            && lists.missing.is_none()
            && lists.ends.last().copied().unwrap_or(0) == values.len()
            && self.length.is_none_or(|length| (1..).zip(&lists.ends).all(|(lists, &end)| end == lists * length))
            // A maximum, not `all`: without a branch for every value it runs at the speed of memory.
            && values.iter().map(|value| value.category().unwrap_or(u32::MAX)).max().is_none_or(|max| max < self.cats)
    }

    /// Why a list is bad, if it is.
    fn check_list<N: Number>(&self, values: &[N], missing: Option<&[bool]>) -> std::result::Result<(), String> {
        let Self { cats, kind, .. } = self;
        if let Some(length) = self.length.filter(|&length| length != values.len()) {
            return Err(format!("a list of {} {} where rows have {length}", values.len(), kind.plural()));
        }
        for (index, value) in values.iter().enumerate() {
            let is_missing = missing.is_some_and(|marks| marks[index]);
            let is_outside = value.category().is_none_or(|category| category >= *cats);
            match kind {
                ListKind::Tokens if is_missing => return Err(format!("token {index} of the list is missing")),
                ListKind::Tokens if is_outside => return Err(format!("token {value} is outside 0..{cats}")),
                ListKind::Rows if is_outside && !is_missing => {
                    return Err(format!("variable {index}: value {value} is outside 0..{cats}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The narrowest column that holds `cats` categories. The values have been checked.
    fn narrow<N: Number>(&self, values: impl Iterator<Item = N>) -> Values {
        let categories = values.map(|value| value.category().unwrap_or_default());
        match self.cats {
            0..=0x100 => Values::U8(categories.map(|category| category as u8).collect()),
            0x101..=0x1_0000 => Values::U16(categories.map(|category| category as u16).collect()),
            _ => Values::U32(categories.collect()),
        }
    }
}

/// A number that may be a category.
trait Number: Copy + Default + Display {
    /// The category; `None` where it is not a whole number, or too large.
    fn category(self) -> Option<u32>;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn category(self) -> Option<u32> {
                Some(u32::from(self))
            }
        }
    )*};
}
integers!(u8, u16, u32);

/// Columns of whole numbers with gaps often arrive as reals: that is how data frames store them.
impl Number for f32 {
    fn category(self) -> Option<u32> {
        (self.fract() == 0.0 && (0.0..4_294_967_296.0).contains(&self)).then_some(self as u32)
    }
}
