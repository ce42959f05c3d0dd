//! How images become rows: what a pipeline says of it. `image` does it.

use serde::{Deserialize, Serialize};

use super::ycocg::{YCOCG_BINS, YCOCG_R_CATEGORIES};

/// Shades of a channel of 8 bits.
pub const MAX_LEVELS: u32 = 256;

/// How images become rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Side of the square patches; without it an image is one row.
    #[serde(default)]
    pub patch: Option<usize>,
    /// What the channels are.
    pub color: Color,
    /// Shades of a channel, from 2 to 256, for grey and RGB; without it 256. Log-likelihoods of rows with different
    /// levels are not comparable.
    #[serde(default)]
    pub levels: Option<u32>,
    /// Height and width that every image must have. Needed where there are no patches.
    #[serde(default)]
    pub size: Option<(usize, usize)>,
}

impl ImageSpec {
    /// Categories of every channel.
    pub fn categories(&self) -> u32 {
        self.levels.unwrap_or(self.color.categories())
    }

    /// Refuses levels that there cannot be; an `Err` says why.
    pub(crate) fn check_levels(&self) -> Result<(), String> {
        match self.levels {
            Some(_) if !self.color.has_levels() => Err(format!(
                "has no meaning for color = \"{}\"; say color = \"grey\" or \"rgb\", or leave it out",
                self.color.name()
            )),
            Some(levels) if !(2..=MAX_LEVELS).contains(&levels) => Err(format!("must be in 2..={MAX_LEVELS}")),
            _ => Ok(()),
        }
    }
}

/// What the channels of a pixel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Color {
    /// Luma and chroma without loss, 512 categories each.
    YcocgR,
    /// Luma and chroma in 256 bins each, with loss.
    Ycocg,
    /// Red, green and blue, 256 categories each, or as many as there are levels.
    Rgb,
    /// One channel of 256 categories, or as many as there are levels; colours are weighted 0.2126, 0.7152, 0.0722.
    Grey,
}

impl Color {
    /// Channels of a pixel.
    pub fn channels(self) -> usize {
        match self {
            Self::YcocgR | Self::Ycocg | Self::Rgb => 3,
            Self::Grey => 1,
        }
    }

    /// Categories of every channel, where all shades are kept.
    pub fn categories(self) -> u32 {
        match self {
            Self::YcocgR => YCOCG_R_CATEGORIES,
            Self::Ycocg => YCOCG_BINS,
            Self::Rgb | Self::Grey => MAX_LEVELS,
        }
    }

    /// Whether a channel is a scale of shades, which can be made coarser.
    pub fn has_levels(self) -> bool {
        matches!(self, Self::Rgb | Self::Grey)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::YcocgR => "ycocg-r",
            Self::Ycocg => "ycocg",
            Self::Rgb => "rgb",
            Self::Grey => "grey",
        }
    }
}
