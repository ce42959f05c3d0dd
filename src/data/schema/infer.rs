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

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::civil::{MICROS_PER_DAY, parse_date, parse_timestamp};
use super::super::{Cell, CellType, Cells, LARGEST_REAL};
use super::encode::{LARGEST_COUNT, bin_of, brief, is_whole, label_of, parse_number, says_missing};
use super::{
    BoolDistribution, ColumnSchema, CountDistribution, IgnoredColumn, Label, MOST_CATS, Meaning, TableSchema, TimePart,
    Unseen,
};
use crate::error::{Error, Result};

/// Slots of a category column where nothing is said: so many names, one of them *other*.
pub const DEFAULT_CATEGORIES: u32 = 256;

/// Bins where nothing is said.
pub const DEFAULT_BINS: u32 = 16;

/// Whole numbers that are names: at most so many different ones.
const MOST_NAMED: usize = 32;

/// Whole numbers that are counts: half of them are at most this.
const MEDIAN_COUNT: f64 = 16.0;

/// A longer text is no name: it would only take memory. In a column of names it is *other*.
const LONGEST_NAME: usize = 1024;

/// Fewer rows tell nothing about identifiers.
const ENOUGH_ROWS: u64 = 32;

/// What a user says of a column. What is not said follows the rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnAsk {
    /// What it is understood as.
    pub meaning: Option<AskedMeaning>,
    /// Slots of a category column, *other* among them.
    pub categories: Option<u32>,
    /// The names of its categories.
    pub vocabulary: Option<Vec<String>>,
    /// What other names mean.
    pub unseen: Option<Unseen>,
    /// Quantile bins.
    pub bins: Option<u32>,
    /// What its inputs are.
    pub distribution: Option<AskedDistribution>,
    /// Trials of binomial counts.
    pub trials: Option<u32>,
    /// Least and largest of whole numbers under a discrete logistic distribution.
    pub range: Option<(i64, i64)>,
}

/// What a user says that a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedMeaning {
    /// One of a list of names.
    Category,
    /// True or false.
    Bool,
    /// How many.
    Count,
    /// A number.
    Number,
    /// A number in quantile bins.
    Bins,
    /// A date or time as a number.
    Time,
    /// Part of it.
    Part(TimePart),
    /// Not a variable.
    Ignore,
}

/// Every meaning by its name in files.
pub const MEANINGS: [(&str, AskedMeaning); 13] = [
    ("category", AskedMeaning::Category),
    ("bool", AskedMeaning::Bool),
    ("count", AskedMeaning::Count),
    ("number", AskedMeaning::Number),
    ("bins", AskedMeaning::Bins),
    ("time", AskedMeaning::Time),
    ("minute", AskedMeaning::Part(TimePart::Minute)),
    ("hour", AskedMeaning::Part(TimePart::Hour)),
    ("weekday", AskedMeaning::Part(TimePart::Weekday)),
    ("day", AskedMeaning::Part(TimePart::Day)),
    ("month", AskedMeaning::Part(TimePart::Month)),
    ("quarter", AskedMeaning::Part(TimePart::Quarter)),
    ("ignore", AskedMeaning::Ignore),
];

impl AskedMeaning {
    /// The name in files.
    pub fn name(self) -> &'static str {
        MEANINGS.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

/// What a user says that the inputs of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedDistribution {
    /// Tables.
    Categorical,
    /// One probability.
    Bernoulli,
    /// Counts of some trials.
    Binomial,
    /// Counts.
    Poisson,
    /// Counts.
    NegativeBinomial,
    /// Densities.
    Gaussian,
    /// Ordered categories.
    DiscreteLogistic,
}

/// Every distribution by its name in files.
pub const DISTRIBUTIONS: [(&str, AskedDistribution); 7] = [
    ("categorical", AskedDistribution::Categorical),
    ("bernoulli", AskedDistribution::Bernoulli),
    ("binomial", AskedDistribution::Binomial),
    ("poisson", AskedDistribution::Poisson),
    ("negative-binomial", AskedDistribution::NegativeBinomial),
    ("gaussian", AskedDistribution::Gaussian),
    ("discrete-logistic", AskedDistribution::DiscreteLogistic),
];

