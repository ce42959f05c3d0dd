//! What JSON lines mean: decided from the first ones and from what was asked for, before anything is learned.
//!
//! A record is a text under a key, a list of numbers under a key, the line itself where it is a list of numbers, or
//! named columns of an object: of numbers, or of cells with their types where a table is asked for. Where several of
//! these are possible nothing is guessed: the error says what would work. Where nothing is said, a text under `text` is
//! meant, else the only list, else all columns if all are numbers. Values that are `null`, and keys that are absent,
//! are missing values of a row.
//!
//! What holds for a line that does not fit is said in `json_records`, which makes records by a shape. Used by `jsonl`,
//! `json_lines` (standard input), `follow`, and brokers whose messages are JSON.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::columns::{ColumnInfo, Columns, Reading, RecordKind, Wanted};
use super::json_records::JsonRecords;
use crate::error::{Error, Result};

/// How many columns an error lists before it stops.
const LISTED: usize = 20;

/// The key that holds the text where nothing is said.
const TEXT: &str = "text";

/// How the JSON value of a record is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonShape {
    pub(super) form: Form,
    /// Numbers are real ones whatever a record holds: the first lines have a fraction, or a negative number.
    pub(super) reals: bool,
    reading: Reading,
}

/// What a record is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The text under a key.
    Text(String),
    /// The list of numbers under a key. The width is that of all first lines, if they agree.
    List { key: String, width: Option<usize> },
    /// The line is a list of numbers.
    Line { width: Option<usize> },
    /// A number per column. If `all` were taken without being named, a column that is none of the first lines' says
    /// that the schema has changed.
    Columns { names: Vec<String>, all: bool },
    /// A cell per column: the same with texts, numbers, truths and nulls as they are.
    Cells { names: Vec<String>, all: bool },
}

impl JsonShape {
    /// Decides what lines mean by the first of them. Blank lines and lines that are not JSON decide nothing: if there
    /// is no other, what was asked for does, as far as it can.
    pub fn find(first_lines: &[&[u8]], columns: &Columns) -> Result<Self> {
        let mut fields: Vec<Field> = Vec::new();
        let (mut is_list, mut lists, mut trouble) = (None, Found::default(), None);
        for line in first_lines.iter().filter(|line| !line.trim_ascii().is_empty()) {
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            match serde_json::from_slice::<Value>(line) {
                Ok(Value::Object(object)) if is_list != Some(true) => {
                    is_list = Some(false);
                    for (name, value) in object {
                        match fields.iter_mut().find(|field| field.name == name) {
                            Some(field) => field.found.add(&value),
                            None => fields.push(Field { name, found: Found::of(&value) }),
                        }
                    }
                }
                Ok(value @ Value::Numbers { .. }) if is_list != Some(false) => {
                    is_list = Some(true);
                    lists.add(&value);
                }
                Ok(value) => {
                    let what = value.words();
                    trouble.get_or_insert(format!("the first line is {what}, not an object or a list of numbers"));
                }
                Err(error) => {
                    trouble.get_or_insert(format!("the first line is not JSON: {}", in_line(&error)));
                }
            }
        }
        match is_list {
            Some(false) => of_objects(&fields, columns),
            Some(true) => of_lists(&lists, columns),
            None => of_nothing(columns, &trouble.unwrap_or_else(|| "there is no line to look at".into())),
        }
    }

    /// Texts under a key, whatever the first lines are.
    pub fn texts(key: &str) -> Self {
        let reading = Reading { read: vec![column(key, "text")], left_out: Vec::new() };
        Self { form: Form::Text(key.into()), reals: false, reading }
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        match &self.form {
            Form::Text(_) => RecordKind::Text,
            Form::List { width, .. } | Form::Line { width } => RecordKind::Lists { width: *width, reals: self.reals },
            Form::Columns { names, .. } => RecordKind::Lists { width: Some(names.len()), reals: self.reals },
            Form::Cells { names, .. } => RecordKind::Cells { width: names.len() },
        }
    }

