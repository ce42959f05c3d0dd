//! How a JSON value is read as a record: a text, a list of numbers, or values by the names of columns.
//!
//! Seeds for serde that write straight from the parser, so that a line becomes a record without a tree of values in
//! between. A value that is JSON but does not fit comes back with a reason; what it should have been, only
//! `json_records` knows.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json_shape::in_line;
use crate::data::Cell;

/// The columns of an object that are read.
#[derive(Debug)]
pub(super) struct NamedColumns {
    pub names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Where all columns were meant: those that are known and not read. Any other is a change of the schema.
    left_out: Option<HashSet<String>>,
}

impl NamedColumns {
    /// `left_out` are the others, where all columns were meant.
    pub fn new(names: &[String], left_out: Option<HashSet<String>>) -> Self {
        Self { names: names.to_vec(), numbers: names.iter().cloned().zip(0..).collect(), left_out }
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

/// Why a value is no record, where it is JSON.
pub(super) type Fits = Result<(), String>;

/// All of a line by a seed: what it makes of it, or why it is not the JSON that it should be.
pub(super) fn parsed<'de, S: DeserializeSeed<'de>>(line: &'de [u8], seed: S) -> Result<S::Value, String> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let value = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| in_line(&error))
}

/// The text under a key of an object; the other values are read over.
pub(super) struct TextUnder<'f>(pub &'f str);

/// A text, or what is there instead.
pub(super) type MaybeText<'de> = Result<Cow<'de, str>, &'static str>;

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
pub(super) struct ListUnder<'a> {
    pub key: &'a str,
    pub row: &'a mut Vec<Number>,
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
pub(super) trait Item<'de>: Sized + Clone {
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
pub(super) struct RowOf<'a, T> {
    pub columns: &'a NamedColumns,
    pub row: &'a mut Vec<T>,
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
pub(super) enum Other {
    /// Something of another type.
    Is { what: &'static str, wanted: &'static str },
    /// A number that does not fit into 32 bits.
    TooLarge(f64),
    /// An element of a list.
    At(usize, Box<Other>),
}

impl Other {
    /// The reason, told of a place.
    pub(super) fn within(&self, place: &str) -> String {
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
pub(super) struct ListOf<'a>(pub &'a mut Vec<Number>);

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
