//! Held-out log-likelihood against epochs or seconds, as SVG.
//!
//! The mean over seeds is a line, from the least to the greatest a band. A run that failed is a thin line of its own
//! that ends with a cross. What a chart that stands alone needs besides is `legend`'s.

use std::collections::BTreeSet;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::legend::Legend;
use super::lines::Line;
use super::palette::{Colour, GRID, INK, MUTED, PAPER, REFERENCE, marker, with_variables};
use super::view::{View, above, band_above, step, ticks};
use crate::compare::numbers::{fixed, thousands};
use crate::error::{Error, Result};

/// What the horizontal axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Epochs of rows.
    Epochs,
    /// Seconds of learning.
    Seconds,
}

impl Axis {
    /// As files are called.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Epochs => "epochs",
            Axis::Seconds => "seconds",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Axis::Epochs => "epochs of rows seen",
            Axis::Seconds => "seconds of learning",
        }
    }

    fn of(self, epoch: f64, seconds: f64) -> f64 {
        match self {
            Axis::Epochs => epoch,
            Axis::Seconds => seconds,
        }
    }
}

/// Plotters knows whole pixels only: drawn four times as large, curves are smooth.
pub(super) const FINE: i32 = 4;
/// Of a chart, in the pixels of a page.
pub(super) const WIDTH: i32 = 560;
/// Of a chart without its legend.
pub(super) const HEIGHT: i32 = 380;
const LINE_WIDTH: u32 = 2 * FINE as u32;
/// A hair more: what `with_dashes` knows the line of an ablation by, for colours repeat.
const ABLATION_WIDTH: u32 = LINE_WIDTH + 1;
const THIN_WIDTH: u32 = FINE as u32;
/// Markers on a line; more would hide it.
const MARKERS: usize = 9;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ticked, Ticked>>;

/// A chart for the inside of a page: no background, no legend, colours from its style sheet.
pub fn inline(lines: &[Line], view: &View, axis: Axis, title: &str) -> Result<String> {
    let body = draw(lines, view, axis, None)?;
    let (width, height) = (FINE * WIDTH, FINE * HEIGHT);
    let head = format!(
        "<svg viewBox=\"0 0 {width} {height}\" stroke-linejoin=\"round\" role=\"img\" aria-label=\"{}\">",
        super::html::escape(title)
    );
    Ok(with_variables(&format!("{head}\n{body}")))
}

/// A chart that stands alone, on white, with a legend and, below, what has to be said about it.
pub fn standalone(lines: &[Line], view: &View, axis: Axis, foot: &[String]) -> Result<String> {
    let legend = Legend::new(lines, foot);
    let height = HEIGHT + legend.height();
    let body = draw(lines, view, axis, Some(&legend))?;
    let xmlns = "xmlns=\"http://www.w3.org/2000/svg\"";
    let (w, h) = (FINE * WIDTH, FINE * height);
    Ok(format!(
        "<svg {xmlns} width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {w} {h}\" stroke-linejoin=\"round\">\n{body}"
    ))
}

/// The drawing without its first line, which says how large it is.
fn draw(lines: &[Line], view: &View, axis: Axis, legend: Option<&Legend<'_>>) -> Result<String> {
    let mut svg = String::new();
    let height = HEIGHT + legend.map_or(0, Legend::height);
    {
        let root =
            SVGBackend::with_string(&mut svg, ((FINE * WIDTH) as u32, (FINE * height) as u32)).into_drawing_area();
        let area = match legend {
            Some(legend) => {
                root.fill(&PAPER.rgb()).map_err(failed)?;
                legend.draw(&root)?
            }
            None => root.clone(),
        };
        plot(&area, lines, view, axis)?;
        root.present().map_err(failed)?;
    }
    let body = svg.split_once('\n').map_or("", |(_, body)| body);
    Ok(with_dashes(body, lines))
}

