//! Cells become values, and values cells.
//!
//! A value is an `f32`: a category by its number, a count, a number. Texts are read as what the column is, so the same
//! table has the same values in a Parquet file, which knows types, and in a CSV file, which does not.

use std::borrow::Cow;

use super::super::civil::{MICROS_PER_DAY, parse_date, parse_timestamp};
use super::super::{Cell, CellType, LARGEST_REAL};
use super::{ColumnSchema, InputSpec, Label, Meaning, OTHER, TimePart, Unseen};

/// What a CSV file may write for a number, a date or a truth that is missing, besides nothing. Where a column is a
/// category they are names like others: `NA` is a country.
pub const ENCODED_AS_MISSING: [&str; 9] = ["NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-"];

/// The largest count: every whole number up to it is an `f32`.
pub(super) const LARGEST_COUNT: i64 = 1 << 24;

impl ColumnSchema {
    /// The value of a cell, `None` if it is missing, or why it is no value of this column.
    pub fn encode(&self, cell: &Cell<'_>) -> Result<Option<f32>, String> {
        if cell.is_null() || is_nan(cell) {
            return Ok(None);
        }
        match &self.meaning {
            Meaning::Category { vocabulary, unseen } => match label_of(cell, self.cell_type) {
                None => Ok(None),
                Some(label) => match position_of(vocabulary, &label) {
                    Some(category) => Ok(Some(category as f32)),
                    None if *unseen == Unseen::Other => Ok(Some(vocabulary.len() as f32)),
                    None => {
                        Err(format!("`{}` is not among the {} categories", brief(&label.to_string()), vocabulary.len()))
                    }
                },
            },
            Meaning::Bool { .. } => Ok(truth_of(cell)?.map(|truth| f32::from(u8::from(truth)))),
            Meaning::Count { .. } => {
                let most = self.num_cats().map_or(LARGEST_COUNT, |cats| i64::from(cats) - 1);
                match whole_of(cell)? {
                    None => Ok(None),
                    Some(count) if (0..=most).contains(&count) => Ok(Some(count as f32)),
                    Some(count) => Err(format!("{count} is not a count from 0 to {most}")),
                }
            }
            Meaning::Number => match number_of(cell)? {
                None => Ok(None),
                Some(number) => real(number).map(Some),
            },
            Meaning::Range { low, high } => match whole_of(cell)? {
                None => Ok(None),
                Some(number) if (*low..=*high).contains(&number) => Ok(Some((number - low) as f32)),
                Some(number) => Err(format!("{number} is outside {low} to {high}")),
            },
            Meaning::Bins { edges, .. } => match number_of(cell)? {
                None => Ok(None),
                Some(number) if number.is_finite() => Ok(Some(bin_of(edges, number) as f32)),
                Some(number) => Err(format!("{number} is not a finite number")),
            },
            Meaning::Time { origin } => match micros_of(cell)? {
                None => Ok(None),
                Some(micros) => {
                    let after = i128::from(micros) - i128::from(*origin);
                    Ok(Some((after as f64 / MICROS_PER_DAY as f64) as f32))
                }
            },
            Meaning::Part { part } => encode_part(*part, cell),
        }
    }

    /// The cell that a value stands for: a category by its name, *other* and bins of numbers too (a bin by its mean), a
    /// number as a number of the column's type. A value that is none of this column is [`Cell::Null`].
    pub fn decode(&self, value: f32) -> Cell<'_> {
        if !value.is_finite() {
            return Cell::Null;
        }
        let category = match self.num_cats() {
            None => 0,
            Some(cats) => match (value >= 0.0).then(|| value.round() as u32).filter(|&category| category < cats) {
                Some(category) => category,
                None => return Cell::Null,
            },
        };
        match &self.meaning {
            Meaning::Category { vocabulary, .. } => match vocabulary.get(category as usize) {
                None => Cell::Text(Cow::Borrowed(OTHER)),
                Some(Label::Bool(truth)) => Cell::Bool(*truth),
                Some(Label::Int(number)) => Cell::Int(*number),
                Some(Label::Text(text)) => self.typed(text),
            },
            Meaning::Bool { .. } => Cell::Bool(category == 1),
            Meaning::Count { .. } => Cell::Int(value.round().max(0.0) as i64),
            Meaning::Number => self.number(f64::from(value)),
            Meaning::Range { low, .. } => Cell::Int(low + i64::from(category)),
            Meaning::Bins { means, .. } => match self.cell_type {
                CellType::Int => Cell::Int(means[category as usize].round() as i64),
                _ => Cell::Float(means[category as usize]), // to the digit: the next shorter one may be in another bin
            },
            Meaning::Time { origin } => {
                let micros = i128::from(*origin) + (f64::from(value) * MICROS_PER_DAY as f64).round() as i128;
                let micros = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
                match self.cell_type {
                    CellType::Date => Cell::Date((micros + MICROS_PER_DAY / 2).div_euclid(MICROS_PER_DAY)),
                    _ => Cell::Time(micros),
                }
            }
            Meaning::Part { part: TimePart::Weekday } => Cell::Text(Cow::Owned(TimePart::Weekday.name_of(category))),
            Meaning::Part { part } => Cell::Int(part.number_of(category)),
        }
    }

    /// A number as the column has them.
    fn number(&self, number: f64) -> Cell<'static> {
        match self.cell_type {
            CellType::Int => Cell::Int(number.round() as i64),
            _ => Cell::Float(shortest(number)),
        }
    }

    /// The name of a category as the column has it.
    fn typed<'a>(&self, text: &'a str) -> Cell<'a> {
        let number = || text.parse().ok().map(Cell::Float);
        match self.cell_type {
            CellType::Float => number(),
            CellType::Date => parse_date(text).map(Cell::Date),
            CellType::Time => parse_timestamp(text).map(Cell::Time),
            CellType::Bool | CellType::Int | CellType::Text => None,
        }
        .unwrap_or(Cell::Text(Cow::Borrowed(text)))
    }

    /// Values above, as the type that a batch holds them in: categories are integers, everything else is real.
    pub fn is_real(&self) -> bool {
        matches!(self.input(), InputSpec::Gaussian | InputSpec::Poisson | InputSpec::NegativeBinomial)
    }
}

