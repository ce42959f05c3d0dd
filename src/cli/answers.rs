//! `anemone score`, `marginals`, `impute` and `mpe`: exact answers about the rows of a table.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::output::{Outcome, counted, thousands};
use super::table_args::{Answer, Asked, Facts, KeysArgs, Question, TableArgs};
use super::understood::{Understood, num_cats};
use crate::backend::Backend;
use crate::circuit::Circuit;
use crate::data::{Batch, Cell};
use crate::error::{Error, Result};
use crate::learner::View;
use crate::query::{Function, Marginal};
use crate::rng::Rng;
use crate::sink::answers::{
    Filled, Layout, Named, draw_numbers, fill, holds_fractions, per_cell, per_row, probabilities, repeated,
};

/// How likely every row of a table is: a column `log_likelihood`, in nats.
///
/// What is missing is marginalised exactly; a row that is impossible has -inf (in JSON null). With --given it is log
/// p(row | given).
#[derive(Args, Clone, Debug)]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    keys: KeysArgs,
    /// Also log p(value | rest of the row) of every value: a column surprise_NAME for each variable, or one of lists
    #[arg(long)]
    per_variable: bool,
}

pub(super) fn score(args: &ScoreArgs) -> Outcome {
    let opened = args.table.open(|_| 1)?;
    let scorer = match args.per_variable {
        true => {
            opened.note_device();
            Scorer::Surprise(opened.model.view()?)
        }
        false => Scorer::Likelihoods(opened.place.place(&opened.model.circuit, &opened.model.params)?.0),
    };
    let mut question = Score { scorer, of_given: 0.0, sum: 0.0, possible: 0, impossible: 0 };
    if !opened.understood.given().is_empty() {
        question.of_given = question.scorer.log_likelihoods(&opened.understood.only_given()?)?[0];
        if question.of_given == f64::NEG_INFINITY {
            return Err(Error::option("--given: has probability zero under the model, so nothing is known given it"));
        }
    }
    args.table.run(opened, Some(&args.keys), question)
}

/// Likelihoods of rows.
struct Score {
    scorer: Scorer,
    /// log p(given).
    of_given: f64,
    sum: f64,
    possible: u64,
    impossible: u64,
}

/// Who tells likelihoods: what `eval` asks, or with each value's own.
enum Scorer {
    Likelihoods(Box<dyn Backend>),
    Surprise(View),
}

impl Scorer {
    fn log_likelihoods(&mut self, rows: &Batch) -> Result<Vec<f64>> {
        match self {
            _ if rows.num_rows() == 0 => Ok(Vec::new()),
            Self::Likelihoods(backend) => backend.log_likelihoods(rows),
            Self::Surprise(view) => view.log_likelihoods_spread(rows),
        }
    }
}

impl Question for Score {
    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer> {
        let mut new = Named::new();
        let mut scores = match &mut self.scorer {
            Scorer::Surprise(view) => {
                let found = (asked.num_rows() > 0).then(|| view.surprise(&asked.batch)).transpose()?;
                let is_given = |var: usize| asked.understood.given().iter().any(|(given, _)| *given == var);
                let value = |row: usize, var: usize| found.as_ref()?.get(row, var).filter(|_| !is_given(var));
                new = per_cell(&asked.understood.layout, "surprise", asked.num_rows(), |_| true, value);
                found.map_or_else(Vec::new, |found| found.log_likelihoods().to_vec())
            }
            scorer => scorer.log_likelihoods(&asked.batch)?,
        };
        for score in &mut scores {
            if score.is_nan() || *score == f64::INFINITY {
                return Err(Error::diverged(format!("a row has log-likelihood {score}: the model is not one")));
            }
            *score -= self.of_given;
            match score.is_finite() {
                true => (self.sum, self.possible) = (self.sum + *score, self.possible + 1),
                false => self.impossible += 1,
            }
        }
        new.insert(0, per_row("log_likelihood", scores));
        Ok(Answer { rows: None, new })
    }

