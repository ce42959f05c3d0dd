//! A learner's parameters at one moment, for any number of questions.

use std::fmt;
use std::sync::Arc;

use crate::backend::cpu::Evaluator;
use crate::circuit::{Circuit, Params};
use crate::data::Batch;
use crate::error::Result;
use crate::query::chain::{Chain, Constrained};
use crate::query::dfa::Dfa;
use crate::query::{self, Conditional, Function, Mpe, Posterior, PosteriorMarginals, Surprise};
use crate::rng::Rng;

/// One θ for any number of questions.
///
/// A view is made between two batches and never changes: all its answers are of the same parameters, the averaged ones
/// where the optimizer keeps an average. It is cheap to clone and may be asked from any number of threads at once. Each
/// question is computed on the thread that asks, or for many rows on the rayon pool of that thread, so it neither waits
/// for a batch that is being learned nor changes what is learned. The bits do not depend on the number of threads. To
/// see newer parameters, ask the learner for another view.
///
/// ```
/// use anemone::{Batch, Categorical, Learner, hmm};
///
/// let learner = Learner::on(hmm(4, 3, Categorical::new(5)?)?).spawn()?;
/// let rows = Batch::from_rows(&[0u8, 1, 2, 3, 4, 3, 2, 1], 4)?;
/// learner.learn_blocking(rows.clone())?;
///
/// let view = learner.view_blocking()?;
/// assert_eq!(view.updates(), 1);
/// // A marginal: what is missing is summed out.
/// let first_half = rows.clone().with_missing(|_, var| var >= 2);
/// let marginal = view.log_likelihoods(&first_half)?;
/// // A conditional: the second half given the first.
/// let second_half = rows.clone().with_missing(|_, var| var < 2);
/// let conditional = view.conditional(&second_half, &first_half)?;
/// let joint = view.log_likelihoods(&rows)?;
/// assert!((marginal[0] + conditional[0] - joint[0]).abs() < 1e-6);
/// // Two completions of each first half, drawn from p(second half | first half).
/// assert_eq!(view.sample_given(&first_half, 2, 7)?.num_rows(), 4);
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone)]
pub struct View {
    evaluator: Arc<Evaluator>,
    batches: u64,
    updates: u64,
    is_averaged: bool,
}

impl View {
    pub(super) fn new(evaluator: Evaluator, batches: u64, updates: u64, is_averaged: bool) -> Self {
        Self { evaluator: Arc::new(evaluator), batches, updates, is_averaged }
    }

    /// A view of a model that no learner holds, such as one that was read from a folder.
    pub fn of(circuit: Arc<Circuit>, params: Params) -> Result<Self> {
        params.check(&circuit)?;
        Ok(Self::new(Evaluator::on_host(circuit, params)?, 0, 0, false))
    }

    /// The circuit.
    pub fn circuit(&self) -> &Arc<Circuit> {
        self.evaluator.circuit()
    }

    /// The parameters that answer.
    pub fn params(&self) -> &Params {
        self.evaluator.params()
    }

    /// Updates that had been made when the view was taken.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Batches that had been learned from when the view was taken.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns true if the parameters are averages of those that are learned with.
    pub fn is_averaged(&self) -> bool {
        self.is_averaged
    }

    /// log p(x) of every row, in nats; −∞ where it is impossible. Missing cells are marginalised exactly.
    pub fn log_likelihoods(&self, batch: &Batch) -> Result<Vec<f64>> {
        self.evaluator.log_likelihoods(batch)
    }

    /// The same bits from all threads of the rayon pool that asks, for many rows at a time.
    pub fn log_likelihoods_spread(&self, batch: &Batch) -> Result<Vec<f64>> {
        self.evaluator.log_likelihoods_spread(batch)
    }

    /// log p(query | evidence) of every row, in nats. Both sides are rows with missing cells; what is missing on both
    /// is marginalised. Evidence of a single row holds for all queries. A query that contradicts its evidence has −∞;
    /// evidence that is impossible is an error that names its row.
    pub fn conditional(&self, query: &Batch, evidence: &Batch) -> Result<Vec<f64>> {
        Conditional::new(query, evidence)?.answer(|batch| self.log_likelihoods(batch))
    }

