//! Records out of JSON values, one at a time.
//!
//! A [`JsonShape`] says what a value means; [`JsonRecords`] takes values and keeps texts, numbers or cells, written
//! straight from the parser. A value that does not fit is a bad record with a reason, and costs none of its neighbours:
//! not JSON, no such column, another type, a number that 32 bits cannot hold, a column that nobody has heard of where
//! all columns were meant. Whole numbers stay as narrow as they fit; a fraction or a negative number makes the numbers
//! of this piece real ones, and truth values are 0 and 1. Used wherever JSON is read, by lines or by messages.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json_shape::{Form, in_line};
use super::{Blobs, Lists, Records};
use crate::data::{Cell, Cells, Values};

pub use super::json_shape::JsonShape;

/// Records that are being put together.
#[derive(Debug)]
pub struct JsonRecords {
    kept: Kept,
    /// Records that do not fit, by index and with the reason; empty records stand in their place.
    bad: Vec<(usize, String)>,
    /// The numbers of the record that is being read; kept only if all of it fits.
    row: Vec<Number>,
}

#[derive(Debug)]
enum Kept {
    Texts { key: String, blobs: Blobs },
    Numbers { from: From, reals: bool, lists: Lists },
    Cells { columns: NamedColumns, cells: Cells },
}

/// Where the numbers of a record are.
#[derive(Debug)]
enum From {
    Key(String),
    Line,
    Columns(NamedColumns),
}

#[derive(Debug)]
struct NamedColumns {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Where all columns were meant: those that are known and not read. Any other is a change of the schema.
    left_out: Option<HashSet<String>>,
}

impl NamedColumns {
    fn new(shape: &JsonShape, names: &[String], all: bool) -> Self {
        Self {
            names: names.to_vec(),
            numbers: names.iter().cloned().zip(0..).collect(),
            left_out: all.then(|| shape.left_out()),
        }
    }
}

/// A number of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Missing,
    Whole(u32),
    Real(f32),
}

impl Number {
    /// A whole number is one however it is written: data frames write 1.0 where others miss. `None` if 32 bits cannot
    /// hold it.
    pub(super) fn of(value: f64) -> Option<Self> {
        let real = value as f32;
        match value {
            _ if !real.is_finite() => None,
            _ if value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value) => {
                Some(Self::Whole(value as u32))
            }
            _ => Some(Self::Real(real)),
        }
    }
}

impl JsonRecords {
    pub(super) fn new(shape: &JsonShape) -> Self {
        let lists = Lists { values: Values::U8(Vec::new()), ends: Vec::new(), missing: None };
        let from = match &shape.form {
            Form::Text(key) => {
                let kept = Kept::Texts { key: key.clone(), blobs: Blobs::default() };
                return Self { kept, bad: Vec::new(), row: Vec::new() };
            }
            Form::List { key, .. } => From::Key(key.clone()),
            Form::Line { .. } => From::Line,
            Form::Columns { names, all } => From::Columns(NamedColumns::new(shape, names, *all)),
            Form::Cells { names, all } => {
                let kept =
                    Kept::Cells { columns: NamedColumns::new(shape, names, *all), cells: Cells::new(names.len()) };
                return Self { kept, bad: Vec::new(), row: Vec::new() };
            }
        };
        Self { kept: Kept::Numbers { from, reals: shape.reals, lists }, bad: Vec::new(), row: Vec::new() }
    }

