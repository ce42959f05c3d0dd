//! The inner loops, once for every instruction set, behind one table that is chosen at start.
//!
//! [`Isa`] names an instruction set that *this machine has*: a value other than `scalar` can only be made by
//! [`Isa::detect`], so holding one is the proof that its code may run. Matrix products go through [`Tiles`], the
//! hand-written kernels of that instruction set, or where operands are bf16 and the machine has tiles for them through
//! `tile_product`. All other loops are plain Rust, written once and compiled once for each instruction set by
//! [`multiversion!`]. Whoever calls either does so for many rows at a time, never for one number.
//!
//! `portable` runs everywhere; `x86` holds all that is of x86-64, and the only names of it. A `neon` folder would sit
//! beside `x86`: another [`Tiles`] table and another arm in `detect`.

pub(super) mod flow_sums;
pub(super) mod max_product;
pub(super) mod normalise;
mod portable;
mod precision;
pub(super) mod product;
#[cfg(test)]
mod testing;
#[cfg(any(test, target_arch = "x86_64"))]
mod tile_product;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::multiversion;
pub(super) use precision::Arithmetic;
pub use precision::Precision;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::multiversion;

/// The most that may be used of this machine: an upper limit, for tests, comparisons and reproducing another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsaCap {
    /// Plain Rust for the architecture's baseline.
    Scalar,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// 512-bit vectors, and bf16 matrix tiles for a precision that has a use for them.
    Amx,
    /// Whatever there is.
    #[default]
    Auto,
}

impl IsaCap {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("scalar", Self::Scalar),
        ("avx2", Self::Avx2),
        ("avx512", Self::Avx512),
        ("amx", Self::Amx),
        ("auto", Self::Auto),
    ];

    /// The environment variable that caps the instruction set where an option does not.
    pub const VARIABLE: &'static str = "ANEMONE_ISA";

    /// This cap, or where it is `auto` the one in the environment.
    pub fn or_environment(self) -> Result<Self> {
        match std::env::var(Self::VARIABLE) {
            Ok(name) if self == Self::Auto => name.parse(),
            _ => Ok(self),
        }
    }
}

impl FromStr for IsaCap {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, cap)| *cap).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            Error::option(format!("instruction set {name:?} is not known; there are {}", names.join(", ")))
        })
    }
}

impl fmt::Display for IsaCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, cap)| cap == self).map_or("auto", |(name, _)| name);
        f.write_str(name)
    }
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

/// Only `detect` makes anything but `Scalar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// `Avx512` and, for bf16, tiles.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Isa {
    /// What every machine has.
    #[cfg(any(test, target_arch = "x86_64"))]
    const SCALAR: Self = Self(Level::Scalar);

    /// The best this machine has, up to a cap.
    pub fn detect(cap: IsaCap) -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self(x86::detect(cap));
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = cap;
            Self(Level::Scalar)
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
        }
    }

    /// For `multiversion`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn level(self) -> Level {
        self.0
    }

    /// Its matrix kernels, for f32.
    pub(super) fn tiles(self) -> &'static Tiles {
        match self.0 {
            Level::Scalar => &portable::TILES,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &x86::avx2::TILES,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => &x86::avx512::TILES,
        }
    }
}

/// Asks for a row that will soon be read, so that it is on its way while others are computed with. Changes nothing
/// else.
#[inline(always)]
pub(super) fn prefetch(row: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(row);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// How many rows ahead rows are asked for that lie anywhere in a table: so many that they arrive in time, so few that
/// they are still there when they are needed.
#[inline(always)]
pub(super) fn rows_ahead(units: usize) -> usize {
    (AHEAD_NUMBERS / units.max(1)).clamp(2, 16)
}

/// 2 KiB.
const AHEAD_NUMBERS: usize = 512;

/// out\[m × width\] (+)= left\[m × depth\] · right\[depth × width\], for a fixed number m of rows.
///
/// Arguments: depth; left and a distance; right, `width` numbers for each step of depth, and the distance of steps; out
/// and the distance of its rows; whether to add to what is there. In a *strided* kernel the rows of left are contiguous
/// and so far apart, and the steps of right follow each other; in a *transposed* one left is `[depth × m]`, its steps
/// so far apart.
///
/// # Safety
/// The machine has the kernel's instruction set, and all of left, right and out that these shapes reach is there.
pub(super) type Tile = unsafe fn(usize, *const f32, usize, *const f32, usize, *mut f32, usize, bool);

/// to\[j, i\] = from\[i, j\] for 8 × 8 numbers: from, the distance of its rows, to, the distance of its rows.
///
/// # Safety
/// As [`Tile`].
pub(super) type Transpose = unsafe fn(*const f32, usize, *mut f32, usize);

/// The matrix kernels of an instruction set.
pub(super) struct Tiles {
    /// Columns of a tile: the right operand is packed in panels of this many.
    pub width: usize,
    /// `strided[m-1]` takes m rows of a row-major left operand; the last is the fastest.
    pub strided: &'static [Tile],
    /// `transposed[m-1]` takes m columns of a left operand that lies `[depth × m]`.
    pub transposed: &'static [Tile],
    /// As `strided`, with the largest term in the place of the sum: all numbers are zero or positive.
    pub largest: &'static [Tile],
    /// Writes the transpose of 8 × 8 numbers.
    pub transpose: Transpose,
}

impl Tiles {
    /// Rows of the tallest tile.
    pub fn height(&self) -> usize {
        self.strided.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_never_exceeded_and_scalar_is_always_there() {
        assert_eq!(Isa::detect(IsaCap::Scalar).name(), "scalar");
        for (name, cap) in IsaCap::NAMES {
            assert_eq!(name.parse::<IsaCap>().unwrap(), cap);
            assert_eq!(cap.to_string(), name);
            let found = Isa::detect(cap).name().parse::<IsaCap>().unwrap();
            assert!(found <= cap, "{found} is more than {cap}");
        }
        let error = "sse9".parse::<IsaCap>().unwrap_err().to_string();
        assert!(error.contains("avx2"), "{error}");
    }
}
