//! `[drift]`: who watches for changes of the stream, and what happens when there is one.
//!
//! Where the section is written, or the source has no end that is known, ADWIN watches and reports. Files that end are
//! not watched unless somebody asks: their rows are usually shuffled, and come again.

use serde::{Deserialize, Serialize};

use super::document::Document;
use super::section::Section;
use super::source::SourceSpec;
use super::tables;
use crate::error::Result;
use crate::learner::DEFAULT_WINDOW_ROWS;
use crate::learner::drift::{DetectorKind, DriftSpec};

/// Who watches for drift, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DriftSection {
    /// Detectors and their options.
    #[serde(flatten)]
    pub watch: DriftSpec,
    /// Rows of the windowed mean log-likelihood.
    pub window_rows: u64,
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
        Self { watch: DriftSpec::default(), window_rows: DEFAULT_WINDOW_ROWS, on_drift: OnDrift::default(), keep: 10 }
    }
}

pub(super) fn read(
    document: &Document,
    source: &SourceSpec,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<Option<DriftSection>> {
    let section = Section::open(document, "drift")?.only(tables::DRIFT.keys, elsewhere)?;
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
        window_rows: section.whole("window_rows", 1)?.unwrap_or(usual.window_rows),
        on_drift: section.choice("on_drift", &OnDrift::ALL)?.unwrap_or(usual.on_drift),
        keep: section.count("keep", 1)?.unwrap_or(usual.keep),
    }))
}
