//! Has the stream changed? Detectors over the log-likelihood of batches before they were learned from.
//!
//! What a model expects of rows it has not seen falls when they come from another distribution, and rises while it
//! learns: only falls count. A [`DriftWatch`] joins small batches into observations of at least [`OBSERVATION_ROWS`]
//! rows, whose means are close to normal, and shows them to the detectors that are asked for. It is plain data: written
//! and read again it raises the same alarms, so it belongs into a checkpoint beside the cursor. No clocks, no chance.
//!
//! The pipeline's loop feeds it (`pipeline/run/drift.rs`); a program of your own gives it what
//! [`Learned`](super::Learned) says:
//!
//! ```
//! use anemone::learner::drift::{DriftSpec, DriftWatch};
//!
//! let mut watch = DriftWatch::new(&DriftSpec::default())?;
//! let usual = |batch: u32| -100.0 + f64::from(batch * 7 % 10) / 10.0;
//! assert!((0..200).all(|batch| watch.add(usual(batch), 64.0, 64).is_none()));
//! let alarm = (0..20).find_map(|batch| watch.add(usual(batch) - 3.0, 64.0, 64)).expect("a fall of ten deviations");
//! assert!(alarm.fall.after < alarm.fall.before);
//! # Ok::<(), anemone::Error>(())
//! ```

mod adwin;
mod page_hinkley;

use serde::{Deserialize, Serialize};

pub use adwin::Adwin;
pub use page_hinkley::PageHinkley;

use crate::error::{Error, Result};

/// Rows of an observation at the least.
pub const OBSERVATION_ROWS: u64 = 64;

/// Which detectors watch, and how sure they have to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DriftSpec {
    /// Which detectors.
    pub detector: DetectorKind,
    /// δ of ADWIN: about how likely a false alarm is at one observation.
    pub delta: f64,
    /// λ of Page–Hinkley: deviations below the usual, added up, that are an alarm.
    pub threshold: f64,
    /// Deviations that an observation may be below the usual before Page–Hinkley adds anything up.
    pub tolerance: f64,
}

impl Default for DriftSpec {
    fn default() -> Self {
        // A million rows are 15,625 observations at the most: δ says 0.16 false alarms in them.
        Self { detector: DetectorKind::Adwin, delta: 1e-5, threshold: 20.0, tolerance: 0.5 }
    }
}

impl DriftSpec {
    /// Refuses options outside their range.
    pub fn check(&self) -> Result<()> {
        let Self { delta, threshold, tolerance, .. } = *self;
        let holds = [
            ("delta", delta, delta > 0.0 && delta < 1.0, "in (0, 1)"),
            ("threshold", threshold, threshold > 0.0 && threshold.is_finite(), "positive and finite"),
            ("tolerance", tolerance, tolerance >= 0.0 && tolerance.is_finite(), "a number, 0 or more"),
        ];
        match holds.into_iter().find(|(.., holds, _)| !holds) {
            Some((name, value, _, must)) => {
                Err(Error::option(format!("{name} = {value}: must be {must}")).with_key(name))
            }
            None => Ok(()),
        }
    }
}

/// Which detectors watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DetectorKind {
    /// ADWIN.
    #[default]
    Adwin,
    /// Page–Hinkley.
    PageHinkley,
    /// Both; either may raise an alarm.
    Both,
    /// Nobody.
    None,
}

impl DetectorKind {
    /// Every kind by its name in files.
    pub const ALL: [(&'static str, Self); 4] =
        [("adwin", Self::Adwin), ("page-hinkley", Self::PageHinkley), ("both", Self::Both), ("none", Self::None)];

    /// The name in files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// A fall of the log-likelihood that chance does not explain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fall {
    /// Mean log-likelihood before it, in nats per row.
    pub before: f64,
    /// And since.
    pub after: f64,
    /// About how many rows ago it was.
    pub rows: u64,
    /// Rows before it that it is held against.
    pub window: u64,
}

/// A detector that fired.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alarm {
    /// Which one; ADWIN where both did.
    pub detector: DetectorKind,
    /// What it found.
    pub fall: Fall,
}

/// Detectors and what waits to be shown to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriftWatch {
    adwin: Option<Adwin>,
    page_hinkley: Option<PageHinkley>,
    /// Batches that are not yet an observation: weighted sum, weight, rows.
    waiting: (f64, f64, u64),
}

impl DriftWatch {
    /// Nothing seen.
    pub fn new(spec: &DriftSpec) -> Result<Self> {
        let mut watch = Self::default();
        watch.set_options(spec)?;
        Ok(watch)
    }

