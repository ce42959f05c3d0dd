//! How lines are told apart: a colour, a marker, and dashes for what leaves something out.
//!
//! Charts are drawn in the colours for paper, which is how a chart stands alone. Inside a page every colour is a
//! variable of its style sheet, so that charts follow the reader's theme. The hues are those of Okabe and Ito, darker
//! on white and lighter on black.

use plotters::style::RGBColor;

/// A colour: its variable in the style sheet, on paper, in the dark.
#[derive(Clone, Copy, Debug)]
pub struct Colour {
    /// Name of the variable.
    pub variable: &'static str,
    /// On white.
    pub light: (u8, u8, u8),
    /// On black.
    pub dark: (u8, u8, u8),
}

impl Colour {
    /// As plotters wants it.
    pub fn rgb(&self) -> RGBColor {
        RGBColor(self.light.0, self.light.1, self.light.2)
    }

    /// As it stands in a drawing.
    pub fn on_paper(&self) -> String {
        hex(self.light)
    }
}

fn hex((r, g, b): (u8, u8, u8)) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Names, axes and their labels.
pub const INK: Colour = Colour { variable: "--ink", light: (0x1D, 0x24, 0x2B), dark: (0xE8, 0xEA, 0xED) };
/// What may be overlooked.
pub const MUTED: Colour = Colour { variable: "--muted", light: (0x5C, 0x66, 0x70), dark: (0xA3, 0xAC, 0xB5) };
/// Lines of the grid.
pub const GRID: Colour = Colour { variable: "--grid", light: (0xE4, 0xE7, 0xEA), dark: (0x33, 0x3A, 0x42) };
/// Lines of references.
pub const REFERENCE: Colour = Colour { variable: "--reference", light: (0x7A, 0x84, 0x8E), dark: (0x8D, 0x97, 0xA1) };
/// Behind everything.
pub const PAPER: Colour = Colour { variable: "--paper", light: (0xFF, 0xFF, 0xFF), dark: (0x14, 0x18, 0x1C) };

/// Lines, in the order of contenders.
pub const SERIES: [Colour; 8] = [
    Colour { variable: "--s0", light: (0x00, 0x72, 0xB2), dark: (0x4D, 0xA9, 0xE8) },
    Colour { variable: "--s1", light: (0xD5, 0x5E, 0x00), dark: (0xFF, 0x7F, 0x32) },
    Colour { variable: "--s2", light: (0x00, 0x9E, 0x73), dark: (0x2C, 0xC9, 0x9A) },
    Colour { variable: "--s3", light: (0xB3, 0x4C, 0x8C), dark: (0xE9, 0x8B, 0xC8) },
    Colour { variable: "--s4", light: (0xC2, 0x8A, 0x00), dark: (0xF2, 0xBC, 0x3D) },
    Colour { variable: "--s5", light: (0x3F, 0x9F, 0xDB), dark: (0x8F, 0xD3, 0xFF) },
    Colour { variable: "--s6", light: (0x7A, 0x5A, 0x3C), dark: (0xC9, 0xA6, 0x84) },
    Colour { variable: "--s7", light: (0x4A, 0x4F, 0x57), dark: (0xCF, 0xD4, 0xDA) },
];

/// The colour of a contender by its place.
pub fn colour(place: usize) -> Colour {
    SERIES[place % SERIES.len()]
}

/// The outline of a contender's marker within a circle of radius one, y downwards. Colours come round again after eight
/// contenders; each round begins with another marker.
pub fn marker(place: usize) -> Vec<(f64, f64)> {
    let corners = |count: usize, turn: f64| -> Vec<(f64, f64)> {
        let angle = |at: usize| (at as f64 + turn) * std::f64::consts::TAU / count as f64;
        (0..count).map(|at| (angle(at).sin(), -angle(at).cos())).collect()
    };
    match (place + place / SERIES.len()) % 7 {
        0 => corners(24, 0.0).iter().map(|(x, y)| (x * 0.9, y * 0.9)).collect(),
        1 => corners(4, 0.5).iter().map(|(x, y)| (x * 1.15, y * 1.15)).collect(),
        2 => corners(3, 0.0).iter().map(|(x, y)| (x * 1.25, y * 1.25 + 0.15)).collect(),
        3 => corners(4, 0.0).iter().map(|(x, y)| (x * 1.2, y * 1.2)).collect(),
        4 => corners(3, 1.5).iter().map(|(x, y)| (x * 1.25, y * 1.25 - 0.15)).collect(),
        5 => corners(5, 0.0).iter().map(|(x, y)| (x * 1.1, y * 1.1)).collect(),
        _ => corners(8, 0.0)
            .iter()
            .zip(0..)
            .map(|((x, y), at)| if at % 2 == 0 { (x * 1.35, y * 1.35) } else { (x * 0.55, y * 0.55) })
            .collect(),
    }
}

/// The variables of the style sheet, for light and for dark.
pub fn variables() -> (String, String) {
    let all = || [INK, MUTED, GRID, REFERENCE, PAPER].into_iter().chain(SERIES);
    let of = |pick: fn(&Colour) -> (u8, u8, u8)| {
        all().map(|colour| format!("{}: {};", colour.variable, hex(pick(&colour)))).collect::<Vec<_>>().join(" ")
    };
    (of(|colour| colour.light), of(|colour| colour.dark))
}

/// The same drawing with variables in place of the colours for paper.
pub fn with_variables(drawing: &str) -> String {
    // Only whole attributes: a contender may be called `#0072B2`.
    let replaced = |drawing: String, colour: Colour| {
        drawing.replace(&format!("=\"{}\"", colour.on_paper()), &format!("=\"var({})\"", colour.variable))
    };
    [INK, MUTED, GRID, REFERENCE, PAPER].into_iter().chain(SERIES).fold(drawing.to_string(), replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_contenders_look_different() {
        let looks: Vec<_> = (0..16).map(|place| (colour(place).variable, format!("{:?}", marker(place)))).collect();
        for (at, look) in looks.iter().enumerate() {
            assert!(!looks[..at].contains(look), "{at}");
        }
    }

    #[test]
    fn no_two_colours_are_one() {
        let all: Vec<String> =
            [INK, MUTED, GRID, REFERENCE, PAPER].iter().chain(&SERIES).map(Colour::on_paper).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one}");
        }
    }
}
