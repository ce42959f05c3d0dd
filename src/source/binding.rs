//! Which columns hold the records, and the records in them.
//!
//! [`Columns`] is what a user says, a [`Binding`] what it means for one schema: which columns, and how they become
//! records. Columns are bound by name, file by file, so shards may differ in everything else; what they deliver must
//! agree. Used by `parquet` and `arrow_stream`.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};

use super::arrow_cells::{cells, is_cell};
use super::arrow_values::{NumberType, Numbers, blobs, numbers};
use super::columns::{ColumnInfo, Columns, Reading, RecordKind, Wanted};
use super::{Lists, Records};
use crate::data::Values;
use crate::error::{Error, Result};

/// How many columns an error lists before it stops.
const LISTED: usize = 20;

/// What a cell takes, besides its text.
pub(super) const CELL_BYTES: u64 = 24;

/// Columns of one schema that become records.
#[derive(Clone, Debug)]
pub struct Binding {
    names: Vec<String>,
    form: Form,
    kind: RecordKind,
    /// What numbers become.
    number: NumberType,
    /// What the user said, or what `Auto` came to: binds other files to the same columns.
    chosen: Columns,
    reading: Reading,
}

/// How columns become records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Blobs,
    /// A struct whose field `bytes` is meant.
    Images,
    Lists,
    /// A number per column.
    Numbers,
    /// A cell per column.
    Cells,
}

/// The field of an image struct that is read.
pub(super) const IMAGE_BYTES: &str = "bytes";

impl Binding {
    /// Finds the columns in a schema.
    pub fn new(schema: &Schema, columns: &Columns) -> Result<Self> {
        let mut binding = match columns {
            Columns::Auto => return Self::new(schema, &choose(schema)?),
            Columns::Only(wanted) => return Self::new(schema, &choose_only(schema, *wanted)?),
            Columns::One(name) => Self::one(find(schema, name)?),
            Columns::Many(names) => Self::many(schema, names),
            Columns::Cells(names) => Self::cells(schema, names),
        }?;
        let named = |name: &String| schema.fields().iter().find(|field| field.name() == name);
        binding.reading.read = binding.names.iter().filter_map(named).map(|field| column_info(field)).collect();
        let others = schema.fields().iter().filter(|field| !binding.names.contains(field.name()));
        binding.reading.left_out = others.map(|field| column_info(field)).collect();
        Ok(binding)
    }

    fn one(field: &Field) -> Result<Self> {
        let name = field.name();
        let Some((form, kind, number)) = usable(field) else {
            return Err(Error::data(format!(
                "column `{name}` is {}: neither text, bytes, an image, a list of numbers nor a number",
                field.data_type()
            )));
        };
        Ok(Self {
            names: vec![name.clone()],
            form,
            kind,
            number,
            chosen: Columns::One(name.clone()),
            reading: Reading::default(),
        })
    }

    fn many(schema: &Schema, patterns: &[String]) -> Result<Self> {
        let fields = matching(schema, patterns)?;
        let mut number = NumberType::U8;
        for field in &fields {
            number = number.max(NumberType::of(field.data_type()).ok_or_else(|| {
                Error::data(format!("column `{}` is {}, not a number", field.name(), field.data_type()))
            })?);
        }
        Ok(Self {
            names: fields.iter().map(|field| field.name().clone()).collect(),
            form: Form::Numbers,
            kind: RecordKind::Lists { width: Some(fields.len()), reals: number == NumberType::F32 },
            number,
            chosen: Columns::Many(patterns.to_vec()),
            reading: Reading::default(),
        })
    }

    fn cells(schema: &Schema, patterns: &[String]) -> Result<Self> {
        let all = || schema.fields().iter().map(AsRef::as_ref).filter(|field| is_cell(field.data_type())).collect();
        let fields: Vec<&Field> = if patterns.is_empty() { all() } else { matching(schema, patterns)? };
        if let Some(field) = fields.iter().find(|field| !is_cell(field.data_type())) {
            let (name, data_type) = (field.name(), field.data_type());
            return Err(Error::data(format!("column `{name}` is {data_type}, not a single value per row")));
        }
        if fields.is_empty() {
            return Err(Error::data(format!("no column has a single value per row; {}", there_are(schema))));
        }
        Ok(Self {
            names: fields.iter().map(|field| field.name().clone()).collect(),
            form: Form::Cells,
            kind: RecordKind::Cells { width: fields.len() },
            number: NumberType::F32,
            chosen: Columns::Cells(fields.iter().map(|field| field.name().clone()).collect()),
            reading: Reading::default(),
        })
    }

