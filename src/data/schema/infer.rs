//! What columns mean, from their first rows and from what a user says of them.
//!
//! The rule, where nothing is said of a column:
//!
//! | cells | understood as |
//! |---|---|
//! | true, false | bool |
//! | texts | category: the [`DEFAULT_CATEGORIES`] − 1 most frequent names of the first rows, and *other* |
//! | texts of which nine in ten are different, in 32 rows or more | ignored: names or identifiers |
//! | texts that are all dates or times (ISO 8601), dates, timestamps | time: days, as a density |
//! | whole numbers, 32 different ones at the most, half as many as rows | category |
//! | whole numbers, all different, that fill a range half or more, in 32 rows or more | ignored: numbers of rows |
//! | whole numbers, none negative, half of them at most 16 | count: negative binomial |
//! | other numbers | number: normal densities |
//! | nothing but nulls; lists, structures, bytes | ignored |
//!
//! Real numbers that are all whole (a data frame's whole numbers with gaps) are understood as whole numbers. Cells of a
//! CSV file have no type: a column is what all its first cells spell; whole numbers with leading zeros are texts.

use std::collections::{BTreeMap, HashSet};

use super::super::civil::MICROS_PER_DAY;
use super::super::{Cell, CellType, Cells, LARGEST_REAL};
use super::ask::{AskedDistribution, AskedMeaning, ColumnAsk, check_ask};
use super::encode::{LARGEST_COUNT, bin_of, brief, label_of};
use super::seen::{Kind, Observed};
use super::{
    BoolDistribution, ColumnSchema, CountDistribution, IgnoredColumn, Label, MOST_CATS, Meaning, TableSchema, Unseen,
};
use crate::error::{Error, Result};

/// Bins where nothing is said.
pub const DEFAULT_BINS: u32 = 16;

/// Slots of a category column where nothing is said: so many names, one of them *other*.
pub const DEFAULT_CATEGORIES: u32 = 256;

/// Whole numbers that are names: at most so many different ones.
const MOST_NAMED: usize = 32;

/// Whole numbers that are counts: half of them are at most this.
const MEDIAN_COUNT: f64 = 16.0;

/// Fewer rows tell nothing about identifiers.
const ENOUGH_ROWS: u64 = 32;

/// A schema with what was seen of each column.
#[derive(Clone, Debug, PartialEq)]
pub struct Inferred {
    /// What the columns mean.
    pub schema: TableSchema,
    /// What was seen of every column, in the order of the table, ignored ones too.
    pub columns: Vec<ColumnReport>,
    /// Rows that were looked at.
    pub rows: u64,
}

/// A line of the table that a user is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnReport {
    /// The column.
    pub name: String,
    /// What its cells are; `None` where all are null.
    pub cell_type: Option<CellType>,
    /// What it is understood as, or that it is ignored and why.
    pub understood_as: String,
    /// Categories of the variable, if these are what it has.
    pub categories: Option<u32>,
    /// Different names among the first rows that are *other*, since the vocabulary has no room for them.
    pub names_left_out: usize,
    /// Cells among the first rows that are missing.
    pub missing: u64,
    /// What a user should know, if anything.
    pub note: Option<String>,
}

/// Looks at the first rows.
#[derive(Clone, Debug)]
pub struct Observer {
    columns: Vec<Observed>,
    rows: u64,
}

impl Observer {
    /// For a table with these columns.
    pub fn new(names: &[String]) -> Self {
        let columns = names.iter().map(|name| Observed { name: name.clone(), ..Observed::default() });
        Self { columns: columns.collect(), rows: 0 }
    }

    /// Looks at some rows.
    pub fn see(&mut self, cells: &Cells, rows: impl Iterator<Item = usize>) {
        for row in rows {
            self.rows += 1;
            self.columns.iter_mut().enumerate().for_each(|(column, observed)| observed.see(&cells.get(row, column)));
        }
    }