    /// The same watch with other options; a detector that was not there begins.
    pub fn set_options(&mut self, spec: &DriftSpec) -> Result<()> {
        spec.check()?;
        let DriftSpec { detector, delta, threshold, tolerance } = *spec;
        self.adwin = matches!(detector, DetectorKind::Adwin | DetectorKind::Both)
            .then(|| self.adwin.take().unwrap_or_else(|| Adwin::new(delta)));
        self.page_hinkley = matches!(detector, DetectorKind::PageHinkley | DetectorKind::Both)
            .then(|| self.page_hinkley.take().unwrap_or_else(|| PageHinkley::new(threshold, tolerance)));
        self.adwin.iter_mut().for_each(|adwin| adwin.set_delta(delta));
        self.page_hinkley.iter_mut().for_each(|sum| sum.set_options(threshold, tolerance));
        Ok(())
    }

    /// Takes in the mean log-likelihood of a batch. What is no number, or weighs nothing, says nothing.
    pub fn add(&mut self, mean: f64, weight: f64, rows: u64) -> Option<Alarm> {
        if !(mean.is_finite() && weight.is_finite() && weight > 0.0) {
            return None;
        }
        let (sum, heavy, before) = self.waiting;
        self.waiting = (sum + mean * weight, heavy + weight, before + rows);
        if self.waiting.2 < OBSERVATION_ROWS {
            return None;
        }
        let (sum, weight, rows) = std::mem::take(&mut self.waiting);
        let mean = sum / weight;
        let by_adwin = self.adwin.as_mut().and_then(|adwin| adwin.add(mean, weight, rows));
        let by_sum = self.page_hinkley.as_mut().and_then(|detector| detector.add(mean, weight, rows));
        // Who fires speaks for both, or one change would be told twice.
        match (by_adwin, by_sum) {
            (Some(fall), _) => {
                self.page_hinkley.iter_mut().for_each(PageHinkley::reset);
                Some(Alarm { detector: DetectorKind::Adwin, fall })
            }
            (None, Some(fall)) => {
                self.adwin.iter_mut().for_each(Adwin::reset);
                Some(Alarm { detector: DetectorKind::PageHinkley, fall })
            }
            (None, None) => None,
        }
    }

    /// Forgets everything but the options: what follows is not to be compared with what was.
    pub fn reset(&mut self) {
        self.adwin.iter_mut().for_each(Adwin::reset);
        self.page_hinkley.iter_mut().for_each(PageHinkley::reset);
        self.waiting = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn kinds_are_written_by_their_names() {
        for (name, kind) in DetectorKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            assert_eq!(kind.name(), name);
        }
    }

    #[test]
    fn batches_of_any_size_make_the_same_observations() {
        let spec = DriftSpec { detector: DetectorKind::Both, ..DriftSpec::default() };
        let alarms = |batch_rows: usize| {
            let (mut watch, mut rng) = (DriftWatch::new(&spec).unwrap(), Rng::new(3));
            let rows: Vec<f64> =
                (0..64 * 300).map(|row| 9.0 * rng.uniform() - if row < 64 * 200 { 0.0 } else { 3.0 }).collect();
            let mut alarms = Vec::new();
            for (batch, rows) in rows.chunks(batch_rows).enumerate() {
                let mean = rows.iter().sum::<f64>() / rows.len() as f64;
                let alarm = watch.add(mean, rows.len() as f64, rows.len() as u64);
                alarms.extend(alarm.map(|alarm| ((batch + 1) * batch_rows, alarm.detector, alarm.fall.rows)));
            }
            alarms
        };
        let by_64 = alarms(64);
        assert!(!by_64.is_empty() && by_64.iter().all(|(row, ..)| *row > 64 * 200), "{by_64:?}");
        for batch_rows in [1, 2, 16, 32] {
            assert_eq!(alarms(batch_rows), by_64, "batches of {batch_rows}");
        }
    }

    #[test]
    fn what_is_no_number_or_weighs_nothing_says_nothing() {
        let mut watch = DriftWatch::new(&DriftSpec::default()).unwrap();
        for (mean, weight) in [(f64::NAN, 64.0), (f64::NEG_INFINITY, 64.0), (-1.0, 0.0), (-1.0, f64::NAN)] {
            assert_eq!(watch.add(mean, weight, 64), None);
        }
        assert_eq!(watch, DriftWatch::new(&DriftSpec::default()).unwrap());
    }

    #[test]
    fn other_options_keep_what_was_seen() {
        let spec = DriftSpec { detector: DetectorKind::Both, ..DriftSpec::default() };
        let mut watch = DriftWatch::new(&spec).unwrap();
        (0..50).for_each(|batch| assert!(watch.add(f64::from(batch % 3), 64.0, 64).is_none()));
        let mut other = watch.clone();
        other.set_options(&DriftSpec { delta: 0.5, threshold: 1.0, ..spec }).unwrap();
        assert_eq!(other.adwin.as_ref().unwrap().rows(), 50 * 64);
        other.set_options(&spec).unwrap();
        assert_eq!(other, watch);
        other.set_options(&DriftSpec { detector: DetectorKind::None, ..spec }).unwrap();
        assert!(other.adwin.is_none() && other.page_hinkley.is_none());
        assert_eq!(watch.set_options(&DriftSpec { delta: 1.0, ..spec }).unwrap_err().key(), Some("delta"));
    }
}
