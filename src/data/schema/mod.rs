//! What the columns of a table mean: how a cell becomes the value of a variable, and how a value becomes a cell again.
//!
//! A [`TableSchema`] has a [`ColumnSchema`] for every variable, in the order of the variables. It is inferred from the
//! first rows, with what a user says of single columns ([`infer`], [`ask`]), and is kept with the model: whoever asks
//! the model later encodes rows and names answers by it. The data side encodes (`decode/table.rs`), the model side
//! makes a distribution of each [`ColumnSchema::input`].
//!
//! Laws: a cell that is encoded and decoded is the cell itself, but for what its meaning drops on purpose (the rest of
//! a category that is *other*, the place inside a bin, the date of an hour, digits beyond an `f32`); a value that is
//! decoded and encoded is the value.

pub mod ask;
mod encode;
pub mod infer;
mod part;
mod seen;

use serde::{Deserialize, Serialize};

pub use encode::ENCODED_AS_MISSING;
pub(crate) use encode::{parse_number, says_missing};
pub use part::TimePart;

use super::CellType;
use crate::error::{Error, Result};

/// What *other* is called.
pub const OTHER: &str = "other";

/// The columns of a table that are variables, and what they mean.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableSchema {
    /// One for each variable, in their order.
    pub columns: Vec<ColumnSchema>,
    /// Columns that are not learned from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredColumn>,
}

/// A column that is a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnSchema {
    /// Its name.
    pub name: String,
    /// What its cells are: what a decoded cell is.
    #[serde(rename = "type")]
    pub cell_type: CellType,
    /// What they mean.
    pub meaning: Meaning,
}

/// A column that is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredColumn {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// What the cells of a column mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "lowercase")]
pub enum Meaning {
    /// One of a list, or *other*.
    Category {
        /// The names, most frequent first; category `c` is `vocabulary[c]`.
        vocabulary: Vec<Label>,
        /// What a name that is not listed means.
        unseen: Unseen,
    },
    /// False or true: categories 0 and 1.
    Bool {
        /// What its inputs are.
        distribution: BoolDistribution,
    },
    /// How many of something: 0, 1, 2, …
    Count {
        /// What its inputs are.
        distribution: CountDistribution,
    },
    /// A number, as a density.
    Number,
    /// Whole numbers from `low` to `high`, as discrete logistic distributions: categories from `low` on.
    Range {
        /// The least.
        low: i64,
        /// The largest.
        high: i64,
    },
    /// Numbers in bins: categories 0 to n by n + 1 edges. Bin `b` holds what is below `edges[b + 1]` and not below
    /// `edges[b]`; the first and the last also what lies beyond.
    Bins {
        /// Ascending, one more than bins.
        edges: Vec<f64>,
        /// Mean of each bin over the first rows: what a bin is decoded to.
        means: Vec<f64>,
    },
    /// A date or a time as a number of days after `origin`, as a density.
    Time {
        /// Microseconds since 1970 that count as 0: near the data, where an `f32` has digits to spare.
        origin: i64,
    },
    /// Part of a date or time, as a category.
    Part {
        /// Which.
        part: TimePart,
    },
}

/// The name of a category.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Label {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A text, or what else a cell is as it is written.
    Text(String),
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// What a category that is not in the vocabulary means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unseen {
    /// It is *other*, a category of its own after those of the vocabulary.
    #[default]
    Other,
    /// The record is a bad one.
    Error,
}

/// What the inputs of a column of truths are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoolDistribution {
    /// Tables of two probabilities.
    #[default]
    Categorical,
    /// One probability each.
    Bernoulli,
}

/// What the inputs of a column of counts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountDistribution {
    /// As wide as its mean, or wider.
    #[default]
    NegativeBinomial,
    /// As wide as its mean.
    Poisson,
    /// Of so many trials; narrower than its mean.
    Binomial(u32),
}

/// What a circuit needs to know of a variable to make its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputSpec {
    /// Tables over so many categories.
    Categorical(u32),
    /// One probability; values are 0 and 1.
    Bernoulli,
    /// Counts up to so many trials.
    Binomial(u32),
    /// Counts.
    Poisson,
    /// Counts.
    NegativeBinomial,
    /// Real numbers.
    Gaussian,
    /// So many ordered categories.
    DiscreteLogistic(u32),
}

impl InputSpec {
    /// How many categories its values are; `None` for counts without a bound and real numbers, whose values are real.
    pub fn num_cats(self) -> Option<u32> {
        match self {
            Self::Categorical(cats) | Self::DiscreteLogistic(cats) => Some(cats),
            Self::Bernoulli => Some(2),
            Self::Binomial(trials) => Some(trials.saturating_add(1)),
            Self::Poisson | Self::NegativeBinomial | Self::Gaussian => None,
        }
    }

    /// The name of the family.
    pub fn name(self) -> &'static str {
        match self {
            Self::Categorical(_) => "categorical",
            Self::Bernoulli => "bernoulli",
            Self::Binomial(_) => "binomial",
            Self::Poisson => "poisson",
            Self::NegativeBinomial => "negative-binomial",
            Self::Gaussian => "gaussian",
            Self::DiscreteLogistic(_) => "discrete-logistic",
        }
    }
}

impl TableSchema {
    /// How many variables.
    pub fn num_vars(&self) -> usize {
        self.columns.len()
    }

