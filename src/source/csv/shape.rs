//! Which columns of CSV files are read, and what their records are.
//!
//! Cells have no type, so the records are cells for whoever says later what they mean. Where rows of numbers or a text
//! are asked for by name, the first rows say whether the columns are that. Decided on the first file; the columns of
//! the others are found by their names.

use std::collections::HashSet;

use crate::data::schema::{parse_number, says_missing};
use crate::error::{Error, Result};
use crate::source::columns::{ColumnInfo, Columns, Reading, RecordKind, Wanted};

/// How many columns an error lists before it stops.
const LISTED: usize = 20;

/// What the records of CSV files are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvShape {
    pub(super) names: Vec<String>,
    pub(super) form: Form,
    reading: Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A cell per column.
    Cells,
    /// A number per column. They are real ones whatever a record holds if a first row has a fraction or a negative one.
    Numbers { reals: bool },
    /// The text of one column.
    Text,
}

/// What the first rows have in each column.
#[derive(Clone, Debug, Default)]
pub struct FirstRows {
    columns: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    numbers: bool,
    texts: bool,
    reals: bool,
}

impl FirstRows {
    /// Of so many columns, and no row yet.
    pub fn new(width: usize) -> Self {
        Self { columns: vec![Seen::default(); width] }
    }

    /// Looks at the cell of a row.
    pub fn see(&mut self, column: usize, text: &str) {
        let seen = &mut self.columns[column];
        match parse_number(text) {
            _ if says_missing(text) => {}
            Some(number) => {
                seen.numbers = true;
                seen.reals |= number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number);
            }
            None => seen.texts = true,
        }
    }
}

impl Seen {
    /// Numbers, or nothing that says otherwise.
    fn is_number(self) -> bool {
        !self.texts
    }

    fn words(self) -> &'static str {
        match (self.numbers, self.texts) {
            (false, false) => "nothing",
            (true, false) => "number",
            (false, true) => "text",
            (true, true) => "numbers and texts",
        }
    }
}

/// The columns of the first file.
struct Table<'a> {
    names: &'a [String],
    first: &'a FirstRows,
}

impl CsvShape {
    /// Decides what is read of a file with these columns.
    pub fn find(names: &[String], first: &FirstRows, columns: &Columns) -> Result<Self> {
        let table = Table { names, first };
        let (chosen, form) = match columns {
            Columns::Auto => (table.all(), Form::Cells),
            Columns::Cells(patterns) if patterns.is_empty() => (table.all(), Form::Cells),
            Columns::Cells(patterns) => (table.matching(patterns)?, Form::Cells),
            Columns::One(name) => {
                let at = table.find(name)?;
                let is_text = first.columns[at].texts;
                (vec![at], if is_text { Form::Text } else { table.numbers(&[at])? })
            }
            Columns::Many(patterns) => {
                let chosen = table.matching(patterns)?;
                let form = table.numbers(&chosen)?;
                (chosen, form)
            }
            Columns::Only(Wanted::Rows) => {
                let chosen: Vec<usize> = (0..names.len()).filter(|at| first.columns[*at].is_number()).collect();
                if chosen.iter().all(|at| !first.columns[*at].numbers) {
                    return Err(Error::option(format!(
                        "decode.kind = \"rows\": no column holds numbers; decode.kind = \"table\" reads any, and there \
                         are {}",
                        table.listed()
                    )));
                }
                let form = table.numbers(&chosen)?;
                (chosen, form)
            }
            Columns::Only(Wanted::Text) => (vec![table.text()?], Form::Text),
            Columns::Only(Wanted::Images) => {
                return Err(Error::unsupported("decode.kind = \"image\": CSV holds no image files; Parquet does"));
            }
            Columns::Only(Wanted::Lists) => {
                return Err(Error::unsupported(
                    "decode.kind = \"tokens\": CSV holds no lists; decode.kind = \"table\" reads its columns",
                ));
            }
        };
        let info = |at: usize| table.info(at);
        let reading = Reading {
            read: chosen.iter().copied().map(info).collect(),
            left_out: (0..names.len()).filter(|at| !chosen.contains(at)).map(info).collect(),
        };
        Ok(Self { names: chosen.into_iter().map(|at| names[at].clone()).collect(), form, reading })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        match self.form {
            Form::Cells => RecordKind::Cells { width: self.names.len() },
            Form::Numbers { reals } => RecordKind::Lists { width: Some(self.names.len()), reals },
            Form::Text => RecordKind::Text,
        }
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// What decides which records there are, for manifests.
    pub fn identity(&self) -> String {
        match self.form {
            Form::Cells => format!("cells {:?}", self.names),
            Form::Numbers { .. } => format!("columns {:?}", self.names),
            Form::Text => format!("text {:?}", self.names),
        }
    }

    /// Where the columns are in a file with these.
    pub fn places_in(&self, names: &[String]) -> Result<Vec<usize>> {
        let place = |wanted: &String| {
            let missing = || Error::data(format!("no column `{wanted}`: give all files the columns of the first"));
            names.iter().position(|name| name == wanted).ok_or_else(missing)
        };
        self.names.iter().map(place).collect()
    }
}

impl Table<'_> {
    fn all(&self) -> Vec<usize> {
        (0..self.names.len()).collect()
    }

