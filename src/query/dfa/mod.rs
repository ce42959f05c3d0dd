//! Finite automata over symbols: what a constraint on a sequence is.
//!
//! A [`Dfa`] reads a sequence symbol by symbol and is in one state after each; the sequence is accepted if the last
//! state is an accepting one. Symbols that no state tells apart are one *class*, so an automaton over 50,257 tokens is
//! as large as it has to be: `[states × classes]`. Constraints are made from words ([`contains`]), from patterns
//! ([`matches_text`], [`matches_tokens`]), for tokens that spell bytes ([`over_tokens`]), for what
//! comes before an end ([`before_end`]), and joined by [`Dfa::and`].
//! `query::chain` asks how probable it is that a chain is accepted.

mod minimise;
mod nfa;
mod pattern;
mod text_pattern;
mod token_pattern;
mod tokens;
mod utf8;
mod words;

use std::collections::HashMap;
use std::hash::Hash;

pub use text_pattern::matches_text;
pub use token_pattern::matches_tokens;
pub use tokens::{before_end, over_tokens, text_length};
pub use words::{Order, contains, contains_words};

use crate::error::{Error, Result};

/// An automaton of more states is refused: tables over (position, state, hidden state) would not fit.
pub const MOST_STATES: usize = 1 << 14;

/// A deterministic finite automaton over the symbols `0..num_symbols`.
///
/// ```
/// use anemone::query::dfa::Dfa;
///
/// // Over three symbols: an even number of ones.
/// let even = Dfa::from_fn(3, 2, 0, |state, symbol| if symbol == 1 { 1 - state } else { state }, |state| state == 0)?;
/// assert!(even.accepts(&[0, 1, 2, 1]) && !even.accepts(&[1]));
/// assert_eq!((even.num_states(), even.num_classes()), (2, 2)); // nothing tells 0 and 2 apart
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dfa {
    /// The class of every symbol.
    class_of: Vec<u32>,
    num_classes: usize,
    /// `[states × classes]`, class index fastest.
    next: Vec<u32>,
    accepting: Vec<bool>,
    start: u32,
}

impl Dfa {
    /// The automaton with the states `0..num_states` whose state after `symbol` is `next(state, symbol)`.
    pub fn from_fn(
        num_symbols: usize,
        num_states: usize,
        start: usize,
        next: impl Fn(usize, u32) -> usize,
        accepting: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        check_states(num_states)?;
        if num_symbols == 0 || start >= num_states {
            let why = format!("{num_symbols} symbols, {num_states} states, start {start}");
            return Err(Error::option(format!("{why}: an automaton needs a symbol, and a start among its states")));
        }
        // Refined state by state: two symbols share a class as long as no state has told them apart.
        let mut class_of = vec![0u32; num_symbols];
        for state in 0..num_states {
            let mut classes: HashMap<(u32, usize), u32> = HashMap::new();
            for (symbol, class) in class_of.iter_mut().enumerate() {
                let to = next(state, symbol as u32);
                if to >= num_states {
                    return Err(Error::option(format!("state {state}, symbol {symbol}: there is no state {to}")));
                }
                let fresh = classes.len() as u32;
                *class = *classes.entry((*class, to)).or_insert(fresh);
            }
        }
        let symbols = representatives(&class_of);
        let to = |state: usize| symbols.iter().map(move |&symbol| (state, symbol));
        Ok(Self {
            num_classes: symbols.len(),
            next: (0..num_states).flat_map(to).map(|(state, symbol)| next(state, symbol) as u32).collect(),
            accepting: (0..num_states).map(accepting).collect(),
            start: start as u32,
            class_of,
        })
    }

    /// The automaton of the states that are reached from `start`, whatever a state is.
    pub(crate) fn explore<S: Clone + Eq + Hash>(
        class_of: Vec<u32>,
        start: S,
        mut next: impl FnMut(&S, usize) -> S,
        accepting: impl Fn(&S) -> bool,
    ) -> Result<Self> {
        let num_classes = representatives(&class_of).len();
        let mut numbers: HashMap<S, u32> = HashMap::from([(start.clone(), 0)]);
        let mut states = vec![start];
        let mut table = Vec::new();
        let mut at = 0;
        while at < states.len() {
            for class in 0..num_classes {
                let to = next(&states[at], class);
                let fresh = states.len() as u32;
                let number = *numbers.entry(to.clone()).or_insert(fresh);
                if number == fresh {
                    states.push(to);
                    check_states(states.len())?;
                }
                table.push(number);
            }
            at += 1;
        }
        let accepting = states.iter().map(accepting).collect();
        Ok(Self { class_of, num_classes, next: table, accepting, start: 0 })
    }

