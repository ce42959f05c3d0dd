//! How likely the rows of a stream are.
//!
//! The same for held-out rows during a run and for `anemone eval`: only who answers for a batch differs.

use serde::{Deserialize, Serialize};

use super::observer::{bits_per_dim, perplexity};
use super::stream::Stream;
use crate::data::{Batch, Item};
use crate::error::{Error, Result};

/// What the rows of a stream said about a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Rows looked at.
    pub rows: u64,
    /// Rows among them of probability zero.
    pub impossible_rows: u64,
    /// Mean log-likelihood of all rows, in nats; `None`, which JSON has for −∞, if one of them is impossible. A model
    /// that rules out what happens is not to look better than one that does not.
    pub mean_log_likelihood: Option<f64>,
    /// Mean log-likelihood of the rows that are possible, in nats; `None` if none is.
    pub possible_log_likelihood: Option<f64>,
    /// −log₂ p per variable; `None` for ∞, and of densities.
    pub bits_per_dim: Option<f64>,
    /// exp(−log p per variable); `None` for ∞, and of densities.
    pub perplexity: Option<f64>,
}

impl Evaluation {
    /// The same without bits and perplexity unless `is_discrete`: of a density they depend on the unit of the data, and
    /// may be of any sign.
    pub fn in_units_of(mut self, is_discrete: bool) -> Self {
        if !is_discrete {
            (self.bits_per_dim, self.perplexity) = (None, None);
        }
        self
    }
}

/// What rows said, before it is divided by their number: those of several shards add up, in the order of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    rows: u64,
    impossible: u64,
    total: f64,
    num_vars: usize,
}

impl Sums {
    /// Adds those of the next shard.
    pub fn add(&mut self, more: &Self) {
        self.rows += more.rows;
        self.impossible += more.impossible;
        self.total += more.total;
        self.num_vars = self.num_vars.max(more.num_vars);
    }

    /// Means of all rows, of which there must be one.
    pub fn evaluation(self) -> Result<Evaluation> {
        let Self { rows, impossible, total, num_vars } = self;
        if rows == 0 {
            return Err(Error::data("there is no row to evaluate"));
        }
        let possible = (rows > impossible).then(|| total / (rows - impossible) as f64);
        let mean = possible.filter(|_| impossible == 0);
        Ok(Evaluation {
            rows,
            impossible_rows: impossible,
            mean_log_likelihood: mean,
            possible_log_likelihood: possible,
            bits_per_dim: mean.map(|mean| bits_per_dim(mean, num_vars)),
            perplexity: mean.map(|mean| perplexity(mean, num_vars)),
        })
    }
}

/// Asks `score` for the log-likelihoods of a stream's first epoch, or of its first `max_rows` rows.
pub async fn evaluate(
    stream: &mut Stream,
    max_rows: Option<u64>,
    score: impl AsyncFnMut(Batch) -> Result<Vec<f64>>,
) -> Result<Evaluation> {
    sums(stream, max_rows, score).await?.evaluation()
}

/// The same, not yet divided.
pub async fn sums(
    stream: &mut Stream,
    max_rows: Option<u64>,
    mut score: impl AsyncFnMut(Batch) -> Result<Vec<f64>>,
) -> Result<Sums> {
    let (mut rows, mut impossible, mut total, mut num_vars) = (0u64, 0u64, 0.0, 0);
    let left = |rows: u64| max_rows.map_or(u64::MAX, |most| most.saturating_sub(rows));
    while left(rows) > 0
        && let Some(Item::Batch { batch, .. }) = stream.next().await?
    {
        num_vars = batch.num_vars();
        let wanted = usize::try_from(left(rows)).map_or(batch.num_rows(), |most| most.min(batch.num_rows()));
        let batch = if wanted < batch.num_rows() { batch.slice(0..wanted) } else { batch };
        rows += wanted as u64;
        for log_likelihood in score(batch).await? {
            match log_likelihood {
                x if x.is_finite() => total += x,
                f64::NEG_INFINITY => impossible += 1,
                x => return Err(Error::diverged(format!("a row has log-likelihood {x}: the model is not one"))),
            }
        }
    }
    Ok(Sums { rows, impossible, total, num_vars })
}