    /// The columns by name, in the order in which a record has them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// What to bind the other files of the same data to.
    pub fn chosen(&self) -> &Columns {
        &self.chosen
    }

    /// Whether only the field `bytes` of the column is read.
    pub(super) fn reads_image_bytes(&self) -> bool {
        self.form == Form::Images
    }

    /// Bytes that one number takes in a record; 0 where records are byte strings.
    pub(super) fn number_bytes(&self) -> u64 {
        match (self.form, self.number) {
            (Form::Blobs | Form::Images, _) => 0,
            (Form::Cells, _) => CELL_BYTES,
            (_, NumberType::U8) => 1,
            (_, NumberType::U16) => 2,
            (_, NumberType::U32 | NumberType::F32) => 4,
        }
    }

    /// Makes two files deliver the same: both widen to what holds the other. Refuses what cannot be.
    pub(super) fn agree(&mut self, other: &mut Self) -> Result<()> {
        use RecordKind::Lists as L;
        let kind = match (self.kind, other.kind) {
            (L { width: a, reals }, L { width: b, reals: also_reals }) => {
                if self.names != other.names || (a.is_some() && b.is_some() && a != b) {
                    return Err(self.unlike(other));
                }
                L { width: a.filter(|_| a == b), reals: reals || also_reals }
            }
            (RecordKind::Cells { .. }, RecordKind::Cells { .. }) if self.names == other.names => self.kind,
            (L { .. } | RecordKind::Cells { .. }, _) | (_, L { .. } | RecordKind::Cells { .. }) => {
                return Err(self.unlike(other));
            }
            (kind, _) => kind, // texts and bytes are both byte strings
        };
        let number = self.number.max(other.number);
        for binding in [self, other] {
            binding.kind = kind;
            binding.number = number;
        }
        Ok(())
    }

    fn unlike(&self, other: &Self) -> Error {
        let name = &self.names[0];
        if self.names.len() == other.names.len() && self.names.len() == 1 {
            return Error::data(format!("column `{name}`: expected {}, found {}", self.found(), other.found()));
        }
        Error::data(format!(
            "expected the {} columns `{name}`…, found {} columns `{}`…: give all files the same ones",
            self.names.len(),
            other.names.len(),
            other.names[0]
        ))
    }

    fn found(&self) -> String {
        match self.kind {
            RecordKind::Text => "text".into(),
            RecordKind::Image => "bytes".into(),
            RecordKind::Lists { width: Some(width), .. } => format!("lists of {width} numbers"),
            RecordKind::Lists { width: None, .. } => "lists of numbers".into(),
            RecordKind::Cells { .. } => "a value".into(),
        }
    }

    /// The records of a batch that has the bound columns, and which of them cannot be used, in order.
    pub fn records(&self, batch: &RecordBatch) -> Result<(Records, Vec<(usize, String)>)> {
        let columns = self.names.iter().map(|name| {
            batch.column_by_name(name).ok_or_else(|| Error::data(format!("no column `{name}` in a batch of rows")))
        });
        let columns: Vec<&ArrayRef> = columns.collect::<Result<_>>()?;
        match self.form {
            Form::Blobs => blobs(columns[0]).map(|(blobs, bad)| (Records::Blobs(blobs), bad)),
            Form::Images => image_records(columns[0]),
            Form::Lists => self.list_records(columns[0]),
            Form::Numbers => self.number_records(&columns, batch.num_rows()),
            Form::Cells => cells(&columns, batch.num_rows()).map(|cells| (Records::Cells(cells), Vec::new())),
        }
        .map_err(|error| error.at(format_args!("column `{}`", self.names[0])))
    }