    /// The automaton that accepts everything.
    pub fn anything(num_symbols: usize) -> Result<Self> {
        Self::from_fn(num_symbols, 1, 0, |_, _| 0, |_| true)
    }

    /// How many symbols there are.
    pub fn num_symbols(&self) -> usize {
        self.class_of.len()
    }

    /// How many states it has.
    pub fn num_states(&self) -> usize {
        self.accepting.len()
    }

    /// How many classes of symbols it tells apart.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// The state before the first symbol.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Returns true if a sequence that ends in `state` is accepted.
    pub fn is_accepting(&self, state: usize) -> bool {
        self.accepting[state]
    }

    /// The class of a symbol.
    pub(crate) fn class_of(&self, symbol: u32) -> usize {
        self.class_of[symbol as usize] as usize
    }

    /// The state after a symbol of `class`.
    pub(crate) fn next_of_class(&self, state: usize, class: usize) -> usize {
        self.next[state * self.num_classes + class] as usize
    }

    /// The state after `symbol`.
    pub fn next(&self, state: usize, symbol: u32) -> usize {
        self.next_of_class(state, self.class_of(symbol))
    }

    /// The state after all of `symbols`, from `state`.
    pub fn run(&self, state: usize, symbols: &[u32]) -> usize {
        symbols.iter().fold(state, |state, &symbol| self.next(state, symbol))
    }

    /// Returns true if it accepts the sequence.
    pub fn accepts(&self, symbols: &[u32]) -> bool {
        self.accepting[self.run(self.start(), symbols)]
    }

    /// Accepts what both accept, in the fewest states.
    pub fn and(&self, other: &Self) -> Result<Self> {
        if self.num_symbols() != other.num_symbols() {
            return Err(Error::option(format!(
                "automata over {} and over {} symbols have no common sequences",
                self.num_symbols(),
                other.num_symbols()
            )));
        }
        let mut classes: HashMap<(u32, u32), u32> = HashMap::new();
        let mut pairs = Vec::new();
        let class_of = self.class_of.iter().zip(&other.class_of).map(|(&a, &b)| {
            *classes.entry((a, b)).or_insert_with(|| {
                pairs.push((a as usize, b as usize));
                pairs.len() as u32 - 1
            })
        });
        let class_of = class_of.collect();
        let next = |&(a, b): &(usize, usize), class: usize| {
            (self.next_of_class(a, pairs[class].0), other.next_of_class(b, pairs[class].1))
        };
        let both = Self::explore(class_of, (self.start(), other.start()), next, |&(a, b)| {
            self.accepting[a] && other.accepting[b]
        })?;
        Ok(both.minimise())
    }

    /// Accepts what it did not.
    pub fn complement(mut self) -> Self {
        self.accepting.iter_mut().for_each(|accepting| *accepting = !*accepting);
        self
    }
}

/// One symbol of each class, in the order of the classes.
fn representatives(class_of: &[u32]) -> Vec<u32> {
    let num_classes = class_of.iter().max().map_or(0, |&class| class as usize + 1);
    let mut symbols = vec![u32::MAX; num_classes];
    for (symbol, &class) in class_of.iter().enumerate().rev() {
        symbols[class as usize] = symbol as u32;
    }
    debug_assert!(symbols.iter().all(|&symbol| symbol != u32::MAX), "a class has a symbol");
    symbols
}

fn check_states(states: usize) -> Result<()> {
    if states <= MOST_STATES {
        return Ok(());
    }
    Err(Error::option(format!(
        "the constraint needs an automaton of more than {MOST_STATES} states: use fewer words, words in a fixed order, \
         or smaller repetitions"
    )))
}