/// References and ablations are dashed. Plotters would cut them into hundreds of lines; SVG has an attribute.
fn with_dashes(drawing: &str, lines: &[Line]) -> String {
    let dashed = |drawing: String, (stroke, dashes): (String, String)| {
        drawing.replace(&stroke, &format!("{stroke} stroke-dasharray=\"{dashes}\""))
    };
    let of_ablation = |line: &Line| format!("{}\" stroke-width=\"{ABLATION_WIDTH}\"", stroke(line.colour()));
    let ablations: BTreeSet<String> = lines.iter().filter(|line| line.is_ablation).map(of_ablation).collect();
    let ablations = ablations.into_iter().map(|stroke| (stroke, dashes(7, 4)));
    ablations.chain([(format!("{}\"", stroke(REFERENCE)), dashes(3, 3))]).fold(drawing.to_string(), dashed)
}

/// How a colour begins in a drawing.
fn stroke(colour: Colour) -> String {
    format!("stroke=\"{}", colour.on_paper())
}

/// How wide the line of a contender is.
pub(super) fn line_width(line: &Line) -> u32 {
    if line.is_ablation { ABLATION_WIDTH } else { LINE_WIDTH }
}

fn dashes(on: i32, off: i32) -> String {
    format!("{} {}", FINE * on, FINE * off)
}

fn plot(area: &Area<'_>, lines: &[Line], view: &View, axis: Axis) -> Result<()> {
    let across = 0.0..longest(lines, axis);
    let x_ticks = ticks(across.start, across.end, 8);
    let y_ticks = ticks(view.low, view.high, 9);
    let (x_step, y_step) = (step(across.start, across.end, 8), step(view.low, view.high, 9));
    let widest = y_ticks.iter().map(|y| tick(*y, y_step).chars().count()).max().unwrap_or(1) as i32;
    let mut chart = ChartBuilder::on(area)
        .margin_top(10 * FINE)
        .margin_right(14 * FINE)
        .margin_bottom(4 * FINE)
        .margin_left(6 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size((34 + 8 * widest) * FINE)
        .build_cartesian_2d(Ticked::new(across.clone(), x_ticks), Ticked::new(view.low..view.high, y_ticks))
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.rgb().stroke_width(FINE as u32))
        .axis_style(MUTED.rgb().stroke_width(FINE as u32))
        .set_all_tick_mark_size(4 * FINE)
        .label_style(text(13, MUTED))
        .axis_desc_style(text(14, INK))
        .x_label_formatter(&|x| tick(*x, x_step))
        .y_label_formatter(&|y| tick(*y, y_step))
        .x_desc(axis.label())
        .y_desc("held-out log-likelihood, nats per row")
        .draw()
        .map_err(failed)?;
    for line in lines.iter().filter(|line| line.is_mean) {
        band(&mut chart, line, view, axis)?;
    }
    for (name, y) in &view.references {
        reference(&mut chart, name, *y, across.end)?;
    }
    for line in lines {
        curve(&mut chart, line, view, axis)?;
    }
    Ok(())
}

fn longest(lines: &[Line], axis: Axis) -> f64 {
    let means = lines.iter().flat_map(|line| &line.points).map(|p| axis.of(p.epoch, p.seconds));
    let failed = lines.iter().flat_map(|line| line.failed.iter().flatten()).map(|p| axis.of(p.epoch, p.seconds));
    let longest = means.chain(failed).filter(|x| x.is_finite()).fold(0.0, f64::max);
    if longest > 0.0 { longest } else { 1.0 }
}

/// A number on an axis whose ticks are this far apart.
fn tick(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    if decimals == 0 { thousands(value) } else { fixed(value, decimals) }
}

fn band(chart: &mut Chart<'_, '_>, line: &Line, view: &View, axis: Axis) -> Result<()> {
    let points = line.points.iter().map(|p| (axis.of(p.epoch, p.seconds), p.valid.map(|band| (band.min, band.max))));
    for piece in band_above(&points.collect::<Vec<_>>(), view.low) {
        let upper = piece.iter().map(|(x, _, upper)| (*x, *upper));
        let lower = piece.iter().rev().map(|(x, lower, _)| (*x, *lower));
        let shade = line.colour().rgb().mix(0.16).filled();
        chart.draw_series([Polygon::new(upper.chain(lower).collect::<Vec<_>>(), shade)]).map_err(failed)?;
    }
    Ok(())
}

