//! `[learn]`: which optimizer, its own options beside it, and when to stop.
//!
//! The options of an optimizer are those of its [`OptimizerSpec`], short where the file is short: `step = 0.3` is a
//! constant schedule, `smoothing = 1e-4` the relative rule. Which options an optimizer has is read off its defaults, so
//! that a new one needs no change here; only an option that none had before needs its line in `tables`. Which values
//! are allowed is asked of the optimizer itself.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::document::Document;
use super::section::Section;
use super::source::SourceSpec;
use super::tables;
use crate::backend::RetainSource;
use crate::error::{Error, ErrorKind, Result};
use crate::optim::{ACCEPTED_LENGTHS, Length, OPTIMIZERS, OptimizerSpec};
use crate::pipeline::suggest::list;

/// What learns, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnSection {
    /// The optimizer with its options.
    pub optimizer: OptimizerSpec,
    /// Passes over the data. One if neither this nor the others are given: an endless source then runs until a signal.
    pub epochs: Option<u64>,
    /// How many rows of a live stream are an epoch.
    pub window_rows: Option<u64>,
    /// Batches to learn from, over all epochs.
    pub batches: Option<u64>,
    /// Rows to learn from, over all epochs; the batch that reaches them is the last.
    pub rows: Option<u64>,
    /// Seconds to learn for, over all resumptions.
    pub seconds: Option<f64>,
}

/// Keys of `[learn]` that are no optimizer's.
pub(crate) const LIMITS: [&str; 5] = ["epochs", "window_rows", "batches", "rows", "seconds"];

/// Every schedule with its keys: those it needs, and those that can be left out.
pub(super) const SCHEDULES: [(&str, &[&str], &[&str]); 5] = [
    ("constant", &["step"], &[]),
    ("counts", &["factor", "most"], &["kappa", "delay", "floor"]),
    ("power", &["from", "kappa", "delay"], &["floor"]),
    ("cosine", &["from", "to", "horizon"], &[]),
    ("warmup_stable_decay", &["peak", "to", "warmup", "stable", "decay"], &[]),
];
/// Those that are lengths.
const LENGTHS: [&str; 5] = ["delay", "horizon", "warmup", "stable", "decay"];

/// The options of an optimizer at their defaults, as JSON; empty for a name that is none.
pub(crate) fn default_options(optimizer: &str) -> Map<String, Value> {
    let named = json!({ "optimizer": optimizer });
    let spec = serde_json::from_value::<OptimizerSpec>(named).ok().and_then(|spec| serde_json::to_value(spec).ok());
    match spec {
        Some(Value::Object(mut options)) => {
            options.remove("optimizer");
            options
        }
        _ => Map::new(),
    }
}

