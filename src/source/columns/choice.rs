//! Which columns are meant where none is named, and what to say where that is not clear.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};

use super::{ColumnInfo, Columns, Form, RecordKind, Wanted, usable};
use crate::error::{Error, Result};

/// How many columns an error lists before it stops.
const LISTED: usize = 20;

/// The columns that a user who says nothing must mean.
pub(super) fn choose(schema: &Schema) -> Result<Columns> {
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
pub(super) fn choose_only(schema: &Schema, wanted: Wanted) -> Result<Columns> {
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
    format!(
        "{}: which to learn, and as what, is not clear; {ways}; strings as categories, and dates, are not learned yet",
        there_are(schema)
    )
}

/// The column of that name.
pub(super) fn find<'a>(schema: &'a Schema, name: &str) -> Result<&'a Field> {
    let field = schema.fields().iter().find(|field| field.name() == name);
    field.map(AsRef::as_ref).ok_or_else(|| Error::option(format!("no column `{name}`; {}", there_are(schema))))
}

/// The columns of a table, for a message.
pub(super) fn there_are(schema: &Schema) -> String {
    let fields = schema.fields();
    let listed: Vec<String> = fields.iter().take(LISTED).map(|field| ColumnInfo::of(field).to_string()).collect();
    match fields.len() {
        0 => "there are none".into(),
        n if n > LISTED => format!("there are {} and {} more", listed.join(", "), n - LISTED),
        _ => format!("there are {}", listed.join(", ")),
    }
}