fn reference(chart: &mut Chart<'_, '_>, name: &str, y: f64, end: f64) -> Result<()> {
    let style = REFERENCE.rgb().stroke_width(FINE as u32 * 3 / 2);
    chart.draw_series([PathElement::new(vec![(0.0, y), (end, y)], style)]).map_err(failed)?;
    let label = text(12, MUTED).pos(Pos::new(HPos::Right, VPos::Bottom));
    let above = EmptyElement::at((end, y)) + Text::new(clipped(name, 48), (-2 * FINE, -2 * FINE), label);
    chart.draw_series([above]).map_err(failed)?;
    Ok(())
}

fn curve(chart: &mut Chart<'_, '_>, line: &Line, view: &View, axis: Axis) -> Result<()> {
    let rgb = line.colour().rgb();
    for run in &line.failed {
        let points: Vec<_> =
            run.iter().map(|p| (axis.of(p.epoch, p.seconds), crate::compare::analysis::value(p))).collect();
        let pieces = above(&finite(points), view.low);
        let cross = text(17, line.colour()).pos(Pos::new(HPos::Center, VPos::Center));
        let end = pieces.last().and_then(|piece| piece.last()).copied();
        for piece in pieces {
            chart.draw_series([PathElement::new(piece, rgb.stroke_width(THIN_WIDTH))]).map_err(failed)?;
        }
        chart.draw_series(end.map(|end| Text::new("×", end, cross))).map_err(failed)?;
    }
    let points: Vec<_> =
        line.points.iter().map(|p| (axis.of(p.epoch, p.seconds), p.valid.map(|band| band.mean))).collect();
    let points = finite(points);
    let shown: Vec<(f64, f64)> = points.iter().filter_map(|(x, y)| Some((*x, y.filter(|y| *y >= view.low)?))).collect();
    for piece in above(&points, view.low) {
        chart.draw_series([PathElement::new(piece, rgb.stroke_width(line_width(line)))]).map_err(failed)?;
    }
    // Lines that run close together have their markers at different places.
    let every = shown.len().div_ceil(MARKERS).max(1);
    let marked = shown.into_iter().skip(line.place % every).step_by(every);
    let outline: Vec<(i32, i32)> = scaled(line.place, 4.0 * f64::from(FINE), (0, 0));
    let mark = |at: (f64, f64)| EmptyElement::at(at) + Polygon::new(outline.clone(), rgb.filled());
    chart.draw_series(marked.map(mark)).map_err(failed)?;
    Ok(())
}

fn finite(mut points: Vec<(f64, Option<f64>)>) -> Vec<(f64, Option<f64>)> {
    points.retain(|(x, _)| x.is_finite());
    points
}

/// The marker of a contender, of this radius, around a place.
pub(super) fn scaled(place: usize, radius: f64, (x, y): (i32, i32)) -> Vec<(i32, i32)> {
    let scale = |(dx, dy): &(f64, f64)| (x + (dx * radius).round() as i32, y + (dy * radius).round() as i32);
    marker(place).iter().map(scale).collect()
}

/// Text of this size, in the pixels of the page.
pub(super) fn text(size: i32, colour: Colour) -> TextStyle<'static> {
    // Plotters divides by 1.24 before it writes a size.
    ("sans-serif", f64::from(FINE * size) * 1.24).into_font().color(&colour.rgb())
}

/// A name that is not too long.
pub(super) fn clipped(name: &str, most: usize) -> String {
    if name.chars().count() <= most { name.into() } else { name.chars().take(most - 1).chain(['…']).collect() }
}

/// A range with ticks that we chose.
struct Ticked {
    range: Range<f64>,
    ticks: Vec<f64>,
    within: RangedCoordf64,
}

impl Ticked {
    fn new(range: Range<f64>, ticks: Vec<f64>) -> Self {
        Self { within: range.clone().into(), range, ticks }
    }
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // What lies far outside would overflow a pixel's number.
        self.within.map(&value.max(self.range.start).min(self.range.end), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("a chart cannot be drawn: {error}"))
}
