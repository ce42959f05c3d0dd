//! How precisely matrix products are computed, and what it means to round their operands to bf16.
//!
//! bf16 is the upper half of an f32: its range, and eight significant bits. Products of bf16 numbers are exact in f32
//! and are added up in f32, so all that is lost is lost when operands are rounded. A number that is split into two of
//! them, x ≈ high + low, keeps sixteen bits, and x·y ≈ high·high + high·low + low·high. See docs/MATH.md, "Precision".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Isa, multiversion};
use crate::error::{Error, Result};

/// How precisely the matrix products of training passes are computed. Likelihoods of an evaluation are always `f32`.
///
/// `bf16` and `bf16x3` are fast on processors with matrix tiles (AMX). Elsewhere their operands are rounded in the same
/// way and multiplied as f32: a way to try what they do to a model, which saves no time, and with `bf16x3` takes
/// longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As they are: 24 significant bits.
    #[default]
    F32,
    /// Split into two bf16 numbers: 16 significant bits, three products.
    Bf16x3,
    /// Rounded to bf16: 8 significant bits.
    Bf16,
}

impl Precision {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Self); 3] = [("f32", Self::F32), ("bf16x3", Self::Bf16x3), ("bf16", Self::Bf16)];

    /// How many products one product is made of.
    pub(super) fn num_terms(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Bf16x3 => 3,
        }
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, precision)| *precision).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            Error::option(format!("precision {name:?} is not known; there are {}", names.join(", ")))
        })
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, precision)| precision == self).map_or("f32", |(name, _)| name);
        f.write_str(name)
    }
}

/// How a matrix product is computed: by which instructions, and from operands of which precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) struct Arithmetic {
    pub isa: Isa,
    pub precision: Precision,
    pub(super) unit: Unit,
}

/// Who multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The f32 tiles of the instruction set. bf16 operands are f32 numbers that were rounded.
    Vectors,
    /// bf16 tiles. Only where `isa` has them.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// The same driver on a model of the instructions.
    #[cfg(test)]
    Model,
}

impl Arithmetic {
    /// The fastest that an instruction set has for a precision.
    pub fn new(isa: Isa, precision: Precision) -> Self {
        let unit = match precision {
            #[cfg(target_arch = "x86_64")]
            Precision::Bf16 | Precision::Bf16x3 if isa.level() == super::Level::Amx => Unit::Amx,
            _ => Unit::Vectors,
        };
        Self { isa, precision, unit }
    }

    /// What bf16 tiles would compute, on any machine.
    #[cfg(test)]
    pub fn model(isa: Isa, precision: Precision) -> Self {
        assert_ne!(precision, Precision::F32, "tiles hold bf16");
        Self { isa, precision, unit: Unit::Model }
    }

    /// Whether f32 tiles multiply.
    pub(super) fn is_by_vectors(self) -> bool {
        self.unit == Unit::Vectors
    }

    /// Rounds the numbers of an operand that f32 tiles will multiply. `low` becomes what rounding took away, as long as
    /// `values`, where the precision uses it.
    pub(super) fn round(self, values: &mut [f32], low: &mut Vec<f32>) {
        match self.precision {
            Precision::F32 => {}
            Precision::Bf16 => round(self.isa, values),
            Precision::Bf16x3 => {
                low.resize(values.len(), 0.0);
                split(self.isa, values, low);
            }
        }
    }
}

/// The nearest bf16 number; of two, the even one.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding up could carry a NaN into another number.
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// A bf16 number as the f32 that it is.
#[inline(always)]
pub(super) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// x ≈ high + low.
#[inline(always)]
pub(super) fn split_bf16(x: f32) -> (u16, u16) {
    let high = to_bf16(x);
    let rest = x - from_bf16(high);
    // Not infinity less infinity: what is infinite stays so.
    (high, if from_bf16(high).is_finite() { to_bf16(rest) } else { 0 })
}

multiversion! {
    /// Rounds every number to bf16.
    fn round(values: &mut [f32]) = round_body;
    /// Rounds every number to bf16; `low` is what that took away, rounded to bf16.
    fn split(values: &mut [f32], low: &mut [f32]) = split_body;
}

#[inline(always)]
fn round_body(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = from_bf16(to_bf16(*x)));
}

#[inline(always)]
fn split_body(values: &mut [f32], low: &mut [f32]) {
    for (x, low) in values.iter_mut().zip(low) {
        let (high, rest) = split_bf16(*x);
        (*x, *low) = (from_bf16(high), from_bf16(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        let bits = |x: u32| to_bf16(f32::from_bits(x));
        assert_eq!(bits(0x3f80_0000), 0x3f80, "1 is itself");
        assert_eq!(bits(0x3f80_7fff), 0x3f80, "below a tie");
        assert_eq!(bits(0x3f80_8000), 0x3f80, "a tie, to even");
        assert_eq!(bits(0x3f81_8000), 0x3f82, "a tie, to even");
        assert_eq!(bits(0x3f80_8001), 0x3f81, "above a tie");
        assert_eq!(bits(0x3fff_ffff), 0x4000, "into the next power of two");
        assert_eq!(bits(0x8000_0000), 0x8000, "zero keeps its sign");
        assert_eq!(to_bf16(f32::INFINITY), 0x7f80);
        assert!(from_bf16(bits(0x7fff_ffff)).is_nan() && from_bf16(bits(0xffff_ffff)).is_nan());
        assert!(from_bf16(bits(0x7f80_0001)).is_nan(), "not infinity");
        assert_eq!(split_bf16(f32::INFINITY), (0x7f80, 0));
    }

    #[test]
    fn two_halves_keep_sixteen_bits() {
        let mut rng = crate::rng::Rng::new(3);
        let mut worst = 0f64;
        for _ in 0..100_000 {
            let x = rng.uniform() as f32;
            let (high, low) = split_bf16(x);
            let both = f64::from(from_bf16(high)) + f64::from(from_bf16(low));
            worst = worst.max((both - f64::from(x)).abs() / f64::from(x));
        }
        assert!(worst < 2f64.powi(-17) && worst > 2f64.powi(-20), "{worst:e}");
    }

    #[test]
    fn precisions_have_names_and_an_unknown_one_is_told_them() {
        for (name, precision) in Precision::NAMES {
            assert_eq!(name.parse::<Precision>().unwrap(), precision);
            assert_eq!(precision.to_string(), name);
            assert_eq!(serde_json::to_string(&precision).unwrap(), format!("{name:?}"));
        }
        assert_eq!(Precision::default(), Precision::F32);
        let error = "f16".parse::<Precision>().unwrap_err().to_string();
        assert!(error.contains("f16") && error.contains("bf16x3"), "{error}");
    }
}
