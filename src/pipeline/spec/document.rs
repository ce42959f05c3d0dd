//! The text of a pipeline, before it means anything: values by their dotted path, and where each was written.
//!
//! The only place that knows `toml`. Values are JSON values, because that is what optimizers and sources are described
//! in; `section` gives them types, `overrides` changes them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Result};

/// Values of a pipeline as they were written.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// What messages call it: a file name.
    name: String,
    root: Map<String, Value>,
    /// Where each value was written, by its path.
    places: BTreeMap<String, WrittenAt>,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WrittenAt {
    /// A line of the file, from 1.
    Line(usize),
    /// The flag that said it, as it is typed.
    Flag(String),
    /// A line of another file, which this one was changed by.
    Elsewhere(String),
}

impl Document {
    /// A pipeline without a file, to be filled by flags.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), root: Map::new(), places: BTreeMap::new() }
    }

    /// Reads TOML.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let mut document = Self::new(name);
        let line =
            |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&b| b == b'\n').count();
        let refuse = |offset: usize, why: &str| Error::option(format!("{name}:{}: {why}", line(offset)));
        let table = DeTable::parse(text).map_err(|e| {
            let why = e.message().replace('\n', "; ");
            refuse(e.span().map_or(0, |span| span.start), &why)
        })?;
        document.root = convert_table(table.get_ref(), "", &mut |path, offset| {
            document.places.insert(path.to_string(), WrittenAt::Line(line(offset)));
        })
        .map_err(|(offset, why)| refuse(offset, &why))?;
        Ok(document)
    }

    /// The value at a dotted path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.root.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.as_object()?.get(part))
    }

    /// The whole.
    pub fn root(&self) -> &Map<String, Value> {
        &self.root
    }

    /// Puts a value at a dotted path, in place of what was there. `flag` is what said so.
    pub fn set(&mut self, path: &str, value: Value, flag: &str) -> Result<()> {
        let (parents, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut table = &mut self.root;
        let mut walked = String::new();
        for part in parents.split('.').filter(|part| !part.is_empty()) {
            walked = if walked.is_empty() { part.to_string() } else { format!("{walked}.{part}") };
            let entry = table.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let written = describe(entry);
            let Some(inner) = entry.as_object_mut() else {
                return Err(Error::option(format!("{flag}: `{walked}` is {written}, it has no key inside")));
            };
            table = inner;
        }
        table.insert(key.to_string(), value);
        // What was written below it is gone with it.
        let below = format!("{path}.");
        self.places.retain(|place, _| place != path && !place.starts_with(&below));
        self.places.insert(path.to_string(), WrittenAt::Flag(flag.to_string()));
        Ok(())
    }

    /// Only the table `name` of the table `parent`, at a path that has no surprises in it.
    pub fn renamed(&self, parent: &str, name: &str, path: &str) -> Self {
        let mut part = Self::new(&self.name);
        let value = self.get(parent).and_then(|table| table.get(name)).cloned();
        let (outer, inner) = path.split_once('.').unwrap_or(("", path));
        let inside = Map::from_iter([(inner.to_string(), value.unwrap_or_default())]);
        part.root.insert(outer.to_string(), Value::Object(inside));
        let old = format!("{parent}.{name}");
        for (place, at) in &self.places {
            if let Some(rest) = place.strip_prefix(&old).filter(|rest| rest.is_empty() || rest.starts_with('.')) {
                part.places.insert(format!("{path}{rest}"), at.clone());
            }
        }
        part
    }

    /// Takes out a value. Returns true if it was there.
    pub fn remove(&mut self, path: &str) -> bool {
        let (parents, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut table = Some(&mut self.root);
        for part in parents.split('.').filter(|part| !part.is_empty()) {
            table = table.and_then(|table| table.get_mut(part)?.as_object_mut());
        }
        self.places.remove(path);
        table.is_some_and(|table| table.remove(key).is_some())
    }

    /// Takes everything that was set so far for written: what is set from now on comes on top of it.
    pub fn settle(&mut self) {
        for place in self.places.values_mut() {
            if let WrittenAt::Flag(flag) = place {
                *place = WrittenAt::Elsewhere(std::mem::take(flag));
            }
        }
    }

    /// Returns true if a flag, and not the file, said it.
    pub fn is_from_flag(&self, path: &str) -> bool {
        matches!(self.places.get(path), Some(WrittenAt::Flag(_)))
    }

    /// The keys of the table at a dotted path, in the order they were written.
    pub fn keys_in_order(&self, path: &str) -> Vec<String> {
        let Some(table) = self.get(path).and_then(Value::as_object) else { return Vec::new() };
        let mut keys: Vec<String> = table.keys().cloned().collect();
        keys.sort_by_key(|key| match self.places.get(&format!("{path}.{key}")) {
            Some(WrittenAt::Line(line)) => *line,
            Some(WrittenAt::Flag(_) | WrittenAt::Elsewhere(_)) | None => usize::MAX,
        });
        keys
    }

    /// Where to look for a value or for what is missing there: `file.toml:12`, or the flag.
    pub fn place(&self, path: &str) -> String {
        let mut at = path;
        loop {
            match self.places.get(at) {
                Some(WrittenAt::Line(line)) => return format!("{}:{line}", self.name),
                Some(WrittenAt::Flag(said) | WrittenAt::Elsewhere(said)) => return said.clone(),
                None => match at.rsplit_once('.') {
                    Some((parent, _)) => at = parent,
                    None => return self.name.clone(),
                },
            }
        }
    }
}

/// Reads one TOML value: `0.5`, `"text"`, `[1, 2]`, `{ schedule = "constant", step = 0.1 }`.
pub(crate) fn parse_value(text: &str) -> Result<Value> {
    let value = DeValue::parse(text).map_err(|e| Error::option(e.message().replace('\n', "; ")))?;
    convert(value.get_ref(), 0, "", &mut |_, _| ()).map_err(|(_, why)| Error::option(why))
}

/// Writes one TOML value in a line, as [`parse_value`] reads it.
pub(crate) fn inline(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", list(items.iter().map(inline).collect())),
        Value::Object(table) => {
            let items = table.iter().map(|(key, value)| format!("{key} = {}", inline(value)));
            format!("{{ {} }}", list(items.collect()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Writes TOML, keys in the order of the fields.
pub(crate) fn write<T: Serialize>(value: &T) -> Result<String> {
    toml::to_string(value).map_err(|e| Error::internal(format!("the pipeline cannot be written as TOML: {e}")))
}

/// What a value is, for messages.
pub(crate) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// A byte offset and what is wrong there.
type Wrong = (usize, String);

fn convert_table(
    table: &DeTable<'_>,
    path: &str,
    note: &mut dyn FnMut(&str, usize),
) -> std::result::Result<Map<String, Value>, Wrong> {
    let mut map = Map::new();
    for (key, value) in table {
        let inside = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
        note(&inside, key.span().start);
        map.insert(key.get_ref().to_string(), convert(value.get_ref(), value.span().start, &inside, note)?);
    }
    Ok(map)
}

fn convert(
    value: &DeValue<'_>,
    offset: usize,
    path: &str,
    note: &mut dyn FnMut(&str, usize),
) -> std::result::Result<Value, Wrong> {
    let number = |text: &str, number: Option<Number>| {
        number.map(Value::Number).ok_or_else(|| (offset, format!("{path} = {text}: is no number that fits")))
    };
    match value {
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Boolean(truth) => Ok(Value::Bool(*truth)),
        DeValue::Integer(integer) => {
            number(integer.as_str(), i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(Number::from))
        }
        // JSON has neither infinity nor NaN, and no option wants them.
        DeValue::Float(float) => number(float.as_str(), float.as_str().parse().ok().and_then(Number::from_f64)),
        DeValue::Datetime(date) => {
            Err((offset, format!("{path} = {date}: no key takes a date; write a text in quotes")))
        }
        DeValue::Array(items) => {
            let items = items.iter().map(|item| convert(item.get_ref(), item.span().start, path, note));
            Ok(Value::Array(items.collect::<std::result::Result<_, _>>()?))
        }
        DeValue::Table(table) => Ok(Value::Object(convert_table(table, path, note)?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = "name = \"x\"\n\n[source]\nfiles = [\n  \"a\",\n  \"b\",\n]\n[learn]\nstep = { from = 0.5 }\n";

    #[test]
    fn values_are_found_by_path_and_know_their_lines() {
        let document = Document::parse(TEXT, "p.toml").unwrap();
        assert_eq!(document.get("source.files"), Some(&json!(["a", "b"])));
        assert_eq!(document.get("learn.step.from"), Some(&json!(0.5)));
        assert_eq!(document.get("learn.step.to"), None);
        for (path, place) in [
            ("name", "p.toml:1"),
            ("source.files", "p.toml:4"),
            ("learn.step.from", "p.toml:9"),
            ("other.key", "p.toml"),
        ] {
            assert_eq!(document.place(path), place, "{path}");
        }
        // What is missing is missing in its section.
        assert_eq!(document.place("learn.epochs"), "p.toml:8");
    }

    #[test]
    fn a_value_that_was_set_names_its_flag_and_replaces_what_was_below() {
        let mut document = Document::parse(TEXT, "p.toml").unwrap();
        document.set("learn.step", json!(0.1), "--set learn.step").unwrap();
        document.set("batch.rows", json!(7), "--batch-rows").unwrap();
        assert_eq!(document.get("learn.step"), Some(&json!(0.1)));
        assert_eq!(document.place("learn.step.from"), "--set learn.step");
        assert_eq!(document.place("batch.rows"), "--batch-rows");
        assert!(document.is_from_flag("batch.rows") && !document.is_from_flag("name"));
        let error = document.set("name.first", json!(1), "--set name.first").unwrap_err();
        assert_eq!(error.to_string(), "--set name.first: `name` is a text, it has no key inside");
        document.settle();
        assert!(!document.is_from_flag("batch.rows"));
        assert_eq!(document.place("batch.rows"), "--batch-rows");
        assert!(document.remove("batch.rows") && !document.remove("batch.rows"));
    }

    #[test]
    fn text_that_is_no_toml_names_its_line() {
        for (text, words) in [
            ("a = 1\nb = \n", "p.toml:2: "),
            ("a = 1\n\na = 2\n", "p.toml:3: "),
            ("a = 99999999999999999999", "p.toml:1: a = 99999999999999999999: is no number that fits"),
            ("\n[b]\na = nan", "p.toml:3: b.a = nan: is no number that fits"),
            ("a = [1, inf]", "p.toml:1: a = inf"),
            ("a = 1979-05-27", "p.toml:1: a = 1979-05-27: no key takes a date"),
            ("\u{0}", "p.toml:1: "),
        ] {
            let error = Document::parse(text, "p.toml").unwrap_err().to_string();
            assert!(error.starts_with(words), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn numbers_keep_their_kind() {
        assert_eq!(parse_value("0x10").unwrap(), json!(16));
        assert_eq!(parse_value("1_000").unwrap(), json!(1000));
        assert_eq!(parse_value("1.0").unwrap(), json!(1.0));
        assert_eq!(parse_value("{ a = [1, true] }").unwrap(), json!({"a": [1, true]}));
        assert!(parse_value("full_batch_em").is_err());
        for text in ["0.5", "\"a\"", "[1, 2]", "{ from = 0.4, schedule = \"cosine\", to = 0.1 }"] {
            assert_eq!(inline(&parse_value(text).unwrap()), text);
        }
    }
}
