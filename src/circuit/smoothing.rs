//! How a row of flows becomes a row of probabilities without zeros.

use serde::{Deserialize, Serialize};

/// What an update adds to a row of flows before it normalises it. `c` is the length of the row, `m` its mass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Smoothing {
    /// θ' = (f + ε·m/c) / (m·(1+ε)): the same pull towards uniform for every row, however rare its node.
    Relative(f64),
    /// θ' = (f + ε/c) / (m+ε) with flows scaled to mass 1 at the root: the rule of PyJuice, for parity. It pulls a
    /// node of top-down probability 1e-5 by 9 % towards uniform in every update with its default of 1e-6.
    Absolute(f64),
}

impl Smoothing {
    /// No smoothing at all: a category never seen gets probability zero.
    pub const NONE: Self = Self::Relative(0.0);

    /// ε.
    pub fn epsilon(self) -> f64 {
        match self {
            Self::Relative(epsilon) | Self::Absolute(epsilon) => epsilon,
        }
    }

    /// `(add, scale)` with θ' = (f + add)·scale for a row of `len` flows with mass `mass` > 0.
    pub fn coefficients(self, mass: f64, len: usize) -> (f64, f64) {
        match self {
            Self::Relative(epsilon) => (epsilon * mass / len as f64, 1.0 / (mass * (1.0 + epsilon))),
            Self::Absolute(epsilon) => (epsilon / len as f64, 1.0 / (mass + epsilon)),
        }
    }

    /// The absolute rule with ε scaled, for flows that are kept at another scale than mass 1 at the root.
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Relative(_) => self,
            Self::Absolute(epsilon) => Self::Absolute(epsilon * factor),
        }
    }
}

impl Default for Smoothing {
    fn default() -> Self {
        Self::Relative(1e-6)
    }
}