    /// Draws rows. A seed draws the same rows on any machine and any number of threads.
    pub fn sample(&self, num_rows: usize, seed: u64) -> Result<Batch> {
        query::sample(self.circuit(), self.params(), num_rows, &mut Rng::new(seed))
    }

    /// Draws `num_samples` completions of every row: missing cells from their exact distribution given the others. Row
    /// `r·num_samples + k` of the answer is completion `k` of row `r`. A seed draws the same on any number of threads;
    /// another instruction set rounds otherwise, which changes one draw in some million.
    pub fn sample_given(&self, evidence: &Batch, num_samples: usize, seed: u64) -> Result<Batch> {
        query::sample_given_of(&self.evaluator, evidence, num_samples, &mut Rng::new(seed))
    }

    /// p(X_v = c | rest of the row) of every missing cell, and of numbers mean and variance. The answer holds one
    /// number for each category of each missing cell: ask for few rows at a time where categories are many, or
    /// [`for_each_posterior`](Self::for_each_posterior). A row that is impossible is an error that names it.
    ///
    /// ```
    /// use anemone::query::Marginal;
    /// use anemone::{Batch, Categorical, Params, View, hmm};
    ///
    /// let circuit = std::sync::Arc::new(hmm(4, 3, Categorical::new(5)?)?);
    /// let view = View::of(circuit.clone(), Params::random(&circuit, 1, 2.0)?)?;
    /// let rows = Batch::from_rows(&[4u8, 0, 0, 2], 4)?.with_missing(|_, var| var == 1);
    /// let marginals = view.posterior_marginals(&rows)?;
    /// let Some(Marginal::Categories(probabilities)) = marginals.get(0, 1) else { panic!("it is missing") };
    /// assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    /// # Ok::<(), anemone::Error>(())
    /// ```
    pub fn posterior_marginals(&self, batch: &Batch) -> Result<PosteriorMarginals> {
        query::posterior_marginals(&self.evaluator, batch)
    }

    /// Shows the posterior of every missing cell as a mixture, of which single probabilities or moments are computed
    /// when asked for: row, variable, posterior. Memory does not depend on the number of categories. Tiles of rows are
    /// worked on side by side, so cells arrive from several threads and not in order.
    pub fn for_each_posterior(&self, batch: &Batch, see: impl Fn(usize, usize, Posterior<'_>) + Sync) -> Result<()> {
        query::for_each_posterior(&self.evaluator, batch, see)
    }

    /// E\[f_v(X_v) | rest of the row\] of every cell, `[rows × vars]`, with one function for each variable; of a cell
    /// that is not missing f_v(x_v). With [`Function::Identity`] that is the dosage of a category, or the mean.
    pub fn expectations(&self, batch: &Batch, functions: &[Function]) -> Result<Vec<f64>> {
        query::expectations(&self.evaluator, batch, functions)
    }

    /// log p(x_v | rest of the row) of every value that is not missing, and log p(x) of every row.
    pub fn surprise(&self, batch: &Batch) -> Result<Surprise> {
        query::surprise(&self.evaluator, batch)
    }

    /// Completes every row with the most probable explanation: missing values and latents together, by max-product.
    /// Exact for that joint, which for a chain is Viterbi's; [`Mpe`] says what it is not. Numbers take the mode of
    /// their unit. A row that is impossible is an error that names it.
    pub fn mpe(&self, batch: &Batch) -> Result<Mpe> {
        query::mpe(&self.evaluator, batch)
    }

    /// The hidden Markov model that the circuit is; an error if it is none.
    pub fn chain(&self) -> Result<Chain<'_>> {
        Chain::of(self.circuit(), self.params())
    }

    /// p(next symbol | prefix) of every symbol, of a chain.
    pub fn next_symbol(&self, prefix: &[u32]) -> Result<Vec<f64>> {
        Ok(self.chain()?.next_symbols(&[prefix])?.remove(0))
    }

    /// A chain under a constraint on its first `length` symbols: probabilities, next symbols, samples.
    pub fn constrained(&self, constraint: Dfa, length: usize) -> Result<Constrained<'_>> {
        Constrained::new(self.chain()?, constraint, length)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, updates, is_averaged, .. } = self;
        f.debug_struct("View")
            .field("batches", batches)
            .field("updates", updates)
            .field("is_averaged", is_averaged)
            .finish_non_exhaustive()
    }
}
