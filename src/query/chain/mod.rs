//! Circuits that are chains: hidden Markov models, seen as start, transitions and emissions.
//!
//! A [`Chain`] is recognised by the shape of a circuit, whoever built it: from the root down, a variable at a time, in
//! their order, with tables as emissions and with sums and permutations between two states, so that dense and Monarch
//! transitions are chains alike. One pass forwards over a prefix answers what comes next. Where all steps share their
//! parameters, the chain may be asked about sequences of any length. [`Constrained`] asks under a constraint.

mod constrained;
mod recognise;
mod transition;

use rayon::prelude::*;

pub use constrained::Constrained;
use transition::{Transition, log_sum};

use crate::circuit::{ParamId, Params};
use crate::error::{Error, Result};

/// A circuit as a hidden Markov model: one θ, borrowed.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    params: &'a Params,
    /// p(first state).
    initial: Vec<f64>,
    /// Of every step, or one for all if they share it.
    emissions: Vec<ParamId>,
    /// Out of every step but the last, or one for all. None where the circuit has one variable only.
    transitions: Vec<Transition>,
    num_vars: usize,
    num_symbols: usize,
    is_homogeneous: bool,
}

/// What is known after a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Filtered {
    /// log p(prefix), in nats.
    pub log_likelihood: f64,
    /// log p(state of the next step | prefix): a constraint may need a state that is less likely than f64 can tell.
    pub log_state: Vec<f64>,
}

impl Chain<'_> {
    /// How many hidden states.
    pub fn num_states(&self) -> usize {
        self.initial.len()
    }

    /// How many symbols: every step emits one of `0..num_symbols`.
    pub fn num_symbols(&self) -> usize {
        self.num_symbols
    }

    /// How many variables the circuit has.
    pub fn num_vars(&self) -> usize {
        self.num_vars
    }

    /// Returns true if all steps share their parameters: the chain then goes on for as long as one likes.
    pub fn is_homogeneous(&self) -> bool {
        self.is_homogeneous
    }

    /// p(first state).
    pub fn initial(&self) -> &[f64] {
        &self.initial
    }

    /// p(next state | this state) out of step `step`, of one state.
    pub fn transition_row(&self, step: usize, state: usize) -> Vec<f64> {
        self.transition(step).row(self.params, state)
    }

    /// p(symbol | state) at step `step`: `[symbols × states]`, state index fastest.
    pub fn emissions(&self, step: usize) -> &[f32] {
        let id = self.emissions[if self.emissions.len() == 1 { 0 } else { step }];
        &self.params.values()[self.params.layout().block(id).values.clone()]
    }

    fn transition(&self, step: usize) -> &Transition {
        &self.transitions[if self.transitions.len() == 1 { 0 } else { step }]
    }

    /// An error if there is no step `length - 1`.
    pub(crate) fn check_length(&self, length: usize) -> Result<()> {
        // A single variable says nothing about what follows it.
        let goes_on = self.is_homogeneous && self.num_vars > 1;
        if length <= self.num_vars || goes_on {
            return Ok(());
        }
        let has = self.num_vars;
        Err(Error::option(format!(
            "{length} symbols asked of a chain of {has} whose steps have parameters of their own: at most {has}"
        )))
    }

    /// log p(prefix), in nats: of the first symbols, whatever follows them.
    pub fn log_likelihood(&self, prefix: &[u32]) -> Result<f64> {
        let filtered = self.filter(prefix).map_err(|e| e.at("the prefix"))?;
        Ok(filtered.log_likelihood)
    }

    /// One pass forwards over a prefix.
    pub(crate) fn filter(&self, prefix: &[u32]) -> Result<Filtered> {
        self.check_length(prefix.len())?;
        let mut state: Vec<f64> = self.initial.iter().map(|p| p.ln()).collect();
        let mut log_likelihood = 0.0;
        for (step, &symbol) in prefix.iter().enumerate() {
            if symbol as usize >= self.num_symbols {
                let why = format!("symbol {step}: {symbol} is outside 0..{}", self.num_symbols);
                return Err(Error::data(why));
            }
            let emitted = &self.emissions(step)[symbol as usize * self.num_states()..][..self.num_states()];
            state.iter_mut().zip(emitted).for_each(|(p, &e)| *p += f64::from(e).ln());
            let total = log_sum(state.iter().copied());
            if total.is_nan() || total == f64::NEG_INFINITY {
                let why = format!("symbol {step}: it has probability zero under the model, so nothing follows from it");
                return Err(Error::data(why));
            }
            log_likelihood += total;
            state.iter_mut().for_each(|p| *p -= total);
            // After the last variable of a chain that ends, the state stays what it is: nobody asks what follows.
            if step + 1 < self.num_vars || self.check_length(step + 2).is_ok() {
                state = self.transition(step).log_push(self.params, &state);
            }
        }
        Ok(Filtered { log_likelihood, log_state: state })
    }

    /// p(next symbol | prefix) of every symbol, for every prefix; one pass over the emissions serves all of them.
    /// Prefixes may have different lengths, and none: that is the distribution of the first symbol.
    pub fn next_symbols(&self, prefixes: &[&[u32]]) -> Result<Vec<Vec<f64>>> {
        let states: Vec<Vec<f64>> = prefixes
            .par_iter()
            .enumerate()
            .map(|(row, prefix)| {
                let answer = self.check_length(prefix.len() + 1).and_then(|()| self.filter(prefix));
                let answer = answer.map_err(|error| error.at_row(row as u64))?;
                Ok(answer.log_state.iter().map(|p| p.exp()).collect())
            })
            .collect::<Result<_>>()?;
        let mut answers: Vec<Vec<f64>> = prefixes.iter().map(|_| vec![0.0; self.num_symbols]).collect();
        // A few prefixes at a time, so that a piece of the table serves them while it is in a cache.
        for (symbols, from) in pieces(self.num_symbols) {
            answers.par_iter_mut().zip(&states).zip(prefixes).for_each(|((answer, state), prefix)| {
                let table = &self.emissions(prefix.len())[from * self.num_states()..];
                for (p, emitted) in answer[from..from + symbols].iter_mut().zip(table.chunks_exact(self.num_states())) {
                    *p = state.iter().zip(emitted).map(|(p, &e)| p * f64::from(e)).sum();
                }
            });
        }
        answers.par_iter_mut().for_each(|answer| {
            let total: f64 = answer.iter().sum(); // one, to the rounding of the parameters
            answer.iter_mut().for_each(|p| *p /= total);
        });
        Ok(answers)
    }
}

/// Symbols at a time, and where they begin.
fn pieces(num_symbols: usize) -> impl Iterator<Item = (usize, usize)> {
    const TOGETHER: usize = 512;
    (0..num_symbols).step_by(TOGETHER).map(move |from| (TOGETHER.min(num_symbols - from), from))
}
