//! `[columns.NAME]`: what a user says of single columns of a table; the rest follows from the first rows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::document::Document;
use super::expand_path;
use super::section::Section;
use super::tables;
use crate::data::schema::ask::{AskedDistribution, AskedMeaning, ColumnAsk, DISTRIBUTIONS, MEANINGS};
use crate::data::schema::{MOST_CATS, Unseen};
use crate::error::{Error, Result};
use crate::files::read_regular;

/// What is said of columns, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnsSpec(BTreeMap<String, ColumnSpec>);

/// What is said of one.
#[derive(Clone, Debug, Default, PartialEq)]
struct ColumnSpec {
    ask: ColumnAsk,
    /// A file with the names of categories, one a line, as it was written: `${NAME}` is replaced when it is read.
    vocabulary_file: Option<String>,
}

const UNSEEN: [(&str, Unseen); 2] = [("other", Unseen::Other), ("error", Unseen::Error)];

/// A file of names may be so large.
const MOST_NAME_BYTES: usize = 256 << 20;

impl ColumnsSpec {
    /// Returns true if nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is said, files of names read.
    pub fn asks(&self) -> Result<BTreeMap<String, ColumnAsk>> {
        let asks = self.0.iter().map(|(name, column)| {
            let mut ask = column.ask.clone();
            if let Some(file) = &column.vocabulary_file {
                let names = read_names(file).map_err(|error| error.at(format_args!("columns.{name}.vocabulary")))?;
                ask.vocabulary = Some(names);
            }
            Ok((name.clone(), ask))
        });
        asks.collect()
    }
}