    fn facts(&self) -> Facts {
        let mean = (self.possible > 0).then(|| self.sum / self.possible as f64);
        let shown = mean.map_or_else(|| "none".into(), |mean| format!("{mean:.6} nats per row"));
        let mut lines = vec![("log-likelihood", shown)];
        if self.impossible > 0 {
            let rows = counted(self.impossible, "row", "rows");
            lines.push(("impossible", format!("{rows} of probability zero, not in the mean")));
        }
        (lines, object(json!({ "possible_log_likelihood": mean, "impossible_rows": self.impossible })))
    }
}

/// What a model knows of every missing cell of a table given the rest of its row.
///
/// Of categories their probabilities, p_NAME_CATEGORY, and of numbers mean_NAME and variance_NAME; where rows are
/// lists, p_NAME is a list of lists. Cells that are not missing have nulls there.
#[derive(Args, Clone, Debug)]
pub(super) struct MarginalsArgs {
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    keys: KeysArgs,
    /// Only of these columns of the model (all if left out)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    of: Vec<String>,
}

/// More new columns than any reader likes.
const MOST_COLUMNS: u64 = 50_000;

pub(super) fn marginals(args: &MarginalsArgs) -> Outcome {
    let opened = args.table.open(|model| all_cats(&model.circuit))?;
    opened.note_device();
    let Understood { layout, columns, .. } = &opened.understood;
    if let (Layout::List { .. }, [_, ..]) = (layout, &args.of[..]) {
        return Err(Error::option("--of: rows are lists here, whose answers are lists of all variables"));
    }
    if let Some(unknown) = args.of.iter().find(|name| !columns.iter().any(|column| column.name == **name)) {
        return Err(Error::option(format!("--of: the model has no column `{unknown}`")));
    }
    let is_asked: Vec<bool> =
        columns.iter().map(|column| args.of.is_empty() || args.of.contains(&column.name)).collect();
    let of_var = |(column, asked): (&_, &bool)| {
        let column: &crate::data::ColumnSchema = column;
        if *asked { column.num_cats().map_or(2, u64::from) } else { 0 }
    };
    let num_new: u64 = columns.iter().zip(&is_asked).map(of_var).sum();
    if matches!(layout, Layout::Columns(_)) && num_new > MOST_COLUMNS {
        return Err(Error::option(format!(
            "{} columns of probabilities are more than the {} that are written: choose columns with --of",
            thousands(num_new),
            thousands(MOST_COLUMNS)
        )));
    }
    let question = Marginals { view: opened.model.view()?, is_asked, cells: 0 };
    args.table.run(opened, Some(&args.keys), question)
}

/// Posterior marginals.
struct Marginals {
    view: View,
    /// Of each variable.
    is_asked: Vec<bool>,
    /// Cells that were missing so far.
    cells: u64,
}

impl Question for Marginals {
    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer> {
        let Understood { layout, columns, .. } = asked.understood;
        let num_rows = asked.num_rows();
        let found = (num_rows > 0).then(|| self.view.posterior_marginals(&asked.batch)).transpose()?;
        let get = |row: usize, var: usize| found.as_ref()?.get(row, var);
        self.cells += found.as_ref().map_or(0, |found| found.len() as u64);
        let num_cats = |var: usize| columns[var].num_cats().filter(|_| self.is_asked[var]);
        let name = |var: usize, category: u32| asked.understood.category_name(var, category);
        let mut new = Named::new();
        let is_number = |var: usize| columns[var].num_cats().is_none() && self.is_asked[var];
        if (0..columns.len()).any(|var| num_cats(var).is_some()) {
            new.extend(probabilities(layout, num_rows, num_cats, name, |row, var| match get(row, var)? {
                Marginal::Categories(probabilities) => Some(probabilities),
                Marginal::Number { .. } => None,
            }));
        }
        if (0..columns.len()).any(is_number) {
            let number = |row: usize, var: usize| match get(row, var)? {
                Marginal::Number { mean, variance } => Some((mean, variance)),
                Marginal::Categories(_) => None,
            };
            new.extend(per_cell(layout, "mean", num_rows, is_number, |row, var| {
                number(row, var).map(|(mean, _)| asked.understood.number_at(var, mean))
            }));
            new.extend(per_cell(layout, "variance", num_rows, is_number, |row, var| {
                number(row, var).map(|(_, variance)| variance.max(0.0))
            }));
        }
        Ok(Answer { rows: None, new })
    }