    fn find(&self, name: &str) -> Result<usize> {
        let place = self.names.iter().position(|known| known == name);
        place.ok_or_else(|| Error::option(format!("no column `{name}`; there are {}", self.listed())))
    }

    /// The columns of these names and prefixes, each once and at least one.
    fn matching(&self, patterns: &[String]) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                None => found.push(self.find(pattern)?),
                Some(prefix) => {
                    let before = found.len();
                    found.extend((0..self.names.len()).filter(|at| self.names[*at].starts_with(prefix)));
                    if found.len() == before {
                        return Err(Error::option(format!("no column `{pattern}`; there are {}", self.listed())));
                    }
                }
            }
        }
        let mut seen = HashSet::new();
        if let Some(twice) = found.iter().find(|at| !seen.insert(**at)) {
            return Err(Error::option(format!("column `{}` is named twice", self.names[*twice])));
        }
        if found.is_empty() {
            return Err(Error::option("no column to read: name at least one"));
        }
        Ok(found)
    }

    /// Numbers of these columns side by side.
    fn numbers(&self, columns: &[usize]) -> Result<Form> {
        if let Some(at) = columns.iter().find(|at| !self.first.columns[**at].is_number()) {
            let (name, what) = (&self.names[*at], self.first.columns[*at].words());
            return Err(Error::option(format!(
                "column `{name}` is {what}, not numbers: decode.kind = \"table\" reads columns of any kind"
            )));
        }
        Ok(Form::Numbers { reals: columns.iter().any(|at| self.first.columns[*at].reals) })
    }

    /// The column called `text`, or the only one with texts.
    fn text(&self) -> Result<usize> {
        let mut texts = (0..self.names.len()).filter(|at| self.first.columns[*at].texts);
        let only = texts.next().filter(|_| texts.next().is_none());
        self.names.iter().position(|name| name == "text").or(only).ok_or_else(|| {
            Error::option(format!("say which column holds the texts (source.column); there are {}", self.listed()))
        })
    }

    fn info(&self, at: usize) -> ColumnInfo {
        ColumnInfo { name: self.names[at].clone(), data_type: self.first.columns[at].words().into() }
    }

    fn listed(&self) -> String {
        let listed: Vec<String> = (0..self.names.len()).take(LISTED).map(|at| self.info(at).to_string()).collect();
        match self.names.len() {
            n if n > LISTED => format!("{} and {} more", listed.join(", "), n - LISTED),
            _ => listed.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(columns: &Columns) -> Result<CsvShape> {
        let names: Vec<String> = ["x1", "x2", "name", "gap"].map(String::from).into();
        let mut first = FirstRows::new(4);
        for row in [["1", "2.5", "a", ""], ["2", "NA", "7", ""]] {
            row.iter().enumerate().for_each(|(column, text)| first.see(column, text));
        }
        CsvShape::find(&names, &first, columns)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_are_chosen_by_name_prefix_and_what_they_hold() {
        let all = find(&Columns::Cells(Vec::new())).unwrap();
        assert_eq!((all.kind(), all.names.len()), (RecordKind::Cells { width: 4 }, 4));
        assert_eq!(find(&Columns::Auto).unwrap(), all);
        let some = find(&Columns::Cells(names(&["name", "x*"]))).unwrap();
        assert_eq!(
            (some.names.clone(), some.identity().as_str()),
            (names(&["name", "x1", "x2"]), "cells [\"name\", \"x1\", \"x2\"]")
        );
        assert_eq!(some.reading().left_out[0].to_string(), "`gap` (nothing)");
        assert_eq!(some.places_in(&names(&["x2", "q", "name", "x1"])).unwrap(), [2, 3, 0]);
        let rows = find(&Columns::Only(Wanted::Rows)).unwrap();
        assert_eq!(
            (rows.kind(), rows.names),
            (RecordKind::Lists { width: Some(3), reals: true }, names(&["x1", "x2", "gap"]))
        );
        assert_eq!(
            find(&Columns::One("x1".into())).unwrap().kind(),
            RecordKind::Lists { width: Some(1), reals: false }
        );
        assert_eq!(find(&Columns::Only(Wanted::Text)).unwrap().kind(), RecordKind::Text);
        for (columns, words) in [
            (Columns::Cells(names(&["y"])), "no column `y`; there are `x1` (number), `x2` (number), `name`"),
            (Columns::Cells(names(&["y*"])), "no column `y*`"),
            (Columns::Cells(names(&["x1", "x*"])), "column `x1` is named twice"),
            (
                Columns::Many(names(&["x1", "name"])),
                "`name` is numbers and texts, not numbers: decode.kind = \"table\"",
            ),
            (Columns::Only(Wanted::Images), "no image files"),
            (Columns::Only(Wanted::Lists), "decode.kind = \"table\""),
        ] {
            let error = find(&columns).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = all.places_in(&names(&["x1"])).unwrap_err().to_string();
        assert_eq!(error, "no column `x2`: give all files the columns of the first");
    }
}