    /// Adds the record of a JSON value; a bad one if it does not fit.
    pub fn push(&mut self, line: &[u8]) {
        let reason = match &mut self.kept {
            Kept::Texts { key, blobs } => match parsed(line, TextUnder(key)) {
                Ok(Some(Ok(text))) => {
                    blobs.push(text.as_bytes());
                    return;
                }
                Ok(Some(Err(what))) => format!("column `{key}` is {what}, not a text"),
                Ok(None) => format!("no column `{key}`"),
                Err(error) => format!("not a JSON object: {error}"),
            },
            Kept::Numbers { from, reals, lists } => {
                self.row.clear();
                let row = &mut self.row;
                let (read, expected) = match &*from {
                    From::Key(key) => (parsed(line, ListUnder { key, row }), "object"),
                    From::Line => {
                        (parsed(line, ListOf(row)).map(|list| list.map_err(|e| e.within("the line"))), "list")
                    }
                    From::Columns(columns) => (parsed(line, RowOf { columns, row }), "object"),
                };
                match read {
                    Ok(Ok(())) => {
                        append(lists, row, *reals);
                        return;
                    }
                    Ok(Err(reason)) => reason,
                    Err(error) => format!("not a JSON {expected}: {error}"),
                }
            }
            Kept::Cells { columns, cells } => {
                let mut row = Vec::with_capacity(columns.names.len());
                match parsed(line, RowOf { columns, row: &mut row }) {
                    Ok(Ok(())) => {
                        row.iter().for_each(|cell| cells.push(cell));
                        return;
                    }
                    Ok(Err(reason)) => reason,
                    Err(error) => format!("not a JSON object: {error}"),
                }
            }
        };
        self.push_bad(reason);
    }

    /// Adds a record that cannot be read, for instance because it is too long.
    pub fn push_bad(&mut self, reason: String) {
        self.bad.push((self.len(), reason));
        match &mut self.kept {
            Kept::Texts { blobs, .. } => blobs.push(&[]),
            Kept::Numbers { lists, .. } => lists.ends.push(lists.values.len()),
            Kept::Cells { cells, .. } => cells.push_null_row(),
        }
    }