pub(super) fn read(
    document: &Document,
    source: &SourceSpec,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<LearnSection> {
    let learn = Section::open(document, "learn")?;
    let names = OPTIMIZERS.map(|name| (name, name));
    let optimizer = learn.choice("optimizer", &names)?.unwrap_or(OPTIMIZERS[0]);
    let defaults = default_options(optimizer);
    let known: Vec<&str> = ["optimizer"].into_iter().chain(defaults.keys().map(String::as_str)).chain(LIMITS).collect();
    let of_others = |key: &str| elsewhere(key).filter(|_| !is_option_of_any(key));
    for key in learn.keys().filter(|key| !known.contains(key)) {
        if is_option_of_any(key) {
            let why = format!("{optimizer} has no such option, it belongs to {}", list(optimizers_with(key)));
            return Err(Error::option(format!(
                "{}: {why}; it knows {}",
                learn.at(key),
                list(known[1..].iter().copied())
            )));
        }
    }
    let learn = learn.only(&tables::LEARN.filtered(|key| known.contains(&key)), of_others)?;

    let mut options = Map::from_iter([("optimizer".to_string(), json!(optimizer))]);
    for (key, default) in &defaults {
        if let Some(option) = read_option(document, learn, key, default)? {
            options.insert(key.clone(), option);
        }
    }
    let optimizer: OptimizerSpec = serde_json::from_value(Value::Object(options))
        .map_err(|e| Error::option(format!("{}: {e}", document.place("learn"))))?;
    optimizer.check().map_err(|e| at_its_key(document, learn, &e))?;

    let (epochs, batches) = (learn.whole("epochs", 1)?, learn.whole("batches", 1)?);
    let seconds = learn.number("seconds", |s| s > 0.0, "positive")?;
    let (window_rows, rows) = (learn.whole("window_rows", 1)?, learn.whole("rows", 1)?);
    if window_rows.is_some() && !source.is_live() {
        let why = "has no meaning for files, whose epoch is a pass over all of them";
        return Err(learn.refuse("window_rows", why));
    }
    let is_limited = batches.is_some() || rows.is_some() || seconds.is_some() || source.is_live();
    let epochs = epochs.or((!is_limited).then_some(1));
    Ok(LearnSection { optimizer, epochs, window_rows, batches, rows, seconds })
}

fn is_option_of_any(key: &str) -> bool {
    !optimizers_with(key).is_empty()
}

/// The optimizers that a key is an option of; empty for keys of all.
pub(super) fn optimizers_with(key: &str) -> Vec<&'static str> {
    OPTIMIZERS.into_iter().filter(|name| default_options(name).contains_key(key)).collect()
}

/// The schedules that a key belongs to; empty for keys of all.
pub(super) fn schedules_with(key: &str) -> Vec<&'static str> {
    let has = |(_, needed, others): &(_, &[&str], &[&str])| needed.contains(&key) || others.contains(&key);
    SCHEDULES.into_iter().filter(has).map(|(name, ..)| name).collect()
}

/// An option as its spec wants it; `None` leaves it at its default.
fn read_option(document: &Document, learn: Section<'_>, key: &str, default: &Value) -> Result<Option<Value>> {
    let Some(value) = learn.value(key) else { return Ok(None) };
    let path = format!("learn.{key}");
    Ok(Some(match key {
        _ if is_schedule(default) && value.is_object() => read_schedule(document, &path)?,
        _ if is_schedule(default) => json!({"schedule": "constant", "step": any_number(learn, key)?}),
        "smoothing" if value.is_object() => read_smoothing(document, &path)?,
        "smoothing" => json!({"relative": any_number(learn, key)?}),
        "average" if value.is_object() => read_average(document, &path)?,
        "average" => json!(learn.truth(key, true)?),
        "retain" | "retain_inputs" => {
            use RetainSource::{Flows, Larger, TopDown};
            json!(learn.choice(key, &[("top-down", TopDown), ("flows", Flows), ("larger", Larger)])?)
        }
        _ if default.is_u64() => json!(learn.whole(key, 1)?),
        _ => json!(any_number(learn, key)?),
    }))
}

fn any_number(section: Section<'_>, key: &str) -> Result<Option<f64>> {
    section.number(key, |_| true, "a number")
}

fn read_schedule(document: &Document, path: &str) -> Result<Value> {
    let section = Section::open(document, path)?;
    let Some(name) = section.choice("schedule", &SCHEDULES.map(|(name, ..)| (name, name)))? else {
        let names = list(SCHEDULES.iter().map(|(name, ..)| *name));
        return Err(section.refuse("schedule", format!("is missing; there are {names}")));
    };
    let &(_, needed, others) = SCHEDULES.iter().find(|(known, ..)| *known == name).expect("the choice is of these");
    let known = tables::SCHEDULE.filtered(|key| key == "schedule" || needed.contains(&key) || others.contains(&key));
    let section = section.only(&known, |_| None)?;
    let mut schedule = Map::from_iter([("schedule".to_string(), json!(name))]);
    for key in needed.iter().chain(others) {
        let written = match LENGTHS.contains(key) {
            true => section.value(key).map(|written| a_length(section, key, written)).transpose()?,
            false => any_number(section, key)?.map(|x| json!(x)),
        };
        match written {
            Some(written) => drop(schedule.insert((*key).to_string(), written)),
            None if others.contains(key) => {}
            None => {
                let needed = list(needed.iter().copied());
                return Err(section.refuse(key, format!("is missing; {name} needs {needed}")));
            }
        }
    }
    Ok(Value::Object(schedule))
}

