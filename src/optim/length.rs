//! How long a part of a schedule lasts: so many updates, rows or epochs.
//!
//! What is written keeps its unit, so that it means the same for other batches. Optimizers count updates: a [`Pace`]
//! says how many of them a row and an epoch make, once the data is open.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// A length in the unit it was written in: a plain number of updates, or a text such as `"10 epochs"`.
///
/// ```
/// use anemone::optim::{Length, Schedule};
///
/// let by_updates = Schedule::cosine(0.4, 0.02, 940);
/// let by_epochs = Schedule::cosine(0.4, 0.02, Length::Epochs(10.0));
/// assert_eq!(Schedule::cosine(0.4, 0.02, "10 epochs".parse::<Length>()?), by_epochs);
/// assert_ne!(by_updates, by_epochs);
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Updates of the parameters.
    Updates(f64),
    /// Rows learned from.
    Rows(f64),
    /// Passes over the data.
    Epochs(f64),
}

/// Longer than any run, and still far from where the arithmetic of a step ends.
const LONGEST: f64 = 1e18;

/// What may be written.
pub(crate) const ACCEPTED: &str =
    "a number of updates, or a text such as \"10 epochs\", \"200000 rows\" or \"940 updates\"";

impl Length {
    /// The length in updates; `None` in another unit, before it is [resolved](Self::resolved).
    pub fn in_updates(self) -> Option<f64> {
        match self {
            Self::Updates(updates) => Some(updates),
            Self::Rows(_) | Self::Epochs(_) => None,
        }
    }

    /// The same in updates. Epochs are refused where their number of rows is not known.
    pub fn resolved(self, pace: &Pace) -> Result<Self> {
        let updates = match self {
            Self::Updates(updates) => updates,
            Self::Rows(rows) => rows / pace.rows_per_update(),
            Self::Epochs(epochs) => match pace.updates_per_epoch() {
                Some(updates) => epochs * updates as f64,
                None => {
                    return Err(Error::option(
                        "how many rows an epoch of this source has is not known before it is read: give rows or \
                         updates, such as \"200000 rows\" or \"940 updates\"",
                    ));
                }
            },
        };
        Ok(Self::Updates(updates))
    }

    /// `factor` times as long, in the same unit. Whole updates stay whole, and what is there does not vanish.
    pub(super) fn stretched(self, factor: f64) -> Self {
        match self {
            Self::Updates(updates) if updates.fract() == 0.0 && updates > 0.0 => {
                Self::Updates((updates * factor).round().max(1.0))
            }
            Self::Updates(updates) => Self::Updates(updates * factor),
            Self::Rows(rows) => Self::Rows(rows * factor),
            Self::Epochs(epochs) => Self::Epochs(epochs * factor),
        }
    }

    /// Refuses a length of an option `name` that is none; `may_be_zero` where it can be left out.
    pub(super) fn check(self, name: &str, may_be_zero: bool) -> Result<()> {
        let (number, _) = self.parts();
        let is_length = (0.0..=LONGEST).contains(&number) && (may_be_zero || number > 0.0);
        let must = if may_be_zero { "0 or more" } else { "more than 0" };
        if is_length {
            Ok(())
        } else {
            let why = format!("{}: must be {must}, and at most {LONGEST:e}", self.written(name));
            Err(Error::option(why).with_key(name))
        }
    }

    /// `name = "10 epochs"`, as it is in a file.
    pub(super) fn written(self, name: &str) -> String {
        match self {
            Self::Updates(updates) => format!("{name} = {updates}"),
            Self::Rows(_) | Self::Epochs(_) => format!("{name} = \"{self}\""),
        }
    }

    fn parts(self) -> (f64, &'static str) {
        match self {
            Self::Updates(updates) => (updates, "update"),
            Self::Rows(rows) => (rows, "row"),
            Self::Epochs(epochs) => (epochs, "epoch"),
        }
    }
}

impl From<u64> for Length {
    /// So many updates.
    fn from(updates: u64) -> Self {
        Self::Updates(updates as f64)
    }
}

impl From<f64> for Length {
    /// So many updates.
    fn from(updates: f64) -> Self {
        Self::Updates(updates)
    }
}

impl fmt::Display for Length {
    /// As [`FromStr`] reads it: `10 epochs`, `1 row`, `0.5 updates`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.parts();
        write!(f, "{number} {unit}{}", if number == 1.0 { "" } else { "s" })
    }
}