impl AskedDistribution {
    fn name(self) -> &'static str {
        DISTRIBUTIONS.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

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

#[derive(Clone, Debug, Default)]
struct Observed {
    name: String,
    /// Cells by what they are.
    nulls: u64,
    kinds: BTreeMap<Kind, u64>,
    /// Texts and what is written as one, with how often.
    texts: HashMap<String, u64>,
    /// Texts that are longer than any name.
    long_texts: u64,
    truths: [u64; 2],
    numbers: Vec<f64>,
    /// Whole numbers, which a real one may not hold.
    wholes: HashMap<i64, u64>,
    times: Vec<i64>,
}

/// What a cell is, or spells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Bool,
    Int,
    Float,
    Date,
    Time,
    Text,
    /// A text that stands for nothing, if the column is not one of names.
    Missing,
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
    fn see(&mut self, cell: &Cell<'_>) {
        let kind = match cell {
            Cell::Null => None,
            Cell::Float(number) if number.is_nan() => None,
            Cell::Bool(truth) => {
                self.truths[usize::from(*truth)] += 1;
                Some(Kind::Bool)
            }
            Cell::Int(number) => {
                self.see_whole(*number);
                Some(Kind::Int)
            }
            Cell::Float(number) => {
                self.see_number(*number);
                Some(Kind::Float)
            }
            Cell::Date(days) => {
                self.times.push(days.saturating_mul(MICROS_PER_DAY));
                *self.texts.entry(cell.to_string()).or_default() += 1;
                Some(Kind::Date)
            }
            Cell::Time(micros) => {
                self.times.push(*micros);
                *self.texts.entry(cell.to_string()).or_default() += 1;
                Some(Kind::Time)
            }
            // Writers that quote everything write nothing like this; a name is never empty.
            Cell::Text(text) | Cell::Raw(text) if text.is_empty() => None,
            Cell::Text(text) => Some(self.see_text(text, false)),
            Cell::Raw(text) => Some(self.see_text(text, true)),
        };
        match kind {
            None => self.nulls += 1,
            Some(kind) => *self.kinds.entry(kind).or_default() += 1,
        }
    }

    fn see_whole(&mut self, number: i64) {
        *self.wholes.entry(number).or_default() += 1;
        self.numbers.push(number as f64);
    }

    fn see_number(&mut self, number: f64) {
        if is_whole(number) {
            *self.wholes.entry(number as i64).or_default() += 1;
        }
        self.numbers.push(number);
    }

    fn see_text(&mut self, text: &str, is_untyped: bool) -> Kind {
        if text.len() <= LONGEST_NAME {
            *self.texts.entry(text.to_string()).or_default() += 1;
        } else {
            self.long_texts += 1;
        }
        let trimmed = text.trim();
        if let Some(days) = parse_date(trimmed) {
            self.times.push(days * MICROS_PER_DAY);
            return Kind::Date;
        }
        if let Some(micros) = parse_timestamp(trimmed) {
            self.times.push(micros);
            return Kind::Time;
        }
        if !is_untyped {
            return Kind::Text;
        }
        if says_missing(trimmed) {
            return Kind::Missing;
        }
        if trimmed.eq_ignore_ascii_case("true") || trimmed.eq_ignore_ascii_case("false") {
            self.truths[usize::from(trimmed.eq_ignore_ascii_case("true"))] += 1;
            return Kind::Bool;
        }
        if has_leading_zero(trimmed) {
            return Kind::Text;
        }
        if let Ok(number) = trimmed.parse() {
            self.see_whole(number);
            return Kind::Int;
        }
        match parse_number(trimmed) {
            Some(number) => {
                self.see_number(number);
                Kind::Float
            }
            None => Kind::Text,
        }
    }

    /// What all cells are, if there are any, and a note where they are not alike.
    fn cell_type(&self) -> (Option<CellType>, Option<String>) {
        let kinds: Vec<Kind> = self.kinds.keys().copied().filter(|kind| *kind != Kind::Missing).collect();
        let cell_type = match &kinds[..] {
            [] if self.kinds.contains_key(&Kind::Missing) => CellType::Text,
            [] => return (None, None),
            [Kind::Bool] => CellType::Bool,
            [Kind::Int] => CellType::Int,
            [Kind::Float] | [Kind::Int, Kind::Float] => CellType::Float,
            [Kind::Date] => CellType::Date,
            [Kind::Time] | [Kind::Date, Kind::Time] => CellType::Time,
            [Kind::Text] => CellType::Text,
            [first, .., last] => {
                let counts = |kind: &Kind| self.kinds.get(kind).copied().unwrap_or_default();
                let (some, more) = (counts(first), counts(last));
                let note = format!("holds {} ({some}) besides {} ({more}): read as texts", first.name(), last.name());
                return (Some(CellType::Text), Some(note));
            }
            [Kind::Missing] => unreachable!("left out above"),
        };
        (Some(cell_type), None)
    }

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

