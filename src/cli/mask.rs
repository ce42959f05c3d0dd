//! Which variables `anemone inpaint` hides: a side of a picture, a stretch of a text, some of all.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::pipeline::suggest::{hint, list};
use crate::rng::Rng;

/// What is hidden, understood for rows of one shape.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    region: Region,
    /// True if the region is what stays.
    keep: bool,
    layout: Layout,
}

/// Where variables lie.
#[derive(Clone, Copy, Debug)]
struct Layout {
    num_vars: usize,
    /// Height and width of a picture.
    grid: Option<(usize, usize)>,
}

#[derive(Clone, Debug)]
enum Region {
    /// Lines and columns of a picture.
    Box { lines: Range<usize>, columns: Range<usize> },
    /// Variables by their number.
    Stretch(Range<usize>),
    /// Every pixel or variable with this probability.
    Random(f64),
}

/// Regions of pictures.
const OF_PICTURES: [&str; 6] = ["left", "right", "top", "bottom", "center", "random"];

/// Regions of other rows.
const OF_SEQUENCES: [&str; 4] = ["first", "last", "middle", "random"];

/// How much of a side, or of all, where nothing is said.
const HALF: f64 = 0.5;

impl Mask {
    /// Understands `--missing` or, with `keep`, `--keep`; `grid` is `[height, width, …]` where rows have one.
    pub fn understand(words: &str, keep: bool, num_vars: usize, grid: Option<&[usize]>) -> Result<Self> {
        let grid = grid.filter(|grid| grid.len() >= 2).map(|grid| (grid[0], grid[1]));
        let layout = Layout { num_vars, grid };
        let flag = if keep { "--keep" } else { "--missing" };
        let region = layout.region(words).map_err(|why| Error::option(format!("{flag} {words}: {why}")))?;
        Ok(Self { region, keep, layout })
    }

    /// What is hidden by default.
    pub fn usual(grid: Option<&[usize]>) -> &'static str {
        if grid.is_some_and(|grid| grid.len() >= 2) { "right" } else { "last" }
    }

    /// Which variables of a row are hidden; only random ones differ from row to row.
    pub fn of_row(&self, seed: u64, row: u64) -> Vec<bool> {
        let Layout { num_vars, grid } = self.layout;
        // All channels of a pixel together.
        let pixels = grid.map_or(num_vars, |(height, width)| height * width);
        let channels = num_vars / pixels;
        let inside: Vec<bool> = match &self.region {
            Region::Box { lines, columns } => {
                let width = grid.map_or(num_vars, |(_, width)| width);
                let pixel = |var: usize| var / channels;
                let is_inside = |at: usize| lines.contains(&(at / width)) && columns.contains(&(at % width));
                (0..num_vars).map(|var| is_inside(pixel(var))).collect()
            }
            Region::Stretch(stretch) => (0..num_vars).map(|var| stretch.contains(&var)).collect(),
            Region::Random(probability) => {
                let mut rng = Rng::stream(seed, row);
                let chosen: Vec<bool> = (0..pixels).map(|_| rng.uniform() < *probability).collect();
                (0..num_vars).map(|var| chosen[var / channels]).collect()
            }
        };
        inside.into_iter().map(|inside| inside != self.keep).collect()
    }
}

