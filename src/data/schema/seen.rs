//! What was seen of a column: cells by what they are or spell, names and numbers with how often.
//!
//! Nothing is decided here but what the cells are; what they mean is the business of `infer`.

use std::collections::{BTreeMap, HashMap};

use super::Label;
use super::encode::{is_whole, label_of, parse_number, says_missing};
use crate::data::civil::{MICROS_PER_DAY, parse_date, parse_timestamp};
use crate::data::{Cell, CellType};

/// A longer text is no name: it would only take memory. In a column of names it is *other*.
const LONGEST_NAME: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub name: String,
    /// Cells by what they are.
    pub nulls: u64,
    pub kinds: BTreeMap<Kind, u64>,
    /// Texts and what is written as one, with how often.
    pub texts: HashMap<String, u64>,
    /// Texts that are longer than any name.
    pub long_texts: u64,
    pub truths: [u64; 2],
    pub numbers: Vec<f64>,
    /// Whole numbers, which a real one may not hold.
    pub wholes: HashMap<i64, u64>,
    pub times: Vec<i64>,
}

/// What a cell is, or spells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bool,
    Int,
    Float,
    Date,
    Time,
    Text,
    /// A text that stands for nothing, if the column is not one of names.
    Missing,
}

impl Observed {
    pub fn see(&mut self, cell: &Cell<'_>) {
        let kind = match cell {
            Cell::Null => None,
            Cell::Float(number) if number.is_nan() => None,
            Cell::Bool(truth) => {
                self.truths[usize::from(*truth)] += 1;
                Some(Kind::Bool)
            }
            Cell::Int(number) => {
                self.see_whole(*number);
                Some(Kind::Int)
            }
            Cell::Float(number) => {
                self.see_number(*number);
                Some(Kind::Float)
            }
            Cell::Date(days) => {
                self.times.push(days.saturating_mul(MICROS_PER_DAY));
                *self.texts.entry(cell.to_string()).or_default() += 1;
                Some(Kind::Date)
            }
            Cell::Time(micros) => {
                self.times.push(*micros);
                *self.texts.entry(cell.to_string()).or_default() += 1;
                Some(Kind::Time)
            }
            // Writers that quote everything write nothing like this; a name is never empty.
            Cell::Text(text) | Cell::Raw(text) if text.is_empty() => None,
            Cell::Text(text) => Some(self.see_text(text, false)),
            Cell::Raw(text) => Some(self.see_text(text, true)),
        };
        match kind {
            None => self.nulls += 1,
            Some(kind) => *self.kinds.entry(kind).or_default() += 1,
        }
    }

    fn see_whole(&mut self, number: i64) {
        *self.wholes.entry(number).or_default() += 1;
        self.numbers.push(number as f64);
    }

    fn see_number(&mut self, number: f64) {
        if is_whole(number) {
            *self.wholes.entry(number as i64).or_default() += 1;
        }
        self.numbers.push(number);
    }

    fn see_text(&mut self, text: &str, is_untyped: bool) -> Kind {
        if text.len() <= LONGEST_NAME {
            *self.texts.entry(text.to_string()).or_default() += 1;
        } else {
            self.long_texts += 1;
        }
        let trimmed = text.trim();
        if let Some(days) = parse_date(trimmed) {
            self.times.push(days * MICROS_PER_DAY);
            return Kind::Date;
        }
        if let Some(micros) = parse_timestamp(trimmed) {
            self.times.push(micros);
            return Kind::Time;
        }
        if !is_untyped {
            return Kind::Text;
        }
        if says_missing(trimmed) {
            return Kind::Missing;
        }
        if trimmed.eq_ignore_ascii_case("true") || trimmed.eq_ignore_ascii_case("false") {
            self.truths[usize::from(trimmed.eq_ignore_ascii_case("true"))] += 1;
            return Kind::Bool;
        }
        if has_leading_zero(trimmed) {
            return Kind::Text;
        }
        if let Ok(number) = trimmed.parse() {
            self.see_whole(number);
            return Kind::Int;
        }
        match parse_number(trimmed) {
            Some(number) => {
                self.see_number(number);
                Kind::Float
            }
            None => Kind::Text,
        }
    }

