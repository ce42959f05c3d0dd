//! `[drift]`: who watches for changes of the stream, and what happens when there is one.
//!
//! Where the section is written, or the source has no end that is known, ADWIN watches and reports. Files that end are
//! not watched unless somebody asks: their rows are usually shuffled, and come again.

use serde::{Deserialize, Serialize};

use super::document::Document;
use super::section::Section;
use super::source::SourceSpec;
use super::tables;
use crate::error::{Error, Result};
use crate::learner::DEFAULT_MEAN_ROWS;
use crate::learner::drift::{DetectorKind, DriftSpec};

/// Who watches for drift, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DriftSection {
    /// Detectors and their options.
    #[serde(flatten)]
    pub watch: DriftSpec,
    /// Rows of the windowed mean log-likelihood.
    pub mean_rows: u64,
    /// What happens when a detector fires.
    pub on_drift: OnDrift,
    /// How many of the checkpoints that drift asked for are kept.
    pub keep: usize,
}

/// What happens when a detector fires; it is told in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDrift {
    /// Nothing else.
    #[default]
    Report,
    /// The step is raised for a while.
    RaiseStep,
    /// A checkpoint is written at once, and kept.
    Checkpoint,
    /// The run ends, with a checkpoint.
    Stop,
}

impl OnDrift {
    const ALL: [(&'static str, Self); 4] = [
        ("report", Self::Report),
        ("raise-step", Self::RaiseStep),
        ("checkpoint", Self::Checkpoint),
        ("stop", Self::Stop),
    ];
}

impl Default for DriftSection {
    fn default() -> Self {
        Self { watch: DriftSpec::default(), mean_rows: DEFAULT_MEAN_ROWS, on_drift: OnDrift::default(), keep: 10 }
    }
}

pub(super) fn read(
    document: &Document,
    source: &SourceSpec,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<Option<DriftSection>> {
    let section = Section::open(document, "drift")?;
    if section.has("window_rows") {
        return Err(Error::option(format!(
            "{}: is called drift.mean_rows; learn.window_rows are the rows of an epoch",
            section.at("window_rows")
        )));
    }
    let section = section.only(tables::DRIFT.keys, elsewhere)?;
    if !section.is_written() && !source.is_endless() {
        return Ok(None);
    }
    let usual = DriftSection::default();
    let positive = |x: f64| x > 0.0 && x.is_finite();
    let watch = DriftSpec {
        detector: section.choice("detector", &DetectorKind::ALL)?.unwrap_or(usual.watch.detector),
        delta: section.number("delta", |x| x > 0.0 && x < 1.0, "in (0, 1)")?.unwrap_or(usual.watch.delta),
        threshold: section.number("threshold", positive, "positive")?.unwrap_or(usual.watch.threshold),
        tolerance: section
            .number("tolerance", |x| x >= 0.0 && x.is_finite(), "a number, 0 or more")?
            .unwrap_or(usual.watch.tolerance),
    };
    Ok(Some(DriftSection {
        watch,
        mean_rows: section.whole("mean_rows", 1)?.unwrap_or(usual.mean_rows),
        on_drift: section.choice("on_drift", &OnDrift::ALL)?.unwrap_or(usual.on_drift),
        keep: section.count("keep", 1)?.unwrap_or(usual.keep),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::spec::PipelineSpec;

    fn drift(text: &str) -> Result<Option<DriftSection>> {
        PipelineSpec::parse(text, "p.toml").map(|spec| spec.drift)
    }

    #[test]
    fn a_source_without_an_end_is_watched_and_files_are_if_the_section_is_there() {
        let usual = Some(DriftSection::default());
        assert_eq!(drift("[source.synthetic]\n").unwrap(), usual);
        assert_eq!(drift("[source.synthetic]\nrows = 9\n").unwrap(), None);
        assert_eq!(drift("[source]\nfiles = \"a.parquet\"\n").unwrap(), None);
        assert_eq!(drift("[source]\nfiles = \"a.parquet\"\n[drift]\n").unwrap(), usual);
    }

    #[test]
    fn words_and_numbers_are_read_and_mistakes_named() {
        let read = |keys: &str| drift(&format!("[source.synthetic]\n[drift]\n{keys}\n"));
        let read_whole = read("detector = 'page-hinkley'\non_drift = 'raise-step'\nmean_rows = 7\nkeep = 2").unwrap();
        let section = read_whole.expect("the section is there");
        assert_eq!((section.watch.detector, section.on_drift), (DetectorKind::PageHinkley, OnDrift::RaiseStep));
        assert_eq!((section.mean_rows, section.keep), (7, 2));
        for (keys, complaint) in [
            ("detector = 'adwim'", "did you mean `adwin`?"),
            ("on_drift = 'raise_steps'", "did you mean `raise-step`?"),
            ("delta = 1.0", "drift.delta = 1.0: must be in (0, 1)"),
            ("threshold = 0", "drift.threshold = 0: must be positive"),
            ("tolerance = -1", "drift.tolerance = -1: must be a number, 0 or more"),
            ("mean_rows = 0", "drift.mean_rows = 0: must be at least 1"),
            ("window_rows = 9", "drift.window_rows: is called drift.mean_rows"),
            ("lambda = 3", "drift.lambda: unknown key"),
        ] {
            let error = read(keys).unwrap_err().to_string();
            assert!(error.contains(complaint), "{keys}: {error}");
        }
    }
}
