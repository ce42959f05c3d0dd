//! What a chart that stands alone needs besides: which line is whose, and what has to be said about it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::charts::{Area, FINE, HEIGHT, WIDTH, clipped, failed, line_width, scaled, text};
use super::lines::Line;
use super::palette::{INK, MUTED};
use crate::error::Result;

const LEGEND_ROW: i32 = 24;

/// Names and markers in rows above a chart that stands alone, and lines of text below it.
pub struct Legend<'a> {
    rows: Vec<Vec<&'a Line>>,
    foot: Vec<String>,
}

impl<'a> Legend<'a> {
    /// Lays out rows of names, and text.
    pub fn new(lines: &'a [Line], foot: &[String]) -> Self {
        let mut rows: Vec<Vec<&Line>> = Vec::new();
        let mut used = i32::MAX;
        for line in lines {
            let width = Self::width(line);
            if used.saturating_add(width) > WIDTH - 20 {
                rows.push(Vec::new());
                used = 0;
            }
            used += width;
            rows.last_mut().expect("a row was begun above").push(line);
        }
        Self { rows, foot: wrapped(&foot.join(" "), 86) }
    }

    /// About: a font is not known here.
    fn width(line: &Line) -> i32 {
        58 + 15 * clipped(&line.name, 56).chars().count() as i32 / 2
    }

    /// What it adds to the height of a chart.
    pub fn height(&self) -> i32 {
        self.above() + self.below()
    }

    fn above(&self) -> i32 {
        LEGEND_ROW * self.rows.len() as i32 + 8
    }

    fn below(&self) -> i32 {
        if self.foot.is_empty() { 0 } else { 18 * self.foot.len() as i32 + 8 }
    }

    /// Draws all of it and returns what is left.
    pub fn draw<'b>(&self, root: &Area<'b>) -> Result<Area<'b>> {
        let (top, rest) = root.split_vertically(FINE * self.above());
        let (chart, bottom) = rest.split_vertically(FINE * HEIGHT);
        for (row, at) in self.rows.iter().zip(0..) {
            let mut x = 16;
            for line in row {
                let y = FINE * (LEGEND_ROW * at + 18);
                let rgb = line.colour().rgb();
                let ends = vec![(FINE * x, y), (FINE * (x + 28), y)];
                let stroke = PathElement::new(ends, rgb.stroke_width(line_width(line)));
                top.draw(&stroke).map_err(failed)?;
                let outline = scaled(line.place, 4.0 * f64::from(FINE), (FINE * (x + 14), y));
                top.draw(&Polygon::new(outline, rgb.filled())).map_err(failed)?;
                let style = text(14, INK).pos(Pos::new(HPos::Left, VPos::Center));
                top.draw_text(&clipped(&line.name, 56), &style, (FINE * (x + 35), y)).map_err(failed)?;
                x += Self::width(line);
            }
        }
        for (note, at) in self.foot.iter().zip(0..) {
            bottom.draw_text(note, &text(12, MUTED), (FINE * 16, FINE * (18 * at + 4))).map_err(failed)?;
        }
        Ok(chart)
    }
}

fn wrapped(note: &str, most: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in note.split_whitespace() {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 1 + word.chars().count() <= most => {
                row.push(' ');
                row.push_str(word);
            }
            _ => rows.push(word.into()),
        }
    }
    rows
}