    /// What all cells are, if there are any, and a note where they are not alike.
    pub fn cell_type(&self) -> (Option<CellType>, Option<String>) {
        let kinds: Vec<Kind> = self.kinds.keys().copied().filter(|kind| *kind != Kind::Missing).collect();
        let cell_type = match &kinds[..] {
            [] if self.kinds.contains_key(&Kind::Missing) => CellType::Text,
            [] => return (None, None),
            [Kind::Bool] => CellType::Bool,
            [Kind::Int] => CellType::Int,
            [Kind::Float] | [Kind::Int, Kind::Float] => CellType::Float,
            [Kind::Date] => CellType::Date,
            [Kind::Time] | [Kind::Date, Kind::Time] => CellType::Time,
            [Kind::Text] => CellType::Text,
            [first, .., last] => {
                let counts = |kind: &Kind| self.kinds.get(kind).copied().unwrap_or_default();
                let (some, more) = (counts(first), counts(last));
                let note = format!("holds {} ({some}) besides {} ({more}): read as texts", first.name(), last.name());
                return (Some(CellType::Text), Some(note));
            }
            [Kind::Missing] => unreachable!("left out above"),
        };
        (Some(cell_type), None)
    }

    /// Names of categories with how often they occur, most frequent first, equals in their order.
    pub fn names(&self, cell_type: CellType) -> Vec<(Label, u64)> {
        let mut names: BTreeMap<Label, u64> = BTreeMap::new();
        let mut add = |cell: &Cell<'_>, count: u64| {
            if let Some(label) = label_of(cell, cell_type).filter(|_| count > 0) {
                *names.entry(label).or_default() += count;
            }
        };
        let are_numbers = matches!(cell_type, CellType::Int | CellType::Float);
        match cell_type {
            CellType::Bool => (0..2).for_each(|truth| add(&Cell::Bool(truth == 1), self.truths[truth])),
            CellType::Int => self.wholes.iter().for_each(|(number, count)| add(&Cell::Int(*number), *count)),
            CellType::Float => self.numbers.iter().for_each(|number| add(&Cell::Float(*number), 1)),
            CellType::Text => {
                // Cells of JSON may be numbers besides texts; what was written as a text is there already.
                self.texts.iter().for_each(|(text, count)| add(&Cell::Text(text.into()), *count));
                let typed = self.texts.is_empty() || !self.is_untyped();
                if typed {
                    (0..2).for_each(|truth| add(&Cell::Text((truth == 1).to_string().into()), self.truths[truth]));
                    self.wholes.iter().for_each(|(number, count)| add(&Cell::Int(*number), *count));
                    let fractions = self.numbers.iter().filter(|number| !is_whole(**number));
                    fractions.for_each(|number| add(&Cell::Float(*number), 1));
                }
            }
            CellType::Date | CellType::Time => {
                self.texts.iter().for_each(|(text, count)| add(&Cell::Text(text.into()), *count));
            }
        }
        let mut names: Vec<(Label, u64)> = names.into_iter().collect();
        if !are_numbers {
            names.retain(|(label, _)| *label != Label::Text(String::new()) || !self.is_untyped());
        }
        names.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // stable: equals stay in order
        names
    }

    /// Returns true if texts that spell numbers are counted among the texts already.
    fn is_untyped(&self) -> bool {
        let written: u64 = self.texts.values().sum::<u64>() + self.long_texts;
        let seen: u64 = self.kinds.values().sum();
        written == seen
    }

    pub fn num_present(&self) -> u64 {
        self.kinds.iter().filter(|(kind, _)| **kind != Kind::Missing).map(|(_, count)| count).sum()
    }

    pub fn are_whole(&self) -> bool {
        !self.numbers.is_empty() && self.numbers.iter().all(|number| is_whole(*number))
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => CellType::Bool.name(),
            Self::Int => CellType::Int.name(),
            Self::Float => CellType::Float.name(),
            Self::Date => CellType::Date.name(),
            Self::Time => CellType::Time.name(),
            Self::Text => CellType::Text.name(),
            Self::Missing => "nothing",
        }
    }
}

/// `007` is a name, `0`, `0.5` and `-0` are numbers.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit()
}