    /// Returns true if all records have as many numbers as the kind says, not only those of the first lines.
    pub(super) fn has_fixed_width(&self) -> bool {
        matches!(self.form, Form::Columns { .. } | Form::Cells { .. })
    }

    /// Which keys are learned from, and which of the first lines' are not; neither where a line is a list.
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// What decides which records there are, for manifests. Whether numbers are real is no part of it: decoders say so.
    pub fn identity(&self) -> String {
        match &self.form {
            Form::Text(key) => key.clone(), // what it always was
            Form::List { key, .. } => format!("list {key:?}"),
            Form::Line { .. } => "lines that are lists".into(),
            Form::Columns { names, .. } => format!("columns {names:?}"),
            Form::Cells { names, .. } => format!("cells {names:?}"),
        }
    }

    /// Room for records of this shape.
    pub fn records(&self) -> JsonRecords {
        JsonRecords::new(self)
    }

    /// The columns of the first lines that are not learned from.
    pub(super) fn left_out(&self) -> HashSet<String> {
        self.reading.left_out.iter().map(|column| column.name.clone()).collect()
    }
}

/// Some editors begin a file with it; it is not JSON.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What a parser says, without the number of the line, which is always 1 to it.
pub(super) fn in_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", " at column")
}

/// A key of the first lines and what is under it.
struct Field {
    name: String,
    found: Found,
}

/// What values there are under one key.
#[derive(Default)]
struct Found {
    numbers: bool,
    texts: bool,
    lists: bool,
    other: Option<&'static str>,
    reals: bool,
    /// How long lists are; `Some(None)` if not all are as long.
    width: Option<Option<usize>>,
}

impl Found {
    fn of(value: &Value) -> Self {
        let mut found = Self::default();
        found.add(value);
        found
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Null => {}
            Value::Number { is_real } => {
                self.numbers = true;
                self.reals |= is_real;
            }
            Value::Text => self.texts = true,
            Value::Numbers { width, reals } => {
                self.lists = true;
                self.reals |= reals;
                let all = self.width.get_or_insert(Some(*width));
                *all = all.filter(|all| all == width);
            }
            Value::Object(_) => self.other = Some("an object"),
            Value::OtherList => self.other = Some("a list of other things than numbers"),
        }
    }

    fn is(&self, numbers: bool, texts: bool, lists: bool) -> bool {
        (self.numbers, self.texts, self.lists, self.other) == (numbers, texts, lists, None)
    }

    /// A number, or nothing that says otherwise.
    fn is_number(&self) -> bool {
        self.is(true, false, false) || self.is_null()
    }

    /// A single value in each line.
    fn is_cell(&self) -> bool {
        !self.lists && self.other.is_none()
    }

    /// Single values, or nothing that says otherwise: whoever names a column may have some lines without one.
    fn has_cells(&self) -> bool {
        self.is_cell() || self.numbers || self.texts
    }

    fn is_text(&self) -> bool {
        self.is(false, true, false)
    }

    fn is_list(&self) -> bool {
        self.is(false, false, true)
    }

    fn is_null(&self) -> bool {
        self.is(false, false, false)
    }

    fn words(&self) -> &'static str {
        match (self.numbers, self.texts, self.lists, self.other) {
            (true, false, false, None) => "number",
            (false, true, false, None) => "text",
            (false, false, true, None) => "list of numbers",
            (false, false, false, None) => "null",
            (false, false, false, Some("an object")) => "object",
            (false, false, false, Some(_)) => "list of other things than numbers",
            _ => "values of several types",
        }
    }
}