    /// Names of categories with how often they occur, most frequent first, equals in their order.
    fn names(&self, cell_type: CellType) -> Vec<(Label, u64)> {
        let mut names: BTreeMap<Label, u64> = BTreeMap::new();
        let mut add = |cell: &Cell<'_>, count: u64| {
            if let Some(label) = label_of(cell, cell_type).filter(|_| count > 0) {
                *names.entry(label).or_default() += count;
            }
        };
        let are_numbers = matches!(cell_type, CellType::Int | CellType::Float);
        match cell_type {
            CellType::Bool => (0..2).for_each(|truth| add(&Cell::Bool(truth == 1), self.truths[truth])),
            CellType::Int => self.wholes.iter().for_each(|(number, count)| add(&Cell::Int(*number), *count)),
            CellType::Float => self.numbers.iter().for_each(|number| add(&Cell::Float(*number), 1)),
            CellType::Text => {
                // Cells of JSON may be numbers besides texts; what was written as a text is there already.
                self.texts.iter().for_each(|(text, count)| add(&Cell::Text(text.into()), *count));
                let typed = self.texts.is_empty() || !self.is_untyped();
                if typed {
                    (0..2).for_each(|truth| add(&Cell::Text((truth == 1).to_string().into()), self.truths[truth]));
                    self.wholes.iter().for_each(|(number, count)| add(&Cell::Int(*number), *count));
                    let fractions = self.numbers.iter().filter(|number| !is_whole(**number));
                    fractions.for_each(|number| add(&Cell::Float(*number), 1));
                }
            }
            CellType::Date | CellType::Time => {
                self.texts.iter().for_each(|(text, count)| add(&Cell::Text(text.into()), *count));
            }
        }
        let mut names: Vec<(Label, u64)> = names.into_iter().collect();
        if !are_numbers {
            names.retain(|(label, _)| *label != Label::Text(String::new()) || !self.is_untyped());
        }
        names.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // stable: equals stay in order
        names
    }

    /// Returns true if texts that spell numbers are counted among the texts already.
    fn is_untyped(&self) -> bool {
        let written: u64 = self.texts.values().sum::<u64>() + self.long_texts;
        let seen: u64 = self.kinds.values().sum();
        written == seen
    }

    fn num_present(&self) -> u64 {
        self.kinds.iter().filter(|(kind, _)| **kind != Kind::Missing).map(|(_, count)| count).sum()
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

    fn are_whole(&self) -> bool {
        !self.numbers.is_empty() && self.numbers.iter().all(|number| is_whole(*number))
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

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => CellType::Bool.name(),
            Self::Int => CellType::Int.name(),
            Self::Float => CellType::Float.name(),
            Self::Date => CellType::Date.name(),
            Self::Time => CellType::Time.name(),
            Self::Text => CellType::Text.name(),
            Self::Missing => "nothing",
        }
    }
}

impl ColumnAsk {
    /// Returns true if the column is not to be learned from.
    pub fn is_ignored(&self) -> bool {
        self.implied() == Some(AskedMeaning::Ignore)
    }