    fn list_records(&self, array: &ArrayRef) -> Result<(Records, Vec<(usize, String)>)> {
        let (values, ends) = match array.data_type() {
            DataType::List(_) => list_parts::<i32>(array),
            DataType::LargeList(_) => list_parts::<i64>(array),
            DataType::FixedSizeList(_, width) => {
                let (lists, width) = (array.as_fixed_size_list(), *width as usize);
                let ends = (1..=lists.len()).map(|record| record * width).collect();
                (lists.values().slice(0, lists.len() * width), ends)
            }
            other => return Err(Error::data(format!("{other} is not a list"))),
        };
        let Numbers { values, missing, bad: bad_values } = numbers(&values, self.number)?;
        let mut bad: Vec<(usize, String)> =
            (0..array.len()).filter(|&record| array.is_null(record)).map(|record| (record, "null".into())).collect();
        for (index, reason) in bad_values {
            let record = ends.partition_point(|&end| end <= index);
            let first = record.checked_sub(1).map_or(0, |before| ends[before]);
            bad.push((record, format!("value {}: {reason}", index - first)));
        }
        Ok((Records::Lists(Lists { values, ends, missing }), first_of_each(bad)))
    }

    fn number_records(&self, columns: &[&ArrayRef], num_rows: usize) -> Result<(Records, Vec<(usize, String)>)> {
        let width = columns.len();
        let mut read = Vec::with_capacity(width);
        for (name, array) in self.names.iter().zip(columns) {
            read.push(numbers(array, self.number).map_err(|error| error.at(format_args!("column `{name}`")))?);
        }
        let bad = read.iter().zip(&self.names).flat_map(|(numbers, name)| {
            numbers.bad.iter().map(move |(record, reason)| match width {
                1 => (*record, reason.clone()),
                _ => (*record, format!("column `{name}`: {reason}")),
            })
        });
        let bad = first_of_each(bad.collect());
        let masks: Vec<Option<&[bool]>> = read.iter().map(|numbers| numbers.missing.as_deref()).collect();
        let missing = masks.iter().any(Option::is_some).then(|| {
            let mask = |column: usize| masks[column].unwrap_or(&[]);
            let cells = (0..num_rows * width).map(|cell| mask(cell % width).get(cell / width).copied());
            cells.map(Option::unwrap_or_default).collect()
        });
        let parts: Vec<&Values> = read.iter().map(|numbers| &numbers.values).collect();
        let values = match self.number {
            NumberType::U8 => Values::U8(rows_of(&parts, num_rows, |c| if let Values::U8(v) = c { v } else { &[] })),
            NumberType::U16 => Values::U16(rows_of(&parts, num_rows, |c| if let Values::U16(v) = c { v } else { &[] })),
            NumberType::U32 => Values::U32(rows_of(&parts, num_rows, |c| if let Values::U32(v) = c { v } else { &[] })),
            NumberType::F32 => Values::F32(rows_of(&parts, num_rows, |c| if let Values::F32(v) = c { v } else { &[] })),
        };
        let ends = (1..=num_rows).map(|record| record * width).collect();
        Ok((Records::Lists(Lists { values, ends, missing }), bad))
    }
}

/// Columns laid out row by row. `values` sees columns of one type only: `numbers` made them so.
fn rows_of<T: Copy + Default>(columns: &[&Values], num_rows: usize, values: impl Fn(&Values) -> &[T]) -> Vec<T> {
    let width = columns.len();
    let mut rows = vec![T::default(); num_rows * width];
    for (var, column) in columns.iter().enumerate() {
        for (row, &value) in values(column).iter().enumerate() {
            rows[row * width + var] = value;
        }
    }
    rows
}

fn image_records(array: &ArrayRef) -> Result<(Records, Vec<(usize, String)>)> {
    let images = array.as_struct();
    let bytes = images.column_by_name(IMAGE_BYTES).ok_or_else(|| Error::data("no field `bytes`"))?;
    let (blobs, no_bytes) = blobs(bytes)?;
    let bad = no_bytes.into_iter().map(|(record, _)| (record, "no bytes; only a path is given".to_string()));
    // The struct itself may be null over bytes that are not.
    let null = (0..images.len()).filter(|&record| images.is_null(record)).map(|record| (record, "null".to_string()));
    Ok((Records::Blobs(blobs), first_of_each(null.chain(bad).collect())))
}