fn of_objects(fields: &[Field], columns: &Columns) -> Result<JsonShape> {
    let form = match columns {
        Columns::Auto => choose(fields).ok_or_else(|| Error::option(what_would_work(fields)))?,
        Columns::Only(wanted) => choose_only(fields, *wanted)?,
        // What was always meant where nothing was said: lines without it are bad records, not a mistake of the user.
        Columns::One(name) if name == TEXT && fields.iter().all(|field| field.name != TEXT) => Form::Text(name.clone()),
        Columns::One(name) => one(find(fields, name)?)?,
        Columns::Many(names) => Form::Columns { names: many(fields, names, Found::is_number, "a number")?, all: false },
        Columns::Cells(names) if names.is_empty() => Form::Cells { names: all_cells(fields)?, all: true },
        Columns::Cells(names) => {
            // A key that is not in every line is missing where it is not there, and so in the first ones.
            let is_absent = |name: &String| !name.ends_with('*') && fields.iter().all(|field| field.name != *name);
            let there: Vec<String> = names.iter().filter(|name| !is_absent(name)).cloned().collect();
            let found = many(fields, if there.is_empty() { names } else { &there }, Found::has_cells, ONE_VALUE)?;
            let has_patterns = names.iter().any(|name| name.ends_with('*'));
            Form::Cells { names: if has_patterns { found } else { names.clone() }, all: false }
        }
    };
    let names: Vec<&str> = match &form {
        Form::Text(key) | Form::List { key, .. } => vec![key],
        Form::Line { .. } => Vec::new(),
        Form::Columns { names, .. } | Form::Cells { names, .. } => names.iter().map(String::as_str).collect(),
    };
    let field = |name: &str| fields.iter().find(|field| field.name == name);
    let reals = names.iter().filter_map(|name| field(name)).any(|field| field.found.reals);
    let left_out = fields.iter().filter(|field| !names.contains(&field.name.as_str()));
    let read = names.iter().map(|name| field(name).map_or_else(|| column(name, "null"), info)).collect();
    let reading = Reading { read, left_out: left_out.map(info).collect() };
    Ok(JsonShape { form, reals, reading })
}

/// What a column of a table holds.
const ONE_VALUE: &str = "a single value per row";

/// What a user who says nothing must mean.
fn choose(fields: &[Field]) -> Option<Form> {
    let text = fields.iter().find(|field| field.name == TEXT && field.found.texts);
    text.map(|field| Form::Text(field.name.clone())).or_else(|| only_list(fields)).or_else(|| {
        let are_numbers = fields.iter().all(|field| field.found.is_number());
        are_numbers.then(|| all_numbers(fields)).flatten()
    })
}

/// What a user who wants such records, and names no key, must mean.
fn choose_only(fields: &[Field], wanted: Wanted) -> Result<Form> {
    let (chosen, what) = match wanted {
        Wanted::Text => {
            let mut texts = fields.iter().filter(|field| field.found.is_text());
            let named = fields.iter().find(|field| field.name == TEXT && field.found.texts);
            let only = texts.next().filter(|_| texts.next().is_none());
            (named.or(only).map(|field| Form::Text(field.name.clone())), "texts")
        }
        Wanted::Images => return Err(no_images()),
        Wanted::Rows => {
            let has_list = fields.iter().any(|field| field.found.is_list());
            (only_list(fields).or_else(|| (!has_list).then(|| all_numbers(fields)).flatten()), "rows")
        }
        Wanted::Lists => (only_list(fields), "lists of numbers"),
    };
    chosen.ok_or_else(|| Error::option(format!("say which column holds the {what}; {}", there_are(fields))))
}

fn no_images() -> Error {
    Error::unsupported("decode.kind = \"image\": JSON lines hold no image files; Parquet does")
}

fn only_list(fields: &[Field]) -> Option<Form> {
    let mut lists = fields.iter().filter(|field| field.found.is_list());
    let first = lists.next().filter(|_| lists.next().is_none())?;
    Some(list_of(first))
}

fn list_of(field: &Field) -> Form {
    Form::List { key: field.name.clone(), width: field.found.width.flatten() }
}