    fn facts(&self) -> Facts {
        (vec![("missing", counted(self.cells, "cell", "cells"))], object(json!({ "missing_cells": self.cells })))
    }
}

/// Fill what is missing in a table; other cells keep their values, and columns their types.
#[derive(Args, Clone, Debug)]
pub(super) struct ImputeArgs {
    #[command(flatten)]
    table: TableArgs,
    /// How
    #[arg(long, value_enum, default_value_t = By::Mpe)]
    by: By,
    /// With --by draws: this many completed rows for each, one after the other, with their number in a column `draw`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    draws: u32,
    /// Of draws: the same seed draws the same, whatever the format of the table
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// How a missing cell is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The most probable explanation: all missing cells of a row together.
    Mpe,
    /// The expectation of every cell given the rest, Σ c·p for categories that are numbers, of which whole columns take
    /// the nearest and have the expectation itself in a column dosage_NAME; the most probable of other categories.
    Mean,
    /// Drawn from the exact distribution given the rest: all missing cells of a row together.
    Draws,
}

pub(super) fn impute(args: &ImputeArgs) -> Outcome {
    if args.draws > 1 && args.by != By::Draws {
        return Err(Error::option(format!("--draws {}: needs --by draws", args.draws)));
    }
    let (draws, by) = (args.draws as usize, args.by);
    let opened = args.table.open(|model| match by {
        By::Draws => model.circuit.num_vars() * draws,
        By::Mpe => model.circuit.num_vars(),
        By::Mean => all_cats(&model.circuit),
    })?;
    opened.note_device();
    let view = opened.model.view()?;
    let question = Impute { view, by, draws, seed: args.seed, filled: Counts::default(), is_exact: None };
    args.table.run(opened, None, question)
}

/// Missing cells that are filled.
struct Impute {
    view: View,
    by: By,
    draws: usize,
    seed: u64,
    filled: Counts,
    /// Whether completions are the most likely ones, where they are meant to be.
    is_exact: Option<bool>,
}

/// What became of missing cells.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    filled: u64,
    still_missing: u64,
}

impl Counts {
    fn add(&mut self, missing: u64, filled: &Filled) {
        self.filled += missing - filled.still_missing;
        self.still_missing += filled.still_missing;
    }

    fn facts(self) -> Facts {
        let mut lines = vec![("filled", counted(self.filled, "cell", "cells"))];
        if self.still_missing > 0 {
            let cells = counted(self.still_missing, "cell", "cells");
            lines.push(("still missing", format!("{cells}, whose columns cannot hold what they would be")));
        }
        (lines, object(json!({ "filled_cells": self.filled, "still_missing_cells": self.still_missing })))
    }
}