/// Returns true for a schedule as JSON.
fn is_schedule(value: &Value) -> bool {
    value.get("schedule").is_some()
}

/// What is written, if it is a length.
fn a_length(section: Section<'_>, key: &str, written: &Value) -> Result<Value> {
    match serde_json::from_value::<Length>(written.clone()) {
        Ok(_) => Ok(written.clone()),
        Err(_) => Err(section.refuse(key, format!("expected {ACCEPTED_LENGTHS}"))),
    }
}

fn read_smoothing(document: &Document, path: &str) -> Result<Value> {
    let section = Section::open(document, path)?.only(tables::SMOOTHING.keys, |_| None)?;
    match (any_number(section, "relative")?, any_number(section, "absolute")?) {
        (Some(epsilon), None) => Ok(json!({ "relative": epsilon })),
        (None, Some(epsilon)) => Ok(json!({ "absolute": epsilon })),
        _ => Err(Error::option(format!(
            "{}: {path}: needs one of relative and absolute, such as {{ relative = 1e-6 }}",
            document.place(path)
        ))),
    }
}

fn read_average(document: &Document, path: &str) -> Result<Value> {
    let section = Section::open(document, path)?.only(tables::AVERAGE.keys, |_| None)?;
    let number = |key: &str| Ok(any_number(section, key)?.map(|x| (key.to_string(), json!(x))));
    let whole = |key: &str| Ok(section.whole(key, 1)?.map(|n| (key.to_string(), json!(n))));
    let options = [number("window")?, whole("every")?, whole("cap")?, number("reset")?];
    Ok(Value::Object(options.into_iter().flatten().collect()))
}

/// An optimizer's complaint about one of its options, with the place where that was written.
fn at_its_key(document: &Document, learn: Section<'_>, error: &Error) -> Error {
    debug_assert_eq!(error.kind(), ErrorKind::Option, "{error}");
    let message = error.to_string();
    let Some(key) = error.key() else { return Error::option(format!("{}: {message}", document.place("learn"))) };
    // A constant step is a plain number, or a table that calls it `step`.
    let is_table = learn.value(key).is_some_and(is_schedule);
    let path = if is_table { format!("learn.{key}.step") } else { format!("learn.{key}") };
    let said = message.strip_prefix(key).unwrap_or(&message);
    Error::option(format!("{}: {path}{said}", document.place(&path))).with_key(path)
}

impl Serialize for LearnSection {
    /// As short as a file may be: constant schedules and relative smoothing are plain numbers again.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let options = serde_json::to_value(&self.optimizer).map_err(serde::ser::Error::custom)?;
        let Some(options) = options.as_object() else {
            return Err(serde::ser::Error::custom("an optimizer is written as a table"));
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("optimizer", &options["optimizer"])?;
        for (key, value) in options.iter().filter(|(key, _)| *key != "optimizer") {
            let short = match value.get("schedule").and_then(Value::as_str) {
                Some("constant") => value.get("step"),
                _ => value.get("relative"),
            };
            map.serialize_entry(key, short.unwrap_or(value))?;
        }
        let limits = [
            ("epochs", self.epochs),
            ("window_rows", self.window_rows),
            ("batches", self.batches),
            ("rows", self.rows),
        ];
        for (key, limit) in limits.into_iter().filter_map(|(key, limit)| Some((key, limit?))) {
            map.serialize_entry(key, &limit)?;
        }
        if let Some(seconds) = self.seconds {
            map.serialize_entry("seconds", &seconds)?;
        }
        map.end()
    }
}