    /// The variable of a column, if it is one.
    pub fn var(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// What the inputs of every variable are.
    pub fn input_specs(&self) -> Vec<InputSpec> {
        self.columns.iter().map(ColumnSchema::input).collect()
    }

    /// The name of a category of a variable; `None` if the variable has none, or not so many.
    pub fn category_name(&self, var: usize, category: u32) -> Option<String> {
        self.columns.get(var)?.category_name(category)
    }

    /// As JSON, which [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default() // a tree of plain values always is JSON
    }

    /// Reads and checks what [`to_json`](Self::to_json) wrote.
    pub fn from_json(json: &serde_json::Value) -> Result<Self> {
        let schema: Self =
            serde_json::from_value(json.clone()).map_err(|error| Error::format(format!("table schema: {error}")))?;
        schema.check()?;
        Ok(schema)
    }

    /// Refuses a schema by which nothing could be encoded: no column, a name twice, categories that are none.
    pub fn check(&self) -> Result<()> {
        if self.columns.is_empty() {
            return Err(Error::format("table schema: there is no column to learn from"));
        }
        for (var, column) in self.columns.iter().enumerate() {
            let refuse = |why: &str| Err(Error::format(format!("table schema: column `{}`: {why}", column.name)));
            if self.var(&column.name) != Some(var) {
                return refuse("is there twice");
            }
            match &column.meaning {
                Meaning::Category { vocabulary, .. } if vocabulary.is_empty() => return refuse("no category"),
                Meaning::Category { vocabulary, .. } => {
                    let distinct: std::collections::HashSet<&Label> = vocabulary.iter().collect();
                    if distinct.len() != vocabulary.len() {
                        return refuse("a category is there twice");
                    }
                }
                Meaning::Bins { edges, means } => {
                    let ascend = edges.windows(2).all(|pair| pair[0] < pair[1]);
                    let are_inside = means.len() + 1 == edges.len()
                        && means.iter().enumerate().all(|(bin, mean)| encode::bin_of(edges, *mean) == bin);
                    if means.is_empty() || !ascend || !are_inside {
                        return refuse("edges must ascend, and the mean of each bin lie in it");
                    }
                }
                Meaning::Range { low, high } if low > high => return refuse("low is above high"),
                _ => {}
            }
            if column.num_cats().is_some_and(|cats| cats == 0 || cats > MOST_CATS) {
                return refuse("too many categories");
            }
        }
        Ok(())
    }
}

/// The most categories of a column: every one is a whole number that an `f32` holds.
pub const MOST_CATS: u32 = 1 << 22;

impl ColumnSchema {
    /// What the inputs of the variable are.
    pub fn input(&self) -> InputSpec {
        let cats = |number: usize| InputSpec::Categorical(u32::try_from(number).unwrap_or(u32::MAX));
        match &self.meaning {
            Meaning::Category { vocabulary, unseen } => cats(vocabulary.len() + usize::from(*unseen == Unseen::Other)),
            Meaning::Bool { distribution: BoolDistribution::Categorical } => InputSpec::Categorical(2),
            Meaning::Bool { distribution: BoolDistribution::Bernoulli } => InputSpec::Bernoulli,
            Meaning::Count { distribution: CountDistribution::Poisson } => InputSpec::Poisson,
            Meaning::Count { distribution: CountDistribution::NegativeBinomial } => InputSpec::NegativeBinomial,
            Meaning::Count { distribution: CountDistribution::Binomial(trials) } => InputSpec::Binomial(*trials),
            Meaning::Number | Meaning::Time { .. } => InputSpec::Gaussian,
            Meaning::Range { low, high } => {
                let cats = i128::from(*high) - i128::from(*low) + 1;
                InputSpec::DiscreteLogistic(u32::try_from(cats).unwrap_or(u32::MAX))
            }
            Meaning::Bins { means, .. } => cats(means.len()),
            Meaning::Part { part } => InputSpec::Categorical(part.num_cats()),
        }
    }

    /// How many categories the values are; `None` where they are real.
    pub fn num_cats(&self) -> Option<u32> {
        self.input().num_cats()
    }

    /// The name of a category; `None` if there is none such.
    pub fn category_name(&self, category: u32) -> Option<String> {
        let cats = self.num_cats().filter(|&cats| category < cats)?;
        Some(match &self.meaning {
            Meaning::Category { vocabulary, .. } => {
                vocabulary.get(category as usize).map_or_else(|| OTHER.to_string(), ToString::to_string)
            }
            Meaning::Bins { edges, .. } => {
                let (low, high) = (edges[category as usize], edges[category as usize + 1]);
                if category + 1 == cats { format!("[{low}, {high}]") } else { format!("[{low}, {high})") }
            }
            Meaning::Part { part } => part.name_of(category),
            _ => self.decode(category as f32).to_string(),
        })
    }

    /// What the column is understood as, in a few words.
    pub fn understood_as(&self) -> String {
        match &self.meaning {
            Meaning::Category { .. } => "category".into(),
            Meaning::Bool { distribution: BoolDistribution::Categorical } => "bool".into(),
            Meaning::Bool { distribution: BoolDistribution::Bernoulli } => "bool (bernoulli)".into(),
            Meaning::Count { .. } => format!("count ({})", self.input().name()),
            Meaning::Number => "number (gaussian)".into(),
            Meaning::Range { low, high } => format!("number {low} to {high} (discrete-logistic)"),
            Meaning::Bins { .. } => "bins".into(),
            Meaning::Time { .. } => "time (gaussian, in days)".into(),
            Meaning::Part { part } => part.name().into(),
        }
    }
}

#[cfg(test)]
mod tests;