/// All columns of numbers; `None` if none is known to be one.
fn all_numbers(fields: &[Field]) -> Option<Form> {
    let numbers = fields.iter().filter(|field| field.found.is_number());
    let names: Vec<String> = numbers.map(|field| field.name.clone()).collect();
    fields.iter().any(|field| field.found.numbers).then_some(Form::Columns { names, all: true })
}

fn one(field: &Field) -> Result<Form> {
    let (name, found) = (&field.name, &field.found);
    if found.is_null() {
        return Err(Error::option(format!(
            "column `{name}` is null in the first lines, so what it holds is not known: source.columns = [\"{name}\"] \
             (--columns {name}) reads numbers, some of which are missing"
        )));
    }
    match () {
        // The first text says what is meant; what is not one is a bad record.
        () if found.texts => Ok(Form::Text(name.clone())),
        () if found.is_list() => Ok(list_of(field)),
        () if found.is_number() => Ok(Form::Columns { names: vec![name.clone()], all: false }),
        () => {
            Err(Error::data(format!("column `{name}` is {}: neither text, list of numbers nor number", found.words())))
        }
    }
}

/// Every column that has a single value in each line. What is nested in one line may be so in the others.
fn all_cells(fields: &[Field]) -> Result<Vec<String>> {
    let cells = fields.iter().filter(|field| field.found.is_cell());
    let names: Vec<String> = cells.map(|field| field.name.clone()).collect();
    if names.is_empty() {
        return Err(Error::data(format!("no column has a single value per row; {}", there_are(fields))));
    }
    Ok(names)
}

/// The columns of these names and prefixes, each once and all of them wanted.
fn many(fields: &[Field], patterns: &[String], is_wanted: fn(&Found) -> bool, wanted: &str) -> Result<Vec<String>> {
    let mut found: Vec<&Field> = Vec::new();
    for pattern in patterns {
        match pattern.strip_suffix('*') {
            None => found.push(find(fields, pattern)?),
            Some(prefix) => {
                let before = found.len();
                found.extend(fields.iter().filter(|field| field.name.starts_with(prefix)));
                if found.len() == before {
                    return Err(Error::option(format!("no column `{pattern}`; {}", there_are(fields))));
                }
            }
        }
    }
    let mut seen = HashSet::new();
    for field in &found {
        if !seen.insert(&field.name) {
            return Err(Error::option(format!("column `{}` is named twice", field.name)));
        }
        if !is_wanted(&field.found) {
            return Err(Error::data(format!("column `{}` is {}, not {wanted}", field.name, field.found.words())));
        }
    }
    if found.is_empty() {
        return Err(Error::option("no column to read: name at least one"));
    }
    Ok(found.into_iter().map(|field| field.name.clone()).collect())
}

fn of_lists(lists: &Found, columns: &Columns) -> Result<JsonShape> {
    let refuse = |what: String| Err(Error::option(format!("the lines are lists of numbers: they have no {what}")));
    match columns {
        Columns::Auto | Columns::Only(Wanted::Rows | Wanted::Lists) => {
            let form = Form::Line { width: lists.width.flatten() };
            Ok(JsonShape { form, reals: lists.reals, reading: Reading::default() })
        }
        Columns::Only(Wanted::Text) => refuse("texts".into()),
        Columns::Only(Wanted::Images) => Err(no_images()),
        Columns::One(name) => refuse(format!("column `{name}`")),
        Columns::Many(names) => refuse(format!("columns `{}`…", names.first().map_or("", String::as_str))),
        Columns::Cells(_) => refuse("columns".into()),
    }
}