/// The values of all lists, and where each list ends among them.
fn list_parts<O: OffsetSizeTrait>(array: &ArrayRef) -> (ArrayRef, Vec<usize>) {
    let lists = array.as_list::<O>();
    let offsets = lists.value_offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let ends = offsets[1..].iter().map(|end| end.as_usize() - first).collect();
    (lists.values().slice(first, last - first), ends)
}

/// In order, one reason a record.
fn first_of_each(mut bad: Vec<(usize, String)>) -> Vec<(usize, String)> {
    bad.sort_by_key(|&(record, _)| record);
    bad.dedup_by_key(|&mut (record, _)| record);
    bad
}

/// What a column can be read as.
fn usable(field: &Field) -> Option<(Form, RecordKind, NumberType)> {
    // Old writers give texts no type but bytes: the name tells.
    let bytes_kind = if field.name() == "text" { RecordKind::Text } else { RecordKind::Image };
    let list = |item: &Field, width: Option<usize>| {
        let number = NumberType::of(item.data_type())?;
        Some((Form::Lists, RecordKind::Lists { width, reals: number == NumberType::F32 }, number))
    };
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) => list(item, None),
        DataType::FixedSizeList(item, width) => list(item, usize::try_from(*width).ok()),
        DataType::Struct(fields) => {
            let bytes = fields.iter().find(|field| field.name() == IMAGE_BYTES)?;
            is_bytes(bytes.data_type()).then_some((Form::Images, RecordKind::Image, NumberType::U8))
        }
        other if is_text(other) => Some((Form::Blobs, RecordKind::Text, NumberType::U8)),
        other if is_bytes(other) => Some((Form::Blobs, bytes_kind, NumberType::U8)),
        other => {
            let number = NumberType::of(other)?;
            let kind = RecordKind::Lists { width: Some(1), reals: number == NumberType::F32 };
            Some((Form::Numbers, kind, number))
        }
    }
}

pub(super) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => is_bytes(values),
        _ => false,
    }
}

/// The columns that a user who says nothing must mean.
fn choose(schema: &Schema) -> Result<Columns> {
    let all_numbers = || {
        let numbers = numbers_of(schema);
        (!numbers.is_empty() && numbers.len() == schema.fields().len()).then_some(Columns::Many(numbers))
    };
    named(schema, "image", RecordKind::Image)
        .or_else(|| only(schema, |form, _| form == Form::Lists))
        .or_else(all_numbers)
        .or_else(|| only(schema, |_, kind| kind == RecordKind::Image))
        .ok_or_else(|| Error::option(what_would_work(schema)))
}

/// The columns that a user who wants such records, and names none, must mean.
fn choose_only(schema: &Schema, wanted: Wanted) -> Result<Columns> {
    let (chosen, what) = match wanted {
        Wanted::Text => {
            let text = |_, kind| kind == RecordKind::Text;
            (named(schema, "text", RecordKind::Text).or_else(|| only(schema, text)), "texts")
        }
        Wanted::Images => {
            let image = |_, kind| kind == RecordKind::Image;
            (named(schema, "image", RecordKind::Image).or_else(|| only(schema, image)), "images")
        }
        Wanted::Rows => {
            let lists = |form, _| form == Form::Lists;
            let has_list =
                schema.fields().iter().any(|field| usable(field).is_some_and(|(form, ..)| form == Form::Lists));
            let numbers = Some(numbers_of(schema)).filter(|numbers| !numbers.is_empty() && !has_list);
            (only(schema, lists).or(numbers.map(Columns::Many)), "rows")
        }
        Wanted::Lists => (only(schema, |form, _| form == Form::Lists), "lists of numbers"),
    };
    chosen.ok_or_else(|| Error::option(format!("say which column holds the {what}; {}", there_are(schema))))
}