    /// How many records there are, bad ones among them.
    pub fn len(&self) -> usize {
        match &self.kept {
            Kept::Texts { blobs, .. } => blobs.ends.len(),
            Kept::Numbers { lists, .. } => lists.ends.len(),
            Kept::Cells { cells, .. } => cells.num_rows(),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the texts or numbers take.
    pub fn num_bytes(&self) -> usize {
        match &self.kept {
            Kept::Texts { blobs, .. } => blobs.bytes.len(),
            Kept::Numbers { lists, .. } => lists.values.num_bytes(),
            Kept::Cells { cells, .. } => cells.num_bytes(),
        }
    }

    /// The records, and which of them are bad, in order.
    pub fn finish(self) -> (Records, Vec<(usize, String)>) {
        let records = match self.kept {
            Kept::Texts { blobs, .. } => Records::Blobs(blobs),
            Kept::Numbers { lists, .. } => Records::Lists(lists),
            Kept::Cells { cells, .. } => Records::Cells(cells),
        };
        (records, self.bad)
    }
}

/// Adds the numbers of a record; all of them widen where one does not fit.
pub(super) fn append(lists: &mut Lists, row: &[Number], reals: bool) {
    let (mut largest, mut has_real, mut has_gap) = (0, reals, false);
    for number in row {
        match number {
            Number::Missing => has_gap = true,
            Number::Whole(value) => largest = largest.max(*value),
            Number::Real(_) => has_real = true,
        }
    }
    let before = lists.values.len();
    widen(&mut lists.values, largest, has_real);
    let whole = |number: &Number| match number {
        Number::Whole(value) => *value,
        Number::Missing | Number::Real(_) => 0,
    };
    match &mut lists.values {
        Values::U8(values) => values.extend(row.iter().map(|number| whole(number) as u8)),
        Values::U16(values) => values.extend(row.iter().map(|number| whole(number) as u16)),
        Values::U32(values) => values.extend(row.iter().map(whole)),
        Values::F32(values) => values.extend(row.iter().map(|number| match number {
            Number::Missing => 0.0,
            Number::Whole(value) => *value as f32,
            Number::Real(value) => *value,
        })),
    }
    if has_gap || lists.missing.is_some() {
        let missing = lists.missing.get_or_insert_with(|| vec![false; before]);
        missing.extend(row.iter().map(|number| *number == Number::Missing));
    }
    lists.ends.push(lists.values.len());
}

/// Makes room for whole numbers up to `largest`, or for real ones.
fn widen(values: &mut Values, largest: u32, real: bool) {
    let wider = match (&*values, largest) {
        (Values::F32(_), _) => return,
        (_, _) if real => Values::F32((0..values.len()).map(|at| values.real(at) as f32).collect()),
        (Values::U8(_), 0..=0xff) | (Values::U16(_), 0..=0xffff) | (Values::U32(_), _) => return,
        (Values::U8(narrow), 0x100..=0xffff) => Values::U16(narrow.iter().map(|&value| value.into()).collect()),
        (Values::U8(narrow), _) => Values::U32(narrow.iter().map(|&value| value.into()).collect()),
        (Values::U16(narrow), _) => Values::U32(narrow.iter().map(|&value| value.into()).collect()),
    };
    *values = wider;
}

/// Why a value is no record, where it is JSON.
type Fits = Result<(), String>;

/// All of a line by a seed: what it makes of it, or why it is not the JSON that it should be.
fn parsed<'de, S: DeserializeSeed<'de>>(line: &'de [u8], seed: S) -> Result<S::Value, String> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let value = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| in_line(&error))
}

/// The text under a key of an object; the other values are read over.
struct TextUnder<'f>(&'f str);

/// A text, or what is there instead.
type MaybeText<'de> = Result<Cow<'de, str>, &'static str>;

impl<'de> DeserializeSeed<'de> for TextUnder<'_> {
    type Value = Option<MaybeText<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextUnder<'_> {
    type Value = Option<MaybeText<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_wanted) = map.next_key_seed(Key(|key: &str| key == self.0))? {
            if is_wanted {
                found = Some(map.next_value_seed(AnyText)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The list under a key of an object.
struct ListUnder<'a> {
    key: &'a str,
    row: &'a mut Vec<Number>,
}

impl<'de> DeserializeSeed<'de> for ListUnder<'_> {
    type Value = Fits;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Fits, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListUnder<'_> {
    type Value = Fits;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fits, A::Error> {
        let mut found = None;
        while let Some(is_wanted) = map.next_key_seed(Key(|key: &str| key == self.key))? {
            if is_wanted {
                self.row.clear(); // the last of two counts
                found = Some(map.next_value_seed(ListOf(self.row))?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(match found {
            Some(list) => list.map_err(|e| e.within(&format!("column `{}`", self.key))),
            None => Err(format!("no column `{}`", self.key)),
        })
    }
}

/// What a column of an object holds.
trait Item<'de>: Sized + Clone {
    /// Where the column is not there.
    const MISSING: Self;

    /// The value under a key.
    fn next<A: MapAccess<'de>>(map: &mut A) -> Result<Result<Self, Other>, A::Error>;
}

impl<'de> Item<'de> for Number {
    const MISSING: Self = Self::Missing;

    fn next<A: MapAccess<'de>>(map: &mut A) -> Result<Result<Self, Other>, A::Error> {
        map.next_value_seed(AnyNumber)
    }
}

impl<'de> Item<'de> for Cell<'de> {
    const MISSING: Self = Self::Null;

    fn next<A: MapAccess<'de>>(map: &mut A) -> Result<Result<Self, Other>, A::Error> {
        map.next_value_seed(AnyCell)
    }
}

/// The values of an object by their names. Names usually come in the same order, so the next one is tried first.
struct RowOf<'a, T> {
    columns: &'a NamedColumns,
    row: &'a mut Vec<T>,
}

