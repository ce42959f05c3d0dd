//! Words that a flag knows, for shells to complete.
//!
//! A flag takes any word all the same: which one is wrong, and which is near it, is said by the code that gives it a
//! meaning, as for the same word in a file (`-` and `_` are the same there).

use std::ffi::OsStr;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::Error;
use clap::{Arg, Command};

use crate::optim;

/// Structures that a pipeline can have; `file` needs a path and so a pipeline file.
pub(super) const MODELS: Words = Words::These(&["hmm", "monarch-hmm", "hclt", "pd", "pdhclt", "rat-spn"]);
/// Optimizers.
pub(super) const OPTIMIZERS: Words = Words::Optimizers;
/// Devices; others are written in the same way.
pub(super) const DEVICES: Words = Words::These(&["auto", "cpu", "cuda:0", "cuda:0,1"]);
/// Numbers that matrices are multiplied in.
pub(super) const PRECISIONS: Words = Words::These(&["f32", "tf32", "bf16x3", "bf16"]);
/// Instruction sets.
pub(super) const ISAS: Words = Words::These(&["auto", "scalar", "avx2", "avx512", "amx"]);
/// Clusters.
pub(super) const CLUSTERS: Words = Words::These(&["auto", "off", "mpi"]);
/// Ways to sum flows over ranks.
pub(super) const CLUSTER_SUMS: Words = Words::These(&["auto", "host", "nccl"]);
/// Circuits of a benchmark on made-up rows.
pub(super) const CIRCUITS: Words = Words::These(&["hmm", "monarch", "hclt", "pdhclt"]);
/// Parts of a row that can be hidden or kept.
pub(super) const PARTS: Words =
    Words::These(&["left", "right", "top", "bottom", "center", "first", "last", "middle", "random", "random:0.5"]);

/// Takes any text, and offers these.
#[derive(Clone, Copy, Debug)]
pub(super) enum Words {
    These(&'static [&'static str]),
    /// Those that there are, as flags are spelled.
    Optimizers,
}

impl Words {
    fn all(self) -> Vec<&'static str> {
        static SPELLED: LazyLock<Vec<String>> =
            LazyLock::new(|| optim::OPTIMIZERS.iter().map(|name| name.replace('_', "-")).collect());
        match self {
            Self::These(words) => words.to_vec(),
            Self::Optimizers => SPELLED.iter().map(String::as_str).collect(),
        }
    }

    /// All of them with commas between, for the help of a flag.
    pub fn list(self) -> String {
        self.all().join(", ")
    }
}

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.all().into_iter().map(PossibleValue::new)))
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
        assert_eq!(OPTIMIZERS.all(), optim::OPTIMIZERS.map(|name| name.replace('_', "-")));
        let models: Vec<&str> = spec::MODELS.iter().map(|(name, _)| *name).filter(|name| *name != "file").collect();
        assert_eq!(MODELS.all(), models);
        assert_eq!(CIRCUITS.all(), Kind::ALL.map(Kind::name));
        assert!(DEVICES.all().iter().all(|name| name.parse::<Device>().is_ok()));
        assert!(PRECISIONS.all().iter().all(|name| name.parse::<TrainingPrecision>().is_ok()));
        assert!(ISAS.all().iter().all(|name| name.parse::<IsaCap>().is_ok()));
        // Whoever refuses a word lists all of them.
        let all = |error: String, words: Words| words.all().iter().all(|word| error.contains(word));
        assert!(all("?".parse::<TrainingPrecision>().unwrap_err().to_string(), PRECISIONS));
        assert!(all("?".parse::<IsaCap>().unwrap_err().to_string(), ISAS));
    }
}
