//! What a comparison found: the one thing that is written to `findings.json` and that reports are made of.
//!
//! All likelihoods are means in nats per row. A run is one contender under one seed; runs of the same seed see the same
//! rows and start from the same parameters, unless a contender has a start among its settings.

use serde::{Deserialize, Serialize};

/// Everything that one `anemone compare` found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// What the whole is called.
    pub title: String,
    /// The day it was put together, `2026-11-16`.
    pub date: String,
    /// The machine that did, in a few words: `2 threads of an AMD EPYC, avx2`.
    pub machine: String,
    /// The command that gives it again.
    pub command: String,
    /// One for each comparison file.
    pub sections: Vec<Section>,
}

impl Findings {
    /// The days on which runs were learned and the machines that learned them, which need not be those of the whole:
    /// what was learned before is not learned again.
    pub fn origins(&self) -> [String; 2] {
        let runs =
            || self.sections.iter().flat_map(|section| &section.contenders).flat_map(|contender| &contender.runs);
        let origins = |of: fn(&Run) -> &str, whole: &str| {
            let mut all: Vec<&str> = Vec::new();
            for origin in runs().map(of).map(|origin| if origin.is_empty() { whole } else { origin }) {
                if !all.contains(&origin) {
                    all.push(origin);
                }
            }
            if all.is_empty() { whole.to_string() } else { all.join("; ") }
        };
        [origins(|run| &run.date, &self.date), origins(|run| &run.machine, &self.machine)]
    }
}

/// What one comparison file found: contenders on one stream, with one circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Short, made of letters, digits and hyphens; unique in its findings. Names files.
    pub name: String,
    /// What is compared, in a line.
    pub title: String,
    /// The same in a few sentences, as its author wrote them. May be empty.
    pub about: String,
    /// What is read, in a few words.
    pub data: String,
    /// Rows of an epoch.
    pub rows: u64,
    /// Rows that `valid` is the mean of.
    pub valid_rows: u64,
    /// Variables of a row.
    pub num_vars: u64,
    /// The circuit, in a few words: `hmm, 64 latents`.
    pub circuit: String,
    /// Numbers that are learned.
    pub parameters: u64,
    /// Epochs that every contender had.
    pub epochs: u64,
    /// Models that one wants to beat, such as a factorised one.
    pub references: Vec<Reference>,
    /// Held-out log-likelihoods whose first crossing is worth a column in a table, ascending.
    pub thresholds: Vec<f64>,
    /// The contenders, in the order of the file.
    pub contenders: Vec<Contender>,
}

/// A known likelihood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Whose.
    pub name: String,
    /// On the held-out rows.
    pub valid: Option<f64>,
    /// On the test rows.
    pub test: Option<f64>,
}

/// An optimizer with its options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// What the file calls it; unique in its section.
    pub name: String,
    /// `anemone`, `full_batch_em`, `mini_batch_em`, `stepwise_em`, `adam`, `sgd`.
    pub optimizer: String,
    /// The contender that this one is, with something left out: a contender "without momentum" ablates "anemone".
    pub ablates: Option<String>,
    /// What it ran with, by dotted path: `("learn.step", "0.4")`. Options that a search settled are among them.
    pub settings: Vec<Setting>,
    /// What was tried to settle them; empty where nothing was searched.
    pub trials: Vec<Trial>,
    /// The seeds it is to run under.
    #[serde(default)]
    pub seeds: Vec<u64>,
    /// One for each of its seeds, in their order; fewer while the comparison is not over.
    pub runs: Vec<Run>,
}

/// An option and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Dotted path in a pipeline.
    pub key: String,
    /// As TOML.
    pub value: String,
}

/// One combination of the options that were searched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The options searched, with the values tried here.
    pub settings: Vec<Setting>,
    /// For how many epochs.
    pub epochs: u64,
    /// The best held-out log-likelihood of these; `None` if there was none that is a number.
    pub best_valid: Option<f64>,
    /// True if it is the one that the contender runs with.
    pub is_chosen: bool,
}

/// A contender under one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Of the order of rows and of the first parameters.
    pub seed: u64,
    /// Held-out likelihoods along the way, oldest first. The first point is the start, before any update.
    pub points: Vec<Point>,
    /// Rows learned from.
    pub rows: u64,
    /// Seconds of learning; validation is left out.
    pub seconds: f64,
    /// Mean log-likelihood of the test rows under the parameters that were best on the held-out rows.
    pub test: Option<f64>,
    /// The day on which it ended.
    #[serde(default)]
    pub date: String,
    /// The machine that learned it, in a few words.
    #[serde(default)]
    pub machine: String,
    /// What went wrong, if the run ended early: it diverged. Its points are those before.
    pub failed: Option<String>,
}

/// A look at the held-out rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Epochs of rows seen, possibly with a fraction.
    pub epoch: f64,
    /// Seconds of learning so far; validation is left out.
    pub seconds: f64,
    /// Mean log-likelihood of the held-out rows. `None` if it is no number (some row was impossible).
    pub valid: Option<f64>,
    /// Mean log-likelihood of the training rows of the epoch that ended here, each batch before its update.
    pub train: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_before_keeps_its_day_and_its_machine() {
        let whole = Findings { date: "today".into(), machine: "here".into(), ..Findings::default() };
        assert_eq!(whole.origins(), ["today", "here"]);
        let run = |date: &str, machine: &str| Run { date: date.into(), machine: machine.into(), ..Run::default() };
        let runs = vec![run("before", "there"), run("", ""), run("before", "here")];
        let sections =
            vec![Section { contenders: vec![Contender { runs, ..Contender::default() }], ..Section::default() }];
        assert_eq!(Findings { sections, ..whole }.origins(), ["before; today", "there; here"]);
    }
}
