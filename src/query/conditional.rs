//! Conditional probabilities: log p(query | evidence) = log p(query, evidence) − log p(evidence).
//!
//! Both sides are rows with missing cells; what is missing on both sides is marginalised. The two log-likelihoods must
//! be of one θ: that is why [`View`](crate::learner::View) asks, and not a learner that goes on in between.

use crate::data::{Batch, Values};
use crate::error::{Error, Result};

/// A question, as the rows whose log-likelihoods answer it.
pub(crate) struct Conditional<'a> {
    /// Values of the query and of the evidence together.
    joint: Batch,
    /// One row per query, or one for all.
    evidence: &'a Batch,
    /// Rows in which both sides have a cell, with different values.
    contradicted: Vec<bool>,
}

impl<'a> Conditional<'a> {
    /// Puts the two sides together, row by row. Evidence of a single row holds for every query.
    pub fn new(query: &Batch, evidence: &'a Batch) -> Result<Self> {
        if query.num_vars() != evidence.num_vars() {
            return Err(Error::data(format!(
                "the query has {} variables, the evidence {}: both need one cell, or a missing one, for each",
                query.num_vars(),
                evidence.num_vars()
            )));
        }
        let (num_rows, known_rows) = (query.num_rows(), evidence.num_rows());
        if known_rows != num_rows && known_rows != 1 {
            return Err(Error::data(format!(
                "{num_rows} queries and {known_rows} rows of evidence: give one row for each query, or one for all"
            )));
        }
        let row_of_evidence = |row: usize| if known_rows == 1 { 0 } else { row };
        let is_asked = |row: usize, var: usize| !query.is_missing(row, var);
        let is_known = |row: usize, var: usize| !evidence.is_missing(row_of_evidence(row), var);
        let mut contradicted = vec![false; num_rows];
        let mut columns = Vec::with_capacity(query.num_vars());
        for var in 0..query.num_vars() {
            let (asked, known) = (query.column(var), evidence.column(var));
            for (row, contradicted) in contradicted.iter_mut().enumerate() {
                let has_both = is_asked(row, var) && is_known(row, var);
                *contradicted |= has_both && asked.real(row) != known.real(row_of_evidence(row));
            }
            let cell = |row: usize| match (is_known(row, var), is_asked(row, var)) {
                (true, _) => Some((known, row_of_evidence(row))),
                (false, true) => Some((asked, row)),
                (false, false) => None,
            };
            // A column without a value says nothing about what the variable is.
            let is_real = (0..num_rows).filter_map(cell).any(|(column, _)| matches!(column, Values::F32(_)));
            columns.push(if is_real {
                Values::F32((0..num_rows).map(|row| cell(row).map_or(0.0, |(c, at)| c.real(at) as f32)).collect())
            } else {
                let category = |row| cell(row).and_then(|(column, at)| column.category(at)).unwrap_or(0);
                Values::U32((0..num_rows).map(category).collect())
            });
        }
        let joint = Batch::from_columns(columns)?.with_missing(|row, var| !is_asked(row, var) && !is_known(row, var));
        Ok(Self { joint, evidence, contradicted })
    }

    /// The answers, in nats, from a function that tells log-likelihoods under one θ; −∞ where the query is impossible
    /// given the evidence. Evidence that is impossible is an error that names its row.
    pub fn answer(&self, log_likelihoods: impl Fn(&Batch) -> Result<Vec<f64>>) -> Result<Vec<f64>> {
        let evidence = log_likelihoods(self.evidence).map_err(|e| e.at("the evidence"))?;
        if let Some(row) = evidence.iter().position(|ll| *ll == f64::NEG_INFINITY) {
            let why = "has probability zero under the model, so nothing is known given it; leave the row out";
            return Err(Error::data(why).at_row(row as u64).at("the evidence"));
        }
        let joint = log_likelihoods(&self.joint)?;
        let given = |row: usize| evidence[if evidence.len() == 1 { 0 } else { row }];
        let answers = joint.iter().enumerate().map(|(row, joint)| match self.contradicted[row] {
            true => f64::NEG_INFINITY,
            false => joint - given(row),
        });
        Ok(answers.collect())
    }
}
