//! JSON lines with all their columns. Read twice: which columns there are, and what they hold, is known once all lines
//! were seen.
//!
//! A column of numbers, texts, truths or lists of numbers is that; any other has its values as JSON text. What is
//! absent is null.

use std::fmt;
use std::io::Read;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::super::json_shape::{BYTE_ORDER_MARK, in_line};
use super::super::lines::{Line, Lines};
use super::super::store::{Shard, read_error};
use super::super::unpacked::unpacked;
use super::found::{Column, DoesNotFit, Found, Kind, columns_of, rows_of};
use super::{FileRows, ReadLimits};
use crate::error::{Error, Result};

/// Rows that are read at a time.
const ROWS_AT_ONCE: usize = 1024;

pub(super) struct JsonRows {
    name: String,
    lines: Lines,
    found: Found,
    schema: SchemaRef,
    num_rows: u64,
    /// Rows of the second pass so far.
    read: u64,
    piece_bytes: usize,
}

impl JsonRows {
    /// Looks at all lines.
    pub async fn open(shard: &Shard, limits: ReadLimits) -> Result<Self> {
        let (first, again) = (unpacked(shard)?, unpacked(shard)?);
        let (name, piece_bytes) = (shard.name().to_string(), limits.piece_bytes);
        let look = move || {
            let most = usize::try_from(limits.record_bytes).unwrap_or(usize::MAX);
            let lines_of = |input: Box<dyn Read + Send>| Lines::new(input, 0, most);
            let (mut lines, mut found, mut num_rows) = (lines_of(first), Found::default(), 0);
            while let Some((object, _)) = next_object(&mut lines, &name, num_rows)? {
                for (key, value) in &object.0 {
                    let column = found.place(key).map_err(|error| error.at_row(num_rows).at(&name))?;
                    if let Some(kind) = kind_of(value) {
                        found.see(column, kind);
                    }
                }
                num_rows += 1;
            }
            if found.width() == 0 {
                return Err(Error::data(format!("{name}: no line with a column in it")));
            }
            let (lines, schema) = (lines_of(again), found.schema());
            Ok(Self { name, lines, found, schema, num_rows, read: 0, piece_bytes })
        };
        // It waits for bytes: not on a thread that drives others.
        tokio::task::spawn_blocking(look).await.map_err(|e| Error::internal(format!("looking at a file: {e}")))?
    }
}

impl FileRows for JsonRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn found(&self) -> Option<&Found> {
        Some(&self.found)
    }

    fn widen(&mut self, all: &Found) {
        // A column that another file has is absent here.
        self.found = all.clone();
        self.schema = self.found.schema();
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut columns = columns_of(&self.schema);
        let (mut num_rows, mut bytes) = (0, 0);
        let changed = |name: &str, row: u64| {
            let what = "is not as it was when the file was opened: it changed while it was read";
            Error::data(what).at_row(row).at(name)
        };
        while num_rows < ROWS_AT_ONCE
            && bytes < self.piece_bytes
            && let Some((object, length)) = next_object(&mut self.lines, &self.name, self.read)?
        {
            // From the last: of two values under one key the last counts.
            for (key, value) in object.0.iter().rev() {
                let Some(at) = self.found.find(key) else { return Err(changed(&self.name, self.read)) };
                if columns[at].len() == num_rows {
                    push(&mut columns[at], value).map_err(|DoesNotFit| changed(&self.name, self.read))?;
                }
            }
            num_rows += 1;
            self.read += 1;
            bytes += length;
            columns.iter_mut().filter(|column| column.len() < num_rows).for_each(Column::push_null);
        }
        match num_rows {
            0 if self.read < self.num_rows => Err(changed(&self.name, self.read)),
            0 => Ok(None),
            _ => rows_of(&self.schema, &mut columns).map(Some),
        }
    }
}

/// An object with its keys in their order, which is that of the columns.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }
        json.deserialize_map(Look)
    }
}

/// The next line that is not blank, and how long it is.
fn next_object(lines: &mut Lines, name: &str, number: u64) -> Result<Option<(Object, usize)>> {
    loop {
        let most = lines.max_line_bytes();
        let line = lines.next().map_err(|error| read_error(&format!("{name}: row {number}"), &error))?;
        let Some((offset, line)) = line else { return Ok(None) };
        let bad = |why: String| Error::data(why).at_row(number).at(name);
        let Line::Whole(line) = line else { return Err(bad(format!("a line of more than {most} bytes is too long"))) };
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| offset == 0).unwrap_or(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let object = serde_json::from_slice(line).map_err(|e| bad(format!("not a JSON object: {}", in_line(&e))))?;
        return Ok(Some((object, line.len())));
    }
}

/// What a value is; `None` for nothing.
fn kind_of(value: &Value) -> Option<Kind> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) => Kind::Bool,
        Value::Number(number) if number.is_i64() => Kind::Int,
        Value::Number(_) => Kind::Float,
        Value::String(_) | Value::Object(_) => Kind::Text,
        Value::Array(items) => {
            let mut kind = Kind::EmptyList;
            for item in items {
                kind = match (kind_of(item), kind) {
                    (None, kind) => kind,
                    (Some(Kind::Int), Kind::EmptyList | Kind::Ints) => Kind::Ints,
                    (Some(Kind::Int | Kind::Float), _) => Kind::Floats,
                    (Some(_), _) => return Some(Kind::Text),
                };
            }
            kind
        }
    })
}

fn push(column: &mut Column, value: &Value) -> std::result::Result<(), DoesNotFit> {
    match (column, value) {
        (column, Value::Null) => column.push_null(),
        (Column::Bool(truths), Value::Bool(truth)) => truths.append_value(*truth),
        (Column::Int(numbers), Value::Number(number)) => numbers.append_value(number.as_i64().ok_or(DoesNotFit)?),
        (Column::Float(numbers), Value::Number(number)) => numbers.append_value(number.as_f64().ok_or(DoesNotFit)?),
        (Column::Text(texts), Value::String(text)) => texts.append_value(text),
        (Column::Text(texts), other) => texts.append_value(other.to_string()),
        (Column::Ints(lists), Value::Array(items)) => {
            for item in items {
                let number = if item.is_null() { None } else { Some(item.as_i64().ok_or(DoesNotFit)?) };
                lists.values().append_option(number);
            }
            lists.append(true);
        }
        (Column::Floats(lists), Value::Array(items)) => {
            for item in items {
                let number = if item.is_null() { None } else { Some(item.as_f64().ok_or(DoesNotFit)?) };
                lists.values().append_option(number);
            }
            lists.append(true);
        }
        _ => return Err(DoesNotFit),
    }
    Ok(())
}
