//! The types of columns of a text file, found out by looking at all of its cells, and the arrays that hold them.
//!
//! A column has the narrowest type that gives every cell back as it was written: whole numbers, dates and times in
//! another spelling than ours stay texts; real numbers come back as equal ones. Words for nothing (`NA`) are null in a
//! column of anything but texts. Several files are looked at before any of them has a type, so that all have the same.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayBuilder, ArrayRef, BooleanBuilder, Date32Builder, Float64Builder, Int64Builder, ListBuilder, NullArray,
    RecordBatch, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::data::civil::{parse_date, parse_timestamp, show_date, show_timestamp};
use crate::data::schema::{parse_number, says_missing};
use crate::error::{Error, Result};

/// More columns are no table: every one is kept in memory.
const MOST_COLUMNS: usize = 1 << 16;

/// What a cell is, as narrowly as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    /// A word for nothing, if the column is not one of texts.
    Missing = 1,
    Bool = 1 << 1,
    Int = 1 << 2,
    Float = 1 << 3,
    Date = 1 << 4,
    Time = 1 << 5,
    Text = 1 << 6,
    /// A list without an item, or of nothing but nulls.
    EmptyList = 1 << 7,
    Ints = 1 << 8,
    Floats = 1 << 9,
}

/// The cells of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kinds(u16);

impl Kinds {
    fn within(self, kinds: &[Kind]) -> bool {
        kinds.iter().fold(self.0, |left, kind| left & !(*kind as u16)) == 0
    }

    /// The type that holds them all.
    fn data_type(self) -> DataType {
        use Kind::{Bool, Date, EmptyList, Float, Floats, Int, Ints, Missing, Time};
        let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
        match () {
            () if self.0 == 0 => DataType::Null,
            () if self.0 == Missing as u16 => DataType::Utf8,
            () if self.within(&[Missing, Bool]) => DataType::Boolean,
            () if self.within(&[Missing, Int]) => DataType::Int64,
            () if self.within(&[Missing, Int, Float]) => DataType::Float64,
            () if self.within(&[Missing, Date]) => DataType::Date32,
            () if self.within(&[Missing, Time]) => DataType::Timestamp(TimeUnit::Microsecond, None),
            () if self.within(&[EmptyList, Ints]) => list(DataType::Int64),
            () if self.within(&[EmptyList, Ints, Floats]) => list(DataType::Float64),
            () => DataType::Utf8,
        }
    }
}

/// The columns of a file, and what was seen in them.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    names: Vec<String>,
    places: HashMap<String, usize>,
    kinds: Vec<Kinds>,
}

impl Found {
    /// With these columns, in which nothing was seen.
    pub fn with_columns(names: &[String]) -> Result<Self> {
        let mut found = Self::default();
        names.iter().try_for_each(|name| found.place(name).map(drop))?;
        Ok(found)
    }

    /// Where a column is; at the end if it is new.
    pub fn place(&mut self, name: &str) -> Result<usize> {
        if let Some(place) = self.places.get(name) {
            return Ok(*place);
        }
        if self.names.len() == MOST_COLUMNS {
            return Err(Error::data(format!("more than {MOST_COLUMNS} columns are no table")));
        }
        self.names.push(name.into());
        self.places.insert(name.into(), self.kinds.len());
        self.kinds.push(Kinds::default());
        Ok(self.kinds.len() - 1)
    }

    /// Where a column is, if it is there.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// How many columns there are.
    pub fn width(&self) -> usize {
        self.names.len()
    }

    /// A cell was seen.
    pub fn see(&mut self, column: usize, kind: Kind) {
        self.kinds[column].0 |= kind as u16;
    }

    /// What another file has, too.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        for (name, kinds) in other.names.iter().zip(&other.kinds) {
            let place = self.place(name)?;
            self.kinds[place].0 |= kinds.0;
        }
        Ok(())
    }

    /// Types of the columns that hold what was seen here or there.
    pub fn widen(&mut self, all: &Self) {
        for (name, kinds) in self.names.iter().zip(&mut self.kinds) {
            if let Some(place) = all.find(name) {
                kinds.0 |= all.kinds[place].0;
            }
        }
    }

    /// The columns with their types.
    pub fn schema(&self) -> SchemaRef {
        let fields = self.names.iter().zip(&self.kinds);
        Arc::new(Schema::new(fields.map(|(name, kinds)| Field::new(name, kinds.data_type(), true)).collect::<Vec<_>>()))
    }
}