impl FromStr for Length {
    type Err = Error;

    /// Reads a number and its unit.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::option(format!("{text:?}: expected {ACCEPTED}"));
        let (number, unit) = text.trim().split_once(char::is_whitespace).ok_or_else(refuse)?;
        let number = number.parse::<f64>().ok().filter(|&n| n.is_finite() && n >= 0.0).ok_or_else(refuse)?;
        match unit.trim_start() {
            "update" | "updates" => Ok(Self::Updates(number)),
            "row" | "rows" => Ok(Self::Rows(number)),
            "epoch" | "epochs" => Ok(Self::Epochs(number)),
            _ => Err(refuse()),
        }
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match *self {
            Self::Updates(n) if n.fract() == 0.0 && (0.0..=LONGEST).contains(&n) => serializer.serialize_u64(n as u64),
            Self::Updates(updates) => serializer.serialize_f64(updates),
            Self::Rows(_) | Self::Epochs(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ACCEPTED)
            }

            fn visit_u64<E: de::Error>(self, updates: u64) -> std::result::Result<Length, E> {
                Ok(Length::from(updates))
            }

            fn visit_i64<E: de::Error>(self, updates: i64) -> std::result::Result<Length, E> {
                u64::try_from(updates)
                    .map(Length::from)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(updates), &self))
            }

            fn visit_f64<E: de::Error>(self, updates: f64) -> std::result::Result<Length, E> {
                match updates >= 0.0 {
                    true => Ok(Length::Updates(updates)),
                    false => Err(E::invalid_value(de::Unexpected::Float(updates), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Length, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

/// How many updates a run makes of its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    batch_rows: u64,
    batches_per_update: u64,
    /// Batches of an epoch and the rows in them, where they are known.
    epoch: Option<(u64, u64)>,
}

impl Pace {
    /// The pace of epochs of `epoch_rows` rows, cut into batches, several of which may make one update.
    ///
    /// ```
    /// use anemone::optim::Pace;
    ///
    /// // 1000 rows are ten batches of 96 and one of 40, and these are four updates: the last has two batches.
    /// assert_eq!(Pace::new(Some(1000), 96, false, 3).updates_per_epoch(), Some(4));
    /// assert_eq!(Pace::new(Some(1000), 96, true, 2).updates_per_epoch(), Some(5));
    /// ```
    pub fn new(epoch_rows: Option<u64>, batch_rows: u64, drop_last: bool, batches_per_update: u64) -> Self {
        let (batch_rows, batches_per_update) = (batch_rows.max(1), batches_per_update.max(1));
        let epoch = epoch_rows.map(|rows| match drop_last {
            true => (rows / batch_rows, rows - rows % batch_rows),
            false => (rows.div_ceil(batch_rows), rows),
        });
        Self { batch_rows, batches_per_update, epoch }
    }

    /// Updates of an epoch, where its rows are known. The end of an epoch uses up an incomplete group of batches.
    pub fn updates_per_epoch(&self) -> Option<u64> {
        self.epoch.map(|(batches, _)| batches.div_ceil(self.batches_per_update).max(1))
    }

    /// Rows of an update; of an average one, because the last of an epoch is short.
    pub fn rows_per_update(&self) -> f64 {
        match (self.epoch, self.updates_per_epoch()) {
            (Some((_, rows @ 1..)), Some(updates)) => rows as f64 / updates as f64,
            _ => self.batch_rows as f64 * self.batches_per_update as f64,
        }
    }

    /// Updates of a run that ends after so many epochs or batches, whichever come first; `None` where that is not
    /// known.
    pub fn updates_of_run(&self, epochs: Option<u64>, batches: Option<u64>) -> Option<u64> {
        let of_batches = |batches: u64| match (self.epoch, self.updates_per_epoch()) {
            (Some((per_epoch @ 1.., _)), Some(updates)) => {
                (batches / per_epoch).saturating_mul(updates) + batches % per_epoch / self.batches_per_update
            }
            _ => batches / self.batches_per_update,
        };
        match (epochs, batches) {
            (None, None) => None,
            (None, Some(batches)) => Some(of_batches(batches)),
            (Some(epochs), batches) => {
                let whole = self.updates_per_epoch()?.saturating_mul(epochs);
                Some(batches.map_or(whole, |batches| whole.min(of_batches(batches))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them_and_nothing_else_is() {
        for (written, length) in [
            (json!(940), Length::Updates(940.0)),
            (json!(0), Length::Updates(0.0)),
            (json!(2.5), Length::Updates(2.5)),
            (json!("940 updates"), Length::Updates(940.0)),
            (json!("1 update"), Length::Updates(1.0)),
            (json!("10 epochs"), Length::Epochs(10.0)),
            (json!("1 epoch"), Length::Epochs(1.0)),
            (json!(" 0.5  epochs "), Length::Epochs(0.5)),
            (json!("200000 rows"), Length::Rows(200_000.0)),
            (json!("1e6 rows"), Length::Rows(1e6)),
        ] {
            assert_eq!(serde_json::from_value::<Length>(written.clone()).unwrap(), length, "{written}");
        }
        for written in [
            json!("10"),
            json!("epochs"),
            json!("ten epochs"),
            json!("10 weeks"),
            json!("10epochs"),
            json!("10 epochs 3 rows"),
            json!("-1 epochs"),
            json!("inf rows"),
            json!("nan rows"),
            json!(""),
            json!(-1),
            json!(-0.5),
            json!(true),
            json!([10]),
            Value::Null,
        ] {
            let error = serde_json::from_value::<Length>(written.clone()).unwrap_err().to_string();
            assert!(error.contains(ACCEPTED), "{written}: {error}");
        }
    }

    #[test]
    fn an_epoch_is_as_many_updates_as_its_groups_of_batches() {
        let updates = |length: Length, pace: &Pace| length.resolved(pace).unwrap().in_updates().unwrap();
        let (epoch, rows) = (Length::Epochs(1.0), Length::Rows(1000.0));
        // Ten whole batches of 96 rows and one of 40.
        let all = Pace::new(Some(1000), 96, false, 1);
        assert_eq!((updates(epoch, &all), updates(rows, &all)), (11.0, 11.0));
        assert_eq!(updates(Length::Epochs(0.5), &all), 5.5);
        let whole = Pace::new(Some(1000), 96, true, 1);
        assert_eq!(updates(epoch, &whole), 10.0);
        assert_eq!(updates(Length::Rows(960.0), &whole), 10.0, "rows that are left out do not count");
        let groups = Pace::new(Some(1000), 96, false, 4);
        assert_eq!((updates(epoch, &groups), updates(rows, &groups)), (3.0, 3.0));
        assert_eq!(updates(Length::Updates(7.0), &groups), 7.0);
        let exact = Pace::new(Some(960), 96, false, 2);
        assert_eq!((updates(epoch, &exact), updates(rows, &exact)), (5.0, 1000.0 / 192.0));
        let unknown = Pace::new(None, 96, false, 2);
        assert_eq!(updates(Length::Rows(960.0), &unknown), 5.0);
        let error = epoch.resolved(&unknown).unwrap_err().to_string();
        assert!(error.contains("give rows or updates"), "{error}");
    }

    #[test]
    fn a_run_has_the_updates_of_its_epochs_or_batches() {
        let groups = Pace::new(Some(1000), 96, false, 4); // 4 + 4 + 3 batches an epoch
        assert_eq!(groups.updates_of_run(Some(5), None), Some(15));
        assert_eq!(groups.updates_of_run(None, Some(11)), Some(3));
        assert_eq!(groups.updates_of_run(None, Some(18)), Some(4), "an epoch, a group and three batches");
        assert_eq!(groups.updates_of_run(Some(5), Some(18)), Some(4));
        assert_eq!(groups.updates_of_run(Some(1), Some(18)), Some(3));
        assert_eq!(groups.updates_of_run(None, None), None);
        let unknown = Pace::new(None, 96, false, 4);
        assert_eq!((unknown.updates_of_run(Some(5), Some(8)), unknown.updates_of_run(None, Some(9))), (None, Some(2)));
    }

    proptest! {
        #[test]
        fn a_length_that_was_written_is_read_again(
            number in prop_oneof![0.0..1e18, (0u64..1 << 50).prop_map(|n| n as f64)],
        ) {
            for length in [Length::Updates(number), Length::Rows(number), Length::Epochs(number)] {
                let written = serde_json::to_string(&length).unwrap();
                prop_assert_eq!(serde_json::from_str::<Length>(&written).unwrap(), length, "{}", written);
                prop_assert_eq!(length.to_string().parse::<Length>().unwrap(), length);
            }
        }

        #[test]
        fn no_text_panics(text in "[0-9a-z .e+-]{0,14}") {
            let _ = text.parse::<Length>();
        }
    }
}