fn read_names(file: &str) -> Result<Vec<String>> {
    let path = expand_path(file)?;
    let bytes = read_regular(Path::new(&path)).map_err(|e| Error::io_at(&path, &e))?;
    if bytes.len() > MOST_NAME_BYTES {
        return Err(Error::data(format!("{path}: {} MiB are too many for names", bytes.len() >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::data(format!("{path}: is not text (UTF-8)")))?;
    let names: Vec<String> =
        text.lines().map(|line| line.trim_end_matches('\r').to_string()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { Err(Error::data(format!("{path}: has no name in it"))) } else { Ok(names) }
}

pub(super) fn read(document: &Document) -> Result<ColumnsSpec> {
    let all = Section::open(document, "columns")?;
    let mut columns = BTreeMap::new();
    for name in all.keys() {
        if !all.value(name).is_some_and(serde_json::Value::is_object) {
            return Err(all.refuse(name, "expected a section, [columns.NAME]"));
        }
        columns.insert(name.to_string(), read_column(document, name)?);
    }
    Ok(ColumnsSpec(columns))
}

/// A column by its name, which may have dots in it: its section is not looked for by that path.
fn read_column(document: &Document, name: &str) -> Result<ColumnSpec> {
    let alone = document.renamed("columns", name, tables::COLUMNS.path);
    let read = Section::open(&alone, tables::COLUMNS.path).and_then(read_keys);
    read.map_err(|error| Error::option(error.to_string().replacen(tables::COLUMNS.path, &format!("columns.{name}"), 1)))
}

fn read_keys(section: Section<'_>) -> Result<ColumnSpec> {
    let section = section.only(tables::COLUMNS.keys, |_| None)?;
    let (mut vocabulary, mut vocabulary_file) = (None, None);
    match section.value("vocabulary") {
        Some(serde_json::Value::String(file)) => vocabulary_file = Some(file.clone()),
        Some(serde_json::Value::Array(names)) => vocabulary = Some(names.iter().map(spelled).collect()),
        Some(_) => return Err(section.refuse("vocabulary", "must be a list of names, or a file with one a line")),
        None => {}
    }
    let few = |key: &str, least: u32| match section.small(key, least)? {
        Some(number) if number > MOST_CATS => Err(section.refuse(key, format!("must be at most {MOST_CATS}"))),
        number => Ok(number),
    };
    let range = match section.value("range") {
        None => None,
        Some(value) => {
            let ends = value.as_array().filter(|ends| ends.len() == 2);
            let ends = ends.and_then(|ends| Some((ends[0].as_i64()?, ends[1].as_i64()?)));
            match ends.filter(|(low, high)| low < high) {
                Some(ends) => Some(ends),
                None => return Err(section.refuse("range", "must be the least and the largest whole number")),
            }
        }
    };
    let ask = ColumnAsk {
        meaning: section.choice("as", &MEANINGS)?,
        categories: few("categories", 2)?,
        vocabulary,
        unseen: section.choice("unseen", &UNSEEN)?,
        bins: few("bins", 2)?,
        distribution: section.choice("distribution", &DISTRIBUTIONS)?,
        trials: few("trials", 1)?,
        range,
    };
    if ask.categories.is_some() && (ask.vocabulary.is_some() || vocabulary_file.is_some()) {
        return Err(section.refuse("categories", "has no meaning beside vocabulary, which has as many as it lists"));
    }
    Ok(ColumnSpec { ask, vocabulary_file })
}

/// A name in a list; numbers and truths need no quotes.
fn spelled(name: &serde_json::Value) -> String {
    name.as_str().map_or_else(|| name.to_string(), str::to_string)
}

impl Serialize for ColumnsSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

impl Serialize for ColumnSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], wanted: T) -> &'static str {
            words.iter().find(|(_, known)| *known == wanted).map_or("", |(word, _)| word)
        }
        let ColumnAsk { meaning, categories, vocabulary, unseen, bins, distribution, trials, range } = &self.ask;
        let mut map = serializer.serialize_map(None)?;
        if let Some(meaning) = meaning {
            map.serialize_entry("as", word::<AskedMeaning>(&MEANINGS, *meaning))?;
        }
        for (key, number) in [("categories", categories), ("bins", bins), ("trials", trials)] {
            if let Some(number) = number {
                map.serialize_entry(key, number)?;
            }
        }
        match (vocabulary, &self.vocabulary_file) {
            (_, Some(file)) => map.serialize_entry("vocabulary", file)?,
            (Some(names), None) => map.serialize_entry("vocabulary", names)?,
            (None, None) => {}
        }
        if let Some(unseen) = unseen {
            map.serialize_entry("unseen", word(&UNSEEN, *unseen))?;
        }
        if let Some(distribution) = distribution {
            map.serialize_entry("distribution", word::<AskedDistribution>(&DISTRIBUTIONS, *distribution))?;
        }
        if let Some(range) = range {
            map.serialize_entry("range", range)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::PipelineSpec;
    use crate::data::schema::ask::{AskedMeaning, ColumnAsk};
    use crate::data::schema::{TimePart, Unseen};
    use crate::error::Result;

    fn parse(columns: &str) -> Result<PipelineSpec> {
        PipelineSpec::parse(
            &format!("[source]\nfiles = \"a.parquet\"\n[decode]\nkind = \"table\"\n{columns}"),
            "p.toml",
        )
    }

    #[test]
    fn columns_are_read_by_name_and_written_as_they_were_read() {
        let spec = parse(
            "[columns.country]\nvocabulary = [\"DE\", 3, true]\nunseen = \"error\"\n[columns.\"a.b c\"]\nas = \
             \"weekday\"\n[columns.n]\ndistribution = \"binomial\"\ntrials = 5\n[columns.x]\nbins = 4\n\
             [columns.r]\ndistribution = \"discrete-logistic\"\nrange = [-2, 7]\n",
        )
        .unwrap();
        let asks = spec.columns.asks().unwrap();
        let names = ["DE", "3", "true"].map(String::from).to_vec();
        let country = ColumnAsk { vocabulary: Some(names), unseen: Some(Unseen::Error), ..ColumnAsk::default() };
        assert_eq!(asks["country"], country);
        assert_eq!(asks["a.b c"].meaning, Some(AskedMeaning::Part(TimePart::Weekday)));
        assert_eq!((asks["n"].trials, asks["x"].bins, asks["r"].range), (Some(5), Some(4), Some((-2, 7))));
        let text = spec.to_toml().unwrap();
        assert_eq!(PipelineSpec::parse(&text, "resolved.toml").unwrap(), spec, "{text}");
    }

    #[test]
    fn names_of_categories_may_be_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("names.txt");
        std::fs::write(&file, "DE\r\n\nFR\n").unwrap();
        let spec = |file: &str| parse(&format!("[columns.c]\nvocabulary = '{file}'\n")).unwrap();
        let asks = spec(file.to_str().unwrap()).columns.asks().unwrap();
        assert_eq!(asks["c"].vocabulary, Some(vec!["DE".to_string(), "FR".to_string()]));
        let error = spec("/no/such/file").columns.asks().unwrap_err().to_string();
        assert!(error.starts_with("columns.c.vocabulary: /no/such/file"), "{error}");
    }

    #[test]
    fn mistakes_name_the_column_and_the_key() {
        for (text, words) in [
            ("[columns.a]\nas = \"colour\"", "columns.a.as = \"colour\": unknown; there are"),
            ("[columns.a]\nbin = 3", "columns.a.bin: unknown key; did you mean `bins`?"),
            ("[columns.a]\nbins = 1", "columns.a.bins = 1: must be at least 2"),
            ("[columns.a]\nvocabulary = 3", "columns.a.vocabulary = 3: must be a list of names, or a file"),
            ("[columns.a]\nrange = [3, 1]", "columns.a.range = [3,1]: must be the least and the largest"),
            ("[columns]\na = 3", "columns.a = 3: expected a section, [columns.NAME]"),
            ("[columns.a]\ncategories = 3\nvocabulary = [\"a\"]", "columns.a.categories = 3: has no meaning beside"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("p.toml") && error.contains(words), "{text}: {error}");
        }
        let rows = "[source]\nfiles = \"a.parquet\"\n[decode]\nkind = \"rows\"\n[columns.a]\nbins = 3\n";
        let error = PipelineSpec::parse(rows, "p.toml").unwrap_err().to_string();
        assert!(error.contains("[columns] has no meaning for kind = \"rows\""), "{error}");
    }
}
