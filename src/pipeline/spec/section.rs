//! One table of a pipeline, read key by key with types and ranges.
//!
//! Opening a section refuses every key it does not know, before any value is looked at: a slip in a key is the
//! likeliest reason for what would be missing later. Every message starts with the place and the path of the key.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::document::{Document, describe};
use super::key::Key;
use super::size::parse_size;
use crate::error::{Error, Result};
use crate::pipeline::suggest::{hint, list};

/// A table of the document; one that is not written is empty.
#[derive(Clone, Copy)]
pub(crate) struct Section<'a> {
    document: &'a Document,
    path: &'a str,
    table: Option<&'a Map<String, Value>>,
}

impl<'a> Section<'a> {
    /// The table at `path`, whatever keys it has.
    pub fn open(document: &'a Document, path: &'a str) -> Result<Self> {
        match document.get(path) {
            None => Ok(Self { document, path, table: None }),
            Some(Value::Object(table)) => Ok(Self { document, path, table: Some(table) }),
            Some(value) => Err(Error::option(format!(
                "{}: {path} = {value}: is {}, expected a section [{path}]",
                document.place(path),
                describe(value)
            ))),
        }
    }

    /// Refuses keys that are not among `known`. `elsewhere` tells which section a key belongs to.
    pub fn only(self, known: &[Key], elsewhere: impl Fn(&str) -> Option<String>) -> Result<Self> {
        for key in self.table.into_iter().flat_map(Map::keys) {
            if !known.iter().any(|known| known.name == key) {
                let hint = match elsewhere(key) {
                    Some(section) => format!("did you mean `{section}.{key}`?"),
                    None => hint(key, known.iter().map(|known| known.name)),
                };
                return Err(Error::option(format!("{}: unknown key; {hint}", self.at(key))));
            }
        }
        Ok(self)
    }

    /// Returns true if the table is written at all.
    pub fn is_written(&self) -> bool {
        self.table.is_some()
    }

    /// Returns true if the key is written.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// What is written under a key.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.table?.get(key)
    }

    /// The keys that are written.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.into_iter().flat_map(|table| table.keys().map(String::as_str))
    }

    /// Place and path of a key: `file.toml:3: batch.rows`.
    pub fn at(&self, key: &str) -> String {
        let path = format!("{}.{key}", self.path);
        format!("{}: {path}", self.document.place(&path))
    }

    /// The error that a value is outside its range.
    pub fn refuse(&self, key: &str, must: impl Display) -> Error {
        match self.value(key) {
            Some(value) => Error::option(format!("{} = {value}: {must}", self.at(key))),
            None => Error::option(format!("{}: {must}", self.at(key))),
        }
    }

    /// The error that a value is not what it should be, where it is too long to be shown.
    pub fn refuse_value(&self, key: &str, why: impl Display) -> Error {
        Error::option(format!("{}: {why}", self.at(key)))
    }

    fn expected(&self, key: &str, what: &str) -> Error {
        let written = self.value(key).map_or(String::new(), ToString::to_string);
        Error::option(format!("{} = {written}: expected {what}", self.at(key)))
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<String>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(|text| Some(text.to_string())).ok_or_else(|| self.expected(key, "a text in quotes"))
    }

    /// A text or a list of texts, not empty.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let what = "a text in quotes, or a list of them";
        let texts = match self.value(key) {
            None => return Ok(None),
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) => {
                let texts = items.iter().map(|item| item.as_str().map(str::to_string)).collect::<Option<Vec<_>>>();
                texts.ok_or_else(|| self.expected(key, what))?
            }
            Some(_) => return Err(self.expected(key, what)),
        };
        if texts.is_empty() { Err(self.refuse(key, "must name at least one")) } else { Ok(Some(texts)) }
    }

    /// `true` or `false`.
    pub fn truth(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.value(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.expected(key, "true or false"))
    }

    /// A whole number of at least `least`.
    pub fn whole(&self, key: &str, least: u64) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        self.check_whole(key, value, least).map(Some)
    }

    fn check_whole(&self, key: &str, value: &Value, least: u64) -> Result<u64> {
        match (value.as_u64(), value.as_i64()) {
            (Some(number), _) if number >= least => Ok(number),
            (None, None) => Err(self.expected(key, "a whole number")),
            _ => Err(self.refuse(key, format!("must be at least {least}"))),
        }
    }

    /// A whole number of at least `least` that counts things in memory.
    pub fn count(&self, key: &str, least: usize) -> Result<Option<usize>> {
        let number = self.whole(key, least as u64)?;
        number.map(|n| usize::try_from(n).map_err(|_| self.refuse(key, "is too large for this machine"))).transpose()
    }

    /// A whole number from `least` to 4,294,967,295.
    pub fn small(&self, key: &str, least: u32) -> Result<Option<u32>> {
        let number = self.whole(key, u64::from(least))?;
        let most = format!("must be at most {}", u32::MAX);
        number.map(|n| u32::try_from(n).map_err(|_| self.refuse(key, most.clone()))).transpose()
    }

    /// A list of whole numbers of at least 1, `length` of them if that is given.
    pub fn counts(&self, key: &str, length: Option<usize>) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let what = match length {
            Some(length) => format!("a list of {length} whole numbers"),
            None => "a list of whole numbers".to_string(),
        };
        let items = value.as_array().filter(|items| length.is_none_or(|length| items.len() == length));
        let items = items.filter(|items| !items.is_empty()).ok_or_else(|| self.expected(key, &what))?;
        items.iter().map(|item| self.check_whole(key, item, 1).map(|n| n as usize)).collect::<Result<_>>().map(Some)
    }

    /// A number for which `holds` is true.
    pub fn number(&self, key: &str, holds: impl Fn(f64) -> bool, must: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.expected(key, "a number"))?;
        if holds(number) { Ok(Some(number)) } else { Err(self.refuse(key, format!("must be {must}"))) }
    }

    /// A size in bytes of at least `least`: `"256MiB"`, or a plain number.
    pub fn size(&self, key: &str, least: u64) -> Result<Option<u64>> {
        let bytes = match self.value(key) {
            None => return Ok(None),
            Some(Value::String(text)) => parse_size(text),
            Some(value) => value.as_u64(),
        };
        let bytes = bytes.ok_or_else(|| self.expected(key, "a size such as \"256MiB\", or a number of bytes"))?;
        if bytes < least { Err(self.refuse(key, format!("must be at least {least} bytes"))) } else { Ok(Some(bytes)) }
    }

    /// One of a few words; `-` and `_` are the same.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let words = || choices.iter().map(|(word, _)| *word);
        let Some(written) = value.as_str() else {
            return Err(self.expected(key, &format!("one of {}", list(words()))));
        };
        let plain = |word: &str| word.replace('-', "_");
        match choices.iter().find(|(word, _)| plain(word) == plain(written)) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => Err(Error::option(format!("{} = {value}: unknown; {}", self.at(key), hint(written, words())))),
        }
    }
}