impl Layout {
    fn region(self, words: &str) -> std::result::Result<Region, String> {
        if let Some((start, end)) = words.split_once("..") {
            return self.stretch(start, end);
        }
        let (name, part) = match words.split_once(':') {
            None => (words, HALF),
            Some((name, part)) => {
                let part = part.trim().parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 1.0);
                (name, part.ok_or("the part after the colon must be a number above 0 and at most 1")?)
            }
        };
        let Self { num_vars, grid } = self;
        let of = |side: usize| ((part * side as f64).round() as usize).clamp(1, side);
        let middle = |side: usize| (side - of(side)) / 2..(side - of(side)) / 2 + of(side);
        Ok(match (name, grid) {
            ("random", _) => Region::Random(part),
            ("left", Some((height, width))) => Region::Box { lines: 0..height, columns: 0..of(width) },
            ("right", Some((height, width))) => Region::Box { lines: 0..height, columns: width - of(width)..width },
            ("top", Some((height, width))) => Region::Box { lines: 0..of(height), columns: 0..width },
            ("bottom", Some((height, width))) => Region::Box { lines: height - of(height)..height, columns: 0..width },
            ("center", Some((height, width))) => Region::Box { lines: middle(height), columns: middle(width) },
            ("first", None) => Region::Stretch(0..of(num_vars)),
            ("last", None) => Region::Stretch(num_vars - of(num_vars)..num_vars),
            ("middle", None) => Region::Stretch(middle(num_vars)),
            _ => {
                let (known, others) = match grid {
                    Some(_) => (&OF_PICTURES[..], &OF_SEQUENCES[..]),
                    None => (&OF_SEQUENCES[..], &OF_PICTURES[..]),
                };
                let known = || known.iter().copied();
                return Err(match others.contains(&name) {
                    true if grid.is_some() => format!("is not for pictures, which have {}", list(known())),
                    true => format!("is for pictures alone; other rows have {}", list(known())),
                    false => format!("unknown; {}", hint(name, known())),
                });
            }
        })
    }

    fn stretch(self, start: &str, end: &str) -> std::result::Result<Region, String> {
        let number = |text: &str, otherwise: usize| match text.trim() {
            "" => Some(otherwise),
            text => text.parse::<usize>().ok(),
        };
        let stretch = number(start, 0).zip(number(end, self.num_vars)).map(|(start, end)| start..end);
        match stretch.filter(|stretch| stretch.start < stretch.end && stretch.end <= self.num_vars) {
            Some(stretch) => Ok(Region::Stretch(stretch)),
            None => Err(format!("expected a stretch of the variables 0..{}, such as 0..1", self.num_vars)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(words: &str, keep: bool, num_vars: usize, grid: Option<&[usize]>) -> String {
        let mask = Mask::understand(words, keep, num_vars, grid).unwrap();
        mask.of_row(3, 0).iter().map(|hidden| if *hidden { '#' } else { '.' }).collect()
    }

    #[test]
    fn sides_of_a_picture_are_hidden_with_all_their_channels() {
        let grid = Some(&[2, 4, 1][..]);
        for (words, want) in [
            ("left", "##..##.."),
            ("right", "..##..##"),
            ("right:0.25", "...#...#"),
            ("top", "####...."),
            ("bottom", "....####"),
            ("center", ".##....."),
            ("center:1", "########"),
            ("2..5", "..###..."),
            ("6..", "......##"),
        ] {
            assert_eq!(hidden(words, false, 8, grid), want, "{words}");
            let kept: String = want.chars().map(|c| if c == '#' { '.' } else { '#' }).collect();
            assert_eq!(hidden(words, true, 8, grid), kept, "{words}");
        }
        assert_eq!(hidden("right", false, 12, Some(&[2, 2, 3])), "...###...###");
        assert_eq!(hidden("top", false, 4, Some(&[2, 2])), "##..");
    }

    #[test]
    fn stretches_of_a_text_are_hidden() {
        for (words, want) in
            [("first", "###..."), ("last", "...###"), ("middle", ".###.."), ("last:0.1", ".....#"), ("..2", "##....")]
        {
            assert_eq!(hidden(words, false, 6, None), want, "{words}");
        }
    }

    #[test]
    fn random_pixels_differ_from_row_to_row_and_not_from_run_to_run() {
        let mask = Mask::understand("random:0.3", false, 3000, Some(&[10, 100, 3])).unwrap();
        let (first, second) = (mask.of_row(1, 0), mask.of_row(1, 1));
        assert!(first == mask.of_row(1, 0) && first != second);
        assert!(first.chunks(3).all(|pixel| pixel.iter().all(|hidden| *hidden == pixel[0])), "a pixel is one thing");
        let count = first.iter().filter(|hidden| **hidden).count() / 3;
        assert!(count.abs_diff(300) < 90, "{count} of 1000 are six standard deviations away");
    }

    #[test]
    fn mistakes_are_answered_with_what_there_is() {
        let grid = Some(&[2, 4, 1][..]);
        for (words, keep, grid, want) in [
            ("rihgt", false, grid, "--missing rihgt: unknown; did you mean `right`?"),
            (
                "everything",
                true,
                grid,
                "--keep everything: unknown; there are left, right, top, bottom, center and random",
            ),
            ("last", false, grid, "--missing last: is not for pictures, which have"),
            (
                "top",
                false,
                None,
                "--missing top: is for pictures alone; other rows have first, last, middle and random",
            ),
            ("right:2", false, grid, "--missing right:2: the part after the colon must be"),
            ("random:", false, None, "--missing random:: the part after the colon must be"),
            ("5..3", false, None, "--missing 5..3: expected a stretch of the variables 0..8"),
            ("5..9", false, None, "--missing 5..9: expected a stretch"),
            ("a..b", false, None, "--missing a..b: expected a stretch"),
        ] {
            let error = Mask::understand(words, keep, 8, grid).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