    /// What the columns mean; `asks` by name.
    pub fn infer(&self, asks: &BTreeMap<String, ColumnAsk>) -> Result<Inferred> {
        if let Some(name) = asks.keys().find(|name| self.columns.iter().all(|column| column.name != **name)) {
            let known: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            let known = known.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(Error::option(format!("[columns.{name}]: there is no such column; there are {known}")));
        }
        let (mut schema, mut columns) = (TableSchema::default(), Vec::new());
        let usual = ColumnAsk::default();
        for column in &self.columns {
            let ask = asks.get(&column.name).unwrap_or(&usual);
            let decided =
                column.decide(ask, self.rows).map_err(|error| error.at(format_args!("column `{}`", column.name)))?;
            columns.push(ColumnReport {
                name: column.name.clone(),
                cell_type: column.cell_type().0,
                understood_as: String::new(),
                categories: None,
                names_left_out: 0,
                missing: column.num_missing(&decided),
                note: column.cell_type().1,
            });
            let report = columns.last_mut().expect("was just added");
            match decided {
                Decided::Ignored(why) => {
                    report.understood_as = format!("ignored: {why}");
                    schema.ignored.push(IgnoredColumn { name: column.name.clone(), why });
                }
                Decided::Column(decided) => {
                    report.understood_as = decided.understood_as();
                    report.categories = decided.num_cats();
                    if let Meaning::Category { vocabulary, unseen } = &decided.meaning {
                        let known: HashSet<&Label> = vocabulary.iter().collect();
                        let names = column.names(decided.cell_type);
                        let left_out = names.iter().filter(|(name, _)| !known.contains(name)).count();
                        match unseen {
                            Unseen::Other => report.names_left_out = left_out,
                            Unseen::Error if left_out > 0 => {
                                let note = format!("{left_out} names of the first rows are not in it: bad records");
                                report.note = Some(report.note.take().map_or(note.clone(), |n| format!("{n}; {note}")));
                            }
                            Unseen::Error => {}
                        }
                    }
                    schema.columns.push(decided);
                }
            }
        }
        if schema.columns.is_empty() {
            return Err(Error::data(match schema.ignored.first() {
                None => "the table has no column".to_string(),
                Some(first) => format!(
                    "no column to learn from: all {} are ignored (`{}`: {}); say [columns.NAME] as = …",
                    schema.ignored.len(),
                    first.name,
                    first.why
                ),
            }));
        }
        schema.check()?;
        Ok(Inferred { schema, columns, rows: self.rows })
    }
}

enum Decided {
    Column(ColumnSchema),
    Ignored(String),
}

impl Observed {
    /// Cells that are missing, as the column is understood.
    fn num_missing(&self, decided: &Decided) -> u64 {
        let is_named = match decided {
            Decided::Column(column) => {
                column.cell_type == CellType::Text && matches!(column.meaning, Meaning::Category { .. })
            }
            Decided::Ignored(_) => false,
        };
        let words = self.kinds.get(&Kind::Missing).copied().unwrap_or_default();
        self.nulls + if is_named { 0 } else { words }
    }