impl Question for Impute {
    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer> {
        let understood = asked.understood;
        let is_missing = |row: usize, var: usize| asked.known.is_missing(row, var);
        let missing = num_missing(&asked.known);
        let mut new = Named::new();
        let filled = match self.by {
            By::Mpe => {
                let found = (asked.num_rows() > 0).then(|| self.view.mpe(&asked.batch)).transpose()?;
                self.is_exact = found.as_ref().map(|found| found.maximizes_likelihood()).or(self.is_exact);
                fill_from(asked, found.as_ref().map(|found| found.rows()))?
            }
            By::Draws => {
                let found = match asked.num_rows() {
                    0 => None,
                    _ => {
                        let seed = Rng::stream(self.seed, asked.lot.first).next_u64();
                        Some(self.view.sample_given(&asked.batch, self.draws, seed)?)
                    }
                };
                if self.draws > 1 {
                    new.push(draw_numbers(asked.num_rows(), self.draws));
                }
                let rows = if self.draws > 1 { &repeated(&asked.lot.rows, self.draws)? } else { &asked.lot.rows };
                let drawn = |row: usize, var: usize| match &found {
                    Some(found) => understood.columns[var].decode(found.column(var).real(row) as f32),
                    None => Cell::Null,
                };
                let is_missing = |row: usize, var: usize| is_missing(row / self.draws, var);
                fill(rows, &understood.layout, |var| understood.columns[var].cell_type, is_missing, drawn)?
            }
            By::Mean => {
                let means = self.means(asked)?;
                let cell = |row: usize, var: usize| means.cell(row, var, understood);
                let is_dosage = |var: usize| {
                    means.numbers[var].is_some() && !holds_fractions(&asked.lot.rows, &understood.layout, var)
                };
                let num_vars = understood.columns.len();
                let are_asked = match understood.layout {
                    Layout::Columns(_) => (0..num_vars).any(is_dosage),
                    Layout::List { .. } => (0..num_vars).all(is_dosage),
                };
                if are_asked {
                    let value = |row: usize, var: usize| match is_missing(row, var) {
                        true => means.number(row, var),
                        false => {
                            let known = asked.known.column(var).category(row)?;
                            means.numbers[var].as_ref().map(|numbers| numbers[known as usize])
                        }
                    };
                    new.extend(per_cell(&understood.layout, "dosage", asked.num_rows(), is_dosage, value));
                }
                let cell_type = |var: usize| understood.columns[var].cell_type;
                fill(&asked.lot.rows, &understood.layout, cell_type, is_missing, cell)?
            }
        };
        self.filled.add(missing * if self.by == By::Draws { self.draws as u64 } else { 1 }, &filled);
        Ok(Answer { rows: Some(filled.rows), new })
    }

    fn facts(&self) -> Facts {
        let (mut lines, mut object) = self.filled.facts();
        if let Some(is_exact) = self.is_exact {
            add_exactness(is_exact, self.view.chain().is_ok(), &mut lines, &mut object);
        }
        (lines, object)
    }
}

/// What every missing cell is on average.
struct Means {
    /// By variable, the numbers that its categories stand for.
    numbers: Vec<Option<Vec<f64>>>,
    /// `[rows × vars]`: of a number or of categories that are numbers the expectation, of others the most probable.
    values: Vec<f64>,
}

impl Impute {
    fn means(&self, asked: &Asked<'_>) -> Result<Means> {
        let num_vars = asked.batch.num_vars();
        let numbers: Vec<_> = (0..num_vars).map(|var| asked.understood.numbers_of(var)).collect();
        if asked.num_rows() == 0 {
            return Ok(Means { numbers, values: Vec::new() });
        }
        let is_nominal = |var: usize| asked.understood.columns[var].num_cats().is_some() && numbers[var].is_none();
        let functions = (0..num_vars).map(|var| match &numbers[var] {
            Some(numbers) => Function::Table(numbers.clone()),
            None => Function::Identity,
        });
        let mut values = self.view.expectations(&asked.batch, &functions.collect::<Vec<_>>())?;
        if (0..num_vars).any(is_nominal) {
            for (row, var, marginal) in self.view.posterior_marginals(&asked.batch)?.iter() {
                if let (true, Marginal::Categories(probabilities)) = (is_nominal(var), marginal) {
                    // The first of equals.
                    let best = probabilities.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
                    values[row * num_vars + var] = best.map_or(0.0, |(category, _)| category as f64);
                }
            }
        }
        Ok(Means { numbers, values })
    }
}

impl Means {
    fn number(&self, row: usize, var: usize) -> Option<f64> {
        self.values.get(row * self.numbers.len() + var).copied()
    }