/// What the text of a cell spells.
pub(super) fn kind_of_text(text: &str) -> Kind {
    let trimmed = text.trim();
    let is_whole =
        |digits: &str| digits == "0" || (digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0'));
    match trimmed {
        _ if says_missing(trimmed) => Kind::Missing,
        "true" | "false" if trimmed == text => Kind::Bool,
        // `-0` is not the whole number 0, and whole numbers that are too large are no real ones: their digits count.
        _ if trimmed != "-0" && is_whole(trimmed.strip_prefix('-').unwrap_or(trimmed)) => {
            match trimmed.parse::<i64>() {
                Ok(_) => Kind::Int,
                Err(_) => Kind::Text,
            }
        }
        _ if has_leading_zero(trimmed) => Kind::Text,
        _ if parse_number(trimmed).is_some() => Kind::Float,
        _ if parse_date(text).is_some_and(|days| i32::try_from(days).is_ok() && show_date(days) == text) => Kind::Date,
        _ if parse_timestamp(text).is_some_and(|micros| show_timestamp(micros) == text) => Kind::Time,
        _ => Kind::Text,
    }
}

/// A postcode or a number of an article, not a number.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit()
}

/// An array that is being put together, of a type that [`Found`] gives.
pub(super) enum Column {
    Null(usize),
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Date(Date32Builder),
    Time(TimestampMicrosecondBuilder),
    Text(StringBuilder),
    Ints(ListBuilder<Int64Builder>),
    Floats(ListBuilder<Float64Builder>),
}

/// What a column cannot hold: it has changed since it was looked at.
#[derive(Debug)]
pub(super) struct DoesNotFit;

impl Column {
    /// Without a row.
    pub fn new(data_type: &DataType) -> Self {
        match data_type {
            DataType::Null => Self::Null(0),
            DataType::Boolean => Self::Bool(BooleanBuilder::new()),
            DataType::Int64 => Self::Int(Int64Builder::new()),
            DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::Date32 => Self::Date(Date32Builder::new()),
            DataType::Timestamp(..) => Self::Time(TimestampMicrosecondBuilder::new()),
            DataType::List(item) if item.data_type() == &DataType::Int64 => {
                Self::Ints(ListBuilder::new(Int64Builder::new()))
            }
            DataType::List(_) => Self::Floats(ListBuilder::new(Float64Builder::new())),
            _ => Self::Text(StringBuilder::new()),
        }
    }

    /// Adds what the text of a cell spells.
    pub fn push_spelled(&mut self, text: &str) -> std::result::Result<(), DoesNotFit> {
        let kind = kind_of_text(text);
        let trimmed = text.trim();
        match (self, kind) {
            (Self::Text(texts), _) => texts.append_value(text),
            (column, Kind::Missing) => column.push_null(),
            (Self::Bool(truths), Kind::Bool) => truths.append_value(text == "true"),
            (Self::Int(numbers), Kind::Int) => numbers.append_value(trimmed.parse().map_err(|_| DoesNotFit)?),
            (Self::Float(numbers), Kind::Int | Kind::Float) => {
                numbers.append_value(parse_number(trimmed).ok_or(DoesNotFit)?);
            }
            (Self::Date(dates), Kind::Date) => {
                let days = parse_date(text).and_then(|days| i32::try_from(days).ok());
                dates.append_value(days.ok_or(DoesNotFit)?);
            }
            (Self::Time(times), Kind::Time) => times.append_value(parse_timestamp(text).ok_or(DoesNotFit)?),
            _ => return Err(DoesNotFit),
        }
        Ok(())
    }