    /// Returns true if a meaning is what was asked for, as far as something was.
    pub fn agrees_with(&self, column: &ColumnSchema) -> bool {
        let meaning = &column.meaning;
        let is_meant = match (self.implied(), meaning) {
            (None, _) => true,
            (Some(AskedMeaning::Part(asked)), Meaning::Part { part }) => asked == *part,
            (Some(asked), meaning) => matches!(
                (asked, meaning),
                (AskedMeaning::Category, Meaning::Category { .. })
                    | (AskedMeaning::Bool, Meaning::Bool { .. })
                    | (AskedMeaning::Count, Meaning::Count { .. })
                    | (AskedMeaning::Number, Meaning::Number | Meaning::Range { .. })
                    | (AskedMeaning::Bins, Meaning::Bins { .. })
                    | (AskedMeaning::Time, Meaning::Time { .. })
            ),
        };
        is_meant
            && match meaning {
                Meaning::Category { vocabulary, unseen } => {
                    let slots = vocabulary.len() + usize::from(*unseen == Unseen::Other);
                    let same = |names: &Vec<String>| {
                        let labels =
                            names.iter().filter_map(|name| label_of(&Cell::Raw(name.into()), column.cell_type));
                        labels.eq(vocabulary.iter().cloned())
                    };
                    self.unseen.is_none_or(|asked| asked == *unseen)
                        && self.categories.is_none_or(|most| slots <= most as usize)
                        && self.vocabulary.as_ref().is_none_or(same)
                }
                Meaning::Bool { distribution } => self.distribution.is_none_or(|asked| {
                    (asked == AskedDistribution::Bernoulli) == (*distribution == BoolDistribution::Bernoulli)
                }),
                Meaning::Count { distribution } => match (self.distribution, distribution) {
                    (Some(AskedDistribution::Binomial), CountDistribution::Binomial(trials)) => {
                        self.trials.is_none_or(|asked| asked == *trials)
                    }
                    (Some(AskedDistribution::Binomial), _) => false,
                    (Some(AskedDistribution::Poisson), other) => *other == CountDistribution::Poisson,
                    (_, other) => *other == CountDistribution::NegativeBinomial,
                },
                Meaning::Number => self.distribution != Some(AskedDistribution::DiscreteLogistic),
                Meaning::Range { low, high } => {
                    self.distribution == Some(AskedDistribution::DiscreteLogistic)
                        && self.range.is_none_or(|asked| asked == (*low, *high))
                }
                Meaning::Bins { means, .. } => means.len() <= self.bins.unwrap_or(DEFAULT_BINS) as usize,
                Meaning::Time { .. } | Meaning::Part { .. } => true,
            }
    }

    /// What is said, or what the other keys imply.
    fn implied(&self) -> Option<AskedMeaning> {
        self.meaning.or_else(|| {
            if self.bins.is_some() {
                return Some(AskedMeaning::Bins);
            }
            if self.categories.is_some() || self.vocabulary.is_some() || self.unseen.is_some() {
                return Some(AskedMeaning::Category);
            }
            self.distribution.map(|distribution| match distribution {
                AskedDistribution::Categorical => AskedMeaning::Category,
                AskedDistribution::Bernoulli => AskedMeaning::Bool,
                AskedDistribution::Binomial | AskedDistribution::Poisson | AskedDistribution::NegativeBinomial => {
                    AskedMeaning::Count
                }
                AskedDistribution::Gaussian | AskedDistribution::DiscreteLogistic => AskedMeaning::Number,
            })
        })
    }
}

/// Refuses keys that contradict each other.
fn check_ask(ask: &ColumnAsk) -> Result<()> {
    use AskedDistribution as D;
    use AskedMeaning as M;
    if ask.trials.is_some() && ask.distribution != Some(D::Binomial) {
        return Err(Error::option("trials: has no meaning but for distribution = \"binomial\""));
    }
    if ask.range.is_some() && ask.distribution != Some(D::DiscreteLogistic) {
        return Err(Error::option("range: has no meaning but for distribution = \"discrete-logistic\""));
    }
    let Some(meaning) = ask.implied() else { return Ok(()) };
    let refuse = |key: &str| Err(Error::option(format!("{key}: has no meaning for as = \"{}\"", meaning.name())));
    let fits = match ask.distribution {
        None => true,
        Some(D::Categorical) => matches!(meaning, M::Category | M::Bool | M::Bins | M::Part(_)),
        Some(D::Bernoulli) => meaning == M::Bool,
        Some(D::Binomial | D::Poisson | D::NegativeBinomial) => meaning == M::Count,
        Some(D::Gaussian) => matches!(meaning, M::Number | M::Time),
        Some(D::DiscreteLogistic) => meaning == M::Number,
    };
    if !fits {
        return refuse(&format!("distribution = \"{}\"", ask.distribution.map_or("", D::name)));
    }
    if ask.bins.is_some() && meaning != M::Bins {
        return refuse("bins");
    }
    let of_categories = [
        ("categories", ask.categories.is_some()),
        ("vocabulary", ask.vocabulary.is_some()),
        ("unseen", ask.unseen.is_some()),
    ];
    if meaning != M::Category
        && let Some((key, _)) = of_categories.into_iter().find(|(_, is_said)| *is_said)
    {
        return refuse(key);
    }
    if ask.categories.is_some() && ask.vocabulary.is_some() {
        return Err(Error::option("categories: has no meaning beside vocabulary, which has as many as it lists"));
    }
    Ok(())
}

/// `007` is a name, `0`, `0.5` and `-0` are numbers.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit()
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
