//! Parts of dates and times that are categories: the hour, the day of the week, the month, …

use serde::{Deserialize, Serialize};

use super::super::civil::{MICROS_PER_DAY, date_of, weekday_of};

/// A part of a date or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimePart {
    /// Minute of the hour, 0 to 59.
    Minute,
    /// Hour of the day, 0 to 23.
    Hour,
    /// Day of the week, Monday first.
    Weekday,
    /// Day of the month, 1 to 31.
    Day,
    /// January to December.
    Month,
    /// Quarter of the year, 1 to 4.
    Quarter,
}

/// Every part by its name in files.
pub const PARTS: [(&str, TimePart); 6] = [
    ("minute", TimePart::Minute),
    ("hour", TimePart::Hour),
    ("weekday", TimePart::Weekday),
    ("day", TimePart::Day),
    ("month", TimePart::Month),
    ("quarter", TimePart::Quarter),
];

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

impl TimePart {
    /// The name in files.
    pub fn name(self) -> &'static str {
        PARTS.iter().find(|(_, part)| *part == self).map_or("", |(name, _)| name)
    }

    /// How many there are.
    pub fn num_cats(self) -> u32 {
        match self {
            Self::Minute => 60,
            Self::Hour => 24,
            Self::Weekday => 7,
            Self::Day => 31,
            Self::Month => 12,
            Self::Quarter => 4,
        }
    }

    /// The category of a time in microseconds since 1970.
    pub(super) fn of(self, micros: i64) -> u32 {
        let (days, of_day) = (micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY));
        match self {
            Self::Minute => (of_day / 60_000_000 % 60) as u32,
            Self::Hour => (of_day / 3_600_000_000) as u32,
            Self::Weekday => weekday_of(days),
            Self::Day => date_of(days).2 - 1,
            Self::Month => date_of(days).1 - 1,
            Self::Quarter => (date_of(days).1 - 1) / 3,
        }
    }

    /// What a category is decoded to: days of the week by name, everything else as people count.
    pub(super) fn name_of(self, category: u32) -> String {
        match self {
            Self::Weekday => WEEKDAYS[category as usize].to_string(),
            _ => self.number_of(category).to_string(),
        }
    }

    /// What people count a category as.
    pub(super) fn number_of(self, category: u32) -> i64 {
        i64::from(category) + i64::from(matches!(self, Self::Day | Self::Month | Self::Quarter))
    }

    /// The category of what [`name_of`](Self::name_of) says, or of its number.
    pub(super) fn category_of(self, text: &str) -> Option<u32> {
        (0..self.num_cats()).find(|&category| self.name_of(category) == text)
    }
}