    /// Adds nothing.
    pub fn push_null(&mut self) {
        match self {
            Self::Null(rows) => *rows += 1,
            Self::Bool(builder) => builder.append_null(),
            Self::Int(builder) => builder.append_null(),
            Self::Float(builder) => builder.append_null(),
            Self::Date(builder) => builder.append_null(),
            Self::Time(builder) => builder.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Ints(builder) => builder.append_null(),
            Self::Floats(builder) => builder.append_null(),
        }
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Null(rows) => *rows,
            Self::Bool(builder) => builder.len(),
            Self::Int(builder) => builder.len(),
            Self::Float(builder) => builder.len(),
            Self::Date(builder) => builder.len(),
            Self::Time(builder) => builder.len(),
            Self::Text(builder) => builder.len(),
            Self::Ints(builder) => builder.len(),
            Self::Floats(builder) => builder.len(),
        }
    }

    /// The array.
    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Null(rows) => Arc::new(NullArray::new(std::mem::take(rows))),
            Self::Bool(builder) => Arc::new(builder.finish()),
            Self::Int(builder) => Arc::new(builder.finish()),
            Self::Float(builder) => Arc::new(builder.finish()),
            Self::Date(builder) => Arc::new(builder.finish()),
            Self::Time(builder) => Arc::new(builder.finish()),
            Self::Text(builder) => Arc::new(builder.finish()),
            Self::Ints(builder) => Arc::new(builder.finish()),
            Self::Floats(builder) => Arc::new(builder.finish()),
        }
    }
}

/// The columns of some rows.
pub(super) fn columns_of(schema: &Schema) -> Vec<Column> {
    schema.fields().iter().map(|field| Column::new(field.data_type())).collect()
}

/// The rows of columns of equal length.
pub(super) fn rows_of(schema: &SchemaRef, columns: &mut [Column]) -> Result<RecordBatch> {
    let arrays = columns.iter_mut().map(Column::finish).collect();
    RecordBatch::try_new(schema.clone(), arrays).map_err(|e| Error::internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(cells: &[&str]) -> DataType {
        let mut found = Found::with_columns(&["a".into()]).unwrap();
        cells.iter().for_each(|cell| found.see(0, kind_of_text(cell)));
        found.schema().field(0).data_type().clone()
    }

    #[test]
    fn a_column_has_the_type_that_gives_its_cells_back() {
        for (cells, data_type) in [
            (&["1", "-20", "NA", " 3"][..], DataType::Int64),
            (&["1", "2.5", "-0", "+4", "1e3", "null"], DataType::Float64),
            (&["true", "false", "-"], DataType::Boolean),
            (&["True", "false"], DataType::Utf8),
            (&["007", "12"], DataType::Utf8),
            (&["9223372036854775808", "1"], DataType::Utf8),
            (&["2024-01-31", "NA"], DataType::Date32),
            (&["2024-01-31", "2024-1-31"], DataType::Utf8),
            (&["2024-01-31T07:45:00.5"], DataType::Timestamp(TimeUnit::Microsecond, None)),
            (&["2024-01-31 07:45"], DataType::Utf8),
            (&["2024-01-31", "2024-01-31T00:00:00"], DataType::Utf8),
            (&["NA", "NA"], DataType::Utf8),
            (&["NA", "x"], DataType::Utf8),
            (&["inf", "1"], DataType::Utf8),
            (&["1", "true"], DataType::Utf8),
            (&[], DataType::Null),
        ] {
            assert_eq!(type_of(cells), data_type, "{cells:?}");
            let mut column = Column::new(&data_type);
            cells.iter().for_each(|cell| column.push_spelled(cell).unwrap());
            column.push_null();
            assert_eq!((column.len(), column.finish().data_type()), (cells.len() + 1, &data_type));
        }
        assert!(Column::new(&DataType::Int64).push_spelled("x").is_err());
        assert!(Column::new(&DataType::Null).push_spelled("1").is_err());
    }

    #[test]
    fn several_files_have_the_types_that_hold_all_of_them() {
        let names = ["a".to_string(), "b".to_string()];
        let [mut one, mut two] = [0, 1].map(|_| Found::with_columns(&names).unwrap());
        one.see(0, Kind::Int);
        two.see(0, Kind::Float);
        two.see(1, Kind::Bool);
        let mut all = one.clone();
        all.merge(&two).unwrap();
        one.widen(&all);
        two.widen(&all);
        assert_eq!(one.schema(), two.schema());
        assert_eq!(one.schema().field(0).data_type(), &DataType::Float64);
    }
}