    fn cell<'a>(&self, row: usize, var: usize, understood: &'a Understood) -> Cell<'a> {
        match (self.number(row, var), &self.numbers[var]) {
            (None, _) => Cell::Null,
            (Some(number), Some(_)) => Cell::Float(number),
            (Some(value), None) => understood.columns[var].decode(value as f32),
        }
    }
}

/// Complete the rows of a table by the most probable explanation of what is missing.
///
/// Two columns are added: `log_joint`, the maximum of log p(values, latents), and `log_likelihood` of the completed
/// row. Exact for missing values and latents together, which for a chain is Viterbi's; without the latents it is an
/// approximation of the most likely values unless the model has none. What it was is said in the end.
#[derive(Args, Clone, Debug)]
pub(super) struct MpeArgs {
    #[command(flatten)]
    table: TableArgs,
}

pub(super) fn mpe(args: &MpeArgs) -> Outcome {
    let opened = args.table.open(|model| model.circuit.num_vars())?;
    opened.note_device();
    let question = MpeRows { view: opened.model.view()?, filled: Counts::default(), is_exact: None };
    args.table.run(opened, None, question)
}

/// Most probable explanations.
struct MpeRows {
    view: View,
    filled: Counts,
    is_exact: Option<bool>,
}

impl Question for MpeRows {
    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer> {
        let found = (asked.num_rows() > 0).then(|| self.view.mpe(&asked.batch)).transpose()?;
        let filled = fill_from(asked, found.as_ref().map(|found| found.rows()))?;
        self.filled.add(num_missing(&asked.known), &filled);
        let (mut joints, mut likelihoods) = (Vec::new(), Vec::new());
        if let Some(found) = &found {
            self.is_exact = Some(found.maximizes_likelihood());
            joints = found.log_joints().to_vec();
            likelihoods = self.view.log_likelihoods_spread(found.rows())?;
        }
        let new = vec![per_row("log_joint", joints), per_row("log_likelihood", likelihoods)];
        Ok(Answer { rows: Some(filled.rows), new })
    }

    fn facts(&self) -> Facts {
        let (mut lines, mut object) = self.filled.facts();
        if let Some(is_exact) = self.is_exact {
            add_exactness(is_exact, self.view.chain().is_ok(), &mut lines, &mut object);
        }
        (lines, object)
    }
}

/// Says what the most probable explanation maximises.
fn add_exactness(
    is_exact: bool,
    is_chain: bool,
    lines: &mut Vec<(&'static str, String)>,
    object: &mut Map<String, Value>,
) {
    let what = match (is_exact, is_chain) {
        (true, _) => "the most likely completion, exactly: the model has no latents",
        (false, true) => "the best values and states together, exactly (Viterbi); of values alone an approximation",
        (false, false) => {
            "the best values and latents together, exactly; of values alone max-product is an approximation"
        }
    };
    lines.push(("found", what.into()));
    object.insert("maximizes_likelihood".into(), is_exact.into());
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// Missing cells of some rows.
fn num_missing(rows: &Batch) -> u64 {
    let of_var = |var: usize| rows.missing(var).map_or(0, |marks| marks.iter().filter(|mark| **mark).count() as u64);
    (0..rows.num_vars()).map(of_var).sum()
}

/// The rows with what is missing from completed ones.
fn fill_from(asked: &Asked<'_>, completed: Option<&Batch>) -> Result<Filled> {
    let columns = &asked.understood.columns;
    let cell = |row: usize, var: usize| match completed {
        Some(completed) => columns[var].decode(completed.column(var).real(row) as f32),
        None => Cell::Null,
    };
    let is_missing = |row: usize, var: usize| asked.known.is_missing(row, var);
    fill(&asked.lot.rows, &asked.understood.layout, |var| columns[var].cell_type, is_missing, cell)
}

/// The categories of all variables; a number counts as two.
fn all_cats(circuit: &Circuit) -> usize {
    num_cats(circuit).into_iter().map(|cats| cats.map_or(2, |cats| cats as usize)).sum()
}