/// Where no line can be looked at: what was asked for decides, if it can mean one thing. The lines are bad records
/// then, each with its reason, and what that means is the policy's business (`on_bad`).
fn of_nothing(columns: &Columns, trouble: &str) -> Result<JsonShape> {
    match columns {
        Columns::Auto | Columns::Only(Wanted::Text) => Ok(JsonShape::texts(TEXT)),
        Columns::One(name) => Ok(JsonShape::texts(name)),
        Columns::Many(names) if !names.is_empty() && names.iter().all(|name| !name.ends_with('*')) => {
            let read = names.iter().map(|name| column(name, "number")).collect();
            let form = Form::Columns { names: names.clone(), all: false };
            Ok(JsonShape { form, reals: false, reading: Reading { read, left_out: Vec::new() } })
        }
        Columns::Cells(names) if !names.is_empty() && names.iter().all(|name| !name.ends_with('*')) => {
            let read = names.iter().map(|name| column(name, "null")).collect();
            let form = Form::Cells { names: names.clone(), all: false };
            Ok(JsonShape { form, reals: false, reading: Reading { read, left_out: Vec::new() } })
        }
        Columns::Only(Wanted::Images) => Err(no_images()),
        _ => Err(Error::data(format!("{trouble}: what its lines are made of cannot be told"))),
    }
}

fn find<'a>(fields: &'a [Field], name: &str) -> Result<&'a Field> {
    let field = fields.iter().find(|field| field.name == name);
    field.ok_or_else(|| Error::option(format!("no column `{name}` in the first lines; {}", there_are(fields))))
}

fn info(field: &Field) -> ColumnInfo {
    column(&field.name, field.found.words())
}

fn column(name: &str, data_type: &str) -> ColumnInfo {
    ColumnInfo { name: name.into(), data_type: data_type.into() }
}

fn there_are(fields: &[Field]) -> String {
    let listed: Vec<String> = fields.iter().take(LISTED).map(|field| info(field).to_string()).collect();
    match fields.len() {
        0 => "there are none".into(),
        n if n > LISTED => format!("there are {} and {} more", listed.join(", "), n - LISTED),
        _ => format!("there are {}", listed.join(", ")),
    }
}

/// In one sentence, what can be learned of objects from which nothing can be chosen without being told.
fn what_would_work(fields: &[Field]) -> String {
    let mut ways = Vec::new();
    let mut one_of = |is_wanted: fn(&Found) -> bool, what: &str| {
        let mut names = fields.iter().filter(|field| is_wanted(&field.found)).map(|field| &field.name);
        if let Some(name) = names.next() {
            let other = if names.next().is_some() { " or another" } else { "" };
            ways.push(format!("source.column = \"{name}\"{other} (--column {name}) for {what}"));
        }
    };
    one_of(Found::is_text, "a text");
    one_of(Found::is_list, "a list of numbers");
    let numbers: Vec<String> =
        fields.iter().filter(|field| field.found.is_number()).map(|field| format!("\"{}\"", field.name)).collect();
    if !numbers.is_empty() {
        let more = if numbers.len() > LISTED { ", …" } else { "" };
        let shown = numbers[..numbers.len().min(LISTED)].join(", ");
        ways.push(format!("source.columns = [{shown}{more}] (--columns) for numbers side by side"));
    }
    let ways =
        if ways.is_empty() { "none of them can be learned".into() } else { format!("say {}", ways.join(", or ")) };
    format!(
        "{}: which to learn, and as what, is not clear; {ways}, or decode.kind = \"table\" (--table) for \
         columns that mean something each",
        there_are(fields)
    )
}

/// A JSON value as far as its type decides anything. Keys of objects keep their order.
enum Value {
    Null,
    /// A number or a truth value.
    Number {
        is_real: bool,
    },
    Text,
    /// A list of numbers, some perhaps `null`.
    Numbers {
        width: usize,
        reals: bool,
    },
    OtherList,
    Object(Vec<(String, Value)>),
}

