//! What a user says of a column: the keys of `[columns.NAME]`.
//!
//! What is not said follows the rule of `infer`. A key may imply another one (`bins` a meaning), and keys may
//! contradict each other, which is refused before any row is read.

use super::encode::label_of;
use super::infer::DEFAULT_BINS;
use super::{BoolDistribution, ColumnSchema, CountDistribution, Meaning, TimePart, Unseen};
use crate::data::Cell;
use crate::error::{Error, Result};

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
    pub(super) fn name(self) -> &'static str {
        DISTRIBUTIONS.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
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
    pub(super) fn implied(&self) -> Option<AskedMeaning> {
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
pub(super) fn check_ask(ask: &ColumnAsk) -> Result<()> {
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