/// The `f64` that is written as the `f32` nearest to it is: 0.1, not 0.10000000149.
fn shortest(number: f64) -> f64 {
    let narrow = number as f32;
    match f64::from(narrow) == number {
        true => narrow.to_string().parse().unwrap_or(number),
        false => number,
    }
}

/// Not a number is missing: it is what data frames write for nothing.
fn is_nan(cell: &Cell<'_>) -> bool {
    matches!(cell, Cell::Float(number) if number.is_nan())
}

fn position_of(vocabulary: &[Label], label: &Label) -> Option<usize> {
    vocabulary.iter().position(|known| known == label)
}

/// The bin of a number; what is outside belongs to the first or the last.
pub(super) fn bin_of(edges: &[f64], number: f64) -> usize {
    let inner = &edges[1..edges.len().max(2) - 1];
    inner.partition_point(|&edge| edge <= number)
}

/// The name of a cell in a column of this type; `None` if it is missing.
pub(super) fn label_of(cell: &Cell<'_>, cell_type: CellType) -> Option<Label> {
    Some(match (cell, cell_type) {
        (Cell::Null, _) => return None,
        // Nothing is no name; where cells are not texts, neither is what stands for nothing.
        (Cell::Text(text) | Cell::Raw(text), CellType::Text) if text.is_empty() => return None,
        (Cell::Text(text) | Cell::Raw(text), own) if own != CellType::Text && says_missing(text) => return None,
        (Cell::Bool(truth), CellType::Text) => Label::Text(truth.to_string()),
        (Cell::Bool(truth), _) => Label::Bool(*truth),
        (Cell::Int(number), CellType::Float) => Label::Text(shown(*number as f64)),
        (Cell::Int(number), CellType::Text) => Label::Text(number.to_string()),
        (Cell::Int(number), _) => Label::Int(*number),
        (Cell::Float(number), CellType::Int) if is_whole(*number) => Label::Int(*number as i64),
        (Cell::Float(number), _) => Label::Text(shown(*number)),
        // What spells a cell of the column's type is that cell.
        (Cell::Text(text) | Cell::Raw(text), CellType::Bool) => {
            parse_truth(text).map_or_else(|| of_text(text), Label::Bool)
        }
        (Cell::Text(text) | Cell::Raw(text), CellType::Int) => {
            parse_whole(text).map_or_else(|| of_text(text), Label::Int)
        }
        (Cell::Text(text) | Cell::Raw(text), CellType::Float) => {
            parse_number(text).map_or_else(|| of_text(text), |number| Label::Text(shown(number)))
        }
        (Cell::Text(text) | Cell::Raw(text), _) => of_text(text),
        (Cell::Date(_) | Cell::Time(_), _) => Label::Text(cell.to_string()),
    })
}

fn of_text(text: &str) -> Label {
    Label::Text(text.to_string())
}

/// A number as the name of a category: the same from a column of `f32`, and one name for both zeros.
fn shown(number: f64) -> String {
    (shortest(number) + 0.0).to_string()
}

pub(super) fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 9.0e15
}

/// `true`, `false` and what else people write for them.
pub(super) fn parse_truth(text: &str) -> Option<bool> {
    const TRUE: [&str; 4] = ["true", "t", "yes", "y"];
    const FALSE: [&str; 4] = ["false", "f", "no", "n"];
    let text = text.trim();
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(TRUE) { Some(true) } else { is(FALSE).then_some(false) }
}