    fn decide(&self, ask: &ColumnAsk, rows: u64) -> Result<Decided> {
        check_ask(ask)?;
        let asked = ask.implied();
        if asked == Some(AskedMeaning::Ignore) {
            return Ok(Decided::Ignored("as asked".into()));
        }
        let Some(cell_type) = self.cell_type().0 else {
            return match (asked, &ask.vocabulary) {
                (Some(AskedMeaning::Category), Some(_)) => self.category(CellType::Text, ask),
                (None, _) => Ok(Decided::Ignored(format!("nothing in the first {rows} rows"))),
                (Some(asked), _) => Err(Error::data(format!(
                    "as = \"{}\": nothing but nulls in the first {rows} rows, from which it would be learned",
                    asked.name()
                ))),
            };
        };
        let asked = match asked {
            Some(asked) => asked,
            None => match self.usual_meaning(cell_type) {
                Ok(meaning) => meaning,
                Err(why) => return Ok(Decided::Ignored(why)),
            },
        };
        let column =
            |meaning: Meaning| Ok(Decided::Column(ColumnSchema { name: self.name.clone(), cell_type, meaning }));
        let refuse = |needs: &str| {
            Err(Error::data(format!(
                "as = \"{}\": needs {needs}, and the first rows hold {}",
                asked.name(),
                cell_type.name()
            )))
        };
        match asked {
            AskedMeaning::Category => self.category(cell_type, ask),
            AskedMeaning::Bool => match ask.distribution {
                Some(AskedDistribution::Bernoulli) => {
                    column(Meaning::Bool { distribution: BoolDistribution::Bernoulli })
                }
                _ => column(Meaning::Bool { distribution: BoolDistribution::Categorical }),
            },
            AskedMeaning::Count if !self.are_whole() => refuse("whole numbers"),
            AskedMeaning::Count => column(Meaning::Count {
                distribution: match ask.distribution {
                    Some(AskedDistribution::Poisson) => CountDistribution::Poisson,
                    Some(AskedDistribution::Binomial) => CountDistribution::Binomial(ask.trials.unwrap_or_else(|| {
                        let most = self.wholes.keys().copied().max().unwrap_or(1).max(1);
                        u32::try_from(most).unwrap_or(u32::MAX)
                    })),
                    _ => CountDistribution::NegativeBinomial,
                },
            }),
            AskedMeaning::Number | AskedMeaning::Bins if self.numbers.is_empty() && cell_type != CellType::Bool => {
                refuse("numbers")
            }
            AskedMeaning::Number if ask.distribution == Some(AskedDistribution::DiscreteLogistic) => {
                if !self.are_whole() {
                    return refuse("whole numbers");
                }
                let known = || (self.wholes.keys().copied().min(), self.wholes.keys().copied().max());
                let (low, high) = match (ask.range, known()) {
                    (Some(range), _) => range,
                    (None, (Some(low), Some(high))) => (low, high),
                    (None, _) => return refuse("whole numbers"),
                };
                if i128::from(high) - i128::from(low) >= i128::from(MOST_CATS) {
                    return Err(Error::data(format!(
                        "{low} to {high} are too many for a discrete logistic distribution"
                    )));
                }
                column(Meaning::Range { low, high })
            }
            AskedMeaning::Number => column(Meaning::Number),
            AskedMeaning::Bins => {
                let (edges, means) = quantile_bins(&self.numbers, ask.bins.unwrap_or(DEFAULT_BINS) as usize);
                column(Meaning::Bins { edges, means })
            }
            AskedMeaning::Time | AskedMeaning::Part(_) if self.times.is_empty() => refuse("dates or times"),
            AskedMeaning::Time => {
                let mut times = self.times.clone();
                times.sort_unstable();
                let middle = times[times.len() / 2];
                column(Meaning::Time { origin: middle.div_euclid(MICROS_PER_DAY) * MICROS_PER_DAY })
            }
            AskedMeaning::Part(part) => column(Meaning::Part { part }),
            AskedMeaning::Ignore => unreachable!("answered above"),
        }
    }

    /// What the rule says, or why the column is ignored.
    fn usual_meaning(&self, cell_type: CellType) -> std::result::Result<AskedMeaning, String> {
        let present = self.num_present();
        match cell_type {
            CellType::Bool => Ok(AskedMeaning::Bool),
            CellType::Date | CellType::Time => Ok(AskedMeaning::Time),
            CellType::Text => {
                let distinct = self.names(cell_type).len() as u64 + self.long_texts;
                match present >= ENOUGH_ROWS && 10 * distinct > 9 * present {
                    true => Err(format!("{distinct} different texts in {present} rows: names or identifiers")),
                    false => Ok(AskedMeaning::Category),
                }
            }
            CellType::Int | CellType::Float if self.are_whole() => {
                let distinct = self.wholes.len();
                let (low, high) = (self.wholes.keys().min(), self.wholes.keys().max());
                let span = low.zip(high).map_or(0, |(low, high)| i128::from(*high) - i128::from(*low) + 1);
                if present >= ENOUGH_ROWS && distinct as u64 == present && span <= 2 * i128::from(present) {
                    return Err(format!("{present} different whole numbers of {span}: numbers of rows"));
                }
                if distinct <= MOST_NAMED && 2 * distinct as u64 <= present {
                    return Ok(AskedMeaning::Category);
                }
                let are_counts = low.is_some_and(|low| *low >= 0) && high.is_some_and(|high| *high <= LARGEST_COUNT);
                match are_counts && median(&self.numbers) <= MEDIAN_COUNT {
                    true => Ok(AskedMeaning::Count),
                    false => self.as_number(),
                }
            }
            CellType::Int | CellType::Float => self.as_number(),
        }
    }