impl Value {
    fn words(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Number { .. } => "a number",
            Self::Text => "a text",
            Self::Numbers { .. } => "a list of numbers",
            Self::OtherList => "a list of other things than numbers",
            Self::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: de::Error>(self) -> std::result::Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> std::result::Result<Value, E> {
                Ok(Value::Number { is_real: false })
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<Value, E> {
                Ok(Value::Number { is_real: value > u64::from(u32::MAX) })
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> std::result::Result<Value, E> {
                Ok(Value::Number { is_real: true })
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> std::result::Result<Value, E> {
                Ok(Value::Number { is_real: true })
            }

            fn visit_str<E: de::Error>(self, _: &str) -> std::result::Result<Value, E> {
                Ok(Value::Text)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
                let (mut width, mut reals) = (0, false);
                while let Some(item) = items.next_element::<Value>()? {
                    match item {
                        Value::Number { is_real } => reals |= is_real,
                        Value::Null => {}
                        _ => {
                            while items.next_element::<IgnoredAny>()?.is_some() {}
                            return Ok(Value::OtherList);
                        }
                    }
                    width += 1;
                }
                Ok(Value::Numbers { width, reals })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
                let mut object = Vec::new();
                while let Some(entry) = items.next_entry()? {
                    object.push(entry);
                }
                Ok(Value::Object(object))
            }
        }
        json.deserialize_any(Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(lines: &[&str], columns: &Columns) -> Result<JsonShape> {
        JsonShape::find(&lines.iter().map(|line| line.as_bytes()).collect::<Vec<_>>(), columns)
    }

    fn names(reading: &[ColumnInfo]) -> Vec<&str> {
        reading.iter().map(|column| column.name.as_str()).collect()
    }

    fn rows(width: usize, reals: bool) -> RecordKind {
        RecordKind::Lists { width: Some(width), reals }
    }

    #[test]
    fn what_can_only_mean_one_thing_is_taken_and_the_rest_is_named() {
        let auto = |line: &str| find(&[line], &Columns::Auto).unwrap();
        let text = auto(r#"{"id": 7, "text": "a", "title": "b"}"#);
        assert_eq!((text.kind(), text.identity().as_str()), (RecordKind::Text, "text"));
        assert_eq!(names(&text.reading().left_out), ["id", "title"]);
        let all = auto(r#"{"b": 1, "a": true, "c": null}"#);
        assert_eq!((all.kind(), names(&all.reading().read)), (rows(3, false), vec!["b", "a", "c"]));
        let list = auto(r#"{"id": "x", "ids": [1, 2, 3]}"#);
        assert_eq!((list.kind(), list.identity().as_str()), (rows(3, false), "list \"ids\""));
        assert_eq!(auto("[0.5, null]").kind(), rows(2, true));
        for real in ["[-1]", "[1.0]", "[4294967296]", r#"{"a": 1e3}"#] {
            assert_eq!(auto(real).kind(), rows(1, true), "{real}");
        }
        assert_eq!(auto("[4294967295]").kind(), rows(1, false));
        let uneven = find(&["[1, 2]", "", "[3]"], &Columns::Auto).unwrap();
        assert_eq!(uneven.kind(), RecordKind::Lists { width: None, reals: false });
    }

    #[test]
    fn later_first_lines_say_what_the_first_leaves_open() {
        let shape = find(&["not json", r#"{"a": null, "b": 1}"#, r#"{"b": 0.5, "a": 2, "c": 3}"#], &Columns::Auto);
        let shape = shape.unwrap();
        assert_eq!((shape.kind(), names(&shape.reading().read)), (rows(3, true), vec!["a", "b", "c"]));
        let text = find(&[r#"{"a": 1}"#, r#"{"text": "x"}"#], &Columns::Auto).unwrap();
        assert_eq!(text.identity(), "text");
    }

    #[test]
    fn what_was_asked_for_is_found_or_refused_with_what_there_is() {
        let line = r#"{"x1": 1, "x2": 2.5, "y": "a", "z": [1, 2], "w": {"a": 1}, "n": null, "t": "b"}"#;
        let many = |names: &[&str]| Columns::Many(names.iter().map(|name| (*name).to_string()).collect());
        let found = find(&[line], &many(&["x*", "n"])).unwrap();
        assert_eq!((found.kind(), names(&found.reading().read)), (rows(3, true), vec!["x1", "x2", "n"]));
        assert_eq!(found.identity(), r#"columns ["x1", "x2", "n"]"#);
        let one = |name: &str| find(&[line], &Columns::One(name.into()));
        assert_eq!(one("y").unwrap().kind(), RecordKind::Text);
        assert_eq!(one("z").unwrap().kind(), rows(2, false));
        assert_eq!(one("x1").unwrap().kind(), rows(1, false));
        let only = |wanted| find(&[line], &Columns::Only(wanted));
        assert_eq!(only(Wanted::Rows).unwrap().identity(), "list \"z\"");
        for (result, words) in [
            (
                find(&[line], &Columns::Auto).and_then(|_| find(&[r#"{"a": 1, "b": "x"}"#], &Columns::Auto)),
                "is not clear; \
             say source.column = \"b\" (--column b) for a text, or source.columns = [\"a\"]",
            ),
            (one("q"), "no column `q` in the first lines; there are `x1` (number), `x2` (number), `y` (text)"),
            (one("w"), "column `w` is object: neither"),
            (one("n"), "column `n` is null in the first lines"),
            (find(&[line], &many(&["x1", "y"])), "column `y` is text, not a number"),
            (find(&[line], &many(&["x1", "x*"])), "column `x1` is named twice"),
            (find(&[line], &many(&["v*"])), "no column `v*`"),
            (only(Wanted::Text), "say which column holds the texts"),
            (only(Wanted::Images), "hold no image files"),
            (find(&["[1]"], &Columns::One("a".into())), "they have no column `a`"),
            (find(&["3"], &Columns::Only(Wanted::Rows)), "the first line is a number, not an object"),
            (find(&["{"], &Columns::Only(Wanted::Lists)), "the first line is not JSON"),
        ] {
            let error = result.expect_err(words).to_string();
            assert!(error.contains(words), "{error}\n{words}");
        }
    }

    #[test]
    fn a_table_has_every_column_with_a_single_value_or_those_that_are_named() {
        let lines =
            [r#"{"n": 1, "t": "a", "l": [1], "g": null, "m": 1}"#, r#"{"n": "x", "b": true, "o": {}, "m": [2]}"#];
        let table =
            |names: &[&str]| find(&lines, &Columns::Cells(names.iter().map(|name| (*name).to_string()).collect()));
        let all = table(&[]).unwrap();
        assert_eq!((all.kind(), all.has_fixed_width()), (RecordKind::Cells { width: 4 }, true));
        assert_eq!(names(&all.reading().read), ["n", "t", "g", "b"]);
        assert_eq!(names(&all.reading().left_out), ["l", "m", "o"]);
        let some = table(&["t", "m", "g*"]).unwrap();
        assert_eq!(
            (names(&some.reading().read), some.identity().as_str()),
            (vec!["t", "m", "g"], r#"cells ["t", "m", "g"]"#)
        );
        for (asked, words) in [
            (&["l"][..], "column `l` is list of numbers, not a single value per row"),
            (&["o"], "column `o` is object, not a single value per row"),
            (&["q"], "no column `q` in the first lines"),
            (&["t", "t"], "column `t` is named twice"),
        ] {
            let error = table(asked).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let cells = Columns::Cells(Vec::new());
        for (line, words) in
            [("[1]", "they have no columns"), (r#"{"a": [1]}"#, "no column has a single value"), ("{", "not JSON")]
        {
            let error = find(&[line], &cells).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let unseen = find(&["{"], &Columns::Cells(vec!["a".into()])).unwrap();
        assert_eq!(unseen.kind(), RecordKind::Cells { width: 1 });
    }

    #[test]
    fn lines_that_are_not_json_leave_texts_what_they_were() {
        for columns in [Columns::Auto, Columns::Only(Wanted::Text), Columns::One("text".into())] {
            assert_eq!(find(&["{", "\u{feff}"], &columns).unwrap().identity(), "text");
        }
        assert_eq!(find(&["\u{feff}{\"a\": 1}"], &Columns::Auto).unwrap().kind(), rows(1, false));
    }
}
