//! What was found, for people and for other programs: a page, its charts, and tables of numbers.
//!
//! `report.html` is one file that needs nothing else: it opens without a network and without scripts. The charts stand
//! alone as well, under `charts/`, and `report.md` says the same without HTML. Every file appears whole or not at all.
//! Figures come from `analysis`; here they are only shown.

mod charts;
mod csv;
mod html;
mod legend;
mod lines;
mod markdown;
mod palette;
mod regret;
mod table;
mod tables;
mod view;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use self::charts::Axis;
use self::html::Shown;
use self::lines::{Line, lines};
use self::view::{View, view};
use super::findings::{Findings, Section};
use super::numbers::{decimals, fixed, short};
use crate::error::{Error, Result};
use crate::files::write_whole;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// Everything, the page among it.
    pub files: Vec<PathBuf>,
}

/// Writes `report.html`, `report.md`, `charts/*.svg`, `curves.csv`, `table.csv`, `trials.csv` and `regret.csv` into a
/// folder, which is made if it is not there.
pub fn write(findings: &Findings, folder: &Path) -> Result<Written> {
    check_names(findings)?;
    // All is drawn before anything is written: a mistake leaves what was there.
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    let all_lines: Vec<Vec<Line>> = findings.sections.iter().map(lines).collect();
    let mut shown = Vec::new();
    for (section, lines) in findings.sections.iter().zip(&all_lines) {
        let mut charts = Vec::new();
        let mut chart_notes = Vec::new();
        if let Some(view) = view(lines, &section.references) {
            chart_notes = chart_notes_of(section, lines, &view);
            for axis in [Axis::Epochs, Axis::Seconds] {
                let title = format!("{}: held-out log-likelihood against {}", section.title, axis.name());
                charts.push(charts::inline(lines, &view, axis, &title)?);
                let path = folder.join("charts").join(format!("{}-{}.svg", section.name, axis.name()));
                files.push((path, charts::standalone(lines, &view, axis, &chart_notes)?));
            }
        }
        shown.push(Shown { section, lines, charts, chart_notes });
    }
    let page = folder.join("report.html");
    files.push((folder.join("curves.csv"), csv::curves(findings)));
    files.push((folder.join("table.csv"), csv::table(findings)));
    files.push((folder.join("trials.csv"), csv::trials(findings)));
    files.push((folder.join("regret.csv"), csv::regret(findings)));
    files.push((folder.join("report.md"), markdown::page(findings, &shown)));
    files.push((page.clone(), html::page(findings, &shown)));
    let charts = folder.join("charts");
    fs::create_dir_all(&charts).map_err(|e| Error::io_at(&charts, &e))?;
    for (path, text) in &files {
        write_whole(path, text)?;
    }
    Ok(Written { page, files: files.into_iter().map(|(path, _)| path).collect() })
}

/// The tables of regret for a terminal; empty where sections have too little in common.
pub fn regret_in_plain_text(findings: &Findings) -> String {
    regret::plain(findings)
}

/// Names of sections become names of files.
fn check_names(findings: &Findings) -> Result<()> {
    let mut seen = HashSet::new();
    for Section { name, .. } in &findings.sections {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(Error::format(format!("section {name:?}: a name has letters, digits and hyphens only")));
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(Error::format(format!("section {name:?}: two sections have this name")));
        }
    }
    Ok(())
}

/// What has to be said about the charts.
fn chart_notes_of(section: &Section, lines: &[Line], view: &View) -> Vec<String> {
    let decimals = decimals(section);
    let mut notes = Vec::new();
    if lines.iter().any(|line| line.is_mean) {
        notes.push("Lines are means over seeds, bands reach from the lowest seed to the highest.".into());
    }
    if lines.iter().any(|line| !line.failed.is_empty()) {
        notes.push("A thin line that ends with × is a run that failed.".into());
    }
    if view.is_clipped {
        notes.push(format!("Cut below {}, where lines go on downwards.", short(view.low)));
    }
    if !view.outside.is_empty() {
        let outside = view.outside.iter().map(|(name, at)| format!("{name} ({})", fixed(*at, decimals)));
        notes.push(format!("Too far off to be shown: {}.", outside.collect::<Vec<_>>().join(", ")));
    }
    notes
}