impl<'de, T: Item<'de>> DeserializeSeed<'de> for RowOf<'_, T> {
    type Value = Fits;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Fits, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de, T: Item<'de>> Visitor<'de> for RowOf<'_, T> {
    type Value = Fits;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fits, A::Error> {
        let NamedColumns { names, numbers, left_out } = self.columns;
        self.row.resize(names.len(), T::MISSING);
        let (mut next, mut found, mut trouble) = (0, false, None);
        let mut unknown = None;
        let mut column_of = |key: &str, next: usize| {
            let column = match names.get(next) {
                Some(name) if name == key => Some(next),
                _ => numbers.get(key).copied(),
            };
            if column.is_none() && unknown.is_none() && left_out.as_ref().is_some_and(|known| !known.contains(key)) {
                unknown = Some(key.to_string());
            }
            column
        };
        while let Some(column) = map.next_key_seed(Key(|key: &str| column_of(key, next)))? {
            let Some(column) = column else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            match T::next(&mut map)? {
                Ok(value) => self.row[column] = value,
                Err(other) => _ = trouble.get_or_insert_with(|| other.within(&format!("column `{}`", names[column]))),
            }
            (next, found) = (column + 1, true);
        }
        Ok(match (trouble, unknown) {
            (Some(reason), _) => Err(reason),
            (None, Some(key)) => Err(format!(
                "column `{key}` is not among those of the first lines: the columns have changed; to learn from some of \
                 them, name these with source.columns"
            )),
            (None, None) if found => Ok(()),
            (None, None) => Err(match &names[..] {
                [name] => format!("no column `{name}`"),
                names => format!("none of the columns `{}` to `{}`", names[0], names[names.len() - 1]),
            }),
        })
    }
}

/// Reads a key and says what it is.
struct Key<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Key<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<T, D::Error> {
        json.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Key<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<T, E> {
        Ok((self.0)(key))
    }
}

/// What stands where a number, or a list of them, should.
enum Other {
    /// Something of another type.
    Is { what: &'static str, wanted: &'static str },
    /// A number that does not fit into 32 bits.
    TooLarge(f64),
    /// An element of a list.
    At(usize, Box<Other>),
}

impl Other {
    /// The reason, told of a place.
    fn within(&self, place: &str) -> String {
        match self {
            Self::Is { what, wanted } => format!("{place} is {what}, not {wanted}"),
            Self::TooLarge(value) => format!("{place}: {value:?} is not a finite 32-bit number"),
            Self::At(index, other) => other.within(&format!("{place}: value {index}")),
        }
    }
}

/// What every value that is not the wanted one says of itself.
macro_rules! all_others {
    ($($method:ident($($value:ty)?) => $what:literal),* $(,)?) => {$(
        fn $method<E: de::Error>(self $(, _: $value)?) -> Result<Self::Value, E> {
            Ok(Err(Self::other($what)))
        }
    )*};
}

/// Reads to the end of something that is not wanted.
macro_rules! other_object {
    () => {
        fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Err(Self::other("an object")))
        }
    };
}

macro_rules! other_list {
    () => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Err(Self::other("a list")))
        }
    };
}

/// A text, without a copy where it has no escapes.
struct AnyText;

impl AnyText {
    fn other(what: &'static str) -> &'static str {
        what
    }
}

impl<'de> DeserializeSeed<'de> for AnyText {
    type Value = MaybeText<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyText {
    type Value = MaybeText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Ok(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Ok(Cow::Owned(text.into())))
    }

    all_others!(visit_unit() => "null", visit_bool(bool) => "true or false", visit_i64(i64) => "a number",
        visit_u64(u64) => "a number", visit_f64(f64) => "a number");
    other_list!();
    other_object!();
}

/// A number, a truth value or `null`.
struct AnyNumber;

impl AnyNumber {
    fn other(what: &'static str) -> Other {
        Other::Is { what, wanted: "a number" }
    }

    fn real(value: f64) -> Result<Number, Other> {
        Number::of(value).ok_or(Other::TooLarge(value))
    }
}

impl<'de> DeserializeSeed<'de> for AnyNumber {
    type Value = Result<Number, Other>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyNumber {
    type Value = Result<Number, Other>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Ok(Number::Missing))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Ok(Number::Whole(value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Ok(u32::try_from(value).map_or(Number::Real(value as f32), Number::Whole)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Ok(u32::try_from(value).map_or(Number::Real(value as f32), Number::Whole)))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Self::real(value))
    }

