//! Words that a flag knows, for shells to complete.
//!
//! A flag takes any word all the same: which one is wrong, and which is near it, is said by the code that gives it a
//! meaning, as for the same word in a file (`-` and `_` are the same there).

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::Error;
use clap::{Arg, Command};

/// Structures that a pipeline can have; `file` needs a path and so a pipeline file.
pub(super) const MODELS: Words = Words(&["hmm", "monarch-hmm", "hclt", "pd", "pdhclt", "rat-spn"]);
/// Optimizers.
pub(super) const OPTIMIZERS: Words =
    Words(&["anemone", "full-batch-em", "mini-batch-em", "stepwise-em", "adam", "sgd"]);
/// Devices; others are written in the same way.
pub(super) const DEVICES: Words = Words(&["auto", "cpu", "cuda:0", "cuda:0,1"]);
/// Numbers that matrices are multiplied in.
pub(super) const PRECISIONS: Words = Words(&["f32", "tf32", "bf16x3", "bf16"]);
/// Instruction sets.
pub(super) const ISAS: Words = Words(&["auto", "scalar", "avx2", "avx512", "amx"]);
/// Circuits of a benchmark on made-up rows.
pub(super) const CIRCUITS: Words = Words(&["hmm", "monarch", "hclt", "pdhclt"]);
/// Parts of a row that can be hidden or kept.
pub(super) const PARTS: Words =
    Words(&["left", "right", "top", "bottom", "center", "first", "last", "middle", "random", "random:0.5"]);

/// Takes any text, and offers these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words(&'static [&'static str]);

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|word| PossibleValue::new(*word))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::IsaCap;
    use crate::backend::{Device, TrainingPrecision};
    use crate::bench::synthetic::Kind;
    use crate::pipeline::spec;

    #[test]
    fn what_is_offered_is_known_and_what_is_known_is_offered() {
        assert_eq!(OPTIMIZERS.0, spec::OPTIMIZERS.map(|name| name.replace('_', "-")));
        let models: Vec<&str> = spec::MODELS.iter().map(|(name, _)| *name).filter(|name| *name != "file").collect();
        assert_eq!(MODELS.0, models);
        assert_eq!(CIRCUITS.0, Kind::ALL.map(Kind::name));
        assert!(DEVICES.0.iter().all(|name| name.parse::<Device>().is_ok()));
        assert!(PRECISIONS.0.iter().all(|name| name.parse::<TrainingPrecision>().is_ok()));
        assert!(ISAS.0.iter().all(|name| name.parse::<IsaCap>().is_ok()));
        // The code that refuses a word lists all of them.
        let all = |error: String, words: Words| words.0.iter().all(|word| error.contains(word));
        assert!(all("?".parse::<TrainingPrecision>().unwrap_err().to_string(), PRECISIONS));
        assert!(all("?".parse::<IsaCap>().unwrap_err().to_string(), ISAS));
    }
}