/// A whole number, also as `3.0`.
pub(super) fn parse_whole(text: &str) -> Option<i64> {
    let text = text.trim();
    text.parse().ok().or_else(|| text.parse().ok().filter(|number| is_whole(*number)).map(|number| number as i64))
}

/// A finite number as people write it: not `inf`, not `nan`.
pub(crate) fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let begins = text.bytes().find(|byte| !matches!(byte, b'+' | b'-'))?;
    (begins.is_ascii_digit() || begins == b'.')
        .then(|| text.parse().ok())
        .flatten()
        .filter(|number: &f64| number.is_finite())
}

/// Returns true if a text stands for nothing where something else than a name is expected.
pub(crate) fn says_missing(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || ENCODED_AS_MISSING.contains(&text)
}

fn truth_of(cell: &Cell<'_>) -> Result<Option<bool>, String> {
    match cell {
        Cell::Bool(truth) => Ok(Some(*truth)),
        Cell::Int(0) => Ok(Some(false)),
        Cell::Int(1) => Ok(Some(true)),
        Cell::Float(number) if *number == 0.0 || *number == 1.0 => Ok(Some(*number == 1.0)),
        Cell::Text(text) | Cell::Raw(text) if says_missing(text) => Ok(None),
        Cell::Text(text) | Cell::Raw(text) => {
            let truth = parse_truth(text).or_else(|| match text.trim() {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            });
            truth.map(Some).ok_or_else(|| format!("`{}` is neither true nor false", brief(text)))
        }
        other => Err(format!("{other} is neither true nor false")),
    }
}

fn whole_of(cell: &Cell<'_>) -> Result<Option<i64>, String> {
    match cell {
        Cell::Int(number) => Ok(Some(*number)),
        Cell::Bool(truth) => Ok(Some(i64::from(*truth))),
        Cell::Float(number) if is_whole(*number) => Ok(Some(*number as i64)),
        Cell::Text(text) | Cell::Raw(text) if says_missing(text) => Ok(None),
        Cell::Text(text) | Cell::Raw(text) => {
            parse_whole(text).map(Some).ok_or_else(|| format!("`{}` is not a whole number", brief(text)))
        }
        other => Err(format!("{other} is not a whole number")),
    }
}

fn number_of(cell: &Cell<'_>) -> Result<Option<f64>, String> {
    match cell {
        Cell::Int(number) => Ok(Some(*number as f64)),
        Cell::Bool(truth) => Ok(Some(f64::from(u8::from(*truth)))),
        Cell::Float(number) => Ok(Some(*number)),
        Cell::Text(text) | Cell::Raw(text) if says_missing(text) => Ok(None),
        Cell::Text(text) | Cell::Raw(text) => {
            parse_number(text).map(Some).ok_or_else(|| format!("`{}` is not a number", brief(text)))
        }
        other => Err(format!("{other} is a time, not a number")),
    }
}

fn micros_of(cell: &Cell<'_>) -> Result<Option<i64>, String> {
    let of_days = |days: i64| days.checked_mul(MICROS_PER_DAY).ok_or_else(|| format!("day {days} is beyond all times"));
    match cell {
        Cell::Date(days) => of_days(*days).map(Some),
        Cell::Time(micros) => Ok(Some(*micros)),
        Cell::Text(text) | Cell::Raw(text) if says_missing(text) => Ok(None),
        Cell::Text(text) | Cell::Raw(text) => {
            let trimmed = text.trim();
            match (parse_date(trimmed), parse_timestamp(trimmed)) {
                (Some(days), _) => of_days(days).map(Some),
                (None, Some(micros)) => Ok(Some(micros)),
                (None, None) => {
                    Err(format!("`{}` is not a date or time (2024-05-31, 2024-05-31T07:45:00)", brief(text)))
                }
            }
        }
        other => Err(format!("{other} is not a date or time")),
    }
}

/// Of a time; or of what a category is decoded to, so that decoded rows can be encoded again.
fn encode_part(part: TimePart, cell: &Cell<'_>) -> Result<Option<f32>, String> {
    let named = match cell {
        Cell::Int(number) => part.category_of(&number.to_string()),
        Cell::Text(text) | Cell::Raw(text) => part.category_of(text.trim()),
        _ => None,
    };
    match named {
        Some(category) => Ok(Some(category as f32)),
        None => Ok(micros_of(cell)?.map(|micros| part.of(micros) as f32)),
    }
}

/// What a density can square.
fn real(number: f64) -> Result<f32, String> {
    let narrow = number as f32;
    match narrow.is_finite() && narrow.abs() <= LARGEST_REAL {
        true => Ok(narrow),
        false => Err(format!("{number:e} is outside ±{LARGEST_REAL:e}; rescale the column")),
    }
}

/// A text that fits into a message.
pub(super) fn brief(text: &str) -> String {
    const MOST: usize = 40;
    let shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().count() > MOST { shown + "…" } else { shown }
}
