//! The lines of a section's charts.

use super::palette::{Colour, colour};
use crate::compare::analysis::{CurvePoint, ended, mean_curve, value};
use crate::compare::findings::{Point, Section};

/// A contender as it is drawn.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its place among the contenders, which decides how it looks.
    pub place: usize,
    /// Its name.
    pub name: String,
    /// True if it leaves something out of another one.
    pub is_ablation: bool,
    /// The mean over runs.
    pub points: Vec<CurvePoint>,
    /// True if it is a mean of several.
    pub is_mean: bool,
    /// Runs that failed, drawn one by one.
    pub failed: Vec<Vec<Point>>,
}

impl Line {
    /// Returns true if there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.points.iter().all(|p| p.valid.is_none()) && self.failed.iter().flatten().all(|p| value(p).is_none())
    }

    /// Its colour.
    pub fn colour(&self) -> Colour {
        colour(self.place)
    }
}

/// One for each contender.
pub fn lines(section: &Section) -> Vec<Line> {
    let line = |(place, contender): (usize, &crate::compare::findings::Contender)| Line {
        place,
        name: contender.name.clone(),
        is_ablation: contender.ablates.is_some(),
        points: mean_curve(contender),
        is_mean: ended(contender).count() > 1,
        failed: contender.runs.iter().filter(|r| r.failed.is_some()).map(|r| r.points.clone()).collect(),
    };
    section.contenders.iter().enumerate().map(line).collect()
}