/// The column of that name, if it is of that kind.
fn named(schema: &Schema, name: &str, kind: RecordKind) -> Option<Columns> {
    let field = schema.fields().iter().find(|field| field.name() == name)?;
    usable(field).filter(|(_, found, _)| *found == kind).map(|_| Columns::One(name.into()))
}

/// The only column for which `wanted` holds.
fn only(schema: &Schema, wanted: impl Fn(Form, RecordKind) -> bool) -> Option<Columns> {
    let is_wanted = |field: &&Arc<Field>| usable(field).is_some_and(|(form, kind, _)| wanted(form, kind));
    let mut fields = schema.fields().iter().filter(is_wanted);
    let first = fields.next()?;
    fields.next().is_none().then(|| Columns::One(first.name().clone()))
}

/// All columns that hold a number each.
fn numbers_of(schema: &Schema) -> Vec<String> {
    let is_number = |field: &&Arc<Field>| usable(field).is_some_and(|(form, ..)| form == Form::Numbers);
    schema.fields().iter().filter(is_number).map(|field| field.name().clone()).collect()
}

/// In one sentence, what can be learned of a table from which nothing can be chosen without being told.
fn what_would_work(schema: &Schema) -> String {
    let of_form = |wanted: Form| {
        let fields = schema.fields().iter().filter(move |f| usable(f).is_some_and(|(form, ..)| form == wanted));
        fields.map(|field| field.name().as_str()).collect::<Vec<_>>()
    };
    let mut ways = Vec::new();
    let text = schema.fields().iter().find(|f| usable(f).is_some_and(|(_, kind, _)| kind == RecordKind::Text));
    let one_of = |names: &[&str], what: &str| match names {
        [] => None,
        [name] => Some(format!("source.column = \"{name}\" (--column {name}) for {what}")),
        [name, ..] => Some(format!("source.column = \"{name}\" or another (--column {name}) for {what}")),
    };
    ways.extend(one_of(&text.map(|field| field.name().as_str()).into_iter().collect::<Vec<_>>(), "a text"));
    ways.extend(one_of(&of_form(Form::Lists), "a list of numbers"));
    let images = schema.fields().iter().filter(|f| usable(f).is_some_and(|(_, kind, _)| kind == RecordKind::Image));
    ways.extend(one_of(&images.map(|field| field.name().as_str()).collect::<Vec<_>>(), "images"));
    let numbers = of_form(Form::Numbers);
    if !numbers.is_empty() {
        let shown: Vec<String> = numbers.iter().take(LISTED).map(|name| format!("\"{name}\"")).collect();
        let more = if numbers.len() > LISTED { ", …" } else { "" };
        ways.push(format!("source.columns = [{}{more}] (--columns) for numbers side by side", shown.join(", ")));
    }
    let ways =
        if ways.is_empty() { "none of them can be learned".into() } else { format!("say {}", ways.join(", or ")) };
    let table = match schema.fields().iter().any(|field| is_cell(field.data_type())) {
        true => ", or decode.kind = \"table\" (--table) for columns that mean something each: names, numbers, times",
        false => "",
    };
    format!("{}: which to learn, and as what, is not clear; {ways}{table}", there_are(schema))
}

/// The columns of these names and prefixes, each once and at least one.
fn matching<'a>(schema: &'a Schema, patterns: &[String]) -> Result<Vec<&'a Field>> {
    let mut fields: Vec<&Field> = Vec::new();
    for pattern in patterns {
        match pattern.strip_suffix('*') {
            None => fields.push(find(schema, pattern)?),
            Some(prefix) => {
                let before = fields.len();
                fields.extend(schema.fields().iter().map(AsRef::as_ref).filter(|f| f.name().starts_with(prefix)));
                if fields.len() == before {
                    return Err(Error::option(format!("no column `{pattern}`; {}", there_are(schema))));
                }
            }
        }
    }
    let mut seen = HashSet::new();
    if let Some(twice) = fields.iter().find(|field| !seen.insert(field.name())) {
        return Err(Error::option(format!("column `{}` is named twice", twice.name())));
    }
    if fields.is_empty() {
        return Err(Error::option("no column to read: name at least one"));
    }
    Ok(fields)
}