    all_others!(visit_str(&str) => "a text");
    other_list!();
    other_object!();
}

/// A text, a number, a truth value or `null`, as it is.
struct AnyCell;

impl AnyCell {
    fn other(what: &'static str) -> Other {
        Other::Is { what, wanted: "a single value" }
    }
}

impl<'de> DeserializeSeed<'de> for AnyCell {
    type Value = Result<Cell<'de>, Other>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyCell {
    type Value = Result<Cell<'de>, Other>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Int(value)))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Ok(i64::try_from(value).map_or(Cell::Float(value as f64), Cell::Int)))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Float(value)))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Ok(Cell::Text(Cow::Owned(text.into()))))
    }

    other_list!();
    other_object!();
}

/// A list of numbers, added to the row.
struct ListOf<'a>(&'a mut Vec<Number>);

impl ListOf<'_> {
    fn other(what: &'static str) -> Other {
        Other::Is { what, wanted: "a list of numbers" }
    }
}

impl<'de> DeserializeSeed<'de> for ListOf<'_> {
    type Value = Result<(), Other>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListOf<'_> {
    type Value = Result<(), Other>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while let Some(item) = items.next_element_seed(AnyNumber)? {
            match item {
                Ok(number) => self.0.push(number),
                Err(other) => {
                    while items.next_element::<IgnoredAny>()?.is_some() {}
                    return Ok(Err(Other::At(self.0.len(), Box::new(other))));
                }
            }
        }
        Ok(Ok(()))
    }

    all_others!(visit_unit() => "null", visit_bool(bool) => "true or false", visit_i64(i64) => "a number",
        visit_u64(u64) => "a number", visit_f64(f64) => "a number", visit_str(&str) => "a text");
    other_object!();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::columns::Columns;

    fn records(first: &str, lines: &[&str]) -> (Records, Vec<(usize, String)>) {
        let mut records = JsonShape::find(&[first.as_bytes()], &Columns::Auto).unwrap().records();
        for (at, line) in lines.iter().enumerate() {
            records.push(line.as_bytes());
            assert_eq!(records.len(), at + 1);
        }
        records.finish()
    }

    fn lists(first: &str, lines: &[&str]) -> (Lists, Vec<(usize, String)>) {
        match records(first, lines) {
            (Records::Lists(lists), bad) => (lists, bad),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn rows_come_by_name_in_any_order_and_what_is_not_there_is_missing() {
        let lines = [r#"{"a": 1, "b": 2}"#, r#"{"b": 3, "a": true}"#, r#"{"a": null, "b": 4}"#, r#"{"b": 5}"#];
        let (found, bad) = lists(lines[0], &lines);
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(found.values, Values::U8(vec![1, 2, 1, 3, 0, 4, 0, 5]));
        assert_eq!(found.ends, [2, 4, 6, 8]);
        assert_eq!(found.missing, Some([[false; 4], [true, false, true, false]].concat()));
    }

    #[test]
    fn numbers_are_as_narrow_as_they_fit_and_a_fraction_makes_them_real() {
        let (found, _) = lists("[1]", &["[255, 0]"]);
        assert_eq!(found.values, Values::U8(vec![255, 0]));
        assert_eq!(lists("[1]", &["[255]", "[256]"]).0.values, Values::U16(vec![255, 256]));
        assert_eq!(lists("[1]", &["[255]", "[65536]", "[2.0]"]).0.values, Values::U32(vec![255, 65_536, 2]));
        assert_eq!(lists("[1]", &["[300]", "[-1]", "[null, 0.5]"]).0.values, Values::F32(vec![300.0, -1.0, 0.0, 0.5]));
        assert_eq!(lists("[0.5]", &["[1]"]).0.values, Values::F32(vec![1.0]), "as the first lines said");
        assert_eq!(lists("[1]", &["[1]", "[1e10]"]).0.values, Values::F32(vec![1.0, 1e10]));
    }

    #[test]
    fn what_does_not_fit_is_bad_with_its_reason_and_costs_nobody_else() {
        let good = r#"{"a": 1, "b": 2}"#;
        let cases = [
            (r#"{"a": "x", "b": 2}"#, "column `a` is a text, not a number"),
            (r#"{"a": [1], "b": {"c": 1}}"#, "column `a` is a list, not a number"),
            (r#"{"a": 1e300, "b": 2}"#, "column `a`: 1e300 is not a finite 32-bit number"),
            (r#"{"c": 1}"#, "column `c` is not among those of the first lines"),
            (r#"{"a": 1, "b": 1, "c": 1}"#, "column `c` is not among those of the first lines"),
            ("{}", "none of the columns `a` to `b`"),
            ("[1, 2]", "not a JSON object: invalid type: sequence"),
            ("{\"a\": 1", "not a JSON object: EOF"),
            ("{\"a\": 1, \"b\": 2} x", "not a JSON object: trailing"),
            ("", "not a JSON object: EOF"),
        ];
        for (line, reason) in cases {
            let (found, bad) = lists(good, &[good, line, good]);
            assert_eq!((found.values, found.ends), (Values::U8(vec![1, 2, 1, 2]), vec![2, 2, 4]), "{line}");
            assert_eq!((bad.len(), bad[0].0), (1, 1));
            assert!(bad[0].1.starts_with(reason), "{line}: {}", bad[0].1);
        }
        for (first, line, reason) in [
            ("[1]", "[1, \"x\"]", "the line: value 1 is a text, not a number"),
            ("[1]", "7", "the line is a number, not a list of numbers"),
            (r#"{"a": [1]}"#, r#"{"a": 3}"#, "column `a` is a number, not a list of numbers"),
            (r#"{"a": [1]}"#, r#"{"a": [3, [4]]}"#, "column `a`: value 1 is a list, not a number"),
            (r#"{"a": [1]}"#, r#"{"b": [3]}"#, "no column `a`"),
            (r#"{"text": "x"}"#, r#"{"text": null}"#, "column `text` is null, not a text"),
        ] {
            let (found, bad) = records(first, &[line]);
            assert_eq!((found.len(), bad.len()), (1, 1));
            assert!(bad[0].1.starts_with(reason), "{line}: {}", bad[0].1);
        }
    }

    #[test]
    fn columns_that_were_named_may_have_any_company() {
        let shape = JsonShape::find(&[br#"{"a": 1, "b": 2}"#], &Columns::Many(vec!["b".into()])).unwrap();
        let mut records = shape.records();
        records.push(br#"{"new": "x", "b": 7, "a": "y"}"#);
        let (found, bad) = records.finish();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(found, Records::Lists(Lists { values: Values::U8(vec![7]), ends: vec![1], missing: None }));
    }

    #[test]
    fn cells_keep_their_types_and_what_is_nested_is_bad() {
        let first: &[u8] = br#"{"a": 1, "b": "x", "c": [1]}"#;
        let all = JsonShape::find(&[first], &Columns::Cells(Vec::new())).unwrap();
        let named = JsonShape::find(&[first], &Columns::Cells(vec!["b".into(), "a".into()])).unwrap();
        let read = |shape: &JsonShape, line: &str| {
            let mut records = shape.records();
            records.push(first);
            records.push(line.as_bytes());
            records.push(first);
            let (found, mut bad) = records.finish();
            let Records::Cells(cells) = found else { panic!("{found:?}") };
            assert_eq!((cells.num_rows(), cells.get(0, 0), cells.get(2, 0)), (3, cells.get(2, 0), cells.get(0, 0)));
            assert!(!cells.get(2, 0).is_null() && bad.iter().all(|bad| bad.0 == 1));
            bad.pop().map_or_else(|| Ok((0..2).map(|at| cells.get(1, at).into_owned()).collect()), |bad| Err(bad.1))
        };
        let text = |text: &'static str| Cell::Text(text.into());
        let good: [(&str, [Cell<'_>; 2]); 7] = [
            (r#"{"a": -5, "b": "\u00e9\"", "c": {}}"#, [Cell::Int(-5), text("é\"")]),
            (r#"{"b": true, "a": 2.0}"#, [Cell::Float(2.0), Cell::Bool(true)]),
            (r#"{"a": null, "b": ""}"#, [Cell::Null, text("")]),
            (r#"{"b": "1"}"#, [Cell::Null, text("1")]),
            (
                r#"{"a": 9223372036854775807, "b": 9223372036854775808}"#,
                [Cell::Int(i64::MAX), Cell::Float(9223372036854775808.0)],
            ),
            (r#"{"a": 1e400, "a": 3, "b": -0.5}"#, [Cell::Int(3), Cell::Float(-0.5)]),
            (r#"{"a": 1, "a": 2}"#, [Cell::Int(2), Cell::Null]),
        ];
        for (line, cells) in good.iter().filter(|(line, _)| !line.contains("1e400")) {
            assert_eq!(read(&all, line), Ok(cells.to_vec()), "{line}");
            let [a, b] = cells.clone();
            assert_eq!(read(&named, line), Ok(vec![b, a]), "{line}");
        }
        for (line, reason) in [
            (r#"{"a": [1], "b": "x"}"#, "column `a` is a list, not a single value"),
            (r#"{"a": 1, "b": {"c": 1}}"#, "column `b` is an object, not a single value"),
            (r#"{"c": 1}"#, "none of the columns `"),
            ("[1]", "not a JSON object: "),
            (r#"{"a": 1"#, "not a JSON object: EOF"),
            (r#"{"a": 1e400}"#, "not a JSON object: number out of range"),
        ] {
            for shape in [&all, &named] {
                let found = read(shape, line).unwrap_err();
                assert!(found.starts_with(reason), "{line}: {found}");
            }
        }
        let unknown = r#"{"a": 1, "new": 2}"#;
        assert!(read(&all, unknown).unwrap_err().starts_with("column `new` is not among those of the first lines"));
        assert_eq!(read(&named, unknown), Ok(vec![Cell::Null, Cell::Int(1)]));
    }

    proptest! {
        #[test]
        fn any_numbers_come_back_through_columns_and_lists_alike(
            rows in prop::collection::vec(prop::collection::vec(prop::option::of(0u32..70_000), 3), 1..20),
        ) {
            let text = |value: &Option<u32>| value.map_or("null".to_string(), |value| value.to_string());
            let first = "{\"c0\":1,\"c1\":1,\"c2\":1}";
            let objects: Vec<String> = rows.iter().map(|row| {
                let fields: Vec<String> = (0..3).rev().map(|c| format!("\"c{c}\":{}", text(&row[c]))).collect();
                format!("{{{}}}", fields.join(","))
            }).collect();
            let arrays: Vec<String> =
                rows.iter().map(|row| format!("[{}]", row.iter().map(text).collect::<Vec<_>>().join(", "))).collect();
            let by_name = lists(first, &objects.iter().map(String::as_str).collect::<Vec<_>>()).0;
            let by_place = lists("[1]", &arrays.iter().map(String::as_str).collect::<Vec<_>>()).0;
            prop_assert_eq!(&by_name, &by_place);
            let cells: Vec<Option<u32>> = rows.concat();
            for (at, cell) in cells.iter().enumerate() {
                let is_missing = by_name.missing.as_ref().is_some_and(|missing| missing[at]);
                prop_assert_eq!(is_missing, cell.is_none());
                prop_assert_eq!(by_name.values.category(at), Some(cell.unwrap_or(0)));
            }
        }
    }
}