    /// A number, unless a density cannot square all of them.
    fn as_number(&self) -> std::result::Result<AskedMeaning, String> {
        match self.numbers.iter().find(|number| !number.is_finite() || number.abs() > f64::from(LARGEST_REAL)) {
            None => Ok(AskedMeaning::Number),
            Some(number) => Err(format!("{number:e} is outside ±{LARGEST_REAL:e}: rescale it, or say bins = …")),
        }
    }

    fn category(&self, cell_type: CellType, ask: &ColumnAsk) -> Result<Decided> {
        let unseen = ask.unseen.unwrap_or_default();
        let vocabulary: Vec<Label> = match &ask.vocabulary {
            Some(names) => {
                let labels = names.iter().filter_map(|name| label_of(&Cell::Raw(name.into()), cell_type));
                let (mut seen, labels) = (HashSet::new(), labels.collect::<Vec<_>>());
                if let Some(twice) = labels.iter().find(|label| !seen.insert(*label)) {
                    return Err(Error::option(format!("vocabulary: `{}` is there twice", brief(&twice.to_string()))));
                }
                labels
            }
            None => {
                let slots = ask.categories.unwrap_or(DEFAULT_CATEGORIES) as usize;
                let room = slots.saturating_sub(usize::from(unseen == Unseen::Other)).max(1);
                let names = self.names(cell_type);
                if unseen == Unseen::Error && names.len() > room {
                    return Err(Error::option(format!(
                        "unseen = \"error\": {} names in the first rows are more than {room} categories; say more \
                         (categories = …) or unseen = \"other\"",
                        names.len()
                    )));
                }
                let mut labels: Vec<Label> = names.into_iter().take(room).map(|(label, _)| label).collect();
                if labels.iter().all(|label| !matches!(label, Label::Text(_))) {
                    labels.sort(); // numbers in their order
                }
                labels
            }
        };
        if vocabulary.is_empty() {
            return Err(Error::data("no name among the first rows: say vocabulary = …"));
        }
        let meaning = Meaning::Category { vocabulary, unseen };
        Ok(Decided::Column(ColumnSchema { name: self.name.clone(), cell_type, meaning }))
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Edges of `bins` bins with about as many numbers each, fewer where numbers repeat, and the mean of each.
fn quantile_bins(numbers: &[f64], bins: usize) -> (Vec<f64>, Vec<f64>) {
    let mut sorted: Vec<f64> = numbers.iter().copied().filter(|number| number.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(&low), Some(&high)) = (sorted.first(), sorted.last()) else { return (vec![0.0, 1.0], vec![0.0]) };
    let mut edges = vec![low];
    for bin in 1..bins.max(1) {
        let edge = sorted[bin * sorted.len() / bins];
        if edges.last().is_some_and(|last| edge > *last) {
            edges.push(edge); // a number of the data: no bin is empty
        }
    }
    edges.push(if edges.last().is_some_and(|last| high > *last) { high } else { high.next_up() });
    let num_bins = edges.len() - 1;
    let (mut sums, mut counts) = (vec![0.0; num_bins], vec![0.0; num_bins]);
    for &number in &sorted {
        let bin = bin_of(&edges, number);
        sums[bin] += number;
        counts[bin] += 1.0;
    }
    let mean = |bin: usize| {
        let mean: f64 = sums[bin] / counts[bin];
        if mean.is_finite() && bin_of(&edges, mean) == bin { mean } else { edges[bin] } // rounding may leave the bin
    };
    let means = (0..num_bins).map(mean).collect();
    (edges, means)
}