fn find<'a>(schema: &'a Schema, name: &str) -> Result<&'a Field> {
    let field = schema.fields().iter().find(|field| field.name() == name);
    field.map(AsRef::as_ref).ok_or_else(|| Error::option(format!("no column `{name}`; {}", there_are(schema))))
}

fn column_info(field: &Field) -> ColumnInfo {
    ColumnInfo { name: field.name().clone(), data_type: field.data_type().to_string() }
}

fn there_are(schema: &Schema) -> String {
    let fields = schema.fields();
    let listed: Vec<String> = fields.iter().take(LISTED).map(|field| column_info(field).to_string()).collect();
    match fields.len() {
        0 => "there are none".into(),
        n if n > LISTED => format!("there are {} and {} more", listed.join(", "), n - LISTED),
        _ => format!("there are {}", listed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, FixedSizeListArray, Float32Array, Int64Array, ListArray, StringArray, StructArray, UInt8Array,
        UInt16Array,
    };
    use arrow::datatypes::{Int64Type, UInt8Type};

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    fn text(items: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(items.to_vec()))
    }

    fn ints(items: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(items.to_vec()))
    }

    fn list() -> ArrayRef {
        let items = [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(-7), Some(7), Some(-8)])];
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(items))
    }

    fn chosen(batch: &RecordBatch) -> Columns {
        Binding::new(&batch.schema(), &Columns::Auto).unwrap().chosen().clone()
    }

    #[test]
    fn without_a_name_the_column_that_can_only_be_meant_is_read() {
        let one = |name: &str| Columns::One(name.into());
        let wide = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>([Some([Some(1)])], 1);
        assert_eq!(chosen(&batch(vec![("id", text(&["a"])), ("snps", Arc::new(wide))])), one("snps"));
        let image: ArrayRef = Arc::new(BinaryArray::from(vec![&b"x"[..]]));
        assert_eq!(chosen(&batch(vec![("image", image.clone()), ("label", ints(&[1]))])), one("image"));
        assert_eq!(chosen(&batch(vec![("png", image), ("label", ints(&[1]))])), one("png"));
        let both = Columns::Many(vec!["b".into(), "a".into()]);
        assert_eq!(chosen(&batch(vec![("b", ints(&[1])), ("a", ints(&[1]))])), both);
    }

    #[test]
    fn who_wants_texts_or_rows_gets_them_and_the_rest_is_left_out() {
        let only = |batch: &RecordBatch, wanted: Wanted| Binding::new(&batch.schema(), &Columns::Only(wanted));
        let table = batch(vec![
            ("title", text(&["a"])),
            ("n", ints(&[1])),
            ("text", text(&["a"])),
            ("m", ints(&[1])),
            ("ids", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)])]))),
        ]);
        assert_eq!(only(&table, Wanted::Text).unwrap().names(), ["text"]);
        assert_eq!(only(&table, Wanted::Lists).unwrap().names(), ["ids"]);
        assert_eq!(only(&table, Wanted::Rows).unwrap().names(), ["ids"]);
        let error = only(&table, Wanted::Images).unwrap_err().to_string();
        assert!(error.starts_with("say which column holds the images; there are `title` (Utf8)"), "{error}");
        let table = batch(vec![("prose", text(&["a"])), ("b", ints(&[1])), ("a", ints(&[1]))]);
        assert_eq!(only(&table, Wanted::Text).unwrap().names(), ["prose"]);
        let rows = only(&table, Wanted::Rows).unwrap();
        let names = |columns: &[ColumnInfo]| columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&rows.reading().read), names(&rows.reading().left_out)),
            (vec!["b".into(), "a".into()], vec!["prose".to_string()])
        );
    }

    #[test]
    fn strings_and_mixed_tables_are_refused_with_what_would_work() {
        let refused = |batch: &RecordBatch| {
            let error = Binding::new(&batch.schema(), &Columns::Auto).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::Option, "{error}");
            error.to_string()
        };
        let error = refused(&batch(vec![("text", text(&["a"]))]));
        assert_eq!(
            error,
            "there are `text` (Utf8): which to learn, and as what, is not clear; say source.column = \"text\" \
             (--column text) for a text, or decode.kind = \"table\" (--table) for columns that mean something each: \
             names, numbers, times"
        );
        let error = refused(&batch(vec![("name", text(&["a"])), ("age", ints(&[1])), ("size", ints(&[1]))]));
        assert!(
            error.contains("(--column name) for a text, or source.columns = [\"age\", \"size\"] (--columns)"),
            "{error}"
        );
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"x"[..]]));
        let error = refused(&batch(vec![("a", bytes.clone()), ("b", bytes)]));
        assert!(error.contains("source.column = \"a\" or another (--column a) for images"), "{error}");
        let two = batch(vec![("a", list()), ("b", list()), ("id", ints(&[1, 2, 3, 4]))]);
        let error = Binding::new(&two.schema(), &Columns::Only(Wanted::Rows)).unwrap_err().to_string();
        assert!(error.starts_with("say which column holds the rows"), "{error}");
        let error = refused(&batch(vec![("a", list()), ("b", list())]));
        assert!(error.contains("source.column = \"a\" or another (--column a) for a list of numbers"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_lists_the_columns_there_are() {
        let two = batch(vec![("question", text(&["a"])), ("answer", text(&["b"]))]);
        let error = Binding::new(&two.schema(), &Columns::Only(Wanted::Text)).unwrap_err().to_string();
        assert_eq!(error, "say which column holds the texts; there are `question` (Utf8), `answer` (Utf8)");
        let error = Binding::new(&two.schema(), &Columns::One("text".into())).unwrap_err().to_string();
        assert_eq!(error, "no column `text`; there are `question` (Utf8), `answer` (Utf8)");
        for wrong in [vec!["x*"], vec!["answer"], vec![], vec!["zz"]] {
            let wrong = Columns::Many(wrong.into_iter().map(String::from).collect());
            assert!(Binding::new(&two.schema(), &wrong).is_err(), "{wrong:?}");
        }
        let twice = batch(vec![("x1", ints(&[1]))]);
        assert!(Binding::new(&twice.schema(), &Columns::Many(vec!["x*".into(), "x1".into()])).is_err());
        let many: Vec<(String, ArrayRef)> = (0..30).map(|i| (format!("t{i}"), text(&["a"]))).collect();
        let many = batch(many.iter().map(|(name, array)| (name.as_str(), array.clone())).collect());
        let error = Binding::new(&many.schema(), &Columns::Only(Wanted::Text)).unwrap_err().to_string();
        assert!(error.ends_with("`t19` (Utf8) and 10 more"), "{error}");
    }

    #[test]
    fn lists_keep_their_nulls_and_name_their_bad_values() {
        let batch = batch(vec![("ids", list())]);
        let binding = Binding::new(&batch.schema(), &Columns::Auto).unwrap();
        assert_eq!(binding.kind(), RecordKind::Lists { width: None, reals: false });
        let (records, bad) = binding.records(&batch).unwrap();
        let Records::Lists(lists) = &records else { panic!("{records:?}") };
        assert_eq!(lists.ends, [2, 2, 2, 5]);
        assert_eq!(lists.values, Values::U32(vec![1, 0, 0, 7, 0]));
        assert_eq!(lists.missing, Some(vec![false, true, false, false, false]));
        let reason = "value 0: -7 is not a category: it is outside 0..=4294967295".to_string();
        assert_eq!(bad, [(1, "null".to_string()), (3, reason)]);
        // A slice of a batch begins in the middle of the values.
        let (records, bad) = binding.records(&batch.slice(2, 2)).unwrap();
        let Records::Lists(lists) = &records else { panic!("{records:?}") };
        assert_eq!((lists.range(1), bad[0].0), (0..3, 1));
        assert_eq!(lists.values, Values::U32(vec![0, 7, 0]));
    }

    #[test]
    fn fixed_lists_know_their_width_and_slices_their_place() {
        let rows = [Some([Some(1), Some(2)]), None, Some([None, Some(4)])];
        let array = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, 2);
        let batch = batch(vec![("x", Arc::new(array))]);
        let binding = Binding::new(&batch.schema(), &Columns::One("x".into())).unwrap();
        assert_eq!(binding.kind(), RecordKind::Lists { width: Some(2), reals: false });
        let (records, bad) = binding.records(&batch.slice(1, 2)).unwrap();
        let Records::Lists(lists) = records else { panic!() };
        assert_eq!((lists.ends.as_slice(), bad.as_slice()), ([2, 4].as_slice(), [(0, "null".into())].as_slice()));
        assert_eq!(lists.values.category(3), Some(4));
        assert!(lists.missing.unwrap()[2]);
    }

    #[test]
    fn many_columns_become_rows_of_the_widest_type() {
        let batch = batch(vec![
            ("x0", Arc::new(UInt8Array::from(vec![Some(1), None])) as ArrayRef),
            ("y", text(&["a", "b"])),
            ("x1", Arc::new(UInt16Array::from(vec![300, 400]))),
        ]);
        let binding = Binding::new(&batch.schema(), &Columns::Many(vec!["x*".into()])).unwrap();
        assert_eq!(binding.names(), ["x0", "x1"]);
        let (records, bad) = binding.records(&batch).unwrap();
        let missing = Some(vec![false, false, true, false]);
        assert_eq!(
            records,
            Records::Lists(Lists { values: Values::U16(vec![1, 300, 0, 400]), ends: vec![2, 4], missing })
        );
        assert!(bad.is_empty());
        let reversed = Binding::new(&batch.schema(), &Columns::Many(vec!["x1".into(), "x0".into()])).unwrap();
        let Records::Lists(lists) = reversed.records(&batch).unwrap().0 else { panic!() };
        assert_eq!(lists.values, Values::U16(vec![300, 1, 400, 0]));
    }

    #[test]
    fn an_image_without_bytes_says_so() {
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"png"[..]), None]));
        let path: ArrayRef = Arc::new(StringArray::from(vec![None, Some("a.png")]));
        let images = StructArray::try_from(vec![("bytes", bytes), ("path", path)]).unwrap();
        let batch = batch(vec![("image", Arc::new(images)), ("label", ints(&[1, 2]))]);
        let binding = Binding::new(&batch.schema(), &Columns::Auto).unwrap();
        assert_eq!(binding.kind(), RecordKind::Image);
        let (records, bad) = binding.records(&batch).unwrap();
        let Records::Blobs(blobs) = records else { panic!() };
        assert_eq!(blobs.get(0), b"png");
        assert_eq!(bad, [(1, "no bytes; only a path is given".to_string())]);
    }

    #[test]
    fn files_agree_on_the_wider_type_or_not_at_all() {
        let bind =
            |array: ArrayRef| Binding::new(&batch(vec![("x", array)]).schema(), &Columns::One("x".into())).unwrap();
        let (mut a, mut b) = (bind(ints(&[1])), bind(Arc::new(Float32Array::from(vec![0.5]))));
        a.agree(&mut b).unwrap();
        assert_eq!(a.kind(), RecordKind::Lists { width: Some(1), reals: true });
        let (records, _) = a.records(&batch(vec![("x", ints(&[3]))])).unwrap();
        assert_eq!(records, Records::Lists(Lists { values: Values::F32(vec![3.0]), ends: vec![1], missing: None }));
        let error = bind(list()).agree(&mut bind(text(&["a"]))).unwrap_err().to_string();
        assert_eq!(error, "column `x`: expected lists of numbers, found text");
        let wide = |n: i32| {
            let rows = [Some(vec![Some(0); n as usize])];
            bind(Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, n)))
        };
        assert!(wide(2).agree(&mut wide(3)).is_err());
        let (mut fixed, mut free) = (wide(2), bind(list()));
        fixed.agree(&mut free).unwrap();
        assert_eq!((fixed.kind(), free.kind()), (free.kind(), RecordKind::Lists { width: None, reals: false }));
    }
}
